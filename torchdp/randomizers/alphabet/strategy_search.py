"""Matrices of small variance for a given workload: the search behind ``StrategyMatrix.tuned``.

With v_y the rows of Q scaled to [e^-epsilon, 1], the variance under a prior is tr(W M^{-1} W^T) - sum_x prior_x
||W e_x||^2, M = sum_y weight_y v_y v_y^T/<prior, v_y>. It is convex in the weights, and M is convex in each v_y, so the
best rows are extreme: v_y in {e^-epsilon, 1}^k. Two starts (noisy copies of randomized response, random subsets)
descend on the logits of v by Adam, the weights being made optimal for the decoder in every step; then the rows are
rounded, and again and again the best single flips of half of the rows compete with all rows for the places. Randomized
and Hadamard response stand as candidates beside the outcome. For the worst type the prior moves towards the least
favourable one all the while.

The convex half: the best weights of given rows, and what another row would be worth. The variance is tr(G M^{-1}) less
a constant, G the workload's Gram matrix; the weights are non-negative with sum_y weight_y v_y = 1, a weighted optimal
design problem.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kairouz, Oh, Viswanath (2014) for the extreme rows
(staircase mechanisms); Kingma, Ba (2015) for Adam.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp import checks
from torchdp.randomizers.draws import popcount
from torchdp.threads import one_thread

LEARNING_RATE, EXTREME = 0.1, 10.0  # the largest logit
SLACK = 1e-6  # share of epsilon left to the rounding of the column sums
BALANCED = 1e-10  # largest error of a column sum at which a design counts
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 30.0
SMALL = 64  # types up to which random starts do
NEARLY = 1e-3  # largest error of a column sum on the way
# weight of the histogram beside the workload: what W does not ask for keeps a finite variance
FLOOR = 1e-8
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
        return self._replace(
            rows=rows, weights=weights, residual=torch.full_like(self.residual, torch.inf)
        )

    def heaviest(self, m: int) -> "Design":
        """So many rows of the largest weights."""
        weights, index = self.weights.topk(m, -1)
        index = index[..., None].expand(*index.shape, self.rows.shape[-1])
        return self.with_rows(self.rows.gather(-2, index), weights)

    def where(self, better: Tensor, other: "Design") -> "Design":
        """Own entries where ``better`` (*batch,), the other's elsewhere."""
        each = (better.view(better.shape + (1,) * (own.ndim - better.ndim)) for own in self)
        return Design(*map(torch.where, each, self, other))


Found = tuple[Design, Tensor]  # of several searches, and the cost of each


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


class Effort(NamedTuple):
    """How hard to search: rows at most, steps, rounds of exchanges."""

    outputs: int
    steps: int
    exchanges: int

    @classmethod
    def of(cls, k: int, outputs: int | None, steps: int | None, exchanges: int | None) -> "Effort":
        """What is asked for k types, or usual where that is None. Raises ValueError."""
        usual = (4 * k, 500, 50) if k <= SMALL else (4 * k, 300, 10)
        asked = (("outputs", outputs, 2 * k), ("steps", steps, 0), ("exchanges", exchanges, 0))
        outputs, steps, exchanges = (
            checks.integer(name, each if own is None else own, least)
            for (name, own, least), each in zip(asked, usual, strict=True)
        )
        checks.fits("outputs", outputs, k)
        return cls(outputs, steps, exchanges)


@one_thread
def search(
    W: Tensor,
    epsilon: float,
    prior: Tensor | None,
    effort: Effort,
    generator: torch.Generator,
    start: Tensor | None = None,
) -> list[tuple[Tensor, Tensor | None]]:
    """Candidates (Q, prior of the best decoder), some a little above epsilon, some not the best: the caller judges.

    W: (m, k), float64, not zero. prior: (k,), adds up to 1; None: the worst type. start: (rows, k), bool, extreme rows
    to begin with, in float32, in the place of the two starts. Unchecked. O(outputs k^2) for each step and start.
    """
    k, m = W.shape[1], effort.outputs
    low = torch.tensor(math.exp(-(1 - SLACK) * epsilon), dtype=torch.float64, device=W.device)
    problem = Problem(_gram(W), low, prior)
    if start is None:
        logits = _starts(k, m, epsilon, W.device, generator)
    else:
        noise = torch.randn(start[:m].shape, device=W.device, generator=generator)
        logits = (5.0 * start[:m].float() - 2.5 + 0.2 * noise)[None]
    design, cost = problem.descended(logits, effort.steps)
    best = cost.argmin()[None]
    design = Design(*(each[best] for each in design))
    design = problem.exchanged((design, cost[best]), effort.exchanges, generator)
    return [*_finish(design), *((matrix, prior) for matrix in _known(k, m, low))]


def strategy_problem(
    W: Tensor, epsilon: float, prior: Tensor | None
) -> tuple[Tensor, float, Tensor | None]:
    """What a search is given, checked: float64, prior scaled to 1. Raises TypeError, ValueError."""
    W, prior = answered(W, prior)
    if not W.any():
        raise ValueError("W must not be zero: every strategy answers it without error")
    return W, searchable(epsilon), prior


def answered(
    W: Tensor, prior: Tensor | None, positive: bool = True
) -> tuple[Tensor, Tensor | None]:
    """A workload (queries, types), float64, and a prior of its types. Raises TypeError, ValueError."""
    W = checks.matrix("W", W).detach().double()
    if W.ndim != 2 or W.shape[1] < 2:
        raise ValueError(
            f"W must have shape (queries, types) with types >= 2, not {tuple(W.shape)}"
        )
    if prior is not None:
        prior = checks.shares("prior", prior, W.shape[1], positive=positive).detach().to(W.device)
    return W, prior


def searchable(
    epsilon: float, least: float = SMALLEST_EPSILON, most: float = LARGEST_EPSILON
) -> float:
    """epsilon in [least, most]. Raises TypeError, ValueError."""
    return checks.within("epsilon", epsilon, least, most)


@dataclass(frozen=True)
class Problem:
    """The Gram matrix of a workload, e^-epsilon, and whose variance counts: the prior's or the worst type's (None)."""

    gram: Tensor
    low: Tensor
    prior: Tensor | None

    def moved(self, design: Design, value: Worth, newton: int, enough: float) -> Design:
        """Better weights; for the worst type also a worse prior."""
        design = reweigh(design, value, newton, enough)
        return worsen(design, value.variance) if self.prior is None else design

    def settled(self, design: Design, moves: int) -> Found:
        """The best of so many moves of the weights at fixed rows: of infinite cost where no move was balanced."""
        best, least = design, torch.full_like(design.residual, torch.inf)
        for _ in range(moves + 1):
            value = worth(self.gram, design)
            each = (
                value.variance.amax(-1)
                if self.prior is None
                else (value.variance * design.prior).sum(-1)
            )
            better = (design.residual < BALANCED) & (value.defect < SLACK) & (each < least)
            best, least = design.where(better, best), torch.where(better, each, least)
            design = self.moved(design, value, 10, BALANCED / 2)
        return best, least

    def descended(self, logits: Tensor, steps: int) -> Found:
        """Adam on the logits of the rows against their price, the weights following; then extreme rows."""
        gram, low = self.gram.to(logits), self.low.to(logits)
        first, second = torch.zeros_like(logits), torch.zeros_like(logits)
        prior = None if self.prior is None else self.prior.to(logits)
        design = Design.even(low + (1 - low) * logits.sigmoid(), prior)
        for step in range(1, steps + 1):
            share = logits.sigmoid()
            design = design.with_rows(low + (1 - low) * share, design.weights)
            value = worth(gram, design)
            design = self.moved(design, value, 20 if step == 1 else 3, NEARLY)
            gain = 2 * value.image / value.mean[..., None] - design.prices[..., None, :]
            gain -= (value.score / value.mean.square())[..., None] * design.prior[..., None, :]
            slope = gain * share * (1 - share) / design.prices.abs().mean(-1)[..., None, None]
            first = 0.9 * first + 0.1 * slope
            second = 0.99 * second + 0.01 * slope.square()
            rate = LEARNING_RATE / (1 - 0.9**step) * math.sqrt(1 - 0.99**step)
            logits = (logits + rate * first / (second.sqrt() + 1e-12)).clamp(-EXTREME, EXTREME)
        design = design.with_rows(torch.where(logits > 0, 1.0, self.low), design.weights)
        design, cost = self.settled(Design(*(each.double() for each in design)), 20)
        if bool(cost.isfinite().all()):
            return design, cost
        # No weights balance these rows; with randomized response among them some always do.
        m, k = logits.shape[-2:]
        single = self.low + (1 - self.low) * torch.eye(k, dtype=torch.float64, device=low.device)
        rows = torch.cat([design.heaviest(m - k).rows, single.expand(len(logits), k, k)], -2)
        repaired, again = self.settled(Design.even(rows, self.prior), 40)
        return design.where(cost.isfinite(), repaired), torch.where(cost.isfinite(), cost, again)

    def exchanged(self, found: Found, rounds: int, generator: torch.Generator) -> Design:
        """In each round the best flips of half of the rows join, all are reweighed, and the heaviest rows stay."""
        design, least = found
        best, m = design, design.rows.shape[-2]
        for _ in range(rounds):
            rows, share = self.flipped(design)
            half = (
                torch.rand(share.shape, dtype=share.dtype, device=share.device, generator=generator)
                < 0.5
            )
            weights = torch.where(half, share, 1e-9) * design.weights.mean(-1, keepdim=True)
            design = design.with_rows(
                torch.cat([design.rows, rows], -2), torch.cat([design.weights, weights], -1)
            )
            for _ in range(6):
                design = self.moved(design, worth(self.gram, design), 10, NEARLY)
            design, cost = self.settled(design.heaviest(m), 4)
            better = cost < least
            best, least = design.where(better, best), torch.where(better, cost, least)
            design = design.where(cost.isfinite(), best)
        return self.settled(best, 100)[0]

    def flipped(self, design: Design) -> tuple[Tensor, Tensor]:
        """Each row with that entry flipped which then is worth most for its price, and its share of the mean weight."""
        value, rows, low = worth(self.gram, design), design.rows, self.low
        prior, prices = design.prior[..., None, :], design.prices[..., None, :]
        change = torch.where(rows > (1 + low) / 2, low - 1, 1 - low)
        diagonal = value.curvature.diagonal(dim1=-2, dim2=-1)[..., None, :]
        score = value.score[..., None] + change * (2 * value.image + change * diagonal)
        cost = rows @ design.prices[..., None] + change * prices
        gain, index = (score / (value.mean[..., None] + change * prior) - cost).max(
            -1, keepdim=True
        )
        flipped = rows.scatter_add(-1, index, change.gather(-1, index))
        return flipped, 0.3 * (gain[..., 0] > 0).to(rows.dtype) + 1e-9


def _gram(W: Tensor) -> Tensor:
    """W^T W, scaled to size 1, with a little of the histogram's."""
    W, k = W / W.abs().max(), W.shape[1]
    if W.shape[0] > k:
        # the same Gram matrix, less queries
        W = torch.linalg.qr(W, mode="r").R * math.sqrt(k / W.shape[0])
    gram = W.mT @ W
    gram.diagonal().add_(FLOOR * gram.diagonal().mean())
    return gram


def _starts(
    k: int, outputs: int, epsilon: float, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Logits of the first rows, (2, outputs, k)."""
    noise = torch.randn(2, outputs, k, dtype=torch.float64, device=device, generator=generator)
    single = torch.eye(k, dtype=torch.float64, device=device).repeat(-(-outputs // k), 1)[:outputs]
    size = max(1, round(k / (math.exp(epsilon) + 1)))
    order = torch.rand(outputs, k, dtype=torch.float64, device=device, generator=generator).argsort(
        -1
    )
    responses, subsets = 6 * single - 3 + noise[0], 3 * (order < size) - 1.5 + 0.3 * noise[1]
    return torch.stack([responses, subsets])


def _finish(design: Design) -> list[tuple[Tensor, Tensor | None]]:
    """The one design of a batch, if sound, as a matrix: equal rows are one output, rows without weight none."""
    rows, weights = design.rows[0], design.weights[0]
    if not bool(weights.isfinite().all()) or float(design.residual[0]) > BALANCED:
        return []
    rows, inverse = torch.unique(rows, dim=0, return_inverse=True)
    weights = torch.zeros(len(rows), dtype=weights.dtype, device=weights.device).index_add_(
        0, inverse, weights
    )
    kept = weights > 0
    Q = rows[kept] * weights[kept][:, None]
    return [(Q / Q.sum(0), design.prior[0])]


def _known(k: int, outputs: int, low: Tensor) -> list[Tensor]:
    """Randomized response and, where it has few enough outputs, Hadamard response."""
    types, size = torch.arange(k, device=low.device), 1 << k.bit_length()
    held = [types[:, None] == types]
    if size <= outputs:
        held.append(
            (popcount(torch.arange(size, device=low.device)[:, None] & (types + 1)) & 1) == 0
        )
    matrices = [torch.where(pattern, 1.0, low) for pattern in held]
    return [matrix / matrix.sum(0) for matrix in matrices]
