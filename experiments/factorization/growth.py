"""How gamma_2 grows with the number of types: certified brackets and a figure.

Papers: Edmonds, Nikolov, Ullman (2020), section 1 (thresholds); Ghazi et al. (2023), section 5
(abs(i - j), Kendall).
Command:  python experiments/factorization/growth.py
Expected: prefix sums ln k / pi + 0.755 at k = 1024; all ranges within 0.01 of 0.43 ln k + 0.70 for
k from 32 to 256;
    Kendall's tau on a grid of sqrt k x sqrt k within 1 % of (2/pi)^2 (ln(sqrt k) + 0.819)^2 from
    k = 64 on, a squared logarithm; abs(i - j)/(k - 1) exactly 1, and 1/2 with its free constant;
    random signs within 1 % of 8 sqrt(k)/(3 pi) from k = 64 on.
Output: results/factorization/growth/growth.csv and .png; points already in the CSV are not computed
again.
Artifact: Edmonds, Nikolov, Ullman (2020); Ghazi et al. (2023) | growth of norms
Status: agrees
Time: about a minute on one CPU core; --smoke in 3 s.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from torchdp import workloads
from torchdp.factorization import factorize, factorize_product, free_constant
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots

SIZES = {
    "all ranges": (4, 8, 16, 32, 64, 128, 256),
    "Kendall": (4, 16, 64, 256, 1024, 4096, 16384, 65536),
    "abs(i - j), free constant": (4, 8, 16, 32, 64, 128, 256),
}
OTHER_SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
EXPECTED = {  # dashed in the figure
    "prefix": lambda k: math.log(k) / math.pi + 0.75,
    "Kendall": lambda k: (2 / math.pi * (math.log(k) / 2 + 0.819)) ** 2,
    "random signs": lambda k: 8 * math.sqrt(k) / (3 * math.pi),
    "abs(i - j)": lambda k: 1.0,
    "abs(i - j), free constant": lambda k: 0.5,
}


def certified(workload):
    tol = 1e-3 if workload.shape[0] > 10_000 else 1e-4
    return factorize(workload, tol=tol).certificate


def absolute_difference(k):
    return workloads.absolute_difference(k, spacing=1 / (k - 1))


def random_signs(k):
    generator = keyed_generator(f"signs {k}".encode(), "cpu")
    # drawn on the CPU: the same matrix on every device
    bits = torch.randint(0, 2, (k, k), device="cpu", generator=generator)
    signs = torch.as_tensor(bits).double() * 2 - 1
    return workloads.Workload("random signs", (signs,))


def kendall(k):
    side = math.isqrt(k)
    return factorize_product(workloads.kendall(side, side)).certificate


MEASURES = {
    "prefix": lambda k: certified(workloads.prefix(k)),
    "all ranges": lambda k: certified(workloads.all_ranges(k)),
    "Kendall": kendall,
    "abs(i - j)": lambda k: certified(absolute_difference(k)),
    "abs(i - j), free constant": lambda k: free_constant(absolute_difference(k).dense()),
    "random signs": lambda k: certified(random_signs(k)),
}


def bounds(name, k):
    found = MEASURES[name](k)
    return {"lower": found.lower, "upper": found.upper}


@dataclass(frozen=True)
class Config:
    first: int = 9  # sizes of each workload


def measure(config, report):
    for name in MEASURES:
        for k in SIZES.get(name, OTHER_SIZES)[: config.first]:
            report.once("growth", {"workload": name, "k": k}, partial(bounds, name, k))


def draw(tables):
    rows = sorted(tables["growth"], key=lambda row: row["k"])
    figure, panels = subplots(3, size=(13 / 3, 4.2), wide=3)
    for i, name in enumerate(MEASURES):
        axes = panels[{"Kendall": 1, "random signs": 2}.get(name, 0)]
        colour = f"C{i}"
        sizes, lower, upper = columns(rows, "k", "lower", "upper", workload=name)
        axes.plot(sizes, upper, "o-", markersize=4, linewidth=1, color=colour, label=name)
        axes.fill_between(sizes, lower, upper, color=colour, alpha=0.3)
        if name in EXPECTED:
            expected = [EXPECTED[name](k) for k in sizes]
            axes.plot(sizes, expected, "--", color=colour, linewidth=2, alpha=0.5)
    panels[0].set(xscale="log", ylim=(0, 4.4), title="One dimension: a logarithm, or a constant")
    panels[1].set(xscale="log", title="Kendall on a square grid: a squared logarithm")
    panels[2].set(xscale="log", yscale="log", title="Random signs: a square root")
    for axes in panels:
        axes.set(xlabel="number of types k", ylabel="gamma_2")
        axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
        axes.legend(
            title="band: certified bracket; dashed: formula",
            fontsize="small",
            title_fontsize="small",
        )
    return {"growth.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config(3), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
