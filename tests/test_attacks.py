"""The attacks of the battery see what they are for: mechanisms planted with a fault that they are
asked about.
"""

import pytest
import torch
from attacks import strongest

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.randomizers import RandomizedResponse

# as many as the battery takes
TIMES = 2**13
SIGMA = 4.0
DELTA = 1e-6
PROMISE = gaussian_guarantee(
    SIGMA,
    DELTA,
    1.0,
    Model.CENTRAL,
    Neighbours.REPLACE_ONE,
)


def normals(seed):
    return SIGMA * SeededNoise(seed).normal((TIMES,))


def as_floats(moved, seed):
    return moved + normals(seed)


def of_single_precision(moved, seed):
    return moved + normals(seed).float()


def multiples(moved, seed):
    """Data are whole, the noise has twos alone: a hole of the support."""
    halves = (normals(seed) / 2).round()
    return (moved + 2 * halves).long()


def that_end(moved, seed):
    """Noise is cut at a deviation and a half: a tail that one data set alone reaches."""
    cut = normals(seed).clamp(-1.5 * SIGMA, 1.5 * SIGMA)
    return (moved + cut.round()).long()


def of_few_levels(moved, seed):
    """A float table: single values that one data set alone has."""
    numbers = moved * 1.1 + normals(seed).round()
    return numbers.mul(16).long()


@pytest.mark.parametrize(
    "planted", [as_floats, of_single_precision, multiples, that_end, of_few_levels]
)
def test_planted_mechanisms_are_told_apart(planted):
    # negative control: the planted mechanism is seen by a margin
    assert strongest(planted(0, 1), planted(1, 2), DELTA) > 1.5 * PROMISE.epsilon
    # of the same data nothing is found
    assert strongest(planted(0, 3), planted(0, 4), DELTA) <= PROMISE.epsilon


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_a_response_louder_than_it_says_is_seen(epsilon):
    louder = RandomizedResponse(4, 2 * epsilon)

    def messages(x):
        return louder.randomize(torch.full((TIMES,), x), noise=SeededNoise(x))

    one = messages(0)
    two = messages(3)
    assert epsilon < strongest(one, two) <= 2 * epsilon
