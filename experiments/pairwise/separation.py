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


def untuned(make: Callable[[PairwiseStatistic, float], Any]) -> Maker:
    """Of a protocol that does not depend on the number of users."""
    return lambda statistic, n: make(statistic, EPSILON)


def tuned(kind) -> Maker:
    return lambda statistic, n: kind.tuned(statistic, n, EPSILON)


ONE_MESSAGE = untuned(LocalFactorization.of)
INTERACTIVE = {
    "three-round (paper's constants)": untuned(pairwise.ThreeRound.paper),
    "three-round": tuned(pairwise.ThreeRound),
    "projected two-round": tuned(pairwise.ProjectedTwoRound),
    "two-round": tuned(pairwise.TwoRound),
}
PROTOCOLS = {
    "two-message (Lemma 11)": untuned(Twice.of),
    "one-message": ONE_MESSAGE,
    **INTERACTIVE,
}


def sign_matrix(k):
    """A random symmetric sign matrix, its form averaged over all pairs."""
    generator = keyed_generator(f"sign matrix {k}".encode(), "cpu")
    normal = torch.randn(k, k, dtype=torch.float64, device="cpu", generator=generator)
    upper = torch.as_tensor(normal).sign().triu()
    return pairwise.from_kernel(
        upper + upper.triu(1).mT, tol=1e-2, pairs=pairwise.Pairs.ALL, name=f"sign matrix {k}"
    )


def worst_type(statistic: PairwiseStatistic):
    """All users of the type whose vector J u_x is longest."""
    vectors = statistic.points * statistic.form.weights
    longest = int(vectors.norm(dim=1).argmax())
    return torch.eye(statistic.types, dtype=torch.float64)[longest]


def crossing(statistic: PairwiseStatistic, histogram, make: Maker):
    """The n, to 2 %, beyond which the prediction stays 2 % below that of one message; NaN: from n =
    10 on.
    """

    def ahead(log_n):
        n = round(math.exp(log_n))
        one = ONE_MESSAGE(statistic, n).predicted_mse(histogram * n)
        return bool(make(statistic, n).predicted_mse(histogram * n) < 0.98 * one)

    # downwards from 1e12 in steps of e, then by halving the last one
    high = math.log(1e12)
    while ahead(high - 1):
        high -= 1
        if high - 1 < math.log(10):
            return math.nan
    low = high - 1
    while high - low > 0.02:
        middle = (low + high) / 2
        if ahead(middle):
            high = middle
        else:
            low = middle
    return math.exp(high)


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (16, 64, 256)
    exponents: tuple[int, ...] = tuple(range(3, 11))  # of n
    trials: int = 1000


def drawn(protocol, histogram, n, trials):
    """Measured MSE, its standard error, and its difference from the prediction over that error."""
    counts = (histogram * n).round().long()
    name = type(protocol).__name__
    generator = keyed_generator(f"{name} {n}".encode())
    estimates = protocol.sample_estimate(counts, generator=generator, sample_shape=(trials,))
    squares = (estimates.value - protocol.exact(counts)).square()
    predicted = float(protocol.predicted_mse(histogram * n))
    mse = float(squares.mean())
    error = float(squares.std()) / trials**0.5
    return mse, error, (mse - predicted) / error


def measure(config, report):
    torch.set_num_threads(1)
    for k in config.sizes:
        statistic = sign_matrix(k)
        histogram = worst_type(statistic)
        report.say(
            f"k = {k}: gamma_2 <= {statistic.radius**2:.3f} after the free shift; predicted, n epsilon^2 MSE"
        )
        for name, make in PROTOCOLS.items():
            for exponent in config.exponents:
                n = 10**exponent
                mse = make(statistic, n).predicted_mse(histogram * n)
                report.row("predicted", k=k, protocol=name, n=n, scaled_mse=n * EPSILON**2 * mse)
        report.say("crossing with one-message; measured at a quarter and at four times its n")
        for name, make in INTERACTIVE.items():
            at = crossing(statistic, histogram, make)
            cells = {"crossing": at}
            for place, factor in (("below", 0.25), ("above", 4)):
                measured = ratio = error = z = None
                if not math.isnan(at):
                    n = round(factor * at)
                    measured, error, z = drawn(make(statistic, n), histogram, n, config.trials)
                    one, *_ = drawn(ONE_MESSAGE(statistic, n), histogram, n, config.trials)
                    ratio = measured / one
                cells |= {f"mse_{place}": measured, f"error_{place}": error, f"z_{place}": z}
                cells[f"ratio_{place}"] = ratio
            report.row("crossings", k=k, protocol=name, **cells)


def draw(tables):
    """n epsilon^2 MSE against n, one panel for each k."""
    rows = tables["predicted"]
    sizes = list(dict.fromkeys(row["k"] for row in rows))
    figure, panels = subplots(len(sizes), size=(4.5, 4), wide=3, sharey=True)
    for axes, k in zip(panels, sizes, strict=True):
        for name in PROTOCOLS:
            n, scaled = columns(rows, "n", "scaled_mse", k=k, protocol=name)
            axes.loglog(n, scaled, marker=".", label=name)
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
