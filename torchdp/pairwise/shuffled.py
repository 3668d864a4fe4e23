"""Pairwise statistics in the shuffle model: a quadratic form of shuffled sums of randomly rounded vectors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic, one_kernel
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.protocol.interval import Error, ErrorParts
from torchdp.protocol.quadratic import QuadraticError
from torchdp.protocol.records import single, users_of
from torchdp.shuffle import PoissonSum
from torchdp.shuffle.search import Sensitivity
from torchdp.shuffle.sums import Shuffled

MOVES = 1e-12  # smaller differences of a probability are rounding
MOST_THIRD = 0.1  # max q (1 - q) (1 - 2q) = 0.0963


@dataclass(frozen=True)
class ShuffledForm(PairwiseProtocol, Shuffled[Tensor]):
    """Each user rounds its vector's coordinates to bits; shuffled sums S of the bits give the form S^T J S/n^2.

    Coordinate t lies in [low_t, low_t + width_t] over the types; a user's bit is one with probability
    q_t = (u_xt - low_t)/width_t, and ``noise`` adds Poisson messages of this mean to each sum. S = s + Z with
    independent coordinates and Var Z_t = width_t^2 (sum_users q_t (1 - q_t) + noise), so the mean of S^T J S - s^T J s
    is known but for the linear query sum_t weights_t width_t^2 q_t (1 - q_t): one more sum carries it, and takes it
    off. The estimate is unbiased and its variance exact, from the first four moments of Z. Where the vectors are
    corners of their box (thresholds, as in ``absolute_difference``) nothing is rounded and the MSE is of order
    noise/n^2, n times below local privacy; elsewhere rounding adds a term of order 1/n, free of epsilon.

    users: n, public. noise, delta: (epsilon, delta) is certified or ValueError is raised; ``calibrated`` finds the
    least noise. For means; a ratio is refused.

    Guarantees: (epsilon, delta)-DP in the shuffle model for replacing one user's value, n public, of what is sent: sums
    whose probabilities differ between two types, composed, or their joint movement max sum_t (q_t - q_t')^2 by
    ``shuffle.delta_of``, whichever is certified. The q_t are multiples of 2^-53, which bits have without error.
    Source: Ghazi et al. (2023), Remark after Corollary 7; the sums: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    takes_groups = False
    users: int
    noise: float
    delta: float
    absent: int = field(default=0, init=False)  # all users speak

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", checks.integer("users", self.users, 2))
        checks.keep(self, noise=checks.positive, delta=checks.fraction)
        super().__post_init__()

    @classmethod
    def calibrated(cls, statistic: PairwiseStatistic, users: int, epsilon: float, delta: float) -> "ShuffledForm":
        """With the least noise that is certified at (epsilon, delta). Raises ValueError.

        Guarantees: those of the result.
        """
        users = checks.integer("users", users, 2)
        epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
        moves = _change(_probabilities(statistic)[0])
        return cls(
            statistic, epsilon, users, PoissonSum.calibrated(1, epsilon, delta * ROUNDED, moves).mean, delta
        )

    @cached_property
    def probabilities(self) -> Tensor:
        """q: (k, r + 1), the last one of the query that corrects the rounding."""
        return _probabilities(self.statistic)[0]

    @cached_property
    def widths(self) -> Tensor:
        """(r + 1,), what a bit of each sum is worth."""
        return _probabilities(self.statistic)[1]

    @cached_property
    def lows(self) -> Tensor:
        """(r + 1,), what a user adds to each sum without a bit."""
        return _probabilities(self.statistic)[2]

    @cached_property
    def law(self) -> PoissonSum:  # type: ignore[override]
        """The distribution of every sum."""
        return PoissonSum(self.users, self.noise)

    @property
    def instances(self) -> int:  # type: ignore[override]
        """Sums of bits that a user takes part in."""
        return len(self.widths)

    @property
    def sensitivity(self) -> Sensitivity:
        return _change(self.probabilities)

    estimated_pairs = Pairs.ALL

    def validate(self, x: Tensor) -> Tensor:
        return self.few(super().validate(x))

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        q = self.probabilities[x]
        return draws.uniform(tuple(q.shape)) < q

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """The ones of each sum are binomial for each type; the noise is drawn at once. All ``users`` speak."""
        if (n := single(users_of(summary))) != self.users:
            raise ValueError(f"summary must be of {self.users} users, as the protocol says, not {n}")
        ones = torch.zeros(*shape, self.instances, dtype=torch.int64, device=self.widths.device)
        for crowd, q in zip(summary, self.probabilities, strict=True):  # types, not users
            if crowd > 0:
                ones += draws.binomial(crowd.expand(ones.shape), q)
        return Tally(self.users, {"total": self.law.noised(ones, draws)})

    def check(self, tally: Tally, least: int = 1) -> Tally:
        tally = super().check(tally, least)
        if least > 1 and tally.n != self.users:  # for the analyst
            raise ValueError(f"tally must be of {self.users} users, as the protocol says, not {tally.n}")
        return tally

    def _ones(self, tally: Tally) -> Tensor:
        """Unbiased estimates of how many users hold a one in each sum, (*batch, r + 1)."""
        return self.law.decode(tally["total"], single(tally.n))

    def mean(self, tally: Tally, form: Form) -> Tensor:
        n = float(tally.n)
        values = n * self.lows + self.widths * self._ones(tally)
        squares = (form.weights * values[..., :-1].square()).sum(-1)
        known = self.noise * (form.weights * self.widths[:-1].square()).sum()
        return (squares - values[..., -1] - known) / n**2 + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        single(users_of(counts))
        n, q = float(counts.sum()), self.probabilities
        counts = counts.to(q)
        spread = q * (1 - q)
        second = counts @ spread + self.noise
        third = counts @ (spread * (1 - 2 * q)) + self.noise
        fourth = counts @ (spread * (1 - 6 * spread)) + self.noise + 3 * second.square()
        s = (n * self.lows + self.widths * (counts @ q)) / self.widths.clamp_min(torch.finfo(q.dtype).tiny)
        each = 4 * s.square() * second + 4 * s * third + fourth - second.square()  # Var (s + Z)^2, widths 1
        squares = (form.weights.square() * self.widths[:-1] ** 4 * each[:-1]).sum()
        return (squares + self.widths[-1] ** 2 * second[-1]) / n**4

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """Each sum by itself at the largest of its moments: q (1 - q) at most 1/4, s at either end of its range."""
        ends = torch.stack([self.lows, self.lows + self.widths]).abs().amax(0)[:-1]
        size, w = n * ends, self.widths[:-1]
        second, third, fourth = n / 4 + self.noise, n * MOST_THIRD + self.noise, n / 8 + self.noise
        each = 4 * size.square() * w.square() * second + 4 * size * w**3 * third + w**4 * (fourth + 2 * second**2)
        return ((form.weights.square() * each).sum() + self.widths[-1] ** 2 * second) / n**4

    def mean_point(self, tally: Tally) -> Tensor:
        return (self.lows + self.widths * self._ones(tally) / tally.n)[..., :-1]

    def mean_errors(self, tally: Tally) -> Callable[[Tensor, Tensor], Error]:
        """By the noise and a bound of the rounding, n min(max_x q (1 - q), q' (1 - q')), q' the estimated mean of q.

        Too large where users of different types round alike.
        """
        n, largest = float(tally.n), (self.probabilities * (1 - self.probabilities)).amax(0)
        share = (self._ones(tally) / tally.n).clamp(0, 1)
        second = self.widths.square() * (n * torch.minimum(largest, share * (1 - share)) + self.noise)
        point, last = self.mean_point(tally), ErrorParts.normal(second[..., -1] / n**4)
        noise = second[..., :-1] / n**2
        return lambda weights, value: QuadraticError.isotropic(point, weights, noise).joined(last)


def _probabilities(statistic: PairwiseStatistic) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of ones (k, r + 1), widths and lows (r + 1,) of all sums."""
    if one_kernel(statistic).denominator is not None:
        raise ValueError(f"{statistic.name!r} is a ratio; the shuffled form estimates means")
    points, weights = statistic.points, statistic.form.weights
    low, high = points.amin(0), points.amax(0)
    width = high - low
    q = (points - low) / torch.where(width > 0, width, 1.0)
    correction = (q * (1 - q)) @ (weights * width.square())
    least, reach = correction.min(), correction.max() - correction.min()
    if float(reach) <= MOVES * statistic.size(statistic.form):
        reach = torch.zeros_like(reach)
    last = (correction - least) / torch.where(reach > 0, reach, 1.0) * (reach > 0)
    q = (torch.cat([q, last[:, None]], 1).clamp(0, 1) * 2.0**53).round() * 2.0**-53
    return q, torch.cat([width, reach[None]]), torch.cat([low, least[None]])


def _change(q: Tensor) -> Sensitivity:
    """The most sums in which two types differ, and the largest movement between two types."""
    flips, movement = 0, 0.0
    for row in q:  # (k, r + 1) at a time
        apart = (q - row).abs()
        flips = max(flips, int((apart > 0).sum(1).max()))
        movement = max(movement, float(apart.square().sum(1).max()))
    return Sensitivity(q.shape[1], max(movement * (1 + 1e-12), MOVES), max(flips, 1))
