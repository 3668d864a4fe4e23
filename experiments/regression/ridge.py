"""Ridge regression in the linear-transformation model: the Gram route, the sketch, the paper's noise, central, local.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Figures 3 and 4: phi against n, d = 10, lambda = 10, m = 100.
Data: A ~ N(0, 1), b = A x, x ~ N(0, mu^2), all cut to [-1, 1] (how the paper scales is not said); mu = 1 in the table,
    mu^2 = n, as in the paper, in the figures. delta = 1e-6; rows have norm sqrt 10 at most, labels 1.
Command:  python experiments/regression/ridge.py
Expected: at n = 1e6 and epsilon = .03, .1, .5 the Gram route has phi below 1.02, 1.002 and 1.001, like the same
    mechanism run by a curator and not above SSP and AdaSSP. The sketch with exact noise is near phi(0) at epsilon =
    .03 and .1, 1.95 at .5; at n = 1.6e7, debiased and with the predicted best m, 1.04. Noise of variance
    2 ln(1.25/delta)/(epsilon^2 n), which gives numbers of the paper's kind, spends the epsilon under "true exp.".
Output: results/ltm/regression.csv, regression.png, regression_lambda.png.
Time: 80 seconds on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from torchdp.noise import SeededNoise
from torchdp.privacy import Model
from torchdp.randomness import keyed_generator
from torchdp.regression import (
    AdaSSP,
    GramRelease,
    LocalRows,
    SecondMoments,
    SufficientStatistics,
    adaptive_ridge,
    debiased,
    phi,
    predicted_phi_of_sketch,
    regression_rows,
    second_moments,
    solve_ridge,
)
from torchdp.sketching import (
    GaussianNoise,
    balanced_count_sketch,
    entry_variance,
    paper_experiment_noise,
    paper_gaussian_noise,
)

DELTA, COLUMNS, HEIGHT, RIDGE = 1e-6, 10, 100, 10.0
BOUND, LABEL = math.sqrt(COLUMNS), 1.0
JOINT = math.hypot(BOUND, LABEL)
NAMES = ("0", "Cor. 4.7", "sketch", "paper exp.", "Gram", "central", "SSP", "AdaSSP", "local")
FIELDS = ("table", "n", "epsilon", "lambda", "method", "phi", "deviation", "true_epsilon")
COLOURS = dict(
    zip(
        NAMES,
        ("#999999", "#D55E00", "#0072B2", "#E69F00", "#009E73", "#000000", "#CC79A7", "#56B4E9", "#555555"),
        strict=True,
    )
)


def plain(Y: Tensor, ridge: float) -> Tensor:
    """The published analysis of noisy rows: argmin |Y_A x - Y_b|^2 + ridge |x|^2."""
    moments = Y.mT @ Y
    return solve_ridge(moments[..., :-1, :-1], moments[..., :-1, -1], ridge)


def methods(
    moments: SecondMoments,
    SA: Tensor,
    noises: dict[str, Tensor],
    epsilon: float,
    ridge: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """phi of every method: (runs,). SA: (runs, m, d + 1); noises: variances of an entry of each row, (m,)."""
    n, runs = moments.clients, len(SA)
    kind = {"epsilon": epsilon, "delta": DELTA, "label_bound": LABEL}
    found = {"0": torch.zeros(1, COLUMNS)}
    for name, variance in noises.items():
        noise = torch.randn(SA.shape, dtype=torch.float64, generator=generator)
        found[name] = plain(SA + variance.sqrt()[:, None] * noise, ridge)
    own = SeededNoise.of(generator)
    for name, model in (("Gram", Model.LINEAR_TRANSFORM), ("central", Model.CENTRAL)):
        release = GramRelease(n, COLUMNS, BOUND, model=model, **kind)
        found[name] = adaptive_ridge(release.release(moments, noise=own, sample_shape=(runs,)), ridge)
    ssp = SufficientStatistics(COLUMNS, BOUND, LABEL, epsilon, DELTA)
    noisy = ssp.release(moments, noise=SeededNoise.of(generator), sample_shape=(runs,))
    found["SSP"] = solve_ridge(noisy.gram, noisy.cross, ridge)
    ada = AdaSSP(COLUMNS, BOUND, LABEL, epsilon, DELTA)
    found["AdaSSP"] = ada.solve(moments, ridge, noise=SeededNoise.of(generator), sample_shape=(runs,))
    local = LocalRows(COLUMNS, BOUND, **kind).release(
        moments, noise=SeededNoise.of(generator), sample_shape=(runs,)
    )
    found["local"] = solve_ridge(local[..., :-1, :-1], local[..., :-1, -1], ridge)
    return {name: phi(moments, found[name], ridge) for name in NAMES if name in found}


def sketches(A: Tensor, b: Tensor, epsilons: tuple[float, ...], runs: int, generator: torch.Generator):
    """S [A b] for fresh balanced sketches, and for each epsilon the noises and the true epsilon of the paper's."""
    rows, SA = torch.cat([A, b[:, None]], 1), []
    for _ in range(runs):
        sketch = balanced_count_sketch(len(rows), HEIGHT, generator=generator)
        SA.append(sketch.apply(rows))
    noises, true = {}, {}
    for epsilon in epsilons:
        exact = torch.full((HEIGHT,), entry_variance(JOINT, epsilon=epsilon, delta=DELTA), dtype=torch.float64)
        noises[epsilon] = {"sketch": exact}
        experiment = paper_experiment_noise(sketch, epsilon=epsilon, delta=DELTA)
        papers: dict[str, GaussianNoise] = {"paper exp.": experiment}
        try:
            papers["Cor. 4.7"] = paper_gaussian_noise(sketch, COLUMNS + 1, 1.0, epsilon=epsilon, delta=DELTA)
        except ValueError:
            pass  # undefined for so few clients
        for name, noise in papers.items():
            noises[epsilon][name] = noise.variance(sketch)
            true[epsilon, name] = noise.guarantee(sketch, JOINT, delta=DELTA).epsilon
    return torch.stack(SA), noises, true


def record(writer, table: str, n: int, epsilon: float, ridge: float, values: dict[str, Tensor], true) -> None:
    for name, errors in values.items():
        deviation = float(errors.std()) if len(errors) > 1 else 0.0
        spent = true.get((epsilon, name), epsilon)
        writer.writerow(
            dict(
                zip(FIELDS, (table, n, epsilon, ridge, name, float(errors.mean()), deviation, spent), strict=True)
            )
        )


def table(writer, smoke: bool) -> None:
    n, sets, runs = (20_000, 2, 5) if smoke else (1_000_000, 5, 20)
    epsilons = (0.1, 0.5) if smoke else (0.03, 0.1, 0.5)
    generator, collected, spent = keyed_generator(b"regression table"), {e: [] for e in epsilons}, {}
    for _ in range(sets):
        A, b = regression_rows(n, COLUMNS, 1.0, generator=generator)
        SA, noises, true = sketches(A, b, epsilons, runs if smoke else 5, generator)
        SA, moments = SA.repeat(-(-runs // len(SA)), 1, 1), second_moments(A, b)
        spent |= true
        for epsilon in epsilons:
            collected[epsilon].append(methods(moments, SA, noises[epsilon], epsilon, RIDGE, generator))
    print(
        f"phi, n = {n}, d = {COLUMNS}, m = {HEIGHT}, lambda = {RIDGE:g}, mean of {sets} data sets ({runs} runs each)"
    )
    print(f"{'epsilon':>8}" + "".join(f"{name:>11}" for name in NAMES) + f"{'true 4.7':>10}{'true exp.':>10}")
    for epsilon, several in collected.items():
        values = {name: torch.cat([v[name] for v in several]) for name in NAMES if name in several[0]}
        record(writer, "table", n, epsilon, RIDGE, values, spent)
        cells = (f"{float(values[name].mean()):>11.5g}" if name in values else f"{'-':>11}" for name in NAMES)
        papers = (spent.get((epsilon, name), math.nan) for name in ("Cor. 4.7", "paper exp."))
        print(f"{epsilon:>8g}" + "".join(cells) + "".join(f"{e:>10.3g}" for e in papers), flush=True)


def large(smoke: bool) -> None:
    """Where the sketch starts to work. Rows are iid and (a, b) has the law of (-a, -b): the plain sum of a bucket of
    consecutive clients has the law of a signed sum of random ones, jointly with the moments."""
    generator, fine = keyed_generator(b"regression large"), 6400
    print("\nlarge n, epsilon = 0.5")
    print(f"{'n':>10}{'phi(0)':>9}{'rows':>7}{'predicted':>11}{'sketch':>9}{'debiased':>10}{'Gram':>10}")
    for n in (64_000,) if smoke else (1_024_000, 4_096_000, 16_384_000, 65_536_000):
        x, bucket, sums, moments = torch.randn(COLUMNS, generator=generator), n // fine, [], None
        for _ in range(64):
            A = torch.randn(n // 64, COLUMNS, generator=generator).clamp_(-1, 1)
            rows = torch.cat([A, (A @ x).clamp_(-1, 1)[:, None]], 1)
            sums.append(rows.view(-1, bucket, COLUMNS + 1).double().sum(1))
            part = second_moments(rows)
            moments = part if moments is None else moments + part
        V = entry_variance(JOINT, epsilon=0.5, delta=DELTA)
        heights = [100, 200, 400, 800, 1600, 3200, 6400]
        predicted = {m: predicted_phi_of_sketch(moments, RIDGE, m, V) for m in heights}
        m = min(heights, key=lambda height: predicted[height])
        SA = torch.cat(sums).view(m, -1, COLUMNS + 1).sum(1)
        Y = SA + math.sqrt(V) * torch.randn(50, *SA.shape, dtype=torch.float64, generator=generator)
        release = GramRelease(n, COLUMNS, BOUND, 0.5, DELTA, label_bound=LABEL)
        gram = release.release(moments, noise=SeededNoise.of(generator), sample_shape=(50,))
        solutions = plain(Y, RIDGE), adaptive_ridge(debiased(Y, V), RIDGE), adaptive_ridge(gram, RIDGE)
        cells = [float(phi(moments, solution, RIDGE).mean()) for solution in solutions]
        zero = float(phi(moments, torch.zeros(COLUMNS), RIDGE))
        print(
            f"{n:>10}{zero:>9.3f}{m:>7}{predicted[m]:>11.3f}{cells[0]:>9.3f}{cells[1]:>10.3f}{cells[2]:>10.5f}",
            flush=True,
        )


def sweep(writer, smoke: bool) -> None:
    sizes = [round(1000 * 1.5**i) for i in ((0, 6) if smoke else range(17))]
    epsilons, runs = ((0.1,), 3) if smoke else ((0.01, 0.03, 0.05, 0.1), 20)
    generator = keyed_generator(b"regression sweep")
    for n in sizes:
        A, b = regression_rows(n, COLUMNS, math.sqrt(n), generator=generator)
        moments = second_moments(A, b)
        SA, noises, true = sketches(A, b, epsilons, runs, generator)
        for epsilon in epsilons:
            for ridge in (1.0, 10.0, 100.0):
                values = methods(moments, SA, noises[epsilon], epsilon, ridge, generator)
                record(writer, "sweep", n, epsilon, ridge, values, true)


def draw(path: Path, target: Path, ridges: tuple[float, ...], title: str) -> None:
    from matplotlib.figure import Figure

    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "sweep"]
    epsilons = sorted({float(row["epsilon"]) for row in rows})
    panels = [(epsilon, ridge) for epsilon in epsilons for ridge in ridges]
    wide = len(ridges) if len(ridges) > 1 else min(2, len(panels))
    high = -(-len(panels) // wide)
    figure = Figure(figsize=(5.2 * wide, 3.6 * high), layout="constrained")
    for axes, (epsilon, ridge) in zip(figure.subplots(high, wide, squeeze=False).flat, panels, strict=False):
        for name in NAMES:
            some = [
                r for r in rows if (float(r["epsilon"]), float(r["lambda"]), r["method"]) == (epsilon, ridge, name)
            ]
            if not some or name == "central":
                continue
            x, y = [float(r["n"]) for r in some], [float(r["phi"]) for r in some]
            label = "Gram = central" if name == "Gram" else "x = 0" if name == "0" else name
            if name == "paper exp.":
                label += f" (true epsilon {float(some[-1]['true_epsilon']):.2g})"
            bars = [
                min(float(r["deviation"]), 0.5 * v) for r, v in zip(some, y, strict=True)
            ]  # not to leave the axes
            axes.errorbar(x, y, bars, label=label, color=COLOURS[name], marker=".", capsize=2, linewidth=1)
        axes.set(xscale="log", yscale="log", ylim=(0.9, 10), xlabel="clients n", ylabel="phi")
        axes.set_title(f"epsilon = {epsilon:g}, lambda = {ridge:g}")
        axes.grid(True, which="both", linewidth=0.2)
    figure.axes[0].legend(fontsize=7, ncols=2)
    figure.suptitle(title)
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/ltm"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "regression.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        table(writer, options.smoke)
        large(options.smoke)
        sweep(writer, options.smoke)
    title = "Ridge regression, d = 10, m = 100; bars: one standard deviation of 20 runs"
    draw(path, options.out / "regression.png", (RIDGE,), title)
    draw(path, options.out / "regression_lambda.png", (1.0, 10.0, 100.0), title)
    print(path.resolve())


if __name__ == "__main__":
    main()
