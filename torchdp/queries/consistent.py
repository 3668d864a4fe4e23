"""Answers made consistent: the nearest answers that some histogram gives. Biased, and often closer."""

from dataclasses import dataclass

from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.queries.factored import dense
from torchdp.workloads import Workload


@dataclass(frozen=True)
class Consistent(Brief):
    """Answers W h of a histogram h >= 0 with sum 1: value (*batch, m), histogram (*batch, k), gap of the search.

    gap (*batch): squared distance to the given answers, less that of the best histogram, is at most 2 gap.
    The answers are biased, whatever the mechanism: no standard error comes with them.
    """

    value: Tensor
    histogram: Tensor
    gap: Tensor


def consistent(workload: Tensor | Workload, answers: Tensor, *, tol: float = 1e-9) -> Consistent:
    """argmin over histograms h (h >= 0, sum 1) of ||W h - answers||^2: post-processing, it costs no privacy.

    Block pivoting in the Gram matrix W^T W, exact but for rounding; where queries do not tell all histograms apart it
    stops once the Frank-Wolfe gap max over h' of <gradient, h - h'> (at least f(h) - f(best),
    f = ||W h - answers||^2 / 2) is below ``tol`` times max abs(W)^2 m.

    workload: (m, k); answers: (*batch, m). Raises TypeError, ValueError.
    Guarantees: W h is never farther from any answers that a histogram gives than ``answers`` are, up to the gap.
    Source: projection onto a convex set; Nikolov, Talwar, Zhang (2013), section 4; Kim, Park (2011).
    """
    W = checks.matrix("workload", dense(workload), checks.LARGEST)
    answers = checks.floating("answers", answers, checks.LARGEST).detach().double()
    if answers.ndim == 0 or answers.shape[-1] != W.shape[0]:
        raise ValueError(
            f"answers must have shape (..., {W.shape[-2]}), one for each query, not {tuple(answers.shape)}"
        )
    tol = checks.positive("tol", tol)
    centred = W - W.mean(1, keepdim=True)  # on the simplex a shift of a row is a constant
    gram = centred.mT @ centred
    pull = (answers - W.mean(1)) @ centred  # (*batch, k)
    limit = float(tol * W.abs().max() ** 2 * W.shape[0])
    h, gap = nearest_histogram(gram, pull, limit)
    return Consistent(h @ W.mT, h, gap)
