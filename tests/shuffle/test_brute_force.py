"""Certified deltas of a few users against everything that the analyst may see, enumerated from what
each user sends.

Random instances of every protocol, in plain numpy: the laws of one user's messages are written out
from the definitions and convolved; nothing of the accounting is used. What is cut off only makes
the enumerated truth smaller.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from laws import hockey_stick, shifted
from scipy.signal import convolve2d

from torchdp.shuffle import (
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
    Sensitivity,
    delta_of,
)

# random instances of each protocol; counts of one kind, and of each of two kinds
INSTANCES = 14
SIZE = 80
FLAT = 26
SEED = 20


def poisson(mean, size=SIZE):
    law = [math.exp(-mean)]
    for k in range(1, size):
        law.append(law[-1] * mean / k)
    return np.array(law)


def negative_binomial(shape, ratio, size=SIZE):
    law = [(1 - ratio) ** shape]
    for k in range(1, size):
        law.append(law[-1] * ratio * (k - 1 + shape) / k)
    return np.array(law)


def pairs_of_noise(noise, flood):
    """Z1 + F times "+1" and Z2 + F times "-1"."""
    both = np.outer(noise, noise)
    return sum(chance * shifted(both, f, f) for f, chance in enumerate(flood))


def response(rng):
    protocol = RandomizedResponseSum(int(rng.integers(1, 6)), float(rng.uniform(0.02, 0.48)))
    keep = [1 - protocol.flip, protocol.flip]
    return protocol, [np.array(keep), np.array(keep[::-1])]


def poisson_noise(rng):
    protocol = PoissonSum(int(rng.integers(1, 5)), float(rng.uniform(0.3, 12)))
    law = poisson(protocol.mean / protocol.users)
    return protocol, [law, shifted(law, 1)]


def correlated_noise(rng):
    # few: the laws of all messages are arrays of two axes
    users = int(rng.integers(1, 4))
    ratio = float(rng.uniform(0.1, 0.5))
    shape = float(rng.uniform(0.5, 4))
    flood = float(rng.uniform(0.1, 0.5))
    laws = (
        negative_binomial(1 / users, ratio, FLAT),
        negative_binomial(shape / users, flood, FLAT),
    )
    law = pairs_of_noise(*laws)
    return CorrelatedSum(users, ratio, shape, flood), [
        law,
        shifted(law, 1, 0),
    ]


def neighbours(users, laws):
    """Laws of all messages where one user's bit differs, for every number of ones among the
    others.
    """
    found = []
    for ones in range(users):
        pair = []
        for bit in (0, 1):
            view = laws[bit]
            for other in [1] * ones + [0] * (users - 1 - ones):
                view = (
                    np.convolve(view, laws[other])
                    if view.ndim == 1
                    else convolve2d(view, laws[other])
                )
            pair.append(view)
        # to one shape: what is missing has no chance
        size = np.maximum(pair[0].shape, pair[1].shape)
        missing = [size - view.shape for view in pair]
        pair = [
            np.pad(v, [(0, m) for m in more]).ravel() for v, more in zip(pair, missing, strict=True)
        ]
        found += [tuple(pair), tuple(pair[::-1])]
    return found


def worst(pairs, epsilon, instances):
    """Over others' bits and directions, which may differ from instance to instance."""
    if instances == 1:
        return max(hockey_stick(p, q, epsilon) for p, q in pairs)
    return max(
        hockey_stick(np.outer(p, s), np.outer(q, t), epsilon)
        for (p, q), (s, t) in itertools.combinations_with_replacement(pairs, 2)
    )


KINDS = [response, poisson_noise, correlated_noise]


def twice(protocol):
    """The planted fault: accounting that counts the noise of twice the users."""
    if isinstance(protocol, RandomizedResponseSum):
        return replace(protocol, users=2 * protocol.users)
    # the number that the noise is in proportion to
    name = {PoissonSum: "mean", CorrelatedSum: "flood_shape"}[type(protocol)]
    return replace(protocol, **{name: 2 * getattr(protocol, name)})


def ratios(make, number, claimed=lambda protocol: protocol):
    """Truth over claim, and whether the claim is exact: (instances, 2)."""
    rng = np.random.default_rng([SEED, KINDS.index(make)])
    found = []
    for trial in range(number):
        protocol, laws = make(rng)
        absent = int(rng.integers(0, protocol.users))
        # two now and then, of the protocols whose messages are one number
        instances = 2 if trial % 4 == 3 and laws[0].ndim == 1 else 1
        epsilon = float(rng.uniform(0, 1.5))
        truth = worst(
            neighbours(protocol.users - absent, laws),
            epsilon,
            instances,
        )
        claim = delta_of(claimed(protocol), epsilon, instances, absent)
        if truth > 1e-9:
            found.append(
                (
                    truth / claim if claim else math.inf,
                    instances == 1 and not absent,
                )
            )
    return np.array(found)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_guarantee_no_certified_delta_is_below_the_enumerated_one(make):
    found = ratios(make, INSTANCES)
    exact = found[:, 1] > 0
    assert len(found) > INSTANCES / 3
    assert found[:, 0].max() <= 1 + 1e-9
    assert not exact.any() or found[exact, 0].min() > 1 - 1e-5
    assert ratios(make, 8, twice)[:, 0].max() > 1.05


def test_guarantee_no_certified_delta_of_rounded_bits_is_below_the_enumerated_one():
    """Two sums whose bits are one with probabilities q, replaced by q'; every pair of counts."""
    rng = np.random.default_rng([SEED, 9])
    found = []
    planted = []
    for trial in range(6):
        protocol, laws = poisson_noise(rng)
        absent = int(rng.integers(0, protocol.users))
        q, other = rng.random((2, 2)) if trial % 3 else np.array([[0.0, 1.0], [1.0, 0.0]])
        change = float(((q - other) ** 2).sum())
        epsilon = float(rng.uniform(0, 1.5))
        (one, zero), *_ = neighbours(protocol.users - absent, laws)[::-1]
        views = [[(1 - c) * zero + c * one for c in chances] for chances in (q, other)]
        truth = hockey_stick(*(np.outer(*view) for view in views), epsilon)
        if truth > 1e-9:
            found.append(truth / delta_of(protocol, epsilon, Sensitivity(2, change), absent))
            if trial % 3 == 0:
                planted.append(
                    truth
                    / delta_of(
                        twice(protocol),
                        epsilon,
                        Sensitivity(2, change),
                        absent,
                    )
                )
    assert len(found) > 2
    assert max(found) <= 1 + 1e-9
    assert max(planted) > 1.05
