"""Gamma_p of domains: certified, beside closed forms, beside a semidefinite program, and at sizes it cannot reach.

Paper: Nikolov, Tang (2023), "General Gaussian noise mechanisms and their optimality for unbiased mean estimation",
    Definition 2, Theorem 32, Lemmas 19, 60 and 62, equations (26) and (27).
Command:  OMP_NUM_THREADS=1 python experiments/mean/shapes.py
Expected: every closed form met within 1e-4, mostly to rounding; 15 points in R^5 equal to the program within 1e-5; 4096
    points in R^512 at a gap below 1e-3; a zonotope of 500 generators in R^50 at a gap below sqrt(pi/2) - 1 = 0.25 (its
    ellipsoid is the best that the semidefinite bound proves; the rest is that bound's own slack and the search's).
Output: one line for each domain and p: lower and upper bound, gap, what they are compared with, seconds. The program is
    cvxpy with Clarabel, for d + N <= 80.
Time: a minute or two on one core, mostly the program; --smoke in seconds.
"""

import argparse
import math
import time

import torch

from torchdp.domains import (
    Box,
    Ellipsoid,
    FiniteSet,
    KroneckerProduct,
    NoiseShape,
    Product,
    SchattenBall,
    Zonotope,
    linear_image,
    lp_ball,
    minkowski_sum,
    noise_shape,
)
from torchdp.domains.domain import Domain
from torchdp.factorization import gamma_box, gamma_ellipsoid, reference

EXPONENTS, SMOKE_EXPONENTS = (2.0, 3.0, 4.0, 8.0, math.inf), (2.0, math.inf)
# Points (N, d) of the table of finite sets; the program takes those with N + d <= 80.
SIZES, SMOKE_SIZES = ((15, 5), (40, 10), (60, 20), (512, 64), (4096, 512)), ((15, 5), (128, 16))
ZONOTOPE, SMOKE_ZONOTOPE = (50, 500), (6, 30)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def timed(domain: Domain, p: float, shift: bool = True, tol: float = 1e-4) -> tuple[NoiseShape, float]:
    start = time.perf_counter()
    shape = noise_shape(domain, p, shift=shift, tol=tol)
    return shape, time.perf_counter() - start


def line(name: str, p: float, shape: NoiseShape, seconds: float, beside: str = "") -> None:
    lower, gap = float(shape.certificate.lower), max(0.0, float(shape.certificate.gap))
    print(f"{name:34} {p:4g} {lower:12.6f} {shape.upper:12.6f} {gap:9.1e} {seconds:8.2f}  {beside}", flush=True)


def closed(p: float) -> list[tuple[str, Domain, float]]:
    """Domains with their norms in closed form."""
    high, A, B = normal(20, seed=1).abs(), normal(12, 12, seed=2), normal(6, 6, seed=3)
    box = Box(torch.zeros_like(high), high)
    order = 2.0 if p == math.inf else 2 * p / (p + 2)
    sizes = torch.stack([gamma_box(box.low, box.high, p), gamma_ellipsoid(A, p)])
    return [
        ("box in R^20", box, float(gamma_box(box.low, box.high, p))),
        ("ellipsoid in R^12", Ellipsoid(A, normal(12, seed=4)), float(gamma_ellipsoid(A, p))),
        ("l_1 ball in R^30", lp_ball(30, 1.0), 30 ** (1 / p)),
        ("l_3 ball in R^30", lp_ball(30, 3.0), 30 ** (1 / p + 1 / 6)),
        ("operator ball, 4 x 8", SchattenBall(4, 8), 32 ** (1 / p) * 2),
        ("trace-norm ball, 4 x 8", SchattenBall(4, 8, 1.0), 32 ** (1 / p)),
        ("box x ellipsoid", Product((box, Ellipsoid(A, normal(12, seed=4)))), float(sizes.norm(p=order))),
        (
            "ellipsoid (x) cube in R^24",
            KroneckerProduct(Ellipsoid(B, torch.zeros(6)), lp_ball(4, math.inf)),
            float(gamma_ellipsoid(B, p)) * 4 ** (1 / 2 + 1 / p),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, seconds")
    smoke = parser.parse_args().smoke
    exponents = SMOKE_EXPONENTS if smoke else EXPONENTS
    print(f"{'domain':34} {'p':>4} {'lower':>12} {'upper':>12} {'gap':>9} {'seconds':>8}  beside")

    worst = 0.0
    for p in exponents:
        for name, domain, exact in closed(p):
            shape, seconds = timed(domain, p)
            off = abs(shape.upper / exact - 1)
            worst = max(worst, off, float(shape.certificate.gap))
            line(name, p, shape, seconds, f"closed form {exact:.6f}, off by {off:.1e}")
    print(f"closed forms: worst distance or gap {worst:.1e}\n")

    worst = 0.0
    for p in exponents:
        for shift in (True, False):
            points = normal(15, 5, seed=5)
            shape, seconds = timed(FiniteSet(points), p, shift, tol=1e-5)
            start = time.perf_counter()
            program = float(reference(points.mT, p, shift).certificate.upper)
            took = time.perf_counter() - start
            off = abs(shape.upper / program - 1)
            worst = max(worst, off)
            name = "15 points in R^5" + ("" if shift else ", centred at 0")
            line(name, p, shape, seconds, f"program {program:.6f} in {took:.2f} s, off by {off:.1e}")
    print(f"fifteen points: worst distance from the program {worst:.1e}\n")

    for count, d in SMOKE_SIZES if smoke else SIZES:
        for p in (2.0, math.inf):
            points = normal(count, d, seed=6)
            shape, seconds = timed(FiniteSet(points), p, tol=1e-3)
            beside = "program: too large"
            if count + d <= 80:
                start = time.perf_counter()
                program = float(reference(points.mT, p, True).certificate.upper)
                beside = f"program {program:.6f} in {time.perf_counter() - start:.2f} s"
            line(f"{count} points in R^{d}", p, shape, seconds, beside)
    print()

    d, count = SMOKE_ZONOTOPE if smoke else ZONOTOPE
    zonotope = Zonotope(normal(d, count, seed=7), torch.zeros(d))
    for p in SMOKE_EXPONENTS if smoke else (2.0, 4.0, math.inf):
        line(f"zonotope, {count} segments in R^{d}", p, *timed(zonotope, p), "theory: gap <= 0.25")
    for p in exponents:
        few = Zonotope(normal(4, 10, seed=8), torch.zeros(4))
        line("zonotope, 10 segments in R^4", p, *timed(few, p), "all signs tried")
        both = [Ellipsoid(normal(5, 5, seed=s), normal(5, seed=s + 1)) for s in (9, 11)]
        line("sum of two ellipsoids in R^5", p, *timed(minkowski_sum(both), p), "two quadratic constraints: exact")
        image = linear_image(normal(6, 9, seed=13), lp_ball(9, 4.0))
        line("image of the l_4 ball in R^6", p, *timed(image, p), "theory: gap <= 0.25")
        image = linear_image(normal(6, 9, seed=14), SchattenBall(3, 3))
        line("image of the 3 x 3 operator ball", p, *timed(image, p), "theory: gap <= 0.73")


if __name__ == "__main__":
    main()
