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

EPSILON, USERS = 1.0, 10**6


@dataclass(frozen=True)
class Config:
    types: int = 32


def measure(config, report):
    k = config.types
    x = torch.linspace(0, 1, k, dtype=torch.float64)
    kernels = {
        "absolute difference": (x[:, None] - x).abs(),
        "squared difference": (x[:, None] - x).square(),
        "Gaussian": torch.exp(-8 * (x[:, None] - x).square()),
        "maximum": torch.maximum(x[:, None], x),
        "unequal": workloads.unequal(k).dense(),
        "Kendall": workloads.kendall(4, k // 4).dense(),
    }
    report.say(f"{k} types, one message, epsilon = {EPSILON:g}, n = {USERS}, flat histogram")
    histogram = torch.ones(k)
    for name, W in kernels.items():
        plain, best = signature_form(W), free_constant(W)
        form, points = pairwise.Form(plain.signature), plain.right.mT.contiguous()
        as_it_is = pairwise.PairwiseStatistic(name, points, form, pairs=pairwise.Pairs.ALL)
        moved = pairwise.from_kernel(W, pairs=pairwise.Pairs.ALL)
        errors = [
            float(LocalFactorization.of(statistic, EPSILON).predicted_mse(histogram / k * USERS))
            ** 0.5
            for statistic in (as_it_is, moved)
        ]
        signs = moved.form.weights.sign()
        report.row(
            "free_constant",
            kernel=name,
            gamma_2=plain.certificate.upper,
            least=best.upper,
            constant=best.constant,
            rmse_gain=errors[0] / errors[1],
            positive=int((signs > 0).sum()),
            negative=int((signs < 0).sum()),
            radius_squared=moved.radius**2,
            rebuilt_to=(moved.kernel(moved.form) - W).abs().max(),
        )


EXPERIMENT = Experiment(measure, Config(), Config(16))

if __name__ == "__main__":
    EXPERIMENT.main()
