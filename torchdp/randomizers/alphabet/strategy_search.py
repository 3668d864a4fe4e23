"""What the searches for strategy matrices are given, and where they begin.

With v_y the rows of Q scaled to [e^-epsilon, 1], the variance under a prior is tr(W M^{-1} W^T) -
sum_x prior_x ||W e_x||^2, M = sum_y weight_y v_y v_y^T/<prior, v_y>: of W only the Gram matrix
W^T W counts. The best rows are extreme, v_y in {e^-epsilon, 1}^k, for M is convex in each.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kairouz, Oh, Viswanath (2014) for
the extreme rows (staircase mechanisms).
"""

import math

import torch
from torch import Tensor

from torchdp import checks

SMALLEST_EPSILON = 1e-3
LARGEST_EPSILON = 30.0

# Weight of the histogram beside the workload: what W does not ask for keeps a finite variance.
FLOOR = 1e-8

# Logits of a random start: those of types in a row's subset, the others' the same below 0, and the
# deviation of noise, which tells equal rows apart.
HEIGHT = 1.5
NOISE = 0.3


def strategy_problem(
    W: Tensor, epsilon: float, prior: Tensor | None
) -> tuple[Tensor, float, Tensor | None]:
    """What a search is given, checked: float64, prior scaled to 1. Raises TypeError, ValueError."""
    W, prior = answered(W, prior)
    if not W.any():
        raise ValueError("W must not be zero: every strategy answers it without error")
    epsilon = checks.within("epsilon", epsilon, SMALLEST_EPSILON, LARGEST_EPSILON)
    return W, epsilon, prior


def answered(
    W: Tensor, prior: Tensor | None, positive: bool = True
) -> tuple[Tensor, Tensor | None]:
    """A workload (queries, types), float64, and a prior of its types.

    Raises TypeError, ValueError.
    """
    W = checks.matrix("W", W).detach().double()
    if W.ndim != 2 or W.shape[1] < 2:
        raise ValueError(
            f"W must have shape (queries, types) with types >= 2, not {tuple(W.shape)}"
        )
    if prior is not None:
        prior = checks.shares("prior", prior, W.shape[1], positive=positive)
        prior = prior.detach().to(W.device)
    return W, prior


def gram_root(W: Tensor) -> Tensor:
    """R (k, k) with R^T R = W^T W over the number of queries, plus a little of the histogram's.

    W is scaled to entries of at most 1.
    """
    W = W / W.abs().max()
    W = W / math.sqrt(len(W))
    gram = W.mT @ W
    diagonal = gram.diagonal()
    # Through the view, in place: with the floor the factor exists also for a W of low rank.
    diagonal += FLOOR * diagonal.mean()
    return torch.linalg.cholesky(gram).mT


def random_subsets(k: int, outputs: int, epsilon: float, generator: torch.Generator) -> Tensor:
    """Logits of rows to begin with, (outputs, k): noisy subsets of k/(e^epsilon + 1) types.

    Row y holds type y mod k, so that no type is left out.
    """
    device = generator.device
    size = round(k / (math.exp(epsilon) + 1))
    keys = torch.rand(outputs, k, dtype=torch.float64, device=device, generator=generator)
    rows = torch.arange(outputs, device=device)
    keys[rows, rows % k] = -1.0  # the least key: always in
    noise = torch.randn(outputs, k, dtype=torch.float64, device=device, generator=generator)
    inside = keys.argsort(-1).argsort(-1) < max(1, size)
    return 2 * HEIGHT * inside - HEIGHT + NOISE * noise
