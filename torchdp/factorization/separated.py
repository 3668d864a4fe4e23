"""Factorizations for users who take part again and again, in steps that keep apart: banded or not, certified."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, check_exponent
from torchdp.factorization.certificates.returning_certificate import SeparatedDual, certify_separated
from torchdp.factorization.certificates.worst_sets import worst_separated
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.solvers.sets_solver import separated_bound
from torchdp.workloads import Workload


@dataclass(frozen=True)
class SeparatedFactorization:
    """W (G + C^{-1} Z) where a user's steps keep apart: a strategy C of sensitivity 1, and how good it is.

    strategy: C, (n, n), lower triangular. row_norms: of W C^{-1}, (n,), the standard errors for Z of standard
    deviation 1. certificate: its upper bound the l_p norm of row_norms, its lower one for every strategy.
    dual: the variables behind that, see :func:`certify_separated`.
    """

    strategy: Tensor
    row_norms: Tensor
    dual: SeparatedDual
    certificate: Certificate


def factorize_separated(
    W: Tensor | Workload,
    gap: int,
    times: int,
    p: float = math.inf,
    tol: float = 1e-3,
    *,
    max_iterations: int = 400,
) -> SeparatedFactorization:
    """The C of least error where a user takes part in at most ``times`` steps, any two at least ``gap`` apart.

    Minimises (sum_t ||(W C^{-1})_t||^p)^{1/p} S(C), S as in ``training.Separated``. The best C of ``gap`` bands is the
    solution of a smooth convex problem (``banded_strategy``). Weights on sets of steps bound every strategy from below
    (``separated_bound``), and its last iterate is a strategy without bands; the better of the two is returned. What the
    band costs stays in the gap: .2 to 2 % for prefix sums where ``times`` is all that ``gap`` permits.

    W: (n, n), lower triangular, its diagonal not 0, or a Workload of such a matrix. p: in [2, inf]. tol: relative gap
    at which it stops; max_iterations: of the bound, O(n^3) each. Optimised on the CPU; the results, in float64, are on
    W's device. Raises TypeError, ValueError.

    Guarantees: certificate.lower <= the least value of any strategy <= certificate.upper, that of ``strategy``.
    Source: here. The participation: Choquette-Choo et al. (2023), (k, b)-participation.
    """
    given = checks.matrix("W", W.dense() if isinstance(W, Workload) else W).detach()
    gap, times, p = checks.integer("gap", gap, 1), checks.integer("times", times, 1), check_exponent(p)
    tol, max_iterations = checks.positive("tol", tol), checks.integer("max_iterations", max_iterations, 1)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.triu(1).any() or (given.diagonal() == 0).any():
        raise ValueError(
            "W must be one square lower triangular matrix without 0 on its diagonal, as Iterates(...).dense() makes"
        )
    n, size = len(given), float(given.abs().max())
    W = given.double().cpu() / size
    gap = n if times == 1 else min(gap, n)
    times = min(times, -(-n // gap))
    C, rows = banded_strategy(W, gap, times, p, 5 * max_iterations)
    upper = float(torch.linalg.vector_norm(_row_norms(W, C), ord=p))
    dual, X = separated_bound(W, C, rows, gap, times, p, upper, tol, max_iterations)
    C, errors = min(
        (_balanced(W, each, gap, times) for each in (C, _triangular(X)) if each is not None),
        key=lambda found: float(torch.linalg.vector_norm(found[1], ord=p)),
    )
    return _finish(given, size, C, errors, dual, gap, times, p)


def _finish(
    W: Tensor, size: float, C: Tensor, errors: Tensor, dual: SeparatedDual, gap: int, times: int, p: float
) -> SeparatedFactorization:
    """Everything on W's device and in its scale, with its certificate."""
    C, errors = C.to(W.device), (errors * size).to(W.device)
    dual = SeparatedDual(*(x.to(W.device) for x in (dual.row_weights, dual.steps, dual.directions, dual.weights)))
    left = torch.linalg.solve_triangular(C, W.double(), upper=False, left=False)
    certificate = certify_separated(W, left, C, dual, gap, times, p=p)
    return SeparatedFactorization(C, errors, dual, certificate)


def _balanced(W: Tensor, C: Tensor, gap: int, times: int) -> tuple[Tensor, Tensor]:
    """C over its sensitivity, and the row norms of W C^{-1}."""
    bound, _ = worst_separated((C.mT @ C).abs().numpy(), gap, times)
    C = C / math.sqrt(bound)
    return C, _row_norms(W, C)


def _row_norms(W: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)


def _triangular(X: Tensor) -> Tensor | None:
    """The lower triangular C with C^T C = X and a positive diagonal; None where X is singular to rounding."""
    root, failed = torch.linalg.cholesky_ex(X.flip(0, 1))
    return None if failed else root.flip(0, 1).mT.contiguous()
