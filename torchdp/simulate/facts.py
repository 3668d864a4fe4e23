"""What is known of a configuration beforehand must be the same in all its blocks."""

import math
from collections.abc import Mapping, Sequence


def same_facts(config: Mapping[str, object], facts: Sequence[Mapping[str, object]]) -> None:
    """Raises ValueError where the facts of a configuration's blocks differ by more than rounding."""
    for other in facts[1:]:
        if not _alike(other, facts[0]):
            raise ValueError(
                f"facts of config {config} differ between its blocks: {facts[0]} and {other}; the trial has "
                "changed since the store was begun, so it needs a new store"
            )


def _alike(a: object, b: object) -> bool:
    """Whether two values of JSON are equal; floats up to the rounding that another number of threads brings."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b
