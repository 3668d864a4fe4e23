"""Scales by which gradients, or groups of them, keep their bounds, rounding included; sums of what
they make.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.training.factors import Form, Rows
from torchdp.training.per_example import flat

# float32 squares that are added up as such: the relative error of their norm is at most 129 eps
BLOCK = 256
LONG = 1 - 2.0**-20  # of its length: what is shortened by less is not, but for rounding
# bounds from here on do not see squares below float32's; the error allowed in blocks
FAST, SLACK = 1e-6, 2.0**-16
LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
SHORTER = 1 - 2.0**-50  # for what rounds in a group's part of the bound

# to what parameters are clipped together, and their names
Bounds = Sequence[tuple[float, Sequence[str]]]


def clipped_sum(gradients: Sequence[Tensor], bound: float) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||) of gradients that were made elsewhere, flat, at least
    float32: (size,).

    gradients: for each parameter those of the examples, (n, *shape), n >= 0; g_i is all of example
    i's together: of ``torch.func.vmap(grad(...))``, or Opacus's ``grad_sample``. What counts as 0:
    as there. Raises TypeError, ValueError.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding
    of the sum; where each g_i is a function of its own example.
    Source: as :func:`clip_and_sum`.
    """
    given = {str(i): g for i, g in enumerate(checks.several("gradients", gradients, Tensor))}
    return clipped_rows(given, group_bounds(bound, list(given)))[0]


def set_gradients(module: nn.Module, gradient: Tensor) -> None:
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer.
    Raises ValueError.
    """
    checks.instance("module", module, nn.Module)
    parameters = [p for p in module.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    if checks.dense("gradient", gradient).shape != (sum(sizes),):
        raise ValueError(f"gradient must be a flat tensor of shape ({sum(sizes)},)")
    for p, part in zip(parameters, gradient.detach().split(sizes), strict=True):
        p.grad = part.view(p.shape).to(p.device, p.dtype)


def clipped_rows(gradients: Mapping[str, Tensor], bounds: Bounds) -> tuple[Tensor, Tensor]:
    """As :func:`clipped_sum`, and a sum of signs: 1 for an example within the bounds, -1 for one
    that is not.
    """
    if any(g.is_complex() for g in gradients.values()):
        raise TypeError("gradients must be real; split complex ones by torch.view_as_real")
    n = {len(checks.dense("gradients", g)) if g.ndim else -1 for g in gradients.values()}
    if len(n) > 1 or min(n) < 0:
        raise ValueError(f"gradients must hold equally many examples' each, not {sorted(n)}")
    sums = Sums(bounds)
    sums.add({name: Rows(flat(g)) for name, g in gradients.items()})
    return sums.flat(gradients), sums.balance


class Sums:
    """Sums of gradients clipped to these bounds, part by part: of one part as it is made, of
    several in float64.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds, self._totals = bounds, dict[str, Tensor]()
        # examples within the bounds, less the others
        self.balance = torch.zeros((), dtype=torch.float64)

    def add(self, forms: Mapping[str, Form]) -> None:
        parts, within = dict[str, Tensor](), list[Tensor]()
        for bound, names in self._bounds:
            if own := {name: forms[name] for name in names if name in forms}:
                found, inside = clipped(list(own.values()), bound)
                parts |= zip(own, found, strict=True)
                within.append(inside)
        if within:
            self.balance = self.balance + (2 * torch.stack(within).all(0).double() - 1).sum()
        for name, part in parts.items():
            before = self._totals.get(name)
            self._totals[name] = part if before is None else before.double() + part

    def flat(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """All of them, zeros where nothing was; in the parameters' dtype, at least float32."""
        dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        found = self._totals
        parts = [
            found[name] if name in found else p.new_zeros(p.numel())
            for name, p in parameters.items()
        ]
        return torch.cat([part.detach().flatten().to(dtype) for part in parts])


def clipped(forms: Sequence[Form], bound: float) -> tuple[list[Tensor], Tensor]:
    """sum_i g_i min(1, bound / ||g_i||), flat, of each form; example i's norm is that of all of
    them together.

    And whether an example is within the bound, (n,): not shortened. forms: at least one.
    """
    rows = [form.rows for form in forms if isinstance(form, Rows)]
    with torch.autocast(forms[0].rows.device.type, enabled=False):
        more = [form.norms() for form in forms if not isinstance(form, Rows)]
        scales = _scales(rows or [forms[0].rows.new_empty(len(forms[0].rows), 0)], bound, more)
        kept = scales > 0
        if scales.device.type != "cpu" or not bool(kept.all()):
            scales, forms = torch.where(kept, scales, 0.0), [form.zeroed(kept) for form in forms]
        return [form.sum(scales, bound) for form in forms], scales > LONG


def _scales(rows: Sequence[Tensor], bound: float, more: Sequence[Tensor] = ()) -> Tensor:
    """By which rows are at most ``bound`` long together, rounding included: (n,); 0 where there is
    none.

    more: norms of further parts of the rows, (n,) each, float64, that are not too small.
    """
    eps, tiny = (
        max(getattr(torch.finfo(part.dtype), name) for part in rows) for name in ("eps", "tiny")
    )
    # of one example: how norms are made is no matter of their number
    size = sum(part.shape[1] for part in rows)
    if (
        size > BLOCK
        and bound >= FAST
        and all(part.dtype == torch.float32 and part.device.type == "cpu" for part in rows)
    ):
        # what squares below 1e-38 add up to is nothing beside FAST
        blocks = [
            torch.linalg.vector_norm(block, dim=-1) for part in rows for block in _blocks(part)
        ]
        norms = torch.linalg.vector_norm(torch.cat(blocks, 1).double(), dim=1)
        # their squares pass float32; no other example's scale may change by it
        far = ~norms.isfinite()
        if far.any():
            norms[far] = torch.stack([Rows(part[far]).norms() for part in rows]).norm(dim=0)
        more = [norms * (1 + SLACK), *more]
    else:
        more = [*(Rows(part).norms() for part in rows), *more]
    norms = torch.linalg.vector_norm(torch.stack(list(more)), dim=0) if len(more) > 1 else more[0]
    shorter = 1 - 2 * eps
    scales = (bound / norms).clamp_max(1 / shorter) * shorter
    return torch.nn.functional.threshold(scales, tiny, 0.0)  # smaller ones have too few digits


def _blocks(part: Tensor) -> Iterator[Tensor]:
    """Rows cut into blocks of BLOCK numbers, (n, blocks, BLOCK), and the rest."""
    whole = part.shape[1] // BLOCK * BLOCK
    yield part[:, :whole].unflatten(1, (-1, BLOCK)) if whole else part[:, None, :0]
    yield part[:, None, whole:]


def group_bounds(
    bound: float, names: Sequence[str], groups: Mapping[str, float] | None = None
) -> Bounds:
    """C_k = bound w_k / (sum_j w_j^2)^.5 for each group, and its parameters; ``bound`` for all
    where there is none.

    names: the trainable parameters. groups: w_k > 0 by the name of a parameter, or of a module that
    holds it, of which the longest counts; "" holds all. Raises TypeError, ValueError.

    Guarantees: a gradient whose groups are at most C_k long is at most ``bound`` long.
    Proof: sum_k C_k^2 = bound^2; each rounds up by less than SHORTER takes away: 2 of hypot's and 4
    other half ulps.
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
                    f'groups must hold all trainable parameters; {place} is in none: "" holds all'
                )
            members[max(holding, key=len)].append(place)
        if empty := [name for name, own in members.items() if not own]:
            raise ValueError(
                f"groups must name trainable parameters that no longer name holds, not {empty[0]!r}"
            )
        found = [
            (bound * (weights[name] / largest / total) * SHORTER, own)
            for name, own in members.items()
        ]
        least = min(each for each, _ in found)
    if least < LEAST:
        raise ValueError(
            f"bound must be at least {LEAST:.1e}, not {least!r}: float32 has no digits there"
        )
    return found


def holds(name: str, place: str) -> bool:
    """Whether a parameter has this name, or is in the module that has; "" is the whole."""
    return name in ("", place) or place.startswith(f"{name}.")
