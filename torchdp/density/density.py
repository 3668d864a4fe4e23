"""The released function: public features, noisy means, and what they promise; nothing else of the data."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.density.family import NUMBERS_AT_ONCE, Features
from torchdp.description import described, made
from torchdp.privacy import Guarantee
from torchdp.protocol import Estimate

ROOMS = ("torchdp.density", "torchdp.privacy.guarantee")  # whose classes a saved density is made of


@dataclass(frozen=True, eq=False, kw_only=True)
class Density(Estimate):
    """K~(y) = <value, right(y)> / repetitions + constant: an unbiased estimate of mean_u E <f(x_u), g(y)>.

    value: (*batch, instances), float64, noisy means of f_i(x)_j over the users; a batch is of classes, or of repeated
    releases (``sample_shape``). standard_error: of each over rounding and privacy noise, the largest over the data.
    n: how many users there are, in all classes together.
    features: public. guarantee: of all classes together, but of one release: repeats of the same users are for
    simulations, and compose if they are published. Raises ValueError, TypeError.

    Guarantees: that of ``guarantee``, however many queries are asked, since they are answered from the means alone.
    Source: Wagner (2025), Algorithm 1, KDE query.
    """

    features: Features
    guarantee: Guarantee
    _repr_html_ = Brief._repr_html_  # its means say nothing by themselves

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("guarantee", self.guarantee, Guarantee)
        value, error = (
            checks.floating(name, getattr(self, name)).double() for name in ("value", "standard_error")
        )
        if value.ndim < 1 or value.shape[-1] != self.features.instances:
            raise ValueError(f"value must have shape (..., {self.features.instances}), not {tuple(value.shape)}")
        try:
            error = error.to(value.device).expand(value.shape)
        except RuntimeError:
            raise ValueError(
                f"standard_error must expand to value's shape {tuple(value.shape)}, not be of {tuple(error.shape)}"
            ) from None
        if not (error >= 0).all():
            raise ValueError("standard_error must hold numbers >= 0")
        checks.people("n", self.n, 1)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "standard_error", error)

    def evaluate(self, y: Tensor) -> Tensor:
        """K~ at each query: (q, d) -> (*batch, q), float64. Raises TypeError, ValueError."""
        found = torch.cat([self.value @ right.mT for right in self._rights(y)], -1)
        return found / self.features.repetitions + self.features.constant

    def standard_error_at(self, y: Tensor) -> Tensor:
        """Root of the variance of K~(y) for these features, at most, over rounding and privacy: (q, d) -> (*batch, q).

        (sum_j g(y)_j^2 standard_error_j^2)^{1/2} / repetitions. It is computed from public numbers.
        """
        squares = self.standard_error.square()
        return torch.cat([squares @ right.square().mT for right in self._rights(y)], -1).sqrt() / (
            self.features.repetitions
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything above, into one file. Raises OSError; TypeError for an error that is a function (SecureKDE's)."""
        checks.path("path", path).write_text(json.dumps(described(self, name="density")), encoding="ascii")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Density":
        """What ``save`` wrote, on the CPU. No code of the file is run: only the classes of this package are made.

        Raises OSError, ValueError.
        """
        text = checks.path("path", path).read_bytes()
        try:
            return checks.instance("the file", made(json.loads(text), Density, rooms=ROOMS), Density)
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{os.fspath(path)} holds no Density; write it with Density.save") from error

    def _rights(self, y: Tensor) -> Iterator[Tensor]:
        """g(y) part by part, (some, instances), float64."""
        y = self.features.family.queries(y)
        parts = y.split(max(1, NUMBERS_AT_ONCE // self.features.numbers))
        return (self.features.g(part).to(self.value) for part in parts)
