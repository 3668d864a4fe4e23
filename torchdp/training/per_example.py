"""Calls of module and loss on parameters of ours, and what must hold of them on each route."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import TreeSpec, tree_unflatten

from torchdp import checks
from torchdp.training.factors import Form
from torchdp.training.record import Means, Refused, Still, traced

Inputs = Tensor | Mapping[str, Tensor]
DRAWS = "module draws dropout from torch's global generator; pass dropout=, or call .eval() on it"
NOTHING = torch.empty(0)
# Examples that a route is tried on first, and that are compared with the loss of them together; few
# numbers of a network are multiples of it.
FEW = 13
AGAIN = 16  # uses of a program, after which it is checked again, and at each power of 2
HOLDERS = (list, dict, set, deque)  # not their subclasses, whose methods are anybody's
BASE = set(
    vars(nn.Module())
)  # attributes that every module has; parameters and buffers are looked at by themselves
REMEMBERS = "module and loss must not remember the examples, which could move later sums: "


@dataclass(frozen=True)
class Gradients:
    """Those of n examples: what each parameter's are, and their losses, (n,), detached."""

    forms: dict[str, Form]
    losses: Tensor
    # whether the loss of them together is neither the mean, the sum nor the list of theirs
    mixes: Tensor | None


class Both(nn.Module):
    """Module and loss as one: what stands in for the parameters does so while the loss runs,
    too.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x: Inputs | None, y: Tensor | None, *made: Any) -> tuple[Tensor, Any]:
        """What the loss returns, and what the module does, or has ``made``; for no targets that
        alone.
        """
        output = (
            made[0] if made else self.module(x) if isinstance(x, Tensor) else self.module(**x or {})
        )
        if y is None:
            return NOTHING, output
        return checks.instance("what loss returns", self.loss(output, y), Tensor), output


@dataclass
class Known:
    """What batches of some shapes have shown: routes that are left, why others are not, programs
    that were checked.
    """

    routes: list[str]
    reasons: list[str] = field(default_factory=list)
    programs: dict[int, int] = field(default_factory=dict)  # how often each was used
    inside: bool = False  # the loss is in the module's call
    calls: int = 0  # with several examples
    reached: list[str] | None = None  # parameters that the loss reaches
    each: int = 0  # bytes that an example's factors and gradients take
    sets: set[str] = field(default_factory=set)  # attributes that a call sets

    def next(self, reason: str) -> None:
        """Raises ValueError where no route is left."""
        self.reasons.append(f"{self.routes.pop(0)}: {reason}")
        if not self.routes:
            raise ValueError(
                "module and loss are served by none of the routes; " + "; ".join(self.reasons)
            )


class Passes:
    """Calls of module and loss on parameters of ours, and what must hold of them."""

    def __init__(
        self, both: Both, parameters: dict[str, Tensor], seeded: bool, known: Known
    ) -> None:
        self.both, self.known, self.seeded = both, known, seeded
        self.randomness = "different" if seeded else "error"
        self.leaves = parameters
        # what stands in for the module's parameters in plain calls
        self.own: dict[str, Tensor] = {}
        self.frozen: dict[str, Tensor] = {}  # likewise, in all calls, for those without a gradient
        self.buffers = dict(both.named_buffers(remove_duplicate=False))
        self.device = next(iter(parameters.values())).device

    @cached_property
    def _places(self) -> dict[str, str]:
        """Where parameters are, one for each module: torch would not put back a module's weight
        that has two.
        """
        own = {id(p): name for name, p in self.both.module.named_parameters()}
        return {
            f"{path}.{name}": own[id(p)]
            for path, part in self.both.named_modules()
            for name, p in part.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in own
        }

    def call(
        self,
        known: Mapping[str, Tensor],
        x: Any,
        y: Any,
        *made: Any,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Any]:
        """What the loss returns, and the module, with these parameters. Raises where a buffer is
        set.
        """
        known = {**self.frozen, **known}
        buffers = self.buffers if buffers is None else buffers
        places = self._places.items() if known else ()
        swapped = {place: known[name] for place, name in places if name in known} | {**buffers}
        if not swapped:
            return self.both(x, y, *made)
        found = functional_call(self.both, swapped, (x, y, *made), tie_weights=False)
        for place, value in buffers.items():
            if swapped[place] is not value:
                raise Refused(_changed(place))
        return found

    def on_copies(self, x: Any, y: Any, around: AbstractContextManager[object]) -> Any:
        """The call on copies of the buffers, of which none may be changed, within ``around``."""
        buffers = {place: value.clone() for place, value in self.buffers.items()}
        with self.kept(buffers), around:
            return self.call(self.own, x, y, buffers=buffers)

    def plain(self, x: Any, y: Any) -> tuple[Tensor, Any]:
        """On the module's own parameters: nothing stands in for them but in ``widened``."""
        with self.unset():
            return self.on_copies(x, y, traced())

    @contextmanager
    def same_bits(self) -> Iterator[None]:
        """No call changes a parameter or a buffer, by whatever way: one that is changed is put
        back. Raises ValueError.

        ``_version`` does not see what is written through ``.data``, numpy or dlpack.
        """
        held = {
            f"module.{name}": p for name, p in self.both.module.named_parameters()
        } | self.buffers
        copies = {name: value.detach().clone() for name, value in held.items()}
        changed = list[str]()
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
        """Nothing is drawn where no masks are, and no buffer or parameter written over. Raises
        ValueError.
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
        """Attributes that are set meanwhile are put back: no other example sees what one has left
        in them.

        So are the elements of lists, dicts and sets among them. Raises ValueError where a tensor is
        written over.
        """
        before = [(path, part, dict(vars(part))) for path, part in self.both.named_modules()]
        own = [
            (f"{path}.{name}", value)
            for path, _, old in before
            for name, value in old.items()
            if name not in BASE
        ]
        holders = [(place, value, copy(value)) for place, value in own if type(value) in HOLDERS]
        versions = [(place, value, value._version) for place, value in own if _counted(value)]
        try:
            yield
        finally:
            for path, part, old in before:
                now = vars(part)
                for name in now.keys() - old.keys():
                    del now[name]
                for name, value in old.items():
                    if now.get(name) is not value:
                        now[name] = value
                        if isinstance(value, Tensor | int | float):
                            self.known.sets.add(f"{path}.{name}")
            for place, value, old in holders:
                found, elements = _elements(value), _elements(old)
                if len(found) != len(elements) or any(
                    a is not b for a, b in zip(found, elements, strict=True)
                ):
                    self.known.sets.add(place)
                    value.clear()
                    refill = value.update if isinstance(value, dict | set) else value.extend
                    refill(old)
        for place, value, version in versions:
            if value._version != version:
                raise Refused(_changed(place))

    def halves(self, x: Inputs) -> bool:
        """Whether anything is of half precision, or autocast makes it so."""
        given = [*self.leaves.values(), *(x.values() if isinstance(x, Mapping) else [x])]
        halves = any(t.is_floating_point() and t.element_size() < 4 for t in given)
        return halves or torch.is_autocast_enabled(given[0].device.type)

    def widened(self, x: Inputs, y: Tensor) -> tuple["Passes", Inputs, Tensor]:
        """The same on float32 copies of what has half precision."""
        other = copy(self)
        rest = {
            name: p for name, p in self.both.module.named_parameters() if name not in self.leaves
        }
        other.frozen = {name: _wide(p.detach()) for name, p in rest.items()}
        other.leaves = {name: _wide(p.detach()).requires_grad_() for name, p in self.leaves.items()}
        other.own = other.leaves
        other.buffers = {place: _wide(value) for place, value in self.buffers.items()}
        return other, mapped(_wide, x), _wide(y)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Without dropout where it has masks, and without autocast."""
        still = Still() if self.seeded else nullcontext()
        with still, torch.autocast(self.device.type, enabled=False):
            yield

    def value(self, x: Inputs, y: Tensor, seed: int) -> tuple[Tensor, list[str]]:
        """The loss of one example, (1, ...), alone, and once more after that, (2,); the parameters
        that it reaches.

        seed: of its draws, if any. Raises ValueError.
        """
        totals = list[Tensor]()
        with self.unset():
            for _ in range(2):
                with masks(seed, self.device), Means(1):
                    totals.append(self.on_copies(x, y, traced())[0].sum())
        if not totals[0].requires_grad:
            raise ValueError(
                "loss depends on no trainable parameter of module: it is detached, or of another"
            )
        return torch.stack(totals).detach(), self.captured(totals[0])

    def captured(self, total: Tensor) -> list[str]:
        """Parameters of the module that the loss reaches past the module. Raises ValueError for one
        of another.
        """
        names = {id(p): name for name, p in self.leaves.items()}
        found = _reached(total) if total.requires_grad else []
        for p in found:
            if id(p) not in names:
                raise Refused(
                    f"loss reaches a trainable tensor of shape {tuple(p.shape)} that is no parameter of module, and "
                    "would never be trained; make it a parameter of module, or detach it"
                )
        return [names[id(p)] for p in found]

    def mixes(
        self, alone: Tensor, tensors: list[Tensor], leaves: list[Any], spec: TreeSpec, y: Tensor
    ) -> Tensor | None:
        """Whether the loss of examples together is neither the mean, nor the sum, nor the list of
        theirs.

        tensors: those among the outputs, (n, ...). Examples whose loss ``alone`` is not finite are
        left out: the first one that is stands in for them. None where the loss takes one example
        alone.
        """
        finite = alone.isfinite()
        places = torch.where(finite, torch.arange(len(y), device=y.device), finite.int().argmax())
        rows = iter([t.detach()[places] for t in tensors])
        output = tree_unflatten(
            [next(rows) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        )
        try:
            with torch.no_grad(), undrawn(y.device, self.seeded), self.unset():
                found = self.both.loss(output, y[places])
        except Exception:  # a loss that takes one example alone
            return None
        floats = [t[places] for t in tensors if t.is_floating_point()]
        eps = max(torch.finfo(t.dtype).eps for t in (alone, found, *floats))
        rounding = sum(torch.linalg.vector_norm(t, math.inf).double() for t in floats)
        return _neither(alone[places], found, eps, 8 * eps * rounding)

    def mixes_inside(self, x: Inputs, y: Tensor) -> Tensor | None:
        """As ``mixes``, of a loss in the module's own call, of a few examples and without
        dropout.
        """
        n = min(len(y), FEW)
        try:
            with torch.no_grad(), Still():
                with Means(n):
                    found = self.plain(pick(x, slice(n)), y[:n])[0]
                each = [
                    self.plain(pick(x, slice(i, i + 1)), y[i : i + 1])[0].sum() for i in range(n)
                ]
        except Exception:  # a module that takes one example alone
            return None
        alone = torch.stack(each)
        dtype = torch.bfloat16 if self.halves(x) else alone.dtype
        return _neither(alone, found, torch.finfo(dtype).eps, 0.0)


def _neither(alone: Tensor, found: Tensor, eps: float, more: Tensor | float) -> Tensor:
    """Whether ``found`` is neither the mean, nor the sum, nor the list of losses ``alone``, (n,),
    up to rounding.
    """
    alone, found = alone.double(), found.double()
    off = found.sum() - torch.stack([alone.mean(), alone.sum()])
    if found.ndim and len(found) == len(alone):
        off = (found.reshape(len(alone), -1).sum(1) - alone).abs().amax()[None]
    return off.abs().amin() > eps**0.5 * alone.abs().mean() + more


def generators(device: torch.device) -> list[torch.Generator]:
    """torch's own, of the CPU and of this device."""
    if device.type != "cuda":
        return [torch.default_generator]
    place = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[place]]


@contextmanager
def undrawn(device: torch.device, refused: bool = True) -> Iterator[None]:
    """torch's own generators stand where they stood. Raises ValueError where something was drawn
    from them.
    """
    if not refused:
        yield
        return
    with masks(None, device) as before:
        yield
        for each, state in zip(generators(device), before, strict=True):
            if not torch.equal(each.get_state(), state):
                raise Refused(DRAWS)


@contextmanager
def masks(seed: int | None, device: torch.device) -> Iterator[list[Tensor]]:
    """torch's own generators start from ``seed``, for None from where they are, and are put back to
    these states.
    """
    own = generators(device)
    before = [each.get_state() for each in own]
    try:
        if seed is not None:
            # torch.manual_seed would seed other devices too, whose states are not put back
            for each in own:
                each.manual_seed(seed)
        yield before
    finally:
        for each, state in zip(own, before, strict=True):
            each.set_state(state)


def due(times: int) -> bool:
    """Whether what was seen ``times`` times is looked at again: at first, the 16th, 32nd, 64th time
    and so on.
    """
    return not times or (times >= AGAIN and not times & (times - 1))


def _counted(value: Any) -> bool:
    """Whether this is a tensor that counts how often it was written to."""
    return isinstance(value, Tensor) and not value.is_inference()


def _elements(holder: Any) -> list[Any]:
    """Of a dict the keys, then the values."""
    return [*holder, *holder.values()] if isinstance(holder, dict) else [*holder]


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits agree."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)
    )


def _reached(total: Tensor) -> list[Tensor]:
    """The leaves that a tensor has a gradient in."""
    left, seen, found = [total.grad_fn], set(), [total] if total.grad_fn is None else []
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [child for child, _ in node.next_functions]
            if hasattr(node, "variable"):
                found.append(node.variable)
    return found


def _changed(place: str) -> str:
    return (
        f"{REMEMBERS}the call changed {place}; call .eval(), take the update out of forward, or fill a cache by a call "
        "on public input first"
    )


def short(error: BaseException) -> str:
    """The first line of an error, for the reasons why a route is not taken."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def mapped(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The function of the inputs, or of each of several."""
    if isinstance(x, Tensor):
        return function(x)
    return {name: function(value) for name, value in x.items()}


def pick(x: Inputs, part: slice) -> Inputs:
    """Some examples of the inputs."""
    return mapped(lambda value: value[part], x)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() and x.element_size() < 4 else x


def flat(gradients: Tensor) -> Tensor:
    """(n, *shape) -> (n, size), at least float32."""
    wide = torch.promote_types(gradients.dtype, torch.float32)
    return gradients.detach().reshape(len(gradients), math.prod(gradients.shape[1:])).to(wide)
