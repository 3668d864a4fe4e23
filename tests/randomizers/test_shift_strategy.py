"""Shift strategies: closed forms against the matrix written out, the search against bounds, messages against law."""

import itertools
import math

import pytest
import torch
from channels import channel, spent_by
from laws import generator
from scipy import stats

from torchdp import workloads
from torchdp.noise import SeededNoise
from torchdp.randomizers import ShiftStrategy, StrategyMatrix, SubsetSelection, strategy_lower_bound
from torchdp.randomizers.alphabet.translates import Torus

PATTERNS = torch.tensor(
    [[1, 1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0, 0, 1]]
).bool()
SHARES = torch.tensor([3.0, 1.0, 2.0])
STRATEGY = ShiftStrategy(PATTERNS, SHARES, 7, 1.2)
PLACE = torch.tensor([0, 9, 6, 4, 1, 10])  # remainders by 3 and 4: (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)


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


def test_tuned_for_fits_has_a_small_posterior_variance(users=1_000):
    W = centred(workloads.prefix(24))
    fit, plain = (ShiftStrategy.tuned(W, 1.0, generator=generator(), users=each) for each in (users, None))
    least = min(posterior(each, W, users) for each in (plain, ShiftStrategy.square_wave(24, 1.0)))
    assert posterior(fit, W, users) < 0.98 * least
    assert worst(fit, W) > worst(plain, W)
    with pytest.raises(ValueError, match=r"W\.shape"):
        ShiftStrategy.tuned(torch.ones(1, 300).cumsum(1), 1.0, generator=generator(), users=users)


GRID = ShiftStrategy(PATTERNS[:, :9].repeat(1, 2)[:, :12] ^ (torch.arange(12) == 5), SHARES, 6, 0.9, PLACE)


def test_a_torus_is_a_circle_of_places():
    """Types (i, j) of 2 x 3 on a torus of 3 x 4: all chances by hand, at differences of both remainders."""
    ratio, patterns = math.exp(GRID.epsilon), GRID.patterns.tolist()
    for x, (i, j) in enumerate((i, j) for i in range(2) for j in range(3)):
        law = []
        for share, pattern in zip(GRID.shares.tolist(), patterns, strict=True):
            for shift in range(12):
                (apart,) = (d for d in range(12) if d % 3 == (i - shift) % 3 and d % 4 == (j - shift) % 4)
                law.append(share * (ratio if pattern[apart] else 1) / (sum(pattern) * (ratio - 1) + 12))
        torch.testing.assert_close(GRID.laws(torch.tensor([x]))[0].tolist(), law, rtol=1e-9, atol=0)
    Q = GRID.laws(torch.arange(6)).mT
    exact = channel(GRID)
    assert spent_by(exact) <= GRID.guarantee.epsilon
    torch.testing.assert_close(torch.tensor([[float(c) for c in law] for law in exact]).mT.double(), Q)
    W = torch.randn(3, 6, dtype=torch.float64, generator=generator())
    V = GRID.decoder(W)
    torch.testing.assert_close(V @ Q, W, rtol=0, atol=1e-10)
    torch.testing.assert_close(GRID.workload_variance(W), V.square() @ Q - W.square(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(GRID.mixed(torch.eye(6).double()), Q.mT, rtol=1e-12, atol=1e-15)
    counts = torch.bincount(GRID.randomize_unchecked(torch.full((200_000,), 4), SeededNoise(2)), minlength=36)
    assert stats.chisquare(counts.numpy(), 200_000 * Q[:, 4].numpy()).pvalue > 1e-6


@pytest.mark.parametrize(("grid", "sizes"), [((5,), (7,)), ((2, 3), (4, 4)), ((2, 2, 2), (3, 3, 3))])
def test_places_and_prices_on_a_torus_are_those_written_out(grid, sizes):
    k = math.prod(grid)
    W = torch.randn(4, k, dtype=torch.float64, generator=generator())
    torus = Torus.merged(W - W.mean(1, keepdim=True), 0.3, generator(), grid, sizes, 1, None)
    points = list(itertools.product(*(range(side) for side in grid)))
    assert [tuple(int(p) % size for size in torus.sizes) for p in torus.place] == points
    assert all(a >= b for a, b in zip(torus.sizes, sizes, strict=True))
    patterns, shares = torus.rounded(torus.starts(2))
    chances = 0.3 + 0.7 * patterns.double()
    Q = torch.cat(
        [
            u * (c / c.sum())[(torus.place - torch.arange(torus.size)[:, None]) % torus.size]
            for u, c in zip(shares / shares.sum(), chances, strict=True)
        ]
    )
    law = (shares / shares.sum() / torus.size).repeat_interleave(torus.size)
    M = Q.mT @ (Q / law[:, None])
    exact = float((torus.rows.mT @ torus.rows * torch.linalg.inv(M)).sum())
    assert torus.variance((patterns, shares)) == pytest.approx(exact, rel=1e-6)
    spectrum = torch.fft.rfft(M.new_tensor([1.0] + [0.0] * (torus.size - 1))).real + 1
    w = torch.randn(2, k, dtype=torch.float64, generator=generator())
    torch.testing.assert_close(
        torus._conjugate(spectrum[None], w), torus._factored(spectrum[None], w), rtol=1e-3, atol=1e-3
    )


def test_tuned_for_a_grid_is_nearer_the_bound_than_on_a_line():
    L = torch.ones(18, 18).tril().double()
    W = torch.kron(L, L)
    W = W - W.mean(1, keepdim=True)
    found = [
        ShiftStrategy.tuned(W, 1.0, generator=generator(), steps=60, starts=3, grid=grid)
        for grid in ((18, 18), None)
    ]
    least = strategy_lower_bound(W, 1.0, program=False)
    assert worst(found[0], W) < min(1.8 * least, 0.85 * worst(found[1], W))
    assert all(one.guarantee.epsilon <= 1.0 for one in found)


def test_rows_start_a_better_matrix():
    W = centred(workloads.prefix(24))
    shifts = ShiftStrategy.tuned(W, 1.0, generator=generator(), steps=80, starts=3)
    options = {"generator": generator(), "steps": 40, "exchanges": 2}
    polished = StrategyMatrix.tuned(W, 1.0, start=shifts.rows, **options)
    assert polished.epsilon <= 1.0
    assert worst(polished, W) < min(worst(shifts, W), worst(StrategyMatrix.tuned(W, 1.0, **options), W))
    with pytest.raises(ValueError, match="start must have at least"):
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
