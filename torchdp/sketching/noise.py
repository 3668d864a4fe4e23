"""Divisible noise over real numbers: its least size, what it promises, and its sums.

Client i adds noise of its own to what it sends in each copy; the sum over a row, signs included, is the noise of that
row, which ``sample_sum`` draws at once. What clients send are integers: ``torchdp.secure``. The signs do not matter:
every distribution here is symmetric. Units: sums without the factor s^-1/2.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws, Simulated
from torchdp.sketching.sketch import Sketch


class DivisibleNoise(Brief, ABC):
    """Noise whose parts are added by the clients; n clients, s copies, m rows, d columns."""

    def sample_sum(
        self, sketch: Sketch, columns: int, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """The noise of each row, exactly in distribution, without the clients': (*sample_shape, m, d)."""
        draws = Simulated(generator, checks.instance("sketch", sketch, Sketch).device)
        shape = (*checks.sample_shape(sample_shape), sketch.height, checks.integer("columns", columns, 1))
        checks.fits("the noise", *shape)
        return self.sums_of(sketch, shape, draws)

    @abstractmethod
    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """``sample_sum`` from these draws; shape: (*sample_shape, m, d); unchecked."""

    @abstractmethod
    def variance(self, sketch: Sketch) -> Tensor:
        """Variance of an entry of each row of the release, all clients adding noise: (m,), float64."""
