"""Sums of clipped per-example gradients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.training.memory import Memory

LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others
BLOCK = 256  # float32 squares that are added up as such: their norm errs by 129 eps
FAST, SLACK = 1e-6, 2.0**-16  # bounds from here on do not see squares below float32's; what blocks may err by
TOGETHER = 32  # examples whose float32 parts are added up as such: a sum of thousands would round by users' parts
FLAT = ("_flat_weights", "_flat_weight_refs")  # what a recurrent layer holds beside its parameters
Inputs = Tensor | Mapping[str, Tensor]


def clip_and_sum(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Inputs,
    targets: Tensor,
    bound: float,
    *,
    at_once: int = 256,
    dropout: torch.Generator | None = None,
) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||), g_i the gradient of loss(module(x_i), y_i) in all trainable parameters.

    module, loss: called on batches of one example. inputs, targets: (n, ...), n >= 0; inputs a tensor, or several by
    name, module(**inputs). at_once: examples whose gradients are in memory together; with recurrent layers, one after
    the other. dropout: draws masks, for each example its own; without it dropout in training mode is refused. Returns
    one flat vector in the order of ``module.parameters()``, those that require no gradient left out;
    :func:`set_gradients` puts it back. A gradient counts as 0 that is not finite, or so long that bound / ||g_i|| is no
    normal number (2^126 bounds in float32). The dtype is the parameters', at least float32. Raises TypeError,
    ValueError; on batch normalisation in
    training mode too, and where module or loss are not what they were before the call (buffers, attributes, containers,
    closures, globals): an example could then move a later sum. What has changed is named and put back; where it is a
    tensor of a GPU, which the host does not wait for, it is put back and the sum is NaN.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum.
    Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Algorithm 1.
    """
    bound, at_once = _bound(bound), checks.integer("at_once", at_once, 1)
    checks.function("loss", loss)
    parameters = _trainable(module, dropout is not None)
    _refuse_unequal(inputs, targets)

    def one(parameters: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        named = {} if isinstance(x, Tensor) else {name: value[None] for name, value in x.items()}
        output = functional_call(module, parameters, (x[None],) if isinstance(x, Tensor) else (), named)
        return loss(output, y[None]).sum()

    randomness = "error" if dropout is None else "different"
    each = vmap(grad(one), in_dims=(None, 0, 0), randomness=randomness)
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):  # no rule for their kernels
        each = _one_by_one(grad(one), module)
    size = sum(p.numel() for p in parameters.values())
    dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
    total, memory = targets.new_zeros(size, dtype=torch.float64), Memory(module=module, loss=loss)
    done = False
    try:
        seed = None if dropout is None else int(Simulated(dropout).integers(()))
        with _masks(seed, targets.device):
            for x, y in _split(inputs, targets, at_once):
                total += clipped_sum(list(each(parameters, x, y).values()), bound)
        changed = memory.changed()
        total, done = memory.unless_changed(total), True
    finally:
        if not done or changed:
            memory.restore()
    if changed:
        raise ValueError(
            f"module and loss must not remember the examples: the call changed {changed}, and what it holds could move "
            "later sums; call .eval(), take the update out of forward, or fill a cache by a call on public input first"
        )
    return total.to(dtype)


def clipped_sum(gradients: Sequence[Tensor], bound: float) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||) of gradients that were made elsewhere, flat, at least float32: (size,).

    gradients: for each parameter those of the examples, (n, *shape), n >= 0; g_i is all of example i's together: of
    ``torch.func.vmap(grad(...))``, or Opacus's ``grad_sample``. What counts as 0: as there. Raises TypeError,
    ValueError.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum; where
    each g_i is a function of its own example.
    Source: as :func:`clip_and_sum`.
    """
    bound, given = _bound(bound), checks.several("gradients", gradients, Tensor)
    n = {len(checks.dense("gradients", g)) if g.ndim else -1 for g in given}
    if len(n) > 1 or min(n) < 0:
        raise ValueError(f"gradients must hold equally many examples' each, not {sorted(n)}")
    rows = [
        g.detach().reshape(len(g), math.prod(g.shape[1:])).to(torch.promote_types(g.dtype, torch.float32))
        for g in given
    ]
    scales = _scales(rows, bound)
    with torch.autocast(rows[0].device.type, enabled=False):
        return torch.cat([_weighted(scales, part) for part in rows])


def _weighted(scales: Tensor, part: Tensor) -> Tensor:
    """sum_i scales_i part_i, (n,), (n, size) -> (size,); none of a scale that is not > 0."""
    if part.device.type != "cpu":
        return torch.where(scales[:, None] > 0, part * scales[:, None].to(part.dtype), 0.0).sum(0)
    far = (~(scales > 0)).nonzero()[:, 0]
    if len(far):
        part, scales = part.index_fill(0, far, 0.0), scales.index_fill(0, far, 0.0)
    total, scales = part.new_zeros(part.shape[1], dtype=torch.float64), scales.to(part.dtype)
    for some, weights in zip(part.split(TOGETHER), scales.split(TOGETHER), strict=True):
        total += weights @ some
    return total.to(part.dtype)


def _bound(bound: float) -> float:
    if checks.positive("bound", bound) < LEAST:
        raise ValueError(f"bound must be at least {LEAST:.1e}, not {bound!r}: float32 has no digits there")
    return float(bound)


def _scales(rows: Sequence[Tensor], bound: float) -> Tensor:
    """By which rows are at most ``bound`` long together, rounding included: (n,); 0 where there is none."""
    eps, tiny = (max(getattr(torch.finfo(part.dtype), name) for part in rows) for name in ("eps", "tiny"))
    if bound >= FAST and all(part.dtype == torch.float32 and part.device.type == "cpu" for part in rows):
        # what squares below 1e-38 add up to is nothing beside FAST
        blocks = [torch.linalg.vector_norm(block, dim=-1) for part in rows for block in _blocks(part)]
        norms = torch.linalg.vector_norm(torch.cat(blocks, 1).double(), dim=1)
        far = ~norms.isfinite()  # their squares pass float32; nobody else's scale may change by it
        if far.any():
            norms[far] = _norms([part[far] for part in rows])
        norms = norms * (1 + SLACK)
    else:
        norms = _norms(rows)
    shorter = 1 - 2 * eps
    scales = (bound / norms).clamp_max(1 / shorter) * shorter
    return torch.nn.functional.threshold(scales, tiny, 0.0)  # smaller ones have too few digits


def _norms(rows: Sequence[Tensor]) -> Tensor:
    """(n,), in float64 throughout."""
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in rows]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _blocks(part: Tensor) -> Iterator[Tensor]:
    """Rows cut into blocks of BLOCK numbers, (n, blocks, BLOCK), and the rest."""
    whole = part.shape[1] // BLOCK * BLOCK
    yield part[:, :whole].unflatten(1, (-1, BLOCK)) if whole else part[:, None, :0]
    yield part[:, None, whole:]


def _one_by_one(gradient: Callable[..., dict[str, Tensor]], module: nn.Module) -> Callable[..., dict[str, Tensor]]:
    """As vmap over the examples, in a loop; recurrent layers get their own weights back, which torch leaves changed."""
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    lists = [value for part in layers for name, value in vars(part).items() if name in FLAT]
    attributes = [(part, {name: vars(part)[name] for name in FLAT if name in vars(part)}) for part in layers]

    def each(parameters: dict[str, Tensor], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        held = [list(value) for value in lists]
        try:
            found = [gradient(parameters, _pick(x, i), y[i]) for i in range(len(y))]
        finally:
            for value, old in zip(lists, held, strict=True):
                value[:] = old
            for part, own in attributes:
                vars(part).update(own)
        return {name: torch.stack([g[name] for g in found]) for name in parameters}

    return each


def _pick(x: Inputs, i: int) -> Inputs:
    return x[i] if isinstance(x, Tensor) else {name: value[i] for name, value in x.items()}


def _split(inputs: Inputs, targets: Tensor, at_once: int) -> Iterator[tuple[Inputs, Tensor]]:
    """Some examples at a time, none for none."""
    for start in range(0, len(targets), at_once):
        part = slice(start, start + at_once)
        x = inputs[part] if isinstance(inputs, Tensor) else {name: value[part] for name, value in inputs.items()}
        yield x, targets[part]


@contextmanager
def _masks(seed: int | None, device: torch.device) -> Iterator[None]:
    """torch's own generators start from ``seed``, and are put back."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _trainable(module: nn.Module, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own. Raises."""
    for part in checks.instance("module", module, nn.Module).modules():
        if part.training and isinstance(part, MIXING):
            raise ValueError("module mixes examples by batch normalisation; use GroupNorm, or call .eval() on it")
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p
        drops = drops or (isinstance(part, nn.RNNBase) and part.dropout)
        if part.training and drops and not masks:
            raise ValueError(
                "module draws dropout from torch's global generator; pass dropout=, or call .eval() on it"
            )
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError("module must have real parameters; split complex ones by torch.view_as_real")
    if not parameters:
        raise ValueError("module must have a parameter that requires a gradient")
    return parameters


def _refuse_unequal(inputs: Inputs, targets: Tensor) -> None:
    """Raises where these are not equally many examples."""
    several = dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}
    for name, value in {"targets": targets, **several}.items():
        if not checks.dense(name, value).ndim:
            raise ValueError(f"{name} must have one entry for each example, not shape ()")
        if len(value) != len(targets):
            raise ValueError(f"{name} and targets must be equally many, not {len(value)} and {len(targets)}")


def set_gradients(module: nn.Module, gradient: Tensor) -> None:
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer. Raises ValueError."""
    parameters = [p for p in checks.instance("module", module, nn.Module).parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    if checks.dense("gradient", gradient).shape != (size,):
        raise ValueError(f"gradient must be a flat tensor of shape ({size},)")
    for p, part in zip(parameters, gradient.detach().split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p).to(p)
