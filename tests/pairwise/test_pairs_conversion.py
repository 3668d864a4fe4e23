"""Pairs.DISTINCT and Pairs.ALL determine each other where f(x, x) is the same for every x, and only there."""

from dataclasses import replace

import pytest
import torch

from pairwise.common import mse, responses
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, PairReports, Pairs, TwoMessage
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

AGGREGATE = [TwoMessage, OneMessage, responses]
KINDS = [*AGGREGATE, PairReports]
EVEN = pairwise.from_kernel(torch.tensor([[2.0, 0.5, 1.0], [0.5, 2.0, -1.0], [1.0, -1.0, 2.0]]), name="even")
UNEVEN = pairwise.from_kernel(torch.tensor([[1.0, 0.5], [0.5, 3.0]]), name="uneven")
COUNTS = torch.tensor([3, 0, 4])


def generator(key=b"conversion"):
    return keyed_generator(key)


def test_exact_values_convert():
    distinct, every = (replace(EVEN, pairs=pairs).exact(COUNTS) for pairs in (Pairs.DISTINCT, Pairs.ALL))
    n = int(COUNTS.sum())
    torch.testing.assert_close(n**2 * every, n * (n - 1) * distinct + n * 2.0)


@pytest.mark.parametrize("pairs", Pairs)
@pytest.mark.parametrize("kind", AGGREGATE)
def test_both_kinds_of_pairs_are_unbiased_with_the_predicted_error(kind, pairs):
    statistic = replace(EVEN, pairs=pairs)
    protocol = kind(statistic, 3.0)
    drawn = protocol.sample_estimate(COUNTS, generator=generator(), sample_shape=(100_000,)).value
    error = drawn - statistic.exact(COUNTS)
    squared, predicted = Moments.of(error.square()), mse(protocol, COUNTS, 7)
    assert abs(Moments.of(error).z_score(0.0)) < 5
    assert abs(squared.z_score(predicted)) < 5 and squared.standard_error < 0.02 * predicted
    other = replace(EVEN, pairs=next(each for each in Pairs if each is not pairs)).exact(COUNTS)
    assert abs(Moments.of(drawn).z_score(float(other))) > 6  # control: the two differ


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_is_an_exact_map_of_the_answer_and_of_its_error(kind):
    types, n = torch.tensor([0, 0, 2, 1, 2]), 5
    distinct, every = (
        kind(replace(EVEN, pairs=pairs), 1.0).estimate(types, noise=SeededNoise.of(generator()))
        for pairs in (Pairs.DISTINCT, Pairs.ALL)
    )
    torch.testing.assert_close(n**2 * every.value, n * (n - 1) * distinct.value + n * 2.0)
    torch.testing.assert_close(every.standard_error, distinct.standard_error * (n - 1) / n)
    histogram = torch.tensor([0.3, 0.1, 0.6])
    small, large = (mse(kind(replace(EVEN, pairs=p), 1.0), histogram, n) for p in (Pairs.ALL, Pairs.DISTINCT))
    assert small == pytest.approx(large * ((n - 1) / n) ** 2, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_diagonal_that_depends_on_the_type_is_refused_with_the_remedy(kind, scale):
    kernel = UNEVEN.kernel(UNEVEN.form) * scale
    native = kind(EVEN, 1.0).estimated_pairs
    other = next(pairs for pairs in Pairs if pairs is not native)
    remedy = "use the other value of Pairs, or PairReports for Pairs.DISTINCT and OneMessage for Pairs.ALL"
    with pytest.raises(ValueError, match=remedy):  # before anybody is asked
        kind(pairwise.from_kernel(kernel, pairs=other), 1.0)
    answered = kind(pairwise.from_kernel(kernel, pairs=native), 1.0)  # the remedy
    assert torch.isfinite(answered.estimate(torch.tensor([0, 1, 1]), noise=SeededNoise.of(generator())).value)
    assert mse(answered, torch.ones(2), 3) > 0
