"""Gaussian releases as black boxes: what two neighbours' releases tell apart.

The means and the noise's root are read off releases whose draws are all 0 but one; of the mechanism
nothing else is used. Rounded normals are taken for normals, rounded. The delta of two Gaussians
that far apart is the textbook's, solved for epsilon.
"""

import itertools
import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr

from torchdp.noise import SeededNoise
from torchdp.rounded import RoundedNormal


class Probe(SeededNoise):
    """Normals that are all 0 but number ``place`` of them, which is 1."""

    def __init__(self, place=-1):
        super().__init__(0)
        self.place = place
        self.used = 0

    def normal(self, shape, dtype=torch.float64):
        numbers = torch.zeros(math.prod(shape), dtype=dtype)
        if 0 <= self.place - self.used < len(numbers):
            numbers[self.place - self.used] = 1
        self.used += len(numbers)
        return numbers.view(shape)


def rounded(normal, shape, draws):
    """What RoundedNormal draws, from normals."""
    return (draws.normal(shape) * (normal.sigma / normal.step)).round().long()


def furthest(release, data_sets):
    """How many deviations of the noise two of these data sets' releases are apart at most; inf
    where noise is missing.

    release(data, noise) must be Gaussian with a covariance that is the same for all data.
    """
    probe = Probe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundedNormal, "draw", rounded)
        # the first data set is released by the probe that counts what is drawn
        sources = [probe] + [Probe()] * len(data_sets)
        pairs = zip(data_sets, sources, strict=False)
        means = [release(data, source).flatten() for data, source in pairs]
        moved = [release(data_sets[0], Probe(i)).flatten() for i in range(probe.used)]
        root = torch.stack([each - means[0] for each in moved], 1)
    inverse = torch.linalg.pinv(root, rtol=1e-6)
    most = 0.0
    for one, other in itertools.combinations(means, 2):
        change = one - other
        u = inverse @ change
        missed = float((change - root @ u).norm())
        covered = missed <= 1e-6 * float(change.norm()) + 1e-13
        most = max(most, float(u.norm()) if covered else math.inf)
    return most


def true_epsilon(apart, delta):
    """The epsilon at which two Gaussians so many deviations apart have this delta; 0 where none is
    needed.
    """

    def beyond(epsilon):
        log_first = float(log_ndtr(1 * apart / 2 - epsilon / apart))
        log_second = float(log_ndtr(-1 * apart / 2 - epsilon / apart))
        return (
            math.log(-math.expm1(min(0.0, epsilon + log_second - log_first)) or 1e-300)
            + log_first
            - math.log(delta)
        )

    if apart == math.inf:
        return math.inf
    return (
        0.0
        if apart == 0 or beyond(0.0) <= 0
        else brentq(beyond, 0.0, apart * (apart + 40), xtol=1e-15, rtol=1e-14)
    )


def neighbours(points):
    """Data sets of three users of which one changes over all points."""
    return [torch.stack([point, points[0], points[-1]]) for point in points]


def collected(protocol):
    """Everything that a curator's protocol releases, as one vector: a function of data and
    noise.
    """
    return lambda x, noise: torch.cat(
        [part.flatten() for part in protocol.collect(x, noise=noise).parts.values()]
    )
