"""The first iterations of the fixed point in float32, where that is cheaper: nothing but weights comes of them."""

import math
from copy import copy

import torch

from torchdp.factorization.solvers.spectrum import choose_rough
from torchdp.factorization.solvers.weights import Weights

MOST, PATIENCE = 50, 6  # iterations; of them without progress
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
    batch, tol = weights.masses.shape[:-2], max(0.9 * tol, CLOSE)
    going, which = _flat(weights), torch.arange(weights.masses[..., 0, 0].numel(), device=problem.W.device)
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
