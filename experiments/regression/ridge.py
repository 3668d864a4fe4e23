"""Ridge regression in the linear-transformation model: the Gram route, the sketch, the paper's
noise, central, local.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Figures 3 and 4: phi against n, d = 10,
lambda = 10, m = 100.
Data: A ~ N(0, 1), b = A x, x ~ N(0, mu^2), all cut to [-1, 1] (how the paper scales is not said);
mu = 1 in the table,
    mu^2 = n, as in the paper, in the figures. delta = 1e-6; rows have norm sqrt 10 at most,
    labels 1.
Command:  python experiments/regression/ridge.py
Expected: at n = 1e6 and epsilon = .03, .1, .5 the Gram route has phi below 1.02, 1.002 and 1.001,
like the same
    mechanism run by a curator and not above SSP and AdaSSP. The sketch with exact noise is near
    phi(0) at epsilon = .03 and .1, 1.95 at .5. Noise of variance 2 ln(1.25/delta)/(epsilon^2 n),
    which gives numbers of the paper's kind, spends the true_epsilon of its row.
Output: results/regression/ridge/phi.csv (a row for each epsilon and method), against_n.csv,
ridge.png.
Artifact: Burkhardt et al. (2025) | Figures 3, 4
Status: the paper's noise spends more than it promises; the sketch is near phi(0) at n = 1e6
Time: 80 seconds on one core; --smoke in seconds.
"""

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from baselines import AdaSSP, SufficientStatistics
from panels import draw_line, draw_panel
from synthetic import regression_rows

from torchdp.privacy import Model
from torchdp.randomness import keyed_generator
from torchdp.regression import (
    GramRelease,
    LocalRows,
    SecondMoments,
    adaptive_ridge,
    phi,
    solve_ridge,
)
from torchdp.simulate import Experiment, columns, subplots
from torchdp.sketching import balanced_count_sketch, entry_variance, paper

DELTA = 1e-6
COLUMNS = 10
HEIGHT = 100  # m, rows of the sketch
RIDGE = 10.0
# of rows with entries in [-1, 1], of labels, and of both together
BOUND = math.sqrt(COLUMNS)
LABEL = 1.0
JOINT = math.hypot(BOUND, LABEL)
NAMES = ("x = 0", "Cor. 4.7", "sketch", "paper exp.", "Gram", "central", "SSP", "AdaSSP", "local")


def plain(joint):
    """The solution from joint second moments of rows and labels, not debiased."""
    return solve_ridge(joint[..., :-1, :-1], joint[..., :-1, -1], RIDGE)


def methods(moments: SecondMoments, SA, noises, epsilon, generator):
    """phi of every method: (runs,). SA: (runs, m, d + 1); noises: variances of an entry of each
    row, (m,).
    """
    kind = {"epsilon": epsilon, "delta": DELTA, "label_bound": LABEL}
    repeats = {"generator": generator, "sample_shape": (len(SA),)}
    found = {"x = 0": torch.zeros(1, COLUMNS)}
    for name, variance in noises.items():
        noise = torch.randn(SA.shape, dtype=torch.float64, generator=generator)
        Y = SA + variance.sqrt()[:, None] * noise
        found[name] = plain(Y.mT @ Y)
    for name, model in (("Gram", Model.LINEAR_TRANSFORM), ("central", Model.CENTRAL)):
        release = GramRelease(moments.n, COLUMNS, BOUND, model=model, **kind)
        found[name] = adaptive_ridge(release.sample_estimate(moments, **repeats), RIDGE)
    ssp = SufficientStatistics(COLUMNS, BOUND, LABEL, epsilon, DELTA)
    noisy = ssp.sample_estimate(moments, **repeats)
    found["SSP"] = solve_ridge(noisy.gram, noisy.cross, RIDGE)
    ada = AdaSSP(COLUMNS, BOUND, LABEL, epsilon, DELTA)
    found["AdaSSP"] = ada.solve(ada.sample_estimate(moments, **repeats), RIDGE)
    local = LocalRows(COLUMNS, BOUND, **kind)
    found["local"] = plain(local.sample_tally(moments, **repeats)["gram"])
    return {name: phi(moments, found[name], RIDGE) for name in NAMES if name in found}


def sketches(A, b, epsilons: tuple[float, ...], runs, generator):
    """S [A b] for fresh balanced sketches, and for each epsilon the noises and the true epsilon of
    the paper's.
    """
    rows = torch.cat([A, b[:, None]], 1)
    SA = []
    for _ in range(runs):
        sketch = balanced_count_sketch(len(rows), HEIGHT, generator=generator)
        SA.append(sketch.apply(rows))
    noises, true = {}, {}
    for epsilon in epsilons:
        kind = {"epsilon": epsilon, "delta": DELTA}
        exact = entry_variance(JOINT, **kind)
        noises[epsilon] = {"sketch": torch.full((HEIGHT,), exact, dtype=torch.float64)}
        papers = {"paper exp.": paper.experiment_noise(sketch, **kind)}
        # undefined for few clients
        with suppress(ValueError):
            papers["Cor. 4.7"] = paper.gaussian_noise(sketch, COLUMNS + 1, 1.0, **kind)
        for name, noise in papers.items():
            noises[epsilon][name] = noise.variance(sketch)
            true[epsilon, name] = noise.guarantee(sketch, JOINT, delta=DELTA).epsilon
    return torch.stack(SA), noises, true


@dataclass(frozen=True)
class Config:
    users: int = 1_000_000
    sets: int = 5  # of data
    sketches: int = 5  # drawn for each set, and used again for the other runs
    runs: int = 20
    epsilons: tuple[float, ...] = (0.03, 0.1, 0.5)
    sizes: tuple[int, ...] = tuple(round(1000 * 1.5**i) for i in range(17))  # of the figures
    size_epsilons: tuple[float, ...] = (0.01, 0.03, 0.05, 0.1)
    size_runs: int = 20


SMOKE = Config(20_000, 2, 5, 5, (0.1, 0.5), (1000, 11391), (0.1,), 3)


def record(report, table, n, epsilon, values, true):
    for name, errors in values.items():
        report.row(
            table,
            n=n,
            epsilon=epsilon,
            method=name,
            phi=errors.mean(),
            deviation=errors.std() if len(errors) > 1 else 0.0,
            true_epsilon=true.get((epsilon, name), epsilon),
        )


def one_size(config, report):
    n = config.users
    generator = keyed_generator(b"regression table")
    collected = {epsilon: [] for epsilon in config.epsilons}
    spent = {}
    for _ in range(config.sets):
        A, b = regression_rows(n, COLUMNS, 1.0, generator=generator)
        SA, noises, true = sketches(A, b, config.epsilons, config.sketches, generator)
        SA = SA.repeat(-(-config.runs // len(SA)), 1, 1)
        moments = SecondMoments.of(A, b)
        spent |= true
        for epsilon, several in collected.items():
            several.append(methods(moments, SA, noises[epsilon], epsilon, generator))
    report.say(
        f"phi, n = {n}, d = {COLUMNS}, m = {HEIGHT}, mean of {config.sets} data sets "
        f"({config.runs} runs each)"
    )
    for epsilon, several in collected.items():
        values = {name: torch.cat([of_set[name] for of_set in several]) for name in several[0]}
        record(report, "phi", n, epsilon, values, spent)


def against_n(config, report):
    generator = keyed_generator(b"regression sweep")
    for n in config.sizes:
        A, b = regression_rows(n, COLUMNS, math.sqrt(n), generator=generator)
        moments = SecondMoments.of(A, b)
        SA, noises, true = sketches(A, b, config.size_epsilons, config.size_runs, generator)
        for epsilon in config.size_epsilons:
            values = methods(moments, SA, noises[epsilon], epsilon, generator)
            record(report, "against_n", n, epsilon, values, true)


def measure(config, report):
    torch.set_num_threads(1)
    one_size(config, report)
    against_n(config, report)


def draw(tables):
    rows = tables["against_n"]
    epsilons = sorted({row["epsilon"] for row in rows})
    figure, panels = subplots(len(epsilons), size=(5.2, 3.6), wide=2)
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for i, name in enumerate(NAMES):
            names = ("n", "phi", "deviation", "true_epsilon")
            x, y, deviations, true = columns(rows, *names, epsilon=epsilon, method=name)
            label = f"{name} (true epsilon {true[-1]:.2g})" if name == "paper exp." else name
            draw_line(axes, x, y, deviations, label=label, colour=f"C{i}")
        draw_panel(axes, f"epsilon = {epsilon:g}, lambda = {RIDGE:g}", "phi")
        axes.set_ylim(0.9, 10)
    figure.axes[0].legend(fontsize=7, ncols=2)
    figure.suptitle(
        "Ridge regression, d = 10, m = 100;\nbars: one standard deviation of 20 runs", fontsize=9
    )
    return {"ridge.png": figure}


EXPERIMENT = Experiment(measure, Config(), SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
