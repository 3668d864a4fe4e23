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
from torchdp.shuffle import BitLaw, BoundedSum, PoissonSum, Sensitivity
from torchdp.simulate import Experiment

DELTA = 1e-5
LAWS = {"Poisson": PoissonSum, "bounded": BoundedSum}
POINTS = 1 << 16  # of the circle of losses
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
    """The distribution of D, by scipy, or from what one user adds."""
    if isinstance(law, PoissonSum):
        reach = 14 * math.sqrt(law.mean)
        low = max(0, int(law.mean - reach))
        return stats.poisson.pmf(np.arange(low, int(law.mean + reach + 60)), law.mean)
    # a user's share: uniform on -c..c, or with probability q on one more on each side
    own = law.deviation**2 / law.users
    root = math.sqrt(1 + 12 * own)
    c = int((root - 1) / 2)
    q = (own - c * (c + 1) / 3) / (2 * (c + 1) / 3)
    power = np.full(2 * c + 3, q / (2 * c + 3))
    power[1:-1] += (1 - q) / (2 * c + 1)
    mass = np.ones(1)
    users = law.users
    while users:
        if users % 2:
            mass = thin(np.convolve(mass, power))
        power = thin(np.convolve(power, power))
        users //= 2
    return mass


def thin(mass):
    """Without tails below 1e-60 of the largest, which cannot matter at delta = 1e-5."""
    kept = np.flatnonzero(mass > 1e-60 * mass.max())
    return mass[kept[0] : kept[-1] + 1]


def moved(mass, x, steps):
    """Of floor x + D, or with probability x - floor x of one more; x at most ``steps``."""
    whole = int(x)
    part = x - whole
    result = np.zeros(len(mass) + steps + 1)
    result[whole : whole + len(mass)] += (1 - part) * mass
    if part:
        result[whole + 1 : whole + 1 + len(mass)] += part * mass
    return result


def losses(P, Q):
    """P and ln P/Q of the outcomes that both have."""
    both = (P > 0) & (Q > 0)
    return P[both], np.log(P[both] / Q[both])


def spectrum(P, Q, low, width):
    """Fourier transform of P's distribution of ln P/Q on a grid, and P where Q = 0.

    Each outcome is on two points of the grid, with its mean. Far losses are left out, which hides a
    violation and makes none.
    """
    p, L = losses(P, Q)
    place = (L - low) / width
    inside = (place >= 0) & (place < POINTS - 2)
    below = place[inside].astype(int)
    part = place[inside] - below
    p = p[inside]
    grid = np.bincount(below, p * (1 - part), POINTS) + np.bincount(below + 1, p * part, POINTS)
    lost = P[(P > 0) & (Q == 0)].sum()
    return np.fft.rfft(grid), float(lost)


def composed(pairs, epsilon):
    """Delta of a product of pairs, each so many times, by losses on a circle around 0."""
    squares = 0.0
    for P, Q, times in pairs:
        p, L = losses(P, Q)
        squares += times * float(p @ L**2)
    # so wide that what goes around the circle is below rounding
    reach = max(3 * epsilon, epsilon + 14 * math.sqrt(squares))
    width = 2 * reach / POINTS
    half = POINTS // 2
    frequencies = np.arange(half + 1)
    turns = np.exp(-2j * np.pi * frequencies * half / POINTS)
    total = np.ones(half + 1, dtype=complex)
    kept = 1.0
    for P, Q, times in pairs:
        transform, lost = spectrum(P, Q, -reach, width)
        total = total * (transform / turns) ** times
        kept *= (1 - lost) ** times
    loss = width * (np.arange(POINTS) - half)
    mass = np.fft.irfft(total * turns, POINTS)
    excess = np.maximum(-np.expm1(epsilon - loss), 0.0)
    return float(mass @ excess) + 1 - kept


def worst(law: BitLaw, instances, change, epsilon, steps):
    """The largest delta found, and where.

    Tried are equal moves of ten sizes and a smaller last one, both roles, up and down.
    """
    gamma = steps**2 * change
    farthest = min(float(steps), math.sqrt(gamma))
    sizes = {farthest * part for part in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)}
    sizes |= {min(1.0, farthest), min(1.5, farthest)}
    sizes.add(max(math.sqrt(gamma / instances), 0.01 * farthest))
    largest = 0.0
    pattern = ""
    mass = noise_mass(law)
    for kind, own in enumerate((mass, mass[::-1])):
        base = moved(own, 0.0, steps)
        for x in sorted(sizes):
            times = min(instances, int(gamma / x**2 + 1e-9))
            moves = [(moved(own, x, steps), times)]
            rest = gamma - times * x**2
            if times < instances and rest > 1e-12:
                moves.append((moved(own, math.sqrt(rest), steps), 1))
            pairs = {
                "P": [(base, other, count) for other, count in moves],
                "Q": [(other, base, count) for other, count in moves],
            }
            for role in pairs:
                found = composed(pairs[role], epsilon)
                if found > largest:
                    largest = found
                    pattern = f"{times} moves of {x:.3g}, kind {kind}, base {role}"
    return largest, pattern


def needed(law: BitLaw, instances, change, epsilon, steps):
    """The variance, over this law's, at which the worst pattern found meets delta."""
    factor = 1.0
    step = 0.98
    here, pattern = worst(law, instances, change, epsilon, steps)
    # Newton's steps of ln delta against ln variance, the slope by a difference
    for _ in range(3):
        there, _ = worst(rescaled(law, factor * step), instances, change, epsilon, steps)
        slope = math.log(there / here) / math.log(step)
        change_of_factor = math.exp(math.log(DELTA / here) / slope)
        following = factor * min(1.1, max(0.8, change_of_factor))
        if abs(math.log(following / factor)) < 1e-4:
            break
        factor = following
        step = 0.99
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
                variance = law.variance(torch.zeros(())).item() / m**2
                factor, pattern = needed(law, instances, change, epsilon, m)
                messages = (law.messages_per_user + m - 1) * instances
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
                    messages=messages,
                    seconds=seconds,
                    pattern=pattern,
                )


EXPERIMENT = Experiment(measure, Config(), Config((1,), (1, 2), ("Poisson", "bounded")))

if __name__ == "__main__":
    EXPERIMENT.main()
