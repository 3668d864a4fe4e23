"""What protocols for linear queries share: their factors, their truth, their exact error.

Workload = decoder x encoder + shift is the part that local and central factorization mechanisms
share.

Notation: W = L R + v 1^T + bias, W (m, k), L (m, r), R (r, k), v the shift; l_i, row i of L; m, the
mean of the users' columns of R.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import Factorization
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.interval import ErrorParts, laplace_stretch, largest_variance
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.protocol.records import alike
from torchdp.queries.channel import Channel, Fits, Question
from torchdp.queries.likelihood import projections
from torchdp.workloads import Workload

# Relative difference of norms that is rounding.
EVEN = 1e-9

# What to do where a workload does not fit into memory, by its name.
ASK_FOR_LESS = "ask for fewer queries, or merge types that they hardly tell apart"
MARGINALS = "take queries.CentralMarginals(d, order, epsilon, delta), which is never formed"
REMEDIES = {
    "identity": "for a histogram of so many types take an oracle itself, "
    "randomizers.HadamardResponse(k, epsilon)",
    "prefix": "take factorization.factorize of workloads.RunningSums(k), which is never formed",
    "marginals": MARGINALS,
    "marginal tables": MARGINALS,
}


@dataclass(frozen=True)
class FactoredQueries(Brief):
    """W = left right + shift 1^T + (what is left out): user x is encoded as column x of ``right``.

    A histogram sums to 1, so the shift is added to the answers and costs no noise.

    Args:
        workload: W, (m, k), as all of them float64.
        left: L, (m, r).
        right: R, (r, k).
        shift: (m,).
    """

    workload: Tensor
    left: Tensor
    right: Tensor
    shift: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        matrix = checks.one_matrix
        checks.keep(self, workload=matrix, left=matrix, right=matrix)
        shift = checks.floating("shift", self.shift)
        object.__setattr__(self, "shift", shift.detach().double())
        m, k = self.workload.shape
        r = self.left.shape[1]
        if self.left.shape != (m, r) or self.right.shape != (r, k) or self.shift.shape != (m,):
            raise ValueError(
                f"left, right, shift must have shapes ({m}, r), (r, {k}), ({m},) for a workload of "
                f"shape {(m, k)}, not {tuple(self.left.shape)}, {tuple(self.right.shape)}, "
                f"{tuple(self.shift.shape)}"
            )

    @property
    def radius(self) -> float:
        """Largest norm of a column of ``right``."""
        return float(self.right.norm(dim=0).max())

    @property
    def diameter(self) -> float:
        """Largest distance of two columns of ``right``: how far one user's value moves the sum.

        By one product of matrices, rounded up. No column is further from the mean column than the
        diameter, so that the rounding of squared distances is below 4 (r + 4) 2^-53 of the largest.
        """
        # A common part of all columns leaves distances as they are, and squares lose digits by it.
        centred = self.right - self.right.mean(1, keepdim=True)
        squared = squared_distances(centred).max().clamp_min(0)
        return float(squared.sqrt()) * (1 + (len(centred) + 4) * 2.0**-52)

    @property
    def bias(self) -> Tensor:
        """left right + shift 1^T - W, (m, k)."""
        return self.left @ self.right + self.shift[:, None] - self.workload

    @classmethod
    def of(
        cls, workload: Tensor | Workload, factorization: Factorization, shift: Tensor | None = None
    ) -> "FactoredQueries":
        """A factorization of W, or of W - shift 1^T, as encoder and decoder of the queries W.

        Raises TypeError, ValueError.
        """
        W = dense(workload)
        checks.instance("factorization", factorization, Factorization)
        if shift is None:
            shift = factorization.shift
        if shift is None:
            shift = W.new_zeros(len(W))
        return cls(W, factorization.left, factorization.right, shift)

    def narrowed(self, rows: slice) -> "FactoredQueries":
        """The same encoder, some of the queries."""
        return FactoredQueries(self.workload[rows], self.left[rows], self.right, self.shift[rows])

    @classmethod
    def vectors(cls, points: Tensor) -> "FactoredQueries":
        """left = I, right = the vectors of the types, rows of points (k, r), as they are."""
        W = points.mT.contiguous()
        return cls(W, torch.eye(len(W)).to(W), W, W.new_zeros(len(W)))

    @classmethod
    def identity(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """left = W, right = I - 1 1^T / k: a user sends its centred indicator."""
        W = dense(workload)
        k = W.shape[1]
        # Centred: what all indicators have in common is known, and would add to their norm alone.
        right = torch.eye(k).to(W) - 1 / k
        return cls(W, W, right, W.mean(1))

    @classmethod
    def plain(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """left = I, right = W less the middle of each row: users send all their answers."""
        W = dense(workload)
        # Constants cost no noise: from the middle of its range each answer is smallest.
        middle = (W.amax(1) + W.amin(1)) / 2
        return cls(W, torch.eye(len(W)).to(W), W - middle[:, None], middle)

    @classmethod
    def spanned(cls, workload: Tensor | Workload, bits: Tensor | None = None) -> "FactoredQueries":
        """right = bits, (r, k), whose rows span the queries up to constants; left of least norm.

        bits: None for one of each type. Raises TypeError, ValueError.
        """
        W = dense(workload)
        # Shares sum to 1, so that constants are free: centred rows are what bits must span.
        left = W - W.mean(1, keepdim=True)
        if bits is None:
            R = torch.eye(W.shape[1]).to(W)  # whose inverse changes nothing
        else:
            R = checks.one_matrix("bits", bits).to(W)
            left = left @ torch.linalg.pinv(R - R.mean(1, keepdim=True))
        queries = cls(W, left, R, (W - left @ R).mean(1))
        if queries.bias.abs().max() > EVEN * W.abs().max():
            raise ValueError("bits must have rows that span the queries, up to constants")
        return queries

    @classmethod
    def even(cls, workload: Tensor | Workload) -> "FactoredQueries | None":
        """U S^1/2 and S^1/2 V^T of W - shift 1^T = U S V^T; None where norms differ.

        The shift is the mean of each row. Where all rows of the one and all columns of the other
        have equal norms (histograms, circulant queries, all parities), this is least for gamma_2
        and gamma_F and every shift. *Proof.* gamma_2(A) >= ||A||_*/(m k)^1/2 and gamma_F(A) >=
        ||A||_*/k^1/2, with equality here, and ||(W - s 1^T) (I - J/k)||_* <= ||W - s 1^T||_*.
        Source: Edmonds, Nikolov, Ullman (2020), for the bounds by the nuclear norm.
        """
        W = dense(workload)
        shift = W.mean(1)
        U, singular, V = torch.linalg.svd(W - shift[:, None], full_matrices=False)
        # Directions of the size of rounding would get noise of their own and tell nothing.
        kept = singular > EVEN * singular.max()
        if not kept.any():
            return None
        root = singular[kept].sqrt()
        left = U[:, kept] * root
        right = root[:, None] * V[kept]
        for norms in (left.norm(dim=1), right.norm(dim=0)):
            most = float(norms.max())
            if most - float(norms.min()) > EVEN * most:
                return None
        return cls(W, left, right, shift)

    @classmethod
    def tree(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """right counts the dyadic intervals of ordered types, left = W right^+ (Honaker 2015)."""
        W = dense(workload)
        k = W.shape[1]
        types = torch.arange(k, device=W.device)
        levels = []
        for level in range((k - 1).bit_length() + 1):
            interval = types >> level
            levels.append(interval == interval.unique()[:, None])
        right = torch.cat(levels).to(W)
        return cls(W, W @ torch.linalg.pinv(right), right, W.new_zeros(len(W)))


def squared_distances(points: Tensor) -> Tensor:
    """Of all pairs of columns of (r, k): (k, k), exact where products and sums are integers."""
    squares = points.square().sum(0)
    return squares[:, None] + squares - 2 * points.mT @ points


def dense(workload: Tensor | Workload, copies: int = 1) -> Tensor:
    """The workload as one (m, k) float64 matrix, if there is memory for so many.

    Raises TypeError, ValueError.
    """
    if isinstance(workload, Tensor | Workload):
        remedy = REMEDIES.get(str(getattr(workload, "name", "")), ASK_FOR_LESS)
        checks.fits("workload", *workload.shape, copies=copies, remedy=remedy)
    if isinstance(workload, Workload):
        workload = workload.dense()
    return checks.one_matrix("workload", workload)


class FactoredProtocol(Channel):
    """Answers L m + shift: m is the mean of the users' columns of R, with noise."""

    queries: FactoredQueries
    # What lies between two values of a coordinate of n m; 0 where the noise has a density, or
    # nearly so.
    step: ClassVar[float] = 0.0

    @classmethod
    def vectors_of(cls, question: Question) -> FactoredQueries:
        """The vectors of a question's types, as they are. Raises TypeError."""
        return FactoredQueries.vectors(cls.queries_of(question).mT)

    def heard(self, tally: Tally) -> Tensor:
        """m with its noise, (*batch, r)."""
        return tally["sum"].double() / tally.users(1)

    @property
    @abstractmethod
    def noise(self) -> float:
        """The variance of its coordinates, times n^power."""

    @property
    def laplace(self) -> bool:
        """Whether the noise is discrete Laplace: intervals have the ends of one such variable."""
        return False

    @property
    def workload(self) -> Tensor:  # type: ignore[override]
        """W, (m, k)."""
        return self.queries.workload

    @property
    def bias(self) -> Tensor:
        return self.queries.bias

    @property
    def variance(self) -> Tensor:
        each = self.noise * self.queries.left.square().sum(1, keepdim=True)
        return each.expand_as(self.workload)

    def fits(self, tally: Tally, ordered: bool) -> Fits:
        right = self.queries.right
        noise = self.noise
        if self.power > 1:
            noise = noise / alike(tally.n)
        noise = noise or 1.0  # without any a fit is the same in every unit
        gram = right.mT @ right / noise
        n = tally.users()
        # Of least norm where R does not tell all types.
        unbiased = self.heard(tally) @ torch.linalg.pinv(right).mT
        histograms, freedoms, covariances, gap = projections(
            gram, unbiased @ gram, n, ordered, self.workload
        )
        difference = histograms - unbiased
        distance = ((difference @ gram) * difference).sum(-1)
        rank = torch.linalg.matrix_rank(right)
        scores = rank - freedoms - n * distance / 2
        return histograms, scores, covariances / n, gap

    def mean(self, tally: Tally) -> Tensor:
        return self.heard(tally) @ self.queries.left.mT + self.queries.shift

    def narrowed(self, rows: slice) -> Self:
        return replace(self, queries=self.queries.narrowed(rows))  # type: ignore[type-var]

    def _level(self, n: float | Tensor) -> float | Tensor:
        """The variance of a coordinate of m."""
        return self.noise / n**self.power

    @cached_property
    def _square(self) -> Tensor:
        """L L^T, (m, m)."""
        return self.queries.left @ self.queries.left.mT

    @cached_property
    def _isotropic(self) -> bool:
        """Whether no two queries read one coordinate of m, so that errors are independent."""
        readers = (self.queries.left != 0).sum(0)
        return bool((readers <= 1).all())

    def covariance(self, counts: Tensor) -> Tensor:
        n = counts.double().sum(-1)[..., None, None]
        return self._level(n) * self._square

    def plausible(self, tally: Tally) -> Tensor:
        return self._level(tally.users(2)) * self._square

    def form(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """The square of the noise has a known mean, which comes off."""
        z = self.mean(tally)
        noise = self._level(tally.users(1)) * self._square.diagonal()
        return (weights * (z.square() - noise) + linear * z).sum(-1)

    def form_variance(self, counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """slope Cov slope^T + 2 tr(J Cov J Cov), and what the third and fourth cumulants add."""
        n = counts.sum(-1)
        s = counts @ self.points / n[..., None]
        slope = 2 * weights * s + linear
        straight, curved = self._variances(slope, weights, n)
        return straight + self.squares * curved + self.beyond(counts, weights, slope)

    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """At users of one type: it is convex in s, whose range is the hull of the vectors."""
        users = torch.as_tensor(n, dtype=torch.float64, device=self.workload.device)
        types = torch.eye(len(self.points)).to(self.workload)
        # One dimension for each that n or an answer has.
        answer = weights.ndim - 1
        dimensions = max(users.ndim, answer)
        counts = types.view(-1, *[1] * dimensions, len(types)) * users[..., None]
        return self.form_variance(counts, weights, linear).amax(0)

    def form_plug_in(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """The slope at z is noisy itself, so that its square is too large by 4 tr(J Cov J Cov)."""
        slope = 2 * weights * self.mean(tally) + linear
        straight, curved = self._variances(slope, weights, tally.users())
        # An unbiased square may fall below 0: the part of second order is left.
        return (straight - 4 * curved).clamp_min(0) + self.squares * curved

    def form_errors(self, tally: Tally) -> Callable[[Tensor, Tensor, Tensor], QuadraticError]:
        z = self.mean(tally)

        def error(weights: Tensor, linear: Tensor, value: Tensor) -> QuadraticError:
            half = weights * z + linear / 2
            if self._isotropic:
                own = self._level(tally.users(1)) * self._square.diagonal()
                curved = own * weights
                straight = own**0.5 * half
            else:
                J = weights.expand(half.shape).diag_embed()
                curved, straight = coordinates(half, J, self.plausible(tally).expand(J.shape))
            curved = curved.expand(straight.shape)
            zero = torch.zeros_like(straight[..., 0])
            return QuadraticError(curved, straight, curved[..., :0], zero, zero)

        return error

    def _variances(
        self, slope: Tensor, weights: Tensor, n: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """(Var slope . e, tr(J Cov J Cov)) for an error e of z, J = diag(weights)."""
        level = self._level(n)
        gradient = slope @ self.queries.left
        straight = level * gradient.square().sum(-1)
        curved = ((weights @ self._square.square()) * weights).sum(-1)
        return straight, level**2 * curved

    def cumulants(self, counts: Tensor) -> tuple[Tensor, Tensor] | None:
        """Third and fourth of the coordinates of n m, (*batch, q); None: of normal noise, 0."""
        return None

    def third(self, counts: Tensor, T: Tensor) -> Tensor | None:
        cumulants = self.cumulants(counts)
        if cumulants is None:
            return torch.zeros_like(counts[..., 0])
        left = self.queries.left
        own = torch.einsum("abc,aq,bq,cq->q", T, left, left, left)
        return (cumulants[0] * own).sum(-1)

    def beyond(self, counts: Tensor, weights: Tensor, slope: Tensor) -> Tensor | float:
        """What the third and fourth cumulants add to the variance of slope . e + e^T J e."""
        cumulants = self.cumulants(counts)
        if cumulants is None:
            return 0.0
        third, fourth = cumulants
        n = counts.sum(-1)[..., None]
        own = weights @ self.queries.left.square() / n**2  # the diagonal of L^T J L
        along = slope @ self.queries.left / n
        return (fourth * own.square() + 2 * third * own * along).sum(-1)

    def analyse(self, tally: Tally) -> Estimate:
        """The standard error is that on the worst data."""
        kept = self.whole(tally).kept()
        value = self.mean(kept)
        n = kept.users(1)
        variance = (self.variance.amax(1) / n**self.power).expand_as(value)
        # Half of what lies between two values that an answer can have.
        largest = self.queries.left.abs().amax(1)
        step = self.step * largest / (2 * n)
        error = replace(ErrorParts.normal(variance), step=step.expand_as(value)[..., None])
        estimate = Estimate(
            value,
            variance.sqrt(),
            tally.n,
            bias=self.bias.abs().amax(1),
            error=error,
            limits=self.possible,
            stretch=laplace_stretch if self.laplace else None,
            covariance=partial(self.plausible, kept) if self.known_noise else None,
        )
        return replace(estimate, population=partial(self._of_population, estimate, kept))

    @property
    def known_noise(self) -> bool:
        return bool((self.variance == self.variance[:, :1]).all())

    def _of_population(self, estimate: Estimate, tally: Tally) -> Estimate:
        """Var W_i under the nearest histogram.

        Of those with its R h that of the largest, where R does not tell all types.
        """
        W = self.workload
        right = self.queries.right
        batch = estimate.value.shape[:-1]
        n = tally.users(1)
        fits, *_ = self.fits(self.flat(tally, batch), False)
        h = fits[-1]
        # R h and the sum of h are all that the tally tells of h.
        equations = torch.cat([right, torch.ones_like(right[:1])])
        if int(torch.linalg.matrix_rank(equations)) < right.shape[1]:
            largest = [[float(largest_variance(right.mT, each, row)) for row in W] for each in h]
            return estimate.with_sampling(h.new_tensor(largest).view(*batch, len(W)) / n)
        centred = W - (h @ W.mT)[..., None]  # (b, m, k)
        squares = centred.square() * h[:, None]
        variance = squares.sum(-1).view(*batch, len(W))

        def covariance() -> Tensor:
            sampling = (centred * h[:, None]) @ centred.mT
            sampling = sampling.view(*batch, len(W), len(W))
            return sampling / tally.users(2) + self.plausible(tally)

        return estimate.with_sampling(variance / n, covariance)
