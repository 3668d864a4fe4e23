"""train: W = left right by descent on the relaxation, for any objective and structure, with its certificate."""

import math
import warnings
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchdp import checks
from torchdp.factorization.approximate import approximate
from torchdp.factorization.certificates.certificate import check_error_weights
from torchdp.factorization.descending import Best, Dual, Problem, Structure, descend
from torchdp.factorization.factorize import Factorization, Matrix, matrix_of
from torchdp.factorization.objectives import Norm, Objective
from torchdp.factorization.solvers.stopping import warn_where_open
from torchdp.threads import one_thread

MOST_STEPS = 10**6
DELAY = 1.0  # seconds without a progress bar


def train(
    W: Matrix,
    objective: Objective | float = math.inf,
    structure: Structure | None = None,
    *,
    alpha: float = 0.0,
    shift: bool = False,
    error_weights: Tensor | None = None,
    tol: float = 1e-5,
    steps: int = 5000,
    progress: bool | None = None,
) -> Factorization:
    """W = L R of least error by gradient descent, certified, for any objective and structure.

    Trains :class:`Relaxation`, so that L R = W at every step, by L-BFGS on smoothed maxima whose multipliers tend to
    the dual weights (``factorization.descending``). The factors of the best upper bound and the weights of the best
    lower bound are both kept, and it stops on the certificate that it returns.

    Args:
        W: (*batch, m, n), real, on any device, or a :class:`Workload`; numpy arrays and lists too. Each problem goes
            its own way.
        objective: an :class:`Objective`, or a number p in [2, inf] for :class:`Norm`.
        structure: a function that gets W as it is, in its own units, times the ``error_weights``, in float64, and gives
            an nn.Module with forward() = (left, right), left right = W; None: the relaxation. Parameters without W's
            batch dimensions are shared.
        alpha: a number in W's units, by which the factors of a structure may miss W in each entry, as those of
            :class:`LowRankRelaxation` do; the bound is that of :func:`approximate`.
        shift: W - v 1^T = L R for a free v, of the relaxation.
        error_weights: (*batch, m) or (m,), positive, as in :func:`factorize`.
        tol: the relative gap at which each problem stops. With a structure: of what is least nearby, where the descent
            sees it; the certificate's lower bound is of all factorizations, so its gap is what the structure costs at
            most.
        steps: of L-BFGS, at most, each about two products and solutions of the factors' size.
        progress: whether to show a bar; None: on a terminal, after a second.

    The factors follow W's dtype and device, the work is in float64; nothing is drawn at random. The row and column
    weights returned are those of :func:`certify` for a norm, and else the multipliers of :func:`certify_objective`.
    Warns (RuntimeWarning) where ``tol`` is not met. Raises ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the least error <= certificate.upper, for the objective.
    Source: Tseng, Bertsekas (1993) for the multipliers; the dual weights by Nikolov, Tang (2023), Theorem 26.
    """
    given = matrix_of(W)
    objective = objective if isinstance(objective, Objective) else Norm(objective)
    alpha = checks.non_negative("alpha", alpha)
    if checks.instance("shift", shift, bool) and structure is not None:
        raise ValueError("shift is the relaxation's own: with a structure its module decides")
    if alpha > 0 and (objective != Norm() or structure is None):
        raise ValueError(
            "alpha > 0 is for gamma_2, objective = inf, and a structure; without one call approximate(W, alpha)"
        )
    tol, steps = checks.positive("tol", tol), checks.integer("steps", steps, 1, MOST_STEPS)
    target, w = given.double(), None
    if error_weights is not None:
        w = check_error_weights(error_weights, given)
        target = checks.floating("error_weights times W", w[..., None] * target)
    if alpha >= float(target.abs().amax((-2, -1)).min()) > 0:
        raise ValueError(
            "alpha must be less than the largest entry of each matrix: from there on 0 is within alpha"
        )
    problem, best, done = _trained(target, objective, structure, shift, alpha, tol, steps, progress)
    result = problem.finish(given, w, best)
    if problem.closes:
        size = target.abs().amax((-2, -1))
        warn_where_open(result.certificate, tol, size, given.dtype, best.steps, steps, stacklevel=2, limit="steps")
    elif not done:
        missed = f", {float(result.certificate.residual.max()):.3g} from W" if alpha > 0 else ""
        warnings.warn(
            f"not settled within tol = {tol:.2e} after {steps} steps{missed}; raise steps or tol",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


@one_thread
def _trained(
    W: Tensor,
    objective: Objective,
    structure: Structure | None,
    shift: bool,
    alpha: float,
    tol: float,
    steps: int,
    progress: bool | None,
) -> tuple[Problem, Best, bool]:
    hidden = None if progress is None else not progress
    proof: Dual = ()
    if alpha > 0:
        free = approximate(W, alpha)
        proof = free.row_weights, free.column_weights, cast(Tensor, free.witness)
    with torch.inference_mode(False), torch.enable_grad():
        problem = Problem(W.clone(), objective, structure, shift, alpha, proof)
        with tqdm(total=steps, unit="step", delay=DELAY, disable=hidden) as bar:
            best, done = descend(problem, tol, steps, bar)
    if structure is not None and alpha == 0:  # its multipliers prove little of the free problem
        known = _trained(W, objective, None, False, 0.0, tol, steps, progress)[1]
        best = replace(best, lower=known.lower, dual=known.dual)
    return problem, best, done
