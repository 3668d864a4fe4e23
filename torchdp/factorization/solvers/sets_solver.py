"""A bound for every strategy under separated participation: weights on sets of steps, found by column generation."""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.factorization.certificates.returning_certificate import SeparatedDual
from torchdp.threads import one_thread

STEP = 0.6  # exponent of the updates
SEARCH = 14  # iterations between two searches for sets
ADDED = 200  # sets that one search adds, at most
SHARE = 0.02  # weight that all added sets get together
DROPPED = 1e-6  # weight below which a set is left out
SPREAD = 1e-14  # share of the largest eigenvalue of M below which one is rounding


@one_thread
def separated_bound(
    W: Tensor,
    C: Tensor,
    rows: Tensor,
    gap: int,
    times: int,
    p: float,
    upper: float,
    tol: float,
    max_iterations: int,
) -> tuple[SeparatedDual, Tensor]:
    """Sets for which ||diag(c)^{1/2} W M^{1/2}||_tr is large, and the X = C'^T C' of the best iterate, <X, M> = 1.

    Each iteration: diag(c)^{1/2} W M^{1/2} = U T V^T, X = M^{-1/2} V T V^T M^{-1/2} / tr T; a set's directions are
    multiplied by X_q^STEP and its weight by <X_q, R_q>^{2 STEP}; now and then the sets that X makes largest join.
    Starts from sets that make M's diagonal that of the banded problem's dual. Ends at ``upper`` / (1 + tol).
    """
    n = len(W)
    sets = _start(W, C, _scaled(rows, p), gap, times)
    best, found, X_best = 0.0, sets, torch.eye(n, dtype=W.dtype, device=W.device)
    for iteration in range(max_iterations):
        trace, X, squares = _spectral(W, sets)
        if trace > best:
            best, found, X_best = trace, sets, X
        if upper <= best * (1 + tol) or iteration == max_iterations - 1:
            break
        sets = _moved(sets, X, _rows(sets.row_weights, squares, trace, p))
        if iteration % SEARCH == SEARCH - 1:
            sets = _joined(sets, X, gap, times)
    return found, X_best


def _spectral(W: Tensor, sets: SeparatedDual) -> tuple[float, Tensor, Tensor]:
    """tr T, X, and the squared row norms that X gives, times (tr T)."""
    values, Q = torch.linalg.eigh(_moment(sets))
    values = torch.maximum(values, SPREAD * values[-1])
    root, inverse = (Q * values.sqrt()) @ Q.mT, (Q / values.sqrt()) @ Q.mT
    WM = W @ root
    Y = sets.row_weights.sqrt()[:, None] * WM
    squared, V = torch.linalg.eigh(Y.mT @ Y)
    T = torch.maximum(squared, SPREAD * squared[-1]).sqrt()
    trace = T.sum()
    half = (V * T.sqrt()).mT @ inverse
    return float(trace), half.mT @ half / trace, ((WM @ V) / T.sqrt()).square().sum(1)


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
        return (c * squares / (c * squares).sum()) ** ((p - 2) / p)
    return _scaled(c * (squares / trace) ** (2 * STEP), p)


def _scaled(c: Tensor, p: float) -> Tensor:
    if p == 2:
        return torch.ones_like(c)
    c = c.clamp_min(1e-9 * c.max())
    return c / (c.sum() if p == math.inf else torch.linalg.vector_norm(c, ord=p / (p - 2)))


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


def _joined(sets: SeparatedDual, X: Tensor, gap: int, times: int) -> SeparatedDual:
    """With the sets of largest sums of abs(X) that are not there yet, each with orthogonal directions."""
    Z = X.abs().cpu().numpy()
    steps, sums = exchanged(Z, chains(Z, gap, times), gap)
    known = {tuple(row) for row in sets.steps.cpu().tolist()}
    fresh = [i for i in np.argsort(-sums, kind="stable") if sums[i] > 1 and tuple(steps[i].tolist()) not in known]
    if not fresh:
        return sets
    added = torch.from_numpy(steps[fresh[:ADDED]]).to(sets.steps.device)
    weights = torch.cat([sets.weights * (1 - SHARE), sets.weights.new_full((len(added),), SHARE / len(added))])
    directions = torch.cat([sets.directions, _identity(added, len(X)).to(sets.weights.dtype)])
    return SeparatedDual(sets.row_weights, torch.cat([sets.steps, added]), directions, weights)


def exchanged(Z: np.ndarray, steps: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """The sets, those with one step exchanged for the best other one, (N, times) padded with n, and their sums of Z."""
    n, k = len(Z), steps.shape[1]
    padded = np.pad(Z, (0, 1))
    sums, every = padded[steps].sum(1), np.arange(n)  # (N, n + 1)
    values = np.take_along_axis(sums, steps, 1).sum(1)
    found = [(steps, values)]
    for q in range(k):
        own = steps[:, q]
        rest = sums - padded[own]
        left = values - 2 * np.take_along_axis(sums, own[:, None], 1)[:, 0] + padded[own, own]
        gains = left[:, None] + Z.diagonal() + 2 * rest[:, :n]
        for r in range(k):
            near = (np.abs(steps[:, r, None] - every) < gap) & (steps[:, r, None] < n)
            gains[near if r != q else steps[:, q, None] == every] = -np.inf
        new = steps.copy()
        new[:, q] = gains.argmax(1)
        found.append((np.sort(new, 1), gains.max(1)))
    every_set = np.concatenate([x for x, _ in found])
    unique, place = np.unique(every_set, axis=0, return_index=True)
    return unique, np.concatenate([v for _, v in found])[place]


def chains(Z: np.ndarray, gap: int, times: int) -> np.ndarray:
    """Sets of at most ``times`` steps, ``gap`` apart, with large sums of Z, (N, times) padded with n.

    Step by step the best chain that ends in each step, its sums of Z carried along; forwards and backwards.
    """
    n = len(Z)
    found = []
    for turned in (False, True):
        z = Z[::-1, ::-1] if turned else Z
        own, total = z.diagonal(), z.diagonal().copy()
        carried, members = z.copy(), np.arange(n)[:, None]
        for _ in range(1, times):
            reach = total[:, None] + 2 * carried + own  # [i, j]: the chain that ends in i, then j
            reach[np.arange(n)[:, None] > np.arange(n) - gap] = -np.inf
            before = reach.argmax(0)
            gain = reach[before, np.arange(n)]
            better = gain > total  # a chain that cannot grow stays
            total = np.where(better, gain, total)
            carried = np.where(better[:, None], carried[before] + z, carried)
            kept = np.concatenate([np.full((n, 1), -1), members], 1)
            members = np.where(better[:, None], np.concatenate([members[before], np.arange(n)[:, None]], 1), kept)
        found.append(np.where(members < 0, n, n - 1 - members if turned else members))
    return np.unique(np.sort(np.concatenate(found), 1), axis=0)


def _start(W: Tensor, C: Tensor, c: Tensor, gap: int, times: int) -> SeparatedDual:
    """Sets whose indicators average to the diagonal of the banded problem's dual, and the packed ones."""
    n = len(W)
    inverse = torch.linalg.solve_triangular(C, torch.eye(n, dtype=C.dtype, device=C.device), upper=False)
    half = c.sqrt()[:, None] * (W @ inverse @ inverse.mT)
    mu = half.square().sum(0)
    windows = mu.unfold(0, gap, 1).sum(1).max()
    mu = mu / torch.maximum(windows, mu.sum() / times)
    found, weights = systematic(mu.cpu().numpy(), times)
    packed = np.full((gap, times), n, dtype=np.int64)
    for i in range(gap):
        row = np.arange(i, n, gap)[:times]
        packed[i, : len(row)] = row
    steps = torch.from_numpy(np.concatenate([found, packed])).to(W.device)
    share = np.concatenate([0.7 * weights, np.full(gap, 0.3 / gap)])
    return SeparatedDual(c, steps, _identity(steps, n).to(W.dtype), torch.from_numpy(share).to(W))


def systematic(mu: np.ndarray, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Sets, (N, times) padded with n, and weights of sum 1 whose average indicator is mu.

    For u in [0, 1) the set of steps where mu's running sum passes u, u + 1, ...: where every ``gap`` consecutive
    entries add up to at most 1, its steps are ``gap`` apart.
    """
    n, total = len(mu), np.concatenate([[0.0], np.cumsum(mu)])
    cuts = np.unique(np.concatenate([[0.0, 1.0], total % 1]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    steps = np.full((len(middles), times), n, dtype=np.int64)
    for m in range(times):
        place = np.searchsorted(total, middles + m, side="right") - 1
        steps[:, m] = np.minimum(place, n)
    return steps, np.diff(cuts)


def _identity(steps: Tensor, n: int) -> Tensor:
    """Directions of steps that are all orthogonal; 0 for the padding."""
    k = steps.shape[1]
    return torch.eye(k, dtype=torch.float64, device=steps.device) * (steps < n)[:, :, None]
