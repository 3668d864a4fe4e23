"""Certified factorization norms beside their known values.

Papers: Edmonds, Nikolov, Ullman (2020); Ghazi et al. (2023), section 5.
Command:  python experiments/factorization/known_values.py
Expected: prefix sums k = 64: lower and upper within 1e-4 of 2.111366; parities: sqrt(number of rows);
    1 - I_k: 2 - 2/k; 50 random matrices with sides up to 16 within 1e-4 of the SDP; prefix sums k = 512 to gap 1e-3.
Time: about 20 s on 2 CPU cores; --smoke in 2 s (k = 64 for the last line, 3 random matrices).
"""

import argparse
import math
import time

import torch

from torchdp import workloads
from torchdp.factorization import factorize, reference
from torchdp.randomness import keyed_generator


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    print(f"{'workload':<24}{'lower':>14}{'upper':>14}{'known':>14}{'largest deviation':>20}")
    for workload, known in (
        (workloads.prefix(64), 2.111366),
        (workloads.parities(6, 2), math.sqrt(22)),
        (workloads.parities(8, 2), math.sqrt(37)),
        (workloads.unequal(16), 2 - 2 / 16),
        (workloads.unequal(64), 2 - 2 / 64),
    ):
        certificate = factorize(workload, tol=1e-5).certificate
        lower, upper = float(certificate.lower), float(certificate.upper)
        shape = "x".join(map(str, workload.shape))
        deviation = max(abs(lower - known), abs(upper - known))
        print(f"{workload.name + ' ' + shape:<24}{lower:>14.8f}{upper:>14.8f}{known:>14.8f}{deviation:>20.1e}")

    generator = keyed_generator(b"known values")
    worst, count = 0.0, 3 if smoke else 50
    for _ in range(count):
        rows, columns = torch.randint(2, 17, (2,), generator=generator).tolist()
        W = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
        ours, sdp = factorize(W, tol=1e-5).certificate, reference(W).certificate
        worst = max(worst, abs(float(ours.upper / sdp.upper) - 1), abs(float(ours.lower / sdp.upper) - 1))
    print(f"{count} random matrices with sides 2 to 16: within {worst:.1e} of the SDP, relative")

    k = 64 if smoke else 512
    start = time.perf_counter()
    result = factorize(workloads.prefix(k), tol=1e-3)
    print(
        f"prefix sums k = {k}: [{float(result.certificate.lower):.6f}, {float(result.certificate.upper):.6f}], gap "
        f"{float(result.certificate.gap):.1e}, {result.iterations} iterations, {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
