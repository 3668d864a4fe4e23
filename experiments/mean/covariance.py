"""Private covariance of real data: unbiased, projected, and what an unbiased estimate must cost.

Papers: Nikolov, Tang (2023), Theorem 6 and the text after it; Nikolov, Talwar, Zhang (2016) for the
projection.
Command:  python experiments/mean/covariance.py
Expected: relative Frobenius error at epsilon = 1, delta = 1e-6, on breast cancer
(30 measurements over their published
    maxima) and digits (64 pixels), rows shortened to norm 1, data repeated to reach n. The joint
    release errs 3.1 to 3.3 times less than noise on every entry; unbiased errors fall like 1/n and
    are about 8 times the lower bound, which has no log(1/delta); projections, biased, are closer
    for few users, where all errors are large. Measured / predicted is 1 within 0.03. An error of 1
    is what answering 0 has.
Output: results/mean/covariance/covariance.csv and covariance.png.
Artifact: Nikolov, Tang (2023) | Theorem 6
Status: agrees
Time: half a minute; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from errors import measured

from torchdp.domains import lp_ball, noise_shape
from torchdp.mean import (
    GaussianCovariance,
    approximate_lower_bound,
    moment_norm,
    project_covariance,
    project_second_moment,
)
from torchdp.privacy import gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots

EPSILON = 1.0
DELTA = 1e-6
ENTRIES = "every entry apart, mean apart"
JOINT = "joint release, unbiased"
POSITIVE = "made positive, biased"
PROJECTED = "second moment projected, biased"
LOWER = "lower bound, unbiased, or on a neighbour"


def tables():
    """Rows in the unit ball: each measurement over its public maximum, then over the root of the
    dimension.
    """
    from sklearn.datasets import load_breast_cancer, load_digits

    cancer = torch.as_tensor(load_breast_cancer().data)
    digits = torch.as_tensor(load_digits().data) / 16
    cancer = cancer / cancer.amax(0)
    found = {}
    for name, rows in {"breast cancer": cancer, "digits": digits}.items():
        ball = lp_ball(rows.shape[1], 2.0)
        found[name] = ball.project(rows / (rows.shape[1] / 4) ** 0.5)
    return found


def errors(drawn, exact) -> tuple[float, float]:
    relative = (drawn - exact).square().sum((1, 2)) / exact.square().sum()
    found = measured(relative)
    return found["measured"], found["standard_error"]


def outer(means):
    """m m^T of each."""
    return means[:, :, None] * means[:, None, :]


def every_entry(x, trials):
    """What noise without a shape does: half the budget for each, independent noise on all d^2
    entries, as a matrix.

    (epsilon/2, delta/2) twice; sensitivity 2 for the second moment, that of a set of diameter 2,
    and for the mean.
    """
    n, d = x.shape
    sigma = 2 * gaussian_sigma(EPSILON / 2, DELTA / 2) / n
    generator = keyed_generator(f"every entry {n} {d}".encode())
    second = x.mT @ x / n + sigma * torch.randn(trials, d, d, dtype=x.dtype, generator=generator)
    mean = x.mean(0) + sigma * torch.randn(trials, d, dtype=x.dtype, generator=generator)
    return second - outer(mean) + sigma**2 * torch.eye(d, dtype=x.dtype)


def methods(name, rows, copies, trials):
    """Predicted error, measured error and its standard error of each method."""
    x = rows.repeat(copies, 1)
    n, d = x.shape
    exact = torch.cov(rows.mT, correction=0)
    ball = lp_ball(d, 2.0)
    shape = noise_shape(ball, 2.0)
    mechanism = GaussianCovariance.calibrated(ball, shape, epsilon=EPSILON, delta=DELTA)
    size = float(exact.norm())
    summary = mechanism.summary(x)
    generator = keyed_generator(f"{name} {n}".encode())
    predicted = float(mechanism.predicted_mse(summary).sum().sqrt()) / size
    drawn = mechanism.analyse(
        mechanism.sample_tally(summary, generator=generator, sample_shape=(trials,))
    )
    # The same release as a second moment, moved to the nearest that data in the ball can have; so
    # is the mean.
    variance = (mechanism.moment_noise(n) / mechanism.mean_weight) ** 2
    noisy = drawn.mean.value
    second = drawn.value + outer(noisy) - variance * torch.eye(d, dtype=x.dtype)
    near = project_covariance(project_second_moment(second) - outer(ball.project(noisy)))
    # Others' mean m takes nothing away: the odd part of (y - m)(y - m)^T, y on the sphere, only
    # adds to its covariance.
    norm = (1 - 1 / n) * moment_norm(d, 2)
    floor = approximate_lower_bound(norm, n, EPSILON, DELTA, d * d)
    positive = project_covariance(drawn.value)
    return {
        ENTRIES: (math.nan, *errors(every_entry(x, trials), exact)),
        JOINT: (predicted, *errors(drawn.value, exact)),
        POSITIVE: (math.nan, *errors(positive, exact)),
        PROJECTED: (math.nan, *errors(near, exact)),
        LOWER: (floor / size, math.nan, math.nan),
    }


@dataclass(frozen=True)
class Config:
    data: tuple[str, ...] = ("breast cancer", "digits")
    copies: tuple[int, ...] = (1, 4, 16, 64, 256)  # of each row
    trials: int = 200


def measure(config, report):
    torch.set_num_threads(1)
    rows = tables()
    for name in config.data:
        for copies in config.copies:
            n = copies * len(rows[name])
            for method, found in methods(name, rows[name], copies, config.trials).items():
                cells = dict(zip(("predicted", "measured", "standard_error"), found, strict=True))
                report.row("covariance", data=name, n=n, method=method, **cells)


def draw(tables):
    rows = tables["covariance"]
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = subplots(len(names), size=(5, 4), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        for i, method in enumerate((ENTRIES, JOINT, POSITIVE, PROJECTED, LOWER)):
            n, predicted, measured, errors = columns(
                rows, "n", "predicted", "measured", "standard_error", data=name, method=method
            )
            if method == LOWER:
                axes.plot(n, predicted, "--", color=f"C{i}", linewidth=0.8, label=method)
                continue
            style = "o:"
            if method == JOINT:
                axes.plot(n, predicted, "-", color=f"C{i}", linewidth=0.8)
                style = "o"
            bars = [2 * error for error in errors]
            line = {"markersize": 3, "capsize": 2, "color": f"C{i}", "label": method}
            axes.errorbar(n, measured, bars, fmt=style, **line)
        axes.axhline(1.0, color="grey", linewidth=0.5)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="users n",
            title=f"{name}, epsilon = 1, delta = 1e-6, central",
        )
        axes.grid(True, linewidth=0.3)
    panels[0].set_ylabel("Frobenius error / norm of the covariance")
    panels[0].legend(fontsize="x-small")
    return {"covariance.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config(("breast cancer",), (1, 100), 20), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
