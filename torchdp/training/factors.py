"""Per-example gradients in one weight, as rows or as factors: norms that are proved, and sums.

Notation: n examples; of a layer example i's gradient is sum_t b_t a_t^T over its T terms, a_t a row
of the layer's inputs, (p,), b_t the gradient in its output, (q,). S is the sum of the terms' norms.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

# float64 numbers that are made on the way.
AT_ONCE = 2**20

# Numbers that are cheap to have in float64.
FEW = 2**16

# Examples whose float32 parts are added up as such: a sum of thousands would round by users' parts.
TOGETHER = 32

# Numbers of a table: rows of smaller ones are cheap.
SMALL = 2**12

# Of S, added to an example's norm: what rounds where terms cancel is small beside the bound.
MARGIN = 2.0**-26

# Bounds that S, scaled, may add up to before float32 rounds the terms' sum too far.
CANCELS = 2.0**8


@dataclass
class _Parts:
    """Tensors, each with a first dimension that counts examples."""

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in values.items() if isinstance(x, Tensor)}

    def zeroed(self, kept: Tensor) -> Self:
        """0 for the examples that are not ``kept``, (n,)."""
        zeroed = {}
        for name, x in self.tensors().items():
            others = ~kept.view(-1, *[1] * (x.ndim - 1))
            zeroed[name] = x.masked_fill(others, 0)
        return replace(self, **zeroed)

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
        weights = scales.to(rows.dtype)
        for start in range(0, len(rows), TOGETHER):
            part = slice(start, start + TOGETHER)
            total += weights[part] @ rows[part]
        return total


@dataclass
class Products(_Parts):
    """sum_t b_t a_t^T for each example, of a: (n, T, p) and b: (n, T, q)."""

    a: Tensor
    b: Tensor
    _spread: Tensor | None = None  # S, (n,), once norms were made

    def __post_init__(self) -> None:
        dtype = torch.promote_types(self.a.dtype, self.b.dtype)
        dtype = torch.promote_types(dtype, torch.float32)
        self.a = self.a.to(dtype)
        self.b = self.b.to(dtype)

    @property
    def rows(self) -> Tensor:
        return self.b

    def whole(self) -> Tensor:
        if self.a.shape[1] == 1:
            return (self.b.mT * self.a).flatten(1)
        return torch.bmm(self.b.mT, self.a).flatten(1)

    def pays(self) -> bool:
        """Whether products are cheaper than rows: T (p + q + T) < p q.

        Shapes of one example alone decide it. Not for several terms of float64, whose norms would
        have no more digits than those of the terms.
        """
        _, terms, p = self.a.shape
        q = self.b.shape[2]
        return terms == 1 or (self.a.dtype != torch.float64 and terms * (p + q + terms) < p * q)

    def norms(self) -> Tensor:
        """At least each example's norm: (n,), float64."""
        # Squares of float32's numbers are numbers of float64.
        lengths = _lengths if self.a.dtype == torch.float64 else _norms
        pairs = [_product_norms(a, b, lengths) for a, b in _parts(self.a, self.b)]
        norms, spreads = zip(*pairs, strict=True)
        self._spread = torch.cat(spreads)
        return torch.cat(norms)

    def sum(self, scales: Tensor, bound: float) -> Tensor:
        """sum_i scales_i g_i, flat.

        Terms that cancel are added up in float64: float32 would round by S eps.
        """
        scaled = self.b * scales[:, None, None].to(self.b.dtype)
        if self.a.shape[1] == 1 or self._spread is None:
            return _added(self.a, scaled)
        if self.a.device.type != "cpu":
            return _added(self.a.double(), scaled.double())
        far = self._spread * scales > CANCELS * bound
        if not far.any():
            return _added(self.a, scaled)
        near = _added(self.a, scaled.masked_fill(far[:, None, None], 0.0))
        scaled_far = self.b[far].double() * scales[far, None, None]
        return near + _added(self.a[far].double(), scaled_far)


@dataclass
class Words(_Parts):
    """Gradients in a table of q numbers a row, by the indices that an example has, (n, T).

    rows, (n, T, q): at the first place of each index the sum of all its rows, elsewhere 0.
    """

    indices: Tensor
    rows: Tensor
    count: int  # rows of the table

    @classmethod
    def of(cls, indices: Tensor, b: Tensor, count: int) -> "Words":
        """b: (n, T, q), of which an index may have several rows."""
        dtype = torch.promote_types(b.dtype, torch.float32)
        merged = [_merged(i, x).to(dtype) for i, x in _parts(indices, b)]
        return cls(indices, torch.cat(merged), count)

    def whole(self) -> Tensor:
        n, _, q = self.rows.shape
        tables = self.count * torch.arange(n, device=self.indices.device)
        places = self.indices + tables[:, None]
        total = self.rows.new_zeros(n * self.count, q)
        total.index_add_(0, places.flatten(), self.rows.flatten(0, 1))
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
    """All uses of one weight as one.

    What becomes of them is a function of shapes alone, the same for any n.
    """
    products = [form for form in forms if isinstance(form, Products)]
    if len(products) == len(forms):
        product = products[0]
        if len(forms) > 1:
            product = Products(_along([x.a for x in products]), _along([x.b for x in products]))
        return product if product.pays() else Rows(product.whole())
    words = [form for form in forms if isinstance(form, Words)]
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
    # An example's numbers, and those of its terms' products with one another.
    numbers = sum(x.shape[1:].numel() + x.shape[1] ** 2 for x in several)
    step = max(1, AT_ONCE // max(numbers, 1))
    for part in zip(*(x.split(step) for x in several), strict=True):
        yield tuple(x.double() if x.is_floating_point() else x for x in part)


def _product_norms(
    a: Tensor, b: Tensor, lengths: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """At least || sum_t b_t a_t^T ||, of (n, T, p) and (n, T, q); and S.

    The first is made of the terms' products, an error bound, and MARGIN's part. Sums of k products
    in float64 have error k 2^-53 times the sum of their sizes, which is S^2 here: where terms
    cancel, their products tell nothing below sqrt(2 k 2^-53) S.
    """
    S = (lengths(a) * lengths(b)).sum(1)
    terms = a.shape[1]
    if terms == 1:
        return S, S
    # || sum_t b_t a_t^T ||^2 = sum_tu <a_t, a_u> <b_t, b_u>
    squares = ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp_min(0.0)
    k = a.shape[2] + b.shape[2] + terms * terms + 8
    return (squares + k * 2.0**-52 * S.square()).sqrt() + MARGIN * S, S


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def _lengths(x: Tensor) -> Tensor:
    """(n, T, p) -> (n, T), of float64: also of numbers whose squares are none."""
    largest = x.abs().amax(2, keepdim=True)
    unit = x / largest.masked_fill(largest == 0, 1.0)
    return torch.linalg.vector_norm(unit, dim=2) * largest[..., 0]


def _merged(indices: Tensor, b: Tensor) -> Tensor:
    """(n, T), (n, T, q) -> (n, T, q), as :class:`Words` holds them."""
    same = indices[:, :, None] == indices[:, None, :]
    first = ~same.tril(-1).any(2)
    return (same.to(b.dtype) @ b) * first[..., None]
