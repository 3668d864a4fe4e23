"""Several processes that train one model: one key for all of them, and a check that they are in
step.
"""

import hashlib

import torch
from torch import Tensor, distributed

WHAT = ("the step", "the key, strategy, sigma or dtype", "the sum")


def several() -> bool:
    """Whether a process group of more than one process runs."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def from_first(key: bytes) -> bytes:
    """The key of process 0; every process of the default group calls this."""
    box = [key]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def check_models(parameters: list[Tensor]) -> None:
    """Raises ValueError, in every process, where models differ: one gradient would train them
    apart.
    """
    digest = hashlib.sha256()
    for p in parameters:
        digest.update(p.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    mine = digest.digest()
    every = [mine] * distributed.get_world_size()
    distributed.all_gather_object(every, mine)
    if any(each != every[0] for each in every):
        raise ValueError(
            "module has other parameters in some processes than in others, and they would train apart: load one "
            "state_dict in all of them, or seed them alike before the module is made"
        )


def place() -> tuple[int, int]:
    """This process's number, and how many train one model."""
    return (distributed.get_rank(), distributed.get_world_size()) if several() else (0, 1)


def most(at: tuple[int, tuple[int, float]]) -> tuple[int, tuple[int, float]]:
    """The largest of all processes' steps, and what the process of it knows, or the largest of
    that.
    """
    places = [at] * distributed.get_world_size()
    distributed.all_gather_object(places, at)
    return max(places)


def added(total: Tensor, chunk: int) -> Tensor:
    """This process's ``chunk`` numbers of the sum over all processes, zeros beyond its end."""
    parts = torch.nn.functional.pad(total, (0, chunk * distributed.get_world_size() - len(total)))
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
    """Raises RuntimeError, in every process, where steps, streams or sums differ; every process
    calls this.

    Processes with one noise and different sums would publish the sums' difference without noise.
    """
    bits = total.contiguous().view(torch.uint8)
    whole = bits[: len(bits) // 4 * 4].view(torch.int32)
    first = int.from_bytes(stream[:8], "little", signed=True)
    mine = torch.tensor([step, first, 0], dtype=torch.int64, device=total.device)
    mine[2] = whole.sum(dtype=torch.int64) + (
        bits[len(bits) // 4 * 4 :].sum(dtype=torch.int64) << 32
    )
    all_of_them = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(all_of_them, mine)
    differ = (torch.stack(all_of_them) != mine).any(0).tolist()
    if any(differ):
        names = " and ".join(name for name, wrong in zip(WHAT, differ, strict=True) if wrong)
        raise RuntimeError(
            f"the processes differ in {names}; add up the sums over all of them (all_reduce) and make the noise alike "
            "in each"
        )
