"""Scales by which gradients, or groups of them, keep their bounds, and sums of what they make.

Notation: g_i is example i's gradient, C its bound; its scale is min(1, C / ||g_i||), less what
rounding may add.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.training.factors import Form, Rows
from torchdp.training.per_example import flat

# float32 squares that are added up as such: their norm has a relative error of at most 129 eps.
BLOCK = 256

# The relative error that norms by blocks may have.
SLACK = 2.0**-16

# Bounds from here on allow for it: squares below float32's numbers, 1e-38, add up to nothing there.
FAST = 1e-6

# An example that keeps so much of its length is within the bound: less is rounding.
LONG = 1 - 2.0**-20

# A bound below it would multiply float32's numbers without leading digits.
LEAST = 2.0**-100

# For what rounds in a group's part of the bound.
SHORTER = 1 - 2.0**-50

# To what parameters are clipped together, and their names.
Bounds = Sequence[tuple[float, Sequence[str]]]


def clipped_sum(gradients: Sequence[Tensor], bound: float) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||) of gradients that were made elsewhere.

    Args:
        gradients: for each parameter those of the examples, (n, *shape), n >= 0; g_i is all of
            example i's together: of ``torch.func.vmap(grad(...))``, or Opacus's ``grad_sample``.
        bound: the longest that an example's gradient may be.

    Returns one flat vector, (size,), at least float32. What counts as 0: as in
    :func:`clip_and_sum`. Raises TypeError, ValueError.

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
    """As :func:`clipped_sum`, and a sum of signs.

    The sign is 1 for an example within the bounds, -1 for one that is not.
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
    """Sums of gradients clipped to these bounds, of examples that come in parts.

    Of one part as it is made, of several in float64. ``balance`` counts examples within the bounds,
    less the others.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._totals: dict[str, Tensor] = {}
        self.balance = torch.zeros((), dtype=torch.float64)

    def add(self, forms: Mapping[str, Form]) -> None:
        within: list[Tensor] = []
        for bound, names in self._bounds:
            group = {name: forms[name] for name in names if name in forms}
            if not group:
                continue
            sums, inside = clipped(list(group.values()), bound)
            within.append(inside)
            for name, part in zip(group, sums, strict=True):
                before = self._totals.get(name)
                self._totals[name] = part if before is None else before.double() + part
        if within:
            signs = 2 * torch.stack(within).all(0).double() - 1
            self.balance = self.balance + signs.sum()

    def flat(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """All of them, zeros where nothing was; in the parameters' dtype, at least float32."""
        dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        parts = []
        for name, p in parameters.items():
            total = self._totals.get(name)
            total = p.new_zeros(p.numel()) if total is None else total
            parts.append(total.detach().flatten().to(dtype))
        return torch.cat(parts)


def clipped(forms: Sequence[Form], bound: float) -> tuple[list[Tensor], Tensor]:
    """sum_i g_i min(1, bound / ||g_i||), flat, of each form, and who is within the bound.

    Example i's norm is that of all forms together. It is within the bound, (n,), where it is not
    shortened. forms: at least one.
    """
    with torch.autocast(forms[0].rows.device.type, enabled=False):
        scales = _scales(forms, bound)
        kept = scales > 0
        # Gradients that are no numbers would be none times 0, too. A GPU is not waited for.
        if scales.device.type != "cpu" or not bool(kept.all()):
            scales = torch.where(kept, scales, 0.0)
            forms = [form.zeroed(kept) for form in forms]
        return [form.sum(scales, bound) for form in forms], scales > LONG


def _scales(forms: Sequence[Form], bound: float) -> Tensor:
    """By which examples are at most ``bound`` long, rounding included: (n,); 0 where none does."""
    rows = [form.rows for form in forms if isinstance(form, Rows)]
    lengths = [form.norms() for form in forms if not isinstance(form, Rows)]
    lengths = _row_norms(rows, bound) + lengths
    norms = (
        torch.linalg.vector_norm(torch.stack(lengths), dim=0) if len(lengths) > 1 else lengths[0]
    )
    infos = [torch.finfo(form.rows.dtype) for form in forms]
    # Norm, quotient and product round: those that are clipped end a little below the bound.
    shorter = 1 - 2 * max(info.eps for info in infos)
    tiny = max(info.tiny for info in infos)
    scales = (bound / norms).clamp_max(1 / shorter) * shorter
    return torch.nn.functional.threshold(scales, tiny, 0.0)  # smaller ones have too few digits


def _row_norms(rows: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Norms of each part of the examples' rows, or of all parts together: (n,) each, float64."""
    # Which way is taken is a function of the shapes of one example, whatever their number is.
    size = sum(part.shape[1] for part in rows)
    plain = all(part.dtype == torch.float32 and part.device.type == "cpu" for part in rows)
    if size <= BLOCK or bound < FAST or not plain:
        return [Rows(part).norms() for part in rows]
    blocks = []
    for part in rows:
        whole = part.shape[1] // BLOCK
        cut = part[:, : whole * BLOCK].reshape(len(part), whole, BLOCK)
        rest = part[:, None, whole * BLOCK :]
        blocks.append(torch.linalg.vector_norm(cut, dim=-1))
        blocks.append(torch.linalg.vector_norm(rest, dim=-1))
    norms = torch.linalg.vector_norm(torch.cat(blocks, 1).double(), dim=1)
    # Squares above float32's numbers; no other example's scale may change by them.
    far = ~norms.isfinite()
    if far.any():
        norms[far] = torch.stack([Rows(part[far]).norms() for part in rows]).norm(dim=0)
    # Too short a norm would let an example pass that is longer than the bound.
    return [norms * (1 + SLACK)]


def group_bounds(
    bound: float, names: Sequence[str], groups: Mapping[str, float] | None = None
) -> Bounds:
    """C_k = bound w_k / (sum_j w_j^2)^.5 for each group, and its parameters.

    Args:
        bound: of all together, and where there are no groups of the one that is all.
        names: the trainable parameters.
        groups: w_k > 0 by the name of a parameter, or of a module that holds it, of which the
            longest counts; "" holds all.

    Raises TypeError, ValueError.

    Guarantees: a gradient whose groups are at most C_k long is at most ``bound`` long.
    Proof: sum_k C_k^2 = bound^2; each rounds up by less than SHORTER takes away: 2 of hypot's and 4
    other half ulps.
    """
    bound = checks.positive("bound", bound)
    bounds = [(bound, list(names))] if groups is None else _shared(bound, names, groups)
    least = min(part for part, _ in bounds)
    if least < LEAST:
        raise ValueError(
            f"bound must be at least {LEAST:.1e}, not {least!r}: float32 has no digits there"
        )
    return bounds


def _shared(
    bound: float, names: Sequence[str], groups: Mapping[str, float]
) -> list[tuple[float, list[str]]]:
    weights = {name: checks.positive(f"groups[{name!r}]", w) for name, w in groups.items()}
    members: dict[str, list[str]] = {group: [] for group in weights}
    for name in names:
        holding = [group for group in weights if holds(group, name)]
        if not holding:
            raise ValueError(
                f'groups must hold all trainable parameters; {name} is in none: "" holds all'
            )
        members[max(holding, key=len)].append(name)
    for group, own in members.items():
        if not own:
            raise ValueError(
                f"groups must name trainable parameters that no longer name holds, not {group!r}"
            )
    # Relative to the largest one, since squares of weights may be no numbers.
    largest = max(weights.values())
    total = math.hypot(*(w / largest for w in weights.values()))
    shares = {group: weights[group] / largest / total for group in members}
    return [(bound * shares[group] * SHORTER, own) for group, own in members.items()]


def holds(group: str, name: str) -> bool:
    """Whether a parameter has this name, or is in the module that has; "" is the whole."""
    return group in ("", name) or name.startswith(f"{group}.")
