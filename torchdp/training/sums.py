"""Scales by which gradients keep a bound, rounding included, and sums of what they make."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchdp.training.factors import Form, Rows

BLOCK = 256  # float32 squares that are added up as such: the relative error of their norm is at most 129 eps
LONG = 1 - 2.0**-20  # of its length: what is shortened by less is not, but for rounding
FAST, SLACK = 1e-6, 2.0**-16  # bounds from here on do not see squares below float32's; what blocks may err by


class Sums:
    """Sums of clipped gradients, part by part: of one part as it is made, of several in float64."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._parts = 0
        self.balance = torch.zeros((), dtype=torch.float64)  # examples within the bound, less the others

    def add(self, forms: dict[str, Form], bound: float) -> None:
        self._parts += 1
        parts, balance = clipped(list(forms.values()), bound)
        self.balance = self.balance + balance
        for name, part in zip(forms, parts, strict=True):
            before = self._totals.get(name)
            self._totals[name] = part if before is None else before.double() + part

    def flat(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """All of them, zeros where nothing was; in the parameters' dtype, at least float32."""
        dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        parts = (self._totals.get(name, p.new_zeros(p.numel())) for name, p in parameters.items())
        return torch.cat([part.detach().flatten().to(dtype) for part in parts])


def clipped(forms: Sequence[Form], bound: float) -> tuple[list[Tensor], Tensor]:
    """sum_i g_i min(1, bound / ||g_i||), flat, of each form; example i's norm is that of all of them together.

    And a sum of signs, () of float64: 1 for an example that is within the bound, -1 for one that is shortened.
    """
    if not forms:
        return [], torch.zeros((), dtype=torch.float64)
    rows = [form.rows for form in forms if isinstance(form, Rows)]
    with torch.autocast(forms[0].rows.device.type, enabled=False):
        more = [form.norms() for form in forms if not isinstance(form, Rows)]
        scales = _scales(rows or [forms[0].rows.new_empty(len(forms[0].rows), 0)], bound, more)
        kept = scales > 0
        if scales.device.type != "cpu" or not bool(kept.all()):
            scales, forms = torch.where(kept, scales, 0.0), [form.zeroed(kept) for form in forms]
        signs = 2 * (scales > LONG).double() - 1
        return [form.sum(scales, bound) for form in forms], signs.sum()


def _scales(rows: Sequence[Tensor], bound: float, more: Sequence[Tensor] = ()) -> Tensor:
    """By which rows are at most ``bound`` long together, rounding included: (n,); 0 where there is none.

    more: norms of further parts of the rows, (n,) each, float64, that are not too small.
    """
    eps, tiny = (max(getattr(torch.finfo(part.dtype), name) for part in rows) for name in ("eps", "tiny"))
    size = sum(part.shape[1] for part in rows)  # of one example: how norms are made is no matter of their number
    if (
        size > BLOCK
        and bound >= FAST
        and all(part.dtype == torch.float32 and part.device.type == "cpu" for part in rows)
    ):
        # what squares below 1e-38 add up to is nothing beside FAST
        blocks = [torch.linalg.vector_norm(block, dim=-1) for part in rows for block in _blocks(part)]
        norms = torch.linalg.vector_norm(torch.cat(blocks, 1).double(), dim=1)
        far = ~norms.isfinite()  # their squares pass float32; nobody else's scale may change by it
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
