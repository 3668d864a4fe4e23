"""What the free constant of a kernel is worth: gamma_2 and predicted error without it and with it;
vectors and signs.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 5, who factor each kernel as it is;
section 3 (factors
    of a kernel; here one vector of each type).
Command:  python experiments/pairwise/free_constant.py
Expected: abs(x - y): gamma_2 from 1 to 1/2; Gaussian kernel: RMSE nearly 3 times smaller; Kendall's
tau: no gain.
    Less its constant abs(x - y) is minus a Gram matrix: all signs negative, the vectors are
    thresholds in disguise. Kendall's tau has signs of both kinds in equal number. Every kernel is
    rebuilt to rounding.
Output: results/pairwise/free_constant/free_constant.csv.
Artifact: Ghazi et al. (2023) | sections 3 and 5
Status: agrees
Time: a second (closed form, nothing is drawn); --smoke uses 16 points instead of 32.
"""

from dataclasses import dataclass

import torch

from torchdp import pairwise, workloads
from torchdp.factorization import free_constant, signature_form
from torchdp.queries import LocalFactorization
from torchdp.simulate import Experiment

EPSILON = 1.0
USERS = 10**6


@dataclass(frozen=True)
class Config:
    types: int = 32


def measure(config, report):
    k = config.types
    x = torch.linspace(0, 1, k, dtype=torch.float64)
    difference = x[:, None] - x
    kernels = {
        "absolute difference": difference.abs(),
        "squared difference": difference.square(),
        "Gaussian": torch.exp(-8 * difference.square()),
        "maximum": torch.maximum(x[:, None], x),
        "unequal": workloads.unequal(k).dense(),
        "Kendall": workloads.kendall(4, k // 4).dense(),
    }
    report.say(f"{k} types, one message, epsilon = {EPSILON:g}, n = {USERS}, flat histogram")
    counts = torch.ones(k) / k * USERS

    def rmse(statistic):
        return LocalFactorization.of(statistic, EPSILON).predicted_mse(counts).sqrt()

    for name, W in kernels.items():
        plain = signature_form(W)
        best = free_constant(W)
        points = plain.right.mT.contiguous()
        # ``from_kernel`` would free the constant by itself
        as_it_is = pairwise.PairwiseStatistic(
            name, points, pairwise.Form(plain.signature), pairs=pairwise.Pairs.ALL
        )
        moved = pairwise.from_kernel(W, pairs=pairwise.Pairs.ALL)
        weights = moved.form.weights
        off = moved.kernel(moved.form) - W
        report.row(
            "free_constant",
            kernel=name,
            gamma_2=plain.certificate.upper,
            least=best.upper,
            constant=best.constant,
            rmse_gain=rmse(as_it_is) / rmse(moved),
            positive=(weights > 0).sum(),
            negative=(weights < 0).sum(),
            radius_squared=moved.radius**2,
            rebuilt_to=off.abs().max(),
        )


EXPERIMENT = Experiment(measure, Config(), Config(16))

if __name__ == "__main__":
    EXPERIMENT.main()
