"""Pictures of the factorization behind a pairwise statistic: the kernel, every type's vector, and its signs.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 3 (factors of a kernel; here one vector of each type).
Command:  python experiments/pairwise/pictures.py
Expected: abs(i - j) less its free constant is minus a Gram matrix: all signs negative, the vectors are thresholds in
    disguise, all of one norm. Kendall's tau has signs of both kinds in equal number; the Gaussian kernel less its free
    constant is nearly a Gram matrix, and few coordinates carry it. The kernel is rebuilt to rounding.
Output: results/pictures/pictures.png. Time: seconds; --smoke too.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.pairwise import Pairs, PairwiseStatistic


def statistics(k: int) -> dict[str, tuple[Tensor, PairwiseStatistic]]:
    """Kernels (k, k) and their statistics."""
    x = torch.arange(k, dtype=torch.float64)
    apart = x[:, None] - x
    tau = pairwise.kendall(round(k**0.5), round(k**0.5))
    kernels = {
        "abs(i - j)/(k - 1)": apart.abs() / (k - 1),
        "1[i != j]": (apart != 0).double(),
        "exp(-(i - j)^2/(2 (k/8)^2))": torch.exp(-apart.square() / (2 * (k / 8) ** 2)),
        "Kendall's tau": tau.kernel(tau.form),
    }
    return {name: (f, pairwise.from_kernel(f, tol=1e-4, pairs=Pairs.ALL)) for name, f in kernels.items()}


def draw(found: dict[str, tuple[Tensor, PairwiseStatistic]], target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.9 * len(found)), layout="constrained")
    for row, (name, (kernel, statistic)) in zip(figure.subplots(len(found), 3), found.items(), strict=True):
        order = statistic.form.weights.mul(statistic.points.square().sum(0)).argsort()
        for axes, (values, title) in zip(
            row,
            ((kernel, name), (statistic.points[:, order], "vectors of the types, coordinates by weight")),
            strict=False,
        ):
            largest = float(values.abs().max())
            picture = axes.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest, aspect="auto")
            figure.colorbar(picture, ax=axes)
            axes.set_title(title, fontsize="medium")
        weights = statistic.form.weights[order] * statistic.points[:, order].square().mean(0)
        row[2].bar(range(len(order)), weights, color=["C3" if value < 0 else "C0" for value in weights])
        row[2].set_title(f"signed sizes; radius^2 {statistic.radius**2:.3f}", fontsize="medium")
    figure.savefig(target, dpi=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/pictures"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    found = statistics(9 if options.smoke else 36)
    print(
        f"{'kernel':<30}{'vectors':>8}{'positive':>9}{'negative':>9}{'radius^2':>10}{'constant':>10}{'rebuilt to':>12}"
    )
    for name, (kernel, statistic) in found.items():
        form = statistic.form
        off = float((statistic.kernel(form) - kernel).abs().max())
        signs = (int((form.weights > 0).sum()), int((form.weights < 0).sum()))
        sizes = f"{statistic.radius**2:>10.4f}{form.constant:>10.4f}{off:>12.1e}"
        print(f"{name:<30}{statistic.dim:>8}{signs[0]:>9}{signs[1]:>9}{sizes}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, options.out / "pictures.png")
    print(options.out / "pictures.png")


if __name__ == "__main__":
    main()
