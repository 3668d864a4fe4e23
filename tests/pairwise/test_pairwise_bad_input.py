"""Bad input: each error is a ValueError or TypeError that names the argument and never shows the data."""

import math

import pytest
import torch

from pairwise.common import mse, responses
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, PairReports, TwoMessage
from torchdp.randomness import keyed_generator

AGGREGATE = [TwoMessage, OneMessage, responses]
KINDS = [*AGGREGATE, PairReports]
STATISTIC = pairwise.absolute_difference(4)
TYPES, COUNTS = torch.tensor([0, 1, 3]), torch.tensor([5, 0, 2, 4])


def generator():
    return keyed_generator(b"bad input")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_integer_serves(kind, dtype):
    want = kind(STATISTIC, 1.0).estimate(TYPES, noise=SeededNoise.of(generator())).value
    assert kind(STATISTIC, 1.0).estimate(TYPES.to(dtype), noise=SeededNoise.of(generator())).value == want


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
