"""Certified factorization norms beside their known values.

Papers: Edmonds, Nikolov, Ullman (2020); Ghazi et al. (2023), section 5.
Command:  python experiments/factorization/known_values.py
Expected: prefix sums k = 64: lower and upper within 1e-4 of 2.111366; parities:
sqrt(number of rows);
    1 - I_k: 2 - 2/k; 50 random matrices with sides up to 16 within 1e-4 of the SDP; prefix sums k =
    512 to gap 1e-3.
Output: results/factorization/known_values/*.csv.
Artifact: Edmonds, Nikolov, Ullman (2020); Ghazi et al. (2023) | known norms
Status: agrees
Time: about 20 s on 2 CPU cores; --smoke in 2 s (k = 64 for the last line, 3 random matrices).
"""

import math
import time
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.factorization import factorize, reference
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment


@dataclass(frozen=True)
class Config:
    matrices: int = 50
    k: int = 512  # of the last line


def measure(config, report):
    for workload, known in (
        (workloads.prefix(64), 2.111366),
        (workloads.parities(6, 2), math.sqrt(22)),
        (workloads.parities(8, 2), math.sqrt(37)),
        (workloads.unequal(16), 2 - 2 / 16),
        (workloads.unequal(64), 2 - 2 / 64),
    ):
        certificate = factorize(workload, tol=1e-5).certificate
        lower = float(certificate.lower)
        upper = float(certificate.upper)
        shape = "x".join(map(str, workload.shape))
        report.row(
            "known_values",
            workload=f"{workload.name} {shape}",
            lower=lower,
            upper=upper,
            known=known,
            deviation=max(abs(lower - known), abs(upper - known)),
        )

    generator = keyed_generator(b"known values", "cpu")
    worst = 0.0
    for _ in range(config.matrices):
        rows, columns = torch.randint(2, 17, (2,), device="cpu", generator=generator).tolist()
        W = torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)
        W = torch.as_tensor(W)
        ours = factorize(W, tol=1e-5).certificate
        sdp = reference(W).certificate
        for bound in (ours.upper, ours.lower):
            worst = max(worst, abs(float(bound / sdp.upper) - 1))
    # random matrices with sides 2 to 16: largest distance from the SDP, relative
    report.row("random", matrices=config.matrices, distance=worst)

    start = time.perf_counter()
    result = factorize(workloads.prefix(config.k), tol=1e-3)
    report.row(
        "prefix",
        k=config.k,
        lower=result.certificate.lower,
        upper=result.certificate.upper,
        gap=result.certificate.gap,
        iterations=result.iterations,
        seconds=time.perf_counter() - start,
    )


EXPERIMENT = Experiment(measure, Config(), Config(3, 64))

if __name__ == "__main__":
    EXPERIMENT.main()
