"""What floats can not decide is decided by numbers of 448 bits, made of words."""

import functools
from typing import Any


@functools.cache
def arithmetic() -> Any:
    """Numbers of 448 bits: a context of mpmath."""
    import mpmath

    context = mpmath.MPContext()
    context.prec = 448
    return context


def joined(words: list[int], first: int = 0) -> int:
    """Behind ``first``, words of 64 bits, signed, as one whole number, the first one highest."""
    for word in words:
        first = first << 64 | word % (1 << 64)
    return first


def two_normals(context: Any, share: Any, turn: Any) -> tuple[Any, Any]:
    """Of two uniform numbers, of which ``turn`` counts half turns, by Box and Muller (1958)."""
    cosine, sine = context.cos_sin(context.pi * turn)
    size = context.sqrt(-2 * context.log(share))
    return size * cosine, size * sine
