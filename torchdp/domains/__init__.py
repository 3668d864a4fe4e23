"""Convex sets given by oracles, and the shape of the noise that hides a point of one."""

from torchdp.domains.balls import BallSum, Box, Ellipsoid, LpBall, Zonotope, lp_ball
from torchdp.domains.composite import LinearImage, Product, linear_image, minkowski_sum
from torchdp.domains.domain import Domain, Maximum
from torchdp.domains.finite import FiniteSet, Polytope
from torchdp.domains.kronecker import KroneckerProduct
from torchdp.domains.noise_shape import NoiseShape, noise_shape
from torchdp.domains.norm_error import NormError
from torchdp.domains.schatten import SchattenBall
from torchdp.domains.shapes import difference_shape, least_error_shape, round_shape

__all__ = [
    "BallSum",
    "Box",
    "Domain",
    "Ellipsoid",
    "FiniteSet",
    "KroneckerProduct",
    "LinearImage",
    "LpBall",
    "Maximum",
    "NoiseShape",
    "NormError",
    "Polytope",
    "Product",
    "SchattenBall",
    "Zonotope",
    "difference_shape",
    "least_error_shape",
    "linear_image",
    "lp_ball",
    "minkowski_sum",
    "noise_shape",
    "round_shape",
]
