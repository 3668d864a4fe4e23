"""Public random features and sketches as layers: buffers, no parameters, gradients in the input."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.density import Family, Features
from torchdp.density.family import SignFeatures
from torchdp.sketching import Sketch


class FeatureLayer(nn.Module):
    """f(x) / sqrt(repetitions) of a kernel's random features.

    <layer(x), layer.queries(y)> estimates k(x, y). The layer is public computation: the vectors'
    domain is not checked here, and nothing is private before bits are collected or noise is added.
    Autocast is off inside: a phase has no digits to lose. vmap, torch.compile, DDP: as any layer of
    plain operations.

    Args:
        features: drawn by a family whose f has a gradient (``GaussianFourier``,
            ``GaussianOrthogonal``, ``InnerProduct``, ``InnerProductRotated``); where f is clipped
            the gradient there is 0. Its tensors become buffers.

    Raises TypeError.
    """

    def __init__(self, features: Features) -> None:
        super().__init__()
        if not isinstance(features, Features):
            raise TypeError(
                f"features must be density.Features, not {type(features).__name__}; call "
                "family.draw"
            )
        if isinstance(features, SignFeatures):
            raise TypeError(
                "features must have a gradient, and signs have none: use GaussianFourier or another"
            )
        self._kind = type(features)
        self._rest: dict[str, Any] = {}
        # Buffers: .to() moves them and state dicts hold them, and nothing is trained.
        for field in dataclasses.fields(features):
            part = getattr(features, field.name)
            if isinstance(part, Tensor):
                self.register_buffer(field.name, part.detach().clone())
            elif isinstance(part, Family | int):
                self._rest[field.name] = part
            else:
                raise TypeError(
                    f"{type(features).__name__} is made of other features; draw them by a plain "
                    "family"
                )

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., instances), in x's dtype."""
        return self._scaled(x, self._kind.f)

    def queries(self, y: Tensor) -> Tensor:
        """g(y) / sqrt(repetitions): (..., d) -> (..., instances)."""
        return self._scaled(y, self._kind.g)

    def _scaled(self, x: Tensor, values: Callable[[Features, Tensor], Tensor]) -> Tensor:
        parts: dict[str, Any] = self._rest | dict(self.named_buffers())
        features = self._kind(**parts)
        rows = _rows(x, features.family.dimension).reshape(-1, x.shape[-1])
        # A phase of 1,000 has no digits left in half precision.
        with torch.autocast(x.device.type, enabled=False):
            y = values(features, rows)
            return y.reshape(*x.shape[:-1], y.shape[-1]) / math.sqrt(features.repetitions)


class SketchLayer(nn.Module):
    """S x of a public sketch S, m x n, with s nonzeros a column: (..., n) -> (..., m).

    Linear, at a cost of s n; the Jacobian is S. vmap, torch.compile, DDP: as any layer of plain
    operations.

    Args:
        sketch: drawn without sight of the data (``sketching.osnap`` and others); its rows and signs
            become buffers.

    Raises TypeError, ValueError.
    """

    rows: Tensor
    signs: Tensor

    def __init__(self, sketch: Sketch) -> None:
        super().__init__()
        if not isinstance(sketch, Sketch):
            raise TypeError(f"sketch must be a sketching.Sketch, not {type(sketch).__name__}")
        self.height = sketch.height
        self.register_buffer("rows", sketch.rows.clone())
        self.register_buffer("signs", sketch.signs.clone())

    def forward(self, x: Tensor) -> Tensor:
        """(..., n) -> (..., m), in x's dtype."""
        # s signs of 1/s^{1/2} give each column length 1.
        entries = (self.signs / math.sqrt(len(self.signs))).to(x)
        rows = _rows(x, self.rows.shape[1])
        # Column j of S has the entries signs[:, j] in the rows self.rows[:, j].
        terms = (rows[..., None, :] * entries).flatten(-2)
        return x.new_zeros(*x.shape[:-1], self.height).index_add(-1, self.rows.flatten(), terms)


def _rows(x: Tensor, width: int) -> Tensor:
    if not checks.dense("x", x).is_floating_point():
        raise TypeError("x must be a floating tensor; call .float()")
    return checks.shaped("x", x, ..., width)
