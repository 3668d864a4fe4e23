"""Modules, losses and examples of which each example has a gradient of its own.

Others are refused by name. Whether a module trains as the function that it is shows in what it
makes of some examples beside others that are foreign to them. Not by examples alone: these draw other numbers, and
what is rare in a batch (near neighbours, an expert that is full, numbers above a threshold) does
not occur. The foreign ones are made of the examples that are looked at: copies, and copies with
numbers ``FAR`` times as large. Which examples are looked at, and where they are in the batch, is
drawn from the system at each check.
"""

import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._functorch.autograd_function import custom_function_call
from torch.autograd import Function

from torchdp import checks
from torchdp.training.calls import Call, Untaken, Watching
from torchdp.training.per_example import DRAWS, FEW, Inputs, Output, Passes, mapped, masks
from torchdp.training.record import MIXES
from torchdp.training.sums import holds

# An example's gradient would depend on the others.
MIXING = (nn.modules.batchnorm._BatchNorm,)
TABLES = (nn.Embedding, nn.EmbeddingBag)
PARALLEL = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
MEETS = (
    "module mixes examples: what it returns for one of them changes with the others of its batch, "
    "as of statistics, attention, sorting or sums along the batch; an example's gradient would be "
    "another's too, or that of another function than the module's: let each example go by itself "
    "(GroupNorm or LayerNorm in the place of batch normalisation), or call .eval() on it"
)

# Times which the numbers of foreign examples are larger.
FAR = 1e3

# Of an example's numbers: how far they may move by rounding, and by searches that stop by the whole
# batch's error. Numbers of half precision round by more.
MOVES = 2.0**-7
MOVES_HALF = torch.finfo(torch.bfloat16).eps ** 0.5

# Not torch's or Python's seeded ones: a module must not know which examples are looked at.
SYSTEM = random.SystemRandom()


@dataclass(frozen=True)
class Beside:
    """A batch of examples that are looked at, and of others.

    sources: the example at each place. kept: places of those that are looked at. far: places of
    those that are FAR times as large.
    """

    sources: list[int]
    kept: list[int]
    far: list[int]

    @staticmethod
    def of(rows: list[int], kept: list[int], others: list[int], far: list[int]) -> "Beside":
        """``rows`` at the places ``kept``, beside copies of them at the places ``others``."""
        sources = dict(zip(kept, rows, strict=True))
        for i, place in enumerate(others):
            sources[place] = rows[i % len(rows)]
        return Beside([sources[place] for place in range(len(sources))], kept, far)

    def batch(self, x: Inputs, factor: float) -> Inputs:
        """What is at each place; far away by ``factor``."""

        def placed(x: Tensor) -> Tensor:
            # A list of places copies: the caller's examples stay as they are.
            x = x[self.sources]
            if x.is_floating_point():
                x[self.far] *= factor
            return x

        return mapped(placed, x)


def factors(device: torch.device) -> tuple[float, ...]:
    """By which others are far away; the first one that the module takes counts."""
    # An index out of range would stop a GPU.
    return (FAR, 1.0) if device.type == "cpu" else (1.0,)


def meet(passes: Passes, x: Inputs, n: int) -> Tensor | None:
    """Whether the module's output for an example moves with the other examples.

    Each is looked at beside foreign ones at the place where it is, the first and the last one also
    where all are copies of it. Draws are the same in all of these passes. None where that can not
    be seen.
    """
    outputs = _outputs(passes, x)
    order = SYSTEM.sample(range(n), n)
    batches = [Beside([row] * n, [row], []) for row in (0, n - 1)]
    # Each half beside copies of itself, by each digit of a row's rank: no two of few rows are in
    # one half throughout.
    digits = (n - 1).bit_length() if n <= FEW else 1
    for digit in range(digits):
        zeros = [row for rank, row in enumerate(order) if not rank >> digit & 1]
        ones = [row for rank, row in enumerate(order) if rank >> digit & 1]
        batches.append(Beside.of(zeros, zeros, ones, ones[digit % 2 :: 2]))
        batches.append(Beside.of(ones, ones, zeros, zeros[digit % 2 :: 2]))
    tolerance = MOVES_HALF if passes.halves(x) else MOVES
    flags: list[Tensor] = []
    for beside in batches:
        again: list[Tensor] = []
        for factor in factors(passes.device):
            again = again or _outputs(passes, beside.batch(x, factor))
        for a, b in zip(outputs, again, strict=False):
            flags += _moved(a, b, n, beside.kept, tolerance)
    return torch.stack(flags).any() if flags else None


def _outputs(passes: Passes, x: Inputs) -> list[Tensor]:
    """The tensors that the module returns, none where it does not take these examples."""
    seed = 0 if passes.seeded else None
    try:
        with torch.no_grad(), masks(seed, passes.device):
            _, output = passes.plain(x, None)
    except Exception:  # of whatever kind: numbers that are far away are no input of some modules
        return []
    return [t.detach() for t in Output.of(output).tensors]


def _moved(a: Tensor, b: Tensor, n: int, kept: list[int], tolerance: float) -> list[Tensor]:
    """Whether numbers of the kept examples differ, along each dimension that may be the batch's.

    None if none may.
    """
    if a.shape != b.shape or not a.is_floating_point() or not a.numel():
        return []
    flags = []
    for dim, length in enumerate(a.shape):
        if length == n:
            mine = a.movedim(dim, 0)[kept].reshape(len(kept), -1).float()
            other = b.movedim(dim, 0)[kept].reshape(len(kept), -1).float()
            size = mine.abs().amax(1)
            off = (other - mine).abs().amax(1)
            # Rounding of numbers that cancel is of the largest ones.
            rounding = torch.finfo(torch.float32).eps * size.nan_to_num(posinf=0.0).amax()
            # ``~(<=)``: where the other batch turns a finite number into NaN, it has moved.
            moved = size.isfinite() & ~(off <= tolerance * size + rounding)
            flags.append(moved.any())
    return [torch.stack(flags).all()] if flags else []


class OwnRules(Watching):
    """Raises Untaken where a custom function has a rule of its own for vmap.

    Examples may meet in it.
    """

    def called(self, call: Call) -> object:
        if call.func is custom_function_call and call.args[0].vmap is not Function.vmap:
            raise Untaken(
                f"{call.args[0].__name__} has a rule of its own for vmap, in which examples may "
                "meet"
            )
        return call.run()


def trainable(module: nn.Module, loss: object, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own.

    masks: whether dropout has masks for each example. Raises TypeError, ValueError.
    """
    own_loss = loss if isinstance(loss, nn.Module) else nn.Module()
    for part in [*module.modules(), *own_loss.modules()]:
        _refuse_part(part, masks)
    parameters: dict[str, Tensor] = {
        name: p for name, p in module.named_parameters() if p.requires_grad
    }
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError(
            "module must have real parameters; split complex ones by torch.view_as_real"
        )
    if not parameters:
        raise ValueError("module must have a parameter that requires a gradient")
    # The loss may hold the module, or share its parameters under other names.
    own = {id(p) for p in module.parameters()}
    for name, p in own_loss.named_parameters():
        if p.requires_grad and id(p) not in own:
            raise ValueError(
                f"loss has a parameter of its own, {name}, which would never be trained: make the "
                "loss a part of module, as module.loss = loss, or call loss.requires_grad_(False)"
            )
    return parameters


def _refuse_part(part: nn.Module, masks: bool) -> None:
    if part.training and isinstance(part, MIXING):
        raise ValueError(MIXES)
    wrapped = PARALLEL & {kind.__name__ for kind in type(part).__mro__}
    if wrapped:
        raise ValueError(
            f"module must not be wrapped in {min(wrapped)}; pass what it wraps, its .module, or a "
            "module that is not sharded: a run adds up over a group's processes itself"
        )
    if isinstance(part, TABLES) and (part.max_norm is not None or part.sparse):
        raise ValueError(
            "module has an embedding with max_norm, which writes users' rows anew in each call, or "
            "with sparse gradients; make it without either"
        )
    drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p
    drops = drops or (isinstance(part, nn.RNNBase) and part.dropout)
    if part.training and drops and not masks:
        raise ValueError(DRAWS)


def parameters_named(module: nn.Module, unused: Sequence[str]) -> list[str]:
    """The parameters that have one of these names, or are in a module that has.

    Raises TypeError, ValueError.
    """
    parameters: list[str] = []
    for group in checks.each_of("unused", unused, str):
        own = [name for name, _ in module.named_parameters() if group and holds(group, name)]
        if not own:
            raise ValueError(
                f"unused must name parameters of module, or modules that hold them, not {group!r}"
            )
        parameters += own
    return parameters


def refuse_unreached(missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            "module has parameters that no example's loss reaches, "
            f"{', '.join(missing[:3])}{more}, which noise alone would move: call "
            "requires_grad_(False) on them, or name them in unused= where later examples reach them"
        )


def named(inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    return {"targets": targets, **({"inputs": inputs} if isinstance(inputs, Tensor) else inputs)}


def examples(module: nn.Module, inputs: Inputs, targets: Tensor) -> Inputs:
    """The inputs without gradients. Raises where these are not equally many examples."""
    if isinstance(inputs, tuple | list):
        names = list(inspect.signature(module.forward).parameters)[: len(inputs)]
        raise TypeError(
            "inputs must be a Tensor, or a dict of several by forward's names, not "
            f"{type(inputs).__name__}: pass dict({', '.join(f'{name}=...' for name in names)})"
        )
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    for name, value in named(inputs, targets).items():
        if not checks.dense(name, value).ndim:
            raise ValueError(f"{name} must have one entry for each example, not shape ()")
        if len(value) != len(targets):
            raise ValueError(
                f"{name} and targets must be equally many, not {len(value)} and {len(targets)}"
            )
    return mapped(Tensor.detach, inputs)
