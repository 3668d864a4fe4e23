"""What stands beside the scripts: the reduction to linear queries, the hierarchical AUC, skew-circulant matrices."""

import math

import pytest
import torch
from laws import generator, normal
from pairs import from_factors
from scripts import loaded

from torchdp import pairwise, workloads
from torchdp.factorization import factorize
from torchdp.simulate import Moments

STATISTIC = from_factors(
    torch.eye(3), torch.tensor([[1.0, 2, 0], [2, 0, -1], [0, -1, 3]]), pairs=pairwise.Pairs.ALL
)
COUNTS = torch.tensor([300, 0, 700])
NEGATIVES = torch.tensor([4000, 3000, 1000, 500, 200, 100, 0, 30])
POSITIVES = torch.tensor([0, 100, 500, 1500, 2500, 3000, 900, 10])
with loaded("factorization/cyclic.py") as cyclic:
    pass

EXPONENTS = [2.0, 3.0, math.inf]


@pytest.mark.parametrize("kind", [pairwise.OneMessage, pairwise.TwoMessage])
def test_linear_queries_are_unbiased_and_within_the_bound(kind):
    """Ghazi et al. (2023), Theorem 14."""
    with loaded("pairwise/reduction.py") as reduction:
        protocol, trials = kind(STATISTIC, 2.0), 4000
        found = reduction.linear_queries(protocol, COUNTS, generator=generator(), sample_shape=(trials,))
        truth = STATISTIC.kernel(STATISTIC.form) @ (COUNTS.double() / 1000)
        z = (found.mean(0) - truth) / found.std(0) * trials**0.5
        assert found.shape == (trials, 3) and float(z.abs().max()) < 4.5
        bound, mse = reduction.linear_queries_bound(protocol, COUNTS), (found - truth).square().mean(0)
        assert bool((mse < bound).all()) and bool((mse > bound / 30).all())


def test_guarantee_linear_queries_read_the_users_messages_once(monkeypatch):
    # all later draws are of made up users
    calls, drawn = [], pairwise.OneMessage.sample_unchecked
    monkeypatch.setattr(
        pairwise.OneMessage,
        "sample_unchecked",
        lambda self, counts, *rest: calls.append(counts) or drawn(self, counts, *rest),
    )
    with loaded("pairwise/reduction.py") as reduction:
        reduction.linear_queries(pairwise.OneMessage(STATISTIC, 1.0), COUNTS, generator=generator())
    assert [each.tolist() for each in calls] == [[300, 0, 700], [1000, 0, 0], [0, 1000, 0], [0, 0, 1000]]


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_hierarchical_auc_measures_what_is_predicted(epsilon):
    less = torch.ones(8, 8, dtype=torch.float64).triu(1) + torch.eye(8) / 2
    truth = float(NEGATIVES.double() @ less @ POSITIVES.double() / NEGATIVES.sum() / POSITIVES.sum())
    with loaded("pairwise/hierarchical.py") as hierarchical:
        protocol, draws = hierarchical.HierarchicalAUC(3, epsilon), generator()
        both = [protocol.sample_tally(c, generator=draws, sample_shape=(20_000,)) for c in (NEGATIVES, POSITIVES)]
        error = protocol.analyse(*both) - truth
        assert float(error.square().mean()) == pytest.approx(
            protocol.predicted_mse(NEGATIVES, POSITIVES), rel=0.06
        )
        assert abs(Moments.of(error).z_score(0.0)) < 5
        pruned = hierarchical.HierarchicalAUC(3, epsilon, 2.0)
        assert float((pruned.analyse(*both) - truth).square().mean()) < 1.5 * float(error.square().mean())


def written_out(first):
    n = len(first)
    return torch.stack(
        [torch.stack([first[(i - j) % n] * (-1 if i < j else 1) for j in range(n)]) for i in range(n)]
    )


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_skew_circulant_is_optimal(n, p):
    """Exact, of the norm n^{1/p - 1} times the trace norm, and of the solver's; another power of n is not."""
    first = normal(n, seed=n)
    W, found = written_out(first), cyclic.skew_circulant(first, p)
    torch.testing.assert_close(found.left @ found.right, W, rtol=0, atol=1e-13)
    value, solved = float(found.certificate.upper), factorize(W, p, tol=1e-8).certificate
    assert float(found.certificate.gap) <= 1e-12
    assert value == pytest.approx(float(torch.linalg.svdvals(W).sum()) * n ** (1 / p - 1), rel=1e-12)
    assert solved.lower * (1 - 1e-9) <= value <= solved.upper * (1 + 1e-9)
    if n > 1 and p != 2:
        wrong = value * n ** (1 / 2 - 1 / p)
        assert not solved.lower * (1 - 1e-3) <= wrong <= solved.upper * (1 + 1e-3)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("p", EXPONENTS)
def test_sign_matrices_by_cosecants_and_cotangents(n, p):
    ones, last = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    last[0] = 0
    for value, first, W in (
        (cyclic.gamma_sign_triangular(n, p), ones, 2 * workloads.prefix(n).dense() - 1),
        (cyclic.gamma_sign(n, p), last, workloads.sign(n).dense()),
    ):
        torch.testing.assert_close(written_out(first), W)
        found = float(cyclic.skew_circulant(first, p).certificate.upper)
        assert found == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert cyclic.gamma_sign_triangular(16) == pytest.approx(2.727778, abs=1e-6)
