"""RMSE of abs(i - j) and of AUC on 1024 values: one message, two messages, and the baselines.

Papers: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11 (two messages at epsilon/2); Bell, Bellet, Gascon,
    Kulkarni (2020), Algorithm 1 (randomized response) and the hierarchical AUC.
Command:  python experiments/pairwise/tables.py
Expected: predicted RMSE; after "x", where drawn, the ratio of measured to predicted MSE, 1 +- 0.05 up to three standard
    errors (2 % each, 5 % for AUC of messages; randomized response has heavy tails and gets eight times the trials).
    For AUC at n = 10^5, epsilon = 1, two messages have at least twice the RMSE of one. Randomized response on
    abs(i - j) at epsilon = 1 is far behind; at epsilon = 8 it is ahead on a flat histogram.
AUC is that of known class sizes, balanced classes; the hierarchical baseline has public *labels* besides.
Output: results/pairwise_tables/tables.csv. Time: about fifteen minutes on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.pairwise import AggregateProtocol, HierarchicalAUC, PairwiseProtocol, PairwiseStatistic
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator

TRIALS, BLOCK = 5_000, 500
FIELDS = ("statistic", "histogram", "n", "epsilon", "protocol", "rmse", "ratio", "standard_error")


def counts_of(h: Tensor, n: int) -> Tensor:
    counts = (h / h.sum() * n).floor().long()
    counts[0] += n - counts.sum()
    return counts


def protocols(statistic: PairwiseStatistic, epsilon: float) -> dict[str, PairwiseProtocol]:
    return {
        "randomized response": pairwise.RandomizedResponsePlugIn(statistic, epsilon),
        "subset selection": pairwise.SubsetPairs(statistic, epsilon),
        "two messages": pairwise.TwoMessage(statistic, epsilon),
        "one message": pairwise.OneMessage(statistic, epsilon),
        "one, PrivUnit": pairwise.OneMessagePairs(statistic, epsilon, PrivUnit)
        if statistic.pairs is pairwise.Pairs.DISTINCT
        else pairwise.OneMessage(statistic, epsilon, PrivUnit),
    }


def ratio(errors: Tensor, predicted: float) -> tuple[float, float]:
    squared = errors.square() / predicted
    return float(squared.mean()), float(squared.std()) / math.sqrt(len(squared))


def measure(protocol: AggregateProtocol, counts: Tensor, trials: int, generator: torch.Generator) -> Tensor:
    parts = [
        protocol.estimate_histogram(counts, generator=generator, sample_shape=(min(BLOCK, trials),)).value
        for _ in range(max(1, trials // BLOCK))
    ]
    return torch.cat(parts) - protocol.statistic.exact(counts)


def hierarchical(k: int, counts: Tensor, epsilon: float, trials: int, generator: torch.Generator) -> Tensor:
    """Estimated AUC less the true one, without pruning."""
    negatives, positives = counts[:k], counts[k:]
    below = negatives.double().cumsum(0) - negatives / 2
    truth = float(below @ positives.double() / negatives.sum() / positives.sum())
    protocol, parts = HierarchicalAUC((k - 1).bit_length(), epsilon), []
    for _ in range(max(1, trials // BLOCK)):
        shape = (min(BLOCK, trials),)
        classes = [
            protocol.collect_histogram(c, generator=generator, sample_shape=shape) for c in (negatives, positives)
        ]
        parts.append(protocol.analyse(*classes) - truth)
    return torch.cat(parts)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/pairwise_tables"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    k, trials = (16, 500) if options.smoke else (1024, TRIALS)
    x = torch.arange(k, dtype=torch.float64)
    gini = pairwise.absolute_difference(k, spacing=1 / (k - 1))
    normal = [torch.exp(-((x / k - middle) / 0.15).square() / 2) for middle in (0.45, 0.55)]
    two_classes = torch.cat([each / each.sum() for each in normal])
    generator, off, gain = keyed_generator(b"pairwise tables"), 0.0, 0.0
    with (options.out / "tables.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()

        def line(title: str, h: str, n: int, epsilon: float, row: dict[str, tuple[float, float, float]]) -> None:
            cells = []
            for name, (mse, found, error) in row.items():
                values = (title, h, n, epsilon, name, math.sqrt(mse), found, error)
                writer.writerow(dict(zip(FIELDS, values, strict=True)))
                cells.append(f"{name} {math.sqrt(mse):.3g}" + ("" if math.isnan(found) else f" x{found:.3f}"))
            file.flush()
            print(f"{title:<10} {h:<8} n {n:<8} eps {epsilon:<4g} " + " | ".join(cells), flush=True)

        for name, h in {"uniform": torch.ones(k, dtype=torch.float64), "Zipf": 1 / (x + 1)}.items():
            for n in (10**4,) if options.smoke else (10**4, 10**6):
                for epsilon in (1.0,) if options.smoke else (0.5, 1.0, 4.0, 8.0):
                    row, counts = {}, counts_of(h, n)
                    for each, protocol in protocols(gini, epsilon).items():
                        mse, drawn = protocol.predicted_mse(counts, n), (math.nan, math.nan)
                        if isinstance(protocol, AggregateProtocol) and epsilon == 1:
                            heavy = 8 if isinstance(protocol, pairwise.RandomizedResponsePlugIn) else 1
                            drawn = ratio(measure(protocol, counts, heavy * trials, generator), mse)
                            off = max(off, abs(drawn[0] - 1))
                        row[each] = (mse, *drawn)
                    line("abs(i-j)", name, n, epsilon, row)
        for n in (10**4,) if options.smoke else (10**4, 10**5, 10**6):
            counts = torch.cat([counts_of(two_classes[:k], n // 2), counts_of(two_classes[k:], n // 2)])
            statistic = pairwise.auc_of_sizes(k, n // 2, n // 2)
            for epsilon in (1.0,) if options.smoke else (1.0, 4.0, 8.0):
                row = {}
                candidates = protocols(statistic, epsilon)
                for each in ("two messages", "one message"):
                    protocol = candidates[each]
                    mse, drawn = protocol.predicted_mse(counts, n), (math.nan, math.nan)
                    if (n == 10**5 and epsilon == 1) or options.smoke:
                        drawn = ratio(
                            measure(protocol, counts, trials if options.smoke else trials // 5, generator), mse
                        )
                        off = max(off, abs(drawn[0] - 1))
                    row[each] = (mse, *drawn)
                mse = HierarchicalAUC((k - 1).bit_length(), epsilon).predicted_mse(counts[:k], counts[k:])
                row["hierarchical"] = (mse, *ratio(hierarchical(k, counts, epsilon, trials, generator), mse))
                if n == 10**5 and epsilon == 1:
                    gain = math.sqrt(row["two messages"][0] / row["one message"][0])
                line("AUC", f"{float(statistic.exact(counts)):.3f}", n, epsilon, row)
    print(f"measured over predicted MSE of the messages at most {off:.3f} from 1")
    if gain:
        print(f"AUC, n = 1e5, epsilon = 1: RMSE of two messages / of one message = {gain:.2f}")
    print((options.out / "tables.csv").resolve())


if __name__ == "__main__":
    main()
