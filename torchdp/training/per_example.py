"""Calls of module and loss on parameters of ours, and what must hold of them on each route.

No call may draw from torch's own generators unseen, change a parameter or buffer, or leave anything
behind in an attribute: an example's gradient would depend on others.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torchdp import checks
from torchdp.training.factors import Form
from torchdp.training.record import Means, Program, Refused, Still, nodes, traced

Inputs = Tensor | Mapping[str, Tensor]
DRAWS = "module draws dropout from torch's global generator; pass dropout=, or call .eval() on it"
REMEMBERS = "module and loss must not remember the examples, which could move later sums: "

# In the place of a loss that was not computed.
NOTHING = torch.empty(0)

# Examples that a route is tried on first, and that are compared with the loss of them together; few
# numbers of a network are multiples of it.
FEW = 13

# Uses of a program, after which it is checked again, and at each power of 2.
AGAIN = 16

# Not their subclasses, whose methods are anybody's.
HOLDERS = (list, dict, set, deque)

# Attributes that every module has; parameters and buffers are looked at by themselves.
BASE = set(vars(nn.Module()))


@dataclass(frozen=True)
class Gradients:
    """Those of n examples: what each parameter's are, and their losses, (n,), detached.

    mixes: whether the loss of them together is neither the mean, the sum nor the list of theirs;
    None where that can not be seen.
    """

    forms: dict[str, Form]
    losses: Tensor
    mixes: Tensor | None


class Output(NamedTuple):
    """What a module returns, taken apart."""

    leaves: list[Any]
    spec: TreeSpec

    @classmethod
    def of(cls, output: Any) -> "Output":
        return cls(*tree_flatten(output))

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def rebuilt(self, tensors: Iterable[Tensor]) -> Any:
        """The same of other tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


class Both(nn.Module):
    """Module and loss as one: the loss, too, sees what stands in for the parameters."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, x: Inputs | None, y: Tensor | None, output: Any = None) -> tuple[Tensor, Any]:
        """What the loss returns, and the module where ``output`` is not given; no loss for no y."""
        if output is None:
            output = self.module(x) if isinstance(x, Tensor) else self.module(**x or {})
        if y is None:
            return NOTHING, output
        return checks.instance("what loss returns", self.loss(output, y), Tensor), output


@dataclass
class Known:
    """What batches of some shapes have shown.

    Routes that are left, why others are not, and programs that were followed.
    """

    routes: list[str]
    reasons: list[str] = field(default_factory=list)
    programs: set[tuple[int, int]] = field(default_factory=set)  # numbers of examples, and hashes
    templates: list[Program] = field(default_factory=list)  # in which examples are apart
    inside: bool = False  # the loss is in the module's call
    calls: int = 0  # with several examples
    reached: list[str] | None = None  # parameters that the loss reaches
    each: int = 0  # bytes that an example's factors and gradients take
    sets: set[str] = field(default_factory=set)  # attributes that a call sets

    def next(self, reason: str) -> None:
        """Raises ValueError where no route is left."""
        reasons = [*self.reasons, f"{self.routes[0]}: {reason}"]
        if len(self.routes) == 1:
            raise ValueError(
                "module and loss are served by none of the routes; " + "; ".join(reasons)
            )
        self.routes.pop(0)
        self.reasons = reasons


class Passes:
    """Calls of module and loss on parameters of ours, and what must hold of them.

    leaves: the parameters that gradients are made in.
    """

    def __init__(
        self, both: Both, parameters: dict[str, Tensor], seeded: bool, known: Known
    ) -> None:
        self.both = both
        self.known = known
        self.seeded = seeded
        self.randomness = "different" if seeded else "error"
        self.leaves = parameters
        self.buffers = dict(both.named_buffers(remove_duplicate=False))
        self.device = next(iter(parameters.values())).device

    @cached_property
    def _places(self) -> dict[str, str]:
        """Where parameters are, one for each module.

        torch would not put back a module's weight that has two.
        """
        names = {id(p): name for name, p in self.both.module.named_parameters()}
        places = {}
        for path, part in self.both.named_modules():
            for name, p in part.named_parameters(recurse=False, remove_duplicate=False):
                if id(p) in names:
                    places[f"{path}.{name}"] = names[id(p)]
        return places

    def call(
        self,
        known: Mapping[str, Tensor],
        x: Any,
        y: Any,
        output: Any = None,
        *,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Any]:
        """What the loss returns, and the module, with these parameters.

        Raises ValueError where a buffer is set.
        """
        buffers = self.buffers if buffers is None else buffers
        # A buffer that the call assigns is another tensor in ``swapped`` afterwards.
        swapped = dict(buffers)
        for place, name in self._places.items():
            if name in known:
                swapped[place] = known[name]
        if not swapped:
            return self.both(x, y, output)
        returned = functional_call(self.both, swapped, (x, y, output), tie_weights=False)
        for place, value in buffers.items():
            if swapped[place] is not value:
                raise Refused(_changed(place))
        return returned

    def on_copies(self, x: Any, y: Any, around: AbstractContextManager[object]) -> Any:
        """The call on copies of the buffers, of which none may be changed, within ``around``."""
        buffers = {place: value.clone() for place, value in self.buffers.items()}
        with self.kept(buffers), around:
            return self.call({}, x, y, buffers=buffers)

    def plain(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        """On the module's own parameters."""
        with self.unset():
            return self.on_copies(x, y, traced())

    @contextmanager
    def same_bits(self) -> Iterator[None]:
        """No call changes a parameter or a buffer, by whatever way: one that is changed is put back.

        ``_version`` does not see what is written through ``.data``, numpy or dlpack. Raises
        ValueError.
        """
        own = {f"module.{name}": p for name, p in self.both.module.named_parameters()}
        # Detached copies: the graph may need what is written over.
        held = own | self.buffers
        copies = {name: value.detach().clone() for name, value in held.items()}
        changed = []
        try:
            yield
        finally:
            for name, value in held.items():
                if not _same(value.detach(), copies[name]):
                    changed.append(name)
                    value.data = copies[name]
        if changed:
            raise Refused(_changed(changed[0]))

    @contextmanager
    def kept(self, buffers: Mapping[str, Tensor]) -> Iterator[None]:
        """Nothing is drawn where no masks are, and no buffer or parameter written over.

        Raises ValueError.
        """
        held = {**buffers, **{f"module.{name}": p for name, p in self.leaves.items()}}
        versions = {place: value._version for place, value in held.items()}
        with undrawn(self.device, not self.seeded):
            yield
        for place, value in held.items():
            if value._version != versions[place]:
                raise Refused(_changed(place))

    @contextmanager
    def unset(self) -> Iterator[None]:
        """Attributes that are set meanwhile are put back: no other example sees what one has left.

        So are the elements of lists, dicts and sets among them. Raises ValueError where a tensor is
        written over.
        """
        before = [(path, part, dict(vars(part))) for path, part in self.both.named_modules()]
        values = []
        for path, _, attributes in before:
            for name, value in attributes.items():
                if name not in BASE:
                    values.append((f"{path}.{name}", value))
        holders = [(place, value, copy(value)) for place, value in values if type(value) in HOLDERS]
        # A tensor in an attribute can not be put back by its numbers alone: it is refused.
        versions = [(place, value, value._version) for place, value in values if _counted(value)]
        try:
            yield
        finally:
            for path, part, attributes in before:
                self._put_back(path, vars(part), attributes)
            for place, holder, old in holders:
                if not _same_elements(holder, old):
                    self.known.sets.add(place)
                    holder.clear()
                    refill = holder.update if isinstance(holder, dict | set) else holder.extend
                    refill(old)
        for place, value, version in versions:
            if value._version != version:
                raise Refused(_changed(place))

    def _put_back(self, path: str, now: dict[str, Any], before: dict[str, Any]) -> None:
        """A module's attributes as they were; notes the plain ones among those that were set."""
        for name in now.keys() - before.keys():
            del now[name]
        for name, value in before.items():
            if now.get(name) is not value:
                now[name] = value
                if isinstance(value, Tensor | int | float):
                    self.known.sets.add(f"{path}.{name}")

    def halves(self, x: Inputs) -> bool:
        """Whether anything is of half precision, or autocast makes it so."""
        given = [*self.leaves.values(), *(x.values() if isinstance(x, Mapping) else [x])]
        return any(map(_half, given)) or torch.is_autocast_enabled(given[0].device.type)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is drawn, where examples have draws of their own."""
        with Still() if self.seeded else nullcontext(), masks(None, self.device):
            yield

    def value(self, x: Inputs, y: Tensor, seed: int) -> tuple[Tensor, list[str]]:
        """The loss of one example, (1, ...), alone, and once more after that, (2,).

        And the parameters that it reaches. seed: of its draws, if any. Raises ValueError.
        """
        totals: list[Tensor] = []
        with self.unset():
            for _ in range(2):
                with masks(seed, self.device), Means(1):
                    # Other tensors each time: a leaf that the module makes of them is its own.
                    total, _ = self.on_copies(mapped(Tensor.detach, x), y, traced())
                    totals.append(total.sum())
        if not totals[0].requires_grad:
            raise ValueError(
                "loss depends on no trainable parameter of module: it is detached, or of another"
            )
        return torch.stack(totals).detach(), self.captured(*totals)

    def captured(self, *totals: Tensor) -> list[str]:
        """Parameters of the module that the loss reaches past the module.

        totals: the loss, of one call or of each of several: leaves of one call alone are born in
        it. Raises ValueError for a parameter of another module.
        """
        names = {id(p): name for name, p in self.leaves.items()}
        several = [{id(p): p for p in _reached(total)} for total in totals if total.requires_grad]
        reached = list(several[0].values()) if several else []
        for p in reached:
            if id(p) not in names and all(id(p) in others for others in several):
                raise Refused(
                    f"loss reaches a trainable tensor of shape {tuple(p.shape)} that is no "
                    "parameter of module, and would never be trained; make it a parameter of "
                    "module, or detach it"
                )
        return [names[id(p)] for p in reached if id(p) in names]

    def mixes(
        self, alone: Tensor, tensors: list[Tensor], output: Output, y: Tensor
    ) -> Tensor | None:
        """Whether the loss of examples together is neither the mean, sum nor list of ``alone``.

        tensors: those of the output, (n, ...). Examples whose loss is not finite are left out: the
        first one that is stands in for them. None where the loss takes one example alone.
        """
        # A mean over a loss that is infinite compares nothing.
        finite = alone.isfinite()
        places = torch.where(finite, torch.arange(len(y), device=y.device), finite.int().argmax())
        rows = [t.detach()[places] for t in tensors]
        try:
            with torch.no_grad(), undrawn(y.device, self.seeded), self.unset():
                together = self.both.loss(output.rebuilt(rows), y[places])
        except Exception:  # a loss that takes one example alone
            return None
        floats = [t for t in rows if t.is_floating_point()]
        eps = max(torch.finfo(t.dtype).eps for t in (alone, together, *floats))
        size = sum(torch.linalg.vector_norm(t, math.inf).double() for t in floats)
        return _neither(alone[places], together, eps, 8 * eps * size)

    def mixes_inside(self, x: Inputs, y: Tensor) -> Tensor | None:
        """As ``mixes``, of a loss in the module's own call.

        Of a few examples, and without dropout.
        """
        n = min(len(y), FEW)
        losses = []
        try:
            with torch.no_grad(), Still():
                with Means(n):
                    together, _ = self.plain(*cut(x, y, slice(n)))
                for i in range(n):
                    total, _ = self.plain(*cut(x, y, slice(i, i + 1)))
                    losses.append(total.sum())
        except Exception:  # a module that takes one example alone
            return None
        alone = torch.stack(losses)
        dtype = torch.bfloat16 if self.halves(x) else alone.dtype
        return _neither(alone, together, torch.finfo(dtype).eps, 0.0)


def _neither(alone: Tensor, together: Tensor, eps: float, rounding: Tensor | float) -> Tensor:
    """Whether ``together`` is neither the mean, sum nor list of losses ``alone``, (n,)."""
    alone = alone.double()
    together = together.double()
    # The distance to the nearest of the three.
    off = together.sum() - torch.stack([alone.mean(), alone.sum()])
    if together.ndim and len(together) == len(alone):
        differences = together.reshape(len(alone), -1).sum(1) - alone
        off = differences.abs().amax()[None]
    return off.abs().amin() > eps**0.5 * alone.abs().mean() + rounding


def generators(device: torch.device) -> list[torch.Generator]:
    """torch's own, of the CPU and of this device."""
    if device.type != "cuda":
        return [torch.default_generator]
    place = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[place]]


@contextmanager
def undrawn(device: torch.device, refused: bool = True) -> Iterator[None]:
    """torch's own generators stand where they stood.

    Raises ValueError where something was drawn from them, unless not ``refused``.
    """
    if not refused:
        yield
        return
    with masks(None, device) as before:
        yield
        for generator, state in zip(generators(device), before, strict=True):
            if not torch.equal(generator.get_state(), state):
                raise Refused(DRAWS)


@contextmanager
def masks(seed: int | None, device: torch.device) -> Iterator[list[Tensor]]:
    """torch's own generators start from ``seed``, and are put back to the states that it yields.

    For None they start from where they are.
    """
    own = generators(device)
    before = [generator.get_state() for generator in own]
    try:
        if seed is not None:
            # torch.manual_seed would seed other devices too, whose states are not put back.
            for generator in own:
                generator.manual_seed(seed)
        yield before
    finally:
        for generator, state in zip(own, before, strict=True):
            generator.set_state(state)


def due(times: int) -> bool:
    """Whether what was seen so often is looked at again: at first, and the 16th, 32nd, 64th time."""
    return not times or (times >= AGAIN and not times & (times - 1))


def _counted(value: Any) -> bool:
    """Whether this is a tensor that counts how often it was written to."""
    return isinstance(value, Tensor) and not value.is_inference()


def _elements(holder: Any) -> list[Any]:
    """Of a dict the keys, then the values."""
    return [*holder, *holder.values()] if isinstance(holder, dict) else [*holder]


def _same_elements(holder: Any, old: Any) -> bool:
    now = _elements(holder)
    before = _elements(old)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits agree."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(bits(a), bits(b))


def bits(x: Tensor) -> Tensor:
    """Of a tensor, flat, uint8."""
    return x.contiguous().flatten().view(torch.uint8)


def _reached(total: Tensor) -> list[Tensor]:
    """The leaves that a tensor has a gradient in."""
    if total.grad_fn is None:
        return [total]
    # Leaves are the nodes that accumulate gradients.
    return [node.variable for node in nodes([total]) if hasattr(node, "variable")]


def _changed(place: str) -> str:
    return (
        f"{REMEMBERS}the call changed {place}; call .eval(), take the update out of forward, or "
        "fill a cache by a call on public input first"
    )


def short(error: BaseException) -> str:
    """The first line of an error, for the reasons why a route is not taken."""
    line = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {line}"[:200]


def mapped(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The function of the inputs, or of each of several."""
    if isinstance(x, Tensor):
        return function(x)
    return {name: function(value) for name, value in x.items()}


def pick(x: Inputs, part: slice) -> Inputs:
    """Some examples of the inputs."""
    return mapped(lambda value: value[part], x)


def cut(x: Inputs, y: Tensor, part: slice) -> tuple[Inputs, Tensor]:
    """Some examples: their inputs and targets."""
    return pick(x, part), y[part]


def _half(x: Tensor) -> bool:
    return x.is_floating_point() and x.element_size() < 4


def flat(gradients: Tensor) -> Tensor:
    """(n, *shape) -> (n, size), at least float32."""
    wide = torch.promote_types(gradients.dtype, torch.float32)
    return gradients.detach().reshape(len(gradients), gradients.shape[1:].numel()).to(wide)
