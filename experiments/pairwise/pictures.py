"""Pictures of the factorization behind a pairwise statistic: the kernel, every type's vector, and its signs.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 3 (factors of a kernel; here one vector of each type).
Command:  python experiments/pairwise/pictures.py
Expected: abs(i - j) less its free constant is minus a Gram matrix: all signs negative, the vectors are thresholds in
    disguise, all of one norm. Kendall's tau has signs of both kinds in equal number; the Gaussian kernel less its free
    constant is nearly a Gram matrix, and few coordinates carry it. The kernel is rebuilt to rounding.
Output: results/pairwise/pictures/*.csv and pictures.png.
Artifact: Ghazi et al. (2023) | section 3
Status: agrees
Time: seconds; --smoke too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.pairwise import Pairs, PairwiseStatistic
from torchdp.simulate import Experiment, Report, columns, subplots


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


@dataclass(frozen=True)
class Config:
    k: int = 36


def measure(config: Config, report: Report) -> None:
    entries, vectors, sizes = [], [], []
    for name, (kernel, statistic) in statistics(config.k).items():
        form, points = statistic.form, statistic.points
        report.row(
            "pictures",
            kernel=name,
            vectors=statistic.dim,
            positive=int((form.weights > 0).sum()),
            negative=int((form.weights < 0).sum()),
            radius_squared=statistic.radius**2,
            constant=form.constant,
            rebuilt_to=(statistic.kernel(form) - kernel).abs().max(),
        )
        order = form.weights.mul(points.square().sum(0)).argsort()
        entries += cells(name, kernel)
        vectors += cells(name, points[:, order])
        sizes += cells(name, (form.weights[order] * points[:, order].square().mean(0))[None])
    report.write("kernels", entries)
    report.write("vectors", vectors)
    report.write("sizes", sizes)


def cells(name: str, values: Tensor) -> list:
    return [
        {"kernel": name, "row": i, "column": j, "value": float(value)}
        for i, line in enumerate(values)
        for j, value in enumerate(line)
    ]


def matrix(rows: list, name: str) -> Tensor:
    i, j, values = columns(rows, "row", "column", "value", kernel=name)
    return torch.tensor(values, dtype=torch.float64).view(max(i) + 1, max(j) + 1)


def draw(tables: dict) -> dict:
    rows = tables["pictures"]
    figure, panels = subplots(3 * len(rows), size=(10 / 3, 2.9), wide=3)
    for number, row in enumerate(rows):
        name, axes = row["kernel"], panels[3 * number : 3 * number + 3]
        for place, table, title in (
            (axes[0], "kernels", name),
            (axes[1], "vectors", "vectors of the types, coordinates by weight"),
        ):
            values = matrix(tables[table], name)
            largest = float(values.abs().max())
            picture = place.imshow(values.cpu().numpy(), cmap="RdBu", vmin=-largest, vmax=largest, aspect="auto")
            figure.colorbar(picture, ax=place)
            place.set_title(title, fontsize="medium")
        sizes = matrix(tables["sizes"], name)[0].tolist()
        axes[2].bar(range(len(sizes)), sizes, color=["C3" if value < 0 else "C0" for value in sizes])
        axes[2].set_title(f"signed sizes; radius^2 {row['radius_squared']:.3f}", fontsize="medium")
    return {"pictures.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config(9), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
