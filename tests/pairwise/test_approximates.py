"""A form in the place of another statistic's: its bias is in every prediction, and it answers for the other."""

import pytest
import torch

from pairwise.common import mse
from torchdp import pairwise
from torchdp.pairwise import Form, OneMessage, PairReports, PairwiseStatistic
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

K = 16
POSITION = torch.linspace(0, 1, K, dtype=torch.float64)
KERNEL = torch.exp(-(POSITION[:, None] - POSITION).square() / (2 * 0.15**2))
BASE = pairwise.from_kernel(KERNEL)


def truncated(rank):
    """The largest eigenvalues of the kernel alone."""
    values, vectors = torch.linalg.eigh(KERNEL)
    kept = values.abs().argsort(descending=True)[:rank]
    points = vectors[:, kept] * values[kept].abs().sqrt()
    return PairwiseStatistic("truncated", points, Form(values[kept].sign()), approximates=BASE)


def test_monte_carlo_finds_the_predicted_error_with_its_bias():
    statistic = truncated(2)
    counts = torch.zeros(K, dtype=torch.int64)
    counts[3] = 30
    counts[9] = 10
    protocol = OneMessage(statistic, 8.0)
    generator = keyed_generator(b"bias")
    found = protocol.sample_estimate(counts, generator=generator, sample_shape=(20_000,))
    assert found.bias == pytest.approx(statistic.distortion * 40 / 39)
    error = found.value - BASE.exact(counts)
    predicted = mse(protocol, counts, 40)
    squared = Moments.of(error.square())
    assert abs(squared.z_score(predicted)) < 5
    assert squared.standard_error < 0.02 * predicted
    bias = protocol.bias(counts.double())
    assert abs(Moments.of(error).z_score(bias)) < 5
    assert abs(bias) <= statistic.distortion * 40 / 39
    assert bias**2 > 0.2 * predicted  # else this test would not see it


def test_bias_is_within_the_distortion_for_every_histogram():
    statistic = truncated(3)
    most = statistic.distortion
    assert most == pytest.approx(float((KERNEL - statistic.kernel(statistic.form)).abs().max()), rel=1e-9)
    protocol = PairReports(statistic, 1.0)
    histograms = torch.rand(200, K, dtype=torch.float64, generator=keyed_generator(b"any")) ** 8
    biases = [abs(float(protocol.bias(h / h.sum() * 1e6))) for h in histograms]
    assert 0 < max(biases) <= most
    assert BASE.distortion == 0 and OneMessage(BASE, 1.0).bias(histograms[0]) == 0


def test_it_answers_with_the_diagonal_of_what_it_approximates():
    statistic = truncated(2)
    own = statistic.diagonal(statistic.form)
    assert float(own.max() - own.min()) > 0.01  # no common diagonal of its own
    assert float(statistic.common_diagonal(statistic.form)) == pytest.approx(1.0, abs=1e-9)
    counts = torch.arange(K)
    assert float(statistic.exact(counts)) == float(BASE.exact(counts))
