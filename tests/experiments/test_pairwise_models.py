"""What stands beside the scripts: the reduction to linear queries, the hierarchical AUC."""

import pytest
import torch
from laws import generator
from pairs import from_factors
from scripts import loaded

from torchdp import pairwise, queries
from torchdp.simulate import Moments

STATISTIC = from_factors(
    torch.eye(3), torch.tensor([[1.0, 2, 0], [2, 0, -1], [0, -1, 3]]), pairs=pairwise.Pairs.ALL
)
COUNTS = torch.tensor([300, 0, 700])
NEGATIVES = torch.tensor([4000, 3000, 1000, 500, 200, 100, 0, 30])
POSITIVES = torch.tensor([0, 100, 500, 1500, 2500, 3000, 900, 10])


@pytest.mark.parametrize("kind", [queries.LocalFactorization, queries.Twice])
def test_linear_queries_are_unbiased_and_within_the_bound(kind):
    """Ghazi et al. (2023), Theorem 14."""
    with loaded("pairwise/reduction.py") as reduction:
        protocol = kind.of(STATISTIC, 2.0)
        # a mean of 4000 trials
        trials = 4000
        found = reduction.linear_queries(
            protocol, COUNTS, generator=generator(), sample_shape=(trials,)
        )
        truth = STATISTIC.kernel(STATISTIC.form) @ (COUNTS.double() / 1000)
        z = (found.mean(0) - truth) / found.std(0) * trials**0.5
        assert found.shape == (trials, 3)
        assert z.abs().max() < 4.5
        bound = reduction.linear_queries_bound(protocol, COUNTS)
        mse = (found - truth).square().mean(0)
        assert (mse < bound).all()
        assert (mse > bound / 30).all()


def test_guarantee_linear_queries_read_the_users_messages_once(monkeypatch):
    # all later draws are of made up users
    calls, drawn = [], queries.LocalFactorization.sample_unchecked
    monkeypatch.setattr(
        queries.LocalFactorization,
        "sample_unchecked",
        lambda self, counts, *rest: calls.append(counts) or drawn(self, counts, *rest),
    )
    with loaded("pairwise/reduction.py") as reduction:
        reduction.linear_queries(
            queries.LocalFactorization.of(STATISTIC, 1.0), COUNTS, generator=generator()
        )
    assert [each.tolist() for each in calls] == [
        [300, 0, 700],
        [1000, 0, 0],
        [0, 1000, 0],
        [0, 0, 1000],
    ]


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_hierarchical_auc_is_unbiased(epsilon):
    counts = torch.cat([NEGATIVES, POSITIVES])
    with loaded("pairwise/tables.py") as tables:
        error = tables.hierarchical(
            8,
            counts,
            epsilon,
            20_000,
            generator(),
        )
    assert error.shape == (20_000,)
    # five standard errors
    assert abs(Moments.of(error).z_score(0.0)) < 5
