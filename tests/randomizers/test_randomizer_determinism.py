"""Every draw is a function of the generator's state and the arguments: of no global state, of no default dtype."""

import pytest
import torch
from laws import generator

from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit, RandomizedResponse
from torchdp.randomizers.ball.sphere import CapLaw

COUNTS = torch.tensor([10**13 + 1, 3, 123_456_789])
POINTS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.3, -0.4]])

DRAWS = {
    "cap": lambda g: CapLaw(3, 1.0).draw((50,), Simulated(g))[0],
    "privunit float32": lambda g: PrivUnit(2, 4.0).randomize_unchecked(POINTS, SeededNoise.of(g)),
    "privunit float64": lambda g: PrivUnit(2, 20.0).randomize_unchecked(POINTS.double(), SeededNoise.of(g)),
    "privunit sum": lambda g: PrivUnit(2, 0.5).sample_tally(Crowd(POINTS, COUNTS), generator=g, sample_shape=(5,))[
        "sum"
    ],
    "response": lambda g: RandomizedResponse(5, 1.0).randomize_unchecked(torch.arange(5), SeededNoise.of(g)),
    "response shares": lambda g: RandomizedResponse(3, 1.0).sample_estimate(COUNTS, generator=g).value,
    "response reports": lambda g: RandomizedResponse(3, 1.0).sample_tally(COUNTS, generator=g, sample_shape=(5,))[
        "reports"
    ],
}


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
