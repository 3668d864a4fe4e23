"""Every claim on small random instances against enumeration: coalitions, sensitivities, deltas. Nothing is shared with
the package but its claims: sketches are dense matrices, deltas come from the error function, laws are convolved."""

import functools
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from torchdp import regression, sketching
from torchdp.grid import grid_sensitivity, grid_sigma
from torchdp.regression.gram import gram_sensitivity, joint_sensitivity
from torchdp.secure import PureSecureSketch
from torchdp.secure.ring import Ring
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    osnap,
    rademacher,
)

SEED, INSTANCES, ROUNDING = 1, 25, 1e-9
CALIBRATED = {
    "a sigma for each row": GaussianNoise.calibrated,
    "one sigma": functools.partial(GaussianNoise.calibrated, rows=False),
}


def below(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def gaussian_delta(mu, epsilon):
    """delta of N(0, 1) against N(mu, 1)."""
    return max(
        below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu), 0.0
    )


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
    """mu of one client at distance 1 (rows of the sum, factor s^-1/2 left out), the noise of ``gone`` taken away."""
    rows, signs, m = sketch.rows.numpy(), sketch.signs.numpy().astype(float), sketch.height
    shift, covariance = np.zeros(m), np.zeros((m, m))
    for i in range(rows.shape[1]):
        column = np.zeros(m)
        column[rows[:, i]] = signs[:, i]
        if i == client:
            shift = column
        if i not in gone:
            covariance += np.diag((column * sigma) ** 2)
    return math.sqrt(shift @ np.linalg.pinv(covariance, rcond=1e-12) @ shift)


def coalitions(chance, fault):
    """delta of each kind of noise against all coalitions: enumerated, over that claimed."""
    for _ in range(INSTANCES):
        n, m, s = int(chance.integers(4, 8)), int(chance.integers(1, 4)), int(chance.integers(1, 4))
        s, members = min(s, m), int(chance.integers(0, 3))
        sketch = random_sketch(chance, n, m, s, chance.integers(2))
        s, away = sketch.copies, int(chance.integers(0, members + 1))
        settings = {
            "coalition": AdaptiveCoalition(members - away, absent=away),
            "epsilon": chance.uniform(0.1, 3),
            "delta": 1e-3,
        }
        for name, make in CALIBRATED.items():
            try:
                sigma = make(sketch, 0.5, **settings).sigma
            except ValueError:  # somebody may stand alone: refused
                continue
            spread = chance.uniform(0.8, 2, m if name == "a sigma for each row" else 1)
            # noise that nobody calibrated
            other = torch.as_tensor(sigma) * torch.from_numpy(spread)
            noise = GaussianNoise(other.expand(m))
            stated = noise.guarantee(sketch, 0.5, delta=1e-3, coalition=settings["coalition"])
            for claim, used, epsilon in (
                (name, sigma, settings["epsilon"]),
                ("guarantee", other, stated.epsilon),
            ):
                used = np.broadcast_to(np.asarray(used), m) / fault
                deltas = [
                    gaussian_delta(distances(sketch, i, gone, used), epsilon)
                    for gone in itertools.combinations(range(n), members)
                    for i in range(n)
                    if i not in gone
                ]
                yield claim, max(deltas), settings["delta"]


def worst_pair(chance, d, bound, label, distance):
    """The largest distance of two clients' values that random starts and small steps find."""
    best = 0.0

    def clipped(v):
        x = v[:d] / max(1.0, np.linalg.norm(v[:d]) / bound)
        return x, np.clip(v[d], -label, label)

    for _ in range(3):
        pair, step, value = chance.standard_normal((2, d + 1)) * 3 * max(bound, label), bound, 0.0
        while step > 1e-4 * bound:
            tried = pair + step * chance.standard_normal((2, d + 1))
            new = distance(*clipped(tried[0]), *clipped(tried[1]))
            if new > value:
                pair, value = np.stack([np.append(*clipped(v)) for v in tried]), new
            else:
                step *= 0.9
        best = max(best, value)
    return best


def gram(x, y, z, w):
    return np.linalg.norm(np.outer(x, x) - np.outer(z, z))


def cross(x, y, z, w):
    return np.linalg.norm(x * y - z * w)


def joint(weight, x, y, z, w):
    return math.hypot(gram(x, y, z, w), weight * cross(x, y, z, w))


def upper(x, y, z, w):
    return np.linalg.norm(np.triu(np.outer(x, x) - np.outer(z, z)))


def sensitivities(chance, fault):
    for _ in range(8):
        d, B, C = int(chance.integers(1, 4)), chance.uniform(0.3, 2), chance.uniform(0.2, 3)
        claims = {
            "gram_sensitivity": (gram, gram_sensitivity(B, d)),
            "joint_sensitivity": (functools.partial(joint, B / C), joint_sensitivity(B, d)),
            "upper triangle": (upper, gram_sensitivity(B, d)),
        }
        for name, (distance, claim) in claims.items():
            yield name, worst_pair(chance, d, B, C, distance), claim / fault
        release = regression.GramRelease(9, d, B, 1.0, 1e-6, label_bound=C)
        pairs = chance.standard_normal((200, 2, d + 1)) * B
        shown = [release.client_input(torch.from_numpy(p)).numpy() for p in pairs]
        yield "GramRelease", max(np.linalg.norm(a - b) for a, b in shown), release.shown.l2 / fault
        orders = tuple(chance.uniform(0.5, 4, int(chance.integers(1, 4))))
        for delta, norm in ((0.0, 1), (1e-6, 2)):
            moments = regression.FrequencyMoments(9, B, orders, 1.0, delta)
            shown = moments.client_input(torch.linspace(-1.5 * B, 1.5 * B, 41)).numpy()
            truth = max(np.linalg.norm(a - b, norm) for a in shown for b in shown)
            yield (
                "FrequencyMoments",
                truth,
                (moments.shown.l2 if delta else moments.shown.l1) / fault,
            )


def grids(chance, fault):
    """Rows of a grid, all of them; and the exact delta of sums of rounded normals over all shifts."""
    for _ in range(6):
        f, d, B = int(chance.integers(0, 3)), int(chance.integers(1, 3)), chance.uniform(0.6, 2)
        ring = Ring(64, f)
        side = np.linspace(-B, B, 25)
        rows = np.array([p for p in itertools.product(side, repeat=d) if np.linalg.norm(p) <= B])
        D = chance.uniform(0.1, 2 * B)
        whole = ring.to_words(torch.from_numpy(rows)).numpy() / ring.scale
        apart = np.linalg.norm(rows[:, None] - rows, axis=-1)
        moved = np.linalg.norm(whole[:, None] - whole, axis=-1)
        yield (
            "grid_sensitivity",
            moved.max(),
            grid_sensitivity(1 / ring.scale, B, d) / fault + 1e-300,
        )
        yield (
            "grid_sensitivity, D",
            moved[apart <= D].max(),
            grid_sensitivity(1 / ring.scale, B, d, D) / fault + 1e-300,
        )
    for _ in range(INSTANCES):
        h, D, epsilon = (
            int(chance.integers(1, 6)),
            int(chance.integers(1, 6)),
            chance.uniform(0.2, 2),
        )
        mu = chance.uniform(0.3, 2)
        sigma = float(grid_sigma(h, 1, 1, 1.0, float(D), mu)) / fault
        reach = int(12 * sigma) + 2
        one = np.array(
            [below((k + 0.5) / sigma) - below((k - 0.5) / sigma) for k in range(-reach, reach + 1)]
        )
        law = one
        for _ in range(h - 1):
            law = np.convolve(law, one)
        deltas = []
        for w in range(1, D + 1):
            p, q = np.append(law, np.zeros(w)), np.append(np.zeros(w), law)
            deltas += [
                np.maximum(p - math.exp(epsilon) * q, 0).sum(),
                np.maximum(q - math.exp(epsilon) * p, 0).sum(),
            ]
        yield "grid_sigma", max(deltas), gaussian_delta(mu, epsilon)


def shared(chance, fault):
    """Gaussian noise in shares after some have dropped out; discrete Laplace noise: the largest log ratio."""
    for _ in range(INSTANCES):
        n = int(chance.integers(2, 60))
        corrupt = int(chance.integers(0, n))
        absent, delta = int(chance.integers(0, n - corrupt)), 10 ** chance.uniform(-6, -2)
        gone = {"corrupt": corrupt, "absent": absent}
        release = regression.SecureHistogram(n, 2, chance.uniform(0.1, 3), delta, **gone)
        left = float(release.client.variance.sqrt()) * math.sqrt(n - corrupt - absent) / fault
        yield "SharedSum", gaussian_delta(math.sqrt(2) / left, release.epsilon), delta
    for _ in range(INSTANCES // 2):
        n, bound, members = (
            int(chance.integers(2, 7)),
            int(chance.integers(1, 3)),
            int(chance.integers(0, 2)),
        )
        epsilon, grid = (
            chance.uniform(0.5, 3),
            {"coalition": AdaptiveCoalition(members), "fraction_bits": 0},
        )
        pure = PureSecureSketch(sketching.ones(n), 1, float(bound), epsilon, **grid)
        ratio = math.exp(-pure.rate * fault**2)
        for heard in range(n - members, n + 1):  # as many differences as there are honest clients
            r, size = heard * pure.part, 400
            k = np.arange(size)
            log = [
                math.lgamma(j + r) - math.lgamma(r) - math.lgamma(j + 1) + j * math.log(ratio)
                for j in k
            ]
            half = np.exp(np.array(log) + r * math.log1p(-ratio))
            law = np.log(np.convolve(half, half[::-1])[size - 1 - 60 : size + 60])
            truth = max(np.abs(law[w:] - law[:-w]).max() for w in range(1, 2 * bound + 1))
            yield "PureSecureSketch", truth, epsilon


BATTERIES = [coalitions, sensitivities, grids, shared]


def ratios(battery, fault):
    found = defaultdict(list)
    for name, truth, claim in battery(np.random.default_rng(SEED), fault):
        found[name].append(truth / claim)
    return found


@pytest.mark.parametrize("battery", BATTERIES)
def test_guarantee_no_enumerated_truth_exceeds_its_claim(battery):
    for name, values in ratios(battery, 1).items():
        print(f"{name:<40}{len(values):>5}{max(values):>20.12f}")
        assert len(values) >= 6 and 0.8 < max(values) <= 1 + ROUNDING, name


@pytest.mark.parametrize("battery", BATTERIES)
def test_a_factor_of_two_is_caught_everywhere(battery):
    for name, values in ratios(battery, 2).items():
        assert max(values) > 1.01, name
