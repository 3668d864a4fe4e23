"""Secure sums in rings of 32 and 64 bits: the variance of their noise over the needed one, and an
attack on the grid.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4, for the protocol; proofs:
    ``torchdp.grid``.
Command:  python experiments/secure/grid.py
Expected: ``factor``: variance over that of real numbers, at most 1.015 of Gaussian noise in every
row, where spreading
    a row's difference over whole units of honest clients (``spread``) asks for up to thousands.
    ``noises``: the same for discrete Laplace noise, at most 1.001. "Gram": encodings of 10 columns
    and labels, sensitivity and entries those of GramRelease. ``attack``: the exact delta of a sum
    of rounded normals in one column, by repeated convolution, over the stated delta: at most 1.
    ``ratios``: the largest log ratio of the discrete noise's chances modulo 256 over epsilon: 1
    with as many shares as it is divided among, more than 1 with one less.
Output: results/secure/grid/grid.csv, noises.csv, attack.csv, ratios.csv; printed:
``experiments/bench/grid_cpu.txt``.
Artifact: Burkhardt et al. (2025) | section 4, on a grid
Status: agrees; a bound of our own
Time: a minute on one core; --smoke in seconds.
"""

import functools
import math
import warnings
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.special import ndtr

from torchdp.grid import grid_sensitivity, grid_sigma
from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.regression import GramRelease
from torchdp.secure import PureSecureSketch, SecureSketch
from torchdp.simulate import Experiment
from torchdp.sketching import ones

DELTA = 1e-6


def settings(clients, kind, epsilon, bits):
    """Of rows of 10 or 1,000 columns in the unit ball, or of Gram encodings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "Gram":
            return replace(
                GramRelease(clients, 10, 1.0, epsilon, DELTA, label_bound=1.0).client, bits=bits
            )
        return SecureSketch(ones(clients), int(kind.split()[0]), 1.0, epsilon, DELTA, bits=bits)


def pure(clients, kind, epsilon, bits):
    """Discrete Laplace noise on a plain sum, l_1 norms as large as the l_2 norms allow."""
    plain = settings(clients, kind, epsilon, bits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        longest, entry = math.sqrt(plain.columns) * plain.bound, plain.entry or plain.bound
        return PureSecureSketch(
            ones(clients), plain.columns, longest, epsilon, bits=bits, entry=entry
        )


def share_law(shares, rate, modulus=256):
    """NB(1/shares, e^-rate) less another, modulo 256."""
    k = np.arange(1, 64 * modulus)
    steps = np.exp(-rate) * (k - 1 + 1 / shares) / k
    one = np.concatenate([[1.0], np.cumprod(steps)]).reshape(-1, modulus).sum(0)
    return circular(one, np.roll(one[::-1], 1))


def circular(one, two):
    """Of a sum, modulo the length, up to a factor: positive numbers, each right to a few ulp."""
    total = np.array([one @ np.roll(two[::-1], k + 1) for k in range(len(one))])
    return total / total.sum()


def ratio(shares, present, epsilon, distance):
    """The largest log ratio under moves by up to ``distance`` units, of so many shares, over
    epsilon.
    """
    part = share_law(shares, epsilon / distance)
    law = functools.reduce(circular, [part] * present)
    return (
        max(float(np.log(law / np.roll(law, move)).max()) for move in range(1, distance + 1))
        / epsilon
    )


def spread(protocol: SecureSketch):
    """The factor without the second proof."""
    step = 1 / protocol.ring.scale
    distance = grid_sensitivity(step, protocol.bound, protocol.columns, protocol.sensitivity)
    mu = 1 / gaussian_sigma(protocol.epsilon, protocol.delta)
    old = grid_sigma(int(protocol.honest[0]), 1, protocol.columns, step, distance, mu)
    return (old / float(protocol.sigma[0])) ** 2 * protocol.grid_factor


def exact_delta(clients, units, shift, epsilon):
    """Of a sum of rounded normals of this deviation and its shift, by convolution with itself:
    masses to a few ulp.
    """
    k = np.arange(math.ceil(9 * units) + 2)
    upper = ndtr(-(k - 0.5) / units) - ndtr(-(k + 0.5) / units)
    part, law, left = np.concatenate([upper[:0:-1], upper]), np.ones(1), clients
    while left:
        if left & 1:
            law = trimmed(np.convolve(law, part))
        part, left = trimmed(np.convolve(part, part)) if left > 1 else part, left >> 1
    here, there = np.pad(law, (0, shift)), np.pad(law, (shift, 0))
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def trimmed(law):
    """Without tails of 1e-18."""
    kept = np.flatnonzero(law > 1e-18 * law.max())
    return law[kept[0] : kept[-1] + 1]


@dataclass(frozen=True)
class Config:
    clients: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    epsilons: tuple[float, ...] = (0.1, 1.0, 8.0)
    attacked: tuple[tuple[int, int], ...] = (
        (1000, 2),
        (4000, 3),
        (4000, 10),
    )  # clients, units of the noise's share
    shares: tuple[int, ...] = (2, 5, 20)


def measure(config, report):
    for clients, kind, epsilon, bits in product(
        config.clients, ("10 columns", "1000 columns", "Gram"), config.epsilons, (32, 64)
    ):
        at = {"clients": clients, "kind": kind, "epsilon": epsilon, "bits": bits}
        made, other = settings(**at), pure(**at)
        units = float(made.sigma[0]) * made.ring.scale
        facts = {"factor": made.grid_factor, "spread": spread(made), "variation": made.variation}
        report.row("grid", **at, fraction_bits=made.ring.fraction_bits, units=units, **facts)
        report.row("noises", **at, fraction_bits=other.ring.fraction_bits, factor=other.grid_factor)
    for clients, units in config.attacked:
        for epsilon in (0.5, 1.0, 4.0):
            sigma = units * math.sqrt(clients)
            shift = max(1, math.floor(sigma / gaussian_sigma(epsilon, 1e-5)))
            stated = sigma / shift
            claimed = math.exp(gaussian_log_delta(stated, epsilon))
            found = exact_delta(clients, float(units), shift, epsilon)
            report.row(
                "attack", clients=clients, units=units, epsilon=epsilon, shift=shift, claimed=claimed, exact=found,
                attack=found / claimed,
            )  # fmt: skip
    for shares in config.shares:
        for epsilon in (0.5, 1.0, 4.0):
            all_of_them, one_less = (
                ratio(shares, present, epsilon, 4) for present in (shares, shares - 1)
            )
            report.row(
                "ratios",
                shares=shares,
                epsilon=epsilon,
                distance=4,
                ratio=all_of_them,
                one_less=one_less,
            )


EXPERIMENT = Experiment(measure, Config(), Config((10_000,), (1.0,), ((300, 2),), (3,)))

if __name__ == "__main__":
    EXPERIMENT.main()
