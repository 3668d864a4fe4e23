"""Unbiased means under local differential privacy: every user sends its own noisy point."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.encoding import encoding
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.norm_error import normal_moment
from torchdp.domains.shapes import least_error_shape
from torchdp.mean.protocol import MeanProtocol
from torchdp.protocol import Crowd, Layout, Relay, Users
from torchdp.protocol.records import beside
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer, Made, check_client


@dataclass(frozen=True, eq=False)
class LocalMean(MeanProtocol, Relay[Crowd, Tensor, BallRandomizer]):
    """Each user sends A^+ (x - c) through a randomizer of the ball; the analyst averages and applies A.

    With E Y = u and Cov(Y | u) = v I at every point of the ball the estimate has covariance v A A^T / n exactly,
    whatever the data: (E ||error||_2^2)^{1/2} = (v tr(A A^T) / n)^{1/2}. ``error`` takes the noise for Gaussian (the
    central limit: exact at p = 2, where only the covariance counts); ``error_bound`` does not. For a randomizer whose
    noise is less at some points (moments.outer < 0) the covariance is at most that.

    client: what users run, of dimension r, the columns of A, its radius at least the encoding's. ``calibrated`` makes
    one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Nikolov, Tang (2023), Theorem 17, with any unbiased randomizer in the place of their point release.
    """

    domain: Domain
    shape: NoiseShape
    client: BallRandomizer

    def __post_init__(self) -> None:
        client = check_client(self.client, self.shape.root.shape[1], self.encoding.radius)
        if client.moments.outer > 0:
            raise ValueError("client must have no more noise along x than across it: its error has no bound here")

    @classmethod
    def calibrated(
        cls, domain: Domain, shape: NoiseShape, *, epsilon: float, randomizer: Made = PrivUnit
    ) -> "LocalMean":
        """Of this epsilon; randomizer: called with dim, epsilon, radius. Raises ValueError, TypeError."""
        radius = encoding(domain, shape).radius
        if shape.root.shape[1] == 0 or radius == 0:
            raise ValueError("the domain is a single point: its mean is known, and nothing needs to be sent")
        make = checks.function("randomizer", randomizer)
        return cls(domain, shape, make(shape.root.shape[1], epsilon, radius * (1 + 1e-9)))

    @classmethod
    def tuned(cls, domain: Domain, p: float = 2.0, *, epsilon: float) -> "LocalMean":
        """Of our shapes that of the least (E ||error||_p^2)^{1/2}, as ``error`` sees it. Raises as ``calibrated``."""
        return cls.calibrated(domain, least_error_shape(domain, p, local=True), epsilon=epsilon)

    @property
    def layout(self) -> Layout:
        return self.client.layout

    def client_input(self, x: Tensor) -> Tensor:
        """A^+ (x - c), (n, r): what the client randomizes."""
        return self.encoding(x)

    def noise_root(self, n: Users) -> Tensor:
        """B = (v / n)^{1/2} A: Cov(estimate) = B B^T for an isotropic randomizer, at most that for any other."""
        users = beside(checks.people("n", n, 1), 2)
        return (self.client.moments.variance / users) ** 0.5 * self.shape.root

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.subgaussian.proxy * self.shape.root.square().sum(1)

    def error_bound(self, n: int) -> float:
        """A proved upper bound on (E ||error||_p^2)^{1/2} for n users, whatever their data, p the shape's.

        The noise of coordinate i is sub-Gaussian with proxy s ||A_i||^2 / n, so E |Z_i|^p <= p 2^{p/2} Gamma(p/2)
        (s ||A_i||^2/n)^{p/2}, and E max_i Z_i^2 <= (2 log(2 d) + 2) s max_i ||A_i||^2 / n; never more than at p = 2,
        where the error is known exactly.

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
