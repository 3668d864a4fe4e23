"""Strategy matrices of small variance for a given workload."""

import math
from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from torchdp import checks
from torchdp.randomizers.alphabet.strategy import StrategyMatrix
from torchdp.randomizers.alphabet.strategy_design import Design, Worth, reweigh, uniform_design, worsen, worth
from torchdp.randomizers.draws import popcount

LEARNING_RATE = 0.1
SLACK = 1e-6  # share of epsilon left to the rounding of the column sums
BALANCED = 1e-10  # largest error of a column sum at which a design counts
NEARLY = 1e-3  # largest error of a column sum on the way
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 30.0
FLOOR = (
    1e-8  # weight of the histogram beside the workload: directions that W does not ask for keep a finite variance
)


class Objective(Enum):
    """Which variance of one user's answers is to be small, in the mean over the queries."""

    AVERAGE = "in the mean over the types"
    WORST = "for the worst type"

    def of(self, variance: Tensor) -> Tensor:
        """The objective from the variance of each query and type: (*batch, m, k) -> (*batch,)."""
        types = variance.mean(-2)
        return types.mean(-1) if self is Objective.AVERAGE else types.amax(-1)


def optimize_strategy(
    W: Tensor,
    epsilon: float,
    objective: Objective = Objective.AVERAGE,
    *,
    generator: torch.Generator,
    outputs: int | None = None,
    steps: int = 500,
    exchanges: int = 50,
    restarts: int = 1,
) -> StrategyMatrix:
    """A strategy matrix of small variance for W among all epsilon-LDP ones; see :func:`optimize_strategies`."""
    return optimize_strategies(
        W,
        [epsilon],
        objective,
        generator=generator,
        outputs=outputs,
        steps=steps,
        exchanges=exchanges,
        restarts=restarts,
    )[0]


def optimize_strategies(
    W: Tensor,
    epsilons: Sequence[float],
    objective: Objective = Objective.AVERAGE,
    *,
    generator: torch.Generator,
    outputs: int | None = None,
    steps: int = 500,
    exchanges: int = 50,
    restarts: int = 1,
) -> list[StrategyMatrix]:
    """For each epsilon a strategy matrix Q of small variance for the workload W, all in one batch.

    With v_y the rows of Q scaled to [e^-epsilon, 1], the variance under a prior is tr(W M^{-1} W^T) - sum_x prior_x
    ||W e_x||^2, M = sum_y weight_y v_y v_y^T/<prior, v_y>. It is convex in the weights, and M is convex in each v_y, so
    the best rows are extreme: v_y in {e^-epsilon, 1}^k. Two starts (noisy copies of randomized response, random
    subsets) descend on the logits of v by Adam, the weights being made optimal for the decoder in every step; then the
    rows are rounded, and ``exchanges`` times the best single flips of half of the rows compete with all rows for the
    ``outputs`` places. Randomized and Hadamard response stand as candidates beside the outcome. For the worst case the
    prior moves towards the least favourable one all the while, and is the result's.

    W: (m, k), real, not zero, k >= 2. epsilons: each in [0.001, 30]. outputs: most rows allowed, at least 2k (None:
    4k; more rows, less variance). steps, exchanges: how many. restarts: repetitions of the two starts.
    The results are on W's device, in float64. The problem is not convex in the rows and no gap is promised: compare
    with :func:`strategy_lower_bound`. O(outputs k^2) for each step and start. Raises TypeError, ValueError.

    Guarantees: each result is at most epsilon-LDP, ``epsilon`` measured on the matrix returned.
    Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kairouz, Oh, Viswanath (2014) for the
    extreme rows (staircase mechanisms); Kingma, Ba (2015) for Adam.
    """
    W = checks.matrix("W", W).detach().double()
    if W.ndim != 2 or W.shape[1] < 2:
        raise ValueError(f"W must have shape (queries, types) with types >= 2, not {tuple(W.shape)}")
    if not W.any():
        raise ValueError("W must not be zero: every strategy answers it without error")
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, not {objective!r}")
    values = [checks.positive("epsilons", epsilon) for epsilon in epsilons]
    if not values or not SMALLEST_EPSILON <= min(values) <= max(values) <= LARGEST_EPSILON:
        raise ValueError(
            f"epsilons must hold numbers in [{SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}], at least one"
        )
    k = W.shape[1]
    outputs = checks.integer("outputs", 4 * k if outputs is None else outputs, 2 * k)
    steps, exchanges = checks.integer("steps", steps, 0), checks.integer("exchanges", exchanges, 0)
    restarts = checks.integer("restarts", restarts, 1)
    generator = checks.random_source(generator, W.device)

    W = W / W.abs().max()
    if W.shape[0] > k:
        W = torch.linalg.qr(W, mode="r").R * math.sqrt(k / W.shape[0])  # the same Gram matrix, less queries
    gram = W.mT @ W
    gram.diagonal().add_(FLOOR * gram.diagonal().mean())
    low = torch.exp(-(1 - SLACK) * torch.tensor(values, dtype=torch.float64)).to(W.device)[:, None, None]
    logits = torch.cat([_starts(k, outputs, epsilon, restarts, W.device, generator) for epsilon in values])
    design, cost = _descend(gram, logits, low.repeat_interleave(2 * restarts, 0), objective, steps)
    best = cost.view(len(values), -1).argmin(1) + 2 * restarts * torch.arange(len(values), device=W.device)
    design = _exchange(gram, design.pick(best), cost[best], low, objective, exchanges, generator)
    found = []
    for i, epsilon in enumerate(values):
        candidates = [*_finish(design, i), *_known(k, outputs, low[i])]
        fitting = [candidate for candidate in candidates if candidate.epsilon <= epsilon]
        found.append(min(fitting, key=lambda candidate: float(objective.of(candidate.workload_variance(W)))))
    return found


def _starts(
    k: int, outputs: int, epsilon: float, restarts: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Logits of the first rows, (2 restarts, outputs, k)."""
    noise = torch.randn(restarts, 2, outputs, k, dtype=torch.float64, device=device, generator=generator)
    single = torch.eye(k, dtype=torch.float64, device=device).repeat(-(-outputs // k), 1)[:outputs]
    size = max(1, round(k / (math.exp(epsilon) + 1)))
    order = torch.rand(restarts, outputs, k, dtype=torch.float64, device=device, generator=generator).argsort(-1)
    responses, subsets = 6 * single - 3 + noise[:, 0], 3 * (order < size) - 1.5 + 0.3 * noise[:, 1]
    return torch.stack([responses, subsets], 1).flatten(0, 1)


def _descend(gram: Tensor, logits: Tensor, low: Tensor, objective: Objective, steps: int) -> tuple[Design, Tensor]:
    """Adam on the logits of the rows against their price, the weights following; then extreme rows, and their cost."""
    first, second = torch.zeros_like(logits), torch.zeros_like(logits)
    design = uniform_design(low + (1 - low) * logits.sigmoid())
    for step in range(1, steps + 1):
        share = logits.sigmoid()
        design = design.with_rows(low + (1 - low) * share, design.weights)
        value = worth(gram, design)
        design = _move(design, value, objective, 20 if step == 1 else 3, NEARLY)
        gain = 2 * value.image / value.mean[..., None] - design.prices[..., None, :]
        gain -= (value.score / value.mean.square())[..., None] * design.prior[..., None, :]
        slope = gain * share * (1 - share) / design.prices.abs().mean(-1)[..., None, None]
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope.square()
        rate = LEARNING_RATE / (1 - 0.9**step) * math.sqrt(1 - 0.99**step)
        logits = (logits + rate * first / (second.sqrt() + 1e-12)).clamp(-10, 10)
    rows = torch.where(logits > 0, 1.0, low)
    design, cost = _settle(gram, design.with_rows(rows, design.weights), objective, 20)
    if bool(cost.isfinite().all()):
        return design, cost
    # No weights balance these rows; with randomized response among them some always do.
    m, k = logits.shape[-2:]
    single = torch.eye(k, dtype=low.dtype, device=low.device)
    heaviest = design.select(design.weights.topk(m - k, -1).indices).rows
    rows = torch.cat([heaviest, low + (1 - low) * single], -2)
    repaired, again = _settle(gram, uniform_design(rows), objective, 40)
    return design.where(cost.isfinite(), repaired), torch.where(cost.isfinite(), cost, again)


def _exchange(
    gram: Tensor,
    design: Design,
    least: Tensor,
    low: Tensor,
    objective: Objective,
    rounds: int,
    generator: torch.Generator,
) -> Design:
    """In each round the best flips of half of the rows join, all are reweighed, and the heaviest rows stay."""
    m = design.rows.shape[-2]
    best = design
    for _ in range(rounds):
        rows, share = _flip(design, worth(gram, design), low)
        half = torch.rand(share.shape, dtype=share.dtype, device=share.device, generator=generator) < 0.5
        design = design.extend(rows, torch.where(half, share, 1e-9))
        for _ in range(6):
            design = _move(design, worth(gram, design), objective, 10, NEARLY)
        design, cost = _settle(gram, design.select(design.weights.topk(m, -1).indices), objective, 4)
        better = cost < least
        best, least = design.where(better, best), torch.where(better, cost, least)
        design = design.where(cost.isfinite(), best)
    return _settle(gram, best, objective, 100)[0]


def _settle(gram: Tensor, design: Design, objective: Objective, moves: int) -> tuple[Design, Tensor]:
    """The best of so many moves of the weights at fixed rows, and its cost: infinite where no move was balanced."""
    best, least = design, torch.full_like(design.residual, torch.inf)
    for _ in range(moves + 1):
        value = worth(gram, design)
        cost = value.variance.amax(-1) if objective is Objective.WORST else value.variance.mean(-1)
        better = (design.residual < BALANCED) & (value.defect < SLACK) & (cost < least)
        best, least = design.where(better, best), torch.where(better, cost, least)
        design = _move(design, value, objective, 10, BALANCED / 2)
    return best, least


def _move(design: Design, value: Worth, objective: Objective, newton: int, enough: float) -> Design:
    if objective is Objective.WORST:
        return worsen(reweigh(design, value, newton, enough), value.variance)
    return reweigh(design, value, newton, enough)


def _flip(design: Design, value: Worth, low: Tensor) -> tuple[Tensor, Tensor]:
    """Each row with that entry flipped which then is worth most against its price, and its share of the mean weight."""
    rows, prior, prices = design.rows, design.prior[..., None, :], design.prices[..., None, :]
    change = torch.where(rows > (1 + low) / 2, low - 1, 1 - low)
    diagonal = value.curvature.diagonal(dim1=-2, dim2=-1)[..., None, :]
    score = value.score[..., None] + change * (2 * value.image + change * diagonal)
    cost = rows @ design.prices[..., None] + change * prices
    gain, index = (score / (value.mean[..., None] + change * prior) - cost).max(-1, keepdim=True)
    flipped = rows.scatter_add(-1, index, change.gather(-1, index))
    return flipped, 0.3 * (gain[..., 0] > 0).to(rows.dtype) + 1e-9


def _finish(design: Design, index: int) -> list[StrategyMatrix]:
    """One design of the batch, if sound, as a matrix: equal rows are one output, rows without weight none."""
    rows, weights = design.rows[index], design.weights[index]
    if not bool(weights.isfinite().all()) or float(design.residual[index]) > BALANCED:
        return []
    rows, inverse = torch.unique(rows, dim=0, return_inverse=True)
    weights = torch.zeros(len(rows), dtype=weights.dtype, device=weights.device).index_add_(0, inverse, weights)
    kept = weights > 0
    Q = rows[kept] * weights[kept][:, None]
    return [StrategyMatrix(Q / Q.sum(0), design.prior[index])]


def _known(k: int, outputs: int, low: Tensor) -> list[StrategyMatrix]:
    """Randomized response and, where it has few enough outputs, Hadamard response."""
    types = torch.arange(k, device=low.device)
    held = [types[:, None] == types]
    size = 1 << k.bit_length()
    if size <= outputs:
        held.append((popcount(torch.arange(size, device=low.device)[:, None] & (types + 1)) & 1) == 0)
    matrices = [torch.where(pattern, 1.0, low) for pattern in held]
    return [StrategyMatrix(matrix / matrix.sum(0)) for matrix in matrices]
