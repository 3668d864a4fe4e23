"""Pairwise statistics in the shuffle model: a quadratic form of shuffled sums of randomly rounded vectors."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Simulated, binomial
from torchdp.noise import Noise
from torchdp.pairwise.messages import ROUNDING
from torchdp.pairwise.protocol import FARTHEST, AggregateProtocol
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.shuffle import BitSums, PoissonSum, delta_of

MOVES = 1e-12  # smaller differences of a probability are rounding


@dataclass(frozen=True)
class ShuffledForm(AggregateProtocol):
    """Each user rounds its vector's coordinates to bits; shuffled sums S of the bits give the form S^T J S/n^2.

    Coordinate t lies in [low_t, low_t + width_t] over the types; a user's bit is one with probability
    q_t = (u_xt - low_t)/width_t, and ``noise`` adds Poisson messages of this mean to each sum. S = s + Z with
    independent coordinates and Var Z_t = width_t^2 (sum_users q_t (1 - q_t) + noise), so the mean of S^T J S - s^T J s
    is known but for the linear query sum_t weights_t width_t^2 q_t (1 - q_t): one more sum carries it, and takes it
    off. The estimate is unbiased and its variance exact, from the first four moments of Z. Where the vectors are
    corners of their box (thresholds, as in ``absolute_difference``) nothing is rounded and the MSE is of order
    noise/n^2, n times below local privacy; elsewhere rounding adds a term of order 1/n, free of epsilon.

    users: n, public. noise, delta: (epsilon, delta) is certified or ValueError is raised; ``shuffled_form`` finds the
    least noise. For means; a ratio is refused.

    Guarantees: (epsilon, delta)-DP in the shuffle model for replacing one user's value, n public: sums whose
    probabilities differ between two types, composed, or their joint movement max sum_t (q_t - q_t')^2 by
    ``shuffle.delta_of``, whichever is certified.
    Source: Ghazi et al. (2023), Remark after Corollary 7; the sums: Ghazi, Kumar, Manurangsi, Pagh (2020), section 3.
    """

    users: int
    noise: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", checks.integer("users", self.users, 2))
        object.__setattr__(self, "noise", checks.positive("noise", self.noise))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
        super().__post_init__()

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

    @property
    def sums(self) -> BitSums:
        """The bit sums of all coordinates."""
        return BitSums(PoissonSum(self.users, self.noise), len(self.widths), self.delta)

    @cached_property
    def guarantee(self) -> Guarantee:
        sums = PoissonSum(1, self.noise)  # Poisson noise: its law does not depend on the number of users
        if _delta(sums, self.epsilon, self.probabilities) > self.delta:
            raise ValueError(
                f"(epsilon, delta) = ({self.epsilon:g}, {self.delta:g}) is not certified with noise = {self.noise:g}; "
                "take the noise of shuffled_form"
            )
        source = "Poisson sums of rounded bits; Ghazi et al. (2023), Remark after Corollary 7"
        return Guarantee(self.epsilon, self.delta, Model.SHUFFLE, Neighbours.REPLACE_ONE, False, source)

    @property
    def messages_per_user(self) -> float:
        """Expected number of messages, at most."""
        return self.sums.messages_per_user

    @property
    def bits_per_user(self) -> int:
        return round(self.sums.bits_per_user)

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.ALL

    @property
    def layout(self) -> tuple[Tensor, ...]:
        return (torch.zeros_like(self.widths),)

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        if n != self.users:
            return f"the protocol is for {self.users} users"
        spread = FARTHEST * (self.noise**0.5 + FARTHEST)  # of the noise, with its tail
        if bool(((sums[0] < -self.noise - ROUNDING * n) | (sums[0] > n + spread)).any()):
            return "a sum of ones is negative or above n, by more than the noise"
        return None

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(estimates of how many users hold a one in each sum,), (r + 1,)."""
        self._present(len(types))
        parts = types.split(max(1, 2**22 // len(self.widths)))
        chances = (self.probabilities[some] for some in parts)
        tallies = [self.sums.hear(noise.uniform(tuple(q.shape)) < q, noise) for q in chances]
        return (self.sums.analyse(self.sums.add(*tallies)).value,)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """The ones of each sum are binomial for each type; the noise is drawn at once."""
        self._present(int(counts.sum()))
        ones = torch.zeros(*shape, len(self.widths), dtype=torch.int64, device=self.widths.device)
        for crowd, q in zip(counts, self.probabilities, strict=True):  # types, not users
            if crowd > 0:
                ones += binomial(crowd.expand(ones.shape), q, generator)
        law = self.sums.law
        return (law.decode(law.noised(ones, Simulated(generator, ones.device)), self.users),)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        values = n * self.lows + self.widths * sums[0]
        squares = (form.weights * values[..., :-1].square()).sum(-1)
        known = self.noise * (form.weights * self.widths[:-1].square()).sum()
        return (squares - values[..., -1] - known) / n**2 + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        n, q = counts.sum(), self.probabilities
        counts = counts.to(q)
        spread = q * (1 - q)
        second = counts @ spread + self.noise
        third = counts @ (spread * (1 - 2 * q)) + self.noise
        fourth = counts @ (spread * (1 - 6 * spread)) + self.noise + 3 * second.square()
        s = (n * self.lows + self.widths * (counts @ q)) / self.widths.clamp_min(torch.finfo(q.dtype).tiny)
        each = 4 * s.square() * second + 4 * s * third + fourth - second.square()  # Var (s + Z)^2, widths 1
        squares = (form.weights.square() * self.widths[:-1] ** 4 * each[:-1]).sum()
        return (squares + self.widths[-1] ** 2 * second[-1]) / n**4

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return (self.lows + self.widths * sums[0] / n)[..., :-1]

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """By the noise and a bound of the rounding, n min(max_x q (1 - q), q' (1 - q')), q' the estimated mean of q.

        Too large where users of different types round alike. Leaves out the third and fourth moments of one user's
        noise, a fraction that vanishes as n grows.
        """
        largest = (self.probabilities * (1 - self.probabilities)).amax(0)
        share = (sums[0] / n).clamp(0, 1)
        spread = torch.minimum(largest, share * (1 - share))
        second = self.widths.square() * (n * spread + self.noise)
        values = (n * self.lows + self.widths * sums[0]).square()[..., :-1] - second[..., :-1]
        rounded = second[..., :-1]
        squares = (form.weights.square() * rounded * (4 * values.clamp_min(0) + 2 * rounded)).sum(-1)
        return (squares + second[..., -1]) / n**4

    def _present(self, n: int) -> None:
        if n != self.users:
            raise ValueError(f"there must be {self.users} users, as the protocol says, not {n}")


def shuffled_form(statistic: PairwiseStatistic, users: int, epsilon: float, delta: float) -> ShuffledForm:
    """:class:`ShuffledForm` with the least noise that is certified at (epsilon, delta). Raises ValueError.

    Guarantees: those of the result.
    """
    users = checks.integer("users", users, 2)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    q = _probabilities(statistic)[0]
    flips, movement, instances = _change(q)
    noise = PoissonSum.calibrated(1, epsilon, delta, instances, change=movement, flips=flips).mean
    return ShuffledForm(statistic, epsilon, users, noise, delta)


def _probabilities(statistic: PairwiseStatistic) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of ones (k, r + 1), widths and lows (r + 1,) of all sums."""
    if statistic.denominator is not None:
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
    q = torch.cat([q, last[:, None]], 1).clamp(0, 1)
    return q, torch.cat([width, reach[None]]), torch.cat([low, least[None]])


def _change(q: Tensor) -> tuple[int, float, int]:
    """The most sums in which two types differ, the largest movement between two types, and the number of sums."""
    flips, movement = 0, 0.0
    for row in q:  # (k, r + 1) at a time
        apart = (q - row).abs()
        flips = max(flips, int((apart > 0).sum(1).max()))
        movement = max(movement, float(apart.square().sum(1).max()))
    return max(flips, 1), min(max(movement * (1 + 1e-12), MOVES), float(q.shape[1])), q.shape[1]


def _delta(sums: PoissonSum, epsilon: float, q: Tensor) -> float:
    flips, movement, instances = _change(q)
    return delta_of(sums, epsilon, instances, change=movement, flips=flips)
