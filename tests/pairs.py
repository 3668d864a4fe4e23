"""Statistics of kernels that are given by factors."""

import torch
from torch import Tensor

from torchdp.pairwise import Form, Pairs, PairwiseStatistic


def from_factors(left: Tensor, right: Tensor, pairs: Pairs = Pairs.DISTINCT) -> PairwiseStatistic:
    """The statistic of the kernel (W + W^T)/2, W = left right: left (k, r), right (r, k)."""
    left = left.double()
    right = right.double().mT
    ones = torch.ones(left.shape[1]).double()
    points = torch.cat([(left + right) / 2, (left - right) / 2], 1)
    return PairwiseStatistic("kernel", points, Form(torch.cat([ones, -ones])), pairs=pairs)
