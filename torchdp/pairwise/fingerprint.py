"""A name for a protocol that any change of what users send or what the analyst computes would change."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum

from torch import Tensor


def fingerprint(value: object) -> str:
    """SHA-256 of a frozen dataclass: its class and every field, tensors bit by bit; 64 hex digits.

    Of a protocol it covers the statistic's points and forms, epsilon and, through the class, the randomizer. Two
    runs of a numerical factorization may differ in the last bits on other hardware; then so do the fingerprints,
    rightly: the messages are about other vectors. Keep such a statistic's tensors with the collection.
    Raises TypeError for a field that is no tensor, number, text, Enum, class, None, tuple or dataclass of those.
    """
    hashed = hashlib.sha256()
    for part in _parts("value", value):
        hashed.update(len(part).to_bytes(8, "little"))  # no two lists of parts run into the same bytes
        hashed.update(part)
    return hashed.hexdigest()


def _parts(name: str, value: object) -> Iterator[bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, Tensor):
        yield repr((value.dtype, tuple(value.shape))).encode()
        yield value.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(value, Enum):
        yield value.name.encode()
    elif isinstance(value, tuple):
        yield str(len(value)).encode()
        for index, item in enumerate(value):
            yield from _parts(f"{name}[{index}]", item)
    elif isinstance(value, bool | int | str | None):
        yield repr(value).encode()
    elif isinstance(value, float):
        yield value.hex().encode()
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif is_dataclass(value):
        for field in fields(value):
            yield field.name.encode()
            yield from _parts(f"{name}.{field.name}", getattr(value, field.name))
    else:
        raise TypeError(f"{name} cannot enter a fingerprint: it is a {kind.__name__}")
