"""Local mechanisms for linear queries by a frequency oracle's reports.

Notation: W, (m, k), the workload; Q, (outputs, k), the distributions of a strategy's messages; f,
(*batch, outputs), the shares of the reports of n users; h, (*batch, k), shares of types; z,
(*batch, m), the answers; J = diag(weights) and l, linear, of a quadratic form.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape, Simulated
from torchdp.memory import rows_at_once
from torchdp.protocol import Estimate, Objective, Relay, Tally
from torchdp.protocol.interval import Error
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.queries import likelihood
from torchdp.queries.channel import Channel, Fits, Question, histograms_of
from torchdp.queries.pair_variance import (
    NUMBERS_AT_ONCE,
    in_parts,
    pairs_variance,
    symmetric_variance,
    worst_symmetric,
    worst_variance,
)
from torchdp.queries.protocol import dense
from torchdp.queries.release import through
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle
from torchdp.randomizers.alphabet.frequency import FrequencyOracle, StrategyOracle, VarianceMatrix
from torchdp.simplex import onto_simplex

# All that torchdp.randomizers has and no search makes: a test holds the list to the classes.
KINDS: tuple[Callable[[int, float], FrequencyOracle], ...] = (
    RandomizedResponse,
    SubsetSelection,
    OptimizedUnaryEncoding,
    SymmetricUnaryEncoding,
    HadamardResponse,
)

# Outputs times types of a strategy matrix up to which choices decode its reports twice.
ADAPTED = 2**20

# Relative: queries that vary less over types are constant.
CONSTANT = 1e-12

# Of strategy optimisation: the second knows the noise that the first leaves.
ROUNDS = 2

TINY = 1e-300

# Singular values of a strategy below this share of the largest are rounding.
RANK = 1e-9


def frequencies(tally: Tally) -> Tensor:
    """f, the shares of each message among the reports, (*batch, outputs)."""
    return tally["reports"].double() / tally.users(1)


@dataclass(frozen=True, eq=False)
class AdaptedDecoder:
    """Answers of least variance under the histogram that the plain decoder of the reports gives.

    The decoder of least variance under a histogram h is W M^{-1} Q^T D^{-1}, D = diag(Q h), M =
    Q^T D^{-1} Q (``StrategyMatrix``).

    Args:
        client: Q, of which users send an output.
        queries: W, (m, k), in the row space of Q. Unchecked.
    """

    client: StrategyMatrix
    queries: Tensor

    @cached_property
    def _basis(self) -> Tensor:
        """B, (r, k): an orthonormal basis of Q's rows; the identity where these are all of R^k."""
        root = self.client.law.sqrt()[:, None]
        _, sizes, rows = torch.linalg.svd(self.client.matrix / root, full_matrices=False)
        basis = rows[sizes > RANK * sizes[0]]
        if len(basis) == self.client.k:
            # A rotation would mix the scales of types, which a large epsilon sets far from another.
            return self.client.identity
        return basis

    @cached_property
    def _Q(self) -> Tensor:
        """Q in the coordinates B h, (outputs, r)."""
        return self.client.matrix @ self._basis.mT

    @cached_property
    def _W(self) -> Tensor:
        """W in the coordinates B h, (m, r)."""
        return self.queries @ self._basis.mT

    @property
    def _at_once(self) -> int:
        outputs, r = self._Q.shape
        return rows_at_once((outputs + len(self._W)) * r)

    def variance(self, h: Tensor) -> Tensor:
        """Of one user's part in each answer, (*batch, m), for types distributed as h (*batch, k).

        W M^{-1} W^T - sum_x h_x W_x^2.
        """
        variances = []
        squares = self.queries.square().mT
        for part in h.reshape(-1, h.shape[-1]).split(self._at_once):
            weights = self._weights(part @ self.client.matrix.mT)
            variance = self._second(weights) - part @ squares
            # A variance as a difference of squares: less than 0 is rounding.
            variances.append(variance.clamp_min(0))
        return torch.cat(variances).view(*h.shape[:-1], -1)

    def answers(self, tally: Tally) -> tuple[Tensor, Tensor]:
        """W h, (*batch, m), and the variance of one user's part in it."""
        outputs, k = self.client.matrix.shape
        reports = frequencies(tally)
        histograms = self.nearest(tally).reshape(-1, k).split(self._at_once)
        parts = reports.reshape(-1, outputs).split(self._at_once)
        answers = []
        for f, h in zip(parts, histograms, strict=True):
            p = h @ self.client.matrix.mT
            weights = self._weights(p)
            slope = (f / p)[:, None] @ self._Q
            value = (slope @ weights)[:, 0]
            if len(self._basis) == k:
                square = h @ self.queries.square().mT
            else:
                # Reports do not tell all of h: the square of the mean is no more than the mean of
                # squares.
                square = (h @ self.queries.mT).square()
            variance = (self._second(weights) - square).clamp_min(0)
            answers.append(torch.stack([value, variance]))
        shape = (2, *reports.shape[:-1], len(self.queries))
        value, variance = torch.cat(answers, 1).view(shape)
        return value, variance

    def decoders(self, tally: Tally) -> Tensor:
        """What each report of this tally adds to the answers, (*batch, m, outputs)."""
        p = self.nearest(tally) @ self.client.matrix.mT
        return (self._Q @ self._weights(p) / p[..., None]).mT

    def nearest(self, tally: Tally) -> Tensor:
        """The histogram nearest to what the reports tell plainly, (*batch, k)."""
        return onto_simplex(frequencies(tally) @ self.client.inverse.mT)

    def _weights(self, p: Tensor) -> Tensor:
        """M^{-1} W^T for distributions of reports (*batch, outputs): (*batch, r, m)."""
        # M = seen^T seen would lose half of the digits where h has hardly any user of a type.
        seen = self._Q / p.sqrt()[..., None]
        triangle = torch.linalg.qr(seen, mode="r").R
        W = self._W.mT.expand(*p.shape[:-1], -1, -1)
        return torch.cholesky_solve(W, triangle, upper=True)

    def _second(self, weights: Tensor) -> Tensor:
        """The diagonal of W M^{-1} W^T, (*batch, m)."""
        return (weights * self._W.mT).sum(-2)


@dataclass(frozen=True, eq=False)
class OracleQueries(Channel, Relay[Tensor, Tensor, FrequencyOracle]):
    """Each user reports its type through a frequency oracle; a class adds the decoder of reports.

    A constant shift of a query's row changes its answer by a known amount, but also the noise of an
    oracle whose decoded reports do not sum to 1: each row is used less its mean, which is best for
    uniform types.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; client: an oracle on the same k
    types. Raises ValueError, TypeError.
    """

    workload: Tensor
    client: FrequencyOracle

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", dense(self.workload))
        checks.own(self)
        types = checks.instance("client", self.client, FrequencyOracle).k
        if types != self.workload.shape[1]:
            raise ValueError(f"client has k = {types} types, the workload {self.workload.shape[1]}")

    @cached_property
    def _centred(self) -> Tensor:
        return self.workload - self.workload.mean(1, keepdim=True)

    @cached_property
    def variance(self) -> Tensor:
        return self.client.workload_variance(self._centred)

    distinct = True

    @property
    def bias(self) -> Tensor:
        return torch.zeros_like(self.workload)

    def narrowed(self, rows: slice) -> Self:
        return replace(self, workload=self.workload[rows])

    def mean(self, tally: Tally) -> Tensor:
        if isinstance(self.client, StrategyOracle):
            total = tally["reports"].double() @ self.decoded_messages
        else:
            total = self.client.answers(tally, self._centred)
        return total / tally.users(1) + self.workload.mean(1)

    def shares(self, tally: Tally) -> Tensor:
        """Of types; evenly over those that a strategy's outputs can not tell from another."""
        if isinstance(self.client, StrategyMatrix):
            totals = tally["reports"].double() @ self.client.inverse.mT
        else:
            totals = self.client.totals(tally)
        return totals / tally.users(1)

    @cached_property
    def _symmetric(self) -> bool:
        """Whether reports treat all types the same: their covariance is ``_spread`` then."""
        return isinstance(self.client, BitVectorOracle | RandomizedResponse)

    @cached_property
    def _spread(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0, if symmetric."""
        S = self.client.covariance(0)
        # Of two types any value will do: the two parts then make up for it.
        pair = float(S[1, 2]) if len(S) > 2 else 0.0
        other = float(S[1, 1])
        flat = other - pair
        own = float(S[0, 0]) - other - 2 * float(S[0, 1]) + 2 * pair
        return flat, own

    def _diagonal(self, counts: Tensor) -> Tensor:
        """Of the covariance of the sum of users' reports on vectors of sum 0, (*batch, k)."""
        flat, own = self._spread
        return flat * counts.sum(-1, keepdim=True) + own * counts

    @cached_property
    def _covariances(self) -> Tensor:
        """Of a user's decoded vector for each type, (k, r, r), centred before squaring."""
        vectors = self.decoded_messages + self.workload.mean(1)
        types = torch.arange(self.client.k, device=self.workload.device)
        covariances = []
        for chances, point in zip(self.client.laws(types), self.points, strict=True):
            centred = vectors - point
            covariances.append((centred * chances[:, None]).mT @ centred)
        return torch.stack(covariances)

    @cached_property
    def decoded_messages(self) -> Tensor:
        """What each listed message adds to the answers, but for W's means, (outputs, r)."""
        if isinstance(self.client, StrategyOracle):
            return self.client.decoder(self._centred).mT
        # A tally for each message, of one user who has sent it.
        n = self.workload.new_ones(self.client.outputs, dtype=torch.int64)
        return self.client.answers(Tally(n, {"reports": torch.diag(n)}), self._centred)

    def noise(self, counts: Tensor) -> Tensor:
        """Covariance of the sum of decoded vectors, of counts (*batch, k): (*batch, r, r)."""
        if not self._symmetric:
            return torch.einsum("...x,xst->...st", counts, self._covariances)
        return (self._centred * self._diagonal(counts)[..., None, :]) @ self._centred.mT

    def covariance(self, counts: Tensor) -> Tensor:
        counts = counts.double()
        return self.noise(counts) / counts.sum(-1)[..., None, None].square()

    def plausible(self, tally: Tally) -> Tensor:
        return self.noise(self.nearest(tally)) / tally.users(2)

    def third(self, counts: Tensor, T: Tensor) -> Tensor | None:
        if not isinstance(self.client, BitVectorOracle):
            return None
        W = self._centred
        flat, own = self._spread
        every, at_own, beside_own = self.client.third_moment
        turned = torch.einsum("abc,ax,by,cz->xyz", T, W, W, W)
        traces = turned.diagonal().sum(-1)
        cubes = turned.diagonal().diagonal()
        # E (Z - e_x)^3 = E Z^3 - 3 (Cov Z + e_x^2) e_x + 2 e_x^3 for a report Z of mean e_x.
        third = every * cubes.sum() + (beside_own - 3 * flat) * traces
        return counts @ (third + (at_own - 3 * own - 1) * cubes)

    def form(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """(sum Z)^T J (sum Z) less sum Z^T J Z, over n (n - 1), for decoded reports Z.

        How often each message came gives both sums where messages can be listed. Of sets of bits
        the second is put at its mean given the decoded shares, which adds a fraction 1/n to the
        variance.
        """
        n = tally.users(1)
        z = self.mean(tally)
        if self.client.entry_variance is None:
            vectors = self.decoded_messages + self.workload.mean(1)
            squares = tally["reports"].double() @ vectors.square() / n
        else:
            moments = self.points.square() + self.variance.mT  # E Z^2 for each type
            shares = self.shares(tally)
            # Decoded bits do not sum to 1: what is missing counts as even shares.
            shortfall = 1 - shares.sum(-1, keepdim=True)
            squares = shares @ moments
            squares = squares + shortfall * moments.mean(0)
        pairs = weights * (n * z.square() - squares) / (n - 1)
        return (pairs + linear * z).sum(-1)

    def form_variance(self, counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        counts = counts.double()
        if not self._symmetric:
            return pairs_variance(self.points, self._covariances, counts, weights, linear)
        return symmetric_variance(self.points, *self._spread, counts, weights, linear)

    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        if not self._symmetric:
            return worst_variance(self.points, self._covariances, weights, linear, n)
        return worst_symmetric(self.points, *self._spread, weights, linear, n)

    def form_plug_in(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """That of ``form_errors`` but for its slack, a fraction 1/n: without decompositions.

        Of a symmetric client at the decoded shares themselves: the variance is linear in them.
        """
        n = tally.users(1)
        k = self.client.k
        if self._symmetric:
            shares = self.shares(tally)
            shares = shares + (1 - shares.sum(-1, keepdim=True)) / k
        else:
            shares = self.nearest(tally)
        point = self.mean(tally)
        scale = torch.zeros_like(point[..., :1]) + (n - 1) / (2 * n)
        given = torch.cat([shares / n, point, scale], -1)

        def part(given: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
            shares, point, scale = given.tensor_split([k, given.shape[-1] - 1], -1)
            straight, square = self._variances(shares, weights * point + linear * scale, weights)
            return 4 * (straight - square).clamp_min(0) + 2 * square

        numbers = len(self.workload) * max(self.workload.shape)
        users = tally.users()
        return in_parts(part, given, weights, linear, numbers) * (users / (users - 1)) ** 2

    def _variances(self, counts: Tensor, slope: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Var slope . e, tr(J Cov J Cov)) for the noise e of the sum of such users' vectors."""
        if not self._symmetric:
            noise = self.noise(counts)
            straight = torch.einsum("...s,...st,...t->...", slope, noise, slope)
            return straight, torch.einsum("...s,...st,...t->...", weights, noise.square(), weights)
        centred = self._centred.mT
        diagonal = self._diagonal(counts)
        kernel = (centred * weights[..., None, :]) @ centred.mT
        straight = (diagonal * (slope @ centred.mT).square()).sum(-1)
        curved = (kernel.square() @ diagonal[..., None])[..., 0]
        return straight, (diagonal * curved).sum(-1)

    def form_errors(self, tally: Tally) -> Callable[[Tensor, Tensor, Tensor], Error]:
        """That of the mean over all pairs, of s^T J s: its range has ends, where the truth may lie.

        The mean over distinct pairs is n/(n - 1) times it less mean f(x, x), whose own noise counts
        as independent.
        """
        n = tally.users()
        h = self.nearest(tally)
        point = self.mean(tally)
        decoded = self.shares(tally)
        shares = h / tally.users(1)
        squares = self.points.square()

        def error(weights: Tensor, linear: Tensor, value: Tensor) -> QuadraticError:
            # Of s^T J s + l' . s, l' = l (n - 1)/n, which n/(n - 1) times is the form.
            linear = linear * ((tally.users(1) - 1) / tally.users(1))
            half = weights * point + linear / 2
            weights = weights.expand(half.shape)
            curved, straight = self._coordinates(shares, half, weights)
            at_point = ((half + linear / 2) * point).sum(-1)
            # f(x, x) of each type, and its mean over the users.
            diagonal = weights @ squares.mT
            centred = diagonal - diagonal.mean(-1, keepdim=True)
            own = (decoded * centred).sum(-1) + diagonal.mean(-1)
            offset = at_point - curved.sum(-1) - ((n - 1) * value + own) / n
            spread = centred  # of no repetition
            if centred.numel():
                spread = self.client.workload_variance(centred[..., None, :])[..., 0, :]
            variance = (h * spread).sum(-1).clamp_min(0)
            slack = (variance / n).sqrt() / n
            all_pairs = QuadraticError(curved, straight, curved[..., :0], offset, slack)
            return all_pairs.scaled(n / (n - 1))

        return error

    def _coordinates(self, shares: Tensor, half: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """``coordinates`` of forms of half gradients (*batch, r), a bounded number at a time."""
        r, k = self.workload.shape
        rows = max(1, NUMBERS_AT_ONCE // (r * max(r, k)))

        def parts(values: Tensor) -> tuple[Tensor, ...]:
            wide = values.expand(*half.shape[:-1], -1)
            return wide.reshape(-1, wide.shape[-1]).split(rows)

        found = []
        for some, gradient, J in zip(parts(shares), parts(half), parts(weights), strict=True):
            principal = coordinates(gradient, J.diag_embed(), self.noise(some))
            found.append(torch.stack(principal))
        return torch.cat(found, 1).view(2, *half.shape).unbind()

    def fits(self, tally: Tally, ordered: bool) -> Fits:
        """By the distributions of listed messages; but for a strategy's, projections as well."""
        client = self.client
        n = tally.users()
        reports = tally["reports"].double()
        if isinstance(client, StrategyMatrix | ShiftStrategy):
            found, gap = likelihood.fits(client, reports, ordered)
            _, scores, covariances = likelihood.judged(client, reports, found, self.workload)
            telling = client.epsilon >= likelihood.TELLING
            if ordered and telling and client.k <= likelihood.MERGED:
                near = likelihood.nearest_answers(client, reports, self.workload)
                # Before the last, which is the plain fit.
                found = torch.cat([found[:-1], near[0], found[-1:]])
                scores = torch.cat([scores[:-1], near[1], scores[-1:]])
                covariances = torch.cat([covariances[:-1], near[2], covariances[-1:]])
            return found, scores, covariances, gap
        shares = client.totals(tally) / tally.users(1)
        # A projection weighs all entries alike: by their mean variance under even shares.
        even = torch.full_like(shares[:1], 1 / client.k)
        noise = client.variance.under(even).mean()
        gram = client.identity.to(shares) / noise
        step = client.variance.step / (noise * tally.users(1))
        found, freedoms, covariances, gap = likelihood.projections(
            gram, shares / noise, n, ordered, self.workload, step
        )
        covariances = covariances / n
        if ordered and client.entry_variance is None:
            likely, _ = likelihood.fits(client, reports, ordered)
            found = torch.cat([likely, found])
            own_freedoms, _, own = likelihood.judged(client, reports, likely, self.workload)
            freedoms = torch.cat([own_freedoms, freedoms])
            covariances = torch.cat([own, covariances])
        # Of a symmetric client, each entry by its own variance: 2 d - k + distance, below k.
        distances = (found - shares).square() / client.variance.under(found).clamp_min(TINY)
        scores = client.k - freedoms - n * distances.sum(-1) / 2
        return found, scores, covariances, gap

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_unchecked(x, draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        return self.client.sample_unchecked(summary, draws, shape)


@dataclass(frozen=True, eq=False)
class LocalOracle(OracleQueries):
    """Each user reports its type through a frequency oracle; answers are read off the tally.

    Intervals hold each possible answer that is likely under the variance at that answer, half a
    step of the reports' values added; ``standard_error`` is that at the possible answer nearest to
    the value. What the answer does not tell of the variance is that of the decoded shares, or of
    the nearest histogram where that is more; of the worst type where the oracle tells no types
    apart one by one. Coverage of 95 % intervals (experiments/league/local_coverage.py): .938 or
    more of two types and up to 200 users, enumerated; .926 or more of 2 to 1,024 types from 30
    users on.

    adapted: a strategy's reports are decoded a second time, for the histogram that the plain
    decoder gives in the place of the public prior. Whatever the histogram, the answers have no bias
    but by its noise, of order 1/n, measured below the standard error from 30 users on. They are
    those of the efficient estimate: their variance is sum_x h_x Var(V | x)/n at the users' own h to
    first order in 1/n, never more than the plain decoder's, and the worst data are no worse
    (minimax: the plain decoder is that of the least favourable prior). ``predicted_mse`` is then
    the first order; ``worst_mse`` that of the plain decoder.

    Args:
        workload: (m, k) or a :class:`~torchdp.workloads.Workload`.
        client: an oracle on the same k types that can answer it.
        adapted: True only of a ``StrategyMatrix``.

    Raises ValueError, TypeError.

    Guarantees: the client's own, for each user: what is decoded twice was sent once.
    Source: Wang, Blocki, Li, Jha (2017); McKenna, Maity, Mazumdar, Miklau (2020) for strategy
    matrices; Neyman (1949), one step from an estimate to an efficient one.
    """

    adapted: bool = False

    @classmethod
    def of(cls, question: Question, client: FrequencyOracle) -> Any:
        """The protocol that answers a question from the reports of ``client``.

        Raises TypeError, ValueError.
        """
        return through(question, cls(cls.queries_of(question), client))

    @classmethod
    def tuned(
        cls,
        question: Question,
        n: int,
        epsilon: float,
        *,
        prior: Tensor | None = None,
        generator: torch.Generator,
        steps: int = 500,
    ) -> Any:
        """The protocol that answers a question by a strategy matrix optimised for it, for n users.

        To first order the error is the variance of the question's ``aims``, linear queries, of
        which those of second order need the covariance of a report: that of random subsets in the
        first round, and that of the strategy found in the second, which takes a third of the steps
        from there. The better round is returned, decoded for the prior.

        Args:
            question: of up to some hundred types.
            n: users.
            epsilon: of each.
            prior: public histograms that the users' is like, (k,) or (j, k), the best for all of
                them together; None: for the worst type.
            generator: for where the search begins.
            steps: of the search.

        Raises TypeError, ValueError.
        Guarantees: epsilon-LDP for each user.
        Source: McKenna, Maity, Mazumdar, Miklau (2020), the optimisation; the linearisation is made
        here.
        """
        n = checks.integer("n", n, 1)
        epsilon = checks.positive("epsilon", epsilon)
        W = cls.queries_of(question)
        k = question.types
        if prior is None:
            family = None
            mixed = None
            h = W.new_full((k,), 1 / k)
            data = torch.eye(k).to(W)
        else:
            family = histograms_of(prior, k).to(W)
            data = family
            h = family.mean(0)
            # No type is left out: the users' histogram is only like the prior.
            mixed = 0.98 * h + 0.02 / k
        covariance = cls(W, SubsetSelection(k, epsilon)).noise(h)
        protocols = []
        best: StrategyMatrix | None = None
        for _ in range(ROUNDS):
            aims = question.aims(n, family, covariance)
            centred = aims - aims.mean(1, keepdim=True)
            if not (centred.abs() > CONSTANT * aims.abs().max()).any():
                raise ValueError("question must not be constant near the prior")
            if best is None:
                best = StrategyMatrix.tuned(
                    centred, epsilon, mixed, generator=generator, steps=steps
                )
            else:  # the aims after the first round are near those before
                best = best.improved(centred, mixed, Objective.MEAN, steps // 3)
            if prior is not None:
                best = StrategyMatrix(best.matrix, 0.99 * h + 0.01 / k)
            channel = cls(W, best)
            protocols.append(through(question, channel))
            covariance = channel.noise(h)
        with warnings.catch_warnings():
            # Of a denominator that is not known well: what is chosen warns again.
            warnings.simplefilter("ignore")
            users = data * max(n, 2)
            return min(protocols, key=lambda protocol: float(protocol.predicted_mse(users).max()))

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.instance("adapted", self.adapted, bool)
        if self.adapted:
            checks.instance("client", self.client, StrategyMatrix)
        # Refuses queries that the client's reports can not answer.
        checks.validated(self, "variance")

    @cached_property
    def _adapted(self) -> AdaptedDecoder | None:
        if self.adapted and isinstance(self.client, StrategyMatrix):
            return AdaptedDecoder(self.client, self._centred)
        return None

    @property
    def variance_proxy(self) -> Tensor:
        if self.adapted:
            return super().variance_proxy
        return self.client.workload_proxy(self._centred)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), for counts (*batch, k). Raises TypeError, ValueError."""
        if self._adapted is None:
            return super().predicted_mse(summary)
        h, n = self._shares(summary)
        return self._adapted.variance(h) / n

    def analyse(self, tally: Tally) -> Estimate:
        kept = self.check(tally).kept()
        noise = None
        if self._adapted is not None:
            value, noise = self._adapted.answers(kept)
            value = value + self.workload.mean(1)
            shares = self._adapted.nearest(kept)
        else:
            value = self.mean(kept)
            try:
                shares = self.client.totals(kept) / kept.users(1)
            except ValueError:
                # Of a strategy matrix of rank below k: the noise is that of the worst type.
                shares = onto_simplex(self.shares(kept))
                noise = self.variance.amax(1)
        estimate = self._variances_of_types.estimate(value, shares, kept, self.possible, noise)
        return replace(
            estimate,
            population=partial(self._of_population, estimate, kept),
            covariance=partial(self._joint, kept, estimate.standard_error),
        )

    @cached_property
    def _variances_of_types(self) -> VarianceMatrix:
        step = self.client.workload_step(self._centred)
        return VarianceMatrix(self.variance, self.workload, step)

    def _of_population(self, estimate: Estimate, tally: Tally) -> Estimate:
        """The covariance is that of the messages where these can be listed."""
        whole = estimate.of_population()
        if self.client.entry_variance is not None:
            return whole
        return replace(whole, covariance=lambda: self._of_messages(tally) / tally.users(2))

    def _joint(self, tally: Tally, error: Tensor) -> Tensor:
        """Of answers with these standard errors, by the correlations at the nearest histogram."""
        noise = self.plausible(tally) if self._adapted is None else self._of_messages(tally)
        deviation = torch.linalg.diagonal(noise).clamp_min(TINY).sqrt()
        scale = error / deviation
        return noise * scale[..., None] * scale[..., None, :]

    def _of_messages(self, tally: Tally) -> Tensor:
        """Covariance of one user's decoded message, (*batch, m, m), as messages came."""
        f = frequencies(tally)
        # V, what each message adds to the answers but for W's means: (m, outputs).
        V = self.decoded_messages.mT
        if self._adapted is not None:
            V = self._adapted.decoders(tally)
        centred = V - V @ f[..., None]
        return (centred * f[..., None, :]) @ centred.mT


def decoding(workload: Tensor, client: FrequencyOracle) -> LocalOracle:
    """A strategy matrix that is not large is decoded for the data that its reports show."""
    adapted = isinstance(client, StrategyMatrix) and client.matrix.numel() <= ADAPTED
    return LocalOracle(workload, client, adapted)
