"""The least value of any strategy for users with given sets of steps, by a semidefinite program."""

import math

import numpy as np
import pytest
from torch import Tensor


def least_value(
    W: Tensor, sets: list[tuple[int, ...]], p: float, bands: int | None = None
) -> float:
    """Over all X = C^T C, or those of so many bands: it knows nothing of orthogonal columns.

    For a set s the largest <X_s, K> over correlation matrices K is the least sum of y with diag(y)
    >= X_s.
    """
    cp = pytest.importorskip("cvxpy")
    n = W.shape[1]
    X = cp.Variable((n, n), PSD=True)
    constraints = []
    for s in sets:
        y = cp.Variable(len(s))
        constraints += [cp.diag(y) - X[np.ix_(s, s)] >> 0, cp.sum(y) <= 1]
    if bands:
        constraints += [X[i, j] == 0 for i in range(n) for j in range(n) if abs(i - j) >= bands]
    errors = [cp.matrix_frac(row, X) for row in W.numpy()]
    value = cp.max(cp.hstack(errors)) if p == math.inf else cp.sum(errors)
    problem = cp.Problem(cp.Minimize(value), constraints)
    problem.solve(solver=cp.CLARABEL)
    return math.sqrt(problem.value)
