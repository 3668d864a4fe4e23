"""The released function: public features, noisy sums, and what they promise; nothing else of the data."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.exponential import Exponential, ParityFeatures
from torchdp.density.family import NUMBERS_AT_ONCE, Features
from torchdp.density.gaussian import FourierFeatures, GaussianFourier, GaussianSquareWave, SquareWaveFeatures
from torchdp.density.inner_product import (
    IdentityFeatures,
    InnerProduct,
    InnerProductRotated,
    InnerProductSigns,
    RotatedFeatures,
    SignedSumFeatures,
)
from torchdp.density.laplacian import BinSignFeatures, BucketFeatures, Grid, LaplacianBuckets, LaplacianSigns
from torchdp.density.orthogonal import GaussianOrthogonal, OrthogonalFeatures
from torchdp.density.projection import Projected, ProjectedFeatures
from torchdp.privacy import Guarantee, Model, Neighbours


@dataclass(frozen=True, eq=False)
class Density:
    """K~(y) = <sums, right(y)> / (users * repetitions): an unbiased estimate of mean_u E <f(x_u), g(y)>.

    features: public. sums: (*batch, instances), float64, noisy sums over the users of f_i(x)_j; a batch is of classes,
    or of repeated releases (``sample_shape``).
    users: (*batch,), how many were summed. variance: (*batch,), of each sum over rounding and privacy noise, the
    largest over the data. guarantee: of all classes together, but of one release: repeats of the same users are for
    simulations, and compose if they are published. None: nobody is protected (a reference). Raises ValueError,
    TypeError.

    Guarantees: that of ``guarantee``, however many queries are asked, since they are answered from the sums alone.
    Source: Wagner (2025), Algorithm 1, KDE query.
    """

    features: Features
    sums: Tensor
    users: Tensor
    variance: Tensor
    guarantee: Guarantee | None

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        sums, users, variance = (
            checks.floating(name, getattr(self, name)).double() for name in ("sums", "users", "variance")
        )
        if sums.ndim < 1 or sums.shape[-1] != self.features.instances:
            raise ValueError(f"sums must have shape (..., {self.features.instances}), not {tuple(sums.shape)}")
        if users.numel() and not (users >= 1).all():
            raise ValueError("users must hold counts of at least 1")
        object.__setattr__(self, "sums", sums)
        object.__setattr__(self, "users", users.to(sums.device).expand(sums.shape[:-1]))
        if not (variance >= 0).all():
            raise ValueError("variance must hold numbers >= 0")
        object.__setattr__(self, "variance", variance.to(sums.device).expand(sums.shape[:-1]))

    def evaluate(self, y: Tensor) -> Tensor:
        """K~ at each query: (q, d) -> (*batch, q), float64. Raises TypeError, ValueError."""
        weights = self.sums / (self.users * self.features.repetitions)[..., None]
        return torch.cat([weights @ right.mT for right in self._rights(y)], -1)

    def standard_error(self, y: Tensor) -> Tensor:
        """Root of the variance of K~(y) for these features, at most, over rounding and privacy: (q, d) -> (*batch, q).

        (sum_j g(y)_j^2 variance)^{1/2} / (users * repetitions). It is computed from public numbers.
        """
        each = self.variance.sqrt() / (self.users * self.features.repetitions)
        norms = torch.cat([torch.linalg.vector_norm(right, dim=-1) for right in self._rights(y)])
        return each[..., None] * norms

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything above, into one file. Raises OSError."""
        torch.save(replace(self, sums=self.sums.contiguous()), path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Density":
        """What ``save`` wrote, on the CPU. No code of the file is run: only the classes of this room are made.

        Raises OSError, ValueError.
        """
        with torch.serialization.safe_globals(list(_PARTS)):
            try:
                loaded = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, MemoryError):
                raise
            except Exception as error:  # torch raises UnpicklingError, RuntimeError, EOFError ... for other files
                raise ValueError(f"{os.fspath(path)} holds no Density; write it with Density.save") from error
        if not isinstance(loaded, Density) or "variance" not in vars(loaded):
            raise ValueError(f"{os.fspath(path)} holds no Density; write it with Density.save")
        return replace(loaded)  # goes through the checks

    def _rights(self, y: Tensor) -> Iterator[Tensor]:
        """g(y) part by part, (some, instances), float64."""
        y = self.features.family.queries(y)
        parts = y.split(max(1, NUMBERS_AT_ONCE // self.features._numbers))
        return (self.features._right(part).to(self.sums) for part in parts)


_PARTS = (
    Density,
    Guarantee,
    Model,
    Neighbours,
    BinSignFeatures,
    BucketFeatures,
    Exponential,
    FourierFeatures,
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    Grid,
    IdentityFeatures,
    InnerProduct,
    InnerProductRotated,
    InnerProductSigns,
    LaplacianBuckets,
    LaplacianSigns,
    OrthogonalFeatures,
    ParityFeatures,
    Projected,
    ProjectedFeatures,
    RotatedFeatures,
    SignedSumFeatures,
    SquareWaveFeatures,
)
