"""Reports about the type itself: subsets, bit vectors and strategy matrices, the kernel averaged over pairs of them."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.pairwise.messages import ROUNDING
from torchdp.pairwise.plug_in import counted
from torchdp.pairwise.protocol import AggregateProtocol, PairwiseProtocol
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.pairwise.variance import pairs_variance, symmetric_variance
from torchdp.privacy import Guarantee
from torchdp.randomizers import (
    Objective,
    OptimizedUnaryEncoding,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
    optimize_strategy,
)
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle
from torchdp.randomizers.draws import unpack

NUMBERS_AT_ONCE = 2**22  # of unpacked bits held in memory by the per-user path
ROUNDS = 2  # of strategy optimisation: the second knows the noise that the first leaves


@dataclass(frozen=True)
class SubsetPairs(PairwiseProtocol):
    """Each user sends a random set of types, more often one that holds its own; the analyst pairs the messages.

    Decoded and projected on sum 1, a message is Y in R^k with E Y = e_x, and a user's vector Z = sum_x Y_x u_x has
    E Z = u_x: sum over i != j of Z_i^T J Z_j / (n (n-1)) is unbiased for distinct pairs. The sets' sizes do not give
    Z^T J Z, so the analyst must see each message. The variance is ``symmetric_variance``, exactly.
    kind: the class of the oracle.

    Guarantees: epsilon-LDP for each user.
    Source: the pair estimator of Bell, Bellet, Gascon, Kulkarni (2020), Algorithm 1, for reports of Ye, Barg (2018)
    or Wang, Blocki, Li, Jha (2017).
    """

    kind: type[SubsetSelection] | type[OptimizedUnaryEncoding] | type[SymmetricUnaryEncoding] = SubsetSelection

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, type) and issubclass(self.kind, BitVectorOracle)):
            raise TypeError(
                "kind must be a class of oracle: SubsetSelection, OptimizedUnaryEncoding or SymmetricUnaryEncoding"
            )
        super().__post_init__()

    @cached_property
    def randomizer(self) -> SubsetSelection | OptimizedUnaryEncoding | SymmetricUnaryEncoding:
        """What a user runs."""
        return self.kind(self.statistic.types, self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return self.randomizer.guarantee

    @property
    def bits_per_user(self) -> int:
        return self.randomizer.bits

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.DISTINCT

    @property
    def layout(self) -> tuple[Tensor, ...]:
        points = self.statistic.points
        return points.new_zeros(points.shape[0] + 1, dtype=torch.int64), points.new_zeros(points.shape[1])

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        tally, squares = sums
        counts = tally[..., :-1]
        if bool((tally[..., -1] != n).any()):
            return "the tally's last entry is not n"
        if bool(((counts < 0) | (counts > n)).any()):
            return "a count is negative or above n"
        if bool((squares * n < self._total(sums, n).square() * (1 - ROUNDING)).any()):
            return "the squares add up to less than the square of the sum over n"
        centred, middle = self._centred
        most = n * (centred.abs().sum(0) / self.randomizer.gap + middle.abs()).square() * (1 + ROUNDING)
        return "the squares add up to more than any reports' can" if bool((squares > most).any()) else None

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(the oracle's tally (k + 1,), sum of the squares of the coordinates of Z, (r,))."""
        rows = max(1, NUMBERS_AT_ONCE // self.statistic.types)
        parts = [self.tally(self.randomizer.sample(some, noise=noise)) for some in types.split(rows)]
        return tuple(torch.stack(each).sum(0) for each in zip(*parts, strict=True))

    def tally(self, messages: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the messages of some users, packed bits (n, ceil(k/64))."""
        centred, middle = self._centred
        bits = unpack(messages)[:, : self.statistic.types].double()
        reports = self.randomizer.old_reports(self.randomizer.tally(messages))
        return reports, (bits @ centred / self.randomizer.gap + middle).square().sum(0)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        total, squares = self._total(sums, n), sums[1]
        return (form.weights * (total.square() - squares)).sum(-1) / (n * (n - 1)) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        flat, own = self._noise
        kernel = self.statistic.kernel
        return symmetric_variance(lambda weights: kernel(Form(weights)), flat, own, counts, form.weights)

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return self._total(sums, n) / n

    def _total(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        centred, middle = self._centred
        return self.randomizer.decode_counts(sums[0]) @ centred + n * middle

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """The variance at the decoded histogram, cut off at 0 and scaled to n."""
        return self.mean_variance(plausible(self.randomizer.decode_counts(sums[0]), n), form).clamp_min(0)

    @cached_property
    def _centred(self) -> tuple[Tensor, Tensor]:
        """The points less their mean over types, and that mean."""
        middle = self.statistic.points.mean(0)
        return self.statistic.points - middle, middle

    @cached_property
    def _noise(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0, whatever x."""
        S = self.randomizer.covariance(0)
        pair = float(S[1, 2]) if len(S) > 2 else 0.0  # two types: any value, the two parts then make up for it
        flat = float(S[1, 1]) - pair
        return flat, float(S[0, 0]) - float(S[1, 1]) - 2 * float(S[0, 1]) + 2 * pair


@dataclass(frozen=True)
class StrategyReports(AggregateProtocol):
    """Each user sends one output of a strategy matrix; the analyst averages the kernel over pairs of decoded outputs.

    With Z_o the vector that output o is decoded to, E Z = u_x, and c_o how often it came:
    [(sum_o c_o Z_o)^T J (sum_o c_o Z_o) - sum_o c_o Z_o^T J Z_o] / (n (n-1)), unbiased for distinct pairs and a
    function of the tally alone. The variance is ``pairs_variance`` with Cov Z = sum_o Q[o, x] Z_o Z_o^T - u_x u_x^T,
    exactly. A tally is drawn from the histogram in O(m k), m outputs.
    strategy: of as many types as the statistic has, of full rank, at most epsilon-LDP.

    Guarantees: epsilon-LDP for each user (the strategy's own epsilon, if that is smaller).
    Source: McKenna, Maity, Mazumdar, Miklau (2020) for the reports; Bell, Bellet, Gascon, Kulkarni (2020),
    Algorithm 1, for the pairs.
    """

    strategy: StrategyMatrix

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, StrategyMatrix):
            raise TypeError(f"strategy must be a StrategyMatrix, not {type(self.strategy).__name__}")
        super().__post_init__()
        if self.strategy.k != self.statistic.types:
            raise ValueError(f"strategy must have {self.statistic.types} types, not {self.strategy.k}")
        if self.strategy.epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"epsilon must be at least the strategy's {self.strategy.epsilon:.9g}, not {self.epsilon!r}"
            )
        _ = self._decoded  # refuses a strategy that cannot tell all types apart

    @property
    def guarantee(self) -> Guarantee:
        return self.strategy.guarantee

    @property
    def bits_per_user(self) -> int:
        return self.strategy.bits

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.DISTINCT

    @property
    def layout(self) -> tuple[Tensor, ...]:
        matrix = self.strategy.matrix
        return (torch.zeros(len(matrix), dtype=torch.int64, device=matrix.device),)

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        return counted(sums[0], n)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(how many users send each output,), (m,)."""
        return (self.strategy.collect(types, noise=noise)["reports"],)

    def tally(self, messages: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the messages of some users, outputs (n,)."""
        return (self.strategy.tally(messages)["reports"],)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (self.strategy.sample_reports(counts, generator=generator, sample_shape=shape),)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        reports, vectors = sums[0].double(), self._vectors
        own = vectors.square() @ form.weights
        return ((reports @ vectors).square() @ form.weights - reports @ own) / (n * (n - 1)) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        return pairs_variance(self.statistic.points, self._covariances, counts, form.weights)

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return sums[0].double() @ self._vectors / n

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """The variance at the decoded histogram, cut off at 0 and scaled to n."""
        return self.mean_variance(plausible(sums[0].double() @ self._decoded, n), form).clamp_min(0)

    @cached_property
    def _decoded(self) -> Tensor:
        """Each output as a report about the type, (m, k); its entries add up to 1."""
        matrix = self.strategy.matrix
        return self.strategy.decode_counts(torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device))

    @cached_property
    def _vectors(self) -> Tensor:
        """Z_o, (m, r)."""
        return self._decoded @ self.statistic.points

    @cached_property
    def _covariances(self) -> Tensor:
        """Cov Z for each type, (k, r, r), centred before squaring."""
        parts = []
        for law, point in zip(self.strategy.matrix.mT, self.statistic.points, strict=True):
            centred = self._vectors - point
            parts.append((centred * law[:, None]).mT @ centred)
        return torch.stack(parts)


def strategy_reports(
    statistic: PairwiseStatistic,
    n: int,
    epsilon: float,
    *,
    prior: Tensor | None = None,
    generator: torch.Generator,
    steps: int = 500,
) -> StrategyReports:
    """Reports by a strategy matrix optimised for the statistic of n users whose histogram is near ``prior``.

    Without a prior: for the worst type. The leading variance is 4/n of the variance of one user's answer to the
    linear query J mean u (no prior: any query of that size); the rest is 2 tr(J C J C)/n^2 for the mean covariance
    C of Z, linear in C up to its own size: 4/n^2 of the variance of (J C J)^{1/2} Z. Both are workloads, optimised
    together; C is that of random subsets in the first round and that of the strategy found in the second. The
    better round is returned, decoded for the prior.
    prior: (k,), non-negative, public. statistic: without a denominator. Raises ValueError.

    Guarantees: epsilon-LDP for each user.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), the optimisation; the linearisation is made here.
    """
    n, epsilon = checks.integer("n", n, 2), checks.positive("epsilon", epsilon)
    if statistic.denominator is not None:
        raise ValueError("statistic must be a mean, not a ratio: the strategy is optimised for one form")
    k, points, weights = statistic.types, statistic.points, statistic.form.weights
    flat_prior = torch.ones(k, dtype=torch.float64, device=points.device)
    h = flat_prior if prior is None else checks.floating("prior", prior).double().to(points.device)
    if h.shape != (k,) or bool((h < 0).any()) or float(h.sum()) <= 0:
        raise ValueError(f"prior must be ({k},), non-negative, with a positive sum")
    h = h / h.sum()
    centred = points - points.mean(0)
    if prior is None:  # the query is not known: all directions of the users' mean vector alike
        queries, objective = weights[:, None] * centred.mT / math.sqrt(len(weights)), Objective.WORST
        queries = queries * points.norm(dim=1).max()
        judged = torch.eye(k, dtype=torch.float64, device=points.device) * n
    else:
        queries, objective = (centred @ (weights * (h @ points)))[None], Objective.AVERAGE
        judged = h[None] * n
    flat, own = SubsetPairs(statistic, epsilon)._noise
    covariance = flat * centred.mT @ centred + own * (centred * h[:, None]).mT @ centred
    found = []
    for _ in range(ROUNDS):
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp_min(0).sqrt()).mT * weights  # root^T root = J C J
        workload = torch.cat([queries * math.sqrt(4 / n), root @ centred.mT * math.sqrt(4 / n**2)])
        best = optimize_strategy(workload, epsilon, objective, generator=generator, steps=steps)
        strategy = best if prior is None else StrategyMatrix(best.matrix, 0.99 * h + 0.01 / k)
        found.append(StrategyReports(statistic, epsilon, strategy))
        covariance = torch.einsum("x,xst->st", h, found[-1]._covariances)
    return min(found, key=lambda protocol: float(protocol.mean_variance(judged, statistic.form).max()))


def plausible(decoded: Tensor, n: float) -> Tensor:
    """Decoded counts moved to the sum n, cut off at 0 and scaled to n users."""
    moved = decoded + (n - decoded.sum(-1, keepdim=True)) / decoded.shape[-1]
    positive = moved.clamp_min(0)  # some are positive: they add up to n
    return positive * (n / positive.sum(-1, keepdim=True))
