"""Shift strategies: closed forms against the matrix written out, the search against bounds, a table
of integers.
"""

import math

import pytest
import torch
from laws import float64, generator, log_ratio, normal
from responses import channel, spent_by

from torchdp import workloads
from torchdp.noise import SeededNoise
from torchdp.randomizers import (
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
    strategy_lower_bound,
)
from torchdp.randomizers.alphabet.translates import flips
from torchdp.randomness import keyed_generator

PATTERNS = torch.tensor(
    [
        [1, 1, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0, 0, 0, 1],
    ]
).bool()
SHARES = torch.tensor([3.0, 1.0, 2.0])
STRATEGY = ShiftStrategy(PATTERNS, SHARES, 7, 1.2)
# remainders by 3 and 4: (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)
PLACE = torch.tensor([0, 9, 6, 4, 1, 10])


def centred(workload):
    W = workload.dense()
    return W - W.mean(1, keepdim=True)


def worst(oracle, W):
    variances = oracle.workload_variance(W).mean(0)
    return float(variances.amax())


def test_closed_forms_are_those_of_the_matrix_written_out():
    Q = float64([[float(chance) for chance in law] for law in channel(STRATEGY)]).mT
    torch.testing.assert_close(STRATEGY.laws(torch.arange(7)).mT, Q, rtol=1e-14, atol=0)
    W = normal(2, 3, 7)
    # the decoder is right inverse to the matrix: unbiased
    V = STRATEGY.decoder(W)
    torch.testing.assert_close(V @ Q, W, rtol=0, atol=1e-11)
    stated = STRATEGY.workload_variance(W)
    torch.testing.assert_close(stated, V.square() @ Q - W.square(), rtol=1e-10, atol=1e-10)
    reports = torch.randint(0, 90, (4, 27), generator=generator())
    by_matrix = reports.double() @ STRATEGY.decoder(torch.eye(7)).mT
    totals = STRATEGY.totals({"reports": reports})
    torch.testing.assert_close(totals, by_matrix, rtol=0, atol=1e-9)
    h = float64([[0.5, 0, 0, 0.2, 0.1, 0, 0.2], [0, 0, 1, 0, 0, 0, 0]])
    torch.testing.assert_close(STRATEGY.mixed(h), h @ Q.mT, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(
        STRATEGY.gathered(reports.double()),
        reports.double() @ Q,
        rtol=1e-12,
        atol=1e-12,
    )
    # On the whole circle the decoder is the best of all for uniform types: that of the matrix.
    circle = ShiftStrategy(PATTERNS, SHARES, 9, 1.2)
    matrix = StrategyMatrix(circle.laws(torch.arange(9)).mT)
    torch.testing.assert_close(
        circle.variance.matrix,
        matrix.variance.matrix,
        rtol=1e-8,
        atol=1e-9,
    )


@pytest.mark.parametrize("k", [40, 96])
def test_tuned_for_thresholds_is_near_the_lower_bound_and_far_below_the_oracles(k):
    W = centred(workloads.prefix(k))
    found = ShiftStrategy.tuned(
        W,
        1.0,
        generator=generator(),
        steps=120,
        starts=4,
    )
    bound = strategy_lower_bound(W, 1.0) if k > 64 else 0.0
    assert found.epsilon <= 1.0
    assert bound < worst(found, W) < 0.4 * worst(SubsetSelection(k, 1.0), W)
    assert k == 40 or worst(found, W) < 1.25 * bound


def posterior(oracle, W, users):
    """n tr(G P), P the posterior covariance of a rough histogram, matrices written out."""
    k = oracle.k
    Q = oracle.laws(torch.arange(oracle.k)).mT
    place = torch.arange(k).double()
    apart = (place[:, None] - place).abs() / k
    # the rough prior: two exponential covariances
    covariance = torch.exp(-8 * apart) + 4 * torch.exp(-32 * apart)
    C = covariance / (2 * k**2)
    M = Q.mT @ (Q / Q.mean(1, keepdim=True))
    information = users * C @ M
    P = torch.linalg.solve(torch.eye(k).double() + information, C)
    return users * float(torch.tensordot(W.mT @ W, P))


def test_tuned_for_fits_has_a_small_posterior_variance(users=1_000):
    W = centred(workloads.prefix(24))
    fit = ShiftStrategy.tuned(W, 1.0, generator=generator(), users=users)
    plain = ShiftStrategy.tuned(W, 1.0, generator=generator(), users=None)
    wave = ShiftStrategy.square_wave(24, 1.0)
    least = min(posterior(each, W, users) for each in (plain, wave))
    assert posterior(fit, W, users) < 0.98 * least
    assert worst(fit, W) > worst(plain, W)
    with pytest.raises(ValueError, match=r"W\.shape"):
        ShiftStrategy.tuned(
            torch.ones(1, 300).cumsum(1),
            1.0,
            generator=generator(),
            users=users,
        )


MARKS = PATTERNS.repeat(1, 2)[:, :12] ^ (torch.arange(12) == 5)
GRID = ShiftStrategy(MARKS, SHARES, 6, 0.9, PLACE)


def test_a_torus_is_a_circle_of_places():
    """Types (i, j) of 2 x 3 on a torus of 3 x 4: all chances by hand, at differences of both
    remainders.
    """
    ratio = math.exp(GRID.epsilon)
    patterns = GRID.patterns.tolist()
    for x, (i, j) in enumerate((i, j) for i in range(2) for j in range(3)):
        law = []
        for share, pattern in zip(GRID.shares.tolist(), patterns, strict=True):
            total = sum(pattern) * (ratio - 1) + 12
            for shift in range(12):
                rows = {d for d in range(12) if d % 3 == (i - shift) % 3}
                columns = {d for d in range(12) if d % 4 == (j - shift) % 4}
                (apart,) = rows & columns
                law.append(share * (ratio if pattern[apart] else 1) / total)
        found = GRID.laws(torch.tensor([x]))[0].tolist()
        torch.testing.assert_close(found, law, rtol=1e-9, atol=0)
    Q = GRID.laws(torch.arange(6)).mT
    exact = channel(GRID)
    assert spent_by(exact) <= GRID.guarantee.epsilon
    rows = [[float(chance) for chance in law] for law in exact]
    torch.testing.assert_close(torch.tensor(rows).mT.double(), Q)


def test_messages_of_a_grid_follow_its_chances():
    """Outputs of the users of each type beside its row of the table, as z-scores."""
    users = 20_000
    for x in range(6):
        messages = GRID.randomize(torch.full((users,), x), noise=SeededNoise(x))
        counts = messages.bincount(minlength=GRID.outputs)
        chances = GRID.laws(torch.tensor([x]))[0]
        z = (counts - users * chances) / (users * chances * (1 - chances)).sqrt()
        assert float(z.abs().max()) < 4.5


def test_tuned_for_a_grid_is_nearer_the_bound_than_on_a_line():
    L = torch.ones(18, 18).double().tril()
    W = torch.kron(L, L)
    W = W - W.mean(1, keepdim=True)
    options = {"steps": 60, "starts": 3}
    on_grid = ShiftStrategy.tuned(
        W,
        1.0,
        grid=(18, 18),
        generator=generator(),
        **options,
    )
    on_line = ShiftStrategy.tuned(W, 1.0, generator=generator(), **options)
    least = strategy_lower_bound(W, 1.0)
    assert worst(on_grid, W) < min(1.8 * least, 0.85 * worst(on_line, W))
    assert on_grid.guarantee.epsilon <= 1.0
    assert on_line.guarantee.epsilon <= 1.0


def test_the_bound_by_singular_values_is_below_the_best_and_near_it_for_the_histogram():
    for k in (70, 90):
        W = torch.eye(k) - 1 / k
        for epsilon in (0.5, 3.0):
            bound = strategy_lower_bound(W, epsilon)
            variance = SubsetSelection(k, epsilon).workload_variance(W)
            least = float(variance.mean())
            assert 0.97 * least < bound <= least
            assert strategy_lower_bound(W, epsilon, torch.ones(k)) == pytest.approx(bound, rel=1e-9)


def test_beyond_64_types_a_matrix_starts_from_shifts(monkeypatch):
    W = centred(workloads.prefix(66))
    start = ShiftStrategy.tuned(
        W,
        1.0,
        generator=generator(),
        steps=100,
        starts=4,
    )
    monkeypatch.setattr(ShiftStrategy, "tuned", lambda W, epsilon, **options: start)
    strategy = StrategyMatrix.tuned(W, 1.0, generator=generator(), steps=80)
    largest = worst(strategy, W)
    assert largest < worst(start, W)
    assert largest < 1.15 * strategy_lower_bound(W, 1.0)


def test_types_with_the_same_answers_need_no_shifts():
    with pytest.raises(ValueError, match="needs no shifts"):
        ShiftStrategy.tuned(torch.ones(2, 8), 1.0, generator=generator())


def test_guarantee_each_cell_of_the_table_has_its_integers(planted):
    """The first and the last integer of each (pattern, inside or outside), of 2^63."""
    patterns = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
    strategy = ShiftStrategy(patterns, torch.tensor([0.3, 0.6, 0.1]), 4, 1.0)
    sums = strategy.table.cumsum(0)
    ends = sums[:-1].tolist()
    for number, cell in [
        (0, 0),
        *((e - 1, j) for j, e in enumerate(ends)),
        *((e, j + 1) for j, e in enumerate(ends)),
    ]:
        for x in range(4):
            integers = planted(integers=torch.tensor(number))
            y = int(strategy.randomize_unchecked(torch.tensor([x]), integers)[0])
            shift = y % 6
            inside = bool(patterns[y // 6, (x - shift) % 6])
            assert y // 6 == cell % 3
            assert inside == (cell < 3)


def found(W, epsilon):
    return flips(W - W.mean(1, keepdim=True), epsilon, keyed_generator(b"walsh"))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(
    "workload",
    [
        workloads.marginal_tables(4, 2),
        workloads.parities(5, 1),
    ],
)
def test_guarantee_every_output_spends_epsilon_at_most_and_types_are_alike(workload, epsilon):
    W = workload.dense()
    Q = found(W, epsilon)
    assert float(Q.min()) > 0
    assert log_ratio(Q) <= epsilon * (1 + 1e-12)
    torch.testing.assert_close(
        Q.sum(0),
        torch.ones(len(Q.mT), dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )
    centred = W - W.mean(1, keepdim=True)
    variance = StrategyMatrix(Q).workload_variance(centred).mean(0)
    assert float(variance.amax() / variance.amin()) < 1 + 1e-6
    law = Q.mean(1)
    # diagonal in the parities
    M = (Q / law[:, None]).mT @ Q
    bits = W.shape[1].bit_length() - 1
    signs = workloads.parities(bits, 9).dense()
    turned = signs @ M @ signs.mT
    beside = turned - turned.diagonal().diag()
    assert float(beside.abs().max()) < 1e-9 * float(turned.abs().max())


def test_other_workloads_are_left_to_others():
    assert found(workloads.prefix(8).dense(), 1.0) is None
    # diagonal in every orthonormal basis
    assert found(workloads.identity(8).dense(), 1.0) is not None
