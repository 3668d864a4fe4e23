"""train: W = left right by descent on the relaxation, for any objective and structure, with its
certificate.

Maxima are smoothed, with multipliers, on a batch of matrices:
    log max_j b_j  ~  (1/t) log sum_j P_j b_j^t,   and after each round of L-BFGS   P_j <- P_j
    b_j^t, scaled to sum 1:
the method of multipliers with an exponential penalty. The multipliers tend to the dual weights,
where b is constant on their support, so both bounds meet at a moderate sharpness t; t doubles where
a round does not halve the gap.
Source: Tseng, Bertsekas (1993), On the convergence of the exponential multiplier method for convex
programming.
"""

import math
import warnings
from collections.abc import Callable
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
SHARPNESS, SHARPEST = 30.0, 1e5  # of the smoothed maxima, at the start and at most
ROUND = 150  # steps at most between two updates of the multipliers
SLOW = 0.5  # a gap that falls to more than this share in a round needs sharper maxima
SETTLED = 1e-3  # times gap / sharpness: a fall of the loss below which a round ends
FAINTEST = -60.0  # logarithm of the least multiplier: what had none can still come back
LOOSE, NEARLY = 1e-2, 0.99  # gap from which a round ends no sooner; share of tol at which it stops
INEXACT = 1e-6  # of a structure's product, over W's largest entry
AIM, STIFF, STIFFER, HEAVY = 0.999, 10.0, 4.0, 1e4  # see Within
# a norm below this share of W's largest entry is 0
TINY, NOTHING = torch.finfo(torch.float64).tiny, 1e-14
Structure = Callable[[Tensor], nn.Module]
Dual = tuple[Tensor, ...]  # weights of rows and of columns, and with alpha > 0 their witness


class Within:
    """abs(W - L R) <= alpha in every entry, for factors that may miss W (*batch, m, n): an
    augmented Lagrangian,

        rho/2 sum_ij dist^2((W - L R)_ij / aim + y_ij / rho, [-1, 1]) - sum_ij y_ij^2 / (2 rho),
        aim = .999 alpha,
    whose multipliers y follow in each round; rho grows where the largest miss does not fall to a
    third.
    Source: Rockafellar (1974).
    """

    def __init__(self, W: Tensor, alpha: Tensor) -> None:
        self.W, self.aim, self.y = W, AIM * alpha[..., None, None], torch.zeros_like(W)
        self.rho = torch.full_like(self.aim, STIFF / W.shape[-2:].numel())
        self.beyond = torch.full_like(self.aim, math.inf)

    def penalty(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch), differentiable."""
        return (
            self.rho / 2 * (self._outside(left, right).square() - (self.y / self.rho).square())
        ).sum((-2, -1))

    def renew(self, left: Tensor, right: Tensor) -> None:
        """Moves the multipliers."""
        self.y = self.rho * self._outside(left, right)
        beyond = (self._miss(left, right) - 1).clamp_min(0)
        self.rho = torch.where(beyond > self.beyond / 3, STIFFER * self.rho, self.rho)
        self.beyond = beyond

    def worse(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch): a factor by which factors count as worse, above 1 where they miss W by more
        than alpha.
        """
        return 1 + HEAVY * (AIM * self._miss(left, right) - 1).clamp_min(0)[..., 0, 0]

    def _miss(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.W - left @ right).abs().amax((-2, -1), keepdim=True) / self.aim

    def _outside(self, left: Tensor, right: Tensor) -> Tensor:
        place = (self.W - left @ right) / self.aim + self.y / self.rho
        return place - place.clamp(-1, 1)


class Problem:
    """A batch of matrices with a module, what its smoothed error is, and its multipliers.

    Factors, bounds and weights in here are of W / scale, so that squares neither overflow nor
    vanish.
    """

    def __init__(
        self,
        W: Tensor,
        objective: Objective,
        structure: Structure | None,
        alpha: float,
        proof: Dual,
    ) -> None:
        self.objective, self.scale = objective, magnitude(W)
        self.W, self.alpha, self.proof = W / self.scale, alpha, proof
        self.within = Within(self.W, alpha / self.scale[..., 0, 0]) if alpha > 0 else None
        self.p = objective.p if isinstance(objective, Norm) else None
        self.closes = structure is None and objective.tight
        build = Relaxation if structure is None else checks.function("structure", structure)
        made = build(W)
        if not isinstance(made, nn.Module) or not list(made.parameters()):
            raise TypeError(
                "structure must give an nn.Module with parameters, whose forward() is (left, right)"
            )
        self.module = made
        self.names, parameters = zip(*self.module.named_parameters(), strict=True)
        self.shapes, batch = [each.shape for each in parameters], W.shape[:-2]
        shared = any(shape[: len(batch)] != batch for shape in self.shapes)
        self.lead = 1 if shared else batch.numel()
        self.start = torch.cat([each.detach().reshape(self.lead, -1) for each in parameters], -1)
        flat = self.module.flatness if isinstance(self.module, Relaxation) else {}
        units = [
            flat.get(name, torch.ones_like(each))
            for name, each in zip(self.names, parameters, strict=True)
        ]
        self.units = torch.cat([each.detach().reshape(self.lead, -1) for each in units], -1)
        self.offset = objective.offset(self.W)
        left, right = self.factors(torch.zeros_like(self.start))
        if (
            structure is not None
            and self.within is None
            and float((self.W - left @ right).abs().max()) > INEXACT
        ):
            raise ValueError(
                "structure must give a module whose factors' product is W at every parameter"
            )
        rows, columns = self.values(left, right)
        self.first = (rows.amax(-1) * columns.amax(-1)).sqrt().detach().clamp_min(TINY)
        self.rows, self.columns = (
            torch.zeros_like(x).log_softmax(-1).detach() for x in (rows, columns)
        )
        self.sharpness = W.new_full(batch, SHARPNESS)

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(left, right) / scale^{1/2} of the parameters start + units x, (lead, d)."""
        parts = self._parts(x)
        shaped = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        named = dict(zip(self.names, shaped, strict=True))
        left, right = torch.func.functional_call(self.module, named, ())
        return left / self.scale.sqrt(), right / self.scale.sqrt()

    def values(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.rows(left.square().sum(-1)), self.objective.columns(
            right.square().sum(-2)
        )

    def loss(self, x: Tensor) -> Tensor:
        """The logarithm of the smoothed error, (lead,); with alpha > 0 its share of the first
        error, and a penalty.
        """
        left, right = self.factors(x)
        rows, columns = self.values(left, right)
        total = rows * self._smooth(columns, self.columns).exp()[..., None] + self.offset
        loss = self._smooth(total, self.rows) / 2
        if self.within is not None:  # a logarithm falls without end as the factors go to 0
            loss = loss.exp() / self.first + self.within.penalty(left, right)
        return loss.reshape(self.lead, -1).sum(-1)

    def look(self, x: Tensor, steps: int) -> Best:
        """The factors and bounds at x, where the multipliers take the slopes of the smoothed
        maxima.
        """
        parts = self._parts(x)
        with torch.no_grad():
            for parameter, part in zip(self.module.parameters(), parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))
            left, right = self.factors(x)
            rows, columns = self.values(left, right)
            total = rows * self._smooth(columns, self.columns).exp()[..., None] + self.offset
            self.rows = self._sharp(total, self.rows).log_softmax(-1).clamp_min(FAINTEST)
            self.columns = self._sharp(columns, self.columns).log_softmax(-1).clamp_min(FAINTEST)
            worse: Tensor | float = 1.0
            if self.within is not None:
                self.within.renew(left, right)
                worse = self.within.worse(left, right)
        weights = self.objective.weights(left.square().sum(-1), self.rows.exp()), self.columns.exp()
        dual = self.proof or weights
        bounds = self.certify(self.W, self.alpha / self.scale[..., 0, 0], left, right, dual)
        return Best(worse * bounds.upper, bounds.lower, (left, right), dual, steps)

    def certify(
        self, W: Tensor, alpha: Tensor | float, left: Tensor, right: Tensor, dual: Dual
    ) -> Certificate:
        c, P, *U = dual
        if self.alpha > 0:
            return certify_approximate(W, alpha, left, right, U[0], c, P)
        if self.p is not None:
            return certify(W, left, right, c, P, p=self.p)
        return certify_objective(W, left, right, self.objective, c, P)

    def gap(self, best: Best, loss: Tensor) -> Tensor:
        """(*batch): the certified gap where the objective's certificate can close, else that to the
        smoothed error.
        """
        if self.closes:
            gap = best.upper / best.lower - 1
        else:
            seen = best.upper.log() if self.within is None else best.upper / self.first
            over = seen.reshape(self.lead, -1).sum(-1) - loss
            gap = over.expand(seen.numel()).reshape(seen.shape)
        if self.within is not None:
            gap = torch.where(self.within.worse(*best.primal) > 1, math.inf, gap)
        return torch.where(best.upper <= NOTHING, 0.0, gap)

    def finish(self, W: Tensor, best: Best) -> Factorization:
        """The best factors balanced, in W's units and dtype, and judged again."""
        left, right = best.primal
        c, P, *U = best.dual
        ratio = balance(*(values.amax(-1).sqrt() for values in self.values(left, right)))
        root = self.scale.sqrt()
        left = (root * ratio * left).to(W.dtype)
        right = (root / ratio * right).to(W.dtype)
        judged = self.certify(W, self.alpha, left, right, best.dual)
        return Factorization(left, right, None, c, P, judged, best.steps, *U)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.start + self.units * x).split(
            [shape.numel() // self.lead for shape in self.shapes], -1
        )

    def _smooth(self, values: Tensor, multipliers: Tensor) -> Tensor:
        return self._sharp(values, multipliers).logsumexp(-1) / self.sharpness

    def _sharp(self, values: Tensor, multipliers: Tensor) -> Tensor:
        return multipliers + self.sharpness[..., None] * values.clamp_min(TINY).log()


def descend(problem: Problem, tol: float, steps: int) -> tuple[Best, bool]:
    """The best bounds that L-BFGS meets, and whether each problem's gap is at most ``tol``."""
    optimizer, best, last = LBFGS(problem.loss, torch.zeros_like(problem.start)), None, None
    gap = torch.ones_like(problem.sharpness)
    done = gap < 0
    while True:
        settled = _round(optimizer, problem, gap, done, min(ROUND, steps - optimizer.count))
        seen = problem.look(optimizer.x, optimizer.count)
        best = seen if best is None else best.and_(seen)
        gap = problem.gap(best, optimizer.value)
        done = (gap <= NEARLY * tol) & (settled | problem.closes)
        if bool(done.all()) or optimizer.count >= steps:
            return best, bool(done.all())
        slow = settled if last is None else settled & (gap > SLOW * last)
        problem.sharpness = (problem.sharpness * (1 + slow)).clamp_max(SHARPEST)
        last = gap
        optimizer.renew()


def _round(optimizer: LBFGS, problem: Problem, gap: Tensor, settled: Tensor, most: int) -> Tensor:
    """Steps on one loss until those that are not ``settled`` have hardly fallen in a step; which
    did, (*batch).
    """
    enough = SETTLED * gap.clamp_max(LOOSE) / problem.sharpness
    for _ in range(most):
        fell = optimizer.step()
        settled = settled | (fell.expand(enough.numel()).reshape(enough.shape) <= enough)
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
            "alpha > 0 is for gamma_2, objective = inf, and a structure; without one call approximate(W, alpha)"
        )
    tol, steps = checks.positive("tol", tol), checks.integer("steps", steps, 1, MOST_STEPS)
    target = given.double()
    if alpha >= float(target.abs().amax((-2, -1)).min()) > 0:
        raise ValueError(
            "alpha must be less than the largest entry of each matrix: from there on 0 is within alpha"
        )
    problem, best, done = _trained(target, objective, structure, alpha, tol, steps)
    result = problem.finish(given, best)
    if problem.closes:
        size = target.abs().amax((-2, -1))
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
    alpha: float,
    tol: float,
    steps: int,
) -> tuple[Problem, Best, bool]:
    proof: Dual = ()
    if alpha > 0:
        free = approximate(W, alpha)
        proof = free.row_weights, free.column_weights, cast(Tensor, free.witness)
    with torch.inference_mode(False), torch.enable_grad():
        problem = Problem(W.clone(), objective, structure, alpha, proof)
        best, done = descend(problem, tol, steps)
    if structure is not None and alpha == 0:  # its multipliers prove little of the free problem
        known = _trained(W, objective, None, 0.0, tol, steps)[1]
        best = replace(best, lower=known.lower, dual=known.dual)
    return problem, best, done
