"""Local mechanisms for linear queries: a frequency oracle's reports, with their decoder, and
factorizations.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.memory import rows_at_once
from torchdp.privacy import Guarantee
from torchdp.protocol import Crowd, Estimate, Relay, Tally
from torchdp.protocol.interval import Error
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.queries import likelihood
from torchdp.queries.channel import Channel, Fits, Question, histograms_of
from torchdp.queries.likelihood import projections
from torchdp.queries.pair_variance import (
    NUMBERS_AT_ONCE,
    NoiseMoments,
    in_parts,
    noise_moments,
    pairs_variance,
    symmetric_variance,
    worst_symmetric,
    worst_variance,
)
from torchdp.queries.protocol import FactoredProtocol, FactoredQueries, dense
from torchdp.queries.release import through
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle
from torchdp.randomizers.alphabet.frequency import FrequencyOracle, StrategyOracle, VarianceMatrix
from torchdp.randomizers.ball.ball import BallRandomizer, check_client
from torchdp.simplex import onto_simplex

# All that torchdp.randomizers has and no search makes: a test holds the list to the classes.
KINDS: tuple[Callable[[int, float], FrequencyOracle], ...] = (
    RandomizedResponse,
    SubsetSelection,
    OptimizedUnaryEncoding,
    SymmetricUnaryEncoding,
    HadamardResponse,
)
# outputs times types of a strategy matrix up to which choices decode its reports twice
ADAPTED = 2**20
CONSTANT = 1e-12  # relative: queries that vary less over types are constant
ROUNDS = 2  # of strategy optimisation: the second knows the noise that the first leaves
TINY = 1e-300
RANK = 1e-9  # singular values of a strategy below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class AdaptedDecoder:
    """Answers of least variance under the histogram that the plain decoder of the same reports
    gives.

    Q: the strategy, (outputs, k). The decoder of least variance under a histogram h is W M^{-1} Q^T
    D^{-1}, D = diag(Q h), M = Q^T D^{-1} Q (``StrategyMatrix``).

    Args:
        client: Q, of which users send an output.
        queries: W, (m, k), in the row space of Q. Unchecked.
    """

    client: StrategyMatrix
    queries: Tensor

    @cached_property
    def _small(self) -> tuple[Tensor, Tensor, bool]:
        """In coordinates B h, B an orthonormal basis of Q's rows: Q, (outputs, r), W, (m, r);
        whether r is k.
        """
        root = self.client.law.sqrt()[:, None]
        _, size, rows = torch.linalg.svd(self.client.matrix / root, full_matrices=False)
        basis = rows[size > RANK * size[0]]
        full = len(basis) == self.client.k
        if full:  # a rotation would mix the scales of types, which a large epsilon sets far apart
            basis = self.client.identity
        return self.client.matrix @ basis.mT, self.queries @ basis.mT, full

    def variance(self, h: Tensor) -> Tensor:
        """Of one user's part in each answer, (*batch, m), where types are distributed as h
        (*batch, k).
        """
        rows = h.reshape(-1, h.shape[-1])
        parts = [self._decoded(part)[1] for part in rows.split(self._at_once)]
        return torch.cat(parts).view(*h.shape[:-1], -1)

    def answers(self, tally: Tally) -> tuple[Tensor, Tensor]:
        """W h, (*batch, m), and the variance of one user's part in it."""
        f = tally["reports"].double() / tally.users(1)
        histograms = self.nearest(tally).reshape(-1, self.client.k)
        reports = f.reshape(-1, f.shape[-1])
        values = []
        variances = []
        size = self._at_once
        for h, each in zip(histograms.split(size), reports.split(size), strict=True):
            value, variance = self._decoded(h, each)
            values.append(value)
            variances.append(variance)
        shape = (*f.shape[:-1], len(self.queries))
        return torch.cat(values).view(shape), torch.cat(variances).view(shape)

    def decoders(self, tally: Tally) -> Tensor:
        """What each report of this tally adds to the answers, (*batch, m, outputs)."""
        Q, _, _ = self._small
        h = self.nearest(tally)
        law = h @ self.client.matrix.mT
        return (Q @ self._weights(law) / law[..., None]).mT

    def nearest(self, tally: Tally) -> Tensor:
        """The histogram nearest to what the reports tell plainly, (*batch, k)."""
        f = tally["reports"].double() / tally.users(1)
        return onto_simplex(f @ self.client.inverse.mT)

    def _weights(self, law: Tensor) -> Tensor:
        """M^{-1} W^T for distributions of reports (*batch, outputs): (*batch, r, m)."""
        Q, W, _ = self._small
        # M = seen^T seen would lose half of the digits: an h of few types has few
        seen = Q / law.sqrt()[..., None]
        triangle = torch.linalg.qr(seen, mode="r").R
        return torch.cholesky_solve(W.mT.expand(*law.shape[:-1], -1, -1), triangle, upper=True)

    @property
    def _at_once(self) -> int:
        Q, W, _ = self._small
        return rows_at_once((len(Q) + len(W)) * Q.shape[1])

    def _decoded(self, h: Tensor, reports: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Answers from shares of reports (b, outputs), W h without them, and one user's variance
        under h (b, k).

        The variance is W M^{-1} W^T - sum_x h_x W_x^2; of an h that reports do not tell the last
        counts as (W h)^2, which is no more.
        """
        Q, W, full = self._small
        law = h @ self.client.matrix.mT  # (b, outputs)
        weights = self._weights(law)  # (b, r, m)
        second = (weights * W.mT).sum(-2)
        if full or reports is None:
            mean = h @ self.queries.square().mT
        else:
            mean = (h @ self.queries.mT).square()
        value = second if reports is None else (((reports / law)[:, None] @ Q) @ weights)[:, 0]
        return value, (second - mean).clamp_min(0)


@dataclass(frozen=True, eq=False)
class OracleQueries(Channel, Relay[Tensor, Tensor, FrequencyOracle]):
    """Each user reports its type through a frequency oracle; a class adds how the analyst decodes
    the reports.

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
        if checks.instance("client", self.client, FrequencyOracle).k != self.workload.shape[1]:
            raise ValueError(
                f"client has k = {self.client.k} types, the workload {self.workload.shape[1]}"
            )

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
        """Of types; evenly over those that a strategy's outputs can not tell apart."""
        if isinstance(self.client, StrategyMatrix):
            totals = tally["reports"].double() @ self.client.inverse.mT
        else:
            totals = self.client.totals(tally)
        return totals / tally.users(1)

    @cached_property
    def _alike(self) -> bool:
        """Whether reports treat all types alike: their covariance is ``_spread`` then."""
        return isinstance(self.client, BitVectorOracle | RandomizedResponse)

    @cached_property
    def _spread(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0, of a client to which all
        types are alike.
        """
        S = self.client.covariance(0)
        # Of two types any value will do: the two parts then make up for it.
        pair = float(S[1, 2]) if len(S) > 2 else 0.0
        flat = float(S[1, 1]) - pair
        own = float(S[0, 0]) - float(S[1, 1]) - 2 * float(S[0, 1]) + 2 * pair
        return flat, own

    @cached_property
    def _covariances(self) -> Tensor:
        """Of a user's decoded vector for each type, (k, r, r), centred before squaring."""
        vectors = self.decoded_messages + self.workload.mean(1)
        types = torch.arange(self.client.k, device=self.workload.device)
        parts = []
        for chances, point in zip(self.client.laws(types), self.points, strict=True):
            centred = vectors - point
            parts.append((centred * chances[:, None]).mT @ centred)
        return torch.stack(parts)

    @cached_property
    def decoded_messages(self) -> Tensor:
        """What each message that can be listed adds to the answers, but for W's means,
        (outputs, r).
        """
        if isinstance(self.client, StrategyOracle):
            return self.client.decoder(self._centred).mT
        n = torch.ones(self.client.outputs, dtype=torch.int64, device=self.workload.device)
        return self.client.answers(Tally(n, {"reports": torch.diag(n)}), self._centred)

    def noise(self, counts: Tensor) -> Tensor:
        """Covariance of the sum of the users' decoded vectors, of counts (*batch, k):
        (*batch, r, r).
        """
        if not self._alike:
            return torch.einsum("...x,xst->...st", counts, self._covariances)
        flat, own = self._spread
        each = flat * counts.sum(-1, keepdim=True) + own * counts
        return (self._centred * each[..., None, :]) @ self._centred.mT

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
        each = (
            every * cubes.sum() + (beside_own - 3 * flat) * traces + (at_own - 3 * own - 1) * cubes
        )
        return counts @ each

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
            squares = self.shares(tally) @ (self.points.square() + self.variance.mT)
            shortfall = 1 - self.shares(tally).sum(-1, keepdim=True)
            squares = squares + shortfall * (self.points.square() + self.variance.mT).mean(0)
        return (weights * (n * z.square() - squares) / (n - 1) + linear * z).sum(-1)

    def form_variance(self, counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        counts = counts.double()
        if not self._alike:
            return pairs_variance(self.points, self._covariances, counts, weights, linear)
        return symmetric_variance(self.points, *self._spread, counts, weights, linear)

    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        if not self._alike:
            return worst_variance(self.points, self._covariances, weights, linear, n)
        return worst_symmetric(self.points, *self._spread, weights, linear, n)

    def form_plug_in(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """That of ``form_errors`` but for its slack, a fraction 1/n: without decompositions.

        Where all types are alike at the decoded shares themselves: the variance is linear in them.
        """
        n = tally.users(1)
        k = self.client.k
        centred = self._centred.mT

        def of_alike(shares: Tensor, turned: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            flat, own = self._spread
            each = flat * shares.sum(-1, keepdim=True) + own * shares
            kernel = (centred * weights[..., None, :]) @ centred.mT
            straight = (each * (turned @ centred.mT).square()).sum(-1)
            return straight, (each * (kernel.square() @ each[..., None])[..., 0]).sum(-1)

        def of_each(shares: Tensor, turned: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
            noise = self.noise(shares)
            straight = torch.einsum("...s,...st,...t->...", turned, noise, turned)
            return straight, torch.einsum("...s,...st,...t->...", weights, noise.square(), weights)

        def part(given: Tensor, asked: Tensor) -> Tensor:
            shares, point, scale = given.tensor_split([k, given.shape[-1] - 1], -1)
            weights, linear = asked.tensor_split(2, -1)
            parts = of_alike if self._alike else of_each
            straight, square = parts(shares, weights * point + linear * scale, weights)
            return 4 * (straight - square).clamp_min(0) + 2 * square

        if self._alike:
            shares = self.shares(tally)
            shares = shares + (1 - shares.sum(-1, keepdim=True)) / k
        else:
            shares = self.nearest(tally)
        point = self.mean(tally)
        scale = (n - 1) / (2 * torch.as_tensor(n, dtype=torch.float64, device=point.device))
        given = torch.cat([shares / n, point, scale.expand(*point.shape[:-1], 1)], -1)
        asked = torch.cat(torch.broadcast_tensors(weights, linear), -1)
        found = in_parts(part, given, asked, len(self.workload) * max(self.workload.shape))
        return found * (tally.users() / (tally.users() - 1)) ** 2

    def form_errors(self, tally: Tally) -> Callable[[Tensor, Tensor, Tensor], Error]:
        """That of the mean over all pairs, of s^T J s: its range has ends, which the truth may lie
        at.

        The mean over distinct pairs is n/(n - 1) times it less mean f(x, x), whose own noise counts
        as independent.
        """
        n = tally.users()
        h = self.nearest(tally)
        point = self.mean(tally)
        decoded = self.shares(tally)
        shares = h / tally.users(1)
        squares = self.points.square()
        rows = max(1, NUMBERS_AT_ONCE // (squares.shape[1] * max(squares.shape)))

        def parts(values: Tensor, batch: torch.Size) -> tuple[Tensor, ...]:
            return values.expand(*batch, -1).reshape(-1, values.shape[-1]).split(rows)

        def error(weights: Tensor, linear: Tensor, value: Tensor) -> QuadraticError:
            # Of s^T J s + l' . s, l' = l (n - 1)/n, which n/(n - 1) times is the form
            linear = linear * ((tally.users(1) - 1) / tally.users(1))
            half = weights * point + linear / 2
            batch = half.shape[:-1]
            weights = weights.expand(half.shape)
            some = zip(parts(shares, batch), parts(half, batch), parts(weights, batch), strict=True)
            found = [self._principal(*each) for each in some]
            curved = torch.cat([one for one, _ in found])
            curved = curved.view(*batch, curved.shape[-1])
            straight = torch.cat([one for _, one in found]).view(curved.shape)
            diagonal = weights @ squares.mT
            apart = diagonal - diagonal.mean(-1, keepdim=True)
            own = (decoded * apart).sum(-1) + diagonal.mean(-1)
            at_point = ((half + linear / 2) * point).sum(-1)
            offset = at_point - curved.sum(-1) - ((n - 1) * value + own) / n
            spread = apart  # of no repetition
            if apart.numel():
                spread = self.client.workload_variance(apart[..., None, :])[..., 0, :]
            slack = ((h * spread).sum(-1).clamp_min(0) / n).sqrt() / n
            return QuadraticError(curved, straight, curved[..., :0], offset, slack).scaled(
                n / (n - 1)
            )

        return error

    def _principal(self, shares: Tensor, half: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """``coordinates`` of forms of half gradients (rows, r), for users of these shares
        (rows, k).

        By shares of the types where these are fewer, as of many kernels together.
        """
        r, k = self.workload.shape
        if r <= k or not self._alike:
            return coordinates(half, weights.diag_embed(), self.noise(shares))
        centred = self._centred.mT
        kernel = (centred * weights[..., None, :]) @ centred.mT
        flat, own = self._spread
        each = flat * shares.sum(-1, keepdim=True) + own * shares
        middle = torch.eye(k).to(centred) - 1 / k
        noise = (middle * each[..., None, :]) @ middle
        return coordinates(half @ centred.mT, kernel, noise)

    def fits(self, tally: Tally, ordered: bool) -> Fits:
        """By the distributions of messages that can be listed; but for a strategy's, projections as
        well.
        """
        client, n = self.client, tally.users()
        reports = tally["reports"].double()
        if isinstance(client, StrategyMatrix | ShiftStrategy):
            found, freedoms, gap = likelihood.fits(client, reports, ordered)
            return found, *likelihood.advantages(client, reports, found, freedoms), gap
        shares = client.totals(tally) / tally.users(1)
        noise = client.variance.under(torch.full_like(shares[:1], 1 / client.k)).mean()
        eye = client.identity.to(shares)
        found, freedoms, gap = projections(eye / noise, shares / noise, n, ordered)
        if ordered and client.entry_variance is None:
            likely, free, _ = likelihood.fits(client, reports, ordered)
            found, freedoms = torch.cat([likely, found]), torch.cat([free, freedoms])
        # of entries alike, each by its own variance: 2 d - k + distance, below k
        away = (found - shares).square() / client.variance.under(found).clamp_min(TINY)
        scores = client.k - freedoms - n * away.sum(-1) / 2
        return found, scores, freedoms / client.k, gap

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_unchecked(x, draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(summary, draws, shape)


@dataclass(frozen=True, eq=False)
class LocalOracle(OracleQueries):
    """Each user reports its type through a frequency oracle; the analyst reads the answers off the
    tally of reports.

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
    matrices; Neyman (1949),
        one step from an estimate to an efficient one.
    """

    adapted: bool = False

    @classmethod
    def of(cls, question: Question, client: FrequencyOracle) -> Any:
        """The protocol that answers a question from the reports of ``client``. Raises TypeError,
        ValueError.
        """
        checks.instance("question", question, Question)
        return through(question, cls(question.queries(cls.distinct), client))

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
        first round, and that of the strategy found in the second. The better round is returned,
        decoded for the prior; without one the second round takes a third of the steps.

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
        W = checks.instance("question", question, Question).queries(cls.distinct)
        k = question.types
        family = None if prior is None else histograms_of(prior, k).to(W)
        h = torch.full((k,), 1 / k, dtype=torch.float64).to(W) if family is None else family.mean(0)
        law = None if family is None else 0.98 * h + 0.02 / k
        covariance = cls(W, SubsetSelection(k, epsilon)).noise(h)
        found = []
        for again in range(ROUNDS):
            aims = question.aims(n, family, covariance)
            centred = aims - aims.mean(1, keepdim=True)
            if not bool((centred.abs() > CONSTANT * aims.abs().max()).any()):
                raise ValueError("question must not be constant near the prior")
            # the aims after the first round are near those before
            effort = steps // 3 if again and prior is None else steps
            best = StrategyMatrix.tuned(centred, epsilon, law, generator=generator, steps=effort)
            strategy = best if prior is None else StrategyMatrix(best.matrix, 0.99 * h + 0.01 / k)
            channel = cls(W, strategy)
            found.append(through(question, channel))
            covariance = channel.noise(h)
        users = (torch.eye(k).to(W) if family is None else family) * max(n, 2)
        with warnings.catch_warnings():
            # of a denominator that is not known well: told of what is chosen
            warnings.simplefilter("ignore")
            errors = [float(one.predicted_mse(users).max()) for one in found]
        return found[errors.index(min(errors))]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.instance("adapted", self.adapted, bool)
        if self.adapted:
            checks.instance("client", self.client, StrategyMatrix)
        # refuses queries that the client's reports can not answer
        checks.validated(self, "variance")

    @cached_property
    def _adapted(self) -> AdaptedDecoder | None:
        if not self.adapted or not isinstance(self.client, StrategyMatrix):
            return None
        return AdaptedDecoder(self.client, self._centred)

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
        if self._adapted is None:
            value = self.mean(kept)
            try:
                shares = self.client.totals(kept) / kept.users(1)
            except ValueError:
                # Of a strategy matrix of rank below k: the noise is that of the worst type.
                shares = onto_simplex(self.shares(kept))
                noise = self.variance.amax(1)
        else:
            value, noise = self._adapted.answers(kept)
            value = value + self.workload.mean(1)
            shares = self._adapted.nearest(kept)
        found = self._law.estimate(value, shares, kept, self.possible, noise)
        return replace(
            found,
            population=partial(self._of_population, found, kept),
            covariance=partial(self._joint, kept, found.standard_error),
        )

    @cached_property
    def _law(self) -> VarianceMatrix:
        step = self.client.workload_step(self._centred)
        return VarianceMatrix(self.variance, self.workload, step)

    def _of_population(self, found: Estimate, tally: Tally) -> Estimate:
        """The covariance is that of the messages where these can be listed."""
        whole = found.of_population()
        if self.client.entry_variance is not None:
            return whole
        return replace(whole, covariance=lambda: self._of_messages(tally) / tally.users(2))

    def _joint(self, tally: Tally, error: Tensor) -> Tensor:
        """Of answers with these standard errors: their correlations are those at the nearest
        histogram.
        """
        noise = self.plausible(tally) if self._adapted is None else self._of_messages(tally)
        deviation = noise.diagonal(dim1=-2, dim2=-1).clamp_min(TINY).sqrt()
        scale = error / deviation
        return noise * scale[..., None] * scale[..., None, :]

    def _of_messages(self, tally: Tally) -> Tensor:
        """Covariance of one user's decoded message, (*batch, m, m), as the messages that came are
        distributed.
        """
        f = tally["reports"].double() / tally.users(1)
        V = self.decoded(tally)
        centred = V - V @ f[..., None]
        return (centred * f[..., None, :]) @ centred.mT

    def decoded(self, tally: Tally) -> Tensor:
        """V, (m, outputs) or (*batch, m, outputs): what each message adds to the answers, but for
        W's means.
        """
        if self._adapted is not None:
            return self._adapted.decoders(tally)
        return self.decoded_messages.mT


def decoding(workload: Tensor, client: FrequencyOracle) -> LocalOracle:
    """A strategy matrix that is not large is decoded for the data that its reports show."""
    adapted = isinstance(client, StrategyMatrix) and client.matrix.numel() <= ADAPTED
    return LocalOracle(workload, client, adapted)


@dataclass(frozen=True, eq=False)
class LocalFactorization(FactoredProtocol, Relay[Tensor, Tensor, BallRandomizer]):
    """Each user sends its column of R through a randomizer of the ball; the analyst applies L to
    the mean message.

    With E Y = R_x and Cov Y = variance I + outer R_x R_x^T the answer to query i has, from one user
    of type x, the variance variance ||l_i||^2 + outer <l_i, R_x>^2: for an isotropic randomizer
    gamma_2^2 variance at most, whatever the data. Its bias is what the factorization leaves out, at
    most alpha.

    queries: encoder and decoder. client: what users run, of dimension r, its radius at least the
    encoder's; ``calibrated`` makes one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with any unbiased randomizer in the place
    of their Lemma 9.
    """

    queries: FactoredQueries
    client: BallRandomizer

    def __post_init__(self) -> None:
        queries = checks.instance("queries", self.queries, FactoredQueries)
        check_client(self.client, len(queries.right), queries.radius)

    @classmethod
    def of(cls, question: Question, epsilon: float) -> Any:
        """The protocol that answers a question from the vectors of its types, sent as they are.

        Raises TypeError, ValueError.
        """
        return through(question, cls.calibrated(cls.vectors_of(question), epsilon=epsilon))

    @property
    def guarantee(self) -> Guarantee:
        # exact for the ball: these are k points of it
        return replace(self.client.guarantee, exact=False)

    @classmethod
    def calibrated(cls, queries: FactoredQueries, *, epsilon: float) -> "LocalFactorization":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = checks.instance("queries", queries, FactoredQueries).radius * (1 + 1e-12)
        return cls(queries, PrivUnit(queries.right.shape[0], epsilon, radius or 1.0))

    def client_input(self, x: Tensor) -> Tensor:
        """Columns of R, (n, r)."""
        return self.queries.right.mT.index_select(0, x)

    @cached_property
    def variance(self) -> Tensor:
        along = (self.queries.left @ self.queries.right).square()
        return super().variance + self.client.moments.outer * along

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.queries.left.square().sum(1)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_crowd(self.queries.right.mT, self.summary(x), draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(
            Crowd.shared(self.queries.right.mT, summary), draws, shape
        )

    @property
    def noise(self) -> float:
        return self.client.moments.variance

    @cached_property
    def _moments(self) -> NoiseMoments | None:
        """Of the noise, where no two queries read one coordinate: else what they add, a fraction
        1/n, is left out.
        """
        return (
            noise_moments(self.client)
            if self._isotropic and isinstance(self.client, PrivUnit)
            else None
        )

    def _beyond(self, moments: NoiseMoments, weights: Tensor, slope: Tensor) -> Tensor:
        """What a user of each type adds to n^4 times the variance beyond normal noise; slope: n
        times that of s.
        """
        left = self.queries.left
        unit = self.queries.right.mT / self.client.radius
        return moments.beyond_normal(unit, (slope / 2) @ left, weights @ left.square())

    def third(self, counts: Tensor, T: Tensor) -> Tensor | None:
        if not isinstance(self.client, PrivUnit):
            return None
        unit = self.queries.right.mT / self.client.radius
        return counts @ noise_moments(self.client).third_of(unit, self.queries.left, T)

    def beyond(self, counts: Tensor, weights: Tensor, slope: Tensor) -> Tensor | float:
        if self._moments is None:
            return 0.0
        n = counts.sum(-1)
        return (counts * self._beyond(self._moments, weights, n[..., None] * slope)).sum(-1) / n**4

    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """A user's own term is affine in the others' sum, so it is largest at one type."""
        if self._moments is None:
            return super().worst_form(n, weights, linear)
        users = torch.as_tensor(n, dtype=torch.float64, device=self.workload.device)
        worst = []
        own = []
        for point in self.points:
            slope = 2 * weights * point + linear
            straight, curved = self._variances(slope, weights, users)
            worst.append(straight + 2 * curved)
            own.append(self._beyond(self._moments, weights, users[..., None] * slope).amax(-1))
        return torch.stack(worst).amax(0) + torch.stack(own).amax(0) / users**3

    def half_width(self, n: int, failure: float = 0.05) -> float:
        """h such that with probability 1 - ``failure`` all answers are within h, whatever the data
        of the n users.

        h = max_i ||l_i|| (2 proxy log(2 m / failure) / n)^{1/2} + (largest bias), by the
        randomizer's variance proxy.
        Guarantees: P(largest error > h) <= failure.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10, with its constants.
        """
        n, failure = checks.integer("n", n, 1), checks.fraction("failure", failure)
        m = len(self.workload)
        tail = math.sqrt(2 * self.client.subgaussian.proxy * math.log(2 * m / failure) / n)
        return float(self.queries.left.norm(dim=1).max()) * tail + float(self.bias.abs().max())

    def samples(self, alpha: float, failure: float = 0.05) -> int:
        """Users with whom :meth:`half_width` is at most alpha. Raises ValueError where the bias
        alone is not below it.

        Guarantees: that many users are enough, whatever their data.
        Source: Edmonds, Nikolov, Ullman (2020), Theorem 10.
        """
        alpha, bias = checks.squarable("alpha", alpha), float(self.bias.abs().max())
        if bias >= alpha:
            raise ValueError(
                f"alpha must be above the bias {bias:g} of these factors, not {alpha!r}"
            )
        return math.ceil(((self.half_width(1, failure) - bias) / (alpha - bias)) ** 2)
