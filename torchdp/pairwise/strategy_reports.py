"""Reports by a strategy matrix that is optimised for the statistic, on all types or on bins of neighbours."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.protocol import ROUNDING
from torchdp.pairwise.reports import ReportPairs, SubsetPairs
from torchdp.pairwise.standard import from_kernel
from torchdp.pairwise.statistic import Form, PairwiseStatistic, histograms_of, one_kernel
from torchdp.pairwise.variance import pairs_variance, worst_variance
from torchdp.protocol import Tally
from torchdp.randomizers import StrategyMatrix
from torchdp.simplex import onto_simplex

UNKNOWN = 0.2  # of the range of a ratio: how little it is known when the strategy is made
ROUGH = 1 / 8  # the mean deviation of a kernel from its means over bins, at most, as a share of its own
ROUNDS = 2  # of strategy optimisation: the second knows the noise that the first leaves


@dataclass(frozen=True)
class StrategyReports(ReportPairs[StrategyMatrix]):
    """Each user sends one output of a strategy matrix; the analyst averages the kernel over pairs of decoded outputs.

    With Z_o the vector that output o is decoded to, E Z = u_x, and c_o how often it came:
    [(sum_o c_o Z_o)^T J (sum_o c_o Z_o) - sum_o c_o Z_o^T J Z_o] / (n (n-1)), unbiased for distinct pairs and a
    function of the tally alone. The variance is ``pairs_variance`` with Cov Z = sum_o Q[o, x] Z_o Z_o^T - u_x u_x^T,
    exactly. A tally is drawn from the histogram in O(m k), m outputs.
    client: of as many types as the statistic has, telling those of different vectors apart, at most epsilon-LDP.
    vectors: the Z_o, (m, r), unbiased, sum_o Q[o, x] Z_o = u_x; None: of least variance under the client's prior.

    Guarantees: epsilon-LDP for each user (the strategy's own epsilon, if that is smaller).
    Source: McKenna, Maity, Mazumdar, Miklau (2020) for the reports; Bell, Bellet, Gascon, Kulkarni (2020),
    Algorithm 1, for the pairs.
    """

    spread = (math.nan, math.nan)
    client: StrategyMatrix
    vectors: Tensor | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        checks.instance("client", self.client, StrategyMatrix)
        super().__post_init__()
        if self.client.k != self.statistic.types:
            raise ValueError(f"client must have {self.statistic.types} types, not {self.client.k}")
        if self.client.epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"epsilon must be at least the strategy's {self.client.epsilon:.9g}, not {self.epsilon!r}"
            )
        points, size = self.statistic.points, self.statistic.radius
        if self.vectors is not None and not bool(
            (self.client.matrix.mT @ self.output_vectors - points).abs().max() <= ROUNDING * size
        ):
            raise ValueError(
                "vectors must be unbiased: the client's output distributions times them must be the statistic's points"
            )
        checks.validated(self, "output_vectors")  # a strategy that can not tell types of different vectors apart

    @classmethod
    def tuned(
        cls,
        statistic: PairwiseStatistic,
        n: int,
        epsilon: float,
        *,
        prior: Tensor | None = None,
        generator: torch.Generator,
        steps: int = 500,
    ) -> "StrategyReports":
        """Reports by a strategy matrix optimised for the statistic of n users whose histogram is near ``prior``.

        Without a prior: for the worst type. The leading variance is 4/n of the variance of one user's answer to the
        linear query J mean u (no prior: any query of that size); the rest is 2 tr(J C J C)/n^2 for the mean covariance
        C of Z, linear in C up to its own size: 4/n^2 of the variance of (J C J)^{1/2} Z. Both are workloads, optimised
        together; C is that of random subsets in the first round and that of the strategy found in the second. The
        better round is returned, decoded for the prior; without one the second round takes a third of the steps.

        A ratio mean f/mean g is f - r g over mean g to first order, r the ratio at the prior. What r is not known to,
        the denominator must be: the query 2 g h/mean g joins, times the deviation of r, a fifth of its range.

        prior: (k,) or a few of them, (j, k), non-negative, public; the best for all of them together. For a ratio one
        at least, whose denominator is not 0. Raises TypeError, ValueError.

        Guarantees: epsilon-LDP for each user.
        Source: McKenna, Maity, Mazumdar, Miklau (2020), the optimisation; the linearisation is made here.
        """
        n, epsilon = checks.integer("n", n, 2), checks.positive("epsilon", epsilon)
        k, points = one_kernel(statistic).types, statistic.points
        family = histograms_of(prior, points)
        flat_prior = torch.ones(k, dtype=torch.float64, device=points.device)
        h = flat_prior / k if family is None else family.mean(0)
        centred = points - points.mean(0)
        weights, queries = _linear(statistic, family, centred)
        law = None if family is None else 0.98 * h + 0.02 / k
        flat, own = SubsetPairs(statistic, epsilon).spread
        covariance = flat * centred.mT @ centred + own * (centred * h[:, None]).mT @ centred
        found = []
        for again in range(ROUNDS):
            values, vectors = torch.linalg.eigh(covariance)
            root = (vectors * values.clamp_min(0).sqrt()).mT * weights  # root^T root = J C J
            workload = torch.cat([queries * math.sqrt(4 / n), root @ centred.mT * math.sqrt(4 / n**2)])
            effort = (steps // 3, 10) if again and prior is None else (steps, 50)
            best = StrategyMatrix.tuned(
                workload, epsilon, law, generator=generator, steps=effort[0], exchanges=effort[1]
            )
            strategy = best if prior is None else StrategyMatrix(best.matrix, 0.99 * h + 0.01 / k)
            found.append(cls(statistic, epsilon, strategy))
            covariance = torch.einsum("x,xst->st", h, found[-1].covariances)
        return min(found, key=lambda protocol: protocol._judged(n, family))

    @classmethod
    def merged(
        cls,
        statistic: PairwiseStatistic,
        n: int,
        epsilon: float,
        bins: int,
        *,
        prior: Tensor | None = None,
        generator: torch.Generator,
    ) -> "StrategyReports":
        """``tuned`` on so many bins of neighbouring types, with the kernel's means over them: less noise, but a bias.

        Of a ratio, less its offset, bins keep a part that depends little on the data (the scores of two classes differ
        less): the rest is made up for by a factor, of least squares over the prior's histograms. The bias that is left
        counts in every predicted error. statistic: approximates no other; a ratio's denominator must be the same for
        all types of a bin. bins: from 2 to types. Raises TypeError, ValueError.
        """
        k = one_kernel(statistic).types
        if not 2 <= checks.integer("bins", bins, 2) <= k:
            raise ValueError(f"bins must be in 2..{k}, not {bins}")
        place = torch.arange(k, device=statistic.points.device) * bins // k
        held = (torch.arange(bins, device=place.device)[:, None] == place).double()
        even = held / held.sum(1, keepdim=True)
        small = _fewer(statistic, even)
        near = replace(small, points=small.points[place], approximates=statistic)
        family = histograms_of(prior, statistic.points)
        law = None if family is None else family @ held.mT
        if family is not None and statistic.denominator is not None:
            kept, whole = (
                each.exact(family * n) - statistic.offset for each in (replace(near, approximates=None), statistic)
            )
            factor = float(kept @ whole / (kept @ kept)) if bool(kept.any()) else 1.0
            near = replace(near, form=Form(factor * near.form.weights, factor * near.form.constant))
        found = cls.tuned(small, n, epsilon, prior=law, generator=generator)
        return cls(near, epsilon, found.client.repeated(place))

    def _judged(self, n: int, family: Tensor | None) -> float:
        """The largest predicted error over the family, or over all users of one type."""
        if family is None:
            family = torch.eye(self.statistic.types, dtype=torch.float64, device=self.statistic.points.device)
        if self.statistic.denominator is None:
            return float(self.mean_variance(family * n, self.statistic.form).max())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a denominator that is not known well: told of what is chosen
            return max(float(self.predicted_mse(each * n)) for each in family)

    def mean(self, tally: Tally, form: Form) -> Tensor:
        reports, vectors, n = tally["reports"].double(), self.output_vectors, tally.users()
        own = form.weights @ vectors.square().mT
        squares = ((reports @ vectors).square() * form.weights).sum(-1) - (reports * own).sum(-1)
        return squares / (n * (n - 1)) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        return pairs_variance(self.statistic.points, self.covariances, counts, form.weights)

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        return worst_variance(self.statistic.points, self.covariances, form.weights, n)

    def mean_point(self, tally: Tally) -> Tensor:
        return tally["reports"].double() @ self.output_vectors / tally.users(1)

    def noise(self, counts: Tensor, points: Tensor) -> Tensor:
        return torch.einsum("...x,xst->...st", counts, self.covariances)

    def approximation_bias(self, tally: Tally) -> Tensor | float:
        """For bins of types: sum_ab h_a h_b max abs(f - f') over each two bins, h nearest to their decoded shares."""
        near, points = self.statistic.approximates, self.statistic.points
        if near is None:
            return 0.0
        bins, place = torch.unique(points, dim=0, return_inverse=True)
        apart = (near.kernel(near.form) - self.statistic.kernel(self.statistic.form)).abs()
        rows = apart.new_zeros(len(bins), len(points)).scatter_reduce_(
            0, place[:, None].expand_as(apart), apart, "amax"
        )
        most = rows.new_zeros(len(bins), len(bins)).scatter_reduce_(1, place.expand_as(rows), rows, "amax")
        each = onto_simplex(self.decoded(tally) / tally.users(1))
        shares = each.new_zeros(*each.shape[:-1], len(bins)).index_add_(-1, place, each)
        return ((shares @ most) * shares).sum(-1)

    def decoded(self, tally: Tally) -> Tensor:
        """Unbiased counts of the types, (*batch, k), evenly over types that reports can not tell apart."""
        return tally["reports"].double() @ self.client.inverse.mT

    @cached_property
    def output_vectors(self) -> Tensor:
        """Z_o, (m, r)."""
        if self.vectors is None:
            return self.client.decoder(self.statistic.points.mT).mT
        vectors, shape = checks.matrix("vectors", self.vectors), (self.client.outputs, self.statistic.dim)
        if vectors.shape != shape:
            raise ValueError(f"vectors must have shape {shape}, one for each output, not {tuple(vectors.shape)}")
        return vectors.to(self.statistic.points)

    @cached_property
    def covariances(self) -> Tensor:
        """Cov Z for each type, (k, r, r), centred before squaring."""
        parts = []
        for law, point in zip(self.client.matrix.mT, self.statistic.points, strict=True):
            centred = self.output_vectors - point
            parts.append((centred * law[:, None]).mT @ centred)
        return torch.stack(parts)


def merges(statistic: PairwiseStatistic, bins: int) -> bool:
    """Whether neighbours are alike: the kernel's means over so many bins come near it, the denominator is theirs."""
    place = torch.arange(statistic.types, device=statistic.points.device) * bins // statistic.types
    first, sizes = torch.searchsorted(place, place), torch.bincount(place)  # of its bin
    kernel = statistic.kernel(statistic.form)
    sums = kernel.new_zeros(bins, bins).index_put_((place[:, None], place), kernel, accumulate=True)
    missed = (kernel - (sums / sizes / sizes[:, None])[place[:, None], place]).abs().mean()
    if bool(missed > ROUGH * (kernel - kernel.mean()).abs().mean()):
        return False
    if statistic.denominator is None:
        return True
    kernel = statistic.kernel(statistic.denominator)
    return bool((kernel - kernel[first]).abs().max() <= 1e-9 * statistic.size(statistic.denominator))


def _fewer(statistic: PairwiseStatistic, even: Tensor) -> PairwiseStatistic:
    """The statistic on bins, even (bins, types): the kernels' means over them, in as many coordinates as it takes."""
    points, form, below = even @ statistic.points, statistic.form, statistic.denominator
    own = torch.ones_like(form.weights) > 0 if below is None else below.weights == 0  # the form's alone
    small = from_kernel((points[:, own] * form.weights[own]) @ points[:, own].mT)
    weights = torch.cat([small.form.weights, form.weights[~own]])
    if below is not None:
        below = Form(torch.cat([torch.zeros_like(small.form.weights), below.weights[~own]]), below.constant)
    return replace(
        statistic,
        points=torch.cat([small.points, points[:, ~own]], 1),
        form=Form(weights, small.form.constant + form.constant),
        denominator=below,
        likely=None,
    )


def _linear(statistic: PairwiseStatistic, family: Tensor | None, centred: Tensor) -> tuple[Tensor, Tensor]:
    """(weights of J, (r,); the queries J mean u of one user, (q, k)): a ratio's at its value for each histogram."""
    form, below = statistic.form, statistic.denominator
    if family is None:  # the query is not known: all directions of the users' mean vector alike
        if below is not None:
            raise ValueError(
                "prior must be given for a ratio: a histogram, or a few such as class_histograms gives"
            )
        queries = form.weights[:, None] * centred.mT / math.sqrt(len(form.weights))
        return form.weights, queries * statistic.points.norm(dim=1).max()
    means = family @ statistic.points
    if below is None:
        return form.weights, (form.weights * means) @ centred.mT / math.sqrt(len(family))
    above, size = (means.square() @ each.weights + each.constant for each in (form, below))
    if bool((size.abs() <= 1e-9 * statistic.size(below)).any()):
        raise ValueError("prior must hold histograms whose denominator is not 0: no class empty")
    low, high = statistic.limits or (-0.5, 0.5)
    weights = (form.weights - (above / size)[:, None] * below.weights) / size[:, None]
    doubt = below.weights / size[:, None] * UNKNOWN * (high - low)
    queries = torch.cat([weights * means, doubt * means]) @ centred.mT / math.sqrt(len(family))
    return weights.mean(0), queries
