"""Kernel densities in the shuffle model: random features of kernels, private densities, learning from them."""

from torchdp.density.density import Density
from torchdp.density.errors import MeanSquaredError, expected_mse, kernel_means
from torchdp.density.exponential import Exponential
from torchdp.density.family import Family, Features, OneTermFamily
from torchdp.density.gaussian import GaussianFourier, GaussianSquareWave
from torchdp.density.inner_product import InnerProduct, InnerProductRotated, InnerProductSigns
from torchdp.density.kde import ShuffledKDE, calibrated_kde
from torchdp.density.laplacian import LaplacianBuckets, LaplacianSigns
from torchdp.density.learning import (
    ShuffledClasses,
    calibrated_classes,
    class_counts,
    classify,
    decode,
    nearest_centre,
)
from torchdp.density.orthogonal import GaussianOrthogonal
from torchdp.density.projection import Projected

__all__ = [
    "Density",
    "Exponential",
    "Family",
    "Features",
    "GaussianFourier",
    "GaussianOrthogonal",
    "GaussianSquareWave",
    "InnerProduct",
    "InnerProductRotated",
    "InnerProductSigns",
    "LaplacianBuckets",
    "LaplacianSigns",
    "MeanSquaredError",
    "OneTermFamily",
    "Projected",
    "ShuffledClasses",
    "ShuffledKDE",
    "calibrated_classes",
    "calibrated_kde",
    "class_counts",
    "classify",
    "decode",
    "expected_mse",
    "kernel_means",
    "nearest_centre",
]
