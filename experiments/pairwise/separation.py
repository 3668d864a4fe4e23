"""Interactive against non-interactive protocols on random sign matrices, with the predicted
crossing points.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Theorem 24 and Appendix C.1
(the paper has no experiments).
Command:  python experiments/pairwise/separation.py
Expected: W a random symmetric k x k matrix of signs, so gamma_2 is of order sqrt(k)
while ||W||_inf = 1. Beyond its
    predicted crossing each interactive protocol measures a smaller MSE than the best
    non-interactive one, below it not (two rounds turn into one message there: ratio 1; nan: ahead
    for all n, as they are for large k). n epsilon^2 MSE tends to 4 epsilon^2 coth(epsilon/2)^2 =
    18.7 at most (epsilon = 1) in two rounds, whatever k is; non-interactive it is of order
    gamma_2^2. Measured MSE within 5 standard errors of the predictions.
Data: all users of one type, the worst of the k for the non-interactive protocol, so the error is
that of privacy alone.
Output: results/pairwise/separation/predicted.csv, crossings.csv, separation.png.
Artifact: Ghazi et al. (2023) | Theorem 24, Appendix C.1
Status: agrees; two rounds do what the paper's three do
Time: about four minutes on one core; --smoke in 10 to 20 CPU-seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchdp import pairwise
from torchdp.pairwise import PairwiseStatistic
from torchdp.queries import LocalFactorization, Twice
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots

EPSILON = 1.0
Maker = Callable[[PairwiseStatistic, int], Any]
NON_INTERACTIVE = {
    "two-message (Lemma 11)": lambda statistic, n: Twice.of(statistic, EPSILON),
    "one-message": lambda statistic, n: LocalFactorization.of(statistic, EPSILON),
}
INTERACTIVE = {
    "three-round (paper's constants)": lambda statistic, n: pairwise.ThreeRound.paper(
        statistic, EPSILON
    ),
    "three-round": lambda statistic, n: pairwise.ThreeRound.tuned(statistic, n, EPSILON),
    "projected two-round": lambda statistic, n: pairwise.ProjectedTwoRound.tuned(
        statistic, n, EPSILON
    ),
    "two-round": lambda statistic, n: pairwise.TwoRound.tuned(statistic, n, EPSILON),
}


def sign_matrix(k):
    """A random symmetric sign matrix, its form averaged over all pairs."""
    generator = keyed_generator(f"sign matrix {k}".encode(), "cpu")
    upper = torch.as_tensor(
        torch.randn(k, k, dtype=torch.float64, device="cpu", generator=generator)
    ).sign()
    upper = upper.triu()
    return pairwise.from_kernel(
        upper + upper.triu(1).mT, tol=1e-2, pairs=pairwise.Pairs.ALL, name=f"sign matrix {k}"
    )


def worst_type(statistic: PairwiseStatistic):
    """All users of the type whose vector J u_x is longest."""
    longest = int((statistic.points * statistic.form.weights).norm(dim=1).argmax())
    return torch.eye(statistic.types, dtype=torch.float64)[longest]


def crossing(statistic: PairwiseStatistic, histogram, make: Maker):
    """The n, to 2 %, beyond which the prediction stays 2 % below that of one message; NaN: from n =
    10 on.
    """

    def ahead(log_n):
        n = round(math.exp(log_n))
        one = LocalFactorization.of(statistic, EPSILON).predicted_mse(histogram * n)
        return bool(make(statistic, n).predicted_mse(histogram * n) < 0.98 * one)

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


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (16, 64, 256)
    exponents: tuple[int, ...] = tuple(range(3, 11))  # of n
    trials: int = 1000


def drawn(protocol, histogram, n, trials):
    """Measured MSE, and its difference from the prediction in standard errors of the
    measurement.
    """
    counts = (histogram * n).round().long()
    generator = keyed_generator(f"{type(protocol).__name__} {n}".encode())
    truth = protocol.exact(counts)
    square = (
        protocol.sample_estimate(counts, generator=generator, sample_shape=(trials,)).value - truth
    ).square()
    predicted = float(protocol.predicted_mse(histogram * n))
    error = float(square.std()) / trials**0.5
    return float(square.mean()), (float(square.mean()) - predicted) / error


def measure(config, report):
    torch.set_num_threads(1)
    for k in config.sizes:
        statistic = sign_matrix(k)
        histogram = worst_type(statistic)
        report.say(
            f"k = {k}: gamma_2 <= {statistic.radius**2:.3f} after the free shift; predicted, n epsilon^2 MSE"
        )
        for name, make in (NON_INTERACTIVE | INTERACTIVE).items():
            for n in (10**exponent for exponent in config.exponents):
                mse = float(make(statistic, n).predicted_mse(histogram * n))
                report.row("predicted", k=k, protocol=name, n=n, scaled_mse=n * EPSILON**2 * mse)
        report.say("crossing with one-message; measured at a quarter and at four times its n")
        for name, make in INTERACTIVE.items():
            at = crossing(statistic, histogram, make)
            cells = {"crossing": at}
            for place, n in (("below", at / 4), ("above", 4 * at)):
                measured = ratio = z = None
                if not math.isnan(at):
                    measured, z = drawn(
                        make(statistic, round(n)), histogram, round(n), config.trials
                    )
                    one, _ = drawn(
                        LocalFactorization.of(statistic, EPSILON),
                        histogram,
                        round(n),
                        config.trials,
                    )
                    ratio = measured / one
                cells |= {f"mse_{place}": measured, f"ratio_{place}": ratio, f"z_{place}": z}
            report.row("crossings", k=k, protocol=name, **cells)


def draw(tables):
    """n epsilon^2 MSE against n, one panel for each k."""
    rows = tables["predicted"]
    sizes = list(dict.fromkeys(row["k"] for row in rows))
    figure, panels = subplots(len(sizes), size=(4.5, 4), wide=3, sharey=True)
    for axes, k in zip(panels, sizes, strict=True):
        for name in NON_INTERACTIVE | INTERACTIVE:
            axes.loglog(
                *columns(rows, "n", "scaled_mse", k=k, protocol=name), marker=".", label=name
            )
        axes.axhline(4 * EPSILON**2 / math.tanh(EPSILON / 2) ** 2, color="gray", lw=0.8, ls=":")
        axes.set(title=f"k = {k}", xlabel="users n")
    panels[0].set_ylabel(r"$n\,\epsilon^2$ MSE")
    panels[0].legend(fontsize=7)
    figure.suptitle(
        f"Random sign matrices, epsilon = {EPSILON:g}, worst data (dotted: the limit of two rounds)"
    )
    return {"separation.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config((8,), (3, 6), 200), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
