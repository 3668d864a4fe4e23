"""Each example's own gradients on the two routes without cross-example dependence, by construction."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten

from torchdp.training.factors import Form, Rows
from torchdp.training.per_example import DRAWS, Gradients, Inputs, Passes, flat, pick, short
from torchdp.training.record import Untaken


def by_vmap(passes: Passes, x: Inputs, y: Tensor) -> Gradients:
    """All examples at once, each alone under vmap: no cross-example dependence, by construction."""
    if any(isinstance(part, nn.RNNBase) for part in passes.both.modules()):
        raise Untaken("a recurrent layer has weights that nothing can stand in for")
    structure: list[Any] = []

    def one(known: dict[str, Tensor], x: Inputs, y: Tensor) -> Any:
        x = x[None] if isinstance(x, Tensor) else {name: value[None] for name, value in x.items()}
        total, output = passes.call(known, x, y[None])
        leaves, spec = tree_flatten(output)
        structure[:] = [leaves, spec]
        return total.sum(), (total.sum(), [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    constants = {name: p.detach() for name, p in passes.leaves.items()}
    try:
        each = vmap(grad(one, has_aux=True), (None, 0, 0), randomness=passes.randomness)
        rows, (lost, tensors) = each(constants, dict(x) if isinstance(x, Mapping) else x, y)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        if "randomness error mode" in str(error):
            raise ValueError(DRAWS) from error
        raise Untaken(short(error)) from error
    if passes.captured(lost):
        raise Untaken("the loss holds parameters by themselves, which nothing stands in for")
    forms: dict[str, Form] = {name: Rows(flat(g)) for name, g in rows.items()}
    return Gradients(forms, lost.detach(), _compared(passes, lost.detach(), tensors, structure, x, y))


def by_loop(passes: Passes, x: Inputs, y: Tensor) -> Iterator[Gradients]:
    """One example after another by plain autograd on the module's own parameters."""
    lost: list[Tensor] = []
    several: list[list[Tensor]] = []
    own = list(passes.leaves.values())
    for i in range(len(y)):
        total, output = passes.plain(pick(x, slice(i, i + 1)), y[i : i + 1])
        total = total.sum()
        if not i:
            passes.captured(total)
        g = torch.autograd.grad(total, own, allow_unused=True) if total.requires_grad else [None] * len(own)
        pairs = zip(passes.leaves, g, strict=True)
        forms: dict[str, Form] = {name: Rows(flat(part[None])) for name, part in pairs if part is not None}
        leaves, spec = tree_flatten(output)
        lost.append(total.detach()[None])
        several.append([leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)])
        found = None
        if i == len(y) - 1 and all([t.shape for t in each] == [t.shape for t in several[0]] for each in several):
            tensors = [torch.stack(side) for side in zip(*several, strict=True)]
            found = _compared(passes, torch.cat(lost), tensors, [leaves, spec], x, y)
        yield Gradients(forms, lost[-1], found)


def _compared(
    passes: Passes, lost: Tensor, tensors: list[Tensor], structure: list[Any], x: Inputs, y: Tensor
) -> Tensor | None:
    """As ``mixes``, of outputs (n, 1, ...) of examples alone; None where they have no row for each example."""
    if len(y) > 1 and any(t.ndim == 1 and t.is_floating_point() for t in tensors):
        return passes.mixes_inside(x, y)  # one number of an example: its loss, or a part of it
    several = len(tensors) > 1  # of which one may have the examples along another dimension
    fits = [t.ndim > 1 and (t.shape[1] == 1 and not (several and t.ndim > 3 and t.shape[2] == 1)) for t in tensors]
    if len(y) < 2 or not tensors or not all(fits):
        return None
    tensors = [t.flatten(0, 1) for t in tensors]
    leaves, spec = structure
    return passes.mixes(lost, tensors, leaves, spec, y)
