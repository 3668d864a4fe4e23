"""Adaptive means: what a first box that is far too wide costs, on six data sets.

Paper: Biswas, Dong, Kamath, Ullman (2020), "CoinPress", Algorithms 1 and 2 (mean, known covariance), to compare with.
Command:  python experiments/mean/adaptive.py
Expected: (E ||error||_2^2)^{1/2} over the users' own mean, mean of ``runs`` runs; the first box reaches ``wide``
    largest deviations from the mean. "last": a Gaussian mean of all rho in the domain that was found, had it been
    known, without the bias of cutting tails; ``ratio``: adaptive over that, 1.0 to 1.9. "first box": the Gaussian
    mean without looking. "CoinPress" is told the largest deviation of a coordinate, and has four rounds, three
    quarters of rho in the last. ``ahead``: how much less it errs, in standard errors of the difference: below 2 in all
    rows, above 0 in that of Student's law in the narrowest box alone.
Output: results/mean/adaptive/adaptive.csv; ``experiments/bench/adaptive_means_cpu.txt`` is what it prints.
Artifact: Biswas, Dong, Kamath, Ullman (2020) | Algorithms 1, 2
Status: another method, compared with
Time: two minutes on one core; --smoke in seconds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.domains import Box
from torchdp.mean import AdaptiveMean, GaussianMean
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

DELTA, ROUNDS, FAILING = 1e-6, 4, 0.01


def data(users: int) -> Iterator[tuple[str, Tensor, float]]:
    """Name, rows and rho."""
    from sklearn.datasets import load_breast_cancer, load_digits

    generator = keyed_generator(b"mean/adaptive", "cpu")

    def normal(*shape: int) -> Tensor:
        return torch.as_tensor(torch.randn(*shape, dtype=torch.float64, device="cpu", generator=generator))

    yield "normal, d = 5", 3 + normal(users, 5), 0.05
    yield "normal, deviations 1 to 128", 5 + normal(users, 8) * 2.0 ** torch.arange(8).double(), 0.5
    yield "Student's t_3, d = 5", normal(users, 5) / (normal(users, 5, 3).square().mean(2)).sqrt(), 0.5
    yield "log-normal, d = 5", normal(users, 5).exp(), 0.5
    yield "digits, d = 64", torch.as_tensor(load_digits().data).double(), 0.5
    yield "breast cancer, d = 30", torch.as_tensor(load_breast_cancer().data).double(), 0.5


def coinpress(
    x: Tensor, centre: Tensor, radius: float, deviation: float, rho: float, generator, users: int | None = None
) -> Tensor:
    """Rounds of clipping to a ball and adding noise; the radius that is left follows from a normal law's tails.

    users: where there are more of them, as many for each row of x.
    """
    n, d = users or len(x), x.shape[1]
    spent = [rho / 4 / (ROUNDS - 1)] * (ROUNDS - 1) + [3 * rho / 4]

    def tail(k: float, failing: float) -> float:
        """With this chance a chi of d degrees, times k, is no larger."""
        log = math.log(1 / failing)
        return k * math.sqrt(d + 2 * math.sqrt(d * log) + 2 * log)

    for part in spent:
        reach = radius + tail(deviation, FAILING / 4 / n)
        z = x - centre
        z = z * (reach / z.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)
        sigma = 2 * reach / n / math.sqrt(2 * part)
        centre = centre + z.mean(0) + sigma * torch.randn(d, dtype=torch.float64, generator=generator)
        radius = tail(math.hypot(sigma, deviation / math.sqrt(n)), FAILING / 4)
    return centre


@dataclass(frozen=True)
class Config:
    users: int = 20_000
    wide: tuple[float, ...] = (10.0, 1e3, 1e6)
    runs: int = 100


FULL = Config()
SMOKE = Config(2_000, (1e3,), 3)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for name, x, rho in data(config.users):
        largest = float(x.std(0).max())
        for wide in config.wide:
            generator = keyed_generator(f"{name} {wide}".encode())
            off = largest * torch.randn(x.shape[1], dtype=torch.float64, generator=generator)
            box = Box(x.mean(0) + off - wide * largest, x.mean(0) + off + wide * largest)
            users = x.clamp(box.low, box.high)
            truth, n = users.mean(0), len(users)
            protocol = AdaptiveMean(box, rho, DELTA)
            ours, last, theirs = [], [], []
            for run in range(config.runs):
                found = protocol.estimate(users, noise=SeededNoise(run))
                ours.append(float((found.value - truth).square().sum()))
                last.append(GaussianMean.tuned(found.domain, rho=rho, delta=DELTA).error(n, 2.0).floor ** 2)
                middle = (box.low + box.high) / 2
                radius = float((box.high - box.low).norm()) / 2
                other = coinpress(users, middle, radius, largest, rho, generator)
                theirs.append(float((other - truth).square().sum()))
            squares = torch.tensor([ours, theirs], dtype=torch.float64)
            error, coin = squares.mean(1).sqrt().tolist()
            spread = (squares.std(1) / math.sqrt(config.runs)).tolist()
            needed = math.sqrt(sum(last) / len(last))
            first = GaussianMean.tuned(box, rho=rho, delta=DELTA).error(n, 2.0).floor
            cells = {"adaptive": error, "adaptive_error": spread[0] / (2 * error), "last": needed}
            cells |= {"ratio": error / needed, "first_box": first}
            cells |= {"coinpress": coin, "coinpress_error": spread[1] / (2 * coin)}
            cells["ahead"] = (error - coin) / math.hypot(cells["adaptive_error"], cells["coinpress_error"])
            report.row("adaptive", data=name, wide=wide, **cells)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
