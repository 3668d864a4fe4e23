"""train: W = left right by descent on the relaxation, for any objective and structure, certified.

A maximum is smoothed with multipliers P and sharpness t, and after each round of L-BFGS the
multipliers move:

    log max_j b_j  ~  (1/t) log sum_j P_j b_j^t,        P_j <- P_j b_j^t, scaled to sum 1.

This is the method of multipliers with an exponential penalty. The multipliers tend to the dual
weights, where b is constant on their support, so upper and lower bound meet at a moderate
sharpness. t doubles where a round does not halve the gap.

Source: Tseng, Bertsekas (1993), On the convergence of the exponential multiplier method for convex
programming.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.descent import LBFGS
from torchdp.factorization.certificates.certificate import (
    Certificate,
    certify,
    magnitude,
)
from torchdp.factorization.certificates.objective_certificate import (
    certify_objective,
)
from torchdp.factorization.factorize import Factorization, Matrix, balance, matrix_of
from torchdp.factorization.relaxation import Norm, Objective, Relaxation
from torchdp.factorization.solvers.iteration import Best, warn_where_open
from torchdp.threads import one_thread

MOST_STEPS = 10**6

# Sharpness t of the smoothed maxima, at the start and at most.
SHARPNESS = 30.0
SHARPEST = 1e5

# Steps of L-BFGS at most between two updates of the multipliers.
ROUND = 150

# A gap that falls to more than this share of itself in a round needs a larger sharpness.
SLOW = 0.5

# A round ends where the loss falls by less than SETTLED * gap / sharpness in a step. A gap above
# LOOSE counts as LOOSE.
SETTLED = 1e-3
LOOSE = 1e-2

# The descent stops at this share of the tolerance, since the factors are rounded and judged again.
NEARLY = 0.99

# Logarithm of the least multiplier. A multiplier of 0 would stay 0.
FAINTEST = -60.0

# Largest error of a structure's product, over W's largest entry.
INEXACT = 1e-6

# Upper bounds below this share of W's largest entry count as 0.
NOTHING = 1e-14

TINY = torch.finfo(torch.float64).tiny

Structure = Callable[[Tensor], nn.Module]
Dual = tuple[Tensor, ...]  # weights of rows and of columns


class Problem:
    """A batch of matrices, a module that factorizes them, the smoothed error and its multipliers.

    Inside, W, factors, bounds and weights are those of W / scale, so that squares neither overflow
    nor vanish.

    Args:
        W: (*batch, m, n), float64.
        objective: the error of the factors.
        structure: gives the module for W; None: the relaxation, in which left right = W always.
    """

    def __init__(
        self,
        W: Tensor,
        objective: Objective,
        structure: Structure | None,
    ) -> None:
        self.objective = objective
        self.scale = magnitude(W)
        self.W = W / self.scale
        self.offset = objective.offset(self.W)

        # Whether the certificate's gap can close: else the descent stops on the gap to the smoothed
        # error.
        self.closes = structure is None and objective.tight

        self.module = _module_for(W, structure)
        self._flatten_parameters(W.shape[:-2])
        left, right = self.factors(torch.zeros_like(self.start))
        if structure is not None:
            error = float((self.W - left @ right).abs().max())
            if error > INEXACT:
                raise ValueError(
                    "structure must give a module whose factors' product is W at every parameter"
                )
        rows, columns = self.values(left, right)

        # Logarithms of the multipliers, equal at the start.
        self.row_multipliers = torch.zeros_like(rows).log_softmax(-1).detach()
        self.column_multipliers = torch.zeros_like(columns).log_softmax(-1).detach()
        self.sharpness = W.new_full(W.shape[:-2], SHARPNESS)

    def _flatten_parameters(self, batch: torch.Size) -> None:
        """Makes the module's parameters ``start`` + ``units`` * x, for x (problems, d) of L-BFGS.

        Where a parameter does not have the batch's dimensions all matrices share it: they are one
        problem.
        """
        parameters = dict(self.module.named_parameters())
        self.shapes = {name: value.shape for name, value in parameters.items()}
        shared = any(shape[: len(batch)] != batch for shape in self.shapes.values())
        self.problems = 1 if shared else batch.numel()
        units = {name: torch.ones_like(value) for name, value in parameters.items()}
        if isinstance(self.module, Relaxation):
            units.update(self.module.flatness)
        self.start = self._flat(parameters.values())
        self.units = self._flat(units.values())

    def _flat(self, values: Iterable[Tensor]) -> Tensor:
        flat = [x.detach().reshape(self.problems, -1) for x in values]
        return torch.cat(flat, -1)

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        """The module's parameters at x, (problems, d)."""
        sizes = [shape.numel() // self.problems for shape in self.shapes.values()]
        parts = (self.start + self.units * x).split(sizes, -1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named}

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(left, right) / scale^{1/2} at x."""
        left, right = torch.func.functional_call(self.module, self._parameters(x), ())
        root = self.scale.sqrt()
        return left / root, right / root

    def values(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The objective's values of rows and columns, (*batch, k) and (*batch, l)."""
        rows = self.objective.rows(left.square().sum(-1))
        return rows, self.objective.columns(right.square().sum(-2))

    def loss(self, x: Tensor) -> Tensor:
        """The logarithm of the smoothed error, (problems,)."""
        left, right = self.factors(x)
        errors = self._errors(*self.values(left, right))
        loss = self._smooth_maximum(errors, self.row_multipliers) / 2
        return loss.reshape(self.problems, -1).sum(-1)

    @torch.no_grad()
    def look(self, x: Tensor, steps: int) -> Best:
        """The factors and bounds at x, where the multipliers take the slopes of the maxima."""
        current = dict(self.module.named_parameters())
        for name, value in self._parameters(x).items():
            current[name].copy_(value)
        left, right = self.factors(x)
        rows, columns = self.values(left, right)
        errors = self._errors(rows, columns)
        self.row_multipliers = self._moved(errors, self.row_multipliers)
        self.column_multipliers = self._moved(columns, self.column_multipliers)
        multipliers = self.row_multipliers.exp()
        weights = self.objective.weights(left.square().sum(-1), multipliers)
        dual = (weights, self.column_multipliers.exp())
        bounds = self.certify(self.W, left, right, dual)
        return Best(bounds.upper, bounds.lower, (left, right), dual, steps)

    def certify(self, W: Tensor, left: Tensor, right: Tensor, dual: Dual) -> Certificate:
        """Bounds of these factors and weights, recomputed from scratch."""
        rows, columns = dual
        if isinstance(self.objective, Norm):
            return certify(W, left, right, rows, columns, p=self.objective.p)
        return certify_objective(W, left, right, self.objective, rows, columns)

    def gap(self, best: Best, loss: Tensor) -> Tensor:
        """(*batch): the certificate's relative gap if it can close, else to the smoothed error."""
        gap = best.upper / best.lower - 1
        if not self.closes:
            reached = best.upper.log()
            above = reached.reshape(self.problems, -1).sum(-1) - loss
            gap = above.expand(reached.numel()).reshape(reached.shape)
        return torch.where(best.upper <= NOTHING, 0.0, gap)

    def finish(self, W: Tensor, best: Best) -> Factorization:
        """The best factors balanced, in W's units and dtype, and judged as they are returned."""
        left, right = best.primal
        rows, columns = self.values(left, right)
        ratio = balance(rows.amax(-1).sqrt(), columns.amax(-1).sqrt())
        root = self.scale.sqrt()
        left = (root * ratio * left).to(W.dtype)
        right = (root / ratio * right).to(W.dtype)
        certificate = self.certify(W, left, right, best.dual)
        c, P = best.dual
        return Factorization(left, right, None, c, P, certificate, best.steps)

    def _errors(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Squared error of each row: its own norm times the smoothed maximum over columns."""
        largest_column = self._smooth_maximum(columns, self.column_multipliers).exp()
        return rows * largest_column[..., None] + self.offset

    def _moved(self, values: Tensor, multipliers: Tensor) -> Tensor:
        return self._tilted(values, multipliers).log_softmax(-1).clamp_min(FAINTEST)

    def _smooth_maximum(self, values: Tensor, multipliers: Tensor) -> Tensor:
        """Logarithm of the smoothed maximum: (1/t) log sum_j P_j values_j^t."""
        return self._tilted(values, multipliers).logsumexp(-1) / self.sharpness

    def _tilted(self, values: Tensor, multipliers: Tensor) -> Tensor:
        """log(P_j values_j^t)."""
        return multipliers + self.sharpness[..., None] * values.clamp_min(TINY).log()


def _module_for(W: Tensor, structure: Structure | None) -> nn.Module:
    if structure is None:
        return Relaxation(W)
    module = checks.function("structure", structure)(W)
    if not isinstance(module, nn.Module) or not list(module.parameters()):
        raise TypeError(
            "structure must give an nn.Module with parameters, whose forward() is (left, right)"
        )
    return module


def descend(problem: Problem, tol: float, steps: int) -> tuple[Best, bool]:
    """The best bounds that L-BFGS meets, and whether each problem's gap is at most ``tol``."""
    optimizer = LBFGS(problem.loss, torch.zeros_like(problem.start))
    best: Best | None = None
    gap = torch.ones_like(problem.sharpness)
    done = gap < 0
    last_gap = torch.full_like(gap, -math.inf)
    while True:
        settled = _round(optimizer, problem, gap, done, min(ROUND, steps - optimizer.count))
        seen = problem.look(optimizer.x, optimizer.count)
        best = seen if best is None else best.and_(seen)
        gap = problem.gap(best, optimizer.value)

        # A certificate proves its gap at any point, a gap to the smoothed error only where the
        # descent has settled.
        done = (gap <= NEARLY * tol) & (settled | problem.closes)
        if bool(done.all()) or optimizer.count >= steps:
            return best, bool(done.all())
        slow = settled & (gap > SLOW * last_gap)
        problem.sharpness = (problem.sharpness * (1 + slow)).clamp_max(SHARPEST)
        last_gap = gap
        optimizer.renew()  # multipliers and sharpness changed the loss


def _round(optimizer: LBFGS, problem: Problem, gap: Tensor, settled: Tensor, most: int) -> Tensor:
    """Steps on one loss until every problem has settled; which have, (*batch).

    settled: problems that need no further step.
    """
    enough = SETTLED * gap.clamp_max(LOOSE) / problem.sharpness
    for _ in range(most):
        fall = optimizer.step()
        fall = fall.expand(enough.numel()).reshape(enough.shape)
        settled = settled | (fall <= enough)
        if bool(settled.all()):
            break
    return settled


def train(
    W: Matrix,
    objective: Objective | float = math.inf,
    structure: Structure | None = None,
    *,
    tol: float = 1e-5,
    steps: int = 5000,
) -> Factorization:
    """W = L R of least error by gradient descent, certified, for any objective and structure.

    Trains :class:`Relaxation`, so that L R = W at every step, by L-BFGS on smoothed maxima whose
    multipliers tend to the dual weights (this module). The factors of the best upper bound and the
    weights of the best lower bound are both kept, and it stops on the certificate that it returns.

    Args:
        W: (*batch, m, n), real, on any device, or a :class:`Workload`; numpy arrays and lists too.
            Each problem goes its own way.
        objective: an :class:`Objective`, or a number p in [2, inf] for :class:`Norm`.
        structure: a function that gets W as it is, in its own units, in float64, and gives
            an nn.Module with forward() = (left, right), left right = W; None: the relaxation.
            Parameters without W's batch dimensions are shared.
        tol: the relative gap at which each problem stops. With a structure: of what is least
            nearby, where the descent sees it; the certificate's lower bound is of all
            factorizations, so its gap is what the structure costs at most.
        steps: of L-BFGS, at most, each about two products and solutions of the factors' size.

    The factors follow W's dtype and device, the work is in float64; nothing is drawn at random. The
    row and column weights returned are those of :func:`certify` for a norm, and else the
    multipliers of :func:`certify_objective`. Warns (RuntimeWarning) where ``tol`` is not met.
    Raises ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the least error <= certificate.upper, for the objective.
    Source: Tseng, Bertsekas (1993) for the multipliers; the dual weights by Nikolov, Tang (2023),
    Theorem 26.
    """
    given = matrix_of(W)
    objective = objective if isinstance(objective, Objective) else Norm(objective)
    tol = checks.positive("tol", tol)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    target = given.double()
    size = target.abs().amax((-2, -1))
    problem, best, done = _trained(target, objective, structure, tol, steps)
    result = problem.finish(given, best)
    if problem.closes:
        warn_where_open(
            result.certificate,
            tol,
            size,
            given.dtype,
            best.steps,
            steps,
            stacklevel=2,
            limit="steps",
        )
    elif not done:
        warnings.warn(
            f"not settled within tol = {tol:.2e} after {steps} steps; raise steps or tol",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


@one_thread
def _trained(
    W: Tensor,
    objective: Objective,
    structure: Structure | None,
    tol: float,
    steps: int,
) -> tuple[Problem, Best, bool]:
    with torch.inference_mode(False), torch.enable_grad():
        problem = Problem(W.clone(), objective, structure)
        best, done = descend(problem, tol, steps)
    if structure is not None:
        # A structure's multipliers prove little of the free problem: that has its own descent.
        _, known, _ = _trained(W, objective, None, tol, steps)
        best = replace(best, lower=known.lower, dual=known.dual)
    return problem, best, done
