"""Sums of clipped per-example gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from torchdp import checks
from torchdp.training.memory import Memory

LEAST = 2.0**-100  # a bound below it would meet float32's numbers without leading digits
MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others


def clip_and_sum(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    bound: float,
    *,
    at_once: int = 256,
) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||), g_i the gradient of loss(module(x_i), y_i) in all trainable parameters.

    module, loss: called on batches of one example. inputs, targets: (n, ...), n >= 0. at_once: examples whose
    gradients are in memory together. Returns one flat vector in the order of ``module.parameters()``, those that
    require no gradient left out; :func:`set_gradients` puts it back. A gradient that is not finite counts as 0.
    The dtype is the parameters', at least float32. Raises TypeError, ValueError; on batch normalisation and dropout in
    training mode too, and where module or loss are not what they were before the call (buffers, attributes, containers,
    closures, globals): an example could then move a later sum. What has changed is named and put back; where it is a
    tensor of a GPU, which the host does not wait for, it is put back and the sum is NaN.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding of the sum.
    Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Algorithm 1.
    """
    bound, at_once = checks.positive("bound", bound), checks.integer("at_once", at_once, 1)
    if bound < LEAST:
        raise ValueError(f"bound must be at least {LEAST:.1e}, not {bound!r}: float32 has no digits there")
    checks.function("loss", loss)
    parameters = _trainable(module)
    _refuse_unequal(inputs, targets)

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(module, parameters, (x[None],)), y[None]).sum()

    each = vmap(grad(one), in_dims=(None, 0, 0))
    empty = torch.cat([torch.zeros_like(p).flatten() for p in parameters.values()])
    total, memory = empty.double(), Memory(module=module, loss=loss)
    done = False
    try:
        for x, y in zip(inputs.split(at_once), targets.split(at_once), strict=True):
            if len(x):
                gradients = torch.cat([g.flatten(1) for g in each(parameters, x, y).values()], 1)  # (n, size)
                total += _clipped(gradients, bound).sum(0)
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
    return total.to(torch.promote_types(empty.dtype, torch.float32))


def _trainable(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own. Raises."""
    for part in checks.instance("module", module, nn.Module).modules():
        if part.training and isinstance(part, MIXING):
            raise ValueError("module mixes examples by batch normalisation; use GroupNorm, or call .eval() on it")
        if part.training and isinstance(part, nn.modules.dropout._DropoutNd) and part.p:
            raise ValueError("module draws dropout from torch's global generator; call .eval() on it")
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError("module must have real parameters; split complex ones by torch.view_as_real")
    if not parameters:
        raise ValueError("module must have a parameter that requires a gradient")
    return parameters


def _refuse_unequal(inputs: Tensor, targets: Tensor) -> None:
    """Raises where these are not equally many examples."""
    for name, value in (("inputs", inputs), ("targets", targets)):
        if not checks.dense(name, value).ndim:
            raise ValueError(f"{name} must have one entry for each example, not shape ()")
    if len(inputs) != len(targets):
        raise ValueError(f"inputs and targets must be equally many, not {len(inputs)} and {len(targets)}")


def set_gradients(module: nn.Module, gradient: Tensor) -> None:
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer. Raises ValueError."""
    parameters = [p for p in checks.instance("module", module, nn.Module).parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    if checks.dense("gradient", gradient).shape != (size,):
        raise ValueError(f"gradient must be a flat tensor of shape ({size},)")
    for p, part in zip(parameters, gradient.detach().split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p).to(p)


def _clipped(gradients: Tensor, bound: float) -> Tensor:
    """Rows of norm at most ``bound``, rounding included: (n, size), at least float32."""
    gradients = gradients.to(torch.promote_types(gradients.dtype, torch.float32))
    eps = torch.finfo(gradients.dtype).eps
    norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64, keepdim=True)
    scale = (bound / norms).clamp_max(1 / (1 - 2 * eps)) * (1 - 2 * eps)
    return torch.where(norms.isfinite(), gradients * scale.to(gradients.dtype), 0.0)
