"""Bad input: each error is a ValueError or TypeError that names the argument and never shows the data."""

import math

import pytest
import torch
from pairwise.common import mse

from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, OneMessagePairs, RandomizedResponsePlugIn, TwoMessage
from torchdp.randomness import keyed_generator

AGGREGATE = [TwoMessage, OneMessage, RandomizedResponsePlugIn]
KINDS = [*AGGREGATE, OneMessagePairs]
STATISTIC = pairwise.absolute_difference(4)
TYPES, COUNTS = torch.tensor([0, 1, 3]), torch.tensor([5, 0, 2, 4])


def generator():
    return keyed_generator(b"bad input")


@pytest.mark.parametrize("epsilon", [0, 0.0, -1, math.nan, math.inf, "1", None, True, 1e9, [1.0, 2.0]])
@pytest.mark.parametrize("kind", KINDS)
def test_epsilon(kind, epsilon):
    with pytest.raises(ValueError, match="epsilon must"):  # before any work is done
        kind(STATISTIC, epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_statistic(kind):
    with pytest.raises(TypeError, match="statistic must be a PairwiseStatistic"):
        kind(torch.eye(3), 1.0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_integer_serves(kind, dtype):
    want = kind(STATISTIC, 1.0).estimate(TYPES, noise=SeededNoise.of(generator())).value
    assert kind(STATISTIC, 1.0).estimate(TYPES.to(dtype), noise=SeededNoise.of(generator())).value == want


@pytest.mark.parametrize(
    "counts, error, words",
    [
        (torch.tensor([1, 2, 3]), ValueError, r"summary must have shape \(4,\)"),
        (torch.ones(2, 4), ValueError, r"summary must have shape \(4,\)"),
        (torch.tensor([5, -1, 2, 2]), ValueError, "summary must hold no negative"),
        (torch.tensor([1, 0, 0, 0]), ValueError, "at least 2|at least one|n must be"),
        (torch.zeros(4), ValueError, "at least 2|at least one|n must be"),
        (torch.tensor([1.5, 2, 2, 2]), ValueError, "summary must hold whole numbers"),
        (torch.tensor([math.nan, 2, 2, 2]), ValueError, "summary must hold whole numbers"),
        (torch.tensor([True, True, True, False]), TypeError, "summary must hold whole numbers"),
        (torch.tensor([10**15, 1, 1, 1]), ValueError, "must add up to at most"),
        ([5, 0, 2, 4], TypeError, "summary must be a torch.Tensor"),
    ],
)
@pytest.mark.parametrize("kind", AGGREGATE)
def test_counts(kind, counts, error, words):
    with pytest.raises(error, match=words):
        kind(STATISTIC, 1.0).sample_estimate(counts, generator=generator())


@pytest.mark.parametrize(
    "summary, error",
    [
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), ValueError),
        (torch.tensor([0.5, 1.0, 0.0, 0.0]), ValueError),
        (torch.tensor([1.0, math.nan, 1.0, 1.0]), ValueError),
        (torch.ones(3), ValueError),
        (torch.ones(2, 4), ValueError),
        ([1.0, 1.0, 1.0, 1.0], TypeError),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_predicted_of(kind, summary, error):
    with pytest.raises(error, match="summary"):
        kind(STATISTIC, 1.0).predicted_mse(summary)
    for n in (1, 2.5, None):
        with pytest.raises(ValueError, match="n must be an integer >= 2"):
            kind(STATISTIC, 1.0).worst_mse(n)


@pytest.mark.filterwarnings("ignore:the denominator")
@pytest.mark.parametrize("k", [2, 5, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_auc_of_one_class_has_no_prediction(kind, k):
    protocol = kind(pairwise.auc(k), 1.0)
    scores = torch.rand(k, dtype=torch.float64, generator=generator()) + 0.1
    empty = torch.zeros(k, dtype=torch.float64)
    for histogram in (torch.cat([scores, empty]), torch.cat([empty, scores])):
        for n in (10, 10**5, 10**9):
            with pytest.raises(ValueError, match="one class is empty"):
                mse(protocol, histogram, n)
    rare = torch.cat([scores, empty])
    rare[-1] = scores.sum() * 1e-9
    assert math.isfinite(mse(protocol, rare, 10**12))  # a thousand among 10^12


def test_errors_show_no_data():
    secret = 987654
    for use in (
        lambda: OneMessage(STATISTIC, 1.0).estimate(torch.tensor([1, secret]), noise=SeededNoise.of(generator())),
        lambda: OneMessage(STATISTIC, 1.0).sample_estimate(
            torch.tensor([secret, -secret, 0, 0]), generator=generator()
        ),
        lambda: mse(OneMessage(STATISTIC, 1.0), torch.tensor([secret, -1.0, 0, 0]), 5),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(secret) not in str(caught.value)


@pytest.mark.parametrize("tol", [1e-300, 9e-7, 0.0, math.nan])
def test_a_tolerance_that_would_take_for_ever_is_refused(tol):
    for make in (pairwise.concordance, pairwise.gamma, pairwise.kendall):
        with pytest.raises(ValueError, match="tol must be"):
            make(3, 3, tol=tol)
