"""Unbiased private means, covariances and moments of vectors in a bounded domain K.

    >>> import torch
    >>> from torchdp import domains, mean
    >>> box = domains.Box(torch.zeros(3), torch.tensor([1.0, 1.0, 100.0]))
    >>> protocol = mean.GaussianMean.tuned(box, epsilon=1.0, delta=1e-6)
    >>> protocol.estimate(torch.rand(10_000, 3) * box.high).value.shape
    torch.Size([3])

The noise is shaped to K, which lies in an ellipsoid {v + A u: ||u|| <= 1}: ``shape.root`` is A,
``noise_root(n)`` is B with Cov(estimate) = B B^T. ``predicted_mse`` and ``worst_mse`` are squared,
by coordinates; ``error(n, p)`` is (E norm_p(estimate - mean)^2)^{1/2}. In this order:

- ``gaussian``: a curator's Gaussian noise, and the mean (Nikolov, Tang, 2023, Theorem 15);
- ``local``: mean and covariance from one message a user (Theorem 17);
- ``moments``: moment tensors and covariances by a curator (Theorem 15, Lemma 62), projections;
- ``lower_bounds``: ..._lower_bound(gamma, ...) for unbiased protocols (Theorems 42 to 59).
"""

from torchdp.mean.gaussian import GaussianMean
from torchdp.mean.local import LocalCovariance, LocalMean
from torchdp.mean.lower_bounds import (
    approximate_lower_bound,
    concentrated_lower_bound,
    distributional_lower_bound,
    local_lower_bound,
    moment_norm,
    pure_lower_bound,
)
from torchdp.mean.moments import (
    GaussianCovariance,
    GaussianMoments,
    project_covariance,
    project_second_moment,
)

__all__ = [
    "GaussianCovariance",
    "GaussianMean",
    "GaussianMoments",
    "LocalCovariance",
    "LocalMean",
    "approximate_lower_bound",
    "concentrated_lower_bound",
    "distributional_lower_bound",
    "local_lower_bound",
    "moment_norm",
    "project_covariance",
    "project_second_moment",
    "pure_lower_bound",
]
