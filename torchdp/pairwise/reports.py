"""Reports about the type itself, by any oracle: the kernel is averaged over pairs of them."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.pairwise.protocol import ROUNDING, PairwiseProtocol, nearest
from torchdp.pairwise.standard import from_kernel
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic, histograms_of, one_kernel
from torchdp.pairwise.variance import (
    NUMBERS_AT_ONCE,
    in_parts,
    pairs_variance,
    symmetric_variance,
    worst_symmetric,
    worst_variance,
)
from torchdp.protocol import Layout, Limits, Relay, Tally, Users
from torchdp.protocol.interval import Error
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.protocol.types import from_messages
from torchdp.randomizers import RandomizedResponse, StrategyMatrix, SubsetSelection
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle
from torchdp.randomizers.alphabet.frequency import FrequencyOracle, StrategyOracle
from torchdp.randomizers.draws import unpack
from torchdp.simplex import onto_simplex

NEAR = 1e-6  # relative gap of the search of a histogram
UNKNOWN = 0.2  # of the range of a ratio: how little it is known when the strategy is made
ROUGH = 1 / 8  # the mean deviation of a kernel from its means over bins, at most, as a share of its own
ROUNDS = 2  # of strategy optimisation: the second knows the noise that the first leaves


@dataclass(frozen=True)
class PairReports(PairwiseProtocol, Relay[Tensor, Tensor, FrequencyOracle]):
    """Each user reports its type by ``client``; the analyst averages the kernel over pairs of decoded reports Z.

    A report is decoded to a vector Z with E Z = u_x, so ((sum Z)^T J (sum Z) - sum Z^T J Z) / (n (n - 1)) is unbiased
    for distinct pairs. Where messages can be listed, how often each came gives both sums, and a tally is drawn from the
    histogram. Sets of bits are too many to be listed: the tally keeps the second sum, coordinate by coordinate, the
    analyst must see each message, and a tally is drawn from messages. The variance is ``pairs_variance``, exactly.

    client: a frequency oracle of the statistic's types, at most epsilon-LDP; or its class, which is made for them at
    epsilon: SubsetSelection, OptimizedUnaryEncoding, SymmetricUnaryEncoding, RandomizedResponse, HadamardResponse. A
    StrategyMatrix must tell types of different vectors apart, and decodes with the least variance under its prior.

    Guarantees: epsilon-LDP for each user (the client's own epsilon, if that is smaller).
    Source: Bell, Bellet, Gascon, Kulkarni (2020), Algorithm 1, for randomized response; here for the reports of Ye,
    Barg (2018), Wang, Blocki, Li, Jha (2017) and McKenna, Maity, Mazumdar, Miklau (2020) too.
    """

    client: Any = SubsetSelection

    def __post_init__(self) -> None:
        checks.instance("statistic", self.statistic, PairwiseStatistic)
        types = self.statistic.types
        make = self.client
        if isinstance(make, type) and issubclass(make, FrequencyOracle):
            object.__setattr__(self, "client", cast(Any, make)(types, self.epsilon))
        checks.instance("client", self.client, FrequencyOracle)
        super().__post_init__()
        if self.client.k != types:
            raise ValueError(f"client must have {types} types, not {self.client.k}")
        if self.client.epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"epsilon must be at least the client's {self.client.epsilon:.9g}, not {self.epsilon!r}"
            )
        if self.listed:
            # Refuses a strategy that can not tell types of different vectors apart.
            checks.validated(self, "output_vectors")

    estimated_pairs = Pairs.DISTINCT

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
    ) -> "PairReports":
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
        flat, own = cls(statistic, epsilon).spread
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
    ) -> "PairReports":
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
            kept = replace(near, approximates=None).exact(family * n) - statistic.offset
            whole = statistic.exact(family * n) - statistic.offset
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

    @property
    def listed(self) -> bool:
        """Whether messages can be listed, so that their counts say all: else users send sets of bits."""
        return not isinstance(self.client, BitVectorOracle)

    @cached_property
    def _alike(self) -> bool:
        """Whether reports treat all types alike: their covariance is ``spread`` then."""
        return isinstance(self.client, BitVectorOracle | RandomizedResponse)

    @property
    def layout(self) -> Layout:
        layout = self.client.layout
        return layout if self.listed else {**layout, "squares": ((self.statistic.dim,), torch.float64)}

    @property
    def users_at_once(self) -> int:  # type: ignore[override]
        """Whose reports are held together: four million bits."""
        return max(1, 2**22 // self.statistic.types)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        counts = self.validate_summary(summary)
        if self.listed:
            return self.client.sample_unchecked(counts, draws, shape)
        return from_messages(self, counts, draws, shape)

    def tally(self, messages: Tensor) -> Tally:
        """The client's; of packed bits (n, ceil(k/64)) also the sum of the squares of the coordinates of Z, (r,)."""
        tally = self.client.tally(messages)
        if self.listed:
            return tally
        centred, middle = self._centred
        bits = unpack(messages)[:, : self.statistic.types].double()
        squares = (bits @ centred / self.client.gap + middle).square().sum(0)
        return Tally(tally.n, {**tally.parts, "squares": squares})

    def limits(self, n: Users) -> dict[str, Limits]:
        limits = self.client.limits(n)
        if self.listed:
            return limits
        (centred, middle), gap = self._centred, self.client.gap
        most = float((centred.abs().sum(0) / gap + middle.abs()).square().max())
        return {**limits, "squares": Limits(0.0, n * most)}

    def impossible(self, tally: Tally) -> str | None:
        if self.listed:
            return self.client.impossible(tally)
        squares, n = tally["squares"], tally.users(1)
        slack = ROUNDING * (squares + self._centred[0].square().sum(0)) * n  # a coordinate may be rounding alone
        if bool((squares * n + slack < self._total(tally).square() * (1 - ROUNDING)).any()):
            return "the squares add up to less than the square of the sum over n"
        return None

    def decoded(self, tally: Tally) -> Tensor:
        """Unbiased counts of the types, (*batch, k); evenly over types that a strategy's outputs can not tell apart."""
        if isinstance(self.client, StrategyMatrix):
            return tally["reports"].double() @ self.client.inverse.mT
        return self.client.totals(tally)

    @cached_property
    def output_vectors(self) -> Tensor:
        """What each message that can be listed is decoded to, (m, r)."""
        if isinstance(self.client, StrategyOracle):
            return self.client.decoder(self.statistic.points.mT).mT
        centred, middle = self._centred
        each = torch.eye(self.client.outputs, dtype=torch.int64, device=centred.device)
        return self.client.totals(Tally(1, {"reports": each})) @ centred + middle

    def mean(self, tally: Tally, form: Form) -> Tensor:
        n = tally.users()
        own = tally["reports"].double() @ self.output_vectors.square() if self.listed else tally["squares"]
        squares = self._total(tally).square() - own
        return (form.weights * squares).sum(-1) / (n * (n - 1)) + form.constant

    def mean_point(self, tally: Tally) -> Tensor:
        return self._total(tally) / tally.users(1)

    def _total(self, tally: Tally) -> Tensor:
        """Sum of Z, (*batch, r)."""
        if self.listed:
            return tally["reports"].double() @ self.output_vectors
        centred, middle = self._centred
        return self.decoded(tally) @ centred + tally.users(1) * middle

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        if not self._alike:
            return pairs_variance(self.statistic.points, self.covariances, counts, form.weights)
        kernel = self.statistic.kernel
        return symmetric_variance(lambda weights: kernel(Form(weights)), *self.spread, counts, form.weights)

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        if not self._alike:
            return worst_variance(self.statistic.points, self.covariances, form.weights, n)
        return worst_symmetric(self.statistic.kernel(Form(form.weights)), *self.spread, n)

    def noise(self, counts: Tensor, points: Tensor) -> Tensor:
        """Covariance of the sum of users' decoded points (k, r) of counts (*batch, k) of users, (*batch, r, r)."""
        if not self._alike:
            return torch.einsum("...x,xst->...st", counts, self.covariances)
        (flat, own), centred = self.spread, points - points.mean(0)
        each = flat * counts.sum(-1, keepdim=True) + own * counts
        return torch.einsum("...x,xs,xt->...st", each, centred, centred)

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """That of ``mean_errors`` but for its slack, a fraction 1/n: without decompositions.

        Where all types are alike at the decoded shares themselves: the variance is linear in them.
        """
        points, n, point = self.statistic.points, tally.users(1), self.mean_point(tally)
        centred = points - points.mean(0)

        def of_alike(shares: Tensor, turned: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            flat, own = self.spread
            each = flat * shares.sum(-1, keepdim=True) + own * shares
            kernel = (centred * weights[..., None, :]) @ centred.mT
            linear = (each * (turned @ centred.mT).square()).sum(-1)
            return linear, (each * (kernel.square() @ each[..., None])[..., 0]).sum(-1)

        def of_each(shares: Tensor, turned: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            noise = self.noise(shares, points)
            linear = torch.einsum("...s,...st,...t->...", turned, noise, turned)
            return linear, torch.einsum("...s,...st,...t->...", weights, noise.square(), weights)

        def part(both: Tensor, weights: Tensor) -> Tensor:
            shares, point = both.tensor_split([self.statistic.types], -1)
            parts = of_alike if self._alike else of_each
            linear, square = parts(shares, weights * point, weights)
            return 4 * (linear - square).clamp_min(0) + 2 * square

        if self._alike:
            shares = self.decoded(tally) / n
            shares = shares + (1 - shares.sum(-1, keepdim=True)) / self.statistic.types
        else:
            shares = nearest(self, tally, NEAR)
        both = torch.cat([shares / n, point], -1)
        found = in_parts(part, both, form.weights, point.shape[-1] * max(self.statistic.points.shape))
        return found * (tally.users() / (tally.users() - 1)) ** 2

    def mean_errors(self, tally: Tally) -> Callable[[Tensor, Tensor], Error]:
        """That of the mean over all pairs, of s^T J s: its range has ends, which the truth may lie at.

        The mean over distinct pairs is n/(n - 1) times it less mean f(x, x), whose own noise counts as independent.
        """
        h, point, n = nearest(self, tally, NEAR), self.mean_point(tally), tally.users()
        squares = self.statistic.points.square()
        decoded = self.decoded(tally) / tally.users(1)
        shares = h / tally.users(1)
        rows = max(1, NUMBERS_AT_ONCE // (squares.shape[1] * max(squares.shape)))

        def parts(values: Tensor, batch: torch.Size) -> tuple[Tensor, ...]:
            return values.expand(*batch, -1).reshape(-1, values.shape[-1]).split(rows)

        def error(weights: Tensor, value: Tensor) -> QuadraticError:
            batch = torch.Size(np.broadcast_shapes(weights.shape, point.shape)[:-1])
            weights = weights.expand(*batch, -1)
            each = zip(parts(shares, batch), parts(point, batch), parts(weights, batch), strict=True)
            found = [self.principal(*some) for some in each]
            curved = torch.cat([one for one, _ in found]).view(*batch, -1)
            linear = torch.cat([one for _, one in found]).view(*batch, -1)
            diagonal = weights @ squares.mT
            apart = diagonal - diagonal.mean(-1, keepdim=True)
            own = (decoded * apart).sum(-1) + diagonal.mean(-1)
            offset = (point.square() * weights).sum(-1) - curved.sum(-1) - ((n - 1) * value + own) / n
            spread = self.client.workload_variance(apart[..., None, :])[..., 0, :]
            slack = ((h * spread).sum(-1).clamp_min(0) / n).sqrt() / n
            return QuadraticError(curved, linear, curved[..., :0], offset, slack).scaled(n / (n - 1))

        return error

    def principal(self, shares: Tensor, point: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """``coordinates`` of the form at mean vectors (rows, r) of users of these shares (rows, k).

        By shares of the types where these are fewer, as of many kernels together.
        """
        points = self.statistic.points
        if self.statistic.dim <= self.statistic.types or not self._alike:
            return coordinates(point * weights, weights.diag_embed(), self.noise(shares, points))
        apart, types = points - points.mean(0), torch.eye(len(points)).to(points)  # noise adds up to 0
        kernel = (apart * weights[..., None, :]) @ apart.mT
        return coordinates((point * weights) @ apart.mT, kernel, self.noise(shares, types))

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

    @cached_property
    def _centred(self) -> tuple[Tensor, Tensor]:
        """The points less their mean over types, and that mean."""
        middle = self.statistic.points.mean(0)
        return self.statistic.points - middle, middle

    @cached_property
    def spread(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0, of a client to which all types are alike."""
        S = self.client.covariance(0)
        pair = float(S[1, 2]) if len(S) > 2 else 0.0  # two types: any value, the two parts then make up for it
        flat = float(S[1, 1]) - pair
        return flat, float(S[0, 0]) - float(S[1, 1]) - 2 * float(S[0, 1]) + 2 * pair

    @cached_property
    def covariances(self) -> Tensor:
        """Cov Z for each type, (k, r, r), centred before squaring."""
        points = self.statistic.points
        types = torch.arange(self.client.k, device=points.device)
        parts = []
        for law, point in zip(self.client.laws(types), points, strict=True):
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
    above = means.square() @ form.weights + form.constant
    size = means.square() @ below.weights + below.constant
    if bool((size.abs() <= 1e-9 * statistic.size(below)).any()):
        raise ValueError("prior must hold histograms whose denominator is not 0: no class empty")
    low, high = statistic.limits or (-0.5, 0.5)
    weights = (form.weights - (above / size)[:, None] * below.weights) / size[:, None]
    doubt = below.weights / size[:, None] * UNKNOWN * (high - low)
    queries = torch.cat([weights * means, doubt * means]) @ centred.mT / math.sqrt(len(family))
    return weights.mean(0), queries
