"""Unbiased means and covariances under local differential privacy, from one message a user."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains import Box
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import Encoding, encoding, least_error_shape, normal_moment
from torchdp.mean.gaussian import MeanProtocol, points_of
from torchdp.mean.moments import Covariance, MomentNoise
from torchdp.protocol import Crowd, Objective, Relay, Tally, Users
from torchdp.protocol.records import beside
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, check_client
from torchdp.symmetric import svec, symmetric, triangular


@dataclass(frozen=True, eq=False)
class LocalMean(MeanProtocol, Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends A^+ (x - c) through a randomizer of the ball; the analyst averages and
    applies A.

    With E Y = u and Cov(Y | u) = v I at every point of the ball the estimate has covariance v A A^T
    / n exactly, whatever the data: (E ||error||_2^2)^{1/2} = (v tr(A A^T) / n)^{1/2}. ``error``
    takes the noise for Gaussian (the central limit: exact at p = 2, where only the covariance
    counts); ``error_bound`` does not. For a randomizer whose noise is less at some points
    (moments.outer < 0) the covariance is at most that.

    client: what users run, of dimension r, the columns of A, its radius at least the encoding's.
    ``calibrated`` makes one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Nikolov, Tang (2023), Theorem 17, with any unbiased randomizer in the place of their
    point release.
    """

    domain: Domain
    shape: NoiseShape
    client: BallRandomizer

    def __post_init__(self) -> None:
        client = check_client(self.client, self.shape.root.shape[1], self.encoding.radius)
        if client.moments.outer > 0:
            raise ValueError(
                "client must have no more noise along x than across it: its error has no bound here"
            )

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball."""
        return encoding(self.domain, self.shape)

    @property
    def held(self) -> tuple[int]:
        return (self.domain.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) with n >= 1, in the domain and on the shape's device. Raises TypeError,
        ValueError.
        """
        return points_of(self.encoding, x, super().validate(x))

    @classmethod
    def calibrated(cls, domain: Domain, shape: NoiseShape, *, epsilon: float) -> "LocalMean":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = encoding(domain, shape).radius
        if shape.root.shape[1] == 0 or radius == 0:
            raise ValueError(
                "the domain is a single point: its mean is known, and nothing needs to be sent"
            )
        return cls(domain, shape, PrivUnit(shape.root.shape[1], epsilon, radius * (1 + 1e-9)))

    @classmethod
    def tuned(cls, domain: Domain, p: float = 2.0, *, epsilon: float) -> "LocalMean":
        """Of our shapes that of the least (E ||error||_p^2)^{1/2}, as ``error`` sees it. Raises as
        ``calibrated``.
        """
        return cls.calibrated(domain, least_error_shape(domain, p, local=True), epsilon=epsilon)

    def client_input(self, x: Tensor) -> Tensor:
        """A^+ (x - c), (n, r): what the client randomizes."""
        return self.encoding(x)

    def noise_root(self, n: Users) -> Tensor:
        """B = (v / n)^{1/2} A: Cov(estimate) = B B^T for an isotropic randomizer, at most that for
        any other.
        """
        users = beside(checks.people("n", n, 1), 2)
        return (self.client.moments.variance / users) ** 0.5 * self.shape.root

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.shape.root.square().sum(1)

    def error_bound(self, n: int) -> float:
        """A proved upper bound on (E ||error||_p^2)^{1/2} for n users, whatever their data, p the
        shape's.

        The noise of coordinate i is sub-Gaussian with proxy s ||A_i||^2 / n, so E |Z_i|^p <= p
        2^{p/2} Gamma(p/2) (s ||A_i||^2/n)^{p/2}, and E max_i Z_i^2 <= (2 log(2 d) + 2) s
        max_i ||A_i||^2 / n; never more than at p = 2, where the error is known exactly.

        Guarantees: an upper bound at every n.
        Source: Nikolov, Tang (2023), Theorem 17, with its constants.
        """
        n = checks.integer("n", n, 1)
        rows = self.shape.root.norm(dim=1)
        length, p = math.sqrt(self.client.subgaussian.proxy / n), self.shape.p
        widest = length * float(rows.max()) * math.sqrt(2 * math.log(2 * len(rows)) + 2)
        euclidean = self.error(n, 2.0).floor
        if p == math.inf:
            return min(widest, euclidean)
        # p 2^{p/2} Gamma(p/2) = sqrt(2 pi) p E |g|^{p - 1}.
        tails = (math.sqrt(2 * math.pi) * p * normal_moment(p - 1)) ** (1 / p)
        by_power = tails * length * float(torch.linalg.vector_norm(rows, ord=p))
        return min(by_power, widest * len(rows) ** (1 / p), euclidean)


@dataclass(frozen=True, eq=False)
class LocalCovariance(Relay[Crowd, Tensor, BallRandomizer]):
    """Covariance of the users' own numbers in a box, divisor n, from one vector of numbers and
    their products.

    The analyst subtracts the square of the mean.

    With w in [-1, 1]^d the scaled numbers a user shows t w, e (w_i^2 - c) and 2^{1/2} w_i w_j, i <
    j. The squared norm is convex in each w_i^2, so it is largest at corners, and convex in how many
    of these are 1: all or none. With q = t^2 + d - 1 and e^2 >= q, c = 1/2 + q/(2 e^2) makes both
    the same, e^2 d c^2. t^2 = (d + 1)^{1/2} (1/4 for d = 1) and e^2 = q (1 + d^{-3/2}) come near
    the least mean squared error of an entry at means of 1/2. From messages with E Y = u, Cov Y = v
    I come the mean m, of errors of variance v/(t^2 n), and second moments S, v/(e^2 n) on the
    diagonal and v/(2 n) beside it. S - m m^T + v/(t^2 n) I has no bias.

    domain: the box of the users' numbers, (n, d), wider than 0 in each. client: of dimension d + d
    (d + 1)/2, with as much noise along the point as across it; ``calibrated`` makes one. Raises
    TypeError, ValueError.

    Guarantees: the client's own, for each user.
    Source: derived here; Asi, Feldman, Talwar (2022) for the randomizer; Nikolov, Tang (2023),
    after Theorem 6.
    """

    domain: Box
    client: BallRandomizer

    def __post_init__(self) -> None:
        if not bool((checks.instance("domain", self.domain, Box).high > self.domain.low).all()):
            raise ValueError(
                "domain must be wider than 0 in every coordinate: leave out numbers that are known"
            )
        d = self.domain.dimension
        if check_client(self.client, d + triangular(d), self.radius(d)).moments.outer != 0:
            raise ValueError(
                "client must have the same noise along the point as across it, such as PrivUnit"
            )

    @classmethod
    def calibrated(cls, domain: Box, *, epsilon: float) -> "LocalCovariance":
        """By PrivUnit of this epsilon. Raises TypeError, ValueError."""
        d = checks.instance("domain", domain, Box).dimension
        return cls(domain, PrivUnit(d + triangular(d), epsilon, cls.radius(d) * (1 + 1e-12)))

    @staticmethod
    def weights(d: int) -> tuple[float, float, float]:
        """t^2, e^2 and c."""
        square = math.sqrt(d + 1) if d > 1 else 0.25
        q = square + d - 1
        own = q * (1 + d**-1.5)
        return square, own, 0.5 + q / (2 * own)

    @staticmethod
    def radius(d: int) -> float:
        """Largest norm of what users show of d numbers."""
        _, own, c = LocalCovariance.weights(d)
        return c * math.sqrt(own * d)

    @property
    def half(self) -> Tensor:
        """Half the widths of the box, (d,)."""
        return (self.domain.high - self.domain.low) / 2

    @property
    def held(self) -> tuple[int]:
        return (self.domain.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) with n >= 1, in the box. Raises TypeError, ValueError."""
        return self.domain.validate(super().validate(x))

    def exact(self, summary: Crowd) -> Tensor:
        """The users' own covariance, divisor n: (d, d)."""
        return self.validate_summary(summary).covariance

    @cached_property
    def _lengths(self) -> Tensor:
        """e on the diagonal and 1 beside it, (d, d): what the products' matrix is multiplied by
        before ``svec``.
        """
        e = math.sqrt(self.weights(self.domain.dimension)[1])
        return 1 + (e - 1) * torch.eye(self.domain.dimension).to(self.half)

    def client_input(self, x: Tensor) -> Tensor:
        """Numbers and products, (n, d + d (d + 1)/2)."""
        square, _, c = self.weights(self.domain.dimension)
        w = ((x.double() - self.domain.middle) / self.half).clamp(-1, 1)
        products = w[:, :, None] * w[:, None, :] - c * torch.eye(w.shape[1]).to(w)
        return torch.cat([math.sqrt(square) * w, svec(products * self._lengths)], 1)

    def analyse(self, tally: Tally) -> Covariance:
        n = self.check(tally).n
        d = self.domain.dimension
        square, _, c = self.weights(d)
        mean = tally["sum"] / tally.users(1)
        m = mean[..., :d] / math.sqrt(square)
        S = symmetric(mean[..., d:], d) / self._lengths + c * torch.eye(d).to(mean)
        return self._noise(n).covariance(S, m, self.domain.middle, n)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """(d, d): that of S, and what the mean's noise of variance v/(t^2 n) adds, as if it were
        normal.
        """
        crowd = self.validate_summary(summary)
        return self._noise(crowd.n).mse(crowd.mean - self.domain.middle)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """Where all means lie at an end of their range."""
        checks.instance("objective", objective, Objective)
        errors = self._noise(checks.people("n", n, 1)).mse(self.half)
        return objective.of(errors, errors.ndim - 2)

    def _noise(self, n: Users) -> MomentNoise:
        square, own, _ = self.weights(self.domain.dimension)
        v = self.client.moments.variance / beside(n, 2)
        identity = torch.eye(len(self.half)).to(self.half)
        entries = 0.5 + (1 / own - 0.5) * identity  # of S in units of the half widths
        variances = v * entries * (self.half * self.half[:, None]).square()
        return MomentNoise(torch.diag(self.half), variances, v / square)
