"""Bad input: each error is a ValueError or TypeError that names the argument and never shows the data."""

import math

import pytest
import torch

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


@pytest.mark.parametrize(
    "types, error, words",
    [
        (torch.tensor([0, 4]), ValueError, r"types must lie in \[0, 4\)"),
        (torch.tensor([-1, 2]), ValueError, r"types must lie in \[0, 4\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "types must be an integer tensor"),
        (torch.tensor([True, False]), TypeError, "types must be an integer tensor"),
        (torch.tensor([[0, 1], [1, 2]]), ValueError, r"types must have shape \(n,\)"),
        (torch.tensor(1), ValueError, r"types must have shape \(n,\)"),
        (torch.tensor([1]), ValueError, "n >= 2"),
        (torch.tensor([], dtype=torch.int64), ValueError, "n >= 2"),
        ([0, 1, 2], TypeError, "types must be a torch.Tensor"),
        (None, TypeError, "types must be a torch.Tensor"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_types(kind, types, error, words):
    with pytest.raises(error, match=words):
        kind(STATISTIC, 1.0).estimate(types, noise=SeededNoise.of(generator()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_integer_serves(kind, dtype):
    want = kind(STATISTIC, 1.0).estimate(TYPES, noise=SeededNoise.of(generator())).value
    assert kind(STATISTIC, 1.0).estimate(TYPES.to(dtype), noise=SeededNoise.of(generator())).value == want


@pytest.mark.parametrize(
    "counts, error, words",
    [
        (torch.tensor([1, 2, 3]), ValueError, r"counts must have shape \(4,\)"),
        (torch.ones(2, 4), ValueError, r"counts must have shape \(4,\)"),
        (torch.tensor([5, -1, 2, 2]), ValueError, "counts must hold no negative"),
        (torch.tensor([1, 0, 0, 0]), ValueError, "counts must add up to at least 2"),
        (torch.zeros(4), ValueError, "counts must add up to at least 2"),
        (torch.tensor([1.5, 2, 2, 2]), ValueError, "counts must hold whole numbers"),
        (torch.tensor([math.nan, 2, 2, 2]), ValueError, "counts must hold whole numbers"),
        (torch.tensor([True, True, True, False]), TypeError, "counts must hold whole numbers"),
        (torch.tensor([10**15, 1, 1, 1]), ValueError, "counts must add up to at most"),
        ([5, 0, 2, 4], TypeError, "counts must be a torch.Tensor"),
    ],
)
@pytest.mark.parametrize("kind", AGGREGATE)
def test_counts(kind, counts, error, words):
    with pytest.raises(error, match=words):
        kind(STATISTIC, 1.0).estimate_histogram(counts, generator=generator())


@pytest.mark.parametrize(
    "histogram, error",
    [
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), ValueError),
        (torch.zeros(4), ValueError),
        (torch.tensor([1.0, math.nan, 1.0, 1.0]), ValueError),
        (torch.tensor([1.0, math.inf, 1.0, 1.0]), ValueError),
        (torch.ones(3), ValueError),
        (torch.ones(2, 4), ValueError),
        ([1.0, 1.0, 1.0, 1.0], TypeError),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_histogram(kind, histogram, error):
    with pytest.raises(error, match="histogram"):
        kind(STATISTIC, 1.0).predicted_mse(histogram, 100)


@pytest.mark.parametrize("n", [1, 0, -5, 2.5, "10", None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_number_of_users(kind, n):
    with pytest.raises(ValueError, match="n must be an integer >= 2"):
        kind(STATISTIC, 1.0).predicted_mse(torch.ones(4), n)


def test_prediction_does_not_depend_on_the_scale_of_the_histogram():
    for kind in KINDS:
        protocol = kind(STATISTIC, 1.0)
        want = protocol.predicted_mse(COUNTS, 50)
        assert protocol.predicted_mse(COUNTS.double() * 1e-7, 50) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_global_generator_is_untouched(kind):
    before = torch.random.get_rng_state()
    protocol = kind(STATISTIC, 1.0)
    protocol.estimate(TYPES, noise=SeededNoise.of(generator()))
    if kind in AGGREGATE:
        protocol.estimate_histogram(COUNTS, generator=generator(), sample_shape=(3,))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("shape", [(-1,), (2.5,), ("2",), (True,)])
@pytest.mark.parametrize("kind", AGGREGATE)
def test_sample_shape(kind, shape):
    with pytest.raises(ValueError, match="sample_shape must be an integer >= 0"):
        kind(STATISTIC, 1.0).estimate_histogram(COUNTS, generator=generator(), sample_shape=shape)


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
                protocol.predicted_mse(histogram, n)
    rare = torch.cat([scores, empty])
    rare[-1] = scores.sum() * 1e-9
    assert math.isfinite(protocol.predicted_mse(rare, 10**12))  # a thousand among 10^12


def test_errors_show_no_data():
    secret = 987654
    for use in (
        lambda: OneMessage(STATISTIC, 1.0).estimate(torch.tensor([1, secret]), noise=SeededNoise.of(generator())),
        lambda: OneMessage(STATISTIC, 1.0).estimate_histogram(
            torch.tensor([secret, -secret, 0, 0]), generator=generator()
        ),
        lambda: OneMessage(STATISTIC, 1.0).predicted_mse(torch.tensor([secret, -1.0, 0, 0]), 5),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(secret) not in str(caught.value)
