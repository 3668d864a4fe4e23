"""Error of a private Gaussian kernel density, its three parts, and what each user sends.

Paper: Wagner (2025), Figures 2 (messages of a user) and 3 (error of the density at queries).
Command:  python experiments/density/error.py --data documentation   (made by data.py; or as in classification.py)
Expected: measured root mean squared errors over the queries equal those predicted in closed form. With exact
    calibration the random features are the largest part, which orthogonal frequencies make smaller; a curator, who adds
    up the features themselves, has no part of rounding, and never more privacy noise than a shuffled protocol. The
    paper's calibration of randomized response is about 60 times as noisy.
Output: results/density/error_<data>.csv and .png. Time: digits a minute; --smoke in seconds.
"""

import argparse
import csv
from pathlib import Path

import torch
from classification import EPSILONS, KERNELS, PROTOCOLS, load, protocol

from torchdp.density import kernel_means
from torchdp.randomness import keyed_generator

SHOWN, DRAWS, QUERIES = ("Gaussian", "Gaussian, orthogonal"), 12, 300
FIELDS = ("kernel", "protocol", "epsilon", "messages", "feature", "rounding", "privacy", "predicted", "measured")


def draw(path: Path, target: Path) -> None:
    from matplotlib.figure import Figure

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    figure = Figure(figsize=(3.7 * len(kernels) + 3.7, 3.8), layout="constrained")
    panels = figure.subplots(1, len(kernels) + 1)
    for i, name in enumerate(PROTOCOLS):
        for axes, kernel in zip(panels, kernels, strict=False):
            some = [row for row in rows if (row["kernel"], row["protocol"]) == (kernel, name)]
            epsilons = [float(row["epsilon"]) for row in some]
            axes.plot(epsilons, [float(row["predicted"]) for row in some], "-", color=f"C{i}", label=name)
            axes.plot(epsilons, [float(row["measured"]) for row in some], "o", color=f"C{i}", markersize=3)
            axes.set(title=kernel, xscale="log", yscale="log", xlabel="epsilon", ylabel="root mean squared error")
        some = [row for row in rows if (row["kernel"], row["protocol"]) == (kernels[0], name)]
        if name not in ("no privacy", "curator's Gaussian noise"):
            messages = [float(row["messages"]) for row in some]
            panels[-1].plot([float(row["epsilon"]) for row in some], messages, "o-", color=f"C{i}", markersize=3)
    panels[-1].set(title="messages of one user", xscale="log", yscale="log", xlabel="epsilon")
    for axes in panels:
        ticks = sorted({float(row["epsilon"]) for row in rows})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(True, linewidth=0.3, which="both")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize="small", loc="outside right center")
    figure.savefig(target, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", default="digits")
    arguments.add_argument("--folder", type=Path, default=Path("results/density"), help="of embeddings")
    arguments.add_argument("--out", type=Path, default=Path("results/density"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    data = load(options.data, options.folder)
    n, queries = len(data.x), data.queries[:QUERIES]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"error_{data.name.replace(' ', '_')}.csv"
    print(
        f"{data.name}: {n} users, {data.x.shape[1]} bits of each, delta = {data.delta:g}; root mean squared errors"
    )
    print("".join(f"{field:<28}" if field in FIELDS[:2] else f"{field:>10}" for field in FIELDS))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for kernel in SHOWN[1:] if options.smoke else SHOWN:
            for name in PROTOCOLS:
                for epsilon in (4.5,) if options.smoke else EPSILONS:
                    generator = keyed_generator(f"{data.name} {kernel} {name} {epsilon}".encode())
                    parts, errors = torch.zeros(3, dtype=torch.float64), []
                    for _ in range(DRAWS):  # of the public features
                        features = KERNELS[kernel](data.x.shape[1], generator)
                        kde = protocol(name, features, n, epsilon, data.delta)
                        mse = kde.predicted_mse(data.x, queries)
                        parts += torch.stack([mse.feature.mean(), mse.rounding.mean(), mse.privacy.mean()]) / DRAWS
                        truth = kernel_means(features.family, data.x, queries)
                        answers = kde.sample(data.x, generator=generator, sample_shape=(4,)).evaluate(queries)
                        errors.append((answers - truth).square().mean())
                    measured = float(torch.stack(errors).mean().sqrt())
                    row = [*parts.sqrt().tolist(), float(parts.sum().sqrt()), measured]
                    writer.writerow([kernel, name, epsilon, kde.messages_per_user, *row])
                    file.flush()
                    cells = f"{epsilon:>10g}{kde.messages_per_user:>10.4g}" + "".join(f"{x:>10.2e}" for x in row)
                    print(f"{kernel:<28}{name:<28}{cells}", flush=True)
    draw(path, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
