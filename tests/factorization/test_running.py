"""Running sums that are never formed: paths, the rule, and bounds against dense matrices and
60 digits.
"""

import math
from dataclasses import replace

import laws
import mpmath
import pytest
import torch
from mpmath import mpf

from torchdp.factorization import factorize, gamma2, gamma_F
from torchdp.factorization.certificates.running_certificate import (
    Quadrature,
    certify_running,
    quadrature,
    sum_variances,
)
from torchdp.workloads import RunningSums

# decay, whether learning rates fall
MOTIONS = [
    (1.0, False),
    (0.7, False),
    (0.9, True),
]


def sums(n: int, decay: float, falls: bool) -> RunningSums:
    return RunningSums(
        n, decay, 0.0, torch.linspace(2, 0.05, n, dtype=torch.float64) if falls else None
    )


def weights(n: int, seed: int) -> torch.Tensor:
    x = laws.uniform(n, seed=seed) + 0.01
    return x / x.sum()


def weighted(W: RunningSums, c: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
    return c.sqrt()[:, None] * W.dense() * P.sqrt()


def test_the_rule_stays_between_its_stated_errors():
    rule = Quadrature.of(1.0, 1e8, 1e-4, "cpu")
    value = torch.logspace(-1, 9, 400, dtype=torch.float64)
    poles = value[:, None] + rule.levels
    found = (rule.shares / poles).sum(-1) + rule.white
    assert (found >= (1 - rule.loss) * value.rsqrt()).all()
    assert (
        found <= (1 + rule.loss) * value.rsqrt() + rule.low / value**2 + rule.high * value
    ).all()
    narrower = replace(
        rule,
        shares=rule.shares * (1 - 3e-4),
        white=rule.white * (1 - 3e-4),
    )
    found = (narrower.shares / poles).sum(-1) + narrower.white
    # the control: less by 3e-4 is seen
    assert not (found >= (1 - rule.loss) * value.rsqrt()).all()


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("p", [2.0, 5.0, math.inf])
@pytest.mark.parametrize("motion", MOTIONS)
def test_bounds_meet_those_of_the_dense_matrix(n, p, motion):
    W = sums(n, *motion)
    found = factorize(W, p).certificate
    dense = factorize(W.dense(), p, tol=1e-5).certificate
    assert found.closed(1e-3)
    assert found.lower <= dense.upper + dense.rounding
    assert dense.lower <= found.upper + found.rounding


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("motion", MOTIONS[::2])
def test_any_weights_give_bounds(p, motion):
    W = sums(24, *motion)
    c = weights(24, 5)
    P = weights(24, 6)
    certificate, _, _ = certify_running(
        W,
        c,
        P,
        p,
        quadrature(W, c, P, 1e-6),
    )
    least = factorize(W.dense(), p, tol=1e-6).certificate
    assert certificate.lower < least.lower
    assert least.upper < certificate.upper
    # the exponent conjugate to p / 2
    order = {2: math.inf, math.inf: 1}.get(p) or p / (p - 2)
    total = torch.linalg.svdvals(weighted(W, c, P)).sum()
    trace = total / torch.linalg.vector_norm(c, ord=order).sqrt()
    assert (1 - 1e-5) * trace <= certificate.lower <= trace


@pytest.mark.parametrize("motion", MOTIONS[::2])
def test_a_rule_that_is_larger_than_it_says_is_seen(motion):
    W = sums(24, *motion)
    found = factorize(W, tol=1e-4)
    rule = replace(
        found.rule,
        shares=found.rule.shares * 1.01,
        white=found.rule.white * 1.01,
    )
    wrong, _, _ = certify_running(
        W,
        found.row_weights,
        found.column_weights,
        math.inf,
        rule,
    )
    assert wrong.lower > factorize(W.dense(), tol=1e-4).certificate.upper


def sixty_digits(W, steps, leaks):
    """Sum of leaks x variances of x, by Kalman's filter and what is seen later, with subtractions,
    in mpmath.
    """
    one = mpf(1)
    decay = mpf(W.decay)
    rates = [one] * W.steps if W.rates is None else [mpf(x) for x in W.rates.tolist()]
    sizes = [P * rate**2 for P, rate in zip(steps, rates, strict=True)]
    # precision about x_t of what is seen from t + 1 on
    ahead = [mpf(0)]
    for size, leak in zip(sizes[:0:-1], leaks[:0:-1], strict=True):
        seen = ahead[-1] + leak
        gained = one + size * seen
        ahead.append(decay**2 * (seen - seen**2 * size / gained))
    a = mpf(0)
    found = mpf(0)
    for size, leak, later in zip(sizes, leaks, reversed(ahead), strict=True):
        a = decay**2 * a + size
        a = a / (one + leak * a)
        found += leak * a / (one + a * later)
    return found


@pytest.mark.parametrize(
    "motion",
    [
        (1.0, False),
        (0.99, False),
        (1.0, True),
    ],
)
@pytest.mark.parametrize("spread", [3, 12])
def test_rounding_stays_far_below_what_is_allowed_for(motion, spread):
    """Weights up to 12 orders of magnitude apart, from one step to the next."""
    # long enough that rounding would add up
    n = 300
    W = sums(n, *motion)
    P = 10 ** (-spread * weights(n, 7) * n / 2)
    c = 10 ** (-spread * weights(n, 8) * n / 2)
    digits = [[mpf(float(x)) for x in vector] for vector in (P, c)]
    with mpmath.workdps(60):
        for level in (1e-9, 1.0, 1e4, 1e12):
            leaks = level * c
            exact = sixty_digits(W, digits[0], [level * x for x in digits[1]])
            variances = sum_variances(W, P, leaks[None])[0]
            found = math.fsum((leaks * variances).tolist())
            assert abs(found / exact - 1) < (64 * 9 + 4 * n) * 2.0**-53 / 25


def test_norms_and_bad_input():
    assert gamma2(RunningSums(64), tol=1e-3) <= 2.111382
    golden = (1 + 5**0.5) / 2
    assert torch.isclose(
        gamma_F(RunningSums(2), tol=1e-4),
        torch.tensor(golden / 2**0.5).double(),
        rtol=1e-3,
    )
    with pytest.warns(RuntimeWarning, match="max_iterations"):
        factorize(RunningSums(600), tol=1e-7, max_iterations=1)


@pytest.mark.slow
def test_a_million_steps():
    found = factorize(RunningSums(10**6), tol=2e-5).certificate
    assert 5.12695 < found.lower < found.upper < 5.12708
