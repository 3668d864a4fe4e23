"""What a statement of a paper is to the checker, and brackets of norms that are recomputed here
from the witnesses.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchdp.domains import FiniteSet, noise_shape
from torchdp.factorization import factorize
from torchdp.randomizers import PrivUnit

EXPONENTS = (2.0, 2.5, 3.0, 4.0, 8.0, 64.0, math.inf)
EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SMALL = EPSILONS[:4]  # epsilon <= 1
SLACK = 1e-3  # relative: brackets are closed to a fifth of it
KINDS = {  # of statements that fail as printed
    "false": "the statement has to be another one",
    "range": "it holds in a range, such as that of its source, which it does not state",
    "misprint": "its proof, or another place of the paper, has the right form",
    "step": "of a proof: what the paper concludes stands",
    "degenerate": "it fails at an end of its range alone, or where a constant is meant to depend on a parameter",
}
Instances = Iterator[tuple[str, float, float]]  # where, the side that should be smaller, the other
Source = Callable[[np.random.Generator, int], Instances]  # (rng, how many random instances)


@dataclass(frozen=True)
class Check:
    """An inequality of a paper over its whole range of parameters.

    paper: a title's first word in docs/papers.md; row: how the row there begins. statement, scope:
    what is claimed, and what was tried. instances(rng, count) yields where, the side that should be
    smaller, and the other side. limit: of their ratio, 1, or the constant that is granted where the
    paper's O() names none. kind: of what is known to fail as printed (KINDS, and
    docs/corrections.md); "" for what is to hold.
    """

    paper: str
    row: str
    statement: str
    scope: str
    instances: Source
    limit: float = 1.0
    kind: str = ""

    def run(self, count, seed):
        """Tries the instances; a ratio above limit (1 + 1e-3) is a failure."""
        rng = np.random.default_rng([seed, sum(map(ord, self.row + self.statement))])
        with warnings.catch_warnings():
            # solvers that stop early: what they certify is recomputed here
            warnings.simplefilter("ignore")
            tried = list(self.instances(rng, count))
        ratios = np.array([ratio(small, large) for _, small, large in tried])
        nan = np.isnan(ratios)
        if nan.any():
            raise ArithmeticError(f"{self.row}: no number at {tried[nan.argmax()][0]}")
        failures = int((ratios > self.limit * (1 + SLACK)).sum())
        at = ratios.argmax()
        return {
            "paper": self.paper,
            "result": self.row,
            "statement": self.statement,
            "range": self.scope,
            "instances": len(tried),
            "worst": float(ratios[at]),
            "limit": self.limit,
            "failures": failures,
            "where": tried[at][0],
            "verdict": "holds" if not failures else "fails",
            "kind": self.kind,
        }


CHECKS: list[Check] = []


class Statements:
    """Of one paper: decorators that enter a generator of instances into CHECKS, and return it.

    Several above one generator are several statements, the lowest the first: as printed, then
    mended. changes: keywords of the generator.
    """

    def __init__(self, paper):
        self.paper = paper

    def check(self, row, statement, scope, limit=1.0, kind="", source=lambda f: f):
        """Of a generator ``(rng, count)``, or of what ``source`` makes of another one."""

        def enter(instances):
            CHECKS.append(Check(self.paper, row, statement, scope, source(instances), limit, kind))
            return instances

        return enter

    def each(self, row, statement, scope, limit=1.0, kind="", **changes) -> Callable[[Any], Any]:
        def source(instances):
            return each(instances, **changes)

        return self.check(row, statement, scope, limit, kind, source)

    def grid(
        self, row, statement, scope, *axes, limit=1.0, kind="", **changes
    ) -> Callable[[Any], Any]:
        def source(points):
            return grid(points, *axes, **changes)

        return self.check(row, statement, scope, limit, kind, source)


def each(instances, least=0, **changes):
    """``instances(draw)`` of so many draws, and not fewer than ``least``."""

    def source(rng, count):
        for i in range(max(count, least)):
            yield from instances(Draw(rng, i), **changes)

    return source


def grid(instances, *axes, slow=False, **changes):
    """``instances(*point)`` of the product of the axes; slow: where few instances are asked for, of
    12 points.
    """

    def source(rng, count):
        points = list(itertools.product(*axes))
        if slow and count < 10:
            points = [points[i] for i in rng.permutation(len(points))[:12]]
        for point in points:
            yield from instances(*point, **changes)

    return source


@dataclass(frozen=True)
class Draw:
    """The i-th random instance: i takes kinds and parameters in turn, rng draws the rest."""

    rng: np.random.Generator
    i: int

    @property
    def p(self):
        return EXPONENTS[self.i % len(EXPONENTS)]

    @property
    def epsilon(self):
        return EPSILONS[self.i % len(EPSILONS)]

    @property
    def small_epsilon(self):
        return SMALL[self.i % len(SMALL)]

    def size(self, most, least=1):
        return int(self.rng.integers(least, most + 1))

    def pick(self, *options):
        return self.rng.choice(options).item()

    def matrix(self, rows, columns, later=0):
        """Signs, normals, integers with ties, non-negative, of rank one, badly scaled, with zero
        rows, in turn.
        """
        rng = self.rng
        shape = (rows, columns)
        kind = (self.i + later) % 7
        if kind == 0:
            return rng.choice([-1.0, 1.0], shape)
        if kind == 1:
            return rng.normal(size=shape)
        if kind == 2:
            return rng.integers(-2, 3, shape).astype(float)
        if kind == 3:
            return rng.exponential(size=shape)
        if kind == 4:
            return np.outer(rng.normal(size=rows), rng.normal(size=columns))
        normals = rng.normal(size=shape)
        if kind == 5:
            return normals * np.exp(rng.normal(size=(rows, 1)) * 3)
        return normals * rng.integers(0, 2, (rows, 1))

    def sized(self, rows, columns, later=0):
        """A matrix of at most so many rows and columns."""
        return self.matrix(self.size(rows), self.size(columns), later)

    def simplex(self, k):
        """A point of the simplex: of the inside, or sparse."""
        return self.rng.dirichlet(np.full(k, self.rng.choice([0.1, 1.0, 10.0])))


def ratio(small, large):
    """small/large; 0 where both are rounding, inf where the larger side alone vanishes."""
    if small <= 1e-12 * (1 + abs(small) + abs(large)):
        return 0.0
    return small / large if large > 1e-300 else math.inf


def worst(*sides: tuple[float, float]) -> tuple[float, float]:
    """The sides (small, large) of the largest ratio."""
    return max(sides, key=lambda pair: ratio(*pair))


def largest(values):
    """Absolute value of the largest entry; 0 of none."""
    return float(np.abs(values).max(initial=0.0))


def privunit_variance(d, epsilon):
    """Of PrivUnit's unbiased report of a unit vector, summed over its d coordinates."""
    return float(PrivUnit(d, epsilon).moments.variance)


def p_norm(values, p):
    top = largest(values)
    if top == 0 or p == math.inf:
        return top
    # divided by the largest, so that no power overflows
    powers = (np.abs(values) / top) ** p
    return top * float(powers.sum() ** (1 / p))


def trace_norm(M):
    return float(np.linalg.svd(M, compute_uv=False).sum())


def size_of(left, right, p=math.inf):
    """What a factorization proves of gamma_(p) of its product."""
    columns = np.linalg.norm(right, axis=0)
    return p_norm(np.linalg.norm(left, axis=1), p) * float(columns.max())


def row_scale(weights, p):
    """weights scaled to norm 1 in l_{p/(p-2)}: the squares of Theorem 26's D."""
    if p == 2:
        order = math.inf
    elif p == math.inf:
        order = 1.0
    else:
        order = p / (p - 2)
    size = p_norm(weights, order)
    return weights / size if size else weights


def dual(points, weights, rows, p, shift=True):
    """tr((D cov(P) D)^{1/2}), of Theorem 26: points (k, d), weights (k,), rows = D^2 before
    scaling.
    """
    P = weights / weights.sum()
    centred = points - P @ points if shift else points
    D = np.sqrt(row_scale(rows, p))
    # the root of D cov(P) D has the singular values of this matrix
    return trace_norm(D * centred * np.sqrt(P)[:, None])


def gamma_p(points, p, shift=True):
    """(lower, upper) bounds of Gamma_p of a finite set, recomputed from the ellipsoid and the
    measure found.
    """
    points = np.unique(points + 0.0, axis=0)
    shape = noise_shape(FiniteSet(torch.as_tensor(points)), p, shift=shift, tol=SLACK / 5)
    A = shape.root.numpy()
    v = shape.centre.numpy()
    if A.shape[1] == 0:
        return 0.0, 0.0
    u = (points - v) @ np.linalg.pinv(A).T
    sticks = largest(u @ A.T + v - points)
    if sticks > 1e-7 * (1e-300 + largest(points - v)):
        raise ArithmeticError(f"the ellipsoid does not hold the set: {sticks:g}")
    upper = size_of(A, u.T, p)
    support = shape.support.numpy()
    middle = (points.max(0) + points.min(0)) / 2
    rounding = 1e-12 * largest(points)
    if shift and np.allclose(points, 2 * middle - points[::-1], atol=rounding):
        # symmetric: its measure may be made so
        support = support - middle
        shift = False
    return dual(support, shape.weights.numpy(), shape.row_weights.numpy(), p, shift), upper


def gamma_of(W, p=math.inf, shift=False):
    """(lower, upper) bounds of gamma_(p)(W), recomputed from the factors and the dual weights;
    columns are types.
    """
    found = factorize(W, p, shift=shift, tol=SLACK / 5)
    left = found.left.numpy()
    right = found.right.numpy()
    moved = W if found.shift is None else W - found.shift.numpy()[:, None]
    if largest(left @ right - moved) > 1e-7 * (1e-300 + largest(W)):
        raise ArithmeticError("the factors do not multiply to W")
    rows = found.row_weights.numpy()
    columns = found.column_weights.numpy()
    lower = dual(W.T, columns, rows, p, shift) if columns.sum() and rows.any() else 0.0
    return lower, size_of(left, right, p)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
