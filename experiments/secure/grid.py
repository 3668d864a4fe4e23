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
EPSILONS = (0.5, 1.0, 4.0)  # of attacks and ratios
MODULUS = 256
DISTANCE = 4  # units by which a user moves a sum


def gaussian(clients, kind, epsilon, bits):
    """Of rows of 10 or 1,000 columns in the unit ball, or of Gram encodings."""
    if kind == "Gram":
        release = GramRelease(clients, 10, 1.0, epsilon, DELTA, label_bound=1.0)
        return replace(release.client, bits=bits)
    columns, _ = kind.split()
    return SecureSketch(ones(clients), int(columns), 1.0, epsilon, DELTA, bits=bits)


def pure(plain: SecureSketch):
    """Discrete Laplace noise on a plain sum, l_1 norms as large as the l_2 norms allow."""
    longest = math.sqrt(plain.columns) * plain.bound
    entry = plain.entry or plain.bound
    return PureSecureSketch(
        plain.sketch, plain.columns, longest, plain.epsilon, bits=plain.bits, entry=entry
    )


def share_masses(shares, rate):
    """NB(1/shares, e^-rate) less another, modulo MODULUS."""
    k = np.arange(1, 64 * MODULUS)
    steps = np.exp(-rate) * (k - 1 + 1 / shares) / k
    masses = np.concatenate([[1.0], np.cumprod(steps)])
    wrapped = masses.reshape(-1, MODULUS).sum(0)
    return circular(wrapped, np.roll(wrapped[::-1], 1))


def circular(p, q):
    """Masses of a sum, modulo the length, up to a factor.

    Not by Fourier transforms: of positive numbers each mass is right to a few ulp.
    """
    total = np.array([p @ np.roll(q[::-1], k + 1) for k in range(len(p))])
    return total / total.sum()


def ratio(shares, present, epsilon):
    """The largest log ratio under moves by up to DISTANCE units, of so many shares, over
    epsilon.
    """
    part = share_masses(shares, epsilon / DISTANCE)
    masses = functools.reduce(circular, [part] * present)
    ratios = [masses / np.roll(masses, move) for move in range(1, DISTANCE + 1)]
    return np.log(np.max(ratios)) / epsilon


def spread(protocol: SecureSketch):
    """The factor without the second proof."""
    step = 1 / protocol.ring.scale
    distance = grid_sensitivity(step, protocol.bound, protocol.columns, protocol.sensitivity)
    mu = 1 / gaussian_sigma(protocol.epsilon, protocol.delta)
    sigma = grid_sigma(int(protocol.honest[0]), 1, protocol.columns, step, distance, mu)
    return (sigma / float(protocol.sigma[0])) ** 2 * protocol.grid_factor


def exact_delta(clients, units, shift, epsilon):
    """Of a sum of rounded normals of this deviation and its shift, by convolution with itself.

    Masses are right to a few ulp.
    """
    k = np.arange(math.ceil(9 * units) + 2)
    upper = ndtr(-(k - 0.5) / units) - ndtr(-(k + 0.5) / units)
    power = np.concatenate([upper[:0:-1], upper])
    masses = np.ones(1)
    # by the binary digits of the number of clients
    while clients:
        if clients & 1:
            masses = trimmed(np.convolve(masses, power))
        power = trimmed(np.convolve(power, power))
        clients >>= 1
    here = np.pad(masses, (0, shift))
    there = np.pad(masses, (shift, 0))
    return np.maximum(here - math.exp(epsilon) * there, 0).sum()


def trimmed(masses):
    """Without tails of 1e-18, which delta does not see."""
    kept = np.flatnonzero(masses > 1e-18 * masses.max())
    return masses[kept[0] : kept[-1] + 1]


@dataclass(frozen=True)
class Config:
    clients: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    epsilons: tuple[float, ...] = (0.1, 1.0, 8.0)
    # clients, units of the noise's share
    attacked: tuple[tuple[int, int], ...] = ((1000, 2), (4000, 3), (4000, 10))
    shares: tuple[int, ...] = (2, 5, 20)


def variances(config, report):
    kinds = ("10 columns", "1000 columns", "Gram")
    for clients, kind, epsilon, bits in product(config.clients, kinds, config.epsilons, (32, 64)):
        cell = {"clients": clients, "kind": kind, "epsilon": epsilon, "bits": bits}
        plain = gaussian(**cell)
        report.row(
            "grid",
            **cell,
            fraction_bits=plain.ring.fraction_bits,
            units=plain.sigma[0] * plain.ring.scale,
            factor=plain.grid_factor,
            spread=spread(plain),
            variation=plain.variation,
        )
        laplace = pure(plain)
        report.row(
            "noises",
            **cell,
            fraction_bits=laplace.ring.fraction_bits,
            factor=laplace.grid_factor,
        )


def attacks(config, report):
    for (clients, units), epsilon in product(config.attacked, EPSILONS):
        sigma = units * math.sqrt(clients)
        # so far that delta is about 1e-5
        shift = max(1, math.floor(sigma / gaussian_sigma(epsilon, 1e-5)))
        claimed = math.exp(gaussian_log_delta(sigma / shift, epsilon))
        exact = exact_delta(clients, units, shift, epsilon)
        report.row(
            "attack",
            clients=clients,
            units=units,
            epsilon=epsilon,
            shift=shift,
            claimed=claimed,
            exact=exact,
            attack=exact / claimed,
        )


def measure(config, report):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of noise that is large for a ring of 32 bits
        variances(config, report)
    attacks(config, report)
    for shares, epsilon in product(config.shares, EPSILONS):
        report.row(
            "ratios",
            shares=shares,
            epsilon=epsilon,
            distance=DISTANCE,
            ratio=ratio(shares, shares, epsilon),
            one_less=ratio(shares, shares - 1, epsilon),
        )


EXPERIMENT = Experiment(measure, Config(), Config((10_000,), (1.0,), ((300, 2),), (3,)))

if __name__ == "__main__":
    EXPERIMENT.main()
