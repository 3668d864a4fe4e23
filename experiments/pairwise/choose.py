"""Does the protocol of least predicted error measure best? All candidates of ``pairwise.choose``, cell by cell.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023); baselines of Bell, Bellet, Gascon, Kulkarni (2020),
    Algorithm 1 (randomized response), and the same estimator with other frequency oracles.
Command:  python experiments/pairwise/choose.py
Expected: 48 cells (4 kernels, 2 sizes, n = 500 and 20000, epsilon = 1 and 4, 2 histograms on the smaller size); the
    chosen protocol measures its predicted MSE up to the standard error; of the other candidates none measures better
    by more than 4 standard errors of the difference.
Aggregate protocols are drawn from the histogram; those whose analyst sees each message run all n users of every trial
and are measured at n = 500 only (their predicted errors are in every table).
Output: results/pairwise_choose/choose.csv. Time: about fifteen minutes on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import AggregateProtocol, PairwiseProtocol, PairwiseStatistic
from torchdp.randomness import keyed_generator

FEW, MANY, TRIALS, USER_TRIALS = 500, 20_000, 4_000, 150
FIELDS = (
    "kernel",
    "k",
    "histogram",
    "n",
    "epsilon",
    "chosen",
    "rmse",
    "ratio",
    "standard_error",
    "second",
    "worst_z",
)


def gaussian(k: int) -> PairwiseStatistic:
    x = torch.linspace(0, 1, k, dtype=torch.float64)
    return pairwise.from_kernel(torch.exp(-8 * (x[:, None] - x).square()), name="Gaussian")


def gini(k: int) -> PairwiseStatistic:
    return pairwise.absolute_difference(k, spacing=1 / (k - 1))


def tau(k: int) -> PairwiseStatistic:
    return pairwise.kendall(4, k // 4)


KERNELS = {"abs(i - j)": gini, "i != j": pairwise.unequal, "Gaussian": gaussian, "Kendall": tau}


def histograms(k: int) -> dict[str, Tensor]:
    x = torch.arange(k, dtype=torch.float64)
    return {"Zipf": 1 / (x + 1), "peaked": torch.exp(-((x - k / 3) / (k / 8)).square() / 2) + 1e-3}


def cells(smoke: bool) -> Iterator[tuple[str, int, str, Tensor, int, float]]:
    for kernel in ["abs(i - j)"] if smoke else KERNELS:
        for k in (8,) if smoke else (16, 32):
            for name, h in histograms(k).items():
                if (smoke or k == 32) and name != "Zipf":
                    continue
                for n in (FEW,) if smoke else (FEW, MANY):
                    for epsilon in (1.0,) if smoke else (1.0, 4.0):
                        yield kernel, k, name, h / h.sum(), n, epsilon


def squared_errors(protocol: PairwiseProtocol, counts: Tensor, trials: int, generator: torch.Generator) -> Tensor:
    """One for each trial; where the analyst sees each message, of fewer trials."""
    truth = protocol.statistic.exact(counts)
    if isinstance(protocol, AggregateProtocol):
        value = protocol.estimate_histogram(counts, generator=generator, sample_shape=(trials,)).value
    else:
        types = torch.arange(len(counts)).repeat_interleave(counts)
        runs = range(min(trials, USER_TRIALS))
        value = torch.stack([protocol.estimate(types, noise=SeededNoise.of(generator)).value for _ in runs])
    return (value - truth).square()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/pairwise_choose"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path, generator = options.out / "choose.csv", keyed_generator(b"pairwise choose")
    trials, worst, count, ratios = 300 if options.smoke else TRIALS, -math.inf, 0, []
    print(
        f"{'kernel':<11}{'k':>4} {'histogram':<10}{'n':>7}{'eps':>5}  {'chosen':<32}{'RMSE':>9}{'ratio':>7}{'+-':>6}"
        f"  {'second':<32}{'z':>6}"
    )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for kernel, k, name, h, n, epsilon in cells(options.smoke):
            counts = (h * n).floor().long()
            counts[0] += n - counts.sum()
            choice = pairwise.choose(KERNELS[kernel](k), n, epsilon, prior=counts.double())
            measured = [c for c in choice.candidates if n <= FEW or isinstance(c.protocol, AggregateProtocol)]
            first, second = choice.candidates[:2]
            best = squared_errors(first.protocol, counts, trials, generator)
            ratio = best / first.error**2
            worst_z = -math.inf
            for candidate in measured:
                if candidate is first:
                    continue
                other = squared_errors(candidate.protocol, counts, trials, generator)
                spread = (best.var() / len(best) + other.var() / len(other)).sqrt()
                worst_z = max(worst_z, float((best.mean() - other.mean()) / spread))
            worst, count = max(worst, worst_z), count + 1
            error = float(ratio.std()) / math.sqrt(len(ratio))
            ratios.append((float(ratio.mean()), error))
            values = (kernel, k, name, n, epsilon, first.name, first.error, *ratios[-1], second.name, worst_z)
            writer.writerow(dict(zip(FIELDS, values, strict=True)))
            file.flush()
            print(
                f"{kernel:<11}{k:>4} {name:<10}{n:>7}{epsilon:>5g}  {first.name:<32}{first.error:>9.5f}"
                f"{ratios[-1][0]:>7.3f}{error:>6.3f}  {second.name:<32}{worst_z:>6.1f}",
                flush=True,
            )
    off = max(abs(ratio - 1) / error for ratio, error in ratios)
    print(f"{count} cells; measured over predicted at most {off:.1f} standard errors from 1")
    print(f"most that any other candidate measured better by: {worst:.1f} standard errors")
    print(path.resolve())


if __name__ == "__main__":
    main()
