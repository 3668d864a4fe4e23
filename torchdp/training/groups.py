"""Groups of parameters whose gradients are clipped separately, each to its part of the bound."""

import math
from collections.abc import Mapping, Sequence

from torchdp import checks

LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
SHORTER = 1 - 2.0**-50  # for what rounds in a group's part of the bound

Bounds = Sequence[tuple[float, Sequence[str]]]  # to what parameters are clipped together, and their names


def group_bounds(bound: float, names: Sequence[str], groups: Mapping[str, float] | None = None) -> Bounds:
    """C_k = bound w_k / (sum_j w_j^2)^.5 for each group, and its parameters; ``bound`` for all where there is none.

    names: the trainable parameters. groups: w_k > 0 by the name of a parameter, or of a module that holds it, of which
    the longest counts; "" holds all. Raises TypeError, ValueError.

    Guarantees: a gradient whose groups are at most C_k long is at most ``bound`` long.
    Proof: sum_k C_k^2 = bound^2; each rounds up by less than SHORTER takes away: 2 of hypot's and 4 other half ulps.
    """
    least = checks.positive("bound", bound)
    found: list[tuple[float, list[str]]] = [(float(bound), list(names))]
    if groups is not None:
        weights = {name: checks.positive(f"groups[{name!r}]", w) for name, w in groups.items()}
        largest = max(weights.values(), default=1.0)
        total = math.hypot(*(w / largest for w in weights.values()))
        members: dict[str, list[str]] = {name: [] for name in weights}
        for place in names:
            holding = [name for name in weights if holds(name, place)]
            if not holding:
                raise ValueError(
                    f'groups must hold every trainable parameter, and {place} is in none: "" holds all'
                )
            members[max(holding, key=len)].append(place)
        if empty := [name for name, own in members.items() if not own]:
            raise ValueError(f"groups must name trainable parameters that no longer name holds, not {empty[0]!r}")
        found = [(bound * (weights[name] / largest / total) * SHORTER, own) for name, own in members.items()]
        least = min(each for each, _ in found)
    if least < LEAST:
        raise ValueError(f"bound must be at least {LEAST:.1e}, not {least!r}: float32 has no digits there")
    return found


def holds(name: str, place: str) -> bool:
    """Whether a parameter has this name, or is in the module that has; "" is the whole."""
    return name in ("", place) or place.startswith(f"{name}.")
