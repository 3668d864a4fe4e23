"""Many users and large domains."""

import pytest
import torch
from laws import counts_of, sampled

from pairwise.common import mse, responses, subsets, twice, vectors
from torchdp import pairwise


def zipf(k, n):
    weights = 1 / torch.arange(1, k + 1, dtype=torch.float64)
    return counts_of(weights, n)


@pytest.mark.parametrize("n", [10**9, 10**10, 10**12])
@pytest.mark.parametrize("kind", [twice, vectors, responses, subsets])
def test_a_billion_users_and_more(kind, n):
    for statistic in (
        pairwise.absolute_difference(16),
        pairwise.unequal(16),
        pairwise.auc(8),
        pairwise.kendall(4, 4),
    ):
        counts = zipf(16, n).flip(0) if statistic.name == "auc" else zipf(16, n)
        protocol = kind(statistic, 2.0)
        total = int(counts.sum())
        answer = protocol.sample_estimate(counts, **sampled(100, b"many"))
        rmse = mse(protocol, counts, total) ** 0.5
        assert answer.n == total
        assert total > 0.99 * n
        assert 0 < rmse < 1e-3
        torch.testing.assert_close(
            answer.standard_error,
            torch.full_like(answer.value, rmse),
            rtol=0.1,
            atol=0,
        )
        error = (answer.value - statistic.exact(counts)) / rmse
        assert float(error.abs().max()) < 6
        assert 0.5 < float(error.square().mean()) < 2
