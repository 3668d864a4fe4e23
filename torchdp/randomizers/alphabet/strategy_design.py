"""The convex half of strategy optimisation: the best weights of given rows, and what another row would be worth.

A row of a strategy matrix is weight * v with v in [e^-epsilon, 1]^k. The variance under a prior is tr(G M^{-1}) less a
constant, M = sum_y weight_y v_y v_y^T/<prior, v_y>, G the workload's Gram matrix: convex in the weights, which are
non-negative with sum_y weight_y v_y = 1, a weighted optimal design problem.
"""

from typing import NamedTuple

import torch
from torch import Tensor

RIDGE = 1e-13  # of the mean diagonal: keeps a singular M apart from rounding
PRIOR_STEP = 0.5  # exponent of the update of the least favourable prior
LIGHTEST = 1e-5  # about the least weight of a row, as a share of the largest
STEP_LENGTHS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.015, 0.004, 0.001)


class Design(NamedTuple):
    """Rows v (*batch, m, k), weights (*batch, m), the multipliers of sum_y weight_y v_y = 1, and the prior (*batch, k).

    residual: largest abs(sum_y weight_y v_y - 1), (*batch,).
    """

    rows: Tensor
    weights: Tensor
    prices: Tensor
    prior: Tensor
    residual: Tensor

    @classmethod
    def even(cls, rows: Tensor, prior: Tensor | None) -> "Design":
        """Equal weights and this prior, the uniform one for None: a start, not balanced."""
        batch, k = rows.shape[:-2], rows.shape[-1]
        weights, prices = 1 / rows.sum((-2, -1)) * k, rows.new_ones(*batch, k)
        start = prices / k if prior is None else prior.expand_as(prices)
        residual = rows.new_full(batch, torch.inf)
        return cls(rows, weights[..., None].expand(rows.shape[:-1]), prices, start, residual)

    def with_rows(self, rows: Tensor, weights: Tensor) -> "Design":
        """Other rows and weights, not balanced yet."""
        return self._replace(rows=rows, weights=weights, residual=torch.full_like(self.residual, torch.inf))

    def heaviest(self, m: int) -> "Design":
        """So many rows of the largest weights."""
        weights, index = self.weights.topk(m, -1)
        index = index[..., None].expand(*index.shape, self.rows.shape[-1])
        return self.with_rows(self.rows.gather(-2, index), weights)

    def where(self, better: Tensor, other: "Design") -> "Design":
        """Own entries where ``better`` (*batch,), the other's elsewhere."""
        each = (better.view(better.shape + (1,) * (own.ndim - better.ndim)) for own in self)
        return Design(*map(torch.where, each, self, other))


class Worth(NamedTuple):
    """At a design: G' = M^{-1} G M^{-1}, rows G', their scores v^T G' v, <prior, v>, and the variance of each type.

    defect: relative difference of tr(G M^{-1}) and tr(M G'), rounding unless M is singular.
    """

    curvature: Tensor
    image: Tensor
    score: Tensor
    mean: Tensor
    variance: Tensor
    defect: Tensor


def worth(gram: Tensor, design: Design) -> Worth:
    """What the weights and the rows are worth; the variances hold where the weights are balanced."""
    rows = design.rows
    mean = _times(rows, design.prior)
    inverse = torch.cholesky_inverse(_factor(rows, design.weights / mean))
    curvature = inverse @ gram @ inverse
    image = rows @ curvature
    score = (rows * image).sum(-1)
    second = _times(rows.mT, design.weights * score / mean.square())
    total = (inverse * gram).sum((-2, -1))
    defect = ((design.prior * second).sum(-1) / total - 1).abs()
    return Worth(curvature, image, score, mean, second - gram.diagonal(dim1=-2, dim2=-1), defect)


def reweigh(design: Design, value: Worth, newton: int, enough: float) -> Design:
    """The best weights for the decoder that belongs to the present ones: weight_y = sqrt(a_y/<prices, v_y>).

    Decoder and weights minimise one jointly convex function, sum_y a_y/weight_y with a_y the decoder's part, so taking
    turns never increases it. The prices maximise the concave dual 2 sum_y sqrt(a_y <prices, v_y>) - sum prices, by
    Newton's method: ``newton`` iterations, or until the residual is below ``enough`` all over the batch.
    """
    rows = design.rows
    a = (design.weights.square() * value.score / value.mean).clamp_min(0)
    a = a + LIGHTEST**2 * a.amax(-1, keepdim=True)  # a weight that vanished could not come back
    prices, q = _dual_point(rows, a, design.prices)
    lengths = torch.tensor(STEP_LENGTHS, dtype=rows.dtype, device=rows.device)
    for iteration in range(newton + 1):
        weights = (a / q).sqrt()
        excess = _times(rows.mT, weights) - 1
        residual = excess.abs().amax(-1)
        if iteration == newton or bool((residual < enough).all()):
            break
        step = 2 * torch.cholesky_solve(excess[..., None], _factor(rows, weights / q))
        along = rows @ step  # (*batch, m, 1)
        tried = q[..., None] + along * lengths  # (*batch, m, lengths)
        dual = 2 * (a[..., None] * tried.clamp_min(0)).sqrt().sum(-2) - lengths * step.sum(-2)
        dual = torch.where((tried > 1e-3 * q[..., None]).all(-2), dual, -torch.inf)
        length = torch.where(dual.amax(-1) > -torch.inf, lengths[dual.argmax(-1)], 0.0)
        prices = prices + length[..., None] * step[..., 0]
        q = _times(rows, prices)
    return design._replace(weights=weights, prices=prices, residual=residual)


def worsen(design: Design, variance: Tensor) -> Design:
    """The prior, moved towards the types of large variance; at a fixed point they are those of largest variance."""
    mean = (design.prior * variance).sum(-1, keepdim=True)
    prior = design.prior * (variance / mean).clamp(0.1, 10) ** PRIOR_STEP
    prior = (prior / prior.sum(-1, keepdim=True)).clamp_min(1e-9)
    return design._replace(prior=prior / prior.sum(-1, keepdim=True))


def _dual_point(rows: Tensor, a: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    """The last prices, raised until every <prices, v_y> is positive, at their best scale; and <prices, v>."""
    q, sums = _times(rows, prices), rows.sum(-1)
    least = 1e-3 * q.abs().mean(-1, keepdim=True)
    raised = ((least - q) / sums).amax(-1, keepdim=True).clamp_min(0)
    prices, q = prices + raised, q + raised * sums
    scale = ((a * q).sqrt().sum(-1) / prices.sum(-1)).square()[..., None]
    return prices * scale, q * scale


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


def _factor(rows: Tensor, weights: Tensor) -> Tensor:
    """The Cholesky factor of sum_y weight_y v_y v_y^T and a little more."""
    sums = (rows * weights[..., None]).mT @ rows
    ridge = RIDGE * sums.diagonal(dim1=-2, dim2=-1).mean(-1)
    sums.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    return torch.linalg.cholesky_ex(sums)[0]
