"""Modules, losses and examples of which each example has a gradient of its own; others are refused
by name.

Whether a module's examples meet is seen by what it makes of some of them beside others that are
foreign to them. Not by examples alone: these draw other numbers, and what is rare in a batch
(near neighbours, an expert that is full, numbers above a threshold) does not occur. The foreign
ones are made of the examples that are looked at: copies, and copies with numbers ``FAR`` times as
large. Which examples are looked at, and where they are in the batch, is drawn from the system at
each check.
"""

import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.autograd_function import custom_function_call
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from torchdp import checks
from torchdp.training.per_example import DRAWS, FEW, Inputs, Passes, mapped, masks
from torchdp.training.record import MIXES, Untaken, Watching
from torchdp.training.sums import holds

MIXING = (nn.modules.batchnorm._BatchNorm,)  # an example's gradient would depend on the others
TABLES = (nn.Embedding, nn.EmbeddingBag)
PARALLEL = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
MEETS = (
    "module mixes examples: what it returns for one of them changes with the others of its batch, as of statistics, "
    "attention, sorting or sums along the batch; an example's gradient would be another's too, or that of another "
    "function than the module's: let each example go by itself (GroupNorm or LayerNorm in the place of batch "
    "normalisation), or call .eval() on it"
)
FAR = 1e3
# Of an example's numbers: how far they may move by rounding, and by searches that stop by the whole
# batch's error.
MOVES = 2.0**-7
# Numbers of examples that are no multiple of one another: where n divides none of the sizes that a
# pass has made, a dimension that n divides is the batch's.
PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
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

    @staticmethod
    def drawn(rows: list[int], n: int) -> "Beside":
        """At places that are drawn, each second copy far; len(rows) < n."""
        order = SYSTEM.sample(range(n), n)
        few = len(rows)
        return Beside.of(rows, order[:few], order[few:], order[few::2])

    def batch(self, x: Inputs, factor: float) -> Inputs:
        """What is at each place; far away by ``factor``."""

        def placed(x: Tensor) -> Tensor:
            x = x[self.sources]
            if x.is_floating_point():
                x[self.far] *= factor
            return x

        return mapped(placed, x)


def factors(device: torch.device) -> tuple[float, ...]:
    """By which others are far away, the first one that the module takes; an index out of range
    would stop a GPU.
    """
    return (FAR, 1.0) if device.type == "cpu" else (1.0,)


def prime(n: int, sizes: set[int]) -> int:
    """A number of examples, about n or FEW, that divides none of these sizes; n where there is
    none.
    """
    for p in PRIMES:
        if p >= min(n, FEW) and not any(size and size % p == 0 for size in sizes):
            return p
    return n


def meet(passes: Passes, x: Inputs, n: int) -> Tensor | None:
    """Whether the module's output for an example moves with the other examples; None where that can
    not be seen.

    Each is looked at beside foreign ones at the place where it is, the first and the last one also
    where all are copies of it. Draws are the same in all of these passes.
    """
    first = _outputs(passes, x)
    order = SYSTEM.sample(range(n), n)
    batches = [Beside([row] * n, [row], []) for row in (0, n - 1)]
    # Each half beside copies of itself, by each digit of a row's rank: no two of few rows are in
    # one half throughout.
    digits = (n - 1).bit_length() if n <= FEW else 1
    for digit in range(digits):
        for half in (0, 1):
            kept = [row for rank, row in enumerate(order) if rank >> digit & 1 == half]
            others = [row for rank, row in enumerate(order) if rank >> digit & 1 != half]
            batches.append(Beside.of(kept, kept, others, others[digit % 2 :: 2]))
    # Numbers of half precision round by more than MOVES.
    coarse = torch.finfo(torch.bfloat16).eps ** 0.5 if passes.halves(x) else MOVES
    flags = list[Tensor]()
    for beside in batches:
        second = list[Tensor]()
        for factor in factors(passes.device):
            second = second or _outputs(passes, beside.batch(x, factor))
        for a, b in zip(first, second, strict=False):
            flags += _moved(a, b, n, beside.kept, coarse)
    return torch.stack(flags).any() if flags else None


def _outputs(passes: Passes, x: Inputs) -> list[Tensor]:
    """The tensors that the module returns, none where it does not take these examples."""
    seed = 0 if passes.seeded else None
    try:
        with torch.no_grad(), masks(seed, passes.device):
            output = passes.plain(x, None)[1]
    except Exception:  # of whatever kind: numbers that are far away are no input of some modules
        return []
    return [leaf.detach() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def _moved(a: Tensor, b: Tensor, n: int, kept: list[int], coarse: float) -> list[Tensor]:
    """Whether numbers of the kept examples differ, along each dimension that may be the batch's;
    none if none may.
    """
    if a.shape != b.shape or not a.is_floating_point():
        return []
    found = list[Tensor]()
    for dim in range(a.ndim):
        if a.shape[dim] == n and a.numel():
            mine = a.movedim(dim, 0)[kept].reshape(len(kept), -1).float()
            other = b.movedim(dim, 0)[kept].reshape(len(kept), -1).float()
            size = mine.abs().amax(1)
            off = (other - mine).abs().amax(1)
            least = torch.finfo(torch.float32).eps * size.nan_to_num(posinf=0.0).amax()
            found.append((size.isfinite() & ~(off <= coarse * size + least)).any())
    return [torch.stack(found).all()] if found else []


class OwnRules(Watching):
    """Raises Untaken where a custom function has a rule of its own for vmap, in which examples may
    meet.
    """

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is custom_function_call and args[0].vmap is not Function.vmap:
            raise Untaken(
                f"{args[0].__name__} has a rule of its own for vmap, in which examples may meet"
            )
        return func(*args, **kwargs)


def trainable(module: nn.Module, loss: object, masks: bool) -> dict[str, Tensor]:
    """The module's parameters that require a gradient, where an example's gradient is its own.
    Raises.
    """
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
    parameters: dict[str, Tensor] = {
        name: p for name, p in module.named_parameters() if p.requires_grad
    }
    if any(p.is_complex() for p in parameters.values()):
        raise TypeError(
            "module must have real parameters; split complex ones by torch.view_as_real"
        )
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
    """The parameters that have one of these names, or are in a module that has. Raises TypeError,
    ValueError.
    """
    found = []
    for name in checks.each_of("unused", unused, str):
        own = [place for place, _ in module.named_parameters() if name and holds(name, place)]
        if not own:
            raise ValueError(
                f"unused must name parameters of module, or modules that hold them, not {name!r}"
            )
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
            raise ValueError(
                f"{name} and targets must be equally many, not {len(value)} and {len(targets)}"
            )
    return mapped(Tensor.detach, inputs)
