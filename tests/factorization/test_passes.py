"""The lower bound for long runs in which users come back: against dense matrices and forty digits."""

import math
from functools import partial

import laws
import pytest
import torch
from mpmath import mp, mpf

from torchdp.factorization import factorize_epochs, factorize_separated
from torchdp.factorization.certificates import returning_certificate
from torchdp.factorization.certificates.returning_certificate import passes_lower
from torchdp.factorization.streams.search import passes_dual
from torchdp.workloads import RunningSums

normal = partial(laws.normal, name=b"passes")


def trace_norm(W, period, c, D, p):
    """Of diag(c)^{1/2} W M^{1/2}, by its definition: the directions at one length in each class, and 0.001 of it
    apart."""
    c = c / torch.linalg.vector_norm(c, ord=1 if p == math.inf else math.inf if p == 2 else p / (p - 2))
    parts, size = [], 0.0
    for i in range(period):
        part, largest = D[i::period], float(D[i::period].norm(dim=1).max())
        unit = math.sqrt(0.999) * part / part.norm(dim=1, keepdim=True)
        moved = torch.cat([unit, math.sqrt(0.001) * torch.eye(len(part)).double()], 1)
        parts.append(largest * W.dense()[:, i::period] @ moved)
        size += largest**2
    return float(torch.linalg.svdvals(c.sqrt()[:, None] * torch.cat(parts, 1)).sum()) / math.sqrt(size)


@pytest.mark.parametrize("p", [2.0, 5.0, math.inf])
@pytest.mark.parametrize(
    ("n", "period", "decay"), [(12, 4, 1.0), (14, 4, 0.9), (9, 4, 1.0), (7, 7, 1.0), (5, 1, 0.8)]
)
def test_guarantee_any_weights_give_the_trace_norm_which_no_strategy_passes(n, period, decay, p):
    W, passes = RunningSums(n, decay), -(-n // period)
    best = factorize_epochs(W.dense(), period, p, 1e-4).certificate
    c, D = normal(n).square() + 0.01, normal(n, passes + 1)
    found, rounding = passes_lower(W, period, c, D, p)
    expected = trace_norm(W, period, c, D, p)
    assert (1 - 3e-6) * expected <= found + rounding and found <= expected + rounding and rounding < 1e-6 * found
    assert found <= best.upper
    near, rounding = passes_lower(W, period, *passes_dual(W, period, p), p)
    assert (1 - 2e-3) * best.lower <= near <= best.upper + rounding
    apart = factorize_separated(W.dense(), period, passes, p, max_iterations=20).certificate
    assert near <= apart.upper + rounding  # users who keep apart may come back in every pass


def forty_digits(blocks, c, decay, s):
    """tr diag(c) (N + s diag(c))^{-1} from N = W^{-T} M^{-1} W^{-1}, in the order of the steps."""
    period, k = c.shape
    n = period * k
    M, difference = mp.zeros(n), mp.eye(n)
    for i in range(period):
        for e in range(k):
            for f in range(k):
                M[e * period + i, f * period + i] = mpf(float(blocks[i, e, f]))
    for t in range(1, n):
        difference[t, t - 1] = -mpf(decay)
    weights = mp.diag([mpf(float(c[t % period, t // period])) for t in range(n)])
    inverse = mp.inverse(difference.T * mp.inverse(M) * difference + mpf(s) * weights)
    return sum(weights[t, t] * inverse[t, t] for t in range(n))


@pytest.mark.parametrize("spread", [0.0, 6.0])
@pytest.mark.parametrize(("n", "period", "j"), [(14, 10, 2), (25, 21, 2), (30, 10, 3), (12, 4, 2)])
def test_directions_that_nearly_agree_are_no_exception(n, period, j, spread):
    W, c = RunningSums(n, 0.99), normal(n).square() + 0.01
    D = (normal(j).abs() + 1e-5 * normal(n, j)) * (spread * normal(n, 1)).exp()
    found, rounding = passes_lower(W, period, c, D, 2.0)
    assert rounding < 1e-6 * found
    assert found - rounding <= trace_norm(W, period, c, D, 2.0) <= (1 + 3e-6) * found + rounding


@pytest.mark.parametrize(("period", "k", "decay"), [(5, 3, 1.0), (3, 4, 0.7), (6, 2, 1.0)])
def test_rounding_stays_below_what_is_allowed_for(period, k, decay):
    """Correlations near 1, weights over eight orders."""
    shared = normal(period, k, 1) + 1e-4 * normal(period, k, k + 1)
    blocks, c = shared @ shared.mT + 1e-9 * torch.eye(k).double(), (9 * normal(period, k).tanh()).exp()
    levels = torch.tensor([0.0, 1e-6, 1.0, 1e4, 1e12], dtype=torch.float64)
    found, errors = returning_certificate._traces(blocks, c, decay, levels)
    with mp.workdps(60):
        exact = [forty_digits(blocks, c, decay, float(s)) for s in levels]
        off = torch.tensor([abs(float(mpf(float(f)) / e - 1)) for f, e in zip(found, exact, strict=True)])
    assert (off < errors / 10).all() and errors.max() < 1
    assert off.max() > 1e-13  # the control: these are hard ones
    plain, small = returning_certificate._traces(
        torch.eye(k).expand(period, k, k).double(), c * 0 + 1, 1.0, levels
    )
    assert small.max() < 1e-9 and plain[0] > 0


@pytest.mark.parametrize(
    ("n", "period", "p", "least"),
    [
        (128, 32, 2.0, 4.803),
        pytest.param(10_000, 1000, 2.0, 12.54, marks=pytest.mark.slow),
    ],
)
def test_known_values(n, period, p, least):
    W = RunningSums(n)
    found, rounding = passes_lower(W, period, *passes_dual(W, period, p), p)
    assert least < float(found) / (math.sqrt(n) if p == 2 else 1) < least * 1.01 and rounding < 1e-4 * found
