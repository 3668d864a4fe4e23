"""Error of a private Gaussian kernel density, its three parts, and what each user sends.

Paper: Wagner (2025), Figures 2 (messages of a user) and 3 (error of the density at queries).
Command:  python experiments/density/error.py --data documentation   (made by data.py; or as in
classification.py)
Expected: measured root mean squared errors over the queries equal those predicted in closed form.
With exact
    calibration the random features are the largest part, which orthogonal frequencies make smaller;
    a curator, who adds up the features themselves, has no part of rounding, and never more privacy
    noise than a shuffled protocol. The paper's calibration of randomized response is about 60 times
    as noisy.
    Pure sends 60 to 1,100 times as many messages as randomized response.
Notes: the features, of which all protocols have the same draws, are most of the error, and most of
the bars (two
    standard errors over those draws): what privacy adds is the difference of two curves, the dotted
    line and the column privacy.
Output: results/density/error/error_<data>.csv and .png.
Artifact: Wagner (2025) | Figures 2, 3
Status: agrees on digits; the paper's embeddings are not at hand
Time: digits a few minutes; --smoke in seconds.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from classification import EPSILONS, KERNELS, PROTOCOLS, against_epsilon, load, protocol

from torchdp.density import kernel_means
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots


@dataclass(frozen=True)
class Config:
    data: str = "digits"
    folder: Path = Path("results/density/data")  # of embeddings
    kernels: tuple[str, ...] = ("Gaussian", "Gaussian, orthogonal")
    protocols: tuple[str, ...] = PROTOCOLS
    epsilons: tuple[float, ...] = EPSILONS
    draws: int = 12  # of the public features
    queries: int = 300


SMOKE = Config(kernels=("Gaussian, orthogonal",), epsilons=(4.5,), draws=2)


def measure(config, report):
    data = load(config.data, config.folder)
    queries = data.queries[: config.queries]
    n, bits = data.x.shape
    delta = data.delta
    report.say(
        f"{data.name}: {n} users, {bits} bits of each, delta = {delta:g}; root mean squared errors"
    )
    table = f"error_{data.name.replace(' ', '_')}"
    for kernel in config.kernels:
        # One public draw for all protocols: its error, which is larger than privacy's, then moves
        # no curve.
        key = f"{data.name} {kernel}"
        public = keyed_generator(key.encode())
        drawn = [KERNELS[kernel](bits, public) for _ in range(config.draws)]
        truth = kernel_means(drawn[0].family, data.x, queries)
        for name in config.protocols:
            for epsilon in config.epsilons:
                generator = keyed_generator(f"{key} {name} {epsilon}".encode())
                parts = torch.zeros(3, dtype=torch.float64)
                errors = []
                for features in drawn:
                    kde = protocol(name, features, n, epsilon, delta)
                    crowd = kde.summary(data.x)
                    mse = kde.density_mse(crowd, queries)
                    means = [mse.feature.mean(), mse.rounding.mean(), mse.privacy.mean()]
                    parts += torch.stack(means) / config.draws
                    released = kde.sample_estimate(crowd, generator=generator, sample_shape=(4,))
                    errors.append((released.evaluate(queries) - truth).square().mean())
                feature, rounding, privacy = parts.sqrt()
                squares = torch.stack(errors)
                measured = squares.mean().sqrt()
                spread = squares.std() / len(squares) ** 0.5
                report.row(
                    table,
                    kernel=kernel,
                    protocol=name,
                    epsilon=epsilon,
                    messages=getattr(kde, "messages_per_user", features.instances),
                    feature=feature,
                    rounding=rounding,
                    privacy=privacy,
                    predicted=parts.sum().sqrt(),
                    measured=measured,
                    standard_error=spread / (2 * measured),
                )


def draw(tables):
    return {
        f"{name}.png": curves(rows) for name, rows in tables.items() if name.startswith("error_")
    }


def curves(rows):
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    figure, panels = subplots(len(kernels) + 1, size=(3.7, 3.8), wide=len(kernels) + 1)
    there = {row["protocol"] for row in rows}
    for i, name in enumerate(each for each in PROTOCOLS if each in there):
        for axes, kernel in zip(panels, kernels, strict=False):
            names = ("epsilon", "predicted", "measured", "standard_error", "privacy")
            cells = {"kernel": kernel, "protocol": name}
            x, predicted, measured, errors, privacy = columns(rows, *names, **cells)
            bars = [2 * error for error in errors]
            axes.plot(x, predicted, "-", color=f"C{i}", label=name)
            if any(privacy):
                axes.plot(x, privacy, ":", color=f"C{i}")
            axes.errorbar(x, measured, bars, fmt="o", color=f"C{i}", markersize=3, capsize=2)
            axes.set(
                title=kernel, yscale="log", ylabel="root mean squared error; dotted: privacy's part"
            )
        if name not in ("no privacy", "curator's Gaussian noise"):
            x, messages = columns(rows, "epsilon", "messages", kernel=kernels[0], protocol=name)
            panels[-1].plot(x, messages, "o-", color=f"C{i}", markersize=3)
    panels[-1].set(title="messages of one user", yscale="log")
    return against_epsilon(figure, panels, rows)


EXPERIMENT = Experiment(measure, Config(), SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
