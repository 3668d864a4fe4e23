"""Errors and structures that have no fixed point, trained: error, lower bound, and the best other
route.

Papers: Nikolov, Tang (2023); Ghazi et al. (2023); peers as named.
Command:  OMP_NUM_THREADS=1 python experiments/factorization/trained.py
Expected: the trained error is at most the other's in every row, up to 1e-4; where the objective is
convex and the
    factors are free it meets the bound within 1e-4. Three-way marginals of 1,000 bits are certified
    in less than a second, and the variance of 1,000 random cells agrees with the one predicted.
Of prefix sums of 64, all ranges of [24], or a product of two: each row says the objective's value
(root of a squared error) of the trained factors, the certified lower bound of all factorizations,
and the value of the best other route: the factors of gamma_2 or of gamma_F by the fixed point,
their products, the square root cut to its bands (Fichtenberger, Henzinger, Upadhyay 2023), and
jax-privacy's banded Toeplitz strategy where it can be imported.
Output: results/factorization/trained/trained.csv, marginals.csv and trained.png.
Artifact: Nikolov, Tang (2023); peers | trained errors and structures
Status: agrees, on a CPU
Time: about 2 minutes on one core; --smoke in seconds.
"""

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from solvers import import_jax
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import (
    Groups,
    MarginalFactorization,
    Norm,
    Objective,
    Product,
    Relaxation,
    factorize,
    square_root,
    strategy,
    train,
)
from torchdp.factorization.certificates.objective_certificate import certify_objective
from torchdp.factorization.train import Structure
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, subplots

Factors = tuple[Tensor, Tensor]
BANDS = 8


@dataclass(frozen=True)
class Mixed(Objective):
    """share * (largest squared error) + (1 - share) * (mean squared error); share in [0, 1]."""

    share: float

    def rows(self, a):
        return self.share * a + (1 - self.share) * a.mean(-1, keepdim=True)


@dataclass(frozen=True)
class Limited(Objective):
    """The mean squared error, query i's being at most limits_i times it: else the largest ratio
    counts.
    """

    limits: Tensor  # (m,), positive

    def rows(self, a):
        return torch.cat([a.mean(-1, keepdim=True), a / self.limits.to(a)], -1)


@dataclass(frozen=True)
class LocalError(Objective):
    """The worst query's variance in a local protocol whose users hold types drawn from ``prior``.

    A user of type x sends a private R_x of covariance v (radius^2 I + outer R_x R_x^T), radius =
    max_j ||R_j||. Query i then varies by v / n times radius^2 a_i + outer sum_x prior_x W_ix^2, and
    v / n is left out here.
    """

    prior: Tensor  # (n,)
    outer: float  # at least -1: that of gamma_2 is 0

    def rows(self, a):
        return a

    def offset(self, W):
        return self.outer * (W.square() @ self.prior.to(W))


@dataclass(frozen=True)
class Config:
    n: int = 64
    bits: int = 1000
    draws: int = 400
    tol: float = 1e-4


@dataclass(frozen=True)
class Case:
    name: str
    W: Tensor
    objective: Objective
    structure: Structure | None
    others: dict[str, Callable[[Tensor], Factors]]


def fixed(p) -> Callable[[Tensor], Factors]:
    def run(W):
        found = factorize(W, p, tol=1e-6)
        return found.left, found.right

    return run


def of_strategy(W, C):
    return torch.linalg.solve(C, W, left=False), C


def cut_root(W):
    root = square_root(len(W)).right
    return of_strategy(W, root.tril().triu(1 - BANDS))


def by_jax(W):
    import_jax()
    import jax.numpy as jnp
    import numpy as np
    from jax_privacy.matrix_factorization import toeplitz
    from scipy.linalg import toeplitz as toeplitz_matrix

    found = toeplitz.optimize_banded_toeplitz(len(W), BANDS, reduction_fn=jnp.max)
    column = np.zeros(len(W))
    column[: len(found)] = found
    # lower triangular: a step does not see later ones
    return of_strategy(W, torch.as_tensor(np.tril(toeplitz_matrix(column))))


def cases(n):
    W = workloads.prefix(n).dense()
    norms = {"factors of gamma_2": fixed(math.inf), "factors of gamma_F": fixed(2.0)}
    ranges = workloads.all_ranges(3 * n // 8).dense()
    yield Case("ranges, half the largest, half the mean", ranges, Mixed(0.5), None, norms)
    limits = torch.full((len(ranges),), 1.2, dtype=torch.float64)
    yield Case("ranges, the mean, none above 1.2 times it", ranges, Limited(limits), None, norms)
    types = torch.arange(3 * n // 8, dtype=torch.float64)
    prior = torch.softmax(-types / 2, 0)
    moments = PrivUnit(len(types), 8.0).moments
    local = LocalError(prior, moments.outer / moments.variance)
    yield Case("ranges, PrivUnit's own variance, epsilon = 8", ranges, local, None, norms)
    pairs = torch.eye(n, dtype=torch.float64)
    pairs = pairs + pairs.roll(n // 2, 1)
    yield Case("a user holds two columns, n / 2 apart", W, Groups(pairs[: n // 2]), None, norms)
    cut = {f"square root, {BANDS} bands": cut_root, "jax-privacy, banded Toeplitz": by_jax}
    yield Case(f"strategy of {BANDS} bands", W, Norm(), strategy(bands=BANDS), cut)
    yield Case(f"Toeplitz of {BANDS} bands", W, Norm(), strategy(bands=BANDS, toeplitz=True), cut)
    positive = strategy(bands=BANDS, nonnegative=True)
    yield Case(f"{BANDS} bands, no negative entry", W, Mixed(0.5), positive, cut)
    A = workloads.prefix(max(2, n // 8)).dense()
    B = workloads.all_ranges(3).dense()

    def products(W):
        left_of_A, right_of_A = fixed(math.inf)(A)
        left_of_B, right_of_B = fixed(math.inf)(B)
        return torch.kron(left_of_A, left_of_B), torch.kron(right_of_A, right_of_B)

    other = {"product of gamma_2's factors": products}

    def both(_) -> Product:
        return Product(Relaxation(A), Relaxation(B))

    yield Case(
        "a product, half the largest, half the mean", torch.kron(A, B), Mixed(0.5), both, other
    )


def value(case, factors):
    left, right = factors
    # any weights give the upper bound; only the lower one depends on them
    rows = torch.ones_like(case.objective.rows(left.square().sum(1)))
    columns = torch.ones_like(case.objective.columns(right.square().sum(0)))
    return float(certify_objective(case.W, left, right, case.objective, rows, columns).upper)


def row(case, config, report):
    start = time.process_time()
    found = train(case.W, case.objective, case.structure, tol=config.tol)
    seconds = time.process_time() - start
    others = {}
    for name, run in case.others.items():
        try:
            others[name] = value(case, run(case.W))
        except ImportError as error:
            report.say(f"{name} missing: {error.name}")
    best = min(others, key=others.__getitem__)
    report.row(
        "trained",
        problem=case.name,
        trained=found.certificate.upper,
        lower=found.certificate.lower,
        gap=found.certificate.gap,
        other=others[best],
        by=best,
        seconds=seconds,
    )


def peak_memory():
    """KB of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def marginals(config, report):
    """The certificate's time, and sample variances of 1,000 random cells over the predicted one."""
    before = peak_memory()
    start = time.process_time()
    factors = MarginalFactorization(config.bits, 3)
    certificate = factors.certificate()
    seconds = time.process_time() - start
    generator = keyed_generator(b"marginals")
    order = torch.rand(1000, config.bits, generator=generator).argsort(1)
    sets, _ = order[:, :3].sort(1)
    cells = torch.randint(8, (1000, 1), generator=generator)
    start = time.process_time()
    count = len(factors.subsets(sets)[0])
    draws = []
    for _ in range(config.draws):
        normals = torch.randn(count, dtype=torch.float64, generator=generator)
        noise = factors.decode(sets, factors.sensitivity * normals)
        draws.append(noise.gather(1, cells))
    ratio = torch.cat(draws, 1).square().mean(1) / factors.variance(1.0)
    memory = (peak_memory() - before) / 2**10
    # a mean of squared normals varies by 2 over their number
    z = (ratio - 1) / math.sqrt(2 / config.draws)
    report.row(
        "marginals",
        bits=config.bits,
        order=3,
        cells=factors.cells,
        upper=certificate.upper,
        gap=certificate.gap,
        certified_s=seconds,
        draw_s=(time.process_time() - start) / config.draws,
        normals=count,
        memory_mb=memory,
        mean_ratio=ratio.mean(),
        largest_z=z.abs().max(),
    )


def measure(config, report):
    torch.set_num_threads(1)
    # first: peaks of memory only grow
    marginals(config, report)
    for case in cases(config.n):
        row(case, config, report)


def draw(tables):
    rows = tables["trained"]
    figure, (axes,) = subplots(1, size=(8, 4.5))
    places = range(len(rows))
    for name, at, colour in (("trained", -0.2, "#009E73"), ("other", 0.2, "#D55E00")):
        ratios = [r[name] / r["lower"] for r in rows]
        label = "trained" if name == "trained" else "best other"
        bars = axes.barh([i + at for i in places], ratios, 0.4, label=label, color=colour)
        axes.bar_label(bars, fmt="%.3f", fontsize="x-small", padding=2)
    axes.set_yticks(list(places), [r["problem"] for r in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0.9, None), xlabel="error / certified lower bound of all factorizations")
    axes.legend(fontsize="small")
    return {"trained.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config(n=8, bits=20, draws=40, tol=1e-3), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
