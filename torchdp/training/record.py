"""One recorded forward pass of a batch: the uses of parameters, and the program of operations.

Notation: n examples; a tensor is of data, or of weights (made of parameters alone), or the total
(the sum of the examples' losses).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.nn.modules._functions import BackwardHookFunction

from torchdp.training.calls import Call, Untaken, Watching, tensors
from torchdp.training.factors import Form
from torchdp.training.track import Track

MEANS = (
    "the loss of several examples must be the mean or the sum of their own losses, or list them, "
    "and is neither: weights or counts are divided by their sum over the batch, or examples meet "
    "in it, while gradients are each one's own; return one number for each example, as of "
    "reduction='none' (times weights; of sequences, the mean)"
)
MIXES = "module mixes examples by batch normalisation; use GroupNorm, or call .eval() on it"
DROPS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
RECURRENT = {torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}
DRAWN = {torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.normal}
DRAWN |= {Tensor.normal_, Tensor.uniform_, Tensor.exponential_}

# How often a pass may ask for bool() of data: a loop that ends by the data would not end.
MOST_ASKED = 1000

# Marks of tensors, see Notation.
DATA = "data"
WEIGHTS = "weights"
TOTAL = "total"

# By which Python would see numbers of the examples, or reach past torch's functions.
READING = (
    "__int__ __float__ __complex__ __index__ __array__ __contains__ __format__ __repr__ "
    "__reduce_ex__ __dlpack__ item tolist numpy storage untyped_storage _typed_storage data_ptr "
    "is_nonzero equal allclose nonzero argwhere unique unique_consecutive masked_select bincount "
    "map_ map2_ apply_ set_ resize_ resize_as_ share_memory_ register_hook "
    "register_post_accumulate_grad_hook backward"
).split()
READS = {
    getattr(owner, name) for owner in (Tensor, torch) for name in READING if hasattr(owner, name)
}
READS |= {Tensor.data.__set__, Tensor.__cuda_array_interface__.__get__}  # type: ignore[attr-defined]
NODE = Tensor.grad_fn.__get__  # type: ignore[union-attr]
DIFFERENTIATE = {torch.autograd.grad, torch.autograd.backward, torch._VF._make_dual}


class Refused(ValueError):
    """What no route may serve: no other one is tried."""


class Inside(Untaken):
    """The loss is in the module's call."""


def eager() -> AbstractContextManager[object]:
    """Compiled parts of a module run as they are: compiled code calls no function of torch's."""
    return _stance("force_eager", None)


def traced() -> AbstractContextManager[object]:
    """Compiled parts are traced and run by torch: else torch.cond's closures get no gradient."""
    return _stance("default", "eager")


def _stance(stance: str, backend: str | None) -> AbstractContextManager[object]:
    # Nothing is compiled before this import, which takes seconds.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance(stance, force_backend=backend)


def backward(
    outputs: list[Tensor], gradients: list[Tensor], places: list[Any]
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad, which is no call that modes of functions see.

    They would be off while it runs: in it checkpointing runs calls of the module again.
    """
    run = torch.autograd.Variable._execution_engine.run_backward
    return run(tuple(outputs), tuple(gradients), False, False, tuple(places), True, False)


def nodes(outputs: Iterable[Tensor]) -> Iterator[Any]:
    """Of the graph that leads to these tensors, each once."""
    left: list[Any] = [t.grad_fn for t in outputs]
    seen = {None}
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += [child for child, _ in node.next_functions]
            yield node


def own_means(n: int, given: dict[str, Any]) -> Tensor:
    """Of each of n examples the mean cross entropy over what it has itself: (n,).

    As the loss of that example alone is. given: the arguments of F.cross_entropy.
    """
    target = given["target"]
    entropies = F.cross_entropy(**given | {"reduction": "none"}).reshape(n, -1)
    counted = torch.full_like(entropies, True, dtype=torch.bool)
    if not target.is_floating_point():
        counted = (target != given.get("ignore_index", -100)).reshape(n, -1)
    return entropies.sum(1) / counted.sum(1)


class Means(Watching):
    """Of n examples' cross entropies the mean of each one's own mean.

    Raises ValueError where weights cancel.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def called(self, call: Call) -> Any:
        if call.func not in (F.cross_entropy, F.nll_loss):
            return call.run()
        given = call.named()
        mean = given.get("reduction", "mean") == "mean"
        weighted = given.get("weight") is not None
        # Of one example alone the mean is w loss / w.
        if mean and weighted and given["target"].numel() == 1:
            raise ValueError(MEANS)
        own = mean and not weighted and call.func is F.cross_entropy and given["input"].ndim > 1
        if own and len(given["input"]) % self.n == 0:
            return own_means(self.n, given).mean()
        return call.run()


class Still(Watching):
    """Dropout is off, whatever flags say; what else is drawn is 0."""

    def called(self, call: Call) -> Any:
        if call.func in DROPS:
            return call.named()["input"]
        if call.func in RECURRENT:
            args = list(call.args)
            # Packed sequences have their lengths before the weights.
            args[6 if isinstance(args[2], Tensor) else 5] = 0.0
            return call.func(*args)
        if call.func is F.scaled_dot_product_attention:
            return call.func(**call.named() | {"dropout_p": 0.0})
        out = call.run()
        return out.detach().zero_() if call.func in DRAWN else out


@dataclass(frozen=True)
class Claim:
    """A use of ``source``.

    Each example's gradient in it is ``form`` of the gradient ``at`` a tensor or an edge.
    """

    source: Tensor
    at: Any
    form: Callable[[Tensor], Form]


class Program(NamedTuple):
    """Operations of a pass of n examples, where n divides no number that does not count them."""

    n: int
    steps: list[Any]

    def at(self, n: int) -> list[Any]:
        """Those of a pass of another number of examples."""
        return [self._scaled(step, n) for step in self.steps]

    def _scaled(self, value: Any, n: int) -> Any:
        if isinstance(value, tuple):
            return tuple(self._scaled(part, n) for part in value)
        return value // self.n * n if type(value) is int and value % self.n == 0 else value


Rule = Callable[["Record", Call], Any]


class Record(Watching):
    """Marks tensors as of data, or of parameters alone; claims where they meet; notes each call.

    Where they meet in a call with a rule, a leaf stands in for the parameter, so that no path to
    the parameter is left, and the use is claimed. A use without a rule keeps its path, and the
    parameter then has a gradient of its own: none is left out. Python does not read data: bool() of
    it is always False, other ways raise :class:`Untaken`.

    Args:
        parameters: the leaves.
        n: examples.
        rules: by function.
        inside: whether the module's call has the loss in it, whose means are taken for each
            example.
        track: follows the pass, where that is asked.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        n: int,
        rules: Mapping[Any, Rule],
        inside: bool,
        track: Track | None = None,
    ) -> None:
        super().__init__()
        self.n = n
        self.rules = rules
        self.inside = inside
        self.track = track
        self.claims: list[Claim] = []
        self.program: list[Any] = []
        self.reduced = False  # whether the loss was seen inside of the module
        self.asked = 0  # how often Python asked for bool() of data
        self.sizes = set[int]()  # whole numbers of the program, shapes among them
        self.coarsest = 0.0  # precision that numbers of data were computed in
        self._replayed = False
        self._marks = 0
        self._parameters = {id(p) for p in parameters.values()}
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}
        self._held: list[tuple[Tensor, int]] = []
        # In the marks: those of another record, of an earlier batch, count as none.
        self._own = object()

    def data(self, x: Tensor) -> Tensor:
        """The same numbers, as data."""
        x = x.view_as(x)
        self._mark(x, DATA)
        return x

    def of_data(self, t: Any) -> bool:
        return self._kind(t) is DATA

    def of_weights(self, t: Any) -> bool:
        return isinstance(t, Tensor) and (id(t) in self._parameters or self._kind(t) is WEIGHTS)

    def fits(self, x: Any, rows: bool = False) -> bool:
        """Whether dimension 0 has each example's part in order; rows: one row for each."""
        if not self.of_data(x) or x.ndim == 0 or len(x) == 0:
            return False
        if len(x) != self.n if rows else len(x) % self.n:
            return False
        self.own(x)
        return True

    def alias(self, source: Any) -> Any:
        """A leaf in place of a tensor of parameters; anything else as it is."""
        if not self.of_weights(source):
            return source
        # One leaf for each, whose source is held: ids of what is freed come again.
        if id(source) not in self._aliases:
            self._aliases[id(source)] = source, source.detach().requires_grad_()
        return self._aliases[id(source)][1]

    def keep(self, x: Tensor) -> Tensor:
        """An input that a claim needs later; :meth:`finished` sees whether it was written over."""
        x = x.detach()
        if self._replayed:
            return x
        self._held.append((x, x._version))
        return x

    def own(self, x: Tensor) -> None:
        """Raises Untaken where a part of a gradient is seen to be of several examples."""
        if self.track is None:
            return
        # A rule may run with this mode on.
        with torch._C.DisableTorchFunction():
            if not self.track.apart(x):
                raise Untaken(self.track.where(x))

    def constants(self, *values: Any) -> None:
        """Raises Untaken where a tensor that all examples share is seen to be of some of them."""
        if self.track is not None and any(self.track.own(t) is not None for t in values):
            raise Untaken("what all examples share is made of some of them")

    def claim(self, source: Any, out: Tensor, form: Callable[[Tensor], Form]) -> None:
        """Claims the use where ``source`` is of parameters.

        out: the output, or the leaf whose own gradient has the rows.
        """
        used = self.of_weights(source) and source.requires_grad and out.requires_grad
        if used and not self._replayed:
            self.constants(source)
            at = out if out.is_leaf else get_gradient_edge(out)
            self.claims.append(Claim(source, at, form))
            self.program.append(form.__code__)

    def backward(
        self, outputs: list[Tensor], gradients: list[Tensor], places: list[Any]
    ) -> tuple[Tensor | None, ...]:
        """The gradients at these places, None where nothing reaches one.

        What Python does meanwhile is recorded, too: custom functions, hooks, and checkpointing, which
        runs calls again on the leaves that stood in for parameters.
        """
        self._replayed = True
        for node in nodes(outputs):
            if isinstance(node, BackwardCFunction):
                node.register_prehook(self._given)
                node.register_hook(self._returned)
        with self:
            return backward(outputs, gradients, places)

    def _given(self, gradients: tuple[Any, ...]) -> None:
        """Those of a custom function's outputs. Which they are is part of the program."""
        self.program.append(("given", self.numbers(gradients)))
        for g in tensors(gradients):
            if not self._seen(g):
                self._mark(g, None)

    def _returned(self, gradients: tuple[Any, ...], _: Any) -> None:
        """Those of its inputs: no call tells which of several tensors its backward returns."""
        if not all(map(self._seen, tensors(gradients))):
            raise Untaken("a custom function's backward returns what no call of torch's has made")
        self.program.append(("returned", self.numbers(gradients)))

    def functions(self) -> list[Any]:
        """The program without its numbers, which are others in another precision."""
        return [step[0] for step in self.program if isinstance(step, tuple)]

    def finished(self) -> None:
        """Raises Untaken where a kept input is not what it was, or of several examples."""
        for x, version in self._held:
            if x._version != version:
                raise Untaken("an input of a layer is written over")
            self.own(x)

    def called(self, call: Call) -> Any:
        given = list(tensors(call))
        kinds = [self._kind(t) for t in given]
        weights = any(self.of_weights(t) for t in given)
        kind = None
        if DATA in kinds:
            kind = DATA
        elif TOTAL in kinds:
            kind = TOTAL
        if kind is not None:
            if call.func is Tensor.__bool__:
                # One answer for all batches: control flow is no function of the data.
                self.asked += 1
                if self.asked > MOST_ASKED:
                    raise Untaken("Python asks for bool() of data in a loop")
                return False
            self._refuse(call)
        if self.track is not None and call.func in READS:
            # What has no mark may be of data: written through views, or of the backward pass.
            self.track.read(given, call.name)
        # Before it runs: what it writes, or returns as it is, is marked anew.
        arguments = self.numbers((call.args, tuple(call.kwargs.items())))
        # An attribute, as .mT or .shape: what is no other tensor needs no mark.
        if call.name == "__get__":
            out = call.run()
            if out is call.args[0] or not isinstance(out, Tensor):
                return out
        else:
            if not self._replayed:
                self._foreign(call, given, kinds)
            out = self._sum_of_losses(call)
            if out is not None:
                kind = TOTAL
            elif kind and weights and torch.is_grad_enabled() and call.func in self.rules:
                out = self.rules[call.func](self, call)
            if out is None:
                out = call.run()
        if kind is None and weights:
            kind = WEIGHTS
        # What neither takes nor makes a tensor, as torch.device, computes nothing.
        shapes = self._shapes(call, out, kind)
        if given or shapes:
            self.program.append((call.func, arguments, shapes))
        return out

    def _shapes(self, call: Call, out: Any, kind: str | None) -> tuple[Any, ...]:
        """Of what a call has made or written, which is marked."""
        # x[i] = y returns nothing, and x is then of data where y is.
        written = [call.args[0]] if call.func is Tensor.__setitem__ else []
        shapes = [self._made(t, kind, call) for t in [*tensors(out), *written]]
        if written and not list(tensors(call.args[1])):
            # x[20:] = y[0] writes into none of few rows.
            shapes.append(self.numbers(tuple(written[0][call.args[1]].shape)))
        return tuple(shapes)

    def _sum_of_losses(self, call: Call) -> Tensor | None:
        """The examples' own losses, added up, in place of the mean of a loss inside the module."""
        if call.func is not F.cross_entropy or not self.inside:
            return None
        given = call.named()
        if given.get("reduction", "mean") != "mean" or not self.fits(given["input"]):
            return None
        if given.get("weight") is not None:
            raise ValueError(MEANS)
        self.reduced = True
        return own_means(self.n, given).sum()

    def _refuse(self, call: Call) -> None:
        """What reads data for Python, or mixes examples by its name."""
        func = call.func
        places = func in (torch.where, Tensor.where) and len(call.args) + len(call.kwargs) == 1
        if func in READS or places:
            raise Untaken(f"Python reads numbers of the examples, by {call.name}")
        if func == NODE:
            node = call.args[0].grad_fn
            # Hooks that modules set are on a custom function, and seen.
            own = getattr(node, "_forward_cls", None)
            if node is not None and own is not BackwardHookFunction:
                raise Untaken("the module reads grad_fn, on which hooks may be set")
        if func in DIFFERENTIATE:
            raise Untaken("the module takes gradients itself")
        if func is Tensor.__getitem__:
            indices = tensors(call.args[1])
            if any(t.dtype == torch.bool and self.of_data(t) for t in indices):
                raise Untaken("rows are picked by a mask of the data")
        if func is F.batch_norm and call.named().get("training"):
            raise ValueError(MIXES)

    def _foreign(self, call: Call, given: list[Tensor], kinds: list[str | None]) -> None:
        """Refuses tensors with a history that was not seen.

        Of custom functions, hooks of modules, earlier batches, transforms.
        """
        # Inside of these a call is seen on wrapped tensors, whose marks are lost.
        if torch._C._functorch.maybe_current_level() is not None:
            raise Untaken("the module calls transforms of torch.func")
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        # They run inside of torch's calls, where none is seen.
        if hooks is not None and not hooks[0].__module__.startswith("torch."):
            raise Untaken("hooks of the module's own save tensors")
        for t, kind in zip(given, kinds, strict=True):
            unseen = self.track is not None and not self._seen(t) and self.track.own(t) is not None
            if unseen or (kind is None and t.requires_grad and id(t) not in self._parameters):
                raise Untaken(
                    f"{call.name} is given a tensor whose history is no call of torch's functions"
                )

    def _made(self, t: Tensor, kind: str | None, call: Call) -> Any:
        """Marks what a call has made; its shape, for the program."""
        if kind is DATA and t.is_floating_point():
            self.coarsest = max(self.coarsest, torch.finfo(t.dtype).eps)
            if call.func is F.cross_entropy and not t.ndim and self.n > 1:
                raise Inside("the loss is in the module's call")
        # Constants, too: by which of them a call is given a program is another one.
        self._mark(t, kind if kind is not WEIGHTS or t.requires_grad else None)
        return self.numbers(tuple(t.shape))

    def _mark(self, t: Tensor, kind: str | None) -> None:
        # A number for each tensor: a call may make several, and Python choose one of them.
        self._marks += 1
        t._torchdp = self._own, kind, self._marks  # type: ignore[attr-defined]

    def _kind(self, t: Any) -> str | None:
        mark = getattr(t, "_torchdp", None)
        if mark is None:
            return None
        if mark[0] is not self._own and mark[1] is DATA:
            raise Untaken("a tensor of another pass is kept")
        return mark[1] if mark[0] is self._own else None

    def _seen(self, t: Tensor) -> bool:
        """Whether a call of this pass has made it."""
        return getattr(t, "_torchdp", (None,))[0] is self._own

    def numbers(self, value: Any) -> Any:
        """A call's arguments but for the tensors' numbers."""
        if isinstance(value, Tensor):
            # Of a custom function's saved outputs, which have no mark: which output it is.
            mark = value._torchdp[2] if self._seen(value) else -1 - value.output_nr  # type: ignore[attr-defined]
            return "tensor", str(mark)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, tuple | list):
            return tuple(self.numbers(part) for part in value)
        if isinstance(value, slice):
            return self.numbers(("slice", value.start, value.stop, value.step))
        if type(value) is int:
            self.sizes.add(value)
        plain = isinstance(value, int | float | complex | str | type(None) | torch.dtype)
        # Python's hashes of -1 and -2 are one.
        return (type(value), value, value == -1) if plain else type(value)
