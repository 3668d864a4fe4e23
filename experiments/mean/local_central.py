"""Local against central means on a skewed box: shaped and round noise, and their lower bounds.

Paper: Nikolov, Tang (2023), Theorems 15, 17, 4 and 55.
Command:  python experiments/mean/local_central.py
Expected: (E ||error||_2^2)^{1/2} at epsilon = 1. Local errors fall like n^{-1/2}, central ones like
1/n; shaped noise
    has an error 1.64 times less than that of round noise in both. PrivUnit is 2.5 times the local
    lower bound for every data set, and 9 % below a point release of full budget, whose error is in
    closed form. Measured / predicted is 1 within 0.03.
Output: results/mean/local_central/local_central.csv and local_central.png.
Artifact: Nikolov, Tang (2023) | Theorems 4, 15, 17, 55
Status: agrees
Time: half a minute; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from errors import measured

from torchdp.domains import Box, noise_shape, round_shape
from torchdp.mean import GaussianMean, LocalMean, approximate_lower_bound, local_lower_bound
from torchdp.mean.gaussian import MeanProtocol
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots

EPSILON = 1.0
DELTA = 1e-6


def of_draws(mechanism: MeanProtocol, points, n, key, trials):
    counts = torch.full((len(points),), n // len(points))
    generator = keyed_generator(f"{key} {n}".encode())
    drawn = mechanism.sample_estimate(
        Crowd(points, counts), generator=generator, sample_shape=(trials,)
    )
    errors = drawn.value - points.mean(0)
    return measured(errors.square().sum(1))


@dataclass(frozen=True)
class Config:
    users: tuple[int, ...] = (160, 1600, 16_000, 160_000, 1_600_000)
    trials: int = 2000


def measure(config, report):
    torch.set_num_threads(1)
    d = 8
    sides = 2.0 ** torch.arange(d, dtype=torch.float64)
    domain = Box(torch.zeros(d, dtype=torch.float64), sides)
    shaped = noise_shape(domain, 2.0)
    plain = round_shape(domain, 2.0)
    mechanisms = {
        "local, shaped, PrivUnit": LocalMean.calibrated(domain, shaped, epsilon=EPSILON),
        "local, round, PrivUnit": LocalMean.calibrated(domain, plain, epsilon=EPSILON),
        "central, shaped": GaussianMean.calibrated(domain, shaped, epsilon=EPSILON, delta=DELTA),
        "central, round": GaussianMean.calibrated(domain, plain, epsilon=EPSILON, delta=DELTA),
    }
    gamma = float(shaped.certificate.lower)
    generator = keyed_generator(b"local_central", "cpu")
    uniform = torch.rand(16, d, dtype=torch.float64, device="cpu", generator=generator)
    points = torch.as_tensor(uniform) * sides
    # from the middle of the box, which is known
    squares = (points - sides / 2).square().sum(1)
    variance = float(PrivUnit.unit_variance(d, EPSILON))
    for n in config.users:
        for method, mechanism in mechanisms.items():
            found = of_draws(mechanism, points, n, method, config.trials)
            predicted = mechanism.error(n).root_mean_square.value
            row = {"predicted": predicted, **found, "ratio": found["measured"] / predicted}
            report.row("local_central", method=method, n=n, **row)
        # Blasiok et al. (2019): a message of covariance (pi/2) coth(epsilon/2)^2 I - u u^T for the
        # user's u
        by_priv_unit = mechanisms["local, shaped, PrivUnit"].error(n).root_mean_square.value
        isotropic = by_priv_unit**2 * math.pi / 2 / math.tanh(EPSILON / 2) ** 2 / variance
        own = float(squares.mean()) / n
        bounds = {
            "local, shaped, point release": math.sqrt(isotropic - own),
            "local lower bound, every data set": local_lower_bound(gamma, n, EPSILON),
            "central lower bound, a neighbour": approximate_lower_bound(
                gamma, n, EPSILON, DELTA, d
            ),
        }
        for method, bound in bounds.items():
            cells = dict.fromkeys(("measured", "standard_error", "ratio"))
            report.row("local_central", method=method, n=n, predicted=bound, **cells)


def draw(tables):
    rows = tables["local_central"]
    figure, (axes,) = subplots(size=(6.5, 4.8))
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        n, predicted, measured, errors = columns(
            rows, "n", "predicted", "measured", "standard_error", method=method
        )
        axes.plot(n, predicted, "--" if "bound" in method else "-", color=f"C{i}", label=method)
        if measured[0] is not None:
            bars = [2 * error for error in errors]
            axes.errorbar(n, measured, bars, fmt="o", markersize=3, capsize=2, color=f"C{i}")
    axes.set(xscale="log", yscale="log", xlabel="users n", ylabel="root mean squared l_2 error")
    axes.set_title("box with sides 1, 2, ..., 128; epsilon = 1 (central: delta = 1e-6)")
    axes.grid(True, linewidth=0.3)
    axes.legend(fontsize="x-small")
    return {"local_central.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config((160, 16_000), 200), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
