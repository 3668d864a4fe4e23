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
from typing import cast

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.descent import LBFGS
from torchdp.factorization.approximate import approximate
from torchdp.factorization.certificates.certificate import (
    Certificate,
    certify,
    magnitude,
)
from torchdp.factorization.certificates.objective_certificate import (
    certify_approximate,
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

# The augmented Lagrangian aims a little inside alpha, so that finitely many rounds reach it.
AIM = 0.999

# Its penalty at the start, over the number of entries, and the factor by which it grows.
STIFF = 10.0
STIFFER = 4.0

# The penalty grows where the largest excess does not shrink by this factor in a round.
SHRINKING = 3.0

# What a distance beyond alpha counts in the upper bound: factors within alpha are preferred.
HEAVY = 1e4

Structure = Callable[[Tensor], nn.Module]
Dual = tuple[Tensor, ...]  # weights of rows and of columns, and with alpha > 0 their witness


class Within:
    """abs(W - L R) <= alpha in every entry, by an augmented Lagrangian; W is (*batch, m, n).

        rho/2 sum_ij dist^2((W - L R)_ij / aim + y_ij / rho, [-1, 1]) - sum_ij y_ij^2 / (2 rho),
        aim = .999 alpha.

    The multipliers y and the penalty rho are updated after each round; rho grows where the largest
    excess does not fall to a third.

    Source: Rockafellar (1974).
    """

    def __init__(self, W: Tensor, alpha: Tensor) -> None:
        self.W = W
        self.aim = AIM * alpha[..., None, None]
        self.y = torch.zeros_like(W)
        entries = W.shape[-2:].numel()
        self.rho = torch.full_like(self.aim, STIFF / entries)
        self.last_excess = torch.full_like(self.aim, math.inf)

    def penalty(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch), differentiable."""
        squares = self._outside(left, right).square() - (self.y / self.rho).square()
        return (self.rho / 2 * squares).sum((-2, -1))

    def renew(self, left: Tensor, right: Tensor) -> None:
        """Updates the multipliers and the penalty."""
        self.y = self.rho * self._outside(left, right)
        excess = (self._distance(left, right) - 1).clamp_min(0)
        too_slow = excess > self.last_excess / SHRINKING
        self.rho = torch.where(too_slow, STIFFER * self.rho, self.rho)
        self.last_excess = excess

    def factor(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch): on the upper bound, above 1 where the factors are further than alpha from W."""
        excess = (AIM * self._distance(left, right) - 1).clamp_min(0)
        return 1 + HEAVY * excess[..., 0, 0]

    def _distance(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch, 1, 1): the largest entry of W - left right, over ``aim``."""
        distances = (self.W - left @ right).abs()
        return distances.amax((-2, -1), keepdim=True) / self.aim

    def _outside(self, left: Tensor, right: Tensor) -> Tensor:
        """Signed distance from [-1, 1] of each entry, moved by its multiplier."""
        moved = (self.W - left @ right) / self.aim + self.y / self.rho
        return moved - moved.clamp(-1, 1)


class Problem:
    """A batch of matrices, a module that factorizes them, the smoothed error and its multipliers.

    Inside, W, factors, bounds and weights are those of W / scale, so that squares neither overflow
    nor vanish.

    Args:
        W: (*batch, m, n), float64.
        objective: the error of the factors.
        structure: gives the module for W; None: the relaxation, in which left right = W always.
        alpha: how far the factors may be from W in each entry; 0: not at all.
        proof: with alpha > 0, dual weights of a lower bound known in advance; else empty.
    """

    def __init__(
        self,
        W: Tensor,
        objective: Objective,
        structure: Structure | None,
        alpha: float,
        proof: Dual,
    ) -> None:
        self.objective = objective
        self.proof = proof
        self.scale = magnitude(W)
        self.W = W / self.scale
        self.offset = objective.offset(self.W)
        self.alpha = alpha / self.scale[..., 0, 0]
        self.within = Within(self.W, self.alpha) if alpha > 0 else None

        # Whether the certificate's gap can close: else the descent stops on the gap to the smoothed
        # error.
        self.closes = structure is None and objective.tight

        self.module = _module_for(W, structure)
        self._flatten_parameters(W.shape[:-2])
        left, right = self.factors(torch.zeros_like(self.start))
        if structure is not None and self.within is None:
            error = float((self.W - left @ right).abs().max())
            if error > INEXACT:
                raise ValueError(
                    "structure must give a module whose factors' product is W at every parameter"
                )
        rows, columns = self.values(left, right)
        squared = rows.amax(-1) * columns.amax(-1)
        self.first_error = squared.sqrt().detach().clamp_min(TINY)

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
        """The logarithm of the smoothed error, (problems,); with alpha > 0 with a penalty."""
        left, right = self.factors(x)
        errors = self._errors(*self.values(left, right))
        loss = self._smooth_maximum(errors, self.row_multipliers) / 2
        if self.within is not None:
            # The error itself, as a share of the first one: a logarithm falls without end as the
            # factors go to 0.
            loss = loss.exp() / self.first_error + self.within.penalty(left, right)
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
        dual = self.proof
        if not dual:
            multipliers = self.row_multipliers.exp()
            weights = self.objective.weights(left.square().sum(-1), multipliers)
            dual = (weights, self.column_multipliers.exp())
        bounds = self.certify(self.W, self.alpha, left, right, dual)
        upper = bounds.upper
        if self.within is not None:
            self.within.renew(left, right)
            upper = self.within.factor(left, right) * upper
        return Best(upper, bounds.lower, (left, right), dual, steps)

    def certify(
        self, W: Tensor, alpha: Tensor | float, left: Tensor, right: Tensor, dual: Dual
    ) -> Certificate:
        """Bounds of these factors and weights, recomputed from scratch."""
        rows, columns = dual[:2]
        if self.within is not None:
            return certify_approximate(W, alpha, left, right, dual[2], rows, columns)
        if isinstance(self.objective, Norm):
            return certify(W, left, right, rows, columns, p=self.objective.p)
        return certify_objective(W, left, right, self.objective, rows, columns)

    def gap(self, best: Best, loss: Tensor) -> Tensor:
        """(*batch): the certificate's relative gap if it can close, else to the smoothed error."""
        gap = best.upper / best.lower - 1
        if not self.closes:
            reached = best.upper.log() if self.within is None else best.upper / self.first_error
            above = reached.reshape(self.problems, -1).sum(-1) - loss
            gap = above.expand(reached.numel()).reshape(reached.shape)
        if self.within is not None:
            gap = torch.where(self.within.factor(*best.primal) > 1, math.inf, gap)
        return torch.where(best.upper <= NOTHING, 0.0, gap)

    def finish(self, W: Tensor, alpha: float, best: Best) -> Factorization:
        """The best factors balanced, in W's units and dtype, and judged as they are returned."""
        left, right = best.primal
        rows, columns = self.values(left, right)
        ratio = balance(rows.amax(-1).sqrt(), columns.amax(-1).sqrt())
        root = self.scale.sqrt()
        left = (root * ratio * left).to(W.dtype)
        right = (root / ratio * right).to(W.dtype)
        certificate = self.certify(W, alpha, left, right, best.dual)
        c, P, *U = best.dual
        return Factorization(left, right, None, c, P, certificate, best.steps, *U)

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
    alpha: float = 0.0,
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
        alpha: a number in W's units, by which the factors of a structure may miss W in each entry,
            as those of :class:`LowRankRelaxation` do; the bound is that of :func:`approximate`.
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
    alpha = checks.non_negative("alpha", alpha)
    if alpha > 0 and (objective != Norm() or structure is None):
        raise ValueError(
            "alpha > 0 is for gamma_2, objective = inf, and a structure; "
            "without one call approximate(W, alpha)"
        )
    tol = checks.positive("tol", tol)
    steps = checks.integer("steps", steps, 1, MOST_STEPS)
    target = given.double()
    size = target.abs().amax((-2, -1))
    if alpha >= float(size.min()) > 0:
        raise ValueError(
            "alpha must be less than the largest entry of each matrix: "
            "from there on 0 is within alpha"
        )
    problem, best, done = _trained(target, objective, structure, alpha, tol, steps)
    result = problem.finish(given, alpha, best)
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
        residual = float(result.certificate.residual.max())
        distance = f", {residual:.3g} from W" if alpha > 0 else ""
        warnings.warn(
            f"not settled within tol = {tol:.2e} after {steps} steps{distance}; raise steps or tol",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


@one_thread
def _trained(
    W: Tensor,
    objective: Objective,
    structure: Structure | None,
    alpha: float,
    tol: float,
    steps: int,
) -> tuple[Problem, Best, bool]:
    proof: Dual = ()
    if alpha > 0:
        free = approximate(W, alpha)
        proof = (free.row_weights, free.column_weights, cast(Tensor, free.witness))
    with torch.inference_mode(False), torch.enable_grad():
        problem = Problem(W.clone(), objective, structure, alpha, proof)
        best, done = descend(problem, tol, steps)
    if structure is not None and alpha == 0:
        # A structure's multipliers prove little of the free problem: that has its own descent.
        _, known, _ = _trained(W, objective, None, 0.0, tol, steps)
        best = replace(best, lower=known.lower, dual=known.dual)
    return problem, best, done
