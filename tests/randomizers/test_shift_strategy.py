"""Shift strategies: closed forms against the matrix written out, the search against bounds, messages against law."""

import pytest
import torch
from channels import channel
from laws import generator
from scipy import stats

from torchdp import workloads
from torchdp.noise import SeededNoise
from torchdp.randomizers import ShiftStrategy, StrategyMatrix, SubsetSelection, strategy_lower_bound

PATTERNS = torch.tensor(
    [[1, 1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0, 0, 1]]
).bool()
SHARES = torch.tensor([3.0, 1.0, 2.0])
STRATEGY = ShiftStrategy(PATTERNS, SHARES, 7, 1.2)


def centred(workload):
    W = workload.dense()
    return W - W.mean(1, keepdim=True)


def worst(oracle, W):
    return float(oracle.workload_variance(W).mean(0).amax())


def test_closed_forms_are_those_of_the_matrix_written_out():
    Q = torch.tensor([[float(chance) for chance in law] for law in channel(STRATEGY)], dtype=torch.float64).mT
    torch.testing.assert_close(STRATEGY.laws(torch.arange(7)).mT, Q, rtol=1e-14, atol=0)
    W = torch.randn(2, 3, 7, dtype=torch.float64, generator=generator())
    V = STRATEGY.decoder(W)
    torch.testing.assert_close(V @ Q, W, rtol=0, atol=1e-11)
    torch.testing.assert_close(STRATEGY.workload_variance(W), V.square() @ Q - W.square(), rtol=1e-10, atol=1e-10)
    reports = torch.randint(0, 90, (4, 27), generator=generator())
    torch.testing.assert_close(
        STRATEGY.totals({"reports": reports}),
        reports.double() @ STRATEGY.decoder(torch.eye(7)).mT,
        rtol=0,
        atol=1e-9,
    )
    h = torch.tensor([[0.5, 0, 0, 0.2, 0.1, 0, 0.2], [0, 0, 1, 0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(STRATEGY.mixed(h), h @ Q.mT, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(STRATEGY.gathered(reports.double()), reports.double() @ Q, rtol=1e-12, atol=1e-12)
    # On the whole circle the decoder is the best of all for uniform types: that of the matrix.
    circle = ShiftStrategy(PATTERNS, SHARES, 9, 1.2)
    matrix = StrategyMatrix(circle.laws(torch.arange(9)).mT)
    torch.testing.assert_close(circle.variance.matrix, matrix.variance.matrix, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("x", [0, 6])
def test_messages_follow_the_law(x):
    n = 300_000
    counts = torch.bincount(
        STRATEGY.randomize_unchecked(torch.full((n,), x), SeededNoise(2)), minlength=27
    ).numpy()
    law = STRATEGY.laws(torch.tensor([x, 3])).numpy()
    assert stats.chisquare(counts, n * law[0]).pvalue > 1e-6 > stats.chisquare(counts, n * law[1]).pvalue


@pytest.mark.parametrize("k", [40, 96])
def test_tuned_for_thresholds_is_near_the_lower_bound_and_far_below_the_oracles(k):
    W = centred(workloads.prefix(k))
    found = ShiftStrategy.tuned(W, 1.0, generator=generator(), steps=120, starts=4)
    bound = strategy_lower_bound(W, 1.0) if k > 64 else 0.0
    assert found.epsilon <= 1.0
    assert bound < worst(found, W) < 0.4 * worst(SubsetSelection(k, 1.0), W)
    assert k == 40 or worst(found, W) < 1.25 * bound


def posterior(oracle, W, users):
    """n tr(G P), P the posterior covariance of a rough histogram, matrices written out."""
    k, Q = oracle.k, oracle.laws(torch.arange(oracle.k)).mT
    apart = (torch.arange(k)[:, None] - torch.arange(k)).abs().double() / k
    C = (torch.exp(-8 * apart) + 4 * torch.exp(-32 * apart)) / (2 * k**2)
    M = Q.mT @ (Q / Q.mean(1, keepdim=True))
    P = torch.linalg.solve(torch.eye(k).double() + users * C @ M, C)
    return users * float((W.mT @ W * P).sum())


@pytest.mark.parametrize("users", [300, 10_000])
def test_tuned_for_fits_has_a_small_posterior_variance(users):
    W = centred(workloads.prefix(32))
    fit, plain = (ShiftStrategy.tuned(W, 1.0, generator=generator(), users=each) for each in (users, None))
    least = min(posterior(each, W, users) for each in (plain, ShiftStrategy.square_wave(32, 1.0)))
    assert posterior(fit, W, users) < 0.98 * least
    assert worst(fit, W) > worst(plain, W)
    with pytest.raises(ValueError, match=r"W\.shape"):
        ShiftStrategy.tuned(torch.ones(1, 300).cumsum(1), 1.0, generator=generator(), users=users)


def test_rows_start_a_better_matrix():
    W = centred(workloads.prefix(24))
    shifts = ShiftStrategy.tuned(W, 1.0, generator=generator(), steps=80, starts=3)
    options = {"generator": generator(), "steps": 40, "exchanges": 2}
    polished = StrategyMatrix.tuned(W, 1.0, start=shifts.rows, **options)
    assert polished.epsilon <= 1.0
    assert worst(polished, W) < min(worst(shifts, W), worst(StrategyMatrix.tuned(W, 1.0, **options), W))
    with pytest.raises(ValueError, match="start must be of type bool and shape"):
        StrategyMatrix.tuned(W, 1.0, start=shifts.rows[:30], **options)


def test_the_bound_by_singular_values_is_below_the_best_and_near_it_for_the_histogram():
    for k in (70, 90):
        W = torch.eye(k) - 1 / k
        for epsilon in (0.5, 3.0):
            bound = strategy_lower_bound(W, epsilon)
            least = float(SubsetSelection(k, epsilon).workload_variance(W).mean())
            assert 0.97 * least < bound <= least
            assert strategy_lower_bound(W, epsilon, torch.ones(k)) == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("queries", [1, 2])
@torch.no_grad()
def test_few_queries_still_tell_all_types_apart_where_gradients_are_off(queries):
    W = torch.randn(queries, 40, dtype=torch.float64, generator=generator())
    assert ShiftStrategy.tuned(W, 2.0, generator=generator(), steps=20, starts=2).variance.matrix.isfinite().all()


def test_beyond_64_types_a_matrix_starts_from_shifts():
    W = centred(workloads.prefix(66))
    found = StrategyMatrix.tuned(W, 1.0, generator=generator(), steps=80, exchanges=1)
    assert worst(found, W) < worst(ShiftStrategy.tuned(W, 1.0, generator=generator()), W)
    assert worst(found, W) < 1.15 * strategy_lower_bound(W, 1.0)


def test_guarantee_each_cell_of_the_table_has_its_integers(planted):
    """The first and the last integer of each (pattern, inside or outside), of 2^63."""
    patterns = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
    strategy = ShiftStrategy(patterns, torch.tensor([0.3, 0.6, 0.1]), 4, 1.0)
    ends = strategy.table.cumsum(0)[:-1].tolist()
    for number, cell in [
        (0, 0),
        *((e - 1, j) for j, e in enumerate(ends)),
        *((e, j + 1) for j, e in enumerate(ends)),
    ]:
        for x in range(4):
            y = int(strategy.randomize_unchecked(torch.tensor([x]), planted(integers=torch.tensor(number)))[0])
            inside = bool(patterns[y // 6, (x - y % 6) % 6])
            assert (y // 6, inside) == (cell % 3, cell < 3)
