"""Sums of clipped per-example gradients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.training.memory import Memory
from torchdp.training.per_example import Gradients, Inputs, PerExample
from torchdp.training.sharded import gathered, like, settle

LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others
TABLES = (nn.Embedding, nn.EmbeddingBag)
BLOCK = 256  # float32 squares that are added up as such: their norm errs by 129 eps
FAST, SLACK = 1e-6, 2.0**-16  # bounds from here on do not see squares below float32's; what blocks may err by
DRAWS = "module draws dropout from torch's global generator; pass dropout=, or call .eval() on it"
TOGETHER = 32  # examples whose float32 parts are added up as such: a sum of thousands would round by users' parts


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
    the other. Of a large weight's gradients sum_t a_t b_t^T only the factors are, where these are less: inputs a_t of
    linear layers, convolutions and embeddings, and the gradients b_t in their outputs; the first example is looked at
    before, once more. Whole ones are made of a weight that is used in another way too: tied to an embedding, in torch's
    MultiheadAttention. dropout: draws masks, for each example its own; without it dropout in training mode is refused.
    Returns one flat vector in the order of ``module.parameters()``, those that require no gradient left out;
    :func:`set_gradients` puts it back. A gradient counts as 0 that is not finite, or so long that bound / ||g_i|| is no
    normal number (2^126 bounds in float32). Of a module that ``fully_shard`` has cut, every process calls this, for the
    sum of its own examples, and has all parameters for the time of the call.
    The dtype is the parameters', at least float32. Raises TypeError, ValueError; on batch normalisation in
    training mode too, and where module or loss are not what they were before the call (buffers, attributes, containers,
    closures, globals): an example could then move a later sum. What has changed is named and put back, but for tensors
    of more than 2^22 numbers, which are only named; where it is a tensor of a GPU, which the host does not wait for, it
    is put back and the sum is NaN.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum.
    Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Algorithm 1; factors: Lee, Kifer (2021); Li,
    Tramer, Liang, Hashimoto (2022); Bu, Wang, Zha, Karypis (2023).
    """
    bound, at_once = _bound(bound), checks.integer("at_once", at_once, 1)
    checks.function("loss", loss)
    _refuse_unequal(inputs, targets)
    parameters = _trainable(module, dropout is not None)
    with gathered(module) as whole:
        parameters = {name: whole.get(name, p) for name, p in parameters.items()}
        frozen = {name: p for name, p in whole.items() if name not in parameters}
        size = sum(p.numel() for p in parameters.values())
        dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        total, memory = targets.new_zeros(size, dtype=torch.float64), Memory(module=module, loss=loss)
        done = False
        try:
            seed = None if dropout is None else int(Simulated(dropout).integers(()))
            gradients = PerExample(module, loss, parameters, frozen, "error" if seed is None else "different")
            if gradients.large and len(targets) and at_once > 1:  # also for one, whom the next one must not move
                with _masks(0, targets.device):
                    gradients.look(*next(_split(inputs, targets, 1)))
            with _masks(seed, targets.device):
                for x, y in _split(inputs, targets, 1 if gradients.recurrent else at_once):
                    _add(total, gradients(x, y), bound)
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
    if any(g.is_complex() for g in given):
        raise TypeError("gradients must be real; split complex ones by torch.view_as_real")
    n = {len(checks.dense("gradients", g)) if g.ndim else -1 for g in given}
    if len(n) > 1 or min(n) < 0:
        raise ValueError(f"gradients must hold equally many examples' each, not {sorted(n)}")
    rows = [_rows(g) for g in given]
    return torch.cat(_weighted(rows, _scales(rows, bound)))


def _weighted(rows: Sequence[Tensor], scales: Tensor) -> list[Tensor]:
    """sum_i scales_i rows_i of each; a row whose scale is not > 0 adds nothing."""
    with torch.autocast(scales.device.type, enabled=False):
        if scales.device.type != "cpu":
            kept = scales[:, None] > 0
            return [torch.where(kept, part * scales[:, None].to(part.dtype), 0.0).sum(0) for part in rows]
        far = (~(scales > 0)).nonzero()[:, 0]
        if len(far):
            rows, scales = [part.index_fill(0, far, 0.0) for part in rows], scales.index_fill(0, far, 0.0)
        return [_added(scales.to(part.dtype), part) for part in rows]


def _added(scales: Tensor, part: Tensor) -> Tensor:
    total = part.new_zeros(part.shape[1], dtype=torch.float64)
    for weights, some in zip(scales.split(TOGETHER), part.split(TOGETHER), strict=True):
        total += weights @ some
    return total.to(part.dtype)


def _bound(bound: float) -> float:
    if checks.positive("bound", bound) < LEAST:
        raise ValueError(f"bound must be at least {LEAST:.1e}, not {bound!r}: float32 has no digits there")
    return float(bound)


def _scales(rows: Sequence[Tensor], bound: float, more: Sequence[Tensor] = ()) -> Tensor:
    """By which rows are at most ``bound`` long together, rounding included: (n,); 0 where there is none.

    more: norms of further parts of the rows, (n,) each, float64, that are not too small.
    """
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
    if more:
        norms = torch.linalg.vector_norm(torch.stack([norms, *more]), dim=0)
    shorter = 1 - 2 * eps
    scales = (bound / norms).clamp_max(1 / shorter) * shorter
    return torch.nn.functional.threshold(scales, tiny, 0.0)  # smaller ones have too few digits


def _norms(rows: Sequence[Tensor]) -> Tensor:
    """(n,), in float64 throughout."""
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in rows]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _add(total: Tensor, found: Gradients, bound: float) -> None:
    """Adds the clipped gradients of some examples to ``total``, flat and float64."""
    rows, factors = {name: _rows(g) for name, g in found.rows.items()}, found.factors
    with torch.autocast(total.device.type, enabled=False):
        scales = _scales([*rows.values()] or [found.empty], bound, [each.norms() for each in factors.values()])
        sums = _weighted(list(rows.values()), scales)
        if not factors:
            total += torch.cat(sums)
            return
        places = dict(zip(found.sizes, total.split(list(found.sizes.values())), strict=True))
        for name, part in zip(rows, sums, strict=True):
            places[name] += part
        for name, each in factors.items():
            each.add(places[name], scales)


def _rows(gradients: Tensor) -> Tensor:
    """(n, *shape) -> (n, size), at least float32."""
    wide = torch.promote_types(gradients.dtype, torch.float32)
    return gradients.detach().reshape(len(gradients), math.prod(gradients.shape[1:])).to(wide)


def _blocks(part: Tensor) -> Iterator[Tensor]:
    """Rows cut into blocks of BLOCK numbers, (n, blocks, BLOCK), and the rest."""
    whole = part.shape[1] // BLOCK * BLOCK
    yield part[:, :whole].unflatten(1, (-1, BLOCK)) if whole else part[:, None, :0]
    yield part[:, None, whole:]


def _split(inputs: Inputs, targets: Tensor, at_once: int) -> Iterator[tuple[Inputs, Tensor]]:
    """Some examples at a time, none for none."""
    for start in range(0, len(targets), at_once):
        part = slice(start, start + at_once)
        x = inputs[part] if isinstance(inputs, Tensor) else {name: value[part] for name, value in inputs.items()}
        yield x, targets[part]


@contextmanager
def _masks(seed: int | None, device: torch.device) -> Iterator[None]:
    """torch's own generators start from ``seed``, and are put back; draws from them for None raise ValueError."""
    if seed is None:
        try:
            yield
        except RuntimeError as error:
            if "randomness error mode" not in str(error):
                raise
            raise ValueError(DRAWS) from error
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _trainable(module: nn.Module, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own. Raises."""
    for part in checks.instance("module", module, nn.Module).modules():
        if part.training and isinstance(part, MIXING):
            raise ValueError("module mixes examples by batch normalisation; use GroupNorm, or call .eval() on it")
        if isinstance(part, TABLES) and (part.max_norm is not None or part.sparse):
            raise ValueError(
                "module has an embedding with max_norm, which writes users' rows anew in each call, or with sparse "
                "gradients; make it without either"
            )
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p
        drops = drops or (isinstance(part, nn.RNNBase) and part.dropout)
        if part.training and drops and not masks:
            raise ValueError(DRAWS)
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
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer. Raises ValueError.

    A parameter that is a shard (``fully_shard``) gets its part of it, as a shard.
    """
    settle(checks.instance("module", module, nn.Module))
    parameters = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    if checks.dense("gradient", gradient).shape != (size,):
        raise ValueError(f"gradient must be a flat tensor of shape ({size},)")
    for p, part in zip(parameters, gradient.detach().split([p.numel() for p in parameters]), strict=True):
        p.grad = like(part.view(p.shape).to(p.device, p.dtype), p)
