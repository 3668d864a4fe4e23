"""Means of kernels over tuples of m different users: U-statistics of degree m.

Notation: f is a symmetric kernel, (k,) * m; c are counts of types of n users, h = c/n; (n)_m =
n!/(n - m)!. A sum over tuples of different users is one over permutations pi of m places, of
sign(pi) times the sum over tuples in which the places of each cycle hold one user. With its tied
kernels f_b, of an axis for each cycle of lengths b,

    U = sum_b sign(b) N(b) f_b(c, ..., c)/(n)_m,    N(b) = m!/(prod b_i prod_j (cycles of length
    j)!),

a polynomial P_n of the shares. For m = 3: f(c, c, c) - 3 sum_xy f(x, x, y) c_x c_y + 2 sum_x
f(x, x, x) c_x.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.protocol import Estimate, Tally
from torchdp.queries import LocalOracle, ShareFunction
from torchdp.queries.channel import Bounded, Channel
from torchdp.queries.function import AT_ONCE, FunctionAnalyst, rows_of
from torchdp.symmetric import symmetrised

# Its permutations are 720.
MOST_DEGREE = 6
# Numbers in a kernel, and in one tied over reports: 512 MiB.
LARGEST = 2**26
Blocks = tuple[int, ...]
"""Lengths of the cycles of a permutation, falling."""


@dataclass(frozen=True, eq=False)
class DegreeStatistic(ShareFunction, Brief):
    """The mean of f(x_1, ..., x_m) over tuples of m different users.

    As a function of shares it is the mean over independent users.

    Args:
        kernel: f, (k,) * m, k >= 2, of which the mean over all orders of its arguments counts; m at
            most 6.
        name: what it is called.

    Raises TypeError, ValueError.
    Source: Hoeffding (1948).
    """

    kernel: Tensor
    name: str = "kernel"

    def __post_init__(self) -> None:
        checks.instance("name", self.name, str)
        values = checks.floating("kernel", checks.real("kernel", self.kernel)).detach().double()
        cube = 1 <= values.ndim <= MOST_DEGREE and len(set(values.shape)) == 1
        if not cube or len(values) < 2:
            raise ValueError(
                f"kernel must be of shape (k,) * m, k >= 2, m at most {MOST_DEGREE}, "
                f"not {tuple(values.shape)}"
            )
        checks.fits("kernel", *values.shape, most=LARGEST)
        object.__setattr__(self, "kernel", symmetrised(values, values.ndim))

    @property
    def degree(self) -> int:
        """m."""
        return self.kernel.ndim

    @property
    def fewest(self) -> int:
        return self.degree

    @property
    def types(self) -> int:
        return len(self.kernel)

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value of the kernel."""
        low, high = self.kernel.aminmax()
        return float(low), float(high)

    @property
    def histograms(self) -> Tensor:
        """Flat, Zipf (1/(x + 1)), and Zipf from the other end."""
        zipf = 1 / torch.arange(1, self.types + 1).to(self.kernel)
        rows = torch.stack([torch.ones_like(zipf), zipf, zipf.flip(0)])
        return rows / rows.sum(1, keepdim=True)

    def queries(self, distinct: bool) -> Tensor:
        return torch.eye(self.types).to(self.kernel)

    @property
    def bounded(self) -> Bounded:
        """One user is in a share m/n of all tuples."""
        m = self.degree
        orders = math.factorial(m)
        low, high = self.kernel.aminmax(dim=0)

        def exact(counts: Tensor) -> Tensor:
            rows = counts.reshape(-1, self.types).to(self.kernel)
            n = rows.sum(1, keepdim=True)
            return self.of_users(rows / n, n).view(counts.shape[:-1])

        def terms(n: Tensor) -> Tensor:
            # Each T_l sums kernels tied in m! orders, and is contracted with l rows of k shares.
            rows = n.reshape(-1, 1)
            shares = torch.stack([self.share(axes, rows) for axes in range(1, m + 1)])
            each = (m * (self.types + 2) + 2 * orders + 32) * orders
            return each * shares.sum(0).view(n.shape)

        return Bounded(
            exact=exact,
            moved=m * (high - low).max(),
            size=self.kernel.abs().max(),
            terms=terms,
            limits=self.limits,
        )

    def analyst(self, channel: Channel) -> "DegreeAnalyst":
        return DegreeAnalyst(self, channel)

    def __call__(self, h: Tensor) -> Tensor:
        """f(h, ..., h): the mean over m independent users, what :meth:`bound` is about."""
        value = self.kernel
        for _ in range(self.degree):
            value = value @ h
        return value

    @cached_property
    def parts(self) -> list[Tensor]:
        """T_l, (k,) * l, symmetric, for l = 1, ..., m: P_n(h) = sum_l n^l T_l(h, ..., h)/(n)_m."""
        orders = range(1, self.degree + 1)
        sums = [self.kernel.new_zeros((self.types,) * order) for order in orders]
        for blocks, weight in cycles(self.degree):
            sums[len(blocks) - 1] += weight * tied(self.kernel, blocks)
        return [symmetrised(total, total.ndim) for total in sums]

    def of_users(self, h: Tensor, n: Tensor) -> Tensor:
        return self.derivative(0, h, n)

    def derivatives(self, h: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return self.derivative(1, h, n), self.derivative(2, h, n)

    def derivative(self, order: int, h: Tensor, n: Tensor) -> Tensor:
        """Of P_n, (b, k, ..., k): sum_l l!/(l - order)! n^l T_l(h, ..., h, ., ..., .)/(n)_m."""
        total = h.new_zeros(len(h), *[self.types] * order)
        # A form in fewer vectors than the order has the derivative 0.
        for part in self.parts[max(0, order - 1) :]:
            axes = part.ndim
            factor = math.perm(axes, order) * self.share(axes, n)
            value = contracted(part, [h] * (axes - order))
            total = total + factor.view(-1, *[1] * order) * value
        return total

    def share(self, axes: int, n: Tensor) -> Tensor:
        """n^l/(n)_m, (b,), for (b, 1) users."""
        tuples = torch.ones_like(n)
        for used in range(self.degree):
            tuples = tuples * (n - used)
        return (n**axes / tuples)[:, 0]


@dataclass(frozen=True, eq=False)
class DegreeAnalyst(FunctionAnalyst):
    """The statistic through a channel of the shares of its types, its error to second order.

    Reports whose messages can be listed: the U-statistic of the reports under the kernel
    f(V_y, ..., V_y'), V_y the decoded vector of output y: E V = e_x, and reports of different users
    are independent, so no degree has a bias.
    Others: with H the shares that the channel tells and C(h), K(h) the covariance and third
    cumulant of H, affine in h,

        P(H) - tr(D C(H))/2 + sum_xy R(C_x, e_y) C(H)_xy/2 - R(K(H))/6,

    D(h) and R the second and third derivatives of P_n, C_x what C gains by h_x: exactly without
    bias for m <= 3, and to second order above: the bias is of order n^-2 from local noise, n^-3 and
    n^-4 from a shuffler's and a curator's.

    ``predicted_mse`` is d^T C d + tr(D C D C)/2 + <R, R(C, C, C)>/6, d the slope of P_n: exactly
    for normal noise and m <= 3. What the cumulants of other noise add is a fraction of order 1/n;
    standard errors and intervals are of the first two terms. ``worst_mse`` is not known.

    Args:
        function: the statistic.
        channel: of the shares of its types, at most 256.

    Raises TypeError, ValueError.
    Source: Hoeffding (1948), section 5; inclusion and exclusion over partitions, Rota (1964).
    """

    function: DegreeStatistic

    def analyse(self, tally: Tally) -> Estimate:
        """Of m users at least. Raises TypeError, ValueError."""
        return super().analyse(self.channel.check(tally, self.function.degree))

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        h, n = super()._shares(summary)
        least = self.function.degree
        # Predictions are for real numbers of users, which add up to m only up to rounding.
        missing = n[..., 0] < least * (1 - 1e-9)
        if missing.any():
            raise ValueError(f"summary must add up to at least {least} users{checks.at(missing)}")
        return h, n

    @cached_property
    def reported(self) -> list[tuple[Blocks, Tensor]] | None:
        """Kernels tied over outputs of reports, an axis of types for each cycle of length 1.

        None where the messages can not be listed.
        """
        channel = self.channel
        if not isinstance(channel, LocalOracle) or channel.client.entry_variance is not None:
            return None
        if channel.client.outputs * self.function.types ** (self.function.degree - 1) > LARGEST:
            return None
        V = channel.decoded_messages + channel.workload.mean(1)
        kernel = self.function.kernel.to(V)
        reported = []
        for blocks, weight in cycles(kernel.ndim):
            reported.append((blocks, weight * tied(kernel, blocks, V)))
        return reported

    def predicted_mse(self, summary: Tensor) -> Tensor:
        h, n = self._shares(summary)
        k = self.function.types
        R = self.function.derivative(3, h.reshape(-1, k), rows_of(n, h))
        C = self._covariance((h * n).reshape(-1, k))
        turned = R  # R(C, C, C), one axis after the other
        for _ in range(3):
            turned = torch.einsum("nabc,ncd->ndab", turned, C)
        third = (R * turned).sum((-3, -2, -1)) / 6
        return super().predicted_mse(summary) + third.view(h.shape[:-1])

    def _corrected(self, tally: Tally, h: Tensor, to_second_order: Tensor) -> Tensor:
        rows = h.reshape(-1, self.function.types)
        users = rows_of(tally.users(1), h)
        # As many rows at once as the memory of their largest contraction holds.
        size = max(1, AT_ONCE // self.function.types ** max(2, self.function.degree - 1))
        if self.reported is None:
            parts = zip(rows.split(size), users.split(size), strict=True)
            values = [self._by_moments(*part) for part in parts]
        else:
            shares = tally["reports"].double() / tally.users(1)
            reports = shares.reshape(-1, shares.shape[-1])
            triples = zip(rows.split(size), users.split(size), reports.split(size), strict=True)
            values = [self._by_reports(self.reported, *part) for part in triples]
        return torch.cat(values).view(h.shape[:-1])

    def _by_reports(
        self, kernels: list[tuple[Blocks, Tensor]], h: Tensor, n: Tensor, reports: Tensor
    ) -> Tensor:
        value = torch.zeros_like(h[:, 0])
        for blocks, kernel in kernels:
            vectors = [h if length == 1 else reports for length in blocks]
            value = value + self.function.share(len(blocks), n) * contracted(kernel, vectors)
        return value

    def _by_moments(self, h: Tensor, n: Tensor) -> Tensor:
        C = self._covariance(h * n)
        bend = self.function.derivative(2, h, n)
        # E e^T D e/2 is tr(D C)/2 where the error e has covariance C.
        value = self.function.of_users(h, n) - (bend * C).sum((-2, -1)) / 2
        if self.function.degree != 3:
            return value
        T, mixed = self._cubic
        third = self.channel.third(h * n, T)
        if third is None:
            return value
        # R = 6 (n^3/(n)_3) T, and C_x is that of one user, over n.
        users = n[:, 0]
        moved = 3 * (mixed * C).sum((-2, -1)) / users
        return value + self.function.share(3, n) * (moved - third / users**3)

    @cached_property
    def _cubic(self) -> tuple[Tensor, Tensor]:
        """T_3, of sum 0 along each axis, and T_3(C_x, e_y) for one user of each type x: (k, k)."""
        k = self.function.types
        # Shares add up to a known number: what is constant along an axis has no noise.
        T = self.function.parts[-1].to(self.channel.workload)
        for axis in range(3):
            T = T - T.mean(axis, keepdim=True)
        per_user = self._covariance(torch.eye(k).to(T))
        return T, torch.einsum("xab,aby->xy", per_user, T)


def statistic_of_degree(
    kernel: Tensor | Callable[..., Tensor],
    m: int,
    *,
    types: int | None = None,
    name: str = "kernel",
) -> DegreeStatistic:
    """The mean of f(x_1, ..., x_m) over tuples of m different users.

    Args:
        kernel: f, (k,) * m, of which the mean over all orders of its arguments counts; or a
            function of m tensors of type indices, which broadcast against each other, to its
            values.
        m: 1 to 6.
        types: k, of a function; at most 2^26 values.
        name: what the statistic is called.

    Raises TypeError, ValueError.
    Guarantees: through a ``LocalOracle`` its estimate has no bias, whatever the users' types: of
    any m where the
        oracle's messages can be listed (at most 2^26 outputs times k^(m - 1)), of m <= 3 where they
        are sets of bits.
    Source: Hoeffding (1948), section 5.
    """
    m = checks.integer("m", m, 1, MOST_DEGREE)
    if types is not None:
        types = checks.integer("types", types, 2)
    if not isinstance(kernel, Tensor):
        checks.function("kernel", kernel)
        if types is None:
            raise ValueError("types must be given where kernel is a function")
        checks.fits("kernel", *[types] * m, most=LARGEST)
        indices = torch.meshgrid(*[torch.arange(types)] * m, indexing="ij")
        kernel = checks.instance("what kernel returns", kernel(*indices), Tensor)
    statistic = DegreeStatistic(kernel, name)
    if statistic.degree != m or types not in (None, statistic.types):
        raise ValueError(
            f"kernel must be of shape ({types or 'k'},) * {m}, not {tuple(kernel.shape)}"
        )
    return statistic


def third_central_moment(k: int, *, spacing: float = 1.0) -> DegreeStatistic:
    """Fisher's k-statistic k_3: n/((n - 1)(n - 2)) sum (x - mean)^3.

    Of numbers 0, spacing, ..., (k - 1) spacing. f(x, y, z) = (2x - y - z)(2y - z - x)(2z - x - y)/6
    is (3x - s)(3y - s)(3z - s)/6 with s = x + y + z, of which independent numbers of mean 0 leave
    E x^3 on average. Its root error is in units of spacing^3. Raises TypeError, ValueError.
    Source: Fisher (1930); Hoeffding (1948), section 5, for U-statistics.
    """
    k = checks.integer("k", k, 2)
    spacing = checks.squarable("spacing", spacing, 6)

    def kernel(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        # Whole numbers: exact.
        product = (2 * x - y - z) * (2 * y - z - x) * (2 * z - x - y)
        return product.double() * (spacing**3 / 6)

    return statistic_of_degree(kernel, 3, types=k, name="third central moment")


def triplet_comparisons(distances: Tensor, other: Tensor | None = None) -> DegreeStatistic:
    """The share of triples (i, j, l) of different users with d(x_i, x_j) < d(x_i, x_l).

    Where other is given, with the same order of these distances too.

    Of one matrix this tells of ties alone: i, j, l and i, l, j are two triples, so it is half of
    the share of those untied. Of two it is half of the share of triples on which both agree who is
    nearer.

    Args:
        distances: d, (k, k), such as ||a_x - a_y||; need not be symmetric.
        other: likewise.

    Raises TypeError, ValueError.
    Source: Agarwal, Wills, Cayton, Lanckriet, Kriegman, Belongie (2007), for comparisons of this
    form.
    """
    d = checks.one_matrix("distances", distances)
    # f(i, j, l); ``DegreeStatistic`` takes its mean over the orders of a triple.
    nearer = d[:, :, None] < d[:, None, :]
    if other is not None:
        e = checks.one_matrix("other", other).to(d)
        if e.shape != d.shape:
            raise ValueError(
                f"other must be of shape {tuple(d.shape)}, as distances is, not {tuple(e.shape)}"
            )
        nearer &= e[:, :, None] < e[:, None, :]
    return DegreeStatistic(nearer.double(), "triplet comparisons")


@dataclass(frozen=True)
class VolumeUnderSurface(ShareFunction):
    """P(X < Y < Z) of scores of classes 0, 1, 2, one user of each.

    It is a mean over triples over the product of shares. Type (class, score) has index class * k +
    score. Of equal scores, as if ties were broken at random: X = Y < Z and X < Y = Z count 1/2, X =
    Y = Z counts 1/6. Summed over Y = b it is sum_b q_b (P(X < b) + p_b/2)(P(Z > b) + r_b/2) less
    (1/4 - 1/6) sum_b p_b q_b r_b, for the scores' shares p, q, r in the classes. Users of three
    classes are different ones, so no tuple is left out; the ratio's bias is corrected to second
    order.

    k: scores, 2 at least. Raises TypeError, ValueError.
    Source: Nakas, Yiannoutsos (2004), their I(X, Y, Z); Scurfield (1996).
    """

    k: int

    def __post_init__(self) -> None:
        checks.integer("k", self.k, 2)

    @property
    def types(self) -> int:
        return 3 * self.k

    @property
    def limits(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def histograms(self) -> Tensor:
        """Classes of a third each: all scores flat, and scores that fall, stay flat and rise."""
        up = torch.arange(1, self.k + 1, dtype=torch.float64)
        flat = torch.ones_like(up)
        classes = torch.stack([flat, flat, flat, up.flip(0), flat, up])
        return (classes / classes.sum(-1, keepdim=True) / 3).view(2, -1)

    def __call__(self, h: Tensor) -> Tensor:
        classes = h.view(3, self.k)
        low, middle, high = classes / classes.sum(1, keepdim=True)
        # Half of the own score: of two equal scores each order counts one half.
        below = low.cumsum(0) - low / 2
        above = high.sum() - high.cumsum(0) + high / 2
        # Three equal scores count 1/6, and not the 1/4 of two halves: 1/12 comes off.
        return (middle * below * above).sum() - (low * middle * high).sum() / 12


def volume_under_surface(k: int) -> VolumeUnderSurface:
    """:class:`VolumeUnderSurface` of k ordered scores: 1/6 where they do not separate the classes.

    Raises TypeError, ValueError.
    """
    return VolumeUnderSurface(k)


def cycles(m: int) -> Iterator[tuple[Blocks, int]]:
    """Lengths of the cycles of permutations of m places, with sign times how many there are."""
    for blocks in _partitions(m, m):
        same = math.prod(math.factorial(times) for times in Counter(blocks).values())
        number = math.factorial(m) // (math.prod(blocks) * same)
        # A cycle of b places has the sign (-1)^(b - 1), and their b - 1 add up to m - len(blocks).
        yield blocks, (-1) ** (m - len(blocks)) * number


def _partitions(m: int, most: int) -> Iterator[Blocks]:
    if m == 0:
        yield ()
    # Falling lengths, so that each partition comes once.
    for first in range(min(m, most), 0, -1):
        for rest in _partitions(m - first, first):
            yield (first, *rest)


def tied(kernel: Tensor, blocks: Blocks, vectors: Tensor | None = None) -> Tensor:
    """f with the places of each block at one type; an axis for each block.

    vectors: V, (outputs, k): the blocks of two places and more at V_y of one output y instead.
    """
    axes = list(range(len(blocks)))
    places: list[int] = []
    operands: list[Any] = []
    for axis, length in enumerate(blocks):
        if vectors is None or length == 1:
            places += [axis] * length
            continue
        # Each place is contracted with V_y; all of the block share the axis of y.
        for _ in range(length):
            place = len(blocks) + len(places)
            places.append(place)
            operands += [vectors, [axis, place]]
    return torch.einsum(kernel, places, *operands, axes)


def contracted(T: Tensor, vectors: list[Tensor]) -> Tensor:
    """T(..., v, w), its last axes with rows (b, size) each: (b, *the other axes)."""
    value = T[None]
    for rows in reversed(vectors):
        others = value.shape[1:-1]
        matrices = value.flatten(1, -2) if others else value[:, None]
        if len(matrices) == 1:  # the same for all rows: one product of matrices
            value = rows @ matrices[0].mT
        else:
            value = matrices @ rows[:, :, None]
        value = value.reshape(len(rows), *others)
    return value
