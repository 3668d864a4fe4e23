"""Unbiased private means, covariances and moments of vectors in a bounded domain K, with noise
shaped to K.

    >>> import torch
    >>> from torchdp import domains, mean
    >>> box = domains.Box(torch.zeros(3), torch.tensor([1.0, 1.0, 100.0]))
    >>> protocol = mean.GaussianMean.tuned(box, epsilon=1.0, delta=1e-6)
    >>> protocol.estimate(torch.rand(10_000, 3) * box.high).value.shape
    torch.Size([3])

| API name | symbol | meaning | squared? |
|---|---|---|---|
| domain, shape.root, shape.centre | K, A, v | K lies in {v + A u: norm(u) <= 1}; a user's x becomes u = A^+ (x - c) | |
| noise_root(n) | B | Cov(estimate) = B B^T | no |
| error(n, p) | | (E norm_p(estimate - mean)^2)^{1/2} and bounds around it | no |
| predicted_mse, worst_mse | | per coordinate, on these or on the worst data | yes |
| ..._lower_bound(gamma, ...) | Gamma_p(K) | lower bounds for unbiased protocols, with constants | no |

``tuned`` takes the shape of least error; ``projected(found)`` is biased, with lower error for few
users.

Source: Nikolov, Tang (2023), Theorems 15 and 17 for the mechanisms, 42 to 59 for the lower bounds.
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
