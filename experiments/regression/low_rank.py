"""Low-rank approximation in the linear-transformation model: psi against n for every route.

Paper: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Figure 2: d = 50, k = 5 and 10, epsilon =
0.1 and 0.5.
Data: k singular values sqrt(n / k), the others 1/n, random bases; rows cut to the public norm 2.
m = 100, delta = 1e-6.
Command:  python experiments/regression/low_rank.py
Expected: at n = 5e5, k = 5 the Gram route, whose noise is a curator's, has psi 9.5e-5
(epsilon = .1) and 4.7e-6 (.5)
    to a few percent, as predicted; MOD-SULQ .58 and .03 as published, 1.8e-4 and 9e-6 calibrated
    exactly; the sketch with exact noise .9 and .6, a random space .9. Noise of variance 2
    ln(1.25/delta)/(epsilon^2 n^p), p = 1, falls with n like the paper's curves, at the true epsilon
    printed.
Output: results/regression/low_rank/low_rank.csv and low_rank.png.
Artifact: Burkhardt et al. (2025) | Figure 2
Status: the paper's curves need more epsilon than stated
Time: three minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from baselines import ModSulq, published_mod_sulq
from panels import draw_line, draw_panel
from synthetic import spectrum_rows

from torchdp.randomness import keyed_generator
from torchdp.regression import GramRelease, LocalRows, SecondMoments, psi, top_directions
from torchdp.regression.errors import shortened
from torchdp.regression.ridge import predicted_psi, random_psi
from torchdp.simulate import Experiment, columns, subplots
from torchdp.sketching import GaussianNoise, balanced_count_sketch, entry_variance, paper

DELTA = 1e-6
COLUMNS = 50
HEIGHT = 100  # m, rows of the sketch
BOUND = 2.0
NAMES = (
    "random", "local", "Cor. 4.7", "sketch", "paper exp., p = 0.5", "paper exp., p = 1",
    "MOD-SULQ, published", "MOD-SULQ, exact", "Gram",
)  # fmt: skip


def errors(A, rank, epsilon, runs, generator):
    """For each method psi of every run, the prediction if there is one, and the epsilon that it
    spends.
    """
    n = len(A)
    moments = SecondMoments.of(A)
    normals = {"dtype": torch.float64, "generator": generator}
    repeats = {"generator": generator, "sample_shape": (runs,)}
    kind = {"epsilon": epsilon, "delta": DELTA}

    def of_gram(gram):
        return psi(moments, top_directions(gram, rank))

    random, _ = torch.linalg.qr(torch.randn(runs, COLUMNS, rank, **normals))
    found = {"random": (psi(moments, random), random_psi(moments, rank), 0.0)}
    sketch = balanced_count_sketch(n, HEIGHT, generator=generator)
    exact = math.sqrt(entry_variance(BOUND, **kind) * HEIGHT / n)
    experiment = paper.experiment_noise(sketch, **kind)
    noises = {"sketch": GaussianNoise(exact), "paper exp., p = 1": experiment}
    noises["paper exp., p = 0.5"] = GaussianNoise(experiment.sigma * n**0.25)
    # for fewer clients Corollary 4.7 may be undefined
    if n > 20_000:
        entry = BOUND / math.sqrt(COLUMNS)
        noises["Cor. 4.7"] = paper.gaussian_noise(sketch, COLUMNS, entry, **kind)
    fresh = [balanced_count_sketch(n, HEIGHT, generator=generator).apply(A) for _ in range(runs)]
    SA = torch.stack(fresh)
    for name, noise in noises.items():
        deviations = noise.variance(sketch).sqrt()
        Y = SA + deviations[:, None] * torch.randn(SA.shape, **normals)
        spent = noise.guarantee(sketch, BOUND, delta=DELTA).epsilon
        found[name] = of_gram(Y.mT @ Y), math.nan, spent
    local = LocalRows(COLUMNS, BOUND, **kind).sample_tally(moments, **repeats)
    found["local"] = of_gram(local["gram"]), math.nan, epsilon
    curators = {
        "MOD-SULQ, published": published_mod_sulq(n, COLUMNS, BOUND, **kind),
        "MOD-SULQ, exact": ModSulq.calibrated(COLUMNS, BOUND, **kind),
        "Gram": GramRelease(n, COLUMNS, BOUND, **kind),
    }
    for name, mechanism in curators.items():
        noisy = mechanism.sample_estimate(moments, **repeats)
        # of all runs the same
        sigma = float(noisy.gram_sigma.max())
        predicted = predicted_psi(moments, rank, sigma)
        found[name] = of_gram(noisy.gram), predicted, mechanism.guarantee.epsilon
    return found


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (*(round(1000 * 1.5**i) for i in range(0, 17, 2)), 500_000)
    ranks: tuple[int, ...] = (5, 10)
    epsilons: tuple[float, ...] = (0.1, 0.5)
    runs: int = 10


def measure(config, report):
    torch.set_num_threads(1)
    generator = keyed_generator(b"low rank")
    for k in config.ranks:
        for n in config.sizes:
            A = shortened(spectrum_rows(n, COLUMNS, k, generator=generator), BOUND)
            for epsilon in config.epsilons:
                found = errors(A, k, epsilon, config.runs, generator)
                for name, (values, predicted, spent) in found.items():
                    report.row(
                        "low_rank",
                        n=n,
                        k=k,
                        epsilon=epsilon,
                        method=name,
                        psi=values.mean(),
                        deviation=values.std(),
                        predicted=predicted,
                        true_epsilon=spent,
                    )


def draw(tables):
    rows = tables["low_rank"]
    panels = sorted({(row["epsilon"], row["k"]) for row in rows})
    figure, all_axes = subplots(len(panels), size=(5.6, 3.9))
    for axes, (epsilon, k) in zip(all_axes, panels, strict=True):
        for i, name in enumerate(NAMES):
            x, y, deviations, predicted, true = columns(
                sorted(rows, key=lambda row: row["n"]),
                *("n", "psi", "deviation", "predicted", "true_epsilon"),
                **{"epsilon": epsilon, "k": k, "method": name},
            )
            label = name + (f" (true epsilon {true[-1]:.2g})" if "p = " in name else "")
            draw_line(axes, x, y, deviations, label=label, colour=f"C{i}", least=1e-12)
            if name == "Gram":
                axes.plot(x, predicted, "k--", linewidth=0.8, label="Gram, predicted")
        draw_panel(axes, f"epsilon = {epsilon:g}, k = {k}", "psi")
    figure.axes[0].legend(fontsize=6)
    figure.suptitle(
        "Low-rank approximation, d = 50, m = 100; bars: one standard deviation of the runs"
    )
    return {"low_rank.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config((2000, 20_000), (5,), runs=3), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
