"""The first iterations of the fixed point in float32, where that is cheaper: nothing but weights comes of them."""

import math
from copy import copy

import torch
from torch import Tensor

from torchdp.factorization.solvers.spectrum import Mirrored, Spectrum, choose_rough
from torchdp.factorization.solvers.symmetry import Symmetry
from torchdp.factorization.solvers.weights import Problem, Weights

MOST, PATIENCE = 50, 6  # iterations; of them without progress
LARGE, COARSEST = 1024, 128  # side from which weights come from a coarser matrix, and of the coarsest
SMOOTH = 1 / 16  # change from row to row, relative, of a matrix that coarser ones are like
EVEN = 0.01  # share of even weights in those that a coarser matrix gives: none is lost
CLOSE = 1e-4  # gap, relative: what float32 tells of it below is its own rounding


def begin(weights: Weights, tol: float, most: int) -> int:
    """Moves ``weights`` as far as float32 goes, where that is cheaper than float64; returns the iterations.

    Each problem of a batch gets the weights at which its own bounds, as float32 sees them, were closest. It is done
    where they meet up to ``tol``; where half of a batch is done the rest goes on alone. Nothing is proved here.
    """
    problem = weights.problem
    spectrum = choose_rough(problem.blocks[0], problem.symmetry.mirrored)
    if spectrum is None or most < 1:
        return 0
    if _smooth(problem):
        weights.masses = torch.lerp(_from_coarser(weights, tol)[0].softmax(-1), weights.masses, EVEN)
    return _advance(weights, spectrum, tol, most)


def _advance(weights: Weights, spectrum: Spectrum, tol: float, most: int) -> int:
    batch, tol = weights.masses.shape[:-2], max(0.9 * tol, CLOSE)
    going, which = _flat(weights), torch.arange(weights.masses[..., 0, 0].numel(), device=weights.masses.device)
    chosen, closest = going.masses.clone(), going.masses.new_full((len(which),), math.inf)
    worst, marked, mark = math.inf, 0, math.inf
    for iteration in range(1, min(most, MOST) + 1):
        found = going.problem.look(going, spectrum, worst)
        gap = found.value.double() / found.trace.double() - 1
        nearer = gap < closest[which]
        chosen[which[nearer]], closest[which[nearer]] = going.masses[nearer], gap[nearer]
        open_ = closest[which] > tol
        count = int(open_.sum())
        worst = float(closest[which].amax())
        if worst < 0.9 * mark:
            mark, marked = worst, iteration
        if count == 0 or iteration - marked >= PATIENCE or not spectrum.hear(found.notes.tolist(), worst):
            break
        rounded = found._replace(norms=found.norms.double(), trace=found.trace.double())
        going.move(rounded, bool(found.steady.all()))
        if 2 * count <= len(which):
            going, which = going.pick(open_), which[open_]
    weights.masses = chosen.reshape(*batch, *chosen.shape[1:])
    return iteration


def _flat(weights: Weights) -> Weights:
    """The same weights of a batch with one dimension."""
    flat, problem = copy(weights), copy(weights.problem)
    problem.W = problem.W.reshape(-1, *problem.W.shape[-2:])
    problem.blocks = [block.reshape(-1, *block.shape[-2:]) for block in problem.blocks]
    flat.problem, flat.history = problem, copy(weights.history)
    flat.masses = weights.masses.reshape(-1, *weights.masses.shape[-2:])
    flat.steps, flat.previous = weights.steps.reshape(-1), weights.previous.reshape(-1)
    return flat


def _smooth(problem: Problem) -> bool:
    """Whether every second row and column of a large symmetric matrix are the same problem but for its size."""
    W, symmetry = problem.W, problem.symmetry
    if W.ndim > 2 or len(W) < LARGE or not symmetry.mirrored or symmetry.sign:
        return False
    return bool((W[1:] - W[:-1]).abs().mean() < SMOOTH * W.abs().mean())


def _from_coarser(weights: Weights, tol: float) -> tuple[Tensor, Tensor]:
    """Logarithms of weights from those of W's every second row and column, (1, n); and without the correction.

    Between two coarse weights the logarithms are linear. What this misses at the ends, where weights follow the place
    and not its share of the length, is what the step before, to the coarse matrix, has missed there.
    """
    W = weights.problem.W
    first = 1 - len(W) % 2  # so that prefix sums, their columns reversed, become prefix sums
    W = W[first::2, first::2]
    symmetry = Symmetry((len(W), len(W)), mirrored=True)
    coarse = Weights(Problem(W, symmetry, math.inf, False), tol, weights.history.memory)
    guess = None
    if len(W) >= COARSEST:
        start, guess = _from_coarser(coarse, tol)
        coarse.masses = start.softmax(-1)
    _advance(coarse, Mirrored(torch.float32), tol, MOST)
    logs = coarse.masses.log()
    plain = torch.nn.functional.interpolate(logs[None], size=len(weights.problem.W), mode="linear")[0]
    if guess is None:
        return plain, plain
    missed = logs - guess
    missed, half = missed - missed[:, len(W) // 2, None], len(W) // 2
    rest = missed.new_zeros(1, plain.shape[1] - 2 * half)
    return plain + torch.cat([missed[:, :half], rest, missed[:, -half:]], -1), plain
