"""Several processes that train one model: one key, and a check that they are in step.

Every process of the default group calls each of these functions, in one order.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, distributed

from torchdp.training.per_example import bits

# What the numbers are that check_agree compares.
COMPARED = ("the step", "the key, strategy, sigma or dtype", "the sum")


def several() -> bool:
    """Whether a process group of more than one process runs."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def from_first(key: bytes) -> bytes:
    """The key of process 0."""
    keys = [key]
    distributed.broadcast_object_list(keys, src=0)
    return keys[0]


def check_models(parameters: list[Tensor]) -> None:
    """Raises ValueError, in every process, where models differ.

    One gradient would train them to different ends.
    """
    digest = hashlib.sha256()
    for p in parameters:
        octets = bits(p.detach().cpu())
        digest.update(octets.numpy().tobytes())
    if len(set(_gathered(digest.digest()))) > 1:
        raise ValueError(
            "module has other parameters in some processes than in others, and they would train "
            "apart: load one state_dict in all of them, or seed them alike before the module is "
            "made"
        )


def _gathered(mine: Any) -> list[Any]:
    """Every process's object."""
    objects = [mine] * distributed.get_world_size()
    distributed.all_gather_object(objects, mine)
    return objects


def place() -> tuple[int, int]:
    """This process's number, and how many train one model."""
    return (distributed.get_rank(), distributed.get_world_size()) if several() else (0, 1)


def most(at: tuple[int, tuple[int, float]]) -> tuple[int, tuple[int, float]]:
    """The largest of all processes' steps, and the largest of what the processes of it know."""
    return max(_gathered(at))


def added(total: Tensor, chunk: int) -> Tensor:
    """This process's ``chunk`` numbers of the sum over all processes, zeros after its end."""
    rest = chunk * distributed.get_world_size() - len(total)
    parts = torch.nn.functional.pad(total, (0, rest))
    mine = total.new_empty(chunk)
    distributed.reduce_scatter_tensor(mine, parts)
    return mine


def joined(part: Tensor, chunk: int, whole: int) -> Tensor:
    """The whole gradient of parts of ``chunk`` numbers each, less in the last."""
    mine = torch.nn.functional.pad(part, (0, chunk - len(part)))
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, mine)
    return torch.cat(parts)[:whole]


def check_agree(step: int, stream: bytes, total: Tensor) -> None:
    """Raises RuntimeError, in every process, where steps, streams or sums differ.

    Processes with one noise and different sums would publish the sums' difference without noise.
    """
    octets = total.contiguous().view(torch.uint8)
    whole = len(octets) // 4 * 4
    # A checksum of the bits: sums that differ in one number differ in it.
    words = octets[:whole].view(torch.int32).sum(dtype=torch.int64)
    rest = octets[whole:].sum(dtype=torch.int64)
    first = int.from_bytes(stream[:8], "little", signed=True)
    # One message for all three.
    mine = torch.tensor([step, first, 0], dtype=torch.int64, device=total.device)
    mine[2] = words + (rest << 32)
    others = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(others, mine)
    differ = (torch.stack(others) != mine).any(0).tolist()
    if any(differ):
        names = " and ".join(name for name, wrong in zip(COMPARED, differ, strict=True) if wrong)
        raise RuntimeError(
            f"the processes differ in {names}; add up the sums over all of them (all_reduce) and "
            "make the noise alike in each"
        )
