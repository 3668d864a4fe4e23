"""Quadratic forms that a channel reads off a given tally, beside the formula; nothing is drawn."""

import pytest
import torch
from laws import float64

from torchdp import pairwise
from torchdp.protocol import Tally
from torchdp.queries import (
    CentralFactorization,
    CentralLaplace,
    FactoredQueries,
    LocalFactorization,
    SecureQueries,
    Several,
    Twice,
)

POINTS = float64([[0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
WEIGHTS = float64([2.0, -1.0])
LINEAR = float64([0.5, 3.0])
# of the users' vectors
MEAN = float64([0.75, 0.25])
N = 4
QUERIES = FactoredQueries.vectors(POINTS)


@pytest.mark.parametrize(
    "channel",
    [
        LocalFactorization.calibrated(QUERIES, epsilon=1.0),
        CentralFactorization(QUERIES, 1.0, 1e-6),
        CentralLaplace(QUERIES, 1.0),
    ],
    ids=lambda channel: type(channel).__name__,
)
def test_the_mean_square_of_the_noise_comes_off(channel):
    sums = (N * MEAN).to(channel.layout["sum"][1])
    users = N if channel.power == 1 else N**2
    square = MEAN.square() - channel.noise / users
    expected = WEIGHTS @ square + LINEAR @ MEAN
    torch.testing.assert_close(channel.form(Tally(N, {"sum": sums}), WEIGHTS, LINEAR), expected)


def two_messages(apart):
    """The tally of means that lie so far from MEAN on either side."""
    return Tally(N, {"first": N * (MEAN + apart), "second": N * (MEAN - apart)})


def test_two_messages_are_multiplied_one_by_the_other():
    channel = Twice(QUERIES, 1.0)
    apart = float64([0.5, -0.25])
    expected = WEIGHTS @ (MEAN + apart).mul(MEAN - apart) + LINEAR @ MEAN
    torch.testing.assert_close(channel.form(two_messages(apart), WEIGHTS, LINEAR), expected)


@pytest.mark.parametrize("kind", [Twice, LocalFactorization])
def test_the_joint_covariance_of_pairs_holds_the_variance_of_each(kind):
    """Also where the noise is all quadratic: at users whose mean vector is 0."""
    gini = pairwise.absolute_difference(3)
    both = Several((gini, pairwise.unequal(3)))
    release = kind.of(both, 1.0)
    zeros = {
        name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in release.layout.items()
    }
    found = release.analyse(Tally(N, zeros))
    own = found.standard_error.square()
    torch.testing.assert_close(found.covariance().diagonal(), own)


def test_a_square_under_the_clients_laplace_noise_has_its_fourth_moment():
    """Var e^2 = E e^4 - v^2 = 5 v^2 for Laplace noise, which a fine grid is near; 2 v^2 for normal
    noise.
    """
    W = float64([[-1.0, 1.0]])
    one = torch.ones(1, dtype=torch.float64)
    # of mean 0: no slope
    counts = float64([5.0, 5.0])
    for delta, factor in ((0.0, 5.0), (1e-6, 2.0)):
        channel = SecureQueries(FactoredQueries.plain(W), 10, 1.0, delta)
        v = float(channel.covariance(counts))
        found = float(channel.form_variance(counts, one, torch.zeros_like(one)))
        assert found == pytest.approx(factor * v**2, rel=1e-6)
