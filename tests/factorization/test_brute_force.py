"""Small random instances judged by code that shares nothing with the library: semidefinite programs
and long doubles.

Truth lies between ``below`` and ``above``: the weights and the factors of a semidefinite program's
solution, evaluated in long double with what they miss charged. Every certificate must reach over
both, and equal its own formula in long double; the largest ratio of claim to truth is 1 + 1e-9.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch

from torchdp.factorization import (
    certify,
    epochs,
    factorize,
    factorize_epochs,
    gamma2_dual,
)
from torchdp.factorization.certificates import certificate, returning_certificate

cp = pytest.importorskip("cvxpy")
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
ROOM = 1 + 1e-9
LONG = np.longdouble


def instances():
    """Random matrices of every kind that has broken a bound: dense, ties and zeros, scales,
    deficient, repeated.
    """
    for seed, (m, n) in enumerate([(3, 3), (4, 5), (5, 3)]):
        generator = np.random.default_rng(seed)
        W = generator.normal(size=(m, n))
        yield W
        yield generator.integers(-1, 2, size=(m, n)) + 0.0
        yield W * np.logspace(-3, 1, m)[:, None]
        yield np.concatenate([W[:, :1], W[:, :1], W[:, 2:]], 1) - 5


INSTANCES = list(instances())


def lp(values, p):
    top = np.abs(values).max()
    if p == math.inf or top == 0:
        return top
    scaled = np.abs(values) / top
    total = (scaled ** LONG(p)).sum()
    return top * total ** (1 / LONG(p))


def singular_values(M):
    """By one-sided Jacobi rotations, in long double."""
    M = np.array(M if M.shape[0] >= M.shape[1] else M.T, dtype=LONG)
    for _ in range(60):
        off = LONG(0)
        for i in range(M.shape[1]):
            for j in range(i + 1, M.shape[1]):
                a = M[:, i] @ M[:, i]
                b = M[:, j] @ M[:, j]
                c = M[:, i] @ M[:, j]
                if abs(c) <= 1e-20 * np.sqrt(a * b) or c == 0:
                    continue
                off = max(off, abs(c) / np.sqrt(a * b))
                z = (b - a) / (2 * c)
                t = (1 if z >= 0 else -1) / (abs(z) + np.sqrt(1 + z * z))
                cosine = 1 / np.sqrt(1 + t * t)
                first = cosine * (M[:, i] - t * M[:, j])
                M[:, j] = cosine * (t * M[:, i] + M[:, j])
                M[:, i] = first
        if off < 1e-17:
            break
    return np.sqrt((M * M).sum(0))


def upper(W, left, right, p, v=None):
    """What factors of W - v 1^T cost, what they miss charged."""
    W = np.asarray(W, dtype=LONG)
    left = np.asarray(left, dtype=LONG)
    right = np.asarray(right, dtype=LONG)
    missing = W - left @ right - (0 if v is None else np.asarray(v, dtype=LONG)[:, None])
    rows = np.sqrt((left * left).sum(1))
    others = np.sqrt((missing * missing).sum(1))
    columns = np.sqrt((right * right).sum(0))
    return lp(rows, p) * columns.max() + lp(others, p)


def lower(W, c, P, p, shift):
    """What weights of rows and columns prove."""
    W = np.asarray(W, dtype=LONG)
    c = np.asarray(c, dtype=LONG)
    P = np.asarray(P, dtype=LONG)
    conjugate = {2: math.inf, math.inf: 1}.get(p) or p / (p - 2)
    c = c / lp(c, conjugate)
    P = P / P.sum()
    centred = W - (W @ P)[:, None] if shift else W
    weighted = np.sqrt(c)[:, None] * centred * np.sqrt(P)
    return singular_values(weighted).sum()


@lru_cache
def program(m, n, p, shift):
    """min ||a||_{p/2}, the squared error, over [[A, X], [X^T, B]] >= 0, diag A <= a, diag B <=
    1.
    """
    W = cp.Parameter((m, n))
    Z = cp.Variable((m + n, m + n), PSD=True)
    a = cp.Variable(m)
    v = cp.Variable(m)
    rows = cp.diag(Z)[:m] <= a
    columns = cp.diag(Z)[m:] <= 1
    X = Z[:m, m:] + (cp.reshape(v, (m, 1), order="C") @ np.ones((1, n)) if shift else 0)
    error = cp.norm(a, p / 2 if p < math.inf else "inf")
    problem = cp.Problem(cp.Minimize(error), [rows, columns, X == W])
    return problem, W, Z, v, rows, columns


@lru_cache
def truth(index, p, shift):
    """(below, above) for the instance."""
    W = INSTANCES[index]
    problem, parameter, Z, v, rows, columns = program(*W.shape, p, shift)
    size = np.abs(W).max()
    m = len(W)
    parameter.value = W / size
    problem.solve(solver=cp.CLARABEL)
    values, vectors = np.linalg.eigh(Z.value)
    root = vectors * np.sqrt(values.clip(0))
    offset = v.value if shift else None
    above = size * upper(W / size, root[:m], root[m:].T, p, offset)
    weights = rows.dual_value.clip(0), columns.dual_value.clip(0)
    below = size * lower(W / size, *weights, p, shift)
    return below, above


def judge(index, p, shift):
    """AssertionError unless the certificate of the instance is true, its own formula, and tight."""
    W = INSTANCES[index]
    found = factorize(torch.from_numpy(W), p, shift, tol=1e-6)
    below, above = truth(index, p, shift)
    claimed = found.certificate
    assert claimed.lower <= above * ROOM
    assert below <= claimed.upper * ROOM
    # tol is 1e-6, the program as good again
    assert claimed.upper <= above * (1 + 2e-6)
    assert claimed.lower >= below * (1 - 2e-6)
    v = None if found.shift is None else found.shift.numpy()
    # entries that cancel leave rounding of this size
    slack = 1e-13 * np.abs(W).max()
    again = upper(
        W,
        found.left.numpy(),
        found.right.numpy(),
        p,
        v,
    )
    assert abs(again - claimed.upper) <= 1e-12 * again + slack
    proved = lower(
        W,
        found.row_weights.numpy(),
        found.column_weights.numpy(),
        p,
        shift,
    )
    assert abs(proved - claimed.lower) <= 1e-12 * proved + slack
    return max(float(claimed.lower / above), float(below / claimed.upper))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("p", [2, 3, math.inf])
def test_guarantee_no_certificate_of_a_factorization_is_false(p, shift):
    for index in range(len(INSTANCES)):
        assert judge(index, p, shift) <= ROOM


def test_guarantee_certificates_of_bad_factors_and_weights_are_true_as_well():
    for index, W in enumerate(INSTANCES):
        generator = np.random.default_rng(index)
        (m, n), p = W.shape, (2, 3, math.inf)[index % 3]
        for shift in (False, True):
            below, above = truth(index, p, shift)
            c = generator.random(m)
            P = generator.random(n)
            v = generator.normal(size=m) if shift else None
            left = generator.normal(size=(m, 2))
            right = generator.normal(size=(2, n))
            tensors = [torch.from_numpy(x) for x in (W, left, right, c, P)]
            found = certify(
                *tensors,
                p=p,
                shift=None if v is None else torch.from_numpy(v),
            )
            assert found.lower <= above * ROOM
            assert below <= found.upper * ROOM
            assert float(found.upper) == pytest.approx(
                float(upper(W, left, right, p, v)), rel=1e-12
            )
            assert float(found.lower) == pytest.approx(
                float(lower(W, c, P, p, shift)), rel=1e-11, abs=1e-12
            )


def test_guarantee_dual_bounds_hold():
    for W in INSTANCES:
        dual = gamma2_dual(torch.from_numpy(W), tol=1e-6)
        c = np.asarray(dual.row_weights, dtype=LONG)
        P = np.asarray(dual.column_weights, dtype=LONG)
        unit = np.asarray(W, dtype=LONG)
        used = P > 1e-14
        c = c / c.sum()
        rows = np.sqrt(c)[:, None]
        columns = np.sqrt(P[used] / P.sum())
        needed = singular_values(unit[:, used] / rows / columns)
        # the same formula in long double
        assert float(dual.upper) == pytest.approx(float(needed.max()), rel=1e-11)
        # <X, U> <= gamma_2(X) gamma_2*U
        for other, X in enumerate(INSTANCES):
            if X.shape == W.shape:
                norm = truth(other, math.inf, False)[1]
                assert (X * W).sum() <= norm * float(dual.upper) * ROOM
        moved = np.asarray(dual.left @ dual.right.mT, dtype=LONG)
        assert float(dual.lower) <= float((moved * W).sum()) * ROOM


def largest_move(right, period):
    """What one user's gradients move at most: of each class by block ascent over unit vectors, from
    random starts.
    """
    generator = np.random.default_rng(0)
    best = 0.0
    for i in range(min(period, right.shape[1])):
        R = np.asarray(right[:, i::period], dtype=LONG)
        for _ in range(4):
            count = R.shape[1]
            u = generator.normal(size=(count, count)).astype(LONG)
            for _ in range(60):
                for s in range(len(u)):
                    u[s] /= np.sqrt(u[s] @ u[s])
                    toward = R[:, s] @ (R @ u - np.outer(R[:, s], u[s]))
                    u[s] = toward if toward @ toward > 0 else u[s]
            u /= np.sqrt((u * u).sum(1, keepdims=True))
            moved = np.sqrt(((R @ u) ** 2).sum())
            best = max(best, float(moved))
    return best


def epochs_judge(index, period, p):
    W = INSTANCES[index]
    n = W.shape[1]
    found = factorize_epochs(torch.from_numpy(W), period, p)
    claimed = found.certificate
    right = found.right.numpy()
    left = found.left.numpy()
    squares = (left.astype(LONG) ** 2).sum(1)
    rows = lp(np.sqrt(squares), p)
    reached = largest_move(right, period)
    promised = float(claimed.upper / rows)
    # block ascent finds the largest move
    assert 1 - 1e-6 <= reached / promised <= ROOM
    X = cp.Variable((n, n), PSD=True)
    y = cp.Variable(n)
    own = [np.eye(n)[:, i::period] for i in range(min(period, n))]
    bounded = [cp.sum(E.T @ y) <= 1 for E in own]
    bounded += [cp.diag(E.T @ y) - E.T @ X @ E >> 0 for E in own]
    size = np.abs(W).max()
    errors = [cp.matrix_frac(row, X) for row in W / size]
    value = cp.max(cp.hstack(errors)) if p == math.inf else cp.sum(errors)
    problem = cp.Problem(cp.Minimize(value), bounded)
    exact = math.sqrt(problem.solve(solver=cp.CLARABEL)) * size
    # the program is solved to some 1e-7
    assert claimed.lower <= exact * (1 + 1e-6)
    assert exact <= claimed.upper * (1 + 1e-6)
    return reached / promised


@pytest.mark.parametrize("p", [2, math.inf])
def test_guarantee_no_user_of_several_epochs_moves_more_than_promised(p):
    for index in range(1, len(INSTANCES)):
        assert epochs_judge(index, 1 + index % 3, p) <= ROOM


FAULTS = {
    "trace norms a millionth too large": (torch.linalg, "svdvals", 1 + 1e-6),
    "row norms a millionth too small": (certificate, "row_norm", 1 - 1e-6),
    "what is missing a fraction too dear": (certificate, "row_norm", 1 + 1e-9),
    "a factor of two": (torch.linalg, "svdvals", 2.0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_evaluator_is_caught(fault, monkeypatch):
    """Negative control: each fault is seen at every p, with and without a shift."""
    module, name, factor = FAULTS[fault]
    right = getattr(module, name)
    for p, shift in (
        (2, True),
        (3, False),
        (
            math.inf,
            True,
        ),
    ):
        judge(1, p, shift)
        with monkeypatch.context() as planted:
            planted.setattr(module, name, lambda *args: factor * right(*args))
            with pytest.raises((AssertionError, ArithmeticError, RuntimeWarning)):
                judge(1, p, shift)


def test_planted_faults_of_norms_shifts_and_epochs_are_caught(monkeypatch):
    """Negative controls: the wrong norm of the weights, a lower bound that is not centred, one
    column a class.
    """
    right = certificate.scaled_weights

    def too_light(weights, order):
        return right(weights, math.inf if order > 1 else order)

    with monkeypatch.context() as planted:
        planted.setattr(certificate, "scaled_weights", too_light)
        with pytest.raises((AssertionError, ArithmeticError, RuntimeWarning)):
            judge(1, 3, False)
    W = INSTANCES[3]
    truths = truth(3, 2, True)
    # negative control: without the projection off the constants it would prove too much
    assert lower(W, np.ones(3), np.ones(3), 2, False) > truths[1] * 1.5
    epochs_judge(1, 1, 2)

    def of_one_column(right, period):
        return right.norm(dim=0).max()

    for module in (epochs, returning_certificate):
        monkeypatch.setattr(module, "sensitivity", of_one_column)
    with pytest.raises((AssertionError, ArithmeticError, RuntimeWarning)):
        epochs_judge(1, 1, 2)
