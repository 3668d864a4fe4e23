"""Unbiased means of bounded vectors under differential privacy: noise shaped to the domain."""

from torchdp.mean.central import GaussianMean, concentrated_mean, gaussian_mean
from torchdp.mean.covariance import (
    CovarianceEstimate,
    GaussianCovariance,
    gaussian_covariance,
    project_covariance,
    project_second_moment,
    projection_bound,
)
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

__all__ = [
    "CovarianceEstimate",
    "GaussianCovariance",
    "GaussianMean",
    "GaussianMoments",
    "LocalMean",
    "MeanEstimate",
    "MeanMechanism",
    "approximate_lower_bound",
    "concentrated_lower_bound",
    "concentrated_mean",
    "distributional_approximate_lower_bound",
    "distributional_lower_bound",
    "gaussian_covariance",
    "gaussian_mean",
    "gaussian_moments",
    "local_lower_bound",
    "local_mean",
    "moment_difference_norm",
    "moment_norm",
    "paper_moment_norm",
    "project_covariance",
    "project_second_moment",
    "projection_bound",
    "pure_lower_bound",
]
