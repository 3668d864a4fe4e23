"""Running sums that are never formed: paths, the rule, bounds and noise against dense matrices and 40 digits."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch
from mpmath import mpf

from torchdp.factorization import factorize, gamma2, gamma_F
from torchdp.factorization.certificates.running_certificate import (
    Quadrature,
    certify_running,
    column_numbers,
    quadrature,
    row_numbers,
)
from torchdp.factorization.structure.path import variances
from torchdp.noise import SeededNoise
from torchdp.workloads import RunningSums


def weights(n: int, seed: int) -> torch.Tensor:
    x = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    return x / x.sum()


def weighted(W: RunningSums, c: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
    return c.sqrt()[:, None] * W.dense() * P.sqrt()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 33, 50])
@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_variances_are_the_diagonal_of_the_inverse(n, decay):
    P, leaks = weights(n, 1), torch.stack([weights(n, 2) * 30, torch.zeros(n, dtype=torch.float64)])
    differences = torch.linalg.inv(RunningSums(n, decay).dense())
    precision = differences.mT @ torch.diag(1 / P) @ differences + torch.diag_embed(leaks)
    expected = torch.linalg.inv(precision).diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(variances(P, leaks, decay), expected, rtol=1e-10, atol=0)


def test_the_rule_stays_between_its_stated_errors():
    rule = Quadrature.of(1.0, 1e8, 1e-4, "cpu")
    value = torch.logspace(-1, 9, 400, dtype=torch.float64)
    found = (rule.shares / (value[:, None] + rule.levels)).sum(-1) + rule.white
    assert (found >= (1 - rule.loss) * value.rsqrt()).all()
    assert (found <= (1 + rule.loss) * value.rsqrt() + rule.low / value**2 + rule.high * value).all()
    narrower = replace(rule, shares=rule.shares * (1 - 3e-4), white=rule.white * (1 - 3e-4))
    found = (narrower.shares / (value[:, None] + rule.levels)).sum(-1) + narrower.white
    assert not (found >= (1 - rule.loss) * value.rsqrt()).all()  # the control: less by 3e-4 is seen


@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_numbers_are_those_of_the_dense_root(decay):
    W, c, P = RunningSums(37, decay), weights(37, 3), weights(37, 4)
    rule = quadrature(W, c, P, 1e-8)
    U, S, Vh = torch.linalg.svd(weighted(W, c, P))
    assert torch.allclose(row_numbers(W, c, P, rule), ((U * S) @ U.mT).diagonal() / c, rtol=1e-6)
    assert torch.allclose(column_numbers(W, c, P, rule), ((Vh.mT * S) @ Vh).diagonal() / P, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 61])
@pytest.mark.parametrize("p", [2.0, 5.0, math.inf])
@pytest.mark.parametrize("decay", [1.0, 0.6])
def test_bounds_meet_those_of_the_dense_matrix(n, p, decay):
    W = RunningSums(n, decay)
    found, dense = factorize(W, p).certificate, factorize(W.dense(), p, tol=1e-5).certificate
    assert found.closed(1e-3)
    assert found.lower <= dense.upper + dense.rounding
    assert dense.lower <= found.upper + found.rounding


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_any_weights_give_bounds(p):
    W, c, P = RunningSums(24), weights(24, 5), weights(24, 6)
    certificate, _, _ = certify_running(W, c, P, p, quadrature(W, c, P, 1e-6))
    least = factorize(W.dense(), p, tol=1e-6).certificate
    assert certificate.lower < least.lower and least.upper < certificate.upper
    order = 1 if p == math.inf else math.inf if p == 2 else p / (p - 2)
    trace = torch.linalg.svdvals(weighted(W, c, P)).sum() / torch.linalg.vector_norm(c, ord=order).sqrt()
    assert (1 - 1e-5) * trace <= certificate.lower <= trace


def test_a_rule_that_is_larger_than_it_says_is_seen():
    W = RunningSums(24)
    found = factorize(W, tol=1e-4)
    rule = replace(found.rule, shares=found.rule.shares * 1.01, white=found.rule.white * 1.01)
    wrong, _, _ = certify_running(W, found.row_weights, found.column_weights, math.inf, rule)
    assert wrong.lower > factorize(W.dense(), tol=1e-4).certificate.upper


def forty_digits(steps, leaks, decay):
    """Sum of leaks x variances, by filters from both ends, in mpmath: neither the order nor the arithmetic of path."""
    n, one = len(steps), mpf(1)
    ahead, found = [mpf(0)] * n, mpf(0)  # ahead[t]: precision about x_t from t + 1, t + 2, ...
    for t in range(n - 2, -1, -1):
        seen = leaks[t + 1] + ahead[t + 1]
        ahead[t] = mpf(decay) ** 2 * seen / (one + steps[t + 1] * seen)
    variance = mpf(0)
    for t in range(n):
        before = mpf(decay) ** 2 * variance + steps[t]
        variance = before / (one + before * leaks[t])
        found += leaks[t] * variance / (one + variance * ahead[t])
    return found


@pytest.mark.parametrize("decay", [1.0, 0.99])
def test_rounding_stays_far_below_what_is_allowed_for(decay):
    n = 1000
    W, P, c = RunningSums(n, decay), weights(n, 7) ** 3, weights(n, 8) ** 3
    with mpmath.workdps(40):
        for level in (1e-9, 1.0, 1e4, 1e12):
            exact = forty_digits([mpf(float(x)) for x in P], [level * mpf(float(x)) for x in c], decay)
            found = math.fsum((level * c * variances(P, level * c[None], W.decay)[0]).tolist())
            assert abs(found / exact - 1) < (64 * 10 + 4 * n) * 2.0**-53 / 50


class Units(SeededNoise):
    """Normals that are rows of the identity, one after the other: what is drawn becomes a matrix."""

    def normal(self, shape, dtype=torch.float64):
        start, self.used = getattr(self, "used", 0), getattr(self, "used", 0) + shape[0]
        return torch.eye(shape[1], dtype=dtype)[start : self.used]


@pytest.mark.parametrize(("n", "decay"), [(1, 1.0), (6, 1.0), (9, 0.7)])
def test_noise_has_its_covariance_and_the_sensitivity_is_a_bound(n, decay):
    W = RunningSums(n, decay)
    found = factorize(W)
    units = Units(0)
    L = found.correlated_noise(n * (1 + len(found.rule.levels)), noise=units)
    assert units.used == L.shape[1]
    covariance = L @ L.mT
    M = weighted(W, found.row_weights, found.column_weights)
    lam, Q = torch.linalg.eigh(torch.linalg.inv(M @ M.mT))
    f = (found.rule.shares / (lam[:, None] + found.rule.levels)).sum(-1) + found.rule.white
    scale = found.row_weights.rsqrt()
    assert torch.allclose(covariance, scale[:, None] * ((Q * f) @ Q.mT) * scale, rtol=1e-8)
    assert torch.allclose(found.row_norms, covariance.diagonal().sqrt())
    columns = (W.dense().mT @ torch.linalg.solve(covariance, W.dense())).diagonal().sqrt()
    assert (1 - 1e-3) * found.sensitivity <= columns.max() <= found.sensitivity
    assert torch.isclose(found.row_norms.max() * found.sensitivity, found.certificate.upper)


def test_noise_is_as_large_as_predicted():
    found, count = factorize(RunningSums(12)), 4000
    measured = found.correlated_noise(count, noise=SeededNoise(1)).square().mean(1)
    z = (measured / found.row_norms**2 - 1) * math.sqrt(count / 2)
    assert z.abs().max() < 4.5
    assert (z + 0.15 * math.sqrt(count / 2)).abs().max() > 4.5  # the control: 15 % are seen


def test_norms_and_bad_input():
    assert gamma2(RunningSums(64), tol=1e-3) <= 2.111382
    assert torch.isclose(
        gamma_F(RunningSums(2), tol=1e-4), torch.tensor((1 + 5**0.5) / 2 / 2**0.5).double(), rtol=1e-3
    )
    for bad in ({"steps": 0}, {"steps": 3, "decay": 0.0}, {"steps": 3, "decay": 1.5}):
        with pytest.raises(ValueError, match=r"steps|decay"):
            RunningSums(**bad)
    with pytest.raises(ValueError, match="dense"):
        factorize(RunningSums(3), shift=True)
    with pytest.warns(RuntimeWarning, match="max_iterations"):
        factorize(RunningSums(600), tol=1e-7, max_iterations=1)


@pytest.mark.slow
def test_a_million_steps():
    found = factorize(RunningSums(10**6), tol=2e-5).certificate
    assert 5.12695 < found.lower < found.upper < 5.12708
