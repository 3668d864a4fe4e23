"""Sums of clipped per-example gradients.

``Clipper`` refuses what has no gradient of each example's own, takes the first route that serves
(``routes``), and looks again at what a batch has shown after a number of batches.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.training.accepted import (
    MEETS,
    examples,
    meet,
    named,
    parameters_named,
    refuse_unreached,
    trainable,
)
from torchdp.training.calls import Untaken
from torchdp.training.per_example import (
    FEW,
    REMEMBERS,
    Both,
    Gradients,
    Inputs,
    Known,
    Passes,
    cut,
    due,
    masks,
    pick,
)
from torchdp.training.record import MEANS, eager
from torchdp.training.routes import by_factors, by_loop, by_vmap
from torchdp.training.sums import Bounds, Sums, group_bounds

ROUTES = ("factors", "vmap", "loop")
APART = "each example alone, as torch runs it"
PROMISES = {
    "factors": "all examples in one pass, each one's part followed through torch's operations",
    "vmap": APART,
    "loop": APART,
}

# Bytes that factors and gradients of some examples may take.
MEMORY = 2**28

# By how much the first example's loss may change over a call, of itself: more than rounding.
CHANGES = 1e-4


class _Finding(NamedTuple):
    """What must not be, as a flag that a GPU is not waited for, and its message."""

    wrong: Tensor | None
    message: str


class Clipper:
    """Sums of clipped gradients of one module and loss, as :func:`clip_and_sum`, batch after batch.

    What the first batch of its shapes has shown is kept: the route, and the programs of operations
    that were followed. ``balance``: of the last call, see :class:`Sums`.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        routes: Sequence[str] = ROUTES,
        unused: Sequence[str] = (),
        groups: Mapping[str, float] | None = None,
    ) -> None:
        self.module = checks.instance("module", module, nn.Module)
        self.loss = checks.function("loss", loss)
        self._both = Both(module, loss)
        self.routes = tuple(routes)
        ordered = tuple(name for name in ROUTES if name in routes)
        if not routes or isinstance(routes, str) or ordered != self.routes:
            raise ValueError(f"routes must be some of {ROUTES}, in this order, not {routes!r}")
        self._unused = parameters_named(module, unused)
        self._groups = None if groups is None else dict(checks.instance("groups", groups, Mapping))
        self.bounds(1.0)  # raises where groups do not fit
        self._known: dict[object, Known] = {}
        self._last: Known | None = None

    @property
    def route(self) -> str:
        """The route of the last call, what it promises, and why earlier ones were not taken."""
        if self._last is None:
            return "none yet"
        name = self._last.routes[0]
        return "; ".join([f"{name}: {PROMISES[name]}", *self._last.reasons])

    def bounds(self, bound: float) -> Bounds:
        """Which parameters are clipped together, and to what. Raises TypeError, ValueError."""
        names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        return group_bounds(bound, names, self._groups)

    def __call__(
        self,
        inputs: Inputs,
        targets: Tensor,
        bound: float,
        *,
        at_once: int = 1024,
        memory: int = MEMORY,
        dropout: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sum, and the mean of the examples' losses, which is not private.

        Raises TypeError, ValueError.
        """
        sums = Sums(self.bounds(bound))
        memory = checks.integer("memory", memory, 1)
        at_once = checks.integer("at_once", at_once, 1)
        inputs = examples(self.module, inputs, targets)
        parameters = trainable(self.module, self.loss, dropout is not None)
        seed = None if dropout is None else int(Simulated(dropout).integers(()))
        key = _shapes(inputs, targets, parameters)
        fresh = key not in self._known and len(targets) > 0
        known = self._known.get(key, Known(list(self.routes)))
        passes = Passes(self._both, parameters, seed is not None, known)
        # What is compiled calls no function of torch that a route could see.
        with torch.enable_grad(), eager(), masks(seed, targets.device):
            # Not at each call: it copies all parameters.
            with passes.same_bits() if due(known.calls) else nullcontext():
                limits = at_once, memory
                losses, findings = self._summed(passes, inputs, targets, sums, fresh, seed, limits)
        total = _unless(sums.flat(parameters), findings)
        self.balance = _unless(sums.balance, findings)
        # Only now: a call that raised vouches for no other, nor does a batch of nobody.
        if len(targets):
            # One example alone meets no other: it brings the next check no nearer.
            known.calls += len(targets) > 1
            self._known[key] = self._last = known
        if not losses:
            return total, torch.tensor(math.nan, dtype=torch.float32)
        return total, torch.cat(losses).mean()

    def _summed(
        self,
        passes: Passes,
        inputs: Inputs,
        targets: Tensor,
        sums: Sums,
        fresh: bool,
        seed: int | None,
        limits: tuple[int, int],
    ) -> tuple[list[Tensor], list[_Finding]]:
        """Adds the examples' gradients up in ``sums``; their losses, and what must not be."""
        known = passes.known
        first = cut(inputs, targets, slice(1))
        losses: list[Tensor] = []
        findings: list[_Finding] = []
        reached: set[str] = set()
        if fresh:
            # Before other examples are seen: what a module remembers of them moves this loss.
            before, captured = passes.value(*first, seed or 0)
            reached.update(captured)
        if due(known.calls) and len(targets) > 1:
            count = min(len(targets), FEW)
            findings.append(_Finding(meet(passes, pick(inputs, slice(count)), count), MEETS))
        for x, y in _pieces(inputs, targets, *limits, known, fresh):
            for gradients in taken(passes, x, y):
                sums.add(gradients.forms)
                if fresh:
                    rest = gradients.forms.keys() - reached
                    reached |= {name for name in rest if gradients.forms[name].norms().any()}
                losses.append(gradients.losses)
                findings.append(_Finding(gradients.mixes, MEANS))
        if not fresh:
            return losses, findings
        # Where module or loss remember examples, the first one's loss has moved.
        after, _ = passes.value(*first, seed or 0)
        both = torch.stack([before, after])
        moved = (both - before[0]).abs() > CHANGES * (both.abs() + before[0].abs())
        changed = f"{REMEMBERS}the first one alone had another loss after the call than before"
        findings.insert(0, _Finding(moved.any(), changed))
        if known.sets:
            warnings.warn(
                f"module's forward sets {', '.join(sorted(known.sets))}, which is put back after "
                "each call, so that no example is remembered: set what is public outside of forward",
                stacklevel=4,
            )
        # Later shapes may reach fewer: an expert is chosen by some batches alone.
        if self._last is None:
            reached.update(self._unused)
            refuse_unreached([name for name in passes.leaves if name not in reached])
        return losses, findings


def _shapes(inputs: Inputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> object:
    """Of which what a batch has shown serves others: those of an example, and of parameters."""
    given = [(name, x.shape[1:], x.dtype) for name, x in named(inputs, targets).items()]
    own = [(name, p.shape) for name, p in parameters.items()]
    return (*given, *own)


def taken(passes: Passes, x: Inputs, y: Tensor) -> Iterator[Gradients]:
    """Gradients of some examples by the first route that serves, all at once or one at a time.

    Raises ValueError.
    """
    while True:
        route = passes.known.routes[0]
        try:
            if route == "loop":
                yield from by_loop(passes, x, y)
            elif route == "vmap":
                yield by_vmap(passes, x, y)
            else:
                yield by_factors(passes, x, y)
            return
        except Untaken as reason:
            passes.known.next(str(reason))


def clip_and_sum(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    inputs: Inputs,
    targets: Tensor,
    bound: float,
    *,
    at_once: int = 1024,
    memory: int = MEMORY,
    dropout: torch.Generator | None = None,
    routes: Sequence[str] = ROUTES,
    unused: Sequence[str] = (),
    groups: Mapping[str, float] | None = None,
) -> Tensor:
    """sum_i g_i min(1, bound / ||g_i||) of the examples' gradients g_i in all trainable parameters.

    g_i is the gradient of loss(module(x_i), y_i). Parameters that the loss reaches (a head, a
    penalty) are among them. The loss of several examples must be the mean, the sum or the list of
    their own losses, which each batch is held to: a mean that class weights or counts of tokens
    divide is refused, since it is not what the examples' own gradients add up to. Where the loss is
    in the module's own call (labels), each example's is the mean over what that example has itself.

    Args:
        module: called on batches.
        loss: likewise.
        inputs: (n, ...), n >= 0; a tensor, or several by name, module(**inputs).
        targets: (n, ...).
        bound: the longest that an example's gradient may be.
        at_once: examples whose gradients are in memory together.
        memory: bytes that their factors and gradients may take, one example's at least; what a pass
            without privacy takes comes on top.
        dropout: draws masks, for each example its own; without it dropout in training mode is
            refused.
        routes: those that may be taken, of which the first one that serves is, in this order.
            "factors": one pass of the whole batch; of a layer's gradients sum_t b_t a_t^T only the
            inputs a_t and the gradients b_t in its outputs are made, where these are less. "vmap":
            each example's whole gradient. "loop": one example after another, also of Python that
            reads numbers.
        unused: names of parameters, or of modules that hold them, that no example need reach: an
            expert that is chosen by few examples. Any other that none reaches is refused: in
            training it would be moved by noise alone.
        groups: parameters that are clipped by themselves, as {"": 1, "head": 0.3}: w_k > 0 by the
            name of a parameter, or of a module that holds it; the longest name counts, "" holds
            all. An example's gradient in group k is clipped to C_k = bound w_k / (sum_j w_j^2)^.5,
            and so all of it to ``bound``.

    Returns one flat vector in the order of ``module.parameters()``, those that require no gradient
    left out; :func:`set_gradients` puts it back. A gradient counts as 0 that is not finite, or so
    long that bound / ||g_i|| is no normal number (2^126 bounds in float32). The dtype is the
    parameters', at least float32. Raises TypeError, ValueError: also on batch normalisation in
    training mode; where a call sets or writes a registered buffer, which is named, as is a
    parameter that no example reaches; where the module mixes examples; where the first example
    alone has another loss after the call than before. On a GPU, which the host does not wait for,
    the sum is NaN where a comparison of losses or outputs fails.

    Guarantees: adding or removing an example moves the sum by at most ``bound``, up to the rounding
    of the sum, where each example's gradient is a function of that example, module and loss
    remember none, and their author is honest. By "vmap" and "loop" torch runs each example alone.
    By "factors" each new program of operations is run once more while torch's own operations,
    forward and backward, are followed: of each number it is known which examples may reach it. The
    sum is used only where all that an example's gradient is made of is reached by this example
    alone, whatever the numbers are; what has no rule counts as reached by all
    (:class:`~torchdp.training.track.Track`). For another number of examples the program must be the
    same but for sizes that count them. Python reads no data there (bool() of it is always False),
    and no parameter's use is left out. That these gradients are the right ones is checked for some
    examples, drawn anew from the system, against each alone by plain autograd, before the first
    use of a program, and at the 16th, 32nd, 64th call and so on.
    On each route the module's output for an example must not move with the other examples of its
    batch, since it would train as another function: at the first batch of its shapes, and at the
    16th, 32nd, 64th and so on, examples are put beside foreign ones, copies of them and copies with
    numbers 1,000 times as large (on a CPU), and what mixes them is refused. Parameters and buffers
    that a forward pass changes, by whatever way, are seen at these batches, put back and named.
    Attributes that it sets, and elements of lists, dicts and sets among them, are put back after
    each pass, so that no other example sees them; a tensor in an attribute that it writes over is
    named and refused. What Python code keeps elsewhere is not seen, nor what C extensions compute
    without torch. No route protects from an author who is malicious: a module can read the caller's
    batch from Python's frames, keep users' data in a global variable, or write it into a file.
    Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Algorithm 1; factors:
    Lee, Kifer (2021); Li, Tramer, Liang, Hashimoto (2022); Bu, Wang, Zha, Karypis (2023).
    """
    sums = Clipper(module, loss, routes=routes, unused=unused, groups=groups)
    return sums(inputs, targets, bound, at_once=at_once, memory=memory, dropout=dropout)[0]


def _unless(total: Tensor, findings: Sequence[_Finding]) -> Tensor:
    """``total`` where nothing is wrong.

    Raises ValueError where something is, and on another device than the CPU the sum is NaN.
    """
    for wrong, message in findings:
        if wrong is None:
            continue
        if wrong.device.type == "cpu" and wrong.any():
            raise ValueError(message)
        total = torch.where(wrong.to(total.device), torch.nan, total)
    return total


def _pieces(
    inputs: Inputs, targets: Tensor, at_once: int, memory: int, known: Known, fresh: bool
) -> Iterator[tuple[Inputs, Tensor]]:
    """Some examples at a time; none for none.

    At first some that show how many bytes an example takes.
    """
    start = 0
    while start < len(targets):
        step = max(1, min(at_once, memory // max(known.each, 1)))
        if fresh and start == 0:
            step = min(at_once, FEW)
        yield cut(inputs, targets, slice(start, start + step))
        start += step
