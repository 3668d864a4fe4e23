"""Kernels of low rank: the bias in every prediction, and less error at the same privacy."""

import pytest
import torch
from pairwise.common import mse

from torchdp import pairwise
from torchdp.pairwise import OneMessage, SubsetPairs
from torchdp.pairwise.low_rank import fewer_dimensions, low_rank
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

K, USERS, EPSILON = 16, 1000, 0.5
POSITION = torch.linspace(0, 1, K, dtype=torch.float64)
KERNEL = torch.exp(-(POSITION[:, None] - POSITION).square() / (2 * 0.15**2))
PEAKED = torch.exp(-((POSITION - 0.3) / 0.12).square() / 2)
BASE = pairwise.from_kernel(KERNEL)


def test_training_beats_truncation_and_both_beat_the_kernel_itself():
    exact = mse(OneMessage(BASE, EPSILON), PEAKED, USERS)
    cut = fewer_dimensions(BASE, USERS, EPSILON, prior=PEAKED, steps=0)
    trained = fewer_dimensions(BASE, USERS, EPSILON, prior=PEAKED, steps=60)
    worst = [
        mse(OneMessage(each, EPSILON), PEAKED, USERS)
        - OneMessage(each, EPSILON).bias(PEAKED / PEAKED.sum() * USERS) ** 2
        + each.distortion**2
        for each in (cut, trained)
    ]
    assert worst[1] < 0.95 * worst[0] < 0.95 * exact
    assert trained.dim < BASE.dim and trained.approximates is BASE
    assert mse(OneMessage(trained, EPSILON), PEAKED, USERS) < 0.8 * exact


def test_many_users_keep_the_kernel_itself():
    assert fewer_dimensions(BASE, 10**12, 4.0, steps=0) is BASE


def test_monte_carlo_finds_the_predicted_error_with_its_bias():
    statistic = low_rank(BASE, 2, 40, 6.0, steps=0)
    counts = torch.zeros(K, dtype=torch.int64)
    counts[3], counts[9] = 30, 10
    protocol, generator = OneMessage(statistic, 8.0), keyed_generator(b"bias")
    found = protocol.sample_estimate(counts, generator=generator, sample_shape=(20_000,))
    assert found.bias == pytest.approx(statistic.distortion * 40 / 39)
    error = found.value - BASE.exact(counts)
    predicted = mse(protocol, counts, 40)
    squared = Moments.of(error.square())
    assert abs(squared.z_score(predicted)) < 5 and squared.standard_error < 0.02 * predicted
    assert abs(Moments.of(error).z_score(protocol.bias(counts.double()))) < 5
    assert abs(protocol.bias(counts.double())) <= statistic.distortion * 40 / 39
    assert protocol.bias(counts.double()) ** 2 > 0.2 * predicted  # else this test would not see it


def test_bias_is_within_the_distortion_for_every_histogram():
    statistic = low_rank(BASE, 3, USERS, EPSILON, steps=20)
    histograms = torch.rand(200, K, dtype=torch.float64, generator=keyed_generator(b"any")) ** 8
    protocol, most = SubsetPairs(statistic, 1.0), statistic.distortion
    assert most == pytest.approx(float((KERNEL - statistic.kernel(statistic.form)).abs().max()), rel=1e-9)
    for h in histograms:
        assert abs(protocol.bias(h / h.sum() * 1e6)) <= most
    assert BASE.distortion == 0 and OneMessage(BASE, 1.0).bias(histograms[0]) == 0


def test_at_full_rank_the_truncated_spectrum_is_the_kernel():
    statistic = low_rank(BASE, K, USERS, EPSILON, steps=0)
    torch.testing.assert_close(statistic.kernel(statistic.form), KERNEL, rtol=0, atol=2e-3)
    torch.testing.assert_close(statistic.form.weights.abs(), torch.ones(K, dtype=torch.float64))


def test_an_approximation_answers_with_the_diagonal_of_what_it_approximates():
    statistic = low_rank(BASE, 2, USERS, EPSILON, steps=0)
    own = statistic.diagonal(statistic.form)
    assert float(own.max() - own.min()) > 0.01  # no common diagonal of its own
    assert statistic.common_diagonal(statistic.form) == pytest.approx(1.0, abs=1e-3)
    counts = torch.arange(K)
    assert float(statistic.exact(counts)) == float(BASE.exact(counts))
