"""Descent on smoothed maxima with multipliers, on a batch of matrices, for any module and objective.

    log max_j b_j  ~  (1/t) log sum_j P_j b_j^t,   and after each round of L-BFGS   P_j <- P_j
    b_j^t, scaled to sum 1:

the method of multipliers with an exponential penalty. The multipliers tend to the dual weights,
where b is constant on their support, so both bounds meet at a moderate sharpness t; t doubles where
a round does not halve the gap.
Source: Tseng, Bertsekas (1993), On the convergence of the exponential multiplier method for convex
programming.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchdp import checks
from torchdp.descent import LBFGS
from torchdp.factorization.certificates.approximate_certificate import certify_approximate
from torchdp.factorization.certificates.certificate import Certificate, certify, magnitude
from torchdp.factorization.certificates.objective_certificate import certify_objective
from torchdp.factorization.factorize import Factorization, balance
from torchdp.factorization.objectives import Norm, Objective
from torchdp.factorization.relaxation import Relaxation
from torchdp.factorization.solvers.acceleration import pick

SHARPNESS, SHARPEST = 30.0, 1e5  # of the smoothed maxima, at the start and at most
ROUND = 150  # steps at most between two updates of the multipliers
SLOW = 0.5  # a gap that falls to more than this share in a round needs sharper maxima
SETTLED = 1e-3  # times gap / sharpness: a fall of the loss below which a round ends
FAINTEST = -60.0  # logarithm of the least multiplier: what had none can still come back
LOOSE, NEARLY = 1e-2, 0.99  # gap from which a round ends no sooner; share of tol at which it stops
INEXACT = 1e-6  # of a structure's product, over W's largest entry
AIM, STIFF, STIFFER, HEAVY = 0.999, 10.0, 4.0, 1e4  # see Within
TINY, NOTHING = torch.finfo(torch.float64).tiny, 1e-14  # a norm below this share of W's largest entry is 0
Structure = Callable[[Tensor], nn.Module]
Dual = tuple[Tensor, ...]  # weights of rows and of columns, and with alpha > 0 their witness


class Within:
    """abs(W - L R) <= alpha in every entry, for factors that may miss W (*batch, m, n): an augmented Lagrangian,

        rho/2 sum_ij dist^2((W - L R)_ij / aim + y_ij / rho, [-1, 1]) - sum_ij y_ij^2 / (2 rho),  aim = .999 alpha,
    whose multipliers y follow in each round; rho grows where the largest miss does not fall to a third.
    Source: Rockafellar (1974).
    """

    def __init__(self, W: Tensor, alpha: Tensor) -> None:
        self.W, self.aim, self.y = W, AIM * alpha[..., None, None], torch.zeros_like(W)
        self.rho = torch.full_like(self.aim, STIFF / W.shape[-2:].numel())
        self.beyond = torch.full_like(self.aim, math.inf)

    def penalty(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch), differentiable."""
        return (self.rho / 2 * (self._outside(left, right).square() - (self.y / self.rho).square())).sum((-2, -1))

    def renew(self, left: Tensor, right: Tensor) -> None:
        """Moves the multipliers."""
        self.y = self.rho * self._outside(left, right)
        beyond = (self._miss(left, right) - 1).clamp_min(0)
        self.rho = torch.where(beyond > self.beyond / 3, STIFFER * self.rho, self.rho)
        self.beyond = beyond

    def worse(self, left: Tensor, right: Tensor) -> Tensor:
        """(*batch): a factor by which factors count as worse, above 1 where they miss W by more than alpha."""
        return 1 + HEAVY * (AIM * self._miss(left, right) - 1).clamp_min(0)[..., 0, 0]

    def _miss(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.W - left @ right).abs().amax((-2, -1), keepdim=True) / self.aim

    def _outside(self, left: Tensor, right: Tensor) -> Tensor:
        place = (self.W - left @ right) / self.aim + self.y / self.rho
        return place - place.clamp(-1, 1)


@dataclass(frozen=True)
class Best:
    """Of each problem, the factors of the least upper bound and the weights of the largest lower one, scaled."""

    upper: Tensor
    lower: Tensor
    primal: tuple[Tensor, ...]  # left, right, perhaps the shift
    dual: Dual
    steps: int = 0

    def and_(self, other: "Best") -> "Best":
        """The better bounds of the two."""
        nearer, higher = other.upper < self.upper, other.lower > self.lower
        primal = tuple(pick(nearer, *pair) for pair in zip(other.primal, self.primal, strict=True))
        dual = tuple(pick(higher, *pair) for pair in zip(other.dual, self.dual, strict=True))
        upper, lower = torch.minimum(self.upper, other.upper), torch.maximum(self.lower, other.lower)
        return Best(upper, lower, primal, dual, other.steps)


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
        shift: bool,
        alpha: float,
        proof: Dual = (),
    ) -> None:
        self.objective, self.scale = objective, magnitude(W)
        self.W, self.alpha, self.proof = W / self.scale, alpha, proof
        self.within = Within(self.W, alpha / self.scale[..., 0, 0]) if alpha > 0 else None
        self.p = objective.p if isinstance(objective, Norm) else None
        self.closes = structure is None and objective.tight
        self.module = Relaxation(W, shift=shift) if structure is None else _built(structure, W)
        self.names, parameters = zip(*self.module.named_parameters(), strict=True)
        self.shapes, batch = [each.shape for each in parameters], W.shape[:-2]
        shared = any(shape[: len(batch)] != batch for shape in self.shapes)
        self.lead = 1 if shared else batch.numel()
        self.start = torch.cat([each.detach().reshape(self.lead, -1) for each in parameters], -1)
        flat = self.module.flatness if isinstance(self.module, Relaxation) else {}
        units = [flat.get(name, torch.ones_like(each)) for name, each in zip(self.names, parameters, strict=True)]
        self.units = torch.cat([each.detach().reshape(self.lead, -1) for each in units], -1)
        self.offset = objective.offset(self.W)
        left, right = self.factors(torch.zeros_like(self.start))
        if structure is not None and self.within is None and float((self.W - left @ right).abs().max()) > INEXACT:
            raise ValueError("structure must give a module whose factors' product is W at every parameter")
        rows, columns = self.values(left, right)
        self.first = (rows.amax(-1) * columns.amax(-1)).sqrt().detach().clamp_min(TINY)
        self.rows, self.columns = (torch.zeros_like(x).log_softmax(-1).detach() for x in (rows, columns))
        self.sharpness = W.new_full(batch, SHARPNESS)

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(left, right) / scale^{1/2} of the parameters start + units x, (lead, d)."""
        parts = self._parts(x)
        shaped = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        named = dict(zip(self.names, shaped, strict=True))
        left, right = torch.func.functional_call(self.module, named, ())
        return left / self.scale.sqrt(), right / self.scale.sqrt()

    def values(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.rows(left.square().sum(-1)), self.objective.columns(right.square().sum(-2))

    def loss(self, x: Tensor) -> Tensor:
        """The logarithm of the smoothed error, (lead,); with alpha > 0 its share of the first error, and a penalty."""
        left, right = self.factors(x)
        rows, columns = self.values(left, right)
        total = rows * self._smooth(columns, self.columns).exp()[..., None] + self.offset
        loss = self._smooth(total, self.rows) / 2
        if self.within is not None:  # a logarithm falls without end as the factors go to 0
            loss = loss.exp() / self.first + self.within.penalty(left, right)
        return loss.reshape(self.lead, -1).sum(-1)

    def look(self, x: Tensor, steps: int) -> Best:
        """The factors and bounds at x, where the multipliers take the slopes of the smoothed maxima."""
        parts = self._parts(x)
        with torch.no_grad():
            for parameter, part in zip(self.module.parameters(), parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))
            left, right = self.factors(x)
            v = self.module.shift if isinstance(self.module, Relaxation) else None
            shift = [] if v is None else [v / self.scale[..., 0]]
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
        bounds = self.certify(self.W, self.alpha / self.scale[..., 0, 0], left, right, dual, *shift)
        return Best(worse * bounds.upper, bounds.lower, (left, right, *shift), dual, steps)

    def certify(
        self,
        W: Tensor,
        alpha: Tensor | float,
        left: Tensor,
        right: Tensor,
        dual: Dual,
        shift: Tensor | None = None,
    ) -> Certificate:
        if self.alpha > 0:
            rows, columns, U = dual
            return certify_approximate(W, alpha, left, right, U, rows, columns)
        if self.p is not None:
            return certify(W, left, right, dual[0], dual[1], p=self.p, shift=shift)
        return certify_objective(W, left, right, self.objective, dual[0], dual[1], shift=shift)

    def gap(self, best: Best, loss: Tensor) -> Tensor:
        """(*batch): the certified gap where the objective's certificate can close, else that to the smoothed error."""
        if self.closes:
            gap = best.upper / best.lower - 1
        else:
            seen = best.upper.log() if self.within is None else best.upper / self.first
            over = seen.reshape(self.lead, -1).sum(-1) - loss
            gap = over.expand(seen.numel()).reshape(seen.shape)
        if self.within is not None:
            gap = torch.where(self.within.worse(*best.primal) > 1, math.inf, gap)
        return torch.where(best.upper <= NOTHING, 0.0, gap)

    def finish(self, W: Tensor, error_weights: Tensor | None, best: Best) -> Factorization:
        """The best factors balanced, in W's units and dtype, and judged again."""
        left, right, *shift = best.primal
        ratio = balance(*(values.amax(-1).sqrt() for values in self.values(left, right)))
        root, v = self.scale.sqrt(), self.scale * shift[0][..., None] if shift else None
        w = W.new_ones((), dtype=torch.float64) if error_weights is None else error_weights[..., None]
        left, right = (root * ratio * left / w).to(W.dtype), (root / ratio * right).to(W.dtype)
        v = None if v is None else (v / w).to(W.dtype)
        judged = self.certify(
            w * W, self.alpha, w * left, right, best.dual, None if v is None else (w * v)[..., 0]
        )
        c, P, *U = best.dual
        return Factorization(left, right, None if v is None else v[..., 0], c, P, judged, best.steps, *U)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.start + self.units * x).split([shape.numel() // self.lead for shape in self.shapes], -1)

    def _smooth(self, values: Tensor, multipliers: Tensor) -> Tensor:
        return self._sharp(values, multipliers).logsumexp(-1) / self.sharpness

    def _sharp(self, values: Tensor, multipliers: Tensor) -> Tensor:
        return multipliers + self.sharpness[..., None] * values.clamp_min(TINY).log()


def descend(problem: Problem, tol: float, steps: int, bar: tqdm) -> tuple[Best, bool]:
    """The best bounds that L-BFGS meets, and whether each problem's gap is at most ``tol``."""
    optimizer, best, last = LBFGS(problem.loss, torch.zeros_like(problem.start)), None, None
    gap = torch.ones_like(problem.sharpness)
    done = gap < 0
    while True:
        settled = _round(optimizer, problem, gap, done, min(ROUND, steps - optimizer.count), bar)
        seen = problem.look(optimizer.x, optimizer.count)
        best = seen if best is None else best.and_(seen)
        gap = problem.gap(best, optimizer.value)
        done = (gap <= NEARLY * tol) & (settled | problem.closes)
        bar.set_postfix_str(f"gap {float(gap.max()):.1e}", refresh=False)
        if bool(done.all()) or optimizer.count >= steps:
            return best, bool(done.all())
        slow = settled if last is None else settled & (gap > SLOW * last)
        problem.sharpness = (problem.sharpness * (1 + slow)).clamp_max(SHARPEST)
        last = gap
        optimizer.renew()


def _round(optimizer: LBFGS, problem: Problem, gap: Tensor, settled: Tensor, most: int, bar: tqdm) -> Tensor:
    """Steps on one loss until those that are not ``settled`` have hardly fallen in a step; which did, (*batch)."""
    enough = SETTLED * gap.clamp_max(LOOSE) / problem.sharpness
    for _ in range(most):
        fell = optimizer.step()
        bar.update()
        settled = settled | (fell.expand(enough.numel()).reshape(enough.shape) <= enough)
        if bool(settled.all()):
            break
    return settled


def _built(structure: Structure, W: Tensor) -> nn.Module:
    module = checks.function("structure", structure)(W)
    if not isinstance(module, nn.Module) or not list(module.parameters()):
        raise TypeError("structure must give an nn.Module with parameters, whose forward() is (left, right)")
    return module
