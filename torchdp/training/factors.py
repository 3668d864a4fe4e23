"""Per-example gradients in one weight, as rows or as what they are products of: norms that are
proved, and sums.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

AT_ONCE = 2**20  # float64 numbers that are made on the way
FEW = 2**16  # numbers that are cheap to have in float64
# examples whose float32 parts are added up as such: a sum of thousands would round by users' parts
TOGETHER = 32
SMALL = 2**12  # numbers; rows of smaller tables are cheap
# Of an example's terms, added to its norm: what rounds where they cancel is small beside the bound.
MARGIN = 2.0**-26
# bounds that an example's scaled terms may add up to before float32 rounds their sum too far
CANCELS = 2.0**8


@dataclass
class _Parts:
    """Tensors, each with a first dimension that counts examples."""

    def tensors(self) -> dict[str, Tensor]:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor)}

    def zeroed(self, kept: Tensor) -> Self:
        """0 for the examples that are not ``kept``, (n,)."""
        parts = self.tensors()
        for name, x in parts.items():
            parts[name] = x.masked_fill(~kept.view(-1, *[1] * (x.ndim - 1)), 0)
        return replace(self, **parts)

    def pick(self, part: slice) -> Self:
        return replace(self, **{name: x[part] for name, x in self.tensors().items()})

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for x in self.tensors().values())


@dataclass
class Rows(_Parts):
    """(n, size): the gradients themselves."""

    rows: Tensor

    def whole(self) -> Tensor:
        return self.rows

    def norms(self) -> Tensor:
        """(n,), of float64 throughout."""
        return torch.linalg.vector_norm(self.rows, dim=1, dtype=torch.float64)

    def sum(self, scales: Tensor, bound: float) -> Tensor:
        """sum_i scales_i g_i, flat, in float64."""
        rows = self.rows
        if rows.device.type != "cpu":
            return (rows * scales[:, None].to(rows.dtype)).sum(0)
        if rows.numel() <= FEW:
            return scales.double() @ rows.double()
        total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
        for weights, some in zip(
            scales.to(rows.dtype).split(TOGETHER), rows.split(TOGETHER), strict=True
        ):
            total += weights @ some
        return total


@dataclass
class Products(_Parts):
    """sum_t b_t a_t^T for each example, of a: (n, T, p) and b: (n, T, q): a layer's inputs and
    output gradients.
    """

    a: Tensor
    b: Tensor
    _spread: Tensor | None = None  # (n,): the terms' norms, added up

    def __post_init__(self) -> None:
        kind = torch.promote_types(torch.promote_types(self.a.dtype, self.b.dtype), torch.float32)
        self.a, self.b = self.a.to(kind), self.b.to(kind)

    @property
    def rows(self) -> Tensor:
        return self.b

    def whole(self) -> Tensor:
        if self.a.shape[1] == 1:
            return (self.b.mT * self.a).flatten(1)
        return torch.bmm(self.b.mT, self.a).flatten(1)

    def pays(self) -> bool:
        """Whether products are cheaper than rows: T (p + q + T) < p q; shapes of one example alone
        decide it.

        Not for several terms of float64, whose norms would have no more digits than those of the
        terms.
        """
        terms, p, q = self.a.shape[1], self.a.shape[2], self.b.shape[2]
        return terms == 1 or (self.a.dtype != torch.float64 and terms * (p + q + terms) < p * q)

    def norms(self) -> Tensor:
        """At least each example's norm: (n,), float64."""
        # float32's squares are numbers of float64
        lengths = _lengths if self.a.dtype == torch.float64 else _norms
        found = [_product_norms(a, b, lengths) for a, b in _parts(self.a, self.b)]
        self._spread = torch.cat([spread for _, spread in found])
        return torch.cat([norms for norms, _ in found])

    def sum(self, scales: Tensor, bound: float) -> Tensor:
        """sum_i scales_i g_i, flat. Terms that cancel are added up in float64: float32 would round
        by S eps.
        """
        a, b = self.a, self.b * scales[:, None, None].to(self.b.dtype)
        if a.shape[1] == 1 or self._spread is None:
            return _added(a, b)
        if a.device.type != "cpu":
            return _added(a.double(), b.double())
        far = self._spread * scales > CANCELS * bound
        if not far.any():
            return _added(a, b)
        near = _added(a, b.masked_fill(far[:, None, None], 0.0))
        return near + _added(a[far].double(), self.b[far].double() * scales[far, None, None])


@dataclass
class Words(_Parts):
    """Gradients in a table: at the first place of each index (n, T) the sum of all its rows
    (n, T, q), elsewhere 0.
    """

    indices: Tensor
    rows: Tensor
    count: int  # rows of the table

    @classmethod
    def of(cls, indices: Tensor, b: Tensor, count: int) -> "Words":
        """b: (n, T, q), of which an index may have several rows."""
        kind = torch.promote_types(b.dtype, torch.float32)
        merged = [_merged(i, x).to(kind) for i, x in _parts(indices, b)]
        return cls(indices, torch.cat(merged), count)

    def whole(self) -> Tensor:
        n, q = len(self.rows), self.rows.shape[2]
        place = self.indices + self.count * torch.arange(n, device=self.indices.device)[:, None]
        total = self.rows.new_zeros(n * self.count, q).index_add_(
            0, place.flatten(), self.rows.flatten(0, 1)
        )
        return total.reshape(n, -1)

    def norms(self) -> Tensor:
        """Each example's norm: (n,), float64."""
        return torch.cat([_norms(x.flatten(1)) for (x,) in _parts(self.rows)])

    def sum(self, scales: Tensor, bound: float) -> Tensor:
        """sum_i scales_i g_i, flat."""
        total = self.rows.new_zeros(self.count, self.rows.shape[2])
        scaled = self.rows * scales[:, None, None].to(self.rows.dtype)
        return total.index_add_(0, self.indices.flatten(), scaled.flatten(0, 1)).flatten()


Form = Rows | Products | Words


def joined(forms: Sequence[Form]) -> Form:
    """All uses of one weight as one. What becomes of them is a function of shapes alone, the same
    for any n.
    """
    products = [form for form in forms if isinstance(form, Products)]
    words = [form for form in forms if isinstance(form, Words)]
    if len(products) == len(forms):
        one = products[0]
        if len(forms) > 1:
            one = Products(_along([x.a for x in products]), _along([x.b for x in products]))
        return one if one.pays() else Rows(one.whole())
    if len(words) == len(forms) and words[0].count * words[0].rows.shape[2] > SMALL:
        if len(words) == 1:
            return words[0]
        indices = _along([x.indices for x in words])
        return Words.of(indices, _along([x.rows for x in words]), words[0].count)
    wholes = [form.whole() for form in forms]
    return Rows(torch.stack(wholes).sum(0) if len(forms) > 1 else wholes[0])


def _along(terms: Sequence[Tensor]) -> Tensor:
    """(n, T, p) of several uses: (n, all their T, p)."""
    return torch.cat(list(terms), 1)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """sum_it b_it a_it^T, flat, of (n, T, p) and (n, T, q)."""
    return (b.flatten(0, 1).mT @ a.flatten(0, 1)).flatten()


def _parts(*several: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some examples at a time, in float64 but for whole numbers."""
    if sum(x.numel() + len(x) * x.shape[1] ** 2 for x in several) <= AT_ONCE:
        yield tuple(x.double() if x.is_floating_point() else x for x in several)
        return
    step = max(1, AT_ONCE // max(sum(x[0].numel() + x.shape[1] ** 2 for x in several), 1))
    for some in zip(*(x.split(step) for x in several), strict=True):
        yield tuple(x.double() if x.is_floating_point() else x for x in some)


def _product_norms(
    a: Tensor, b: Tensor, lengths: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """At least || sum_t b_t a_t^T ||, of (n, T, p), (n, T, q): terms' products, an error bound,
    MARGIN's part; and S.

    The terms' norms add up to S. Sums of k products in float64 have error k 2^-53 times the sum of
    their sizes, which is S^2 here: where terms cancel, their products tell nothing below
    sqrt(2 k 2^-53) S.
    """
    longest = (lengths(a) * lengths(b)).sum(1)
    terms = a.shape[1]
    if terms == 1:
        return longest, longest
    products = ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp_min(0.0)
    k = a.shape[2] + b.shape[2] + terms * terms + 8
    return (products + k * 2.0**-52 * longest.square()).sqrt() + MARGIN * longest, longest


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def _lengths(x: Tensor) -> Tensor:
    """(n, T, p) -> (n, T), of float64: also of numbers whose squares are none."""
    largest = x.abs().amax(2, keepdim=True)
    return (
        torch.linalg.vector_norm(x / largest.masked_fill(largest == 0, 1.0), dim=2)
        * largest[..., 0]
    )


def _merged(indices: Tensor, b: Tensor) -> Tensor:
    """(n, T), (n, T, q) -> (n, T, q): at an index's first place the sum of all its rows,
    elsewhere 0.
    """
    same = indices[:, :, None] == indices[:, None, :]
    first = ~same.tril(-1).any(2)
    return (same.to(b.dtype) @ b) * first[..., None]
