"""The convex half of strategy optimisation: the best weights of given rows, and what another row would be worth.

A row of a strategy matrix is weight * v with v in [e^-epsilon, 1]^k. The variance under a prior is tr(G M^{-1}) less a
constant, M = sum_y weight_y v_y v_y^T/<prior, v_y>, G the workload's Gram matrix: convex in the weights, which are
non-negative with sum_y weight_y v_y = 1, a weighted optimal design problem.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

RIDGE = 1e-13  # of the mean diagonal: keeps a singular M apart from rounding
PRIOR_STEP = 0.5  # exponent of the update of the least favourable prior
LIGHTEST = 1e-5  # about the least weight of a row, as a share of the largest
STEP_LENGTHS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.015, 0.004, 0.001)


@dataclass(frozen=True)
class Design:
    """Rows v (*batch, m, k), weights (*batch, m), the multipliers of sum_y weight_y v_y = 1, and the prior (*batch, k).

    residual: largest abs(sum_y weight_y v_y - 1), (*batch,).
    """

    rows: Tensor
    weights: Tensor
    prices: Tensor
    prior: Tensor
    residual: Tensor

    def double(self) -> "Design":
        """In float64."""
        return Design(*(getattr(self, name).double() for name in self.__dataclass_fields__))

    def pick(self, index: Tensor) -> "Design":
        """The problems of the batch at index."""
        return Design(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def with_rows(self, rows: Tensor, weights: Tensor) -> "Design":
        """Other rows and weights, not balanced yet."""
        return replace(self, rows=rows, weights=weights, residual=torch.full_like(self.residual, torch.inf))

    def select(self, index: Tensor) -> "Design":
        """The rows at index (*batch, m')."""
        rows = self.rows.gather(-2, index[..., None].expand(*index.shape, self.rows.shape[-1]))
        return self.with_rows(rows, self.weights.gather(-1, index))

    def extend(self, rows: Tensor, share: Tensor) -> "Design":
        """With more rows, each at its share (*batch, m') of the mean weight."""
        extra = share * self.weights.mean(-1, keepdim=True)
        return self.with_rows(torch.cat([self.rows, rows], -2), torch.cat([self.weights, extra], -1))

    def where(self, better: Tensor, other: "Design") -> "Design":
        """Own entries where ``better`` (*batch,), the other's elsewhere."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return Design(
            *(torch.where(better.view(better.shape + (1,) * (a.ndim - better.ndim)), a, b) for a, b in pairs)
        )


@dataclass(frozen=True)
class Worth:
    """At a design: G' = M^{-1} G M^{-1}, rows G', their scores v^T G' v, <prior, v>, and the variance of each type.

    defect: relative difference of tr(G M^{-1}) and tr(M G'), rounding unless M is singular.
    """

    curvature: Tensor
    image: Tensor
    score: Tensor
    mean: Tensor
    variance: Tensor
    defect: Tensor


def even_design(rows: Tensor, prior: Tensor | None) -> Design:
    """Equal weights and this prior, the uniform one for None: a start, not balanced."""
    batch, k = rows.shape[:-2], rows.shape[-1]
    weights = 1 / rows.sum((-2, -1)) * k
    prices = torch.ones(*batch, k, dtype=rows.dtype, device=rows.device)
    residual = torch.full(batch, torch.inf, dtype=rows.dtype, device=rows.device)
    start = prices / k if prior is None else prior.expand_as(prices)
    return Design(rows, weights[..., None].expand(rows.shape[:-1]), prices, start, residual)


def worth(gram: Tensor, design: Design) -> Worth:
    """What the weights and the rows are worth; the variances hold where the weights are balanced."""
    rows = design.rows
    mean = (rows @ design.prior[..., None])[..., 0]
    information = (rows * (design.weights / mean)[..., None]).mT @ rows
    ridge = RIDGE * information.diagonal(dim1=-2, dim2=-1).mean(-1)
    information.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(information)[0])
    curvature = inverse @ gram @ inverse
    image = rows @ curvature
    score = (rows * image).sum(-1)
    second = (rows.mT @ (design.weights * score / mean.square())[..., None])[..., 0]
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
        excess = (rows.mT @ weights[..., None])[..., 0] - 1
        residual = excess.abs().amax(-1)
        if iteration == newton or bool((residual < enough).all()):
            break
        hessian = (rows * (weights / q)[..., None]).mT @ rows
        ridge = RIDGE * hessian.diagonal(dim1=-2, dim2=-1).mean(-1)
        hessian.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
        step = 2 * torch.cholesky_solve(excess[..., None], torch.linalg.cholesky_ex(hessian)[0])
        along = rows @ step  # (*batch, m, 1)
        tried = q[..., None] + along * lengths  # (*batch, m, lengths)
        dual = 2 * (a[..., None] * tried.clamp_min(0)).sqrt().sum(-2) - lengths * step.sum(-2)
        dual = torch.where((tried > 1e-3 * q[..., None]).all(-2), dual, -torch.inf)
        length = torch.where(dual.amax(-1) > -torch.inf, lengths[dual.argmax(-1)], 0.0)
        prices = prices + length[..., None] * step[..., 0]
        q = (rows @ prices[..., None])[..., 0]
    return replace(design, weights=weights, prices=prices, residual=residual)


def worsen(design: Design, variance: Tensor) -> Design:
    """The prior, moved towards the types of large variance; at a fixed point they are those of largest variance."""
    mean = (design.prior * variance).sum(-1, keepdim=True)
    prior = design.prior * (variance / mean).clamp(0.1, 10) ** PRIOR_STEP
    prior = (prior / prior.sum(-1, keepdim=True)).clamp_min(1e-9)
    return replace(design, prior=prior / prior.sum(-1, keepdim=True))


def _dual_point(rows: Tensor, a: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    """The last prices, raised until every <prices, v_y> is positive, at their best scale; and <prices, v>."""
    q, sums = (rows @ prices[..., None])[..., 0], rows.sum(-1)
    least = 1e-3 * q.abs().mean(-1, keepdim=True)
    raised = ((least - q) / sums).amax(-1, keepdim=True).clamp_min(0)
    prices, q = prices + raised, q + raised * sums
    scale = ((a * q).sqrt().sum(-1) / prices.sum(-1)).square()[..., None]
    return prices * scale, q * scale
