"""What every mechanism for an unbiased mean offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.encoding import Encoding, admitted, encoding
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.norm_error import NormError
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee


@dataclass(frozen=True)
class MeanEstimate:
    """A private mean, (*sample_shape, d), of n users' vectors, and the standard deviation of its noise, (d,)."""

    value: Tensor
    standard_error: Tensor
    n: int


@dataclass(frozen=True)
class MeanMechanism(ABC):
    """Releases the mean of n users' vectors, each a point of the domain, without bias; n is public.

    ``estimate`` is what is published, from one vector for each user; ``estimate_counts`` draws the same law from
    distinct points and how many users hold each, for simulations: a generator's draws hide nobody. Points outside the
    domain are refused: see ``Domain.project``.

    domain: K. shape: an ellipsoid for the noise, any: a bad one costs accuracy, not privacy. Raises TypeError,
    ValueError where its range does not reach the whole domain.
    """

    domain: Domain
    shape: NoiseShape

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)  # checks that they fit

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball."""
        return encoding(self.domain, self.shape)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What a user is promised."""

    @abstractmethod
    def noise_root(self, n: int) -> Tensor:
        """B, (d, r), with Cov(estimate) = B B^T for n users, whatever their data."""

    def error(self, n: int, p: float | None = None) -> NormError:
        """The l_p error for n users; p: the shape's own where it is not given."""
        return NormError(self.noise_root(n), self.shape.p if p is None else p)

    def estimate(self, x: Tensor, *, noise: Noise | None = None) -> MeanEstimate:
        """The private mean of x, (n, d), n >= 1; noise: the system's where None.

        Raises TypeError, ValueError (for points outside the domain).
        """
        x = admitted("x", x, self.domain, self.shape)
        return self._estimate(self._total(x, source(noise, x.device)), len(x))

    def estimate_counts(
        self, points: Tensor, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> MeanEstimate:
        """The private mean of counts[j] users at points[j], (k, d); independent repetitions of ``sample_shape``.

        Raises TypeError, ValueError.
        """
        points = admitted("points", points, self.domain, self.shape)
        counts = checks.counts("counts", counts, len(points)).to(points.device)
        n = int(counts.sum())
        if n < 1:
            raise ValueError("counts must hold at least one user")
        checks.random_source(generator, points.device)
        shape = checks.sample_shape(sample_shape)
        return self._estimate(self._total_counts(points, counts, shape, generator), n)

    @abstractmethod
    def _total(self, x: Tensor, noise: Noise) -> Tensor:
        """Noisy sum of the encoded vectors of the users' x, (r,)."""

    @abstractmethod
    def _total_counts(
        self, points: Tensor, counts: Tensor, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """Noisy sums of the encoded vectors, (*shape, r)."""

    def _estimate(self, total: Tensor, n: int) -> MeanEstimate:
        value = self.encoding.centre + total / n @ self.shape.root.mT
        return MeanEstimate(value, self.noise_root(n).norm(dim=1), n)
