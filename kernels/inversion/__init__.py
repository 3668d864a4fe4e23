"""Integer distributions as tables of 128 bits: ``torchdp.rounded`` draws from them by a guide."""

from torchdp.kernels.inversion.tables import (
    Table,
    discrete_normal,
    logarithmic,
    poisson,
    rounded_normal,
    truncated_laplace,
)

__all__ = [
    "Table",
    "discrete_normal",
    "logarithmic",
    "poisson",
    "rounded_normal",
    "truncated_laplace",
]
