"""The variance of what users of unknown types say, where a mean of theirs is all that is known of them."""

import torch
from scipy.optimize import linprog
from torch import Tensor

LARGEST = 512  # types up to which the histogram of largest variance is sought


def largest_variance(points: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """The largest variance of values (k,) under a histogram whose mean of points (k, r) is that of ``weights`` (k,).

    Beyond 512 types a bound, (max - m)(m - min).
    Source: Bhatia, Davis (2000), Theorem 1, the bound.
    """
    middle = weights @ values
    squares = (values - middle).square()
    if len(values) > LARGEST:
        return (values.max() - middle) * (middle - values.min())
    lines = torch.cat([points.mT, torch.ones_like(values)[None]]).cpu()
    found = linprog(-squares.cpu().numpy(), A_eq=lines.numpy(), b_eq=(lines @ weights.cpu()).numpy())
    own = weights @ squares
    return torch.maximum(own, own.new_tensor(-found.fun)) if found.success else own
