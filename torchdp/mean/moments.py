"""Moment tensors and covariances of bounded vectors, from one Gaussian release.

Notation: x = c + A u are the users' points, u of the ball of radius R; l the order of a moment,
(x) the Kronecker product, Sym the mean over all orders of a tensor's indices.
"""

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.balls import Box
from torchdp.domains.shapes import Encoding, encoding, round_shape
from torchdp.draws import Draws, Shape
from torchdp.mean.gaussian import GaussianRelease
from torchdp.protocol import Crowd, Estimate, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.records import broadcast_users, users_on, weighted_sum
from torchdp.protocol.rounded_sum import RoundedSum
from torchdp.simplex import onto_simplex
from torchdp.symmetric import symmetrised

MOST_ORDER = 6
MOST_ENTRIES = 2**27

# Rounding of a sensitivity that is computed in float64 is less than this, relatively.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class GaussianMoments(GaussianRelease):
    """The curator releases (1/n) sum_i x_i (x) ... (x) x_i, ``order`` factors, plus Gaussian noise.

    With x = A u, ||u|| <= R, the tensor is A^{(x) l} u^{(x) l}, and u^{(x) l} lies in the symmetric
    tensors: the noise is A^{(x) l} (multiplier D / n) Sym(g), g standard normal of shape
    (r, ..., r), Sym the mean over all orders of the indices, which is the orthogonal projection.
    Entry i_1 ... i_l has variance (multiplier D/n)^2 / l! times the permanent of (A A^T)[i, i], l!
    times less than independent noise on every entry where the i_k are far from each other. D
    bounds ||u^{(x) l} - w^{(x) l}||: its square is ||u||^{2l} + ||w||^{2l} - 2 <u, w>^l, so D =
    2^{1/2} R^l for even l (R^l where r = 1) and 2 R^l for odd l. Noise and data cost
    O(l d^{l + 1}); no d^l x d^l matrix.

    A tally is the noisy sum of u^{(x) l}.

    Args:
        shape: around the origin: noise_shape(domain, p, shift=False), or of a symmetric domain.
        order: l, 1 to 6.

    Raises TypeError, ValueError.
    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public.
    Source: Nikolov, Tang (2023), Theorem 15 for the set {x^{(x) l}}, Lemma 62 for the ellipsoid
    around it.
    """

    order: int = 2

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)  # refuses what does not fit
        checks.keep(self, order=checks.count)
        if self.order > MOST_ORDER or self.domain.dimension**self.order > MOST_ENTRIES:
            raise ValueError(
                f"order {self.order} in dimension {self.domain.dimension} is too large: at most "
                f"order {MOST_ORDER} and {MOST_ENTRIES} entries"
            )
        if self.shape.centre.any():
            raise ValueError("shape must be around the origin: noise_shape(domain, p, shift=False)")
        super().__post_init__()

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball around the origin."""
        return Encoding(self.domain, self.shape, torch.zeros_like(self.shape.centre))

    @property
    def sensitivity(self) -> float:
        """D, in the space of u."""
        size = self.encoding.radius**self.order
        if self.order % 2:
            return 2 * size  # of u and -u
        if self.shape.root.shape[1] == 1:
            return size  # even powers of numbers have one sign
        return math.sqrt(2) * size  # of orthogonal vectors

    @cached_property
    def sums(self) -> RoundedSum:
        """Of u^{(x) l}."""
        r = self.shape.root.shape[1]
        distance = self.sensitivity * (1 + ROUNDING)
        norm = self.encoding.radius**self.order
        return RoundedSum.least(self.multiplier, distance, norm, r**self.order)

    @property
    def layout(self) -> Layout:
        r = self.shape.root.shape[1]
        return {"sum": ((r,) * self.order, torch.float64)}

    def deviations(self, n: Users) -> Tensor:
        """Standard deviation of each entry's noise, (*batch, d, ..., d).

        That of one number, times (permanent((A A^T)[i, i])/l!)^{1/2}.
        """
        G = self.shape.root @ self.shape.root.mT
        variances = torch.zeros((len(G),) * self.order).to(G)
        # An axis for each index: a factor of an entry is one gather of d or d^2 numbers.
        axes = np.ix_(*[np.arange(len(G))] * self.order)
        indices = [torch.from_numpy(axis) for axis in axes]
        for columns in itertools.permutations(indices):
            entry = torch.ones_like(variances)
            for row, column in zip(indices, columns, strict=True):
                entry *= G[row, column]
            variances += entry
        n = users_on(self.home, checks.people("n", n, 1))
        scale = self.sums.sigma / broadcast_users(n, self.order)
        # Permanents of Gram matrices are not negative: less is rounding.
        return scale * (variances / math.factorial(self.order)).clamp_min(0).sqrt()

    def release(self, summary: Crowd, draws: Draws, shape: Shape) -> Tally:
        blocks = (
            tensor_sum(u, self.order, c).flatten(-self.order) for u, c in self.encoded(summary)
        )
        noisy = self.sums.released(self.sums.blocks(blocks, summary.n), draws, shape)
        tensor = noisy.unflatten(-1, self.layout["sum"][0])
        return Tally(summary.n, {"sum": symmetrised(tensor, self.order)})

    def analyse(self, tally: Tally) -> Estimate:
        """value: (*sample_shape, d, ..., d), symmetric."""
        tally = self.check(tally)
        moment = tally["sum"] / tally.users(self.order)
        value = apply_to_each(self.shape.root, moment, self.order)
        return Estimate(value, self.deviations(tally.n).expand_as(value), tally.n)

    def exact(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        total = tensor_sum(crowd.rows.double(), self.order, crowd.counts.double())
        return total / broadcast_users(crowd.n, self.order)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        return self.deviations(self.validate_summary(summary).n).square()

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """The same for all data."""
        errors = self.deviations(n).square()
        return objective.of(errors, errors.ndim - self.order)


def tensor_sum(u: Tensor, order: int, counts: Tensor) -> Tensor:
    """sum_i counts_i u_i (x) ... (x) u_i for rows u (*batch, k, r): (*batch, r, ..., r)."""
    # Half powers, so that one product of matrices adds up all rows.
    left = _power(u, (order + 1) // 2) * counts[..., None]
    right = _power(u, order // 2)
    batch = counts.shape[:-1]
    return (left.mT @ right).reshape(*batch, *(u.shape[-1],) * order)


def apply_to_each(A: Tensor, tensor: Tensor, order: int) -> Tensor:
    """A (d, r) applied to each of the last ``order`` indices of (..., r, ..., r)."""
    for _ in range(order):
        # The index that has changed goes to the front of the others.
        tensor = (tensor @ A.mT).movedim(-1, tensor.ndim - order)
    return tensor


def _power(u: Tensor, order: int) -> Tensor:
    """Rows u_i^{(x) order}, flat: (*batch, k, r^order)."""
    result = torch.ones_like(u[..., :1])
    for _ in range(order):
        result = (result[..., :, None] * u[..., None, :]).flatten(-2)
    return result


@dataclass(frozen=True, eq=False)
class Covariance(Estimate):
    """value: the covariance (*sample_shape, d, d) of n users' vectors, beside their mean.

    Both are unbiased for those users' own mean and covariance (divisor n), so the covariance may
    have eigenvalues below 0; :func:`project_covariance` takes them away, at the price of a bias.
    standard_error is the root of an unbiased estimate of the variance, which depends on the mean,
    but never below that of users at the centre. The mean's ``of_population()`` has the sampling
    error of this covariance.
    """

    mean: Estimate = field(kw_only=True)

    def __post_init__(self) -> None:
        # An unbiased variance may fall below 0, of which there is no sampling error.
        variance = torch.linalg.diagonal(self.value).clamp_min(0) / broadcast_users(self.n, 1)
        known = replace(self.mean, population=partial(self.mean.with_sampling, variance))
        object.__setattr__(self, "mean", known)


@dataclass(frozen=True)
class MomentNoise:
    """The noise of first and second moments m, (r,), and S, (r, r), of vectors w, x = centre + B w.

    With B (S - m m^T + nu I) B^T the covariance has no bias. Its squared error, for normal noise of
    m, is own + nu^2 Q + nu (b_i^2 G_jj + b_j^2 G_ii + 2 b_i b_j G_ij), b = mean - centre,
    G = B B^T, Q = ``squares(B)``.

    Args:
        root: B, (d, r).
        own: variances of B S B^T, (*batch, d, d).
        nu: variance of each entry of m, a number or (*batch, 1, 1).
    """

    root: Tensor
    own: Tensor
    nu: float | Tensor

    @property
    def of_square(self) -> Tensor:
        """nu^2 Q: what the square of the noise of m adds, wherever the mean is."""
        return self.nu**2 * squares(self.root)

    def mse(self, off: Tensor) -> Tensor:
        """Of the covariance, (*batch, d, d); off: b, (*batch, d)."""
        G = self.root @ self.root.mT
        g = G.diagonal()
        row = off[..., :, None]
        column = off[..., None, :]
        cross = row.square() * g + column.square() * g[:, None] + 2 * row * column * G
        return self.own + self.of_square + self.nu * cross

    def covariance(self, S: Tensor, m: Tensor, centre: Tensor, n: Users) -> Covariance:
        """The unbiased covariance of n users, beside their mean."""
        off = m @ self.root.mT
        identity = torch.eye(m.shape[-1]).to(m)
        centred = S - m[..., :, None] * m[..., None, :] + self.nu * identity
        value = apply_to_each(self.root, centred, 2)
        # Squares of ``off`` are too large by those of its noise.
        mse = torch.maximum(self.mse(off) - 2 * self.of_square, self.own + self.of_square)
        mean = centre + off
        # One row of a matrix, since nu may be (*batch, 1, 1).
        row = self.root.square().sum(1)[None]
        of_mean = (self.nu * row)[..., 0, :]
        error = Estimate(mean, of_mean.sqrt().expand_as(mean), n)
        return Covariance(value, mse.sqrt(), n, mean=error)


def squares(root: Tensor) -> Tensor:
    """Q_ij = G_ii G_jj + G_ij^2: the variances of z z^T for a normal z of covariance G = B B^T."""
    G = root @ root.mT
    g = G.diagonal()
    return g[:, None] * g + G.square()


@dataclass(frozen=True, eq=False)
class GaussianCovariance(GaussianRelease):
    """The curator releases mean and second moment together, and so an unbiased covariance.

    With w = A^+ (x - c) / R in the unit ball one Gaussian release of (w w^T, t w), symmetric noise
    on the first, carries both: ||w w^T - v v^T||_F^2 + t^2 ||w - v||^2 = |w|^4 + |v|^4 - 2 s^2 +
    t^2 (|w|^2 + |v|^2 - 2 s) with s = <w, v> is largest over all s at -t^2/2, where it is at most 2
    (1 + t^2/2)^2. From S and m, with noise of deviation tau = multiplier 2^{1/2} (1 + t^2/2) / n in
    S and tau/t in m, the covariance is B (S - m m^T + (tau/t)^2 I) B^T, B = R A, without bias. t is
    the one that is best where the mean is as far from c as it may be.

    A tally holds n S ("second") and n m ("first").

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public;
    unbiased.
    Source: Nikolov, Tang (2023), Theorem 15 and the text after Theorem 6; the joint release is
    derived here.
    """

    @classmethod
    def tuned(cls, domain: Box, *, epsilon: float, delta: float) -> "GaussianCovariance":
        """``calibrated``, of noise in proportion to each column's width, whatever its unit.

        domain: a box; of one column its covariance is the variance. Raises ValueError, TypeError.
        Guarantees: as ``calibrated``.
        """
        # The round shape of the cube [-1, 1]^d, stretched to the box.
        one = torch.ones_like(checks.instance("domain", domain, Box).low)
        even = round_shape(Box(-one, one), 2.0)
        shape = replace(
            even,
            root=domain.generators @ even.root,
            centre=domain.middle,
            support=domain.middle + even.support @ domain.generators,
        )
        return cls.calibrated(domain, shape, delta=delta, epsilon=epsilon)

    @cached_property
    def root(self) -> Tensor:
        """B = R A, (d, r)."""
        return self.encoding.radius * self.shape.root

    @cached_property
    def mean_weight(self) -> float:
        """t, which minimises (1 + t^2/2)^2 (H + C/t^2).

        H = (tr(G)^2 + tr(G^2))/2, C = 2 g (tr G + g), g = ||G||, G = B B^T. At most 2^{1/2}, beyond
        which more weight on the mean makes its own noise larger.
        """
        # Those of G as squares of B's singular values: none falls below 0 by rounding.
        eigenvalues = torch.linalg.svdvals(self.root).square()
        if not eigenvalues.any():
            return math.sqrt(2)  # a single point: there is no noise
        trace = float(eigenvalues.sum())
        g = float(eigenvalues.max())
        H = (trace**2 + float(eigenvalues.square().sum())) / 2
        C = 2 * g * (trace + g)
        # The derivative is 0 where H s^2 + C s/2 = C, s = t^2.
        discriminant = C**2 / 4 + 4 * H * C
        root = (-C / 2 + math.sqrt(discriminant)) / (2 * H)
        return math.sqrt(min(2.0, root))

    @property
    def layout(self) -> Layout:
        r = self.root.shape[1]
        return {"second": ((r, r), torch.float64), "first": ((r,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        limits = super().limits(n)
        # t times the mean's numbers is what gets the noise; a tally holds them divided by t.
        limits["first"] = Limits.around(limits["first"].high / self.mean_weight)
        return limits

    @cached_property
    def sums(self) -> RoundedSum:
        """Of (w w^T, t w)."""
        r = self.root.shape[1]
        t = self.mean_weight
        distance = math.sqrt(2) * (1 + t**2 / 2) * (1 + ROUNDING)
        return RoundedSum.least(self.multiplier, distance, math.hypot(1, t), r * r + r)

    def moment_noise(self, n: Users, answer: int = 0) -> float | Tensor:
        """tau, the standard deviation on the diagonal of S; beside it tau / 2^{1/2}.

        answer: dimensions behind those of a batch.
        """
        n = users_on(self.home, checks.people("n", n, 1))
        return self.sums.sigma / broadcast_users(n, answer)

    def release(self, summary: Crowd, draws: Draws, shape: Shape) -> Tally:
        r = self.root.shape[1]
        blocks = (self._joint(u, counts) for u, counts in self.encoded(summary))
        noisy = self.sums.released(self.sums.blocks(blocks, summary.n), draws, shape)
        products, numbers = noisy.split([r * r, r], -1)
        second = symmetrised(products.unflatten(-1, (r, r)), 2)
        return Tally(summary.n, {"second": second, "first": numbers / self.mean_weight})

    def _joint(self, u: Tensor, counts: Tensor) -> Tensor:
        """The sum of (w w^T, t w), flat, of w = u / R."""
        # A radius of 0 is that of a single point, where u is 0 as well.
        w = u / (self.encoding.radius or 1.0)
        second = tensor_sum(w, 2, counts).flatten(-2)
        return torch.cat([second, self.mean_weight * weighted_sum(counts, w)], -1)

    def analyse(self, tally: Tally) -> Covariance:
        tally = self.check(tally)
        n = tally.n
        S = tally["second"] / tally.users(2)
        m = tally["first"] / tally.users(1)
        return self._noise(n).covariance(S, m, self.encoding.centre, n)

    def exact(self, summary: Crowd) -> Tensor:
        return self.validate_summary(summary).covariance

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """tau^2 Q/2 and what the mean's noise of variance (tau/t)^2 adds, exactly."""
        crowd = self.validate_summary(summary)
        return self._noise(crowd.n).mse(crowd.mean.to(self.home) - self.encoding.centre)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """A bound: the mean may lie anywhere in the ellipsoid {c + B w}, |w| <= 1."""
        noise = self._noise(n)
        g = self.root.square().sum(1)
        at_centre = noise.mse(torch.zeros_like(g))
        if objective is Objective.WORST:
            # |b_i| <= G_ii^{1/2}
            cross = 4 * noise.nu * g[:, None] * g
            return (at_centre + cross).amax((-2, -1))
        # b^T (tr(G) I + G) b <= ||G|| (tr G + ||G||)
        eigenvalues = torch.linalg.svdvals(self.root).square()
        trace = eigenvalues.sum()
        top = eigenvalues.max() if len(eigenvalues) else trace
        of_mean = 2 * noise.nu * top * (trace + top) / len(g) ** 2
        return (at_centre + of_mean).mean((-2, -1))

    def _noise(self, n: Users) -> MomentNoise:
        tau = self.moment_noise(n, 2)
        own = tau**2 / 2 * squares(self.root)
        return MomentNoise(self.root, own, nu=(tau / self.mean_weight) ** 2)


def project_second_moment(matrix: Tensor, radius: float = 1.0) -> Tensor:
    """The nearest mean of x x^T with ||x|| <= radius: biased, with lower error for few users.

    The nearest positive semidefinite matrix of trace at most radius^2: eigenvalues cut at 0 and,
    where their sum is too large, shifted down together. Post-processing: as private as its input.

    Args:
        matrix: (*batch, d, d), symmetric.
        radius: > 0.

    Source: Nikolov, Talwar, Zhang (2016), the projection mechanism, for the ball's second moments.
    """
    values, vectors = _spectrum(matrix)
    total = checks.squarable("radius", radius) ** 2
    positive = values.clamp_min(0)
    shifted = total * onto_simplex(values / total)
    kept = torch.where(positive.sum(-1, keepdim=True) > total, shifted, positive)
    return (vectors * kept[..., None, :]) @ vectors.mT


def project_covariance(matrix: Tensor) -> Tensor:
    """The nearest positive semidefinite matrix: biased upwards, never further than its input."""
    values, vectors = _spectrum(matrix)
    return (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the symmetric part, at least float32."""
    matrix = checks.shaped("matrix", checks.matrix("matrix", matrix, checks.LARGEST), ..., "d", "d")
    if matrix.dtype not in (torch.float32, torch.float64):
        matrix = matrix.float()
    # eigh reads one triangle alone: the mean of both is the nearest symmetric matrix.
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    return values, vectors
