"""Strategies with a few numbers of memory: C = D1 T D2, T of geometric parts, D1, D2 diagonal.

T^{-1} is as T with poles and zeros exchanged (``series``): noise C^{-1} z is made step by step from
``buffers`` running numbers. D2 makes all columns of C one long, or what users move in all their
steps together.

With noise that is drawn again, for users who take part in every pass through the batches, in one
order, C = A^{-1} D1 T D2; A[t, s] differs from 0 only at t = s, where it is 1, and at t - s =
period, 2 period, ...: the noise C^{-1} z = D2^{-1} T^{-1} D1^{-1} A z needs the buffers and the z
of earlier passes, which a keyed generator draws again. So A costs no memory, and what the columns
of one user's steps share can vanish, as it does under the best strategies. Within a class i, i +
period, ... columns differ by their pass alone; sums over the rows in between are recurrences, as
T's are.

Notation, beside that of ``series``: passes of ``period`` steps; age = later pass - earlier pass,
(passes, passes); A, (period, passes, passes), a matrix for each class.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdp import checks
from torchdp.factorization.streams.recurrence import EPS, Recurrence
from torchdp.factorization.streams.series import (
    Filter,
    apart_squares,
    each_with,
    folded,
    late,
    overlaps,
    pairs,
    pass_squares,
    residues,
)
from torchdp.factorization.streams.strategy import Sensitivity, StreamStrategy, signs
from torchdp.threads import on_host

# Steps up to which branch and bound looks for better where buffers' own bound is not attained.
SEARCHED = 1024

# Steps x times of that bound: its time and memory.
MOST_LINKS = 2**26


@dataclass(frozen=True)
class BufferedStrategy(StreamStrategy):
    """C = D1 T D2, as 2 (buffers + steps) numbers.

    Args:
        poles: (buffers,), in (0, 1), falling in turns with zeros: pole_1 > zero_1 > pole_2 > ...
        zeros: (buffers,).
        before: the diagonal of D1, (steps,), positive.
        after: that of D2.

    All float64 on one device. Raises TypeError, ValueError.
    """

    poles: Tensor
    zeros: Tensor
    before: Tensor
    after: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        for name in ("poles", "zeros", "before", "after"):
            value = checks.floating(name, getattr(self, name)).detach().double()
            if value.ndim != 1 or not len(value) or not (value > 0).all():
                raise ValueError(
                    f"{name} must be positive, of one dimension, not of shape {tuple(value.shape)}"
                )
            object.__setattr__(self, name, value)
        if self.poles.shape != self.zeros.shape or self.before.shape != self.after.shape:
            raise ValueError(
                "there must be as many zeros as poles, and as many numbers before as after"
            )
        in_turns = torch.stack([self.poles, self.zeros], 1).flatten()
        if not (in_turns[0] < 1 and (in_turns.diff() < 0).all()):
            raise ValueError(
                "poles and zeros must lie below 1 and fall in turns: pole_1 > zero_1 > pole_2 > ..."
            )

    @property
    def steps(self) -> int:
        """Rows of C."""
        return len(self.before)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """poles, zeros, before and after, on the CPU, where sums over them are made."""
        return self.poles.cpu(), self.zeros.cpu(), self.before.cpu(), self.after.cpu()

    def __str__(self) -> str:
        return f"{len(self.poles)} buffers"

    def tabulated(self) -> Recurrence:
        """T^{-1} x = x + sum_a nu_a s_a, s_a <- zeros_a s_a + x, of x = D1^{-1} z; all nu < 0."""
        return Recurrence(
            self.steps,
            self.after,
            1 / self.before[:, None],
            gains=residues(self.zeros, self.poles),
            decays=self.zeros - 1,
        )

    def leading(self, steps: int) -> "BufferedStrategy":
        """Its first steps alone."""
        return BufferedStrategy(self.poles, self.zeros, self.before[:steps], self.after[:steps])

    def column_norms(self) -> tuple[Tensor, float]:
        """Of C, (steps,), without forming it, and their relative rounding."""
        columns, _, _ = overlaps(*self.tensors[:3])
        norms = self.after * columns.sqrt().to(self.after.device)
        return norms, (2 * self.steps + 8) * EPS

    def in_passes(self, period: int) -> Sensitivity:
        """Exact: no entry of C is negative."""
        squares = pass_squares(*self.tensors, period)
        moved = math.sqrt(float(squares.max()))
        return Sensitivity.rounded(moved, moved, (8 * self.steps + 64) * EPS)

    def apart(self, gap: int, times: int) -> Sensitivity | None:
        """A bound that is attained where D1 and D2 do not rise."""
        if self.steps * times > MOST_LINKS:
            return None
        bound, attained, rounding = apart_squares(*self.tensors, gap, times)
        moved = Sensitivity.rounded(math.sqrt(bound), math.sqrt(attained), rounding)
        if self.steps > SEARCHED or moved.exact:
            return moved
        return None


@dataclass(frozen=True)
class RecalledStrategy(StreamStrategy):
    """C = A^{-1} D1 T D2, as 2 buffers + (2 + reach) steps numbers.

    Args:
        buffered: D1 T D2.
        period: steps of a pass.
        earlier: (reach, steps), entry [m - 1, t] is A[t, t - m period], and counts as 0 where there
            is no such step; A's diagonal is 1.

    Noise takes up to ``reach`` + 1 normals a number. Raises TypeError, ValueError.
    """

    buffered: BufferedStrategy
    period: int
    earlier: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.instance("buffered", self.buffered, BufferedStrategy)
        period = checks.integer("period", self.period, 1)
        value = checks.matrix("earlier", self.earlier).detach().double()
        fits = value.ndim == 2 and value.shape[1] == self.steps
        if not fits or value.device != self.buffered.poles.device:
            raise ValueError(
                f"earlier must be of shape (reach, {self.steps}), on the buffers' device, "
                f"not {tuple(value.shape)}"
            )
        first = torch.arange(1, len(value) + 1, device=value.device)[:, None] * period
        exists = torch.arange(self.steps, device=value.device) >= first
        object.__setattr__(self, "earlier", torch.where(exists, value, 0.0))
        object.__setattr__(self, "period", period)

    @property
    def steps(self) -> int:
        """Rows of C."""
        return self.buffered.steps

    def __str__(self) -> str:
        return (
            f"{self.buffered}, noise of {len(self.earlier)} earlier passes "
            f"of {self.period} steps drawn again"
        )

    def tabulated(self) -> Recurrence:
        """As of the buffers, of A z."""
        tables = self.buffered.recurrence
        A = torch.cat([torch.ones_like(tables.feeds), self.earlier.mT], 1)
        lags = tuple(m * self.period for m in range(A.shape[1]))
        return replace(tables, feeds=tables.feeds * A, lags=lags)

    def leading(self, steps: int) -> "RecalledStrategy":
        """Its first steps alone."""
        return RecalledStrategy(self.buffered.leading(steps), self.period, self.earlier[:, :steps])

    def in_passes(self, period: int) -> Sensitivity | None:
        """Of a user of all steps of one class, or of some: known for its own period."""
        if period != self.period:
            return None
        products, rounding = self.class_products()
        sums = products.abs().sum((1, 2)) + rounding
        worst = int(sums.argmax())
        # The sum of all sizes is attained where one user's signs make every product positive.
        s = signs(products[worst])
        attained = float(s @ products[worst] @ s - rounding[worst])
        return Sensitivity(math.sqrt(float(sums[worst])), math.sqrt(max(attained, 0.0)))

    @on_host
    def class_products(self) -> tuple[Tensor, Tensor]:
        """<c_s, c_t> of the steps of each class: (period, passes, passes), and bounds on rounding.

        The bound, (period,), is for the sum of all absolute values in a class: every sum and
        product, taken of absolute values, rounds by no more than its share of it; of A^{-1} they
        are at most those of (2 - abs(A))^{-1} (Higham 2002, Theorem 8.12 and what follows). Steps
        beyond the last one have columns of 0.
        """
        poles, zeros, before, after = self.buffered.tensors
        A = self.classes().cpu()
        D2 = folded(after, self.period)
        scale = D2[:, :, None] * D2[:, None, :]
        passes = A.shape[1]
        eye = torch.eye(passes, dtype=A.dtype)
        sizes = shared(poles, zeros, before, 2 * eye - A.abs()) * scale
        rounding = (16 * self.steps + 16 * passes**2 + 256) * EPS
        return shared(poles, zeros, before, A) * scale, rounding * sizes.sum((1, 2))

    def classes(self) -> Tensor:
        """A, a matrix for each class of steps: (period, passes, passes)."""
        period = min(self.period, self.steps)
        passes = -(-self.steps // period)
        eye = torch.eye(passes, dtype=self.earlier.dtype, device=self.earlier.device)
        A = eye.repeat(period, 1, 1)
        for m, row in enumerate(self.earlier[: passes - 1], 1):
            A.diagonal(-m, 1, 2).copy_(folded(row, period)[:, m:])
        return A


@on_host
def shared(poles: Tensor, zeros: Tensor, before: Tensor, A: Tensor) -> Tensor:
    """<c_s, c_t> of A^{-1} D1 T within each class: (period, passes, passes), with gradients.

    Row r of T has, of column i of a class, the powers r - i - 1 of a pole, and r - i - 1 + m period
    m passes later. So <c_s, c_t> = sum_{a, b} w_a w_b sum_r poles_a^{...} poles_b^{...} H_r, H_r =
    (A_r^{-1} D1)^T A_r^{-1} D1, and the sums over r > i and over r < i, of the pass after, have one
    recurrence each.
    """
    period, passes, _ = A.shape
    w = residues(poles, zeros)
    age = _ages(passes)
    mixed = torch.linalg.solve_triangular(A, torch.diag_embed(folded(before, period)), upper=False)
    H = mixed.mT @ mixed
    # The rows r = i of the class itself: T's entries between its own steps.
    terms = w[:, None, None] * _powers(poles, period * age - 1)
    T = torch.where(age > 0, terms.sum(0), 0.0) + torch.eye(passes, dtype=A.dtype)
    total = T.mT @ H @ T
    of_later = torch.where(age >= 0, _powers(poles, period * age), 0.0)
    of_sooner = torch.where(age > 0, _powers(poles, period * (age - 1)), 0.0)
    flat = H.flatten(1).mT  # (passes^2, period)
    step = torch.arange(period)
    for a in range(len(poles)):
        for b in range(a, len(poles)):
            rho = poles[a] * poles[b]
            # sum_{r > i} rho^{r - i - 1} H_r
            filtered = Filter.apply(flat.flip(1), rho.expand(len(flat))).flip(1)
            later = pad(filtered[:, 1:], (0, 1))
            # sum_{r < i} rho^{period + r - i - 1} H_r
            sums = late((flat * rho**step).cumsum(1))
            sooner = sums * rho ** (period - 1 - step)
            products = of_later[a].mT @ later.mT.view_as(H) @ of_later[b]
            products = products + of_sooner[a].mT @ sooner.mT.view_as(H) @ of_sooner[b]
            if a < b:
                products = products + products.mT
            total = total + w[a] * w[b] * products
    return total


@on_host
def recalled_squares(
    poles: Tensor, zeros: Tensor, before: Tensor, after: Tensor, A: Tensor
) -> Tensor:
    """Squared row norms of W C^{-1} for prefix sums W: (steps,), with gradients.

    They are variances of sums o_t = o_{t-1} + (u_t + sum_a nu_a s_a) / D2_t, s_a <- zeros_a s_a +
    u_t (the buffers), u = D1^{-1} A z. Within a class u's covariance is K = D1^{-1} A A^T D1^{-1};
    what s and o before step t share with u_t comes from its own earlier passes: powers of the
    zeros, and sums of them over 1 / D2.
    """
    n = len(before)
    period, passes, _ = A.shape
    nu = residues(zeros, poles)
    age = _ages(passes)
    # 1 beyond the last step, where D1 is 0, so that nothing is divided by 0.
    D1 = folded(before, period) + (folded(torch.ones_like(before), period) == 0)
    K = (A @ A.mT) / (D1[:, :, None] * D1[:, None, :])

    def in_time(y: Tensor) -> Tensor:
        """(..., period, passes) -> (..., steps)."""
        return y.mT.flatten(-2)[..., :n]

    fresh = in_time(K.diagonal(dim1=1, dim2=2))  # Var u_t
    decayed = torch.where(age > 0, _powers(zeros, period * age - 1), 0.0)
    with_s = in_time((decayed[:, None] * K).sum(-1))  # Cov(s_a, u_t), (buffers, steps)
    # sum_{r >= t} zeros^{r-t} / D2_r, and by how much u_t moves the last o
    backwards = (1 / after).flip(0).expand(len(nu), -1)
    ahead = Filter.apply(backwards, zeros).flip(1)
    moved = 1 / after + nu @ pad(ahead[:, 1:], (0, 1))
    earlier = K.tril(-1) * folded(moved, period)[:, None]
    of_passes = in_time(earlier.sum(-1))
    with_o = of_passes - (nu[:, None] * with_s * ahead).sum(0)  # Cov(o_{t-1}, u_t)
    first, second = pairs(nu)
    steps = fresh + zeros[first, None] * with_s[first] + zeros[second, None] * with_s[second]
    buffers = late(Filter.apply(steps, zeros[first] * zeros[second]))  # Cov(s_a, s_b)
    with_sum = each_with(nu, buffers)  # Cov(s_a, nu s)
    noise = (fresh + 2 * (nu @ with_s) + nu @ with_sum) / after.square()  # Var of (C^{-1} z)_t
    after_step = zeros[:, None] * (with_s + with_sum) + fresh + nu @ with_s
    with_output = Filter.apply(with_o + after_step / after, zeros)  # Cov(o_t, s_a)
    covariance = (with_o + nu @ late(with_output)) / after
    return (noise + 2 * covariance).cumsum(0)


def _ages(passes: int) -> Tensor:
    """By how many passes the row is later than the column."""
    number = torch.arange(passes)
    return number[:, None] - number


def _powers(ratios: Tensor, exponents: Tensor) -> Tensor:
    """(buffers, *exponents.shape); 1 for exponents below 0."""
    return ratios.view(-1, *(1,) * exponents.ndim) ** exponents.clamp_min(0)
