"""Modules whose parameters lie in shards on several processes (``fully_shard``): gathered for a pass, shards again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from torchdp import checks

HOOKS = ("_forward_pre_hooks", "_forward_hooks")
FLAT = ("_flat_weights", "_flat_weight_refs")  # what a recurrent layer holds beside its parameters


@contextmanager
def gathered(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The whole of each parameter that is a shard, by name; the hooks that gather them layer by layer are off.

    Nothing for a module without shards. Every process of the shards calls this. Raises ValueError, as :func:`reshard`.
    """
    whole = {name: p.detach().full_tensor() for name, p in reshard(module)}
    parts = module.modules() if whole else ()
    held = [(vars(part)[name], dict(vars(part)[name])) for part in parts for name in HOOKS]
    recurrent = [vars(part) for part in module.modules() if whole and isinstance(part, nn.RNNBase)]
    flat = [(own, {name: list(own[name]) for name in FLAT if name in own}) for own in recurrent]
    try:
        for hooks, before in held:
            for number, hook in before.items():
                if str(getattr(hook, "__module__", "")).startswith("torch.distributed"):
                    del hooks[number]
        yield whole
    finally:
        for hooks, before in held:
            hooks.clear()
            hooks.update(before)
        for own, kept in flat:
            own.update(kept)


def reshard(module: nn.Module) -> list[tuple[str, Any]]:
    """Parameters that a forward pass has gathered are shards again, and returned.

    Raises ValueError on shards of another kind.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # whoever shards has imported it
    for part in module.modules() if fsdp else ():
        if isinstance(part, fsdp.FullyShardedDataParallel):
            raise ValueError("module must be sharded by fully_shard; FullyShardedDataParallel hides parameters")
        if isinstance(part, fsdp.FSDPModule):
            part.reshard()
    found = shards(module)
    for name, p in found:
        if not all(kind.is_replicate() or kind.is_shard(0) for kind in p.placements):
            raise ValueError(
                f"module must have parameters that are whole or cut along dimension 0, and {name} is {p.placements}: "
                "shard it by fully_shard alone"
            )
    return found


def shards(module: nn.Module) -> list[tuple[str, Any]]:
    """The parameters that are DTensors, by name."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return [(name, p) for name, p in module.named_parameters() if isinstance(p, tensor.DTensor)] if tensor else []


def like(gradient: Tensor, parameter: Any) -> Tensor:
    """This process's own copy of its shard of a whole gradient; the gradient itself where the parameter is whole."""
    if not hasattr(parameter, "placements"):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None).clone()


def set_gradients(module: nn.Module, gradient: Tensor) -> None:
    """Puts a flat vector into ``.grad`` of the parameters that require one, for any optimizer. Raises ValueError.

    A parameter that is a shard (``fully_shard``) gets its part of it, as a shard.
    """
    reshard(checks.instance("module", module, nn.Module))
    parameters = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    if checks.dense("gradient", gradient).shape != (size,):
        raise ValueError(f"gradient must be a flat tensor of shape ({size},)")
    for p, part in zip(parameters, gradient.detach().split([p.numel() for p in parameters]), strict=True):
        p.grad = like(part.view(p.shape).to(p.device, p.dtype), p)
