"""A bound for every strategy under separated participation: weights on sets of steps, found by column generation."""

import math

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, scaled_weights
from torchdp.factorization.certificates.returning_certificate import SeparatedDual
from torchdp.factorization.solvers.acceleration import simplex
from torchdp.threads import one_thread

# Exponent of the updates.
STEP = 0.6
# Iterations between two searches for sets, how many sets one begins from and adds at most, and the weight that all
# added ones get together.
SEARCH = 14
ADDED = 200
SHARE = 0.02
# Weight below which a set is left out.
DROPPED = 1e-6
# Least weight of a row, over the mean.
LEAST = 1e-9
# Share of the largest eigenvalue of M below which one is rounding.
SPREAD = 1e-14


@one_thread
def separated_bound(
    W: Tensor, gap: int, times: int, p: float, upper: float, tol: float, max_iterations: int
) -> tuple[SeparatedDual, Tensor]:
    """Sets for which ||diag(c)^{1/2} W M^{1/2}||_tr is large, and the X = C^T C of the best iterate, <X, M> = 1.

    Each iteration: diag(c)^{1/2} W M^{1/2} = U T V^T, X = M^{-1/2} V T V^T M^{-1/2} / tr T; a set's directions are
    multiplied by X_q^STEP and its weight by <X_q, R_q>^{2 STEP}; now and then sets that X makes large join. Starts from
    the sets i, i + gap, ... for each i, and ends at ``upper`` / (1 + tol).
    """
    n = len(W)
    steps = torch.arange(n)[:, None] + gap * torch.arange(times)
    steps = steps.clamp_max(n)
    rows = scaled_weights(torch.ones_like(W[:, 0]), conjugate(p))
    sets = SeparatedDual(rows, steps, _identity(steps, n), W.new_full((n,), 1 / n))
    best, found, X_best = 0.0, sets, torch.eye(n, dtype=W.dtype)
    for iteration in range(max_iterations):
        trace, X, squares = _spectral(W, sets)
        if trace > best:
            best, found, X_best = trace, sets, X
        if upper <= best * (1 + tol) or iteration == max_iterations - 1:
            break
        sets = _moved(sets, X, _rows(sets.row_weights, squares, trace, p))
        if iteration % SEARCH == SEARCH - 1:
            sets = _joined(sets, X, gap)
    return found, X_best


def _spectral(W: Tensor, sets: SeparatedDual) -> tuple[float, Tensor, Tensor]:
    """tr T, X, and the squared row norms that X gives, times (tr T)."""
    values, Q = torch.linalg.eigh(_moment(sets))
    values = torch.maximum(values, SPREAD * values[-1])
    root = (Q * values.sqrt()) @ Q.mT
    inverse = (Q / values.sqrt()) @ Q.mT
    WM = W @ root
    Y = sets.row_weights.sqrt()[:, None] * WM
    squared, V = torch.linalg.eigh(Y.mT @ Y)
    T = torch.maximum(squared, SPREAD * squared[-1]).sqrt()
    trace = T.sum()
    half = (V * T.sqrt()).mT @ inverse
    squares = ((WM @ V) / T.sqrt()).square().sum(1)
    return float(trace), half.mT @ half / trace, squares


def _moment(sets: SeparatedDual) -> Tensor:
    """M, (n, n)."""
    n = len(sets.row_weights)
    R = sets.weights[:, None, None] * sets.directions @ sets.directions.mT
    place = sets.steps[:, :, None] * (n + 1) + sets.steps[:, None, :]
    M = R.new_zeros((n + 1) ** 2).index_add_(0, place.flatten(), R.flatten())
    return M.view(n + 1, n + 1)[:n, :n]


def _rows(c: Tensor, squares: Tensor, trace: float, p: float) -> Tensor:
    """The rows' next weights, of norm 1 in l_{p/(p-2)}."""
    if p == 2:
        return c
    if p < math.inf:
        share = c * squares
        return (share / share.sum()) ** ((p - 2) / p)
    return simplex(c * (squares / trace) ** (2 * STEP), LEAST / len(c))


def _moved(sets: SeparatedDual, X: Tensor, rows: Tensor) -> SeparatedDual:
    """Weights and directions after one update; sets of no weight left out."""
    padded = torch.nn.functional.pad(X, (0, 1, 0, 1))
    blocks = padded[sets.steps[:, :, None], sets.steps[:, None, :]]
    values = (sets.directions * (blocks @ sets.directions)).sum((1, 2))
    weights = sets.weights * values.clamp_min(1e-300) ** (2 * STEP)
    weights = weights / weights.sum()
    kept = weights > DROPPED
    size, Q = torch.linalg.eigh(blocks[kept])
    grown = (Q * size.clamp_min(0).pow(STEP)[:, None, :]) @ (Q.mT @ sets.directions[kept])
    grown = grown / grown.norm(dim=2, keepdim=True).clamp_min(1e-300)
    grown = torch.where((sets.steps[kept] < len(X))[:, :, None], grown, 0.0)
    return SeparatedDual(rows, sets.steps[kept], grown, weights[kept] / weights[kept].sum())


def _joined(sets: SeparatedDual, X: Tensor, gap: int) -> SeparatedDual:
    """With the sets of largest sums of abs(X) that are not there yet, each with orthogonal directions.

    They are the sets of most weight with one step exchanged for the best other one.
    """
    heaviest = sets.weights.argsort(descending=True)[:ADDED]
    steps, sums = _exchanged(X.abs(), sets.steps[heaviest], gap)
    known = {tuple(row) for row in sets.steps.tolist()}
    fresh = []
    for i in sums.argsort(descending=True).tolist():
        row = tuple(steps[i].tolist())
        if sums[i] > 1 and row not in known:
            known.add(row)
            fresh.append(i)
    if not fresh:
        return sets
    added = steps[fresh[:ADDED]]
    weights = torch.cat([sets.weights * (1 - SHARE), sets.weights.new_full((len(added),), SHARE / len(added))])
    directions = torch.cat([sets.directions, _identity(added, len(X))])
    return SeparatedDual(sets.row_weights, torch.cat([sets.steps, added]), directions, weights)


def _exchanged(Z: Tensor, steps: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """The sets (N, times), padded with n, with each step in turn exchanged for the best other one; sums of Z."""
    n = len(Z)
    every = torch.arange(n)
    padded = torch.nn.functional.pad(Z, (0, 1, 0, 1))
    found, sums = [], []
    for q in range(steps.shape[1]):
        others = torch.cat([steps[:, :q], steps[:, q + 1 :]], 1)
        value = padded[others[:, :, None], others[:, None, :]].sum((1, 2))
        gains = value[:, None] + Z.diagonal() + 2 * padded[others].sum(1)[:, :n]
        near = (others[:, :, None] - every).abs() < gap
        near = near & (others < n)[:, :, None]
        best = gains.masked_fill(near.any(1) | (steps[:, q, None] == every), -math.inf).max(1)
        found.append(torch.cat([others, best.indices[:, None]], 1).sort(1).values)
        sums.append(best.values)
    return torch.cat(found), torch.cat(sums)


def _identity(steps: Tensor, n: int) -> Tensor:
    """Directions of steps that are all orthogonal; 0 for the padding."""
    k = steps.shape[1]
    return torch.eye(k, dtype=torch.float64, device=steps.device) * (steps < n)[:, :, None]
