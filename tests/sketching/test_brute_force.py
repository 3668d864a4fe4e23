"""Noise on small random instances against enumeration: coalitions, shares, deltas. Nothing is
shared with the package but its claims: sketches are dense matrices, deltas come from the error
function, laws are convolved."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from products import gaussian_delta
from scipy import special

from torchdp import regression, sketching
from torchdp.secure import PureSecureSketch
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    osnap,
    rademacher,
)

SEED = 1
INSTANCES = 25
ROUNDING = 1e-9


def random_sketch(chance, n, m, s, kind):
    """A sketch in which every row has somebody."""
    while True:
        generator = torch.Generator().manual_seed(int(chance.integers(2**31)))
        sketch = (
            osnap(n, m, s, generator=generator) if kind else rademacher(n, m, generator=generator)
        )
        if int(sketch.counts().min()) > 0:
            return sketch


def distances(sketch, client, gone, sigma):
    """mu of one client at distance 1 (rows of the sum, factor s^-1/2 left out), the noise of
    ``gone`` taken away.
    """
    rows = sketch.rows.numpy()
    signs = sketch.signs.numpy().astype(float)
    m = sketch.height
    shift = np.zeros(m)
    covariance = np.zeros((m, m))
    for i in range(rows.shape[1]):
        column = np.zeros(m)
        column[rows[:, i]] = signs[:, i]
        if i == client:
            shift = column
        if i not in gone:
            covariance += np.diag((column * sigma) ** 2)
    inverse = np.linalg.pinv(covariance, rcond=1e-12)
    return math.sqrt(shift @ inverse @ shift)


def coalitions(chance, fault):
    """delta of each kind of noise against all coalitions: enumerated, over that claimed."""
    for _ in range(INSTANCES):
        n = int(chance.integers(4, 8))
        m = int(chance.integers(1, 4))
        s = int(chance.integers(1, 4))
        s = min(s, m)
        members = int(chance.integers(0, 3))
        sketch = random_sketch(
            chance,
            n,
            m,
            s,
            chance.integers(2),
        )
        s = sketch.copies
        away = int(chance.integers(0, members + 1))
        settings = {
            "coalition": AdaptiveCoalition(members - away, absent=away),
            "epsilon": chance.uniform(0.1, 3),
            "delta": 1e-3,
        }
        try:
            sigma = GaussianNoise.calibrated(sketch, 0.5, **settings).sigma
        except ValueError:  # somebody may stand alone: refused
            continue
        # noise that nobody calibrated
        other = sigma * torch.from_numpy(chance.uniform(0.8, 2, m))
        coalition = settings["coalition"]
        stated = GaussianNoise(other).guarantee(sketch, 0.5, delta=1e-3, coalition=coalition)
        for claim, used, epsilon in (
            ("calibrated", sigma, settings["epsilon"]),
            ("guarantee", other, stated.epsilon),
        ):
            stated_sigma = used.numpy() / fault
            deltas = []
            for gone in itertools.combinations(range(n), members):
                for i in set(range(n)) - set(gone):
                    mu = distances(sketch, i, gone, stated_sigma)
                    deltas.append(gaussian_delta(mu, epsilon))
            yield claim, max(deltas), settings["delta"]


def shared(chance, fault):
    """Gaussian noise in shares after some have dropped out; discrete Laplace noise: the largest log
    ratio.
    """
    for _ in range(INSTANCES):
        n = int(chance.integers(2, 60))
        corrupt = int(chance.integers(0, n))
        absent = int(chance.integers(0, n - corrupt))
        delta = 10 ** chance.uniform(-6, -2)
        gone = {"corrupt": corrupt, "absent": absent}
        release = regression.SecureHistogram(
            n,
            2,
            chance.uniform(0.1, 3),
            delta,
            **gone,
        )
        one = float(release.client.variance.sqrt())
        left = one * math.sqrt(n - corrupt - absent) / fault
        yield "SharedSum", gaussian_delta(math.sqrt(2) / left, release.epsilon), delta
    for _ in range(INSTANCES // 2):
        n = int(chance.integers(2, 7))
        bound = int(chance.integers(1, 3))
        members = int(chance.integers(0, 2))
        epsilon = chance.uniform(0.5, 3)
        grid = {"coalition": AdaptiveCoalition(members), "fraction_bits": 0}
        pure = PureSecureSketch(
            sketching.ones(n),
            1,
            float(bound),
            epsilon,
            **grid,
        )
        ratio = math.exp(-pure.rate * fault**2)
        # as many differences as there are honest clients
        for heard in range(n - members, n + 1):
            r = heard * pure.part
            # what lies beyond has a chance far below rounding
            size = 400
            k = np.arange(size)
            # the negative binomial distribution of a share
            log = special.gammaln(k + r) - math.lgamma(r) - special.gammaln(k + 1)
            log += k * math.log(ratio)
            half = np.exp(np.array(log) + r * math.log1p(-ratio))
            law = np.log(np.convolve(half, half[::-1])[size - 1 - 60 : size + 60])
            # of all differences that one client can make
            moves = range(1, 2 * bound + 1)
            truth = max(np.abs(law[w:] - law[:-w]).max() for w in moves)
            yield "PureSecureSketch", truth, epsilon


BATTERIES = [coalitions, shared]


def ratios(battery, fault):
    found = defaultdict(list)
    for name, truth, claim in battery(np.random.default_rng(SEED), fault):
        found[name].append(truth / claim)
    return found


@pytest.mark.parametrize("battery", BATTERIES)
def test_guarantee_no_enumerated_truth_exceeds_its_claim(battery):
    for name, values in ratios(battery, 1).items():
        print(f"{name:<40}{len(values):>5}{max(values):>20.12f}")
        # no claim is false, and none is far above the truth
        assert len(values) >= 6 and 0.8 < max(values) <= 1 + ROUNDING, name


@pytest.mark.parametrize("battery", BATTERIES)
def test_a_factor_of_two_is_caught_everywhere(battery):
    for name, values in ratios(battery, 2).items():
        # half the noise is seen for each kind
        assert max(values) > 1.01, name
