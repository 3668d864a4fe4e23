"""Unbiased means of bounded vectors under differential privacy: noise shaped to the domain."""

from torchdp.mean.balls import BallSum, Box, Ellipsoid, LpBall, Zonotope, lp_ball
from torchdp.mean.central import GaussianMean, concentrated_mean, gaussian_mean
from torchdp.mean.composite import LinearImage, Product, linear_image, minkowski_sum
from torchdp.mean.covariance import (
    CovarianceEstimate,
    GaussianCovariance,
    gaussian_covariance,
    project_covariance,
    project_second_moment,
    projection_bound,
)
from torchdp.mean.domain import Domain, Maximum
from torchdp.mean.finite import FiniteSet, Polytope
from torchdp.mean.kronecker import KroneckerProduct
from torchdp.mean.local import LocalMean, local_mean
from torchdp.mean.lower_bounds import (
    approximate_lower_bound,
    concentrated_lower_bound,
    distributional_approximate_lower_bound,
    distributional_lower_bound,
    local_lower_bound,
    pure_lower_bound,
)
from torchdp.mean.mechanism import MeanEstimate, MeanMechanism
from torchdp.mean.moment_bounds import moment_difference_norm, moment_norm, paper_moment_norm
from torchdp.mean.moments import GaussianMoments, gaussian_moments
from torchdp.mean.noise_shape import NoiseShape, noise_shape
from torchdp.mean.norm_error import NormError
from torchdp.mean.schatten import SchattenBall
from torchdp.mean.shapes import difference_shape, least_error_shape, round_shape

__all__ = [
    "BallSum",
    "Box",
    "CovarianceEstimate",
    "Domain",
    "Ellipsoid",
    "FiniteSet",
    "GaussianCovariance",
    "GaussianMean",
    "GaussianMoments",
    "KroneckerProduct",
    "LinearImage",
    "LocalMean",
    "LpBall",
    "Maximum",
    "MeanEstimate",
    "MeanMechanism",
    "NoiseShape",
    "NormError",
    "Polytope",
    "Product",
    "SchattenBall",
    "Zonotope",
    "approximate_lower_bound",
    "concentrated_lower_bound",
    "concentrated_mean",
    "difference_shape",
    "distributional_approximate_lower_bound",
    "distributional_lower_bound",
    "gaussian_covariance",
    "gaussian_mean",
    "gaussian_moments",
    "least_error_shape",
    "linear_image",
    "local_lower_bound",
    "local_mean",
    "lp_ball",
    "minkowski_sum",
    "moment_difference_norm",
    "moment_norm",
    "noise_shape",
    "paper_moment_norm",
    "project_covariance",
    "project_second_moment",
    "projection_bound",
    "pure_lower_bound",
    "round_shape",
]
