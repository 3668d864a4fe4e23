"""One forward pass of a whole batch, recorded: the uses of parameters, and the program of
operations that was run.
"""

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from torchdp.training.factors import Form

MEANS = (
    "the loss of several examples must be the mean or the sum of their own losses, or list them, and is neither: "
    "weights or counts are divided by their sum over the batch, or examples meet in it, while gradients are each one's "
    "own; return one number for each example, as of reduction='none' (times weights; of sequences, the mean)"
)
MIXES = "module mixes examples by batch normalisation; use GroupNorm, or call .eval() on it"
DROPS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
ARGUMENTS: dict[Any, tuple[str, ...]] = {  # of functions whose signature Python does not know
    F.linear: ("input", "weight", "bias"),
    F.conv1d: CONVOLUTION,
    F.conv2d: CONVOLUTION,
    F.conv3d: CONVOLUTION,
    F.scaled_dot_product_attention: (
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    ),
    torch.cat: ("tensors", "dim"),
}  # fmt: skip
# marks of tensors: numbers of the examples, made of parameters alone, the sum of the examples'
# losses
DATA, WEIGHTS, TOTAL = "data", "weights", "total"
READING = (
    "__int__ __float__ __complex__ __index__ __array__ __contains__ __format__ __repr__ __reduce_ex__ __dlpack__ item "
    "tolist numpy storage untyped_storage _typed_storage data_ptr is_nonzero equal allclose nonzero argwhere unique "
    "unique_consecutive masked_select bincount map_ map2_ apply_ set_ resize_ resize_as_ share_memory_ register_hook "
    "register_post_accumulate_grad_hook backward"
).split()
READS = {
    getattr(place, name) for place in (Tensor, torch) for name in READING if hasattr(place, name)
}
READS |= {Tensor.data.__set__, Tensor.__cuda_array_interface__.__get__}  # type: ignore[attr-defined]
DIFFERENTIATE = {torch.autograd.grad, torch.autograd.backward, torch._VF._make_dual}


class Untaken(BaseException):
    """Why a route does not serve; no module's ``except`` is meant."""


class Refused(ValueError):
    """What no route may serve: no other one is tried."""


class Inside(Untaken):
    """The loss is in the module's call."""


def eager() -> AbstractContextManager[object]:
    """Compiled parts of a module run as they are: what is compiled does not see its functions
    called.
    """
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


def traced() -> AbstractContextManager[object]:
    """Compiled parts are traced, and then run by torch itself: what torch.cond closes over has no
    gradient without.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("default", force_backend="eager")


def tensors(value: Any) -> Iterator[Tensor]:
    """Those that lists, tuples and dicts hold, to any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


@functools.cache
def _arguments(func: Any) -> tuple[str, ...]:
    return ARGUMENTS.get(func) or tuple(inspect.signature(func).parameters)


def named(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call gives, by name."""
    return dict(zip(_arguments(func), args, strict=False)) | dict(kwargs)


def own_means(n: int, call: dict[str, Any]) -> Tensor:
    """Each of n examples' mean cross entropy over what it has itself, as the loss of that example
    alone is: (n,).
    """
    target = call["target"]
    each = F.cross_entropy(**call | {"reduction": "none"}).reshape(n, -1)
    kept = torch.full_like(each, True, dtype=torch.bool)
    if not target.is_floating_point():
        kept = (target != call.get("ignore_index", -100)).reshape(n, -1)
    return each.sum(1) / kept.sum(1)


class Watching(TorchFunctionMode, ABC):
    """Sees the calls of torch's functions."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.called(func, args, kwargs or {})

    @abstractmethod
    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call returns."""


class Means(Watching):
    """Of n examples' cross entropies the mean of each one's own mean. Raises ValueError where
    weights cancel.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in (F.cross_entropy, F.nll_loss):
            return func(*args, **kwargs)
        call = named(func, args, kwargs)
        mean = call.get("reduction", "mean") == "mean"
        weighted = call.get("weight") is not None
        if mean and weighted and call["target"].numel() == 1:  # of one example alone w loss / w
            raise ValueError(MEANS)
        own = mean and not weighted and func is F.cross_entropy and call["input"].ndim > 1
        if own and len(call["input"]) % self.n == 0:
            return own_means(self.n, call).mean()
        return func(**call)


class Still(Watching):
    """Dropout is off, whatever flags say."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in DROPS:
            return named(func, args, kwargs)["input"]
        if func is F.scaled_dot_product_attention:
            return func(**named(func, args, kwargs) | {"dropout_p": 0.0})
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Claim:
    """A use of ``source``: each example's gradient in it is ``form`` of the gradient ``at`` a
    tensor or an edge.
    """

    source: Tensor
    at: Any
    form: Callable[[Tensor], Form]


Rule = Callable[["Record", Any, tuple[Any, ...], dict[str, Any]], Any]


class Record(Watching):
    """Marks tensors as of data, or of parameters alone; claims where the two meet; notes each call.

    Where they meet in a call with a rule, a leaf stands in for the parameter, so that no path to
    the parameter is left, and the use is claimed. A use without a rule keeps its path, and the
    parameter then has a gradient of its own: none is left out. Python does not read data: bool() of
    it is always False, other ways raise :class:`Untaken`, as does a number that several examples'
    numbers were made into, for instance a maximum over the batch.

    parameters: the leaves; n: examples; rules: by function. inside: the module's call has the loss
    in it, whose means are taken for each example.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], n: int, rules: Mapping[Any, Rule], inside: bool
    ) -> None:
        super().__init__()
        self.n, self.rules, self.inside = n, rules, inside
        self.claims: list[Claim] = []
        self.program: list[Any] = [n == 1]
        self.reduced, self.asked = 0, False
        self._parameters = {id(p) for p in parameters.values()}
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}
        self._held: list[tuple[Tensor, int]] = []
        self._own = object()  # in the marks that are this record's
        self.sizes = set[int]()  # of tensors of data
        self.coarsest = 0.0  # precision that numbers of data were computed in

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
        return len(x) == self.n if rows else len(x) % self.n == 0

    def alias(self, source: Any) -> Any:
        """A leaf in place of a tensor of parameters; anything else as it is."""
        if not self.of_weights(source):
            return source
        if id(source) not in self._aliases:
            self._aliases[id(source)] = source, source.detach().requires_grad_()
        return self._aliases[id(source)][1]

    def keep(self, x: Tensor) -> Tensor:
        """An input that a claim needs later; :meth:`finished` sees whether it was written over."""
        x = x.detach()
        self._held.append((x, x._version))
        return x

    def claim(self, source: Any, out: Tensor, form: Callable[[Tensor], Form]) -> None:
        """Where ``source`` is of parameters; out: the output, or the leaf whose own gradient has
        the rows.
        """
        if self.of_weights(source) and source.requires_grad and out.requires_grad:
            self.claims.append(Claim(source, out if out.is_leaf else get_gradient_edge(out), form))

    def functions(self) -> list[Any]:
        """The program without its numbers, which are others in another precision."""
        return [call[0] for call in self.program[1:]]

    def finished(self) -> None:
        """Raises Untaken where a kept input is not what it was."""
        if any(x._version != version for x, version in self._held):
            raise Untaken("an input of a layer is written over")

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors((args, kwargs)))
        kinds = [self._kind(t) for t in given]
        data = DATA in kinds or TOTAL in kinds
        weights = any(self.of_weights(t) for t in given)
        if data:
            if func is Tensor.__bool__:
                self.asked = True
                return False  # one answer for all batches: control flow is no function of the data
            self._refuse(func, args, kwargs)
        kind = next((each for each in (DATA, TOTAL) if each in kinds), WEIGHTS if weights else None)
        if _name(func) == "__get__":
            out = func(*args, **kwargs)
            if out is args[0] or not isinstance(out, Tensor):
                return out
        else:
            self._foreign(func, given, kinds)
            out = self._sum_of_losses(func, args, kwargs)
            if out is not None:
                kind = TOTAL
            elif data and weights and torch.is_grad_enabled() and func in self.rules:
                out = self.rules[func](self, func, args, kwargs)
            out = func(*args, **kwargs) if out is None else out
        written = [args[0]] if func is Tensor.__setitem__ else []
        shapes = [self._made(t, kind, func) for t in [*tensors(out), *written]]
        self.program.append(
            (func, self._numbers(args), self._numbers(tuple(kwargs.items())), tuple(shapes))
        )
        return out

    def _sum_of_losses(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """In place of the mean of a loss inside of the module, of the losses of each example
        alone.
        """
        if func is not F.cross_entropy or not self.inside:
            return None
        call = named(func, args, kwargs)
        if call.get("reduction", "mean") != "mean" or not self.fits(call["input"]):
            return None
        if call.get("weight") is not None:
            raise ValueError(MEANS)
        self.reduced += 1
        return own_means(self.n, call).sum()

    def _refuse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What reads data for Python, or mixes examples by its name."""
        if func in READS or (func in (torch.where, Tensor.where) and len(args) + len(kwargs) == 1):
            raise Untaken(f"Python reads numbers of the examples, by {_name(func)}")
        if func in DIFFERENTIATE:
            raise Untaken("the module takes gradients itself")
        if func is Tensor.__getitem__ and any(
            t.dtype == torch.bool and self.of_data(t) for t in tensors(args[1])
        ):
            raise Untaken("rows are picked by a mask of the data")
        if func is F.batch_norm and named(func, args, kwargs).get("training"):
            raise ValueError(MIXES)

    def _foreign(self, func: Any, given: list[Tensor], kinds: list[Any]) -> None:
        """Tensors with a history that was not seen: custom functions, hooks of modules, earlier
        batches, transforms.
        """
        if torch._C._functorch.maybe_current_level() is not None:
            raise Untaken("the module calls transforms of torch.func")
        for t, kind in zip(given, kinds, strict=True):
            if kind is None and t.requires_grad and id(t) not in self._parameters:
                raise Untaken(
                    f"{_name(func)} is given a tensor whose history is no call of torch's functions"
                )

    def _made(self, t: Tensor, kind: str | None, func: Any) -> Any:
        """Marks what a call has made; its shape, for the program. Raises where examples' numbers
        are made into one.
        """
        if kind is DATA:
            self.sizes.update(t.shape)
        if kind is DATA and t.is_floating_point():
            self.coarsest = max(self.coarsest, torch.finfo(t.dtype).eps)
            if (
                self.n > 1
                and not any(size and size % self.n == 0 for size in t.shape)
                and t.numel()
            ):
                reason = Inside if func is F.cross_entropy else Untaken
                raise reason(f"{_name(func)} makes one number of several examples'")
        if kind is not None and (kind is not WEIGHTS or t.requires_grad):
            self._mark(t, kind)
        return self._numbers(tuple(t.shape))

    def _mark(self, t: Tensor, kind: str) -> None:
        t._torchdp = self._own, kind, len(self.program)  # type: ignore[attr-defined]

    def _kind(self, t: Any) -> str | None:
        mark = getattr(t, "_torchdp", None)
        return mark[1] if mark is not None and mark[0] is self._own else None

    def _numbers(self, value: Any) -> Any:
        """A call's arguments but for the tensors' numbers: whole numbers that n divides are counted
        in n.
        """
        if isinstance(value, Tensor):
            return ("tensor", value._torchdp[2]) if self._kind(value) else "tensor"  # type: ignore[attr-defined]
        if isinstance(value, tuple | list):
            return tuple(self._numbers(each) for each in value)
        if isinstance(value, slice):
            return self._numbers(("slice", value.start, value.stop, value.step))
        if type(value) is int and value and self.n > 1 and value % self.n == 0:
            return "n", value // self.n
        plain = isinstance(value, int | float | str | type(None) | torch.dtype)
        return (type(value), value) if plain else type(value)


def _name(func: Any) -> str:
    return getattr(func, "__name__", str(func))
