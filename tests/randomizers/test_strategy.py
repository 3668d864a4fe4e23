"""Strategy matrices: measured epsilon, optimal unbiased decoders, rank-deficient matrices."""

import math

import pytest
import torch
from laws import float64, generator, normal
from responses import response

from torchdp import workloads
from torchdp.protocol import Tally
from torchdp.randomizers import RandomizedResponse, StrategyMatrix


def random_matrix(outputs=12, k=5, seed=0):
    rows = normal(outputs, k, seed=seed).exp()
    return rows / rows.sum(0)


def deficient():
    """Four outputs, five types, rank 3: the last two types look alike, and so do the first two."""
    Q = random_matrix(4, 3, seed=2)
    return Q[:, [0, 0, 1, 2, 2]]


@pytest.mark.parametrize("epsilon", [0.01, 1, 5, 20])
def test_guarantee_strategy_matrix_exactly_epsilon_ldp(epsilon):
    strategy = StrategyMatrix(response(4, epsilon))
    assert strategy.epsilon == pytest.approx(epsilon, rel=1e-11, abs=1e-14)
    Q = random_matrix()
    strategy = StrategyMatrix(Q)
    ratio = float((Q[:, :, None] / Q[:, None]).max())
    assert strategy.epsilon == pytest.approx(math.log(ratio), rel=1e-12)
    assert strategy.guarantee.epsilon == strategy.epsilon
    assert strategy.guarantee.exact is True
    # One entry with a little more weight on one type is seen.
    largest = (Q / Q.amin(1, keepdim=True)).argmax()
    y, x = divmod(int(largest), 5)
    Q[y, x] *= 1.001
    assert StrategyMatrix(Q / Q.sum(0)).epsilon > strategy.epsilon + 1e-4


def test_randomized_response_as_a_matrix_is_randomized_response():
    strategy = StrategyMatrix(response(6, 1.3))
    oracle = RandomizedResponse(6, 1.3)
    W = normal(4, 6)
    torch.testing.assert_close(
        strategy.workload_variance(W),
        oracle.workload_variance(W),
        rtol=1e-11,
        atol=0,
    )
    torch.testing.assert_close(
        strategy.covariance(2),
        oracle.covariance(2),
        rtol=1e-10,
        atol=1e-12,
    )
    tally = Tally(19, {"reports": torch.tensor([5, 0, 3, 9, 1, 1])})
    torch.testing.assert_close(
        strategy.totals(tally),
        oracle.totals(tally),
        rtol=1e-11,
        atol=1e-11,
    )
    assert strategy.bits_per_user == 3
    assert strategy.outputs == 6


@pytest.mark.parametrize(
    "prior",
    [
        None,
        [0.1, 0.2, 0.3, 0.3, 0.1],
        [5.0, 1.0, 1.0, 1.0, 1.0],
    ],
)
def test_decoder_is_unbiased_and_of_least_variance_under_the_prior(prior):
    prior = None if prior is None else float64(prior)
    strategy = StrategyMatrix(random_matrix(), prior)
    W = normal(3, 5)
    V = strategy.decoder(W)
    Q = strategy.matrix
    torch.testing.assert_close(V @ Q, W, rtol=0, atol=1e-11)
    by_hand = V.square() @ Q - W.square()
    torch.testing.assert_close(strategy.workload_variance(W), by_hand, rtol=1e-9, atol=1e-11)
    # the rows of the matrix span five of twelve dimensions
    _, _, vectors = torch.linalg.svd(Q.mT)
    # N Q = 0: another unbiased decoder
    free = vectors[5:]
    torch.testing.assert_close(free @ Q, torch.zeros(7, 5).double(), rtol=0, atol=1e-12)
    # the normal equations: V diag(law) is in the row space's image
    law = (Q @ strategy.prior)[:, None]
    torch.testing.assert_close(
        (V * law.mT) @ free.mT,
        torch.zeros(3, 7).double(),
        rtol=0,
        atol=1e-11,
    )


def test_a_matrix_of_low_rank_answers_what_is_in_its_row_space_and_refuses_the_rest():
    strategy = StrategyMatrix(deficient())
    inside = float64([[1.0, 1, 0, 0, 0], [0, 0, 0, 2, 2], [1, 1, 1, 1, 1]])
    V = strategy.decoder(inside)
    torch.testing.assert_close(V @ strategy.matrix, inside, rtol=0, atol=1e-11)
    variance = strategy.workload_variance(inside)
    assert (variance[:2] > 0).all()
    assert float(variance[2].abs().max()) < 1e-11
    tally = strategy.sample_tally(
        torch.tensor([10**6, 0, 3 * 10**6, 500, 7]),
        generator=generator(),
    )
    torch.testing.assert_close(strategy.answers(tally, inside), V @ tally["reports"].double())
    outside = torch.eye(5, dtype=torch.float64)[:1]
    for call in (
        lambda: strategy.decoder(outside),
        lambda: strategy.workload_variance(outside),
        lambda: strategy.answers(tally, outside),
        lambda: strategy.analyse(tally),
        lambda: strategy.covariance(0),
    ):
        with pytest.raises(ValueError, match=r"^W .*row space"):
            call()


def test_matrix_is_kept_in_float64_and_rescaled():
    strategy = StrategyMatrix(response(4, 1.0).float() * (1 + 1e-10))
    assert strategy.matrix.dtype == torch.float64
    torch.testing.assert_close(
        strategy.matrix.sum(0),
        torch.ones(4).double(),
        rtol=0,
        atol=1e-15,
    )
    assert strategy.prior.tolist() == [0.25] * 4
    with torch.enable_grad():
        assert (
            not StrategyMatrix(response(4, 1.0).requires_grad_())
            .workload_variance(torch.eye(4))
            .requires_grad
        )


def test_marginals_of_six_bits_are_searched_from_random_subsets():
    """Shifts follow an order of types, and marginals have none: 1.789 from shifts, 1.716 now."""
    W = workloads.marginal_tables(6, 2).dense()
    strategy = StrategyMatrix.tuned(W, 2.0, generator=generator(3))
    variance = strategy.workload_variance(W).mean(0)
    between = 1.76
    assert float(variance.max()) ** 0.5 < between
    assert strategy.epsilon <= 2.0
