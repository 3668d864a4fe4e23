"""Flat and thin sets: no certificate contradicts itself, none is zero, and coordinates go there and
back.
"""

import math
import warnings
from dataclasses import replace

import pytest
import torch

from torchdp.domains import Box, Ellipsoid, FiniteSet, Polytope, Zonotope, noise_shape

KINDS = ("plain", "float32", "far away", "thin", "large", "skew", "ellipsoid", "zonotope", "box")


def flat_set(seed):
    """A domain of affine dimension r < d in R^d, 2 <= d <= 8 (nearly so where thin), one of nine
    kinds by turns.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def integer(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    d = integer(2, 9)
    r = integer(1, d)
    points = normal(integer(r + 1, 3 * r + 6), r)
    F = normal(r, d)
    kind = KINDS[seed % len(KINDS)]
    if kind == "float32":
        single = points.float() @ F.float()
        return FiniteSet(single.double())
    if kind == "far away":
        return Polytope(points @ F + 10.0 ** integer(0, 9) * normal(d))
    if kind == "thin":
        thickness = 10.0 ** -integer(3, 15)
        return Polytope(points @ F + thickness * normal(len(points), d))
    if kind == "large":
        return Polytope(points @ F * 10.0 ** integer(-90, 90))
    if kind == "skew":
        scales = torch.logspace(0, -8, r).double()
        return Polytope(points * scales @ F)
    if kind == "ellipsoid":
        return Ellipsoid(F.mT @ normal(r, r), normal(d))
    if kind == "zonotope":
        return Zonotope(F.mT @ normal(r, integer(1, 9)), normal(d))
    if kind == "box":
        used = torch.arange(d) < r
        return Box(torch.full((d,), 3.0), 3 + normal(d).abs() * used)
    return Polytope(points @ F)


def measured(domain, p, shift=True):
    """Contradiction, relative gap, how far points stick out, and how far coordinates there and back
    lead astray.
    """
    shape = noise_shape(domain, p, shift=shift)
    lower = float(shape.certificate.lower)
    upper = shape.upper
    spanning = domain.spanning()
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(
        30,
        domain.dimension,
        dtype=torch.float64,
        generator=generator,
    )
    points = torch.cat([spanning, domain.extreme(drawn)])
    u = torch.linalg.lstsq(shape.root, (points - shape.centre).mT, driver="gelsd").solution
    deviations = spanning - spanning.mean(0)
    size = float(deviations.norm(dim=-1).max())
    back = shape.centre + u.mT @ shape.root.mT - points
    # rounding of the points themselves
    rounding = 2.0**-46 * float(spanning.abs().max())
    contradiction = not 0 < lower <= upper * (1 + 1e-10) + rounding
    reach = float(u.norm(dim=0).max())
    astray = float(back.norm(dim=-1).max()) / size
    return contradiction, upper / lower - 1, reach - 1, astray


def check(seeds, shifts=(True,)):
    """(sets, contradictions, largest gap, most sticking out, farthest astray) of all p and
    shifts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [
            measured(flat_set(seed), p, shift)
            for seed in seeds
            for p in (2.0, math.inf)
            for shift in shifts
        ]
    contradictions, *worst = zip(*found, strict=True)
    return sum(contradictions), *(max(values) for values in worst)


def test_guarantee_bounds_of_flat_sets_do_not_contradict_each_other():
    contradictions, gap, out, astray = check(range(9), (True, False))
    assert contradictions == 0
    assert gap <= 1e-4
    assert out <= 1e-6
    assert astray <= 1e-6


class Lying(FiniteSet):
    """Points whose oracle proves too much."""

    def maximise(self, B, centre):
        found = super().maximise(B, centre)
        return replace(found, upper=found.upper * self.share)


@pytest.mark.parametrize("share", [0.99, 1e-3, math.nan])
def test_bounds_that_contradict_each_other_are_refused(share):
    """Negative control: an oracle's upper bound that is too small by a hundredth makes no
    certificate.
    """
    domain = Lying(flat_set(0).points)
    object.__setattr__(domain, "share", share)
    with pytest.raises(ArithmeticError, match="lower bound"):
        noise_shape(domain, 2.0)
