"""Interactive against non-interactive protocols on random sign matrices, with the predicted crossing points.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Theorem 24 and Appendix C.1 (the paper has no experiments).
Command:  python experiments/pairwise/separation.py --out results/separation
Expected: W a random symmetric k x k matrix of signs, so gamma_2 is of order sqrt(k) while ||W||_inf = 1. Beyond its
    predicted crossing each interactive protocol measures a smaller MSE than the best non-interactive one, below it not
    (two rounds turn into one message there: ratio 1; nan: ahead for all n, as they are for large k). n epsilon^2 MSE
    tends to 4 epsilon^2 coth(epsilon/2)^2 = 18.7 at most (epsilon = 1) in two rounds, whatever k is; non-interactive
    it is of order gamma_2^2. Measured MSE within 5 standard errors of the predictions.
Data: all users of one type, the worst of the k for the non-interactive protocol, so the error is that of privacy alone.
Time: about four minutes on one core; --smoke in seconds.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.pairwise import AggregateProtocol, PairwiseStatistic
from torchdp.randomness import keyed_generator

EPSILON = 1.0
Maker = Callable[[PairwiseStatistic, int], AggregateProtocol]
NON_INTERACTIVE: dict[str, Maker] = {
    "two-message (Lemma 11)": lambda statistic, n: pairwise.TwoMessage(statistic, EPSILON),
    "one-message": lambda statistic, n: pairwise.OneMessage(statistic, EPSILON),
}
INTERACTIVE: dict[str, Maker] = {
    "three-round (paper's constants)": lambda statistic, n: pairwise.ThreeRound.paper(statistic, EPSILON),
    "three-round": lambda statistic, n: pairwise.three_round(statistic, EPSILON, n),
    "projected two-round": lambda statistic, n: pairwise.projected_two_round(statistic, EPSILON, n),
    "two-round": lambda statistic, n: pairwise.two_round(statistic, EPSILON, n),
}


def sign_matrix(k: int) -> PairwiseStatistic:
    """A random symmetric sign matrix, its form averaged over all pairs."""
    upper = torch.randn(k, k, dtype=torch.float64, generator=keyed_generator(f"sign matrix {k}".encode())).sign()
    upper = upper.triu()
    return pairwise.from_kernel(
        upper + upper.triu(1).mT, tol=1e-2, pairs=pairwise.Pairs.ALL, name=f"sign matrix {k}"
    )


def worst_type(statistic: PairwiseStatistic) -> Tensor:
    """All users of the type whose vector J u_x is longest."""
    longest = int((statistic.points * statistic.form.weights).norm(dim=1).argmax())
    return torch.eye(statistic.types, dtype=torch.float64)[longest]


def crossing(statistic: PairwiseStatistic, histogram: Tensor, make: Maker) -> float:
    """The n, to 2 %, beyond which the prediction stays 2 % below that of one message; NaN: from n = 10 on."""

    def ahead(log_n: float) -> bool:
        n = round(math.exp(log_n))
        one = pairwise.OneMessage(statistic, EPSILON).predicted_mse(histogram, n)
        return make(statistic, n).predicted_mse(histogram, n) < 0.98 * one

    high = math.log(1e12)
    while ahead(high - 1):
        high -= 1
        if high - 1 < math.log(10):
            return math.nan
    low = high - 1
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return math.exp(high)


def measure(protocol: AggregateProtocol, histogram: Tensor, n: int, trials: int) -> tuple[float, float, float]:
    """Predicted and measured MSE, and their difference in standard errors of the measurement."""
    counts = (histogram * n).round().long()
    generator = keyed_generator(f"{type(protocol).__name__} {n}".encode())
    truth = protocol.statistic.exact(counts)
    square = (
        protocol.estimate_histogram(counts, generator=generator, sample_shape=(trials,)).value - truth
    ).square()
    predicted = protocol.predicted_mse(histogram, n)
    error = float(square.std()) / trials**0.5
    return predicted, float(square.mean()), (float(square.mean()) - predicted) / error


def figure(curves: dict[int, dict[str, list[float]]], users: list[int], folder: Path) -> Path:
    """n epsilon^2 MSE against n, one panel for each k."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(curves), figsize=(4.5 * len(curves), 4), sharey=True, squeeze=False)
    for ax, (k, lines) in zip(axes[0], curves.items(), strict=True):
        for name, values in lines.items():
            scaled = [n * EPSILON**2 * value for n, value in zip(users, values, strict=True)]
            ax.loglog(users, scaled, marker=".", label=name)
        ax.axhline(4 * EPSILON**2 / math.tanh(EPSILON / 2) ** 2, color="gray", lw=0.8, ls=":")
        ax.set_title(f"k = {k}")
        ax.set_xlabel("users n")
    axes[0, 0].set_ylabel(r"$n\,\epsilon^2$ MSE")
    axes[0, 0].legend(fontsize=7)
    fig.suptitle(f"Random sign matrices, epsilon = {EPSILON:g}, worst data (dotted: the limit of two rounds)")
    fig.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "separation.png"
    fig.savefig(path, dpi=150)
    plt.close(fig)
    return path


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--out", type=Path, help="folder of the figure")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    sizes, exponents, trials = ((8,), (3, 6), 200) if given.smoke else ((16, 64, 256), range(3, 11), 1000)
    users = [10**exponent for exponent in exponents]
    curves: dict[int, dict[str, list[float]]] = {}
    for k in sizes:
        statistic = sign_matrix(k)
        histogram = worst_type(statistic)
        print(f"k = {k}: gamma_2 <= {statistic.radius**2:.3f} after the free shift, epsilon = {EPSILON:g}")
        print(f"  {'n epsilon^2 MSE, predicted':<34}" + "".join(f"{f'n = 1e{e}':>11}" for e in exponents))
        curves[k] = {}
        for name, make in (NON_INTERACTIVE | INTERACTIVE).items():
            curves[k][name] = [make(statistic, n).predicted_mse(histogram, n) for n in users]
            scaled = [n * EPSILON**2 * mse for n, mse in zip(users, curves[k][name], strict=True)]
            print(f"  {name:<34}" + "".join(f"{value:>11.4g}" for value in scaled), flush=True)
        print(
            f"  {'crossing with one-message':<34}{'n':>11}{'':>4}"
            f"{'n/4: measured MSE, ratio, z':>30}{'4n: measured MSE, ratio, z':>32}"
        )
        for name, make in INTERACTIVE.items():
            at = crossing(statistic, histogram, make)
            line = f"  {name:<34}{at:>11.3g}{'':>4}"
            for n in () if math.isnan(at) else (round(at / 4), round(4 * at)):
                _, measured, z = measure(make(statistic, n), histogram, n, trials)
                _, one, _ = measure(pairwise.OneMessage(statistic, EPSILON), histogram, n, trials)
                line += f"{measured:>14.4g}{measured / one:>9.3f}{z:>8.2f}"
            print(line, flush=True)
    if given.out:
        print(f"figure: {figure(curves, users, given.out)}")


if __name__ == "__main__":
    main()
