"""Secure sums in rings of 32 and 64 bits: the variance of their noise over the needed one, and an attack on the grid.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4, for the protocol; proof: ``secure.rounding``.
Command:  python experiments/secure/grid.py
Expected: ``factor``: variance over that of real numbers, 1.014 at most in every row, where spreading a row's difference
    over whole units of honest clients (``spread``) asks for up to thousands. "Gram": encodings of 10 columns and
    labels, sensitivity and entries those of GramRelease. ``attack``: the exact delta of a sum of rounded normals in one
    column, by repeated convolution, over the stated delta: at most 1.
Output: results/secure/grid/grid.csv, attack.csv; printed: ``experiments/bench/grid_cpu.txt``.
Artifact: Burkhardt et al. (2025) | section 4, on a grid
Status: agrees; a bound of our own
Time: half a minute on one core; --smoke in seconds.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.regression import GramRelease
from torchdp.secure import SecureSketch
from torchdp.secure.rounding import grid_sensitivity, grid_sigma
from torchdp.simulate import Experiment, Report
from torchdp.sketching import ones

DELTA = 1e-6


def settings(clients: int, kind: str, epsilon: float, bits: int) -> SecureSketch:
    """Of rows of 10 or 1,000 columns in the unit ball, or of Gram encodings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "Gram":
            gram = GramRelease(clients, 10, 1.0, epsilon, DELTA, label_bound=1.0)
            reach, entry = gram.reach
            noise = gram.noise.sensitivity
            return SecureSketch(
                ones(clients), gram.words, reach, epsilon, DELTA, bits=bits, sensitivity=noise, entry=entry
            )
        return SecureSketch(ones(clients), int(kind.split()[0]), 1.0, epsilon, DELTA, bits=bits)


def spread(protocol: SecureSketch) -> float:
    """The factor without the second proof."""
    ring = protocol.ring
    distance = grid_sensitivity(ring, protocol.bound, protocol.columns, protocol.sensitivity)
    mu = 1 / gaussian_sigma(protocol.epsilon, protocol.delta)
    honest = protocol.honest[:1]
    old = grid_sigma(honest, 1, protocol.columns, ring, distance, mu)
    return float(old / protocol.sigma[0]) ** 2 * protocol.grid_factor


def exact_delta(clients: int, units: float, shift: int, epsilon: float) -> float:
    """Of a sum of rounded normals of this deviation and its shift, by convolution with itself: masses to a few ulp."""
    k = np.arange(math.ceil(9 * units) + 2)
    upper = ndtr(-(k - 0.5) / units) - ndtr(-(k + 0.5) / units)
    part, law, left = np.concatenate([upper[:0:-1], upper]), np.ones(1), clients
    while left:
        if left & 1:
            law = trimmed(np.convolve(law, part))
        part, left = trimmed(np.convolve(part, part)) if left > 1 else part, left >> 1
    here, there = np.pad(law, (0, shift)), np.pad(law, (shift, 0))
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def trimmed(law: np.ndarray) -> np.ndarray:
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


FULL = Config()
SMOKE = Config((10_000,), (1.0,), ((300, 2),))


def measure(config: Config, report: Report) -> None:
    for clients in config.clients:
        for kind in ("10 columns", "1000 columns", "Gram"):
            for epsilon in config.epsilons:
                for bits in (32, 64):
                    made = settings(clients, kind, epsilon, bits)
                    cells = {
                        "fraction_bits": made.ring.fraction_bits,
                        "units": float(made.sigma[0]) * made.ring.scale,
                    }
                    cells |= {"factor": made.grid_factor, "spread": spread(made), "variation": made.variation}
                    report.row("grid", clients=clients, kind=kind, epsilon=epsilon, bits=bits, **cells)
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


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
