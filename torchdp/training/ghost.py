"""Per-example gradients as what they are products of: norms and weighted sums without the gradients themselves."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SMALL = 2**12  # numbers; whole gradients of smaller weights are cheap
AT_ONCE = 2**20  # float64 numbers that are made on the way
MARGIN = (
    2.0**-26
)  # of an example's terms, added to its norm: what rounds where they cancel is small beside the bound


@dataclass(frozen=True)
class Linear:
    """A call of F.linear: row t of an example's input and of its output's gradient make one term a_t b_t^T."""

    inputs: torch.Size

    @classmethod
    def of(cls, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> "Linear":
        return cls(input.shape)

    def factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """(n, *inputs), (n, *outputs) -> (n, T, p), (n, T, q)."""
        a, b = (x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1]) for x in (a, b))
        return a, b


@dataclass(frozen=True)
class Convolution:
    """A call of F.conv1d or F.conv2d without groups: a linear map of each window."""

    inputs: torch.Size
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> "Convolution | None":
        if groups != 1 or isinstance(padding, str):
            return None
        dims = weight.ndim - 2
        several = [
            (value,) * dims if isinstance(value, int) else tuple(value) for value in (stride, padding, dilation)
        ]
        return cls(input.shape, tuple(weight.shape[2:]), *(one * (dims // len(one)) for one in several))

    def factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """(n, *inputs), (n, *outputs) -> (n, windows, p), (n, windows, q)."""
        n, dims, line = len(a), len(self.kernel), len(self.kernel) == 1
        a = a.reshape(-1, *a.shape[-dims - 1 :])
        shape = (1, *self.kernel) if line else self.kernel
        dilation, stride = ((1, *x) if line else x for x in (self.dilation, self.stride))
        padding = (0, *self.padding) if line else self.padding
        a = F.unfold(a[:, :, None] if line else a, shape, dilation, padding, stride).mT
        b = b.reshape(-1, b.shape[-dims - 1], math.prod(b.shape[-dims:])).mT
        return a.reshape(n, -1, a.shape[-1]), b.reshape(n, -1, b.shape[-1])


@dataclass(frozen=True)
class Embedding:
    """A call of F.embedding: its terms are rows of the table."""

    inputs: torch.Size
    padding: int | None

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> "Embedding | None":
        plain = max_norm is None and not scale_grad_by_freq and not sparse
        return cls(input.shape, None if padding_idx is None else padding_idx % len(weight)) if plain else None

    def factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """(n, *inputs), (n, *inputs, q) -> (n, T), (n, T, q); rows of the padding are 0."""
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1, b.shape[-1])
        return a, b if self.padding is None else b.masked_fill((a == self.padding)[..., None], 0.0)


Use = Linear | Convolution | Embedding
KINDS: dict[Callable[..., Any], type[Linear] | type[Convolution] | type[Embedding]] = {
    F.linear: Linear,
    F.conv1d: Convolution,
    F.conv2d: Convolution,
    F.embedding: Embedding,
}


DIFFERENTIATE = (torch.autograd.grad, torch._VF._make_dual)


class Differs(BaseException):
    """The module uses a weight in another way than by its output, or than it did; no module's ``except`` is meant."""


def eager() -> AbstractContextManager[object]:
    """Compiled parts of a module run as they are: what is compiled does not see its functions called."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class Taps(TorchFunctionMode):
    """Calls of ``KINDS`` on these weights: the weight is a constant, a tap is added to the output, the input is kept.

    The gradient in the tap is that in the output, and the input is the other factor of the gradient in the weight. Taps
    are made for None; where they are given, any other use of a weight by torch's functions raises :class:`Differs`. In
    both cases so do ``torch.autograd.grad`` and forward_ad, which would not see the weight. level: of the transforms
    around the module; a call under further ones, inside of it, is another use.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], level: int, taps: Mapping[str, list[Tensor]] | None = None
    ) -> None:
        super().__init__()
        self.weights, self.level, self.given = weights, level, taps
        self._names = {id(weight): name for name, weight in weights.items()}
        self.uses: dict[str, list[Use]] = {name: [] for name in weights}
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in weights}
        self.taps: dict[str, list[Tensor]] = {name: [] for name in weights}
        self._held: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in weights}  # and their versions

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in DIFFERENTIATE:
            raise Differs
        named = dict(zip(("input", "weight"), args, strict=False)) | (kwargs or {})
        name, kind, x = self._names.get(id(named.get("weight"))), KINDS.get(func), named.get("input")
        inside = (torch._C._functorch.maybe_current_level() or 0) > self.level
        if name is None or kind is None or x is None or inside:
            return self._elsewhere(func, args, kwargs or {})
        rest = {each: value for each, value in named.items() if each not in ("input", "weight")}
        use = kind.of(x, named["weight"], *args[2:], **rest)
        if use is None:
            return self._elsewhere(func, args, kwargs or {})
        out = func(x, self.weights[name].detach(), *args[2:], **rest)
        self.uses[name].append(use)
        self.inputs[name].append(x.detach())
        held = _plain(x)
        self._held[name].append((held, _version(held)))
        return out + self._tap(name, out)

    def _elsewhere(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if self.given is not None:
            parts = out if isinstance(out, tuple | list) else [out]
            given = any(id(x) in self._names for x in _leaves((args, kwargs)))
            if given and any(isinstance(part, Tensor) for part in parts):
                raise Differs
        return out

    def changed(self, name: str) -> bool:
        """Whether an input is not what it was in the call."""
        return any(_version(x) != version for x, version in self._held[name])

    def _tap(self, name: str, out: Tensor) -> Tensor:
        if self.given is None:
            self.taps[name].append(torch.zeros(out.shape, dtype=out.dtype, device=out.device, requires_grad=True))
            return self.taps[name][-1]
        count = len(self.uses[name])
        if count > len(self.given[name]) or self.given[name][count - 1].shape != out.shape:
            raise Differs
        return self.given[name][count - 1]


def _leaves(value: Any) -> Iterator[object]:
    """What lists, tuples and dicts hold, to any depth."""
    if not isinstance(value, list | tuple | dict):
        yield value
        return
    for each in value.values() if isinstance(value, dict) else value:
        yield from _leaves(each)


def _plain(x: Tensor) -> Tensor:
    """What transforms have wrapped: it counts all changes in place."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


@dataclass(frozen=True)
class Found:
    """How a weight is used in one example: always by calls of one kind, with taps of the outputs' shapes."""

    uses: list[Use]
    taps: list[Tensor]


def find(forward: Callable[[dict[str, Tensor]], Tensor], weights: Mapping[str, Tensor]) -> dict[str, Found]:
    """The weights whose factors are smaller than their gradient. forward: an example's loss, under vmap.

    A weight of p q numbers with T terms a_t b_t^T, p and q numbers each: T (p + q + T) < p q; a table of V rows of q
    numbers where T are looked up: T (2 q + T) < V q. A weight that is used in any other way as well is none of them,
    under transforms inside of the module too, nor is one whose input is written over, nor one of float64 with several
    terms, whose sum would have no more digits than its terms; nor is any where the module itself calls
    ``torch.autograd.grad`` or forward_ad. The example does not decide it: under vmap Python does not see its numbers.
    """
    weights = {name: p.detach().requires_grad_() for name, p in weights.items()}
    try:
        with torch.enable_grad(), eager(), Taps(weights, 1) as mode:
            total = forward(dict(weights))
    except Differs:
        return {}
    seen = {name: Found(mode.uses[name], [t.detach() for t in mode.taps[name]]) for name in weights}
    seen = {name: each for name, each in seen.items() if each.uses and _pays(weights[name], each)}
    seen = {name: each for name, each in seen.items() if not mode.changed(name)}
    if not seen or not total.requires_grad:
        return {}
    elsewhere = torch.autograd.grad(total, [weights[name] for name in seen], allow_unused=True)
    return {name: each for (name, each), g in zip(seen.items(), elsewhere, strict=True) if g is None}


def _pays(weight: Tensor, seen: Found) -> bool:
    kinds = {type(use) for use in seen.uses}
    if kinds == {Embedding}:
        q, terms = weight.shape[1], sum(use.inputs.numel() for use in seen.uses)
        return terms * (2 * q + terms) < weight.numel()
    if Embedding in kinds:
        return False
    q, p = weight.shape[0], weight[0].numel()
    terms = sum(tap.numel() for tap in seen.taps) // q
    return terms * (p + q + terms) < p * q and (terms == 1 or weight.dtype != torch.float64)


@dataclass(frozen=True)
class Factors:
    """n examples' gradients in one weight, as products. inputs, outputs' gradients: a (n, ...) tensor for each use."""

    uses: list[Use]
    inputs: list[Tensor]
    outputs: list[Tensor]

    def norms(self) -> Tensor:
        """At least each example's norm: (n,), float64."""
        norm = _row_norms if isinstance(self.uses[0], Embedding) else _product_norms
        return torch.cat([norm(a, b) for _, a, b in self._parts()])

    def add(self, total: Tensor, scales: Tensor) -> None:
        """Adds sum_i scales_i g_i to ``total``, flat and float64; an example whose scale is not > 0 adds nothing."""
        for part, a, b in self._parts():
            factor = scales[part, None, None]
            kept = factor > 0
            if isinstance(self.uses[0], Embedding):
                rows = torch.where(kept, _rows(a, b) * factor, 0.0)
                total.view(-1, b.shape[2]).index_add_(0, a.flatten(), rows.flatten(0, 1))
            else:
                a, b = torch.where(kept, a, 0.0), torch.where(kept, b * factor, 0.0)
                total.view(b.shape[2], a.shape[2]).addmm_(b.flatten(0, 1).mT, a.flatten(0, 1))

    def _parts(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some examples' factors at a time, of all uses together: (n, T, p) or (n, T), and (n, T, q)."""
        n = len(self.outputs[0])
        terms = sum(b[0].numel() for b in self.outputs) + sum(a[0].numel() for a in self.inputs)
        for start in range(0, n, step := max(1, AT_ONCE // max(terms, 1))):
            part = slice(start, start + step)
            whole = [
                use.factors(a[part] if isinstance(use, Embedding) else a[part].double(), b[part].double())
                for use, a, b in zip(self.uses, self.inputs, self.outputs, strict=True)
            ]
            a, b = (torch.cat(side, 1) for side in zip(*whole, strict=True))
            yield part, a, b


def _product_norms(a: Tensor, b: Tensor) -> Tensor:
    """At least || sum_t a_t b_t^T ||, of (n, T, p) and (n, T, q): the terms' products, an error bound, MARGIN's part.

    The terms' norms add up to S. Sums of k products in float64 err by k 2^-53 times the sum of their sizes, which is
    S^2 here: where terms cancel, their products tell nothing below sqrt(2 k 2^-53) S.
    """
    longest = (_lengths(a) * _lengths(b)).sum(1)
    terms = a.shape[1]
    if terms == 1:
        return longest
    products = ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp_min(0.0)
    k = a.shape[2] + b.shape[2] + terms * terms + 8
    return (products + k * 2.0**-52 * longest.square()).sqrt() + MARGIN * longest


def _lengths(x: Tensor) -> Tensor:
    """(n, T, p) -> (n, T): also of numbers whose squares are none."""
    largest = x.abs().amax(2, keepdim=True)
    return torch.linalg.vector_norm(x / largest.masked_fill(largest == 0, 1.0), dim=2) * largest[..., 0]


def _rows(indices: Tensor, b: Tensor) -> Tensor:
    """(n, T), (n, T, q) -> (n, T, q): at an index's first place the sum of all its rows, elsewhere 0."""
    same = indices[:, :, None] == indices[:, None, :]
    first = ~same.tril(-1).any(2)
    return (same.to(b.dtype) @ b) * first[..., None]


def _row_norms(indices: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_rows(indices, b), dim=(1, 2))
