"""Per-example gradients in one weight, as rows or as what they are products of: norms that are proved, and sums."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Rows:
    """(n, size): the gradients themselves."""

    rows: Tensor

    def zeroed(self, kept: Tensor) -> "Rows":
        return Rows(torch.where(kept[:, None], self.rows, 0.0))

    def whole(self) -> Tensor:
        return self.rows

    def pick(self, part: slice) -> "Rows":
        return Rows(self.rows[part])

    @property
    def bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

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
class Products:
    """sum_t b_t a_t^T for each example, of a: (n, T, p) and b: (n, T, q): a layer's inputs and output gradients."""

    a: Tensor
    b: Tensor
    _spread: Tensor | None = None  # (n,): the terms' norms, added up

    def __post_init__(self) -> None:
        kind = torch.promote_types(torch.promote_types(self.a.dtype, self.b.dtype), torch.float32)
        self.a, self.b = self.a.to(kind), self.b.to(kind)

    @property
    def rows(self) -> Tensor:
        return self.b

    def zeroed(self, kept: Tensor) -> "Products":
        a, b = (torch.where(kept[:, None, None], x, 0.0) for x in (self.a, self.b))
        return Products(a, b, self._spread)

    def whole(self) -> Tensor:
        if self.a.shape[1] == 1:
            return (self.b.mT * self.a).flatten(1)
        return torch.bmm(self.b.mT, self.a).flatten(1)

    def pick(self, part: slice) -> "Products":
        return Products(self.a[part], self.b[part])

    @property
    def bytes(self) -> int:
        return (self.a.numel() + self.b.numel()) * self.a.element_size()

    def pays(self) -> bool:
        """Whether products are cheaper than rows: T (p + q + T) < p q; shapes of one example alone decide it.

        Not for several terms of float64, whose norms would have no more digits than those of the terms.
        """
        terms, p, q = self.a.shape[1], self.a.shape[2], self.b.shape[2]
        return terms == 1 or (self.a.dtype != torch.float64 and terms * (p + q + terms) < p * q)

    def norms(self) -> Tensor:
        """At least each example's norm: (n,), float64."""
        # float32's squares are numbers of float64
        lengths = _lengths if self.a.dtype == torch.float64 else _norms
        found, spread = zip(
            *(_product_norms(a, b, lengths) for a, b in _parts(self.a, self.b)), strict=True
        )
        self._spread = torch.cat(spread) if len(spread) > 1 else spread[0]
        return torch.cat(found) if len(found) > 1 else found[0]

    def sum(self, scales: Tensor, bound: float) -> Tensor:
        """sum_i scales_i g_i, flat. Terms that cancel are added up in float64: float32 would round by S eps."""
        a, b = self.a, self.b * scales[:, None, None].to(self.b.dtype)
        if a.shape[1] == 1 or self._spread is None:
            return (b.flatten(0, 1).mT @ a.flatten(0, 1)).flatten()
        if a.device.type != "cpu":
            return (b.double().flatten(0, 1).mT @ a.double().flatten(0, 1)).flatten()
        far = self._spread * scales > CANCELS * bound
        if not far.any():
            return (b.flatten(0, 1).mT @ a.flatten(0, 1)).flatten()
        left, right = self.b[far].double() * scales[far, None, None], a[far].double()
        near = torch.where(far[:, None, None], 0.0, b).flatten(0, 1).mT @ a.flatten(0, 1)
        return (near + left.flatten(0, 1).mT @ right.flatten(0, 1)).flatten()


@dataclass(frozen=True)
class Words:
    """Gradients in a table: at the first place of each index (n, T) the sum of all its rows (n, T, q), elsewhere 0."""

    indices: Tensor
    rows: Tensor
    count: int  # rows of the table

    @classmethod
    def of(cls, indices: Tensor, b: Tensor, count: int) -> "Words":
        """b: (n, T, q), of which an index may have several rows."""
        kind = torch.promote_types(b.dtype, torch.float32)
        merged = [_merged(i, x).to(kind) for i, x in _parts(indices, b)]
        return cls(indices, torch.cat(merged), count)

    def zeroed(self, kept: Tensor) -> "Words":
        return Words(self.indices, torch.where(kept[:, None, None], self.rows, 0.0), self.count)

    def whole(self) -> Tensor:
        n, q = len(self.rows), self.rows.shape[2]
        place = self.indices + self.count * torch.arange(n, device=self.indices.device)[:, None]
        total = self.rows.new_zeros(n * self.count, q).index_add_(
            0, place.flatten(), self.rows.flatten(0, 1)
        )
        return total.reshape(n, -1)

    def pick(self, part: slice) -> "Words":
        return Words(self.indices[part], self.rows[part], self.count)

    @property
    def bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

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
    """All uses of one weight as one. What becomes of them is a function of shapes alone, the same for any n."""
    products = [form for form in forms if isinstance(form, Products)]
    words = [form for form in forms if isinstance(form, Words)]
    if len(products) == len(forms):
        one = products[0]
        if len(forms) > 1:
            one = Products(
                torch.cat([x.a for x in products], 1), torch.cat([x.b for x in products], 1)
            )
        return one if one.pays() else Rows(one.whole())
    if len(words) == len(forms) and words[0].count * words[0].rows.shape[2] > SMALL:
        if len(words) == 1:
            return words[0]
        indices, rows = (
            torch.cat([x.indices for x in words], 1),
            torch.cat([x.rows for x in words], 1),
        )
        return Words.of(indices, rows, words[0].count)
    return Rows(
        torch.stack([form.whole() for form in forms]).sum(0) if len(forms) > 1 else forms[0].whole()
    )


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
    """At least || sum_t b_t a_t^T ||, of (n, T, p), (n, T, q): terms' products, an error bound, MARGIN's part; and S.

    The terms' norms add up to S. Sums of k products in float64 have error k 2^-53 times the sum of their sizes, which
    is S^2 here: where terms cancel, their products tell nothing below sqrt(2 k 2^-53) S.
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
    """(n, T), (n, T, q) -> (n, T, q): at an index's first place the sum of all its rows, elsewhere 0."""
    same = indices[:, :, None] == indices[:, None, :]
    first = ~same.tril(-1).any(2)
    return (same.to(b.dtype) @ b) * first[..., None]
