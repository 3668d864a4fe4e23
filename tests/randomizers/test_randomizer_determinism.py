"""Every draw is a function of the generator's state and the arguments: of no global state, of no default dtype."""

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnitG, RandomizedResponse, TiltedNormal

COUNTS = torch.tensor([10**13 + 1, 3, 123_456_789])
POINTS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.3, -0.4]])

DRAWS = {
    "tau": lambda g: TiltedNormal(1.0).sample((50,), generator=g),
    "tau sums": lambda g: TiltedNormal(1.0).sample_sums(COUNTS, generator=g, sample_shape=(7,)),
    "privunitg float32": lambda g: PrivUnitG(2, 4.0).sample(POINTS, noise=SeededNoise.of(g)),
    "privunitg float64": lambda g: PrivUnitG(2, 20.0).sample(POINTS.double(), noise=SeededNoise.of(g)),
    "privunitg sum": lambda g: PrivUnitG(2, 0.5).sample_sum(POINTS, COUNTS, generator=g, sample_shape=(5,)),
    "response": lambda g: RandomizedResponse(5, 1.0).sample(torch.arange(5), noise=SeededNoise.of(g)),
    "response decoded": lambda g: RandomizedResponse(3, 2.0).decode_counts(COUNTS),
    "response reports": lambda g: RandomizedResponse(3, 1.0).sample_reports(
        COUNTS, generator=g, sample_shape=(5,)
    ),
    "response sum": lambda g: RandomizedResponse(7, 0.1).sample_sum(torch.tensor([6, 0, 2]), COUNTS, generator=g),
}


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_same_state_same_bits_and_another_state_other_bits(draw):
    shared = generator()
    first, second = draw(shared), draw(shared)
    assert torch.equal(first, draw(generator()))
    if draw is not DRAWS["response decoded"]:
        assert not torch.equal(first, second)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_global_generators_are_neither_read_nor_written(draw):
    torch.manual_seed(1)
    first, state = draw(generator()), torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, draw(generator()))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_the_default_dtype_does_not_matter(draw):
    """An integer tensor times a number, or its root, is float32 by default: 8 digits, and the law is lost."""
    first = draw(generator())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(first, draw(generator()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (torch.tensor([10**13 + 1]) * 0.1).dtype == torch.float32  # what this test is here to catch
