"""Each example's own gradients: as rows, or as the factors of a large weight's; and what its loss is made of."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torchdp import checks
from torchdp.training.ghost import SMALL, Differs, Factors, Found, Taps, find

Inputs = Tensor | Mapping[str, Tensor]
DRAWS = "module draws dropout from torch's global generator; pass dropout=, or call .eval() on it"
REMEMBERS = "module and loss must not remember the examples, which could move later sums: "


@dataclass(frozen=True)
class Gradients:
    """Those of n examples: for each parameter (n, *shape) in ``rows``, or its ``factors``. sizes: of the parameters."""

    rows: dict[str, Tensor]
    factors: dict[str, Factors]
    sizes: dict[str, int]
    empty: Tensor  # (n, 0)


class Both(nn.Module):
    """Module and loss as one: what stands in for the parameters does so while the loss runs, too."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x: Inputs, y: Tensor) -> tuple[Tensor, Any]:
        """What the loss returns, and what the module does."""
        output = self.module(x) if isinstance(x, Tensor) else self.module(**x)
        return checks.instance("what loss returns", self.loss(output, y), Tensor), output


@dataclass
class Known:
    """What a first batch has shown of all like it: large weights that have factors, and whether vmap serves."""

    found: dict[str, Found] = field(default_factory=dict)
    loop: bool = False


class PerExample:
    """Gradients of loss(module(x_i), y_i) in ``parameters``, x_i a batch of one: no example sees another.

    By vmap; where it does not serve (recurrent layers, Python that reads numbers, checkpoints, parameters that the loss
    holds by themselves) one example after another, by plain autograd. parameters: the module's own, by name. whole:
    those that are shards, in their place. Buffers that a call sets or writes are refused by name.
    """

    def __init__(
        self, both: Both, parameters: dict[str, Tensor], whole: dict[str, Tensor], seeded: bool, known: Known
    ) -> None:
        self.both, self.parameters, self.known = both, parameters, known
        self.randomness = "different" if seeded else "error"
        self.sizes = {name: p.numel() for name, p in parameters.items()}
        self.recurrent = any(isinstance(part, nn.RNNBase) for part in both.modules())
        self.large = (
            {} if self.recurrent else {k: p for k, p in parameters.items() if p.numel() >= SMALL and p.ndim > 1}
        )
        own = {id(p): name for name, p in both.module.named_parameters()}
        self._frozen = {name: p for name, p in whole.items() if name not in parameters}
        self._leaves = {name: p.requires_grad_() if name in whole else p for name, p in parameters.items()}
        self._sharded = bool(whole)
        self._places = {  # one for each module: torch would not put back a module's weight that has two
            f"{path}.{name}": own[id(p)]
            for path, part in both.named_modules()
            for name, p in part.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in own
        }
        self._buffers = dict(both.named_buffers(remove_duplicate=False))
        self._lost: list[Tensor] = []  # each example's loss, (n,), of the last examples
        self._outputs: tuple[list[Tensor], list[Any], TreeSpec] | None = None

    def look(self, x: Inputs, y: Tensor) -> None:
        """Finds by one example, (1, ...), the ``large`` weights whose gradients are smaller as factors."""

        def forward(large: Mapping[str, Tensor]) -> Tensor:
            known = {**self._constants(), **large}
            one = vmap(lambda x, y: self._alone(known, x, y)[0], randomness=self.randomness)
            return one(x, y).sum()

        if self.large and not self._loop:
            with self._tried():
                self.known.found = find(forward, self.large)

    @property
    def _loop(self) -> bool:
        return self.recurrent or self.known.loop

    def __call__(self, x: Inputs, y: Tensor) -> Iterator[Gradients]:
        """Of examples (n, ...), n >= 1: all at once, or one at a time."""
        if not self._loop:
            found = None
            with self._tried():
                try:
                    found = self._together(x, y)
                except Differs:
                    self.known.found = {}
                    found = self._together(x, y)
            if found:
                yield Gradients(*found, self.sizes, y.new_empty(len(y), 0, dtype=torch.float32))
                return
            self.known.loop = True
        yield from self._one_by_one(x, y)

    def losses(self) -> Tensor:
        """Each example's loss, (n,), of the last call."""
        return torch.cat(self._lost)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """What vmap does not serve leaves to the loop, which raises what plain torch raises."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            if "randomness error mode" in str(error):
                raise ValueError(DRAWS) from error
            self.known.loop = True

    def _constants(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.parameters.items()}

    def _alone(self, known: Mapping[str, Tensor], x: Inputs, y: Tensor, *buffers: Mapping[str, Tensor]) -> Any:
        """The loss of one example, ready for a batch of one, with these parameters, and what the module returns."""
        known, own = {**self._frozen, **known}, dict(*buffers) or self._buffers
        swapped = {place: known[name] for place, name in self._places.items() if name in known} | own
        x = x[None] if isinstance(x, Tensor) else {name: value[None] for name, value in x.items()}
        total, output = functional_call(self.both, swapped, (x, y[None]), tie_weights=False)
        for place, value in own.items():
            if swapped[place] is not value:
                raise ValueError(_changed(place))
        return total.sum(), output

    def _together(self, x: Inputs, y: Tensor) -> tuple[dict[str, Tensor], dict[str, Factors]] | None:
        """By vmap; None where parameters stand in for nothing: the loss has them by themselves."""
        found, constants = self.known.found, self._constants()
        fixed = {name: constants[name] for name in found}
        rest = {name: p for name, p in constants.items() if name not in fixed}
        taps = {name: each.taps for name, each in found.items()}
        structure: list[Any] = []

        def one(rest: dict[str, Tensor], taps: dict[str, list[Tensor]], x: Inputs, y: Tensor) -> Any:
            if not fixed:
                inputs, (total, output) = {}, self._alone(rest, x, y)
            else:
                with Taps(fixed, 2, taps) as mode:
                    total, output = self._alone({**rest, **fixed}, x, y)
                if any(mode.uses[name] != each.uses or mode.changed(name) for name, each in found.items()):
                    raise Differs
                inputs = mode.inputs
            leaves, spec = tree_flatten(output)
            structure[:] = [leaves, spec]
            return total, (inputs, total, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

        each = vmap(grad(one, argnums=(0, 1), has_aux=True), (None, None, 0, 0), randomness=self.randomness)
        (rows, outputs), (inputs, lost, tensors) = each(rest, taps, x, y)
        if self._captured(lost):
            return None
        self._keep([lost], tensors, *structure)
        return rows, {name: Factors(found[name].uses, inputs[name], outputs[name]) for name in fixed}

    def _one_by_one(self, x: Inputs, y: Tensor) -> Iterator[Gradients]:
        """In a loop, on the module's own parameters: nothing stands in for them but for shards."""
        lost: list[Tensor] = []
        several: list[list[Tensor]] = []
        leaves, spec = tree_flatten(None)
        for i in range(len(y)):
            buffers = {place: value.clone() for place, value in self._buffers.items()}
            held = buffers | {f"module.{name}": p for name, p in self._leaves.items()}
            versions = {place: value._version for place, value in held.items()}
            with undrawn(y.device, self.randomness == "error"):
                swapped = self._leaves if self._sharded else {}
                total, output = self._alone(swapped, _pick(x, i), y[i], buffers)
                if not i:
                    self._captured(total)
                own = list(self._leaves.values())
                g = [torch.zeros_like(p) for p in own]
                if total.requires_grad:
                    g = list(torch.autograd.grad(total, own, materialize_grads=True))
            for place, value in held.items():
                if value._version != versions[place]:
                    raise ValueError(_changed(place))
            rows = {name: part.detach()[None] for name, part in zip(self._leaves, g, strict=True)}
            leaves, spec = tree_flatten(output)
            lost.append(total.detach()[None])
            several.append([leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)])
            yield Gradients(rows, {}, self.sizes, y.new_empty(1, 0, dtype=torch.float32))
        alike = all([leaf.shape for leaf in each] == [leaf.shape for leaf in several[0]] for each in several)
        self._keep(lost, [torch.stack(side) for side in zip(*several, strict=True)] if alike else [], leaves, spec)

    def _captured(self, total: Tensor) -> bool:
        """Whether the loss reaches a parameter of the module past the module. Raises ValueError for one of another."""
        if not total.requires_grad:
            return False
        own = {id(p) for p in self._leaves.values()}
        for p in _reached(total):
            if id(p) not in own:
                raise ValueError(
                    f"loss reaches a trainable tensor of shape {tuple(p.shape)} that is no parameter of module, and "
                    "would never be trained; make it a parameter of module, or detach it"
                )
        return True

    def _keep(self, lost: list[Tensor], tensors: list[Tensor], leaves: list[Any], spec: Any) -> None:
        """The last examples' losses and outputs. tensors: (n, 1, ...), of which a batch is (n, ...)."""
        self._lost, self._outputs = [part.detach() for part in lost], None
        several = len(tensors) > 1  # of which one may have the examples along another dimension
        fits = [
            t.ndim == 1 or (t.shape[1] == 1 and not (several and t.ndim > 3 and t.shape[2] == 1)) for t in tensors
        ]
        if tensors and all(fits):
            self._outputs = [t.detach().flatten(0, 1) if t.ndim > 1 else t.detach() for t in tensors], leaves, spec

    def mixes(self, y: Tensor) -> Tensor | None:
        """Whether the loss of the last examples together is neither the mean, nor the sum, nor the list of theirs.

        Examples whose loss is not finite are left out: the first one that is stands in for them. None where it can not
        be told: outputs without a row for each example, or a loss that takes one example alone.
        """
        if len(y) < 2 or self._outputs is None:
            return None
        tensors, leaves, spec = self._outputs
        alone = self.losses()
        finite = alone.isfinite()
        places = torch.where(finite, torch.arange(len(y), device=y.device), finite.int().argmax())
        rows = iter([t[places] for t in tensors])
        output = tree_unflatten([next(rows) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        try:
            with torch.no_grad(), undrawn(y.device, self.randomness == "different"):
                found = self.both.loss(output, y[places])
        except Exception:  # a loss that takes one example alone
            return None
        floats = [t[places] for t in tensors if t.is_floating_point()]
        eps = max(torch.finfo(t.dtype).eps for t in (alone, found, *floats))
        alone, found = alone[places].double(), found.double()
        off = found.sum() - torch.stack([alone.mean(), alone.sum()])
        if found.ndim and len(found) == len(y):
            off = found.reshape(len(y), -1).sum(1) - alone
            off = off.abs().amax()[None]
        rounding = sum(torch.linalg.vector_norm(t, math.inf).double() for t in floats)
        return off.abs().amin() > eps**0.5 * alone.abs().mean() + 8 * eps * rounding

    def value(self, x: Inputs, y: Tensor) -> Tensor:
        """The loss of one example, (1, ...), alone. Its draws, if any, are from torch's generator."""
        buffers = {place: value.clone() for place, value in self._buffers.items()}
        total = self._alone(self._leaves if self._sharded else {}, _pick(x, 0), y[0], buffers)[0]
        if not total.requires_grad:
            raise ValueError(
                "loss depends on no trainable parameter of module: it is detached, or not the module's"
            )
        return total.detach()


@contextmanager
def undrawn(device: torch.device, refused: bool = True) -> Iterator[None]:
    """torch's own generators stand where they stood. Raises ValueError where something was drawn from them."""
    if not refused:
        yield
        return
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        states = [torch.get_rng_state, *(lambda one=one: torch.cuda.get_rng_state(one) for one in cuda)]
        before = [state() for state in states]
        yield
        if not all(torch.equal(state(), old) for state, old in zip(states, before, strict=True)):
            raise ValueError(DRAWS)


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


def _pick(x: Inputs, i: int) -> Inputs:
    return x[i] if isinstance(x, Tensor) else {name: value[i] for name, value in x.items()}
