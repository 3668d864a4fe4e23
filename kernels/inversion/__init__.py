"""Integer distributions as tables of 128 bits, for inversion: ``torchdp.rounded`` draws from them
by a guide.
"""

from torchdp.kernels.inversion.tables import (
    Table,
    binomial,
    discrete_normal,
    logarithmic,
    negative_binomial,
    poisson,
    rounded_normal,
)

__all__ = [
    "Table",
    "binomial",
    "discrete_normal",
    "logarithmic",
    "negative_binomial",
    "poisson",
    "rounded_normal",
]
