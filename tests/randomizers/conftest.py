"""What several tests of this room share."""

import pytest
import torch

from torchdp.draws import Simulated


class Planted(Simulated):
    """Draws of a seeded generator, but for those put in by hand: the name of a method and what it
    returns.
    """

    def __init__(self, seed=0, **given):
        super().__init__(torch.Generator().manual_seed(seed))
        for name, value in given.items():
            setattr(
                self,
                name,
                lambda shape, value=value: value.expand(shape).clone(),
            )


@pytest.fixture
def planted():
    return Planted
