"""A curator's sums of real vectors under Gaussian noise, released in whole steps.

They are as private as real numbers would be. Notation: v_u is user u's vector, step a power of two.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape
from torchdp.grid import moved
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol.records import Limits, Users, noise_limit, tensor_of
from torchdp.rounded import RoundedNormal

# Users whose vectors floats add up, and of the norm twice the rounding errors of such a sum.
BLOCK = 2**13
ADDED = 2.0**-25
# Steps of the noise's deviation, at most.
FINE = 2.0**26
# Of one number's noise: above ``RoundedNormal.variation`` of every sigma from 2^20 steps on.
VARIATION = 2.0**-112
# Steps of a sum, so that the noise added to it fits int64 too.
MOST_STEPS = 2**62
# Entries are rounded to multiples of 2^-45 of the largest before they are added exactly.
BITS = 45
# Largest sum of products of limbs, in bits, that float64 holds.
MANTISSA = 52


@dataclass(frozen=True)
class RoundedSum:
    """Y = step (sum over blocks of round(sum of v_u in the block / step) + R), R rounded normals.

    v_u is any function of what user u holds, as a machine computes it, of norm ``norm`` at most,
    and two of them are ``distance`` apart at most. Users are in blocks of up to 2^13, in the order
    of their rows. Floats add up a block's vectors in any order, with an error of 2^-26 norm at
    most: k terms take k roundings of 2^-53 of their sizes' sum. So replacing one user moves one
    block's sum by distance + 2^-25 norm at most, and rounded to whole steps by ``sensitivity`` =
    distance + 2^-25 norm + step sqrt(size) (``torchdp.grid``, 1 and 2). Whole numbers are added
    without error. step is a power of two, 2^-26 to 2^-25 of ``sigma``, and costs next to nothing.

    Args:
        sigma: of the normals; 0, without noise, where distance is 0.
        distance: of two users' vectors, at most.
        norm: of a vector, at most.
        size: of a vector.

    Raises ValueError.
    Guarantees: Y is a function of the Gaussian mechanism of this sigma and sensitivity, and it is
    within size
        2^-112 of that in total variation, for uniform words.
    Source: Higham (2002), section 4.2, for sums of floats; Balle, Wang (2018), Theorem 8, for the
    mechanism.
    """

    sigma: float
    distance: float
    norm: float
    size: int

    def __post_init__(self) -> None:
        number = checks.non_negative
        checks.keep(self, sigma=number, distance=number, norm=number)
        object.__setattr__(self, "size", checks.integer("size", self.size, 0))
        if not self.sigma and self.distance:
            raise ValueError(
                f"sigma must be positive, not 0: vectors are up to distance = {self.distance:g} "
                "apart"
            )
        if not self.step and (self.sigma or self.norm):
            raise ValueError(
                f"sigma = {self.sigma:g} and norm = {self.norm:g} are too small for steps; use a "
                "larger unit"
            )

    @staticmethod
    def least(multiplier: float, distance: float, norm: float, size: int) -> "RoundedSum":
        """With sigma at least ``multiplier`` times the sensitivity, and hardly more.

        Raises ValueError.
        """
        # sigma >= multiplier (distance + ADDED norm + step sqrt(size)), step <= 2 sigma / FINE
        share = 2 * multiplier * math.sqrt(size) / FINE
        if not share < 0.5:
            raise ValueError(
                f"multiplier = {multiplier:g} and size = {size} are too large: a step for each of "
                "so many numbers would move them by more than the noise; ask for less privacy or "
                "fewer numbers"
            )
        if not distance:
            return RoundedSum(0.0, distance, norm, size)
        sigma = multiplier * (distance + ADDED * norm) / (1 - share)
        return RoundedSum(sigma * (1 + 1e-15), distance, norm, size)

    @property
    def step(self) -> float:
        """A power of two."""
        return math.ldexp(1 / FINE, math.frexp(self.sigma or self.norm)[1])

    def limits(self, n: Users) -> Limits:
        """What a number of Y can be for n users."""
        return Limits.around(n * (self.norm + self.step) + noise_limit(self.sigma))

    @property
    def sensitivity(self) -> float:
        """Of the whole steps, in the units of v."""
        if not self.sigma:
            return 0.0
        return moved(self.distance + ADDED * self.norm, self.step, self.size)

    @cached_property
    def noise(self) -> RoundedNormal:
        """Of each number."""
        return RoundedNormal(self.sigma, self.step)

    def blocks(self, sums: Iterable[Tensor], n: Users) -> Tensor:
        """Whole steps (*batch, size), int64, of the float64 sums of blocks (*batch, size).

        n: users of all blocks together. Raises ValueError.
        """
        self.check(n)
        return reduce(torch.add, map(self._steps, sums))

    def check(self, n: Users) -> None:
        """Raises ValueError where the sum of so many users may not fit."""
        most = int(tensor_of(n).max())
        if most * self.norm >= MOST_STEPS * self.step:
            raise ValueError(
                f"summary must count fewer users than {most}: their sum is more than 2^62 steps "
                "of the noise"
            )

    def _steps(self, total: Tensor) -> Tensor:
        return (total / self.step).round_().long()

    def released(self, whole: Tensor, draws: Draws, shape: Shape = ()) -> Tensor:
        """Y, (*shape, *batch, size) float64, of whole steps (*batch, size), where noise is drawn."""
        whole = whole.to(draws.device)
        if not self.sigma:
            return (whole.double() * self.step).expand(*shape, *whole.shape)
        noisy = self.noise.draw((*shape, *whole.shape), draws) + whole
        return noisy.double().mul_(self.step)


def in_blocks(values: Tensor, counts: Tensor, rows: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a crowd and the users of each, float64, at most ``rows`` and a block at a time."""
    size = min(BLOCK, rows)
    return zip(values.split(size, counts.ndim - 1), counts.double().split(size, -1), strict=True)


def exact_sums(columns: Tensor, counts: Tensor, step: float) -> Tensor:
    """sum_x counts_x columns_x in whole steps, rounded once, (*batch, size) int64.

    Numbers are cut into limbs so short that products of matrices of floats make no error.

    Args:
        columns: (size, k), rounded to multiples of 2^-45 of about the largest first.
        counts: (*batch, k), int64.
        step: > 0.

    Raises ValueError where a sum is 2^62 steps or more.
    """
    _, exponent = math.frexp(float(columns.abs().max()))
    unit = math.ldexp(1.0, exponent - BITS)
    whole = (columns / unit).round().long()
    # Limbs of ``bits`` bits: k products of two of them add up to fewer than 2^53.
    bits = (MANTISSA - counts.shape[-1].bit_length()) // 2
    totals = np.zeros(len(columns) * counts[..., 0].numel(), object)  # of Python's integers
    for i in range(math.ceil((BITS + 1) / bits)):
        for j in range(math.ceil(63 / bits)):
            products = _limb(counts, j, bits) @ _limb(whole, i, bits).mT
            exact = products.flatten().long().cpu().numpy()
            totals += exact.astype(object) << bits * (i + j)
    ratio = Fraction(unit) / Fraction(step)
    steps = [round(total * ratio) for total in totals]
    if max(map(abs, steps)) >= MOST_STEPS:
        most = int(counts.sum(-1).max())
        raise ValueError(
            f"summary must count fewer users than {most}: 2^62 steps of the noise, and more"
        )
    return counts.new_tensor(steps).view(*counts.shape[:-1], -1)


def _limb(whole: Tensor, place: int, bits: int) -> Tensor:
    """Of so many bits, with the sign of the number, float64."""
    limb = whole.abs() >> bits * place & ((1 << bits) - 1)
    return (limb * whole.sign()).double()


def released_guarantee(multiplier: float, delta: float, numbers: int) -> Guarantee:
    """At ``delta``, of a :class:`RoundedSum` of so many numbers.

    Its sigma is ``multiplier`` times its sensitivity. Of real numbers alone where epsilon is so
    large that 2^-40 of delta does not pay for the tables.
    """
    kept = checks.fraction("delta", delta) * ROUNDED
    real = gaussian_guarantee(multiplier, kept, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
    return real.leaving(numbers * VARIATION, delta)
