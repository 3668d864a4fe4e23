"""Unbiased means and covariances under local differential privacy, from one message a user.

Notation: x = c + A u are the users' points, u in a ball; a message Y has E Y = u, Cov Y = v I.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains import Box
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import encoding, least_error_shape
from torchdp.mean.gaussian import MeanProtocol
from torchdp.mean.moments import Covariance, MomentNoise
from torchdp.protocol import Crowd, Objective, Relay, Tally, Users
from torchdp.protocol.records import broadcast_users, users_on
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, check_client
from torchdp.symmetric import svec, symmetric, triangular


@dataclass(frozen=True, eq=False)
class LocalMean(MeanProtocol, Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends A^+ (x - c) through a randomizer of the ball; the analyst applies A.

    With E Y = u and Cov(Y | u) = v I at every point of the ball the estimate has covariance v A A^T
    / n exactly, whatever the data: (E ||error||_2^2)^{1/2} = (v tr(A A^T) / n)^{1/2}. ``error``
    takes the noise for Gaussian (the central limit: exact at p = 2, where only the covariance
    counts). For a randomizer whose noise is less at some points (moments.outer < 0) the covariance
    is at most that.

    Args:
        domain: K.
        shape: an ellipsoid around it, of root A, (d, r).
        client: what users run, of dimension r, its radius at least the encoding's;
            ``calibrated`` makes one.

    Raises ValueError, TypeError.
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

    @classmethod
    def calibrated(cls, domain: Domain, shape: NoiseShape, *, epsilon: float) -> "LocalMean":
        """By PrivUnit of this epsilon. Raises ValueError, TypeError."""
        radius = encoding(domain, shape).radius
        r = shape.root.shape[1]
        if r == 0 or radius == 0:
            raise ValueError(
                "the domain is a single point: its mean is known, and nothing needs to be sent"
            )
        # A little wider, so that rounding puts no point outside.
        return cls(domain, shape, PrivUnit(r, epsilon, radius * (1 + 1e-9)))

    @classmethod
    def tuned(cls, domain: Domain, p: float = 2.0, *, epsilon: float) -> "LocalMean":
        """Of our shapes that of the least (E ||error||_p^2)^{1/2}, as ``error`` sees it.

        Raises as ``calibrated``.
        """
        return cls.calibrated(domain, least_error_shape(domain, p, local=True), epsilon=epsilon)

    def client_input(self, x: Tensor) -> Tensor:
        """A^+ (x - c), (n, r): what the client randomizes."""
        return self.encoding(x)

    def noise_root(self, n: Users) -> Tensor:
        """B = (v / n)^{1/2} A; Cov(estimate) is below B B^T where the client is not isotropic."""
        v = self.client.moments.variance
        n = users_on(self.home, checks.people("n", n, 1))
        return (v / broadcast_users(n, 2)) ** 0.5 * self.shape.root

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.shape.root.square().sum(1)


@dataclass(frozen=True, eq=False)
class LocalCovariance(Relay[Crowd, Tensor, BallRandomizer]):
    """Covariance of numbers in a box, divisor n, from one vector of numbers and their products.

    With w in [-1, 1]^d the scaled numbers a user shows t w, e (w_i^2 - c) and 2^{1/2} w_i w_j, i <
    j. The squared norm is convex in each w_i^2, so it is largest at corners, and convex in how many
    of these are 1: all or none. With q = t^2 + d - 1 and e^2 >= q, c = 1/2 + q/(2 e^2) makes both
    the same, e^2 d c^2. t^2 = (d + 1)^{1/2} (1/4 for d = 1) and e^2 = q (1 + d^{-3/2}) come near
    the least mean squared error of an entry at means of 1/2. From messages with E Y = u, Cov Y = v
    I come the mean m, of errors of variance v/(t^2 n), and second moments S, v/(e^2 n) on the
    diagonal and v/(2 n) beside it. S - m m^T + v/(t^2 n) I has no bias.

    Args:
        domain: the box of the users' numbers, wider than 0 in each of d coordinates.
        client: of dimension d + d (d + 1)/2, with as much noise along the point as across it;
            ``calibrated`` makes one.

    Raises TypeError, ValueError.
    Guarantees: the client's own, for each user.
    Source: derived here; Asi, Feldman, Talwar (2022) for the randomizer; Nikolov, Tang (2023),
    after Theorem 6.
    """

    domain: Box
    client: BallRandomizer

    def __post_init__(self) -> None:
        checks.instance("domain", self.domain, Box)
        if not (self.half > 0).all():
            raise ValueError(
                "domain must be wider than 0 in every coordinate: leave out numbers that are known"
            )
        d = self.domain.dimension
        client = check_client(self.client, d + triangular(d), self.radius(d))
        # ``analyse`` adds v/(t^2 n) I, which is the noise of m m^T where Cov Y = v I alone.
        if client.moments.outer != 0:
            raise ValueError(
                "client must have the same noise along the point as across it, such as PrivUnit"
            )

    @classmethod
    def calibrated(cls, domain: Box, *, epsilon: float) -> "LocalCovariance":
        """By PrivUnit of this epsilon. Raises TypeError, ValueError."""
        d = checks.instance("domain", domain, Box).dimension
        radius = cls.radius(d) * (1 + 1e-12)  # rounding puts no user outside
        return cls(domain, PrivUnit(d + triangular(d), epsilon, radius))

    @staticmethod
    def weights(d: int) -> tuple[float, float, float]:
        """t^2, e^2 and c."""
        t_square = math.sqrt(d + 1) if d > 1 else 0.25
        q = t_square + d - 1
        e_square = q * (1 + d**-1.5)
        return t_square, e_square, 0.5 + q / (2 * e_square)

    @staticmethod
    def radius(d: int) -> float:
        """Largest norm of what users show of d numbers: e d^{1/2} c."""
        _, e_square, c = LocalCovariance.weights(d)
        return c * math.sqrt(e_square * d)

    @property
    def home(self) -> torch.device:
        return self.half.device

    @property
    def half(self) -> Tensor:
        """Half the widths of the box, (d,)."""
        return (self.domain.high - self.domain.low) / 2

    @property
    def held(self) -> tuple[int]:
        return (self.domain.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) with n >= 1, in the box. Raises TypeError, ValueError."""
        x = super().validate(x)
        return self.domain.to(x.device).validate(x)

    def exact(self, summary: Crowd) -> Tensor:
        """The users' own covariance, divisor n: (d, d)."""
        return self.validate_summary(summary).covariance

    @property
    def _identity(self) -> Tensor:
        return torch.eye(self.domain.dimension).to(self.half)

    @cached_property
    def _lengths(self) -> Tensor:
        """e on the diagonal and 1 beside it, (d, d): the products' factors before ``svec``."""
        _, e_square, _ = self.weights(self.domain.dimension)
        return 1 + (math.sqrt(e_square) - 1) * self._identity

    def client_input(self, x: Tensor) -> Tensor:
        """Numbers and products, (n, d + d (d + 1)/2)."""
        t_square, _, c = self.weights(self.domain.dimension)
        scaled = (x.double() - self.domain.middle.to(x.device)) / self.half.to(x.device)
        # The radius holds in [-1, 1], which rounding may leave.
        w = scaled.clamp(-1, 1)
        products = w[:, :, None] * w[:, None, :]
        centred = products - c * self._identity.to(x.device)
        products = svec(centred * self._lengths.to(x.device))
        return torch.cat([math.sqrt(t_square) * w, products], 1)

    def analyse(self, tally: Tally) -> Covariance:
        tally = self.check(tally)
        n = tally.n
        d = self.domain.dimension
        t_square, _, c = self.weights(d)
        mean = tally["sum"] / tally.users(1)
        # What client_input did is undone: numbers over t, products over e or 1, plus c.
        m = mean[..., :d] / math.sqrt(t_square)
        centred = symmetric(mean[..., d:], d) / self._lengths
        S = centred + c * self._identity
        return self._noise(n).covariance(S, m, self.domain.middle, n)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """(d, d): that of S, and what normal noise of the mean, of variance v/(t^2 n), adds."""
        crowd = self.validate_summary(summary)
        return self._noise(crowd.n).mse(crowd.mean.to(self.home) - self.domain.middle)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """Where all means lie at an end of their range."""
        errors = self._noise(n).mse(self.half)
        return objective.of(errors, errors.ndim - 2)

    def _noise(self, n: Users) -> MomentNoise:
        t_square, e_square, _ = self.weights(self.domain.dimension)
        v = self.client.moments.variance / broadcast_users(users_on(self.home, n), 2)
        # Of S in units of the half widths: 1/e^2 on the diagonal, 1/2 beside it.
        entries = 0.5 + (1 / e_square - 0.5) * self._identity
        units = self.half * self.half[:, None]
        variances = v * entries * units.square()
        return MomentNoise(torch.diag(self.half), variances, v / t_square)
