"""Explicit factorizations beside the certified optimum, and Kronecker products factored without
forming them.

Papers: Fichtenberger, Henzinger, Upadhyay (2023);
    Henzinger, Kalinin, Upadhyay (2025); Ghazi et al. (2023), Lemma 17; Nikolov, Tang (2023),
    Lemma 62; Liu, Upadhyay, Zou (2024), Theorem 1.4: no (epsilon, delta)-DP mechanism has an l_p
    error below a constant times gamma_(p)/epsilon, here at p = 4 too ("fourth power").
Command:  python experiments/factorization/structured.py [--dense]
Expected: prefix sums at k = 1024: the normalised square root 1.040 times the optimum, the square
    root 1.105; value - ln k / pi = 0.874 and 1.066. In l_4 at k = 64 the normalised square root is
    1.015 times the optimum, the square root 1.066. abs(i - j): Lemma 17's tree costs 1.30 k at k =
    15 and 1.60 k at 255, below its bound; the optimum stays below k. Kendall's tau on 64 x 64: both
    bounds 10.042063, the signature form in about half a second; from the 4096 x 4096 matrix
    (--dense) in minutes.
Output: results/factorization/structured/*.csv.
Artifact: several, named in the script | explicit factorizations
Status: agrees
Time: half a minute on one CPU core, some minutes more with --dense; --smoke in 2 s.
"""

import math
import time
from dataclasses import dataclass

from torchdp import workloads
from torchdp.factorization import (
    factorize,
    factorize_product,
    lipschitz_tree,
    signature_form,
    square_root,
)
from torchdp.factorization.constructive import normalised_square_root
from torchdp.simulate import Experiment

DENSE_UP_TO = 32  # side of the grids that are also factored as dense matrices; --dense: all
TOLERANCE = 1e-4  # certified gap of the optimum


PREFIX = {
    "square root": square_root,
    "normalised root": normalised_square_root,
}


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    sides: tuple[int, ...] = (16, 32, 64)
    dense: bool = False  # the dense route for every grid: minutes


def prefix_sums(config, report):
    """Norms of the factorizations over the certified lower bound of the optimum."""
    for p, error in ((math.inf, "worst"), (4.0, "fourth power"), (2.0, "mean squared")):
        for k in config.sizes:
            optimum = factorize(workloads.prefix(k), p, tol=TOLERANCE).certificate
            values = {name: build(k, p).certificate.upper for name, build in PREFIX.items()}
            unit = k ** (1 / p)
            report.row(
                "prefix_sums",
                error=error,
                k=k,
                lower=optimum.lower / unit,
                upper=optimum.upper / unit,
                **{name: value / optimum.lower for name, value in values.items()},
            )
        constants = {name: value / unit - math.log(k) / math.pi for name, value in values.items()}
        report.row("less_ln_k_over_pi", error=error, k=k, **constants)


def lipschitz(config, report):
    """abs(i - j), Lipschitz with G = 1: norms over k."""
    for k in (size - 1 for size in config.sizes[:5]):
        W = workloads.absolute_difference(k).dense()
        optimum = factorize(W, tol=1e-3).certificate
        # of the root of the search tree, and then of levels whose entries halve
        root = float(W[:, k // 2].abs().max())
        squares = root**2 + 9 / 14 * 4 ** k.bit_length()
        tree = lipschitz_tree(W).certificate
        report.row(
            "lipschitz",
            k=k,
            lower=optimum.lower / k,
            upper=optimum.upper / k,
            search_tree=tree.upper / k,
            its_bound=math.sqrt(36 / 11 * squares) / k,
        )


def products(config, report):
    """Kendall's tau, gamma_2 of the whole product."""
    routes = {
        "never formed, factor by factor": factorize_product,
        "formed, factor by factor": factorize,
        "signature, factor by factor": signature_form,
        "signature, from the dense matrix": lambda kernel: signature_form(kernel.dense()),
    }
    for side in config.sides:
        kernel = workloads.kendall(side, side)
        for name, call in routes.items():
            if "dense" in name and side > DENSE_UP_TO and not config.dense:
                continue
            start = time.perf_counter()
            found = call(kernel).certificate
            seconds = time.perf_counter() - start
            report.row(
                "products",
                route=name,
                types=side**2,
                lower=found.lower,
                upper=found.upper,
                seconds=seconds,
            )


def measure(config, report):
    prefix_sums(config, report)
    lipschitz(config, report)
    products(config, report)


EXPERIMENT = Experiment(measure, Config(), Config((16, 32, 64), (16,)))

if __name__ == "__main__":
    EXPERIMENT.main()
