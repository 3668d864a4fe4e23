"""Pairs.DISTINCT and Pairs.ALL determine each other where f(x, x) is the same for every x, and only
there.
"""

from dataclasses import replace

import pytest
import torch

from pairwise.common import mse, responses, subsets, twice, vectors
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import Pairs
from torchdp.randomness import keyed_generator

KINDS = [twice, vectors, responses, subsets]
EVEN = pairwise.from_kernel(
    torch.tensor([[2.0, 0.5, 1.0], [0.5, 2.0, -1.0], [1.0, -1.0, 2.0]]),
    name="even",
)


def generator(key=b"conversion"):
    return keyed_generator(key)


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_is_an_exact_map_of_the_answer_and_of_its_error(kind):
    types = torch.tensor([0, 0, 2, 1, 2])
    n = 5
    found = {}
    for pairs in Pairs:
        protocol = kind(replace(EVEN, pairs=pairs), 1.0)
        found[pairs] = protocol.estimate(types, noise=SeededNoise.of(generator()))
    distinct = found[Pairs.DISTINCT]
    every = found[Pairs.ALL]
    torch.testing.assert_close(n**2 * every.value, n * (n - 1) * distinct.value + n * 2.0)
    torch.testing.assert_close(every.standard_error, distinct.standard_error * (n - 1) / n)
    histogram = torch.tensor([0.3, 0.1, 0.6])
    small, large = (
        mse(kind(replace(EVEN, pairs=p), 1.0), histogram, n) for p in (Pairs.ALL, Pairs.DISTINCT)
    )
    assert small == pytest.approx(large * ((n - 1) / n) ** 2, rel=1e-12)
