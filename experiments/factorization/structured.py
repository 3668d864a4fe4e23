"""Explicit factorizations beside the certified optimum, and Kronecker products factored without forming them.

Papers: Chan, Shi, Song (2011); Honaker (2015); Fichtenberger, Henzinger, Upadhyay (2023); Henzinger, Upadhyay (2025);
    Henzinger, Kalinin, Upadhyay (2025); Ghazi et al. (2023), Lemma 17; Nikolov, Tang (2023), Lemma 62.
Command:  python experiments/factorization/structured.py [--dense]
Expected: prefix sums at k = 1024: the normalised square root 1.040 times the optimum, the group algebra 1.076, the
    square root 1.105, the least-squares tree 1.50, the binary tree 3.54; value - ln k / pi = 0.874, 0.981 and 1.066 for
    the first three. abs(i - j): Lemma 17's tree costs 1.30 k at k = 15 and 1.60 k at 255, below its bound; the optimum
    stays below k.
    Kendall's tau on 64 x 64: both bounds 10.042063, the signature form in about half a second; from the 4096 x 4096
    matrix (--dense) in minutes.
Time: half a minute on one CPU core, some minutes more with --dense; --smoke in 2 s.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

from torchdp import workloads
from torchdp.factorization import (
    Factorization,
    best_decoder,
    binary_tree,
    factorize,
    factorize_product,
    group_algebra,
    lipschitz_tree,
    normalised_square_root,
    signature_form,
    square_root,
)

SIZES = (16, 32, 64, 128, 256, 512, 1024)
SIDES = (16, 32, 64)
DENSE_UP_TO = 32  # side of the grids that are also factored as dense matrices; --dense: all
TOLERANCE = 1e-4  # certified gap of the optimum


def least_squares_tree(k: int, p: float = math.inf) -> Factorization:
    return best_decoder(workloads.prefix(k).dense(), binary_tree(k).right, p)


PREFIX: dict[str, Callable[[int, float], Factorization]] = {
    "binary tree": binary_tree,
    "least-squares tree": least_squares_tree,
    "square root": square_root,
    "group algebra": group_algebra,
    "normalised root": normalised_square_root,
}


def prefix_sums(sizes: tuple[int, ...]) -> None:
    print("prefix sums: norm of the factorization over the certified lower bound of the optimum")
    for p, error in ((math.inf, "worst"), (2.0, "mean squared")):
        print(f"{error + ' error':<20}{'k':>6}{'optimum':>22}" + "".join(f"{name:>20}" for name in PREFIX))
        for k in sizes:
            optimum = factorize(workloads.prefix(k), p, tol=TOLERANCE).certificate
            lower, upper = float(optimum.lower), float(optimum.upper)
            values = [float(build(k, p).certificate.upper) for build in PREFIX.values()]
            unit = k ** (1 / p)
            bracket = f"[{lower / unit:.5f}, {upper / unit:.5f}]"
            print(
                f"{'':<20}{k:>6}{bracket:>22}" + "".join(f"{value / lower:>20.4f}" for value in values), flush=True
            )
        constants = [value / unit - math.log(k) / math.pi for value in values]
        print(f"{'  less ln k / pi':<20}{k:>6}{'':>22}" + "".join(f"{value:>20.4f}" for value in constants))


def lipschitz(sizes: tuple[int, ...]) -> None:
    print("abs(i - j), Lipschitz with G = 1: norms over k")
    print(f"{'k':>6}{'optimum':>22}{'binary search tree':>22}{'its bound':>12}")
    for k in sizes:
        W = workloads.absolute_difference(k).dense()
        optimum = factorize(W, tol=1e-3).certificate
        tree = float(lipschitz_tree(W).certificate.upper) / k
        bracket = f"[{float(optimum.lower) / k:.5f}, {float(optimum.upper) / k:.5f}]"
        root = float(W[:, k // 2].abs().max())
        bound = math.sqrt(36 / 11 * (root**2 + 9 / 14 * 4 ** k.bit_length())) / k
        print(f"{k:>6}{bracket:>22}{tree:>22.4f}{bound:>12.4f}", flush=True)


def timed(call: Callable[[Any], Any], argument: Any) -> str:
    start = time.perf_counter()
    certificate = call(argument).certificate
    seconds = time.perf_counter() - start
    return f"{float(certificate.lower):>14.8f}{float(certificate.upper):>14.8f}{seconds:>12.3f}"


def products(sides: tuple[int, ...], dense_up_to: int) -> None:
    print("Kendall's tau, gamma_2 of the whole product")
    print(f"{'':<34}{'types':>8}{'lower':>14}{'upper':>14}{'seconds':>12}")
    for side in sides:
        kernel = workloads.kendall(side, side)
        for name, call in (
            ("never formed", factorize_product),
            ("formed", factorize),
            ("signature", signature_form),
        ):
            print(f"{name + ', factor by factor':<34}{side**2:>8}{timed(call, kernel)}", flush=True)
        if side <= dense_up_to:
            print(f"{'signature, from the dense matrix':<34}{side**2:>8}{timed(signature_form, kernel.dense())}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dense", action="store_true", help="the dense route for every grid: minutes")
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    sizes, sides = (SIZES[:3], SIDES[:1]) if options.smoke else (SIZES, SIDES)
    prefix_sums(sizes)
    lipschitz(tuple(k - 1 for k in sizes[:5]))
    products(sides, max(sides) if options.dense else DENSE_UP_TO)


if __name__ == "__main__":
    main()
