"""Gamma_p of domains: certified, beside closed forms, beside a semidefinite program, and at sizes
it cannot reach.

Paper: Nikolov, Tang (2023), "General Gaussian noise mechanisms and their optimality for unbiased
mean estimation",
    Definition 2, Theorem 32, Lemmas 19, 60 and 62, equations (26) and (27).
Command:  OMP_NUM_THREADS=1 python experiments/mean/shapes.py
Expected: every closed form met within 1e-4, mostly to rounding; 15 points in R^5 equal to the
program within 1e-5; 4096
    points in R^512 at a gap below 1e-3; zonotopes of up to 23 generators at a gap below 1e-3 in 3
    CPU-s, larger ones below sqrt(pi/2) - 1 = 0.25 (their ellipsoid is the best that the
    semidefinite bound proves; the rest is that bound's own slack and the search's).
Output: results/mean/shapes/*.csv, a row for each domain and p: lower and upper bound, gap, CPU
seconds, what they are
    compared with ("took": its seconds; "theory": bounds the gap). The program is cvxpy with
    Clarabel, for d + N <= 80.
Artifact: Nikolov, Tang (2023) | Definition 2, Theorem 32, Lemmas 19, 60, 62
Status: agrees
Time: a minute or two on one core, mostly the program; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass

import torch

from torchdp.domains import (
    Box,
    Ellipsoid,
    FiniteSet,
    NoiseShape,
    Product,
    SchattenBall,
    Zonotope,
    linear_image,
    lp_ball,
    minkowski_sum,
    noise_shape,
)
from torchdp.factorization import gamma_box, gamma_ellipsoid, reference
from torchdp.simulate import Experiment


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.as_tensor(
        torch.randn(*shape, dtype=torch.float64, device="cpu", generator=generator)
    )


def timed(domain, p, shift=True, tol=1e-4) -> tuple[NoiseShape, float]:
    start = time.process_time()
    shape = noise_shape(domain, p, shift=shift, tol=tol)
    return shape, time.process_time() - start


def line(name, p, shape: NoiseShape, seconds):
    return {
        "domain": name,
        "p": p,
        "lower": shape.certificate.lower,
        "upper": shape.upper,
        # closed forms may differ by rounding
        "gap": max(0.0, float(shape.certificate.gap)),
        "seconds": seconds,
    }


def closed(p):
    """Domains with their norms in closed form."""
    high = normal(20, seed=1).abs()
    A = normal(12, 12, seed=2)
    box = Box(torch.zeros_like(high), high)
    ellipsoid = Ellipsoid(A, normal(12, seed=4))
    of_box = gamma_box(box.low, box.high, p)
    of_ellipsoid = gamma_ellipsoid(A, p)
    order = 2.0 if p == math.inf else 2 * p / (p + 2)
    of_both = torch.stack([of_box, of_ellipsoid]).norm(p=order)
    half = normal(3, seed=3).abs()
    boxed = torch.cartesian_prod(*torch.stack([-half, half], 1))
    cubed = torch.cartesian_prod(*torch.tensor([[-1.0, 1.0]] * 4, dtype=torch.float64))
    products = torch.stack([torch.kron(x, y) for x in boxed for y in cubed])
    of_products = float(gamma_box(-half, half, p)) * 4 ** (1 / 2 + 1 / p)
    return [
        ("box in R^20", box, float(of_box)),
        ("ellipsoid in R^12", ellipsoid, float(of_ellipsoid)),
        ("l_1 ball in R^30", lp_ball(30, 1.0), 30 ** (1 / p)),
        ("l_3 ball in R^30", lp_ball(30, 3.0), 30 ** (1 / p + 1 / 6)),
        ("operator ball, 4 x 8", SchattenBall(4, 8), 32 ** (1 / p) * 2),
        ("trace-norm ball, 4 x 8", SchattenBall(4, 8, 1.0), 32 ** (1 / p)),
        ("box x ellipsoid", Product((box, ellipsoid)), float(of_both)),
        ("corners (x) cube in R^12", FiniteSet(products), of_products),
    ]


@dataclass(frozen=True)
class Config:
    exponents: tuple[float, ...] = (2.0, 3.0, 4.0, 8.0, math.inf)
    zonotope_exponents: tuple[float, ...] = (2.0, math.inf)
    sizes: tuple[str, ...] = ("15x5", "40x10", "60x20", "512x64", "4096x512")  # points N x d
    # generators x d
    zonotopes: tuple[str, ...] = ("12x6", "23x4", "23x20", "30x15", "100x50", "500x50", "500x300")


SMOKE = Config((2.0, math.inf), (2.0, math.inf), ("15x5", "128x16"), ("7x4", "30x6"))


def closed_forms(config, report):
    for p in config.exponents:
        for name, domain, exact in closed(p):
            shape, seconds = timed(domain, p)
            off = abs(shape.upper / exact - 1)
            report.row("closed_forms", **line(name, p, shape, seconds), exact=exact, off=off)


def programs(config, report):
    for p in config.exponents:
        for shift in (True, False):
            points = normal(15, 5, seed=5)
            shape, seconds = timed(FiniteSet(points), p, shift, tol=1e-5)
            start = time.perf_counter()
            program = float(reference(points.mT, p, shift).certificate.upper)
            took = time.perf_counter() - start
            name = "15 points in R^5" + ("" if shift else ", centred at 0")
            off = abs(shape.upper / program - 1)
            report.row(
                "program", **line(name, p, shape, seconds), program=program, took=took, off=off
            )


def finite_sets(config, report):
    for count, d in (map(int, size.split("x")) for size in config.sizes):
        for p in (2.0, math.inf):
            points = normal(count, d, seed=6)
            row = line(f"{count} points in R^{d}", p, *timed(FiniteSet(points), p, tol=1e-3))
            program = took = None
            if count + d <= 80:
                start = time.perf_counter()
                program = reference(points.mT, p, True).certificate.upper
                took = time.perf_counter() - start
            report.row("finite_sets", **row, program=program, took=took)


def relaxations(config, report):
    def row(name, p, domain, theory, tol=1e-4):
        shape, seconds = timed(domain, p, tol=tol)
        report.row("relaxations", **line(name, p, shape, seconds), theory=theory)

    for count, d in (map(int, size.split("x")) for size in config.zonotopes):
        zonotope = Zonotope(normal(d, count, seed=7), torch.zeros(d))
        # of up to 23 segments all signs are tried
        theory = 0.25 if count > 23 else None
        for p in config.zonotope_exponents:
            row(f"zonotope, {count} segments in R^{d}", p, zonotope, theory, 1e-3)
    zonotope = Zonotope(normal(4, 10, seed=8), torch.zeros(4))
    both = [Ellipsoid(normal(5, 5, seed=s), normal(5, seed=s + 1)) for s in (9, 11)]
    l_4 = linear_image(normal(6, 9, seed=13), lp_ball(9, 4.0))
    operator = linear_image(normal(6, 9, seed=14), SchattenBall(3, 3))
    for p in config.exponents:
        row("zonotope, 10 segments in R^4, all signs", p, zonotope, None)
        row("sum of two ellipsoids in R^5, exact", p, minkowski_sum(both), None)
        row("image of the l_4 ball in R^6", p, l_4, 0.25)
        row("image of the 3 x 3 operator ball", p, operator, 0.73)


def measure(config, report):
    closed_forms(config, report)
    programs(config, report)
    finite_sets(config, report)
    relaxations(config, report)


EXPERIMENT = Experiment(measure, Config(), SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
