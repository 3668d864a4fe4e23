"""Reports decoded for the data that they show: as least squares say, never worse than decoded
once.
"""

import math

import numpy as np
import pytest
import torch
from laws import counts_of, float64, sampled

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.queries import LocalOracle, choose
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator


def strategy(k, outputs, epsilon, seed=b"adaptive"):
    """Random extreme rows and those of randomized response, which let the columns add up."""
    generator = keyed_generator(seed)
    small = torch.rand(outputs, k, generator=generator, dtype=torch.float64) < 0.5
    rows = torch.where(small, 1.0, math.exp(-epsilon))
    rows = rows / rows.sum(0)
    return StrategyMatrix(torch.cat([rows, rows.flip(0)]) / 2)


def squares(protocol, counts, trials=2_000, seed=b"draws"):
    found = protocol.sample_estimate(
        counts, generator=keyed_generator(seed), sample_shape=(trials,)
    )
    errors = (found.value - protocol.exact(counts)).square()
    return found, errors.mean(-1)


@pytest.mark.parametrize("outputs", [3, 9])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 40.0])
def test_decoding_ends_for_every_strategy_and_histogram(epsilon, outputs):
    """M has entries of 1 and of e^epsilon where all users hold one type: rounded, it is not
    positive definite.
    """
    own = torch.eye(3, dtype=torch.float64).repeat(outputs // 3, 1)
    Q = 1 + own * math.expm1(epsilon)
    protocol = LocalOracle(torch.eye(3), StrategyMatrix(Q / Q.sum(0)), adapted=True)
    for counts in torch.tensor([[200, 0, 0], [1, 0, 0], [100, 100, 0]]):
        found = protocol.sample_estimate(counts, **sampled(5, b"one type"))
        predicted = protocol.predicted_mse(counts)
        assert bool(found.value.isfinite().all() and predicted.isfinite().all())
        q = math.exp(-epsilon) / (1 + 2 * math.exp(-epsilon))
        p = 1 - 2 * q
        shares = counts / counts.sum()
        chance = q * (1 - q) + (p - q) * (1 - p - q) * shares
        exact = chance / (p - q) ** 2 / counts.sum()
        # no more than decoded once
        assert bool((predicted <= exact * (1 + 1e-6) + 1e-9).all())


def test_values_and_errors_are_those_of_weighted_least_squares():
    Q = strategy(5, 9, 1.0)
    W = workloads.prefix(5).dense()
    counts = torch.tensor([400, 0, 30, 500, 70])
    tally = LocalOracle(W, Q, adapted=True).sample_tally(
        counts, generator=keyed_generator(b"a tally")
    )
    reports = tally["reports"]
    found = LocalOracle(W, Q, adapted=True).analyse(tally)
    f = (reports / reports.sum()).double().numpy()
    q = Q.matrix.numpy()
    client = LocalOracle(torch.eye(5), Q)
    plain = client.analyse(tally).value.numpy()
    shifts = np.linspace(-2, 2, 400_001)
    shift = min(shifts, key=lambda t: abs(np.maximum(plain - t, 0).sum() - 1))
    h = np.maximum(plain - shift, 0)
    # weights by the variance of each report's count
    root = 1 / np.sqrt(q @ h)
    answer, *_ = np.linalg.lstsq(q * root[:, None], f * root, rcond=None)
    np.testing.assert_allclose(found.value, W.numpy() @ answer, atol=2e-5)
    V = W.numpy() @ np.linalg.pinv(q * root[:, None]) * root
    variance = (V**2 @ q - W.numpy() ** 2) @ h
    # the variance is told for each answer
    away = W.numpy() @ h - found.value.numpy()
    moved = found.parts.variance + found.parts.slope * away[:, None]
    at_h = moved[:-1, 0] * tally.n
    np.testing.assert_allclose(at_h, variance[:-1], rtol=1e-3)
    np.testing.assert_allclose(
        found.standard_error[:-1] ** 2 * tally.n,
        variance[:-1],
        rtol=0.02,
    )
    assert float(found.value[-1]) == pytest.approx(1, abs=1e-12)
    assert float(found.standard_error[-1]) < 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("shape", ["even", "one frequent", "falling"])
@pytest.mark.parametrize("n", [40, 4_000])
def test_it_errs_less_than_the_plain_decoder_and_as_predicted(shape, epsilon, n):
    k = 12
    one = torch.eye(k)[4] * 40 + 0.05
    h = {
        "even": torch.ones(k),
        "one frequent": one,
        "falling": 0.6 ** torch.arange(k),
    }[shape]
    counts = counts_of(h, n)
    W = workloads.prefix(k).dense()[:-1]
    Q = StrategyMatrix.tuned(
        W,
        epsilon,
        generator=keyed_generator(b"tuned"),
        steps=60,
    )
    plain = LocalOracle(W, Q)
    again = LocalOracle(W, Q, adapted=True)
    _, once = squares(plain, counts)
    # of the same tallies
    found, twice = squares(again, counts)
    apart = twice - once
    assert float(apart.mean()) < 3 * float(apart.std()) / math.sqrt(len(apart))
    predicted = float(again.predicted_mse(counts).mean())
    assert predicted <= float(plain.predicted_mse(counts).mean()) * (1 + 1e-9)
    assert float(twice.mean()) == pytest.approx(predicted, rel=0.25 if n < 100 else 0.08)
    assert float(found.standard_error.square().mean()) == pytest.approx(
        predicted, rel=0.25 if n < 100 else 0.08
    )
    bias = (found.value - again.exact(counts)).mean(0)
    off = bias / (found.value.std(0) / math.sqrt(len(apart)))
    assert n < 100 or float(off.abs().max()) < 4.5
    if (shape, epsilon, n) == ("one frequent", 4.0, 4_000):
        # what it is for
        assert float(twice.mean()) < 0.8 * float(once.mean())


def test_parities_are_divided_by_how_many_were_asked(brief):
    """One parity a user: the share of those asked, as in InpHT, not of all users."""
    k = 32
    n = 20_000
    W = workloads.parities(5, 1).dense()
    best = choose(W, n, 1.0, objective=Objective.MEAN)
    chosen = next(one.protocol for one in best.candidates if one.name == "one parity a user")
    assert chosen.adapted
    counts = torch.zeros(k, dtype=torch.int64)
    # every parity is 1 or -1
    counts[5] = n
    found, errors = squares(chosen, counts, 400)
    _, plain = squares(LocalOracle(W, chosen.client), counts, 400)
    assert float(errors.mean()) < 0.9 * float(plain.mean())
    assert float(errors.mean()) == pytest.approx(
        float(chosen.predicted_mse(counts).mean()), rel=0.15
    )
    # not the parity of no bits
    unknown = found.standard_error[0] > 1e-9
    error = (found.value - chosen.exact(counts)).abs()
    covered = (error < 1.96 * found.standard_error)[:, unknown].double().mean()
    assert 0.92 < float(covered) < 0.97


def test_reports_of_low_rank_answer_what_they_can():
    keep = float64([[0.7, 0.7, 0.3, 0.3], [0.3, 0.3, 0.7, 0.7]])
    halves = LocalOracle(
        torch.tensor([[1.0, 1.0, 0.0, 0.0]]),
        StrategyMatrix(keep),
        adapted=True,
    )
    _, errors = squares(halves, torch.tensor([30, 0, 5, 25]))
    expected = float(halves.predicted_mse(torch.tensor([30, 0, 5, 25])))
    assert float(errors.mean()) == pytest.approx(expected, rel=0.1)
