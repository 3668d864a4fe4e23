"""Low-rank approximation in the linear-transformation model: psi against n for every route.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Figure 2: d = 50, k = 5 and 10, epsilon = 0.1 and 0.5.
Data: k singular values sqrt(n / k), the others 1/n, random bases; rows cut to the public norm 2. m = 100, delta = 1e-6.
Command:  python experiments/regression/low_rank.py
Expected: at n = 5e5, k = 5 the Gram route, whose noise is a curator's, has psi 9.5e-5 (epsilon = .1) and 4.7e-6 (.5)
    to a few percent, as predicted; MOD-SULQ .58 and .03 as published, 1.8e-4 and 9e-6 calibrated exactly; the sketch
    with exact noise .9 and .6, a random space .9. Noise of variance 2 ln(1.25/delta)/(epsilon^2 n^p), p = 1, falls
    with n like the paper's curves, at the true epsilon printed.
Output: results/ltm/low_rank.csv and low_rank.png. Time: three minutes on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.regression import (
    GramRelease,
    LocalRows,
    clipped_rows,
    mod_sulq,
    paper_mod_sulq,
    predicted_psi,
    psi,
    random_psi,
    second_moments,
    spectrum_rows,
    top_directions,
)
from torchdp.sketching import (
    GaussianNoise,
    balanced_count_sketch,
    entry_variance,
    paper_experiment_noise,
    paper_gaussian_noise,
)

DELTA, COLUMNS, HEIGHT, BOUND = 1e-6, 50, 100, 2.0
COLOURS = {
    "random": "#999999",
    "local": "#555555",
    "Cor. 4.7": "#D55E00",
    "sketch": "#0072B2",
    "paper exp., p = 0.5": "#F0C060",
    "paper exp., p = 1": "#E69F00",
    "MOD-SULQ, published": "#CC79A7",
    "MOD-SULQ, exact": "#56B4E9",
    "Gram": "#009E73",
}
FIELDS = ("n", "k", "epsilon", "method", "psi", "deviation", "predicted", "true_epsilon")


def errors(A, rank: int, epsilon: float, runs: int, generator: torch.Generator):
    """For each method psi of every run, the prediction if there is one, and the epsilon that it spends."""
    n, moments = len(A), second_moments(A)
    random = torch.linalg.qr(torch.randn(runs, COLUMNS, rank, dtype=torch.float64, generator=generator)).Q
    found = {"random": (psi(moments, random), random_psi(moments, rank), 0.0)}
    sketch = balanced_count_sketch(n, HEIGHT, generator=generator)
    exact = math.sqrt(entry_variance(BOUND, epsilon=epsilon, delta=DELTA) * HEIGHT / n)
    experiment = paper_experiment_noise(sketch, epsilon=epsilon, delta=DELTA)
    noises = {"sketch": GaussianNoise(exact), "paper exp., p = 1": experiment}
    noises["paper exp., p = 0.5"] = GaussianNoise(experiment.sigma * n**0.25)
    if n > 20_000:  # otherwise Corollary 4.7 may be undefined
        noises["Cor. 4.7"] = paper_gaussian_noise(
            sketch, COLUMNS, BOUND / math.sqrt(COLUMNS), epsilon=epsilon, delta=DELTA
        )
    SA = []
    for _ in range(runs):
        SA.append(balanced_count_sketch(n, HEIGHT, generator=generator).apply(A))
    for name, noise in noises.items():
        level = noise.variance(sketch).sqrt()[:, None]
        Y = torch.stack(SA) + level * torch.randn(runs, HEIGHT, COLUMNS, dtype=torch.float64, generator=generator)
        spent = noise.guarantee(sketch, BOUND, delta=DELTA).epsilon
        found[name] = psi(moments, top_directions(Y.mT @ Y, rank)), math.nan, spent
    own = SeededNoise.of(generator)
    local = LocalRows(COLUMNS, BOUND, epsilon, DELTA).release(moments, noise=own, sample_shape=(runs,))
    found["local"] = psi(moments, top_directions(local, rank)), math.nan, epsilon
    gram = GramRelease(n, COLUMNS, BOUND, epsilon, DELTA)
    centrals = {
        "MOD-SULQ, published": paper_mod_sulq(n, COLUMNS, BOUND, epsilon, DELTA),
        "MOD-SULQ, exact": mod_sulq(COLUMNS, BOUND, epsilon, DELTA),
        "Gram": gram,
    }
    for name, mechanism in centrals.items():
        noisy = mechanism.release(moments, noise=own, sample_shape=(runs,))
        predicted = predicted_psi(moments, rank, float(noisy.gram_sigma.max()))  # one for all runs
        found[name] = psi(moments, top_directions(noisy.gram, rank)), predicted, mechanism.guarantee.epsilon
    return found


def draw(path: Path, target: Path) -> None:
    from matplotlib.figure import Figure

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    panels = sorted({(float(r["epsilon"]), int(r["k"])) for r in rows})
    figure = Figure(figsize=(5.6 * min(2, len(panels)), 3.9 * -(-len(panels) // 2)), layout="constrained")
    for axes, (epsilon, k) in zip(
        figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).flat, panels, strict=False
    ):
        for name, colour in COLOURS.items():
            some = [r for r in rows if (float(r["epsilon"]), int(r["k"]), r["method"]) == (epsilon, k, name)]
            some.sort(key=lambda r: float(r["n"]))
            x, y = [float(r["n"]) for r in some], [max(float(r["psi"]), 1e-12) for r in some]
            bars = [min(float(r["deviation"]), 0.9 * v) for r, v in zip(some, y, strict=True)]
            label = name + (f" (true epsilon {float(some[-1]['true_epsilon']):.2g})" if "p = " in name else "")
            axes.errorbar(x, y, bars, label=label, color=colour, marker=".", capsize=2, linewidth=1)
            if name == "Gram":
                axes.plot(x, [float(r["predicted"]) for r in some], "k--", linewidth=0.8, label="Gram, predicted")
        axes.set(
            xscale="log", yscale="log", xlabel="clients n", ylabel="psi", title=f"epsilon = {epsilon:g}, k = {k}"
        )
        axes.grid(True, which="both", linewidth=0.2)
    figure.axes[0].legend(fontsize=6)
    figure.suptitle("Low-rank approximation, d = 50, m = 100; bars: one standard deviation of the runs")
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/ltm"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    sizes, runs = (
        ((2000, 20_000), 3) if options.smoke else ([round(1000 * 1.5**i) for i in range(0, 17, 2)] + [500_000], 10)
    )
    generator, path = keyed_generator(b"low rank"), options.out / "low_rank.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for k in (5,) if options.smoke else (5, 10):
            for n in sizes:
                A = clipped_rows(spectrum_rows(n, COLUMNS, k, generator=generator), BOUND)
                for epsilon in (0.1, 0.5):
                    found = errors(A, k, epsilon, runs, generator)
                    for name, (values, predicted, spent) in found.items():
                        cells = (n, k, epsilon, name, float(values.mean()), float(values.std()), predicted, spent)
                        writer.writerow(dict(zip(FIELDS, cells, strict=True)))
                    if n == sizes[-1]:
                        print(
                            f"\npsi, n = {n}, d = {COLUMNS}, k = {k}, epsilon = {epsilon:g}, mean of {runs} runs"
                        )
                        for name, (values, predicted, spent) in found.items():
                            error = float(values.std()) / math.sqrt(runs)
                            line = f"{name:<22}{float(values.mean()):>10.3g} +- {error:<9.2g}"
                            print(line + f" predicted {predicted:<10.3g} true epsilon {spent:.3g}", flush=True)
    draw(path, options.out / "low_rank.png")
    print(path.resolve())


if __name__ == "__main__":
    main()
