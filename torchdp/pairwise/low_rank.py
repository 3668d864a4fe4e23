"""Kernels of low rank in the place of the kernel: fewer coordinates of noise against a bias that is known."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.descent import Adam, cosine
from torchdp.factorization import LowRankRelaxation
from torchdp.pairwise.statistic import Form, PairwiseStatistic, histogram_of, one_kernel
from torchdp.randomizers import PrivUnit
from torchdp.threads import one_thread

SHARPNESS = 4.0, 400.0  # of the smoothed maxima, first and last step
FINALISTS = 2  # ranks that are trained to the end


@one_thread
def low_rank(
    statistic: PairwiseStatistic,
    rank: int,
    n: int,
    epsilon: float,
    *,
    prior: Tensor | None = None,
    steps: int = 400,
    learning_rate: float = 0.02,
) -> PairwiseStatistic:
    """A form f' of rank at most ``rank`` near the statistic's kernel f, trained for one message of n users.

    Minimises 4 v ||J mean u||^2/n + 2 v^2 sum weights^2/n^2 + max abs(f - f')^2: the leading variance of OneMessage
    for users whose histogram is ``prior`` (None: the worst, all users of one type) and the bias at its worst over
    *all* histograms, so that a prior which is wrong costs variance, never an unknown bias. Points, weights and the
    free constant are parameters, started at the largest eigenvalues of f and moved by Adam; the best step counts,
    and ``steps = 0`` is the truncated spectrum. The result ``approximates`` the statistic: protocols take it as they
    take any other, and their predicted errors contain the bias; standard errors of estimates do not,
    intervals are widened by a bound of it.

    statistic: a mean (no denominator). prior: (k,), non-negative, public. Raises ValueError, TypeError.
    Source: Ghazi et al. (2023), Lemma 12, who project at random within an allowed error alpha; Kingma, Ba (2015).
    """
    users, epsilon = float(checks.integer("n", n, 2)), checks.positive("epsilon", epsilon)
    rank, steps = checks.integer("rank", rank, 1), checks.integer("steps", steps, 0)
    learning_rate = checks.positive("learning_rate", learning_rate)
    target = kernel_of(statistic)
    h = histogram_of(prior, statistic)
    one = PrivUnit(rank, epsilon).moments.variance  # of a message of radius 1
    scale = float(target.abs().max()) or 1.0
    with torch.inference_mode(False), torch.enable_grad():
        exact = target / scale
        offset = statistic.form.constant / scale
        module = LowRankRelaxation(exact - offset, rank, symmetric=True)
        constant = torch.nn.Parameter(exact.new_tensor(offset))
        adam = Adam([*module.parameters(), constant], betas=(0.9, 0.99))
        best: tuple[float, Tensor, Tensor, float] = math.inf, exact, exact, 0.0
        for step in range(steps + 1):
            left, right = module()
            points, weights, miss = right.mT, module.weights, exact - constant - left @ right
            with torch.no_grad():
                value = float(_bound(points, weights, miss, h, one, users, math.inf))
                if value < best[0]:
                    best = value, points.clone(), weights.clone(), float(constant)
            if step < steps:
                sharpness = SHARPNESS[0] * (SHARPNESS[1] / SHARPNESS[0]) ** (step / steps)
                loss = _bound(points, weights, miss, h, one, users, sharpness).log()
                adam.step(loss, cosine(learning_rate, step, steps))
    _, points, values, shift = best
    size = values.abs().clamp_min(1e-300)  # weights +-1: the same form
    return PairwiseStatistic(
        f"{statistic.name}, rank {points.shape[1]}",
        points * (size * scale).sqrt(),
        Form(values / size, shift * scale),
        pairs=statistic.pairs,
        approximates=statistic,
    )


def fewer_dimensions(
    statistic: PairwiseStatistic, n: int, epsilon: float, *, prior: Tensor | None = None, steps: int = 400
) -> PairwiseStatistic:
    """The best of :func:`low_rank` over ranks 1, 2, 4, ... below the statistic's own, or the statistic itself.

    Judged by the variance that low_rank minimises plus the bias at its worst over all histograms, squared; the
    statistic itself has no bias. Every rank is trained for an eighth of the steps, the best ``FINALISTS`` for all.
    Arguments as in :func:`low_rank`.
    """
    h = histogram_of(prior, statistic)
    exact = kernel_of(statistic)

    def bound(candidate: PairwiseStatistic) -> float:
        miss = exact - candidate.kernel(candidate.form)
        one = PrivUnit(candidate.dim, epsilon).moments.variance
        return float(_bound(candidate.points, candidate.form.weights, miss, h, one, float(n), math.inf))

    def trained(rank: int, steps: int) -> PairwiseStatistic:
        return low_rank(statistic, rank, n, epsilon, prior=prior, steps=steps)

    ranks = sorted((bound(trained(2**i, steps // 8)), 2**i) for i in range((statistic.dim - 1).bit_length()))
    return min([statistic, *(trained(rank, steps) for _, rank in ranks[:FINALISTS])], key=bound)


def kernel_of(statistic: PairwiseStatistic) -> Tensor:
    """The kernel matrix of a mean, (k, k). Raises ValueError for a ratio."""
    if one_kernel(statistic).denominator is not None:
        raise ValueError("statistic must be a PairwiseStatistic that is a mean, not a ratio")
    return statistic.kernel(statistic.form)


def _bound(
    points: Tensor, weights: Tensor, miss: Tensor, h: Tensor | None, one: float, n: float, sharpness: float
) -> Tensor:
    """Variance plus worst bias squared; maxima smoothed by norms of order ``sharpness``, exact at infinity."""
    v = one * _largest(points.square().sum(1), sharpness)
    if h is None:
        squares = _largest((weights * points).square().sum(1), sharpness)
    else:
        squares = (weights * (h @ points)).square().sum()
    bias = _largest(miss.abs().flatten(), sharpness)
    return 4 * v * squares / n + 2 * v**2 * weights.square().sum() / n**2 + bias.square()


def _largest(values: Tensor, sharpness: float) -> Tensor:
    if math.isinf(sharpness):
        return values.max()
    return ((sharpness * values.clamp_min(1e-12).log()).logsumexp(0) / sharpness).exp()
