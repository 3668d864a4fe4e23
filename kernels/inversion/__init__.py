"""Integer laws as tables of 128 bits, for draws by inversion: ``torchdp.rounded`` draws from them by a guide."""

from torchdp.kernels.inversion.tables import (
    Table,
    binomial,
    cut_geometric,
    discrete_normal,
    logarithmic,
    negative_binomial,
    poisson,
    rounded_normal,
)

__all__ = [
    "Table",
    "binomial",
    "cut_geometric",
    "discrete_normal",
    "logarithmic",
    "negative_binomial",
    "poisson",
    "rounded_normal",
]
