"""Noise of shuffled sums that move little: every law and number of steps, beside the worst pattern
that a search finds.

Paper: Wagner (2025), section 3, where protocols of bits hold rounded features; here in 1 to 8
steps.
Command:  python experiments/density/noise.py
Expected: variance of one sum at delta = 1e-5 in five settings: I sums, where a user moves by Delta
in squares, epsilon.
    "needed" is the noise at which the worst pattern found meets delta, by code of its own: ours is
    never below it. "curator" is Gaussian noise on numbers that are not rounded.
Output: results/density/noise/noise.csv; printed: ``experiments/bench/noise_cpu.txt``.
Artifact: - | noise of shuffled sums by movement
Status: agrees
Time: five minutes on one core; --smoke in 10 to 20 CPU-seconds.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from torchdp.privacy import gaussian_sigma
from torchdp.shuffle import (
    BitLaw,
    BoundedSum,
    PoissonSum,
    Sensitivity,
)
from torchdp.simulate import Experiment

DELTA = 1e-5
LAWS = {
    "Poisson": PoissonSum,
    "bounded": BoundedSum,
}
# (sums, movement, epsilon), users
SETTINGS = (
    (64, 0.01, 0.1, 1000),
    (64, 4.0, 4.5, 125),
    (64, 4.0, 1.0, 125),
    (768, 46.0, 1.0, 3000),
    (2048, 1024.0, 1.0, 10_000),
)


@dataclass(frozen=True)
class Config:
    settings: tuple[int, ...] = (0, 1, 2, 3, 4)  # of SETTINGS
    levels: tuple[int, ...] = (1, 2, 4, 8)
    laws: tuple[str, ...] = tuple(LAWS)


def rescaled(law: BitLaw, factor):
    """The same law with ``factor`` times the variance."""
    if isinstance(law, PoissonSum):
        return PoissonSum(law.users, law.mean * factor)
    return BoundedSum(law.users, law.deviation * math.sqrt(factor))


def noise_mass(law: BitLaw):
    """The law of D, by scipy, or from what one user adds."""
    if isinstance(law, PoissonSum):
        top = law.mean + 14 * math.sqrt(law.mean) + 60
        low = max(0, int(law.mean - 14 * math.sqrt(law.mean)))
        return stats.poisson.pmf(np.arange(low, int(top)), law.mean)
    own = (
        law.deviation**2 / law.users
    )  # of a share: uniform on -c..c, or with probability q on one more on each side
    c = int((math.sqrt(1 + 12 * own) - 1) / 2)
    q = (own - c * (c + 1) / 3) / (2 * (c + 1) / 3)
    share = np.full(2 * c + 3, q / (2 * c + 3))
    share[1:-1] += (1 - q) / (2 * c + 1)
    mass, power, users = np.ones(1), share, law.users
    while users:  # tails below 1e-60 of the largest cannot matter at delta = 1e-5
        mass = thin(np.convolve(mass, power)) if users % 2 else mass
        power, users = thin(np.convolve(power, power)), users // 2
    return mass


def thin(mass):
    kept = np.flatnonzero(mass > 1e-60 * mass.max())
    return mass[kept[0] : kept[-1] + 1]


def moved(mass, x, room):
    """Of floor x + D, or with probability x - floor x of one more."""
    whole, out = int(x), np.zeros(len(mass) + room)
    out[whole : whole + len(mass)] += (1 - x + whole) * mass
    if x > whole:
        out[whole + 1 : whole + 1 + len(mass)] += (x - whole) * mass
    return out


def kinds(law: BitLaw, steps):
    """Families of pairs: each a function of the distance x in steps, in both roles, up and down."""
    mass = noise_mass(law)
    for own in (mass, mass[::-1]):
        yield [moved(own, 0.0, steps + 1), lambda x, own=own: moved(own, x, steps + 1)]


def spectrum(P, Q, low, width, points):
    """Fourier transform of P's law of ln P/Q, each outcome on two points of a grid with its mean;
    and P where Q = 0.

    Far losses are left out, which hides a violation and makes none.
    """
    both = (P > 0) & (Q > 0)
    place = (np.log(P[both] / Q[both]) - low) / width
    inside = (place >= 0) & (place < points - 2)
    below = place[inside].astype(int)
    part, p = place[inside] - below, P[both][inside]
    grid = np.bincount(below, p * (1 - part), points) + np.bincount(below + 1, p * part, points)
    return np.fft.rfft(grid), float(P[(P > 0) & (Q == 0)].sum())


def composed(pairs, epsilon):
    """Delta of a product of pairs, each so many times; losses about 0 on a circle that is wide
    enough.
    """
    points, deviation = 1 << 16, 0.0
    for P, Q, times in pairs:
        both = (P > 0) & (Q > 0)
        L = np.log(P[both] / Q[both])
        deviation += times * float(P[both] @ L**2)
    reach = max(3 * epsilon, epsilon + 14 * math.sqrt(deviation))
    width = 2 * reach / points
    total, kept = np.ones(points // 2 + 1, dtype=complex), 1.0
    turns = np.exp(-2j * np.pi * np.arange(points // 2 + 1) * (points // 2) / points)
    for P, Q, times in pairs:
        transform, lost = spectrum(P, Q, -reach, width, points)
        total, kept = total * (transform / turns) ** times, kept * (1 - lost) ** times
    loss = width * (np.arange(points) - points // 2)
    law = np.fft.irfft(total * turns, points)
    return float(law @ np.maximum(-np.expm1(epsilon - loss), 0.0)) + 1 - kept


def worst(law: BitLaw, instances, change, epsilon, steps):
    """The largest delta found: equal moves of ten sizes and a smaller last one, both roles, up and
    down.
    """
    gamma = steps**2 * change
    farthest, best = min(float(steps), math.sqrt(gamma)), (0.0, "")
    sizes = {farthest * part for part in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)} | {
        min(1.0, farthest)
    }
    sizes |= {max(math.sqrt(gamma / instances), 0.01 * farthest), min(farthest, 1.5)}
    for kind, (base, other) in enumerate(kinds(law, steps)):
        for x in sorted(sizes):
            times = min(instances, int(gamma / x**2 + 1e-9))
            rest = math.sqrt(max(0.0, gamma - times * x**2)) if times < instances else 0.0
            moves = [(other(x), times), (other(rest), 1)] if rest > 1e-6 else [(other(x), times)]
            for role, turned in (("P", False), ("Q", True)):
                pairs = [
                    (moved, base, count) if turned else (base, moved, count)
                    for moved, count in moves
                ]
                found = composed(pairs, epsilon)
                if found > best[0]:
                    best = found, f"{times} moves of {x:.3g}, kind {kind}, base {role}"
    return best


def needed(law: BitLaw, instances, change, epsilon, steps):
    """The variance, over this law's, at which the worst pattern found meets delta."""
    factor, step = 1.0, 0.98
    here, pattern = worst(law, instances, change, epsilon, steps)
    for _ in range(3):
        there = worst(rescaled(law, factor * step), instances, change, epsilon, steps)[0]
        slope = math.log(there / here) / math.log(step)
        moved_to = factor * min(1.1, max(0.8, math.exp(math.log(DELTA / here) / slope)))
        if abs(math.log(moved_to / factor)) < 1e-4:
            break
        factor, step = moved_to, 0.99
        here, pattern = worst(rescaled(law, factor), instances, change, epsilon, steps)
    return factor, pattern


def measure(config, report):
    for index in config.settings:
        instances, change, epsilon, n = SETTINGS[index]
        curator = gaussian_sigma(epsilon, DELTA, math.sqrt(change)) ** 2
        for name in config.laws:
            for m in config.levels:
                if name == "bounded" and instances > 2000 and m > 4:
                    continue  # more counts than are followed
                start = time.process_time()
                law = LAWS[name].calibrated(
                    n, epsilon, DELTA, Sensitivity(instances, change=m**2 * change, largest=m)
                )
                seconds = time.process_time() - start
                variance = float(law.variance(torch.zeros(()))) / m**2
                factor, pattern = needed(law, instances, change, epsilon, m)
                report.row(
                    "noise",
                    setting=f"{instances}/{change:g}/{epsilon:g}",
                    law=name,
                    steps=m,
                    users=n,
                    curator=curator,
                    ours=variance,
                    needed=variance * factor,
                    over_needed=1 / factor,
                    messages=(law.messages_per_user + m - 1) * instances,
                    seconds=seconds,
                    pattern=pattern,
                )


EXPERIMENT = Experiment(measure, Config(), Config((1,), (1, 2), ("Poisson", "bounded")))

if __name__ == "__main__":
    EXPERIMENT.main()
