"""Modules, losses and examples of which each example has a gradient of its own; others are refused by name."""

import inspect
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from torchdp import checks
from torchdp.training.per_example import DRAWS, Inputs
from torchdp.training.record import MIXES
from torchdp.training.sums import holds

MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others
TABLES = (nn.Embedding, nn.EmbeddingBag)
PARALLEL = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def trainable(module: nn.Module, loss: object, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own. Raises."""
    losses = list(loss.modules()) if isinstance(loss, nn.Module) else []
    for part in [*module.modules(), *losses]:
        if part.training and isinstance(part, MIXING):
            raise ValueError(MIXES)
        if found := PARALLEL & {kind.__name__ for kind in type(part).__mro__}:
            raise ValueError(
                f"module must not be wrapped in {min(found)}; pass what it wraps, its .module, or a module that is not "
                "sharded: a run adds up over a group's processes itself"
            )
        if isinstance(part, TABLES) and (part.max_norm is not None or part.sparse):
            raise ValueError(
                "module has an embedding with max_norm, which writes users' rows anew in each call, or with sparse "
                "gradients; make it without either"
            )
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p
        drops = drops or (isinstance(part, nn.RNNBase) and part.dropout)
        if part.training and drops and not masks:
            raise ValueError(DRAWS)
    parameters: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError("module must have real parameters; split complex ones by torch.view_as_real")
    if not parameters:
        raise ValueError("module must have a parameter that requires a gradient")
    own = {id(p) for p in module.parameters()}
    for name, p in loss.named_parameters() if isinstance(loss, nn.Module) else ():
        if p.requires_grad and id(p) not in own:
            raise ValueError(
                f"loss has a parameter of its own, {name}, which would never be trained: make the loss a part of "
                "module, as module.loss = loss, or call loss.requires_grad_(False)"
            )
    return parameters


def parameters_named(module: nn.Module, unused: Sequence[str]) -> list[str]:
    """The parameters that have one of these names, or are in a module that has. Raises TypeError, ValueError."""
    found = []
    for name in checks.each_of("unused", unused, str):
        own = [place for place, _ in module.named_parameters() if name and holds(name, place)]
        if not own:
            raise ValueError(f"unused must name parameters of module, or modules that hold them, not {name!r}")
        found += own
    return found


def refuse_unreached(missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - 3} more" * (len(missing) > 3)
        raise ValueError(
            f"module has parameters that no example's loss reaches, {', '.join(missing[:3])}{more}, which noise alone "
            "would move: call requires_grad_(False) on them, or name them in unused= where later examples reach them"
        )


def named(inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    return {"targets": targets, **({"inputs": inputs} if isinstance(inputs, Tensor) else inputs)}


def examples(module: nn.Module, inputs: Inputs, targets: Tensor) -> Inputs:
    """The inputs without gradients. Raises where these are not equally many examples."""
    if isinstance(inputs, tuple | list):
        names = list(inspect.signature(module.forward).parameters)[: len(inputs)]
        raise TypeError(
            f"inputs must be a Tensor, or a dict of several by forward's names, not {type(inputs).__name__}: pass "
            f"dict({', '.join(f'{name}=...' for name in names)})"
        )
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    for name, value in named(inputs, targets).items():
        if not checks.dense(name, value).ndim:
            raise ValueError(f"{name} must have one entry for each example, not shape ()")
        if len(value) != len(targets):
            raise ValueError(f"{name} and targets must be equally many, not {len(value)} and {len(targets)}")
    if isinstance(inputs, Tensor):
        return inputs.detach()
    return {name: value.detach() for name, value in inputs.items()}
