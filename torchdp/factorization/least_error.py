"""The alpha that is best for the mean squared error of the worst query."""

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.approximate import ApproximateFactorization, prepare, priced
from torchdp.factorization.certificates.approximate_certificate import certify_approximate
from torchdp.factorization.certificates.certificate import refuse_contradiction
from torchdp.factorization.solvers.splitting import compress
from torchdp.threads import on_host
from torchdp.workloads import Workload


@dataclass(frozen=True)
class LeastError:
    """min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 lies in [lower, upper]; ``factorization`` attains upper.

    Both are mean squared errors: of the worst query, over the privacy noise, at worst over the users' data.
    rounding: what float64 may have cost them. Raises ArithmeticError where lower > upper + rounding.
    """

    upper: float
    lower: float
    factorization: ApproximateFactorization
    rounding: float

    def __post_init__(self) -> None:
        refuse_contradiction(self.lower, self.upper, self.rounding)


def least_error(
    W: Tensor | Workload, variance: float, *, tol: float = 1e-3, max_iterations: int = 5_000
) -> LeastError:
    """The alpha that is best for the mean squared error: minimise variance gamma_2(W; alpha)^2 + alpha^2.

    A query is answered by l_i^T (mean of the users' noisy vectors): with ||l_i||, ||R_x|| <= gamma_2^{1/2} its
    variance is at most gamma_2^2 ``variance`` and its bias at most alpha. variance: of a coordinate of the mean for
    vectors of norm at most 1, that is v / n for a randomizer with Cov = v I and n users.

    With a = variance^{1/2}, (a^2 gamma^2 + alpha^2)^{1/2} >= a cos(t) (gamma + alpha tan(t) / a) for every angle t,
    with equality at tan t = alpha / (a gamma): the least error is the largest a cos(t) zeta over t, and t is found by
    bisection (a larger t has a smaller alpha). Of two neighbours the best mixture is taken: squared row and column
    norms, and errors, mix.

    W: (m, n) or a :class:`Workload`. tol: relative gap of the root of the mean squared error at which it stops.
    Raises ValueError, TypeError; warns like :func:`approximate`.

    Guarantees: lower <= min over alpha of variance gamma_2(W; alpha)^2 + alpha^2 <= upper.
    Source: the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12, once more.
    """
    given, dense, batch, tol, max_iterations = prepare(W, tol, max_iterations)
    if batch:
        raise ValueError(f"W must be one matrix, not of shape {tuple(dense.shape)}")
    a = math.sqrt(checks.positive("variance", variance))
    low, high, angle = 0.0, math.pi / 2, math.pi / 4
    sides: dict[bool, ApproximateFactorization] = {}
    points: list[tuple[float, ApproximateFactorization]] = []
    lower, rounding = 0.0, 0.0
    while True:
        with warnings.catch_warnings():  # one warning is enough: the one below
            warnings.simplefilter("ignore", RuntimeWarning)
            found = priced(dense, math.tan(angle) / a, tol=tol / 4, max_iterations=max_iterations)
        lower = max(lower, a * math.cos(angle) * float(found.certificate.lower))
        rounding = max(rounding, a * float(found.certificate.rounding))
        aim = math.atan2(float(found.certificate.residual), a * float(found.norm))
        sides[aim > angle] = found
        low, high = (max(low, angle), min(high, aim)) if aim > angle else (max(low, aim), min(high, angle))
        points += [(_error(found, a), found)]
        if len(sides) == 2:
            mixed = _mix(dense, a, sides[True], sides[False])
            points += [(_error(mixed, a), mixed)]
        points = [min(points, key=lambda point: point[0])]
        if points[0][0] <= lower * (1 + tol) or high - low < 1e-9 or points[0][0] == 0:
            break
        angle = (low + high) / 2
    best = points[0][1]
    best = replace(best, left=best.left.to(given.dtype), right=best.right.to(given.dtype))
    proof = best.witness, best.row_weights, best.column_weights
    best = replace(best, certificate=certify_approximate(dense, best.alpha, best.left, best.right, *proof))
    upper = _error(best, a)
    if upper > lower * (1 + tol) + 16 * torch.finfo(given.dtype).eps * float(dense.abs().max()):
        warnings.warn(
            f"least_error stopped at a certified gap of {upper / max(lower, 1e-300) - 1:.2e}, above tol = {tol:.2e}; "
            "raise tol or max_iterations",
            RuntimeWarning,
            stacklevel=2,
        )
    return LeastError(upper**2, lower**2, best, rounding=2 * (upper + rounding) * rounding)


def _error(found: ApproximateFactorization, a: float) -> float:
    return math.hypot(a * float(found.norm), float(found.certificate.residual))


@on_host
def _mix(
    W: Tensor, a: float, first: ApproximateFactorization, second: ApproximateFactorization
) -> ApproximateFactorization:
    """The mixture of two factorizations of least a^2 norm^2 + residual^2."""
    x = torch.tensor([a * float(first.norm), float(first.certificate.residual)], dtype=torch.float64)
    y = torch.tensor([a * float(second.norm), float(second.certificate.residual)], dtype=torch.float64)
    step = y - x
    share = float((-(x @ step) / (step @ step).clamp_min(1e-300)).clamp(0, 1))
    left, right = compress(
        torch.cat([math.sqrt(1 - share) * first.left, math.sqrt(share) * second.left], -1),
        torch.cat([math.sqrt(1 - share) * first.right, math.sqrt(share) * second.right], -2),
    )
    U = (1 - share) * first.witness + share * second.witness
    c = (1 - share) * first.row_weights + share * second.row_weights
    P = (1 - share) * first.column_weights + share * second.column_weights
    residual = (W - left @ right).abs().amax()
    certificate = certify_approximate(W, residual, left, right, U, c, P)
    count = first.iterations + second.iterations
    return ApproximateFactorization(left, right, residual, U, c, P, certificate, count)
