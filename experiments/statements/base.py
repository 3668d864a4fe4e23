"""What a statement of a paper is to the checker, and brackets of norms that are recomputed here from the witnesses."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchdp.domains import FiniteSet, noise_shape
from torchdp.factorization import factorize

EXPONENTS = (2.0, 2.5, 3.0, 4.0, 8.0, 64.0, math.inf)
EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SLACK = 1e-3  # relative: brackets are closed to a fifth of it
KINDS = {  # of statements that fail as printed
    "false": "the statement has to be another one",
    "range": "it holds in a range, such as that of its source, which it does not state",
    "misprint": "its proof, or another place of the paper, has the right form",
    "step": "of a proof: what the paper concludes stands",
    "degenerate": "it fails at an end of its range alone, or where a constant is meant to depend on a parameter",
}
Instances = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class Check:
    """An inequality of a paper over its whole range of parameters.

    paper: a title's first word in docs/papers.md; row: how the row there begins. statement, scope: what is claimed, and
    what was tried. instances(rng, count) yields where, and (side that should be smaller)/(other side). limit: 1, or the
    constant that is granted where the paper's O() names none. kind: of what is known to fail as printed (KINDS, and
    docs/corrections.md); "" for what is to hold.
    """

    paper: str
    row: str
    statement: str
    scope: str
    instances: Callable[[np.random.Generator, int], Instances]
    limit: float = 1.0
    kind: str = ""

    def run(self, count: int, seed: int) -> dict[str, object]:
        """Tries the instances; a ratio above limit (1 + 1e-3) is a failure."""
        rng = np.random.default_rng([seed, sum(map(ord, self.row + self.statement))])
        tried, failures, worst, where = 0, 0, -1.0, ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # solvers that stop early: what they certify is recomputed here
            for at, ratio in self.instances(rng, count):
                if math.isnan(ratio):
                    raise ArithmeticError(f"{self.row}: no number at {at}")
                tried += 1
                failures += ratio > self.limit * (1 + SLACK)
                if ratio > worst:
                    worst, where = ratio, at
        return {
            "paper": self.paper,
            "result": self.row,
            "statement": self.statement,
            "range": self.scope,
            "instances": tried,
            "worst": worst,
            "limit": self.limit,
            "failures": failures,
            "where": where,
            "verdict": "holds" if not failures else "fails",
            "kind": self.kind,
        }


CHECKS: list[Check] = []


def check(
    paper: str, row: str, statement: str, scope: str, *, limit: float = 1.0, kind: str = ""
) -> Callable[[Callable[..., Instances]], Callable[..., Instances]]:
    """Enters a generator of instances into CHECKS."""

    def enter(instances: Callable[..., Instances]) -> Callable[..., Instances]:
        CHECKS.append(Check(paper, row, statement, scope, instances, limit, kind))
        return instances

    return enter


def thinned(rng: np.random.Generator, count: int, *axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The product of the axes; of few instances 12 of its points."""
    grid = list(itertools.product(*axes))
    return grid if count > 9 else [grid[i] for i in rng.permutation(len(grid))[:12]]


def ratio(small: float, large: float) -> float:
    """small/large; 0 where both are rounding, inf where the larger side alone vanishes."""
    tiny = 1e-12 * (1 + abs(small) + abs(large))
    return 0.0 if small <= tiny else small / large if large > 1e-300 else math.inf


def matrix(rng: np.random.Generator, i: int, rows: int, columns: int) -> np.ndarray:
    """Signs, normals, integers with ties, non-negative, of rank one, badly scaled, with zero rows: one kind in turn."""
    kinds = (
        lambda: rng.choice([-1.0, 1.0], (rows, columns)),
        lambda: rng.normal(size=(rows, columns)),
        lambda: rng.integers(-2, 3, (rows, columns)).astype(float),
        lambda: rng.exponential(size=(rows, columns)),
        lambda: np.outer(rng.normal(size=rows), rng.normal(size=columns)),
        lambda: rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1)) * 3),
        lambda: rng.normal(size=(rows, columns)) * rng.integers(0, 2, (rows, 1)),
    )
    return kinds[i % len(kinds)]()


def simplex(rng: np.random.Generator, k: int) -> np.ndarray:
    """A point of the simplex: of the inside, or sparse."""
    return rng.dirichlet(np.full(k, rng.choice([0.1, 1.0, 10.0])))


def p_norm(values: np.ndarray, p: float) -> float:
    top = float(np.abs(values).max(initial=0.0))
    if top == 0:
        return 0.0
    return top if p == math.inf else top * float(((np.abs(values) / top) ** p).sum() ** (1 / p))


def trace_norm(M: np.ndarray) -> float:
    return float(np.linalg.svd(M, compute_uv=False).sum())


def row_scale(weights: np.ndarray, p: float) -> np.ndarray:
    """weights scaled to norm 1 in l_{p/(p-2)}: the squares of Theorem 26's D."""
    order = math.inf if p == 2 else 1.0 if p == math.inf else p / (p - 2)
    size = p_norm(weights, order)
    return weights / size if size else weights


def dual(points: np.ndarray, weights: np.ndarray, rows: np.ndarray, p: float, shift: bool = True) -> float:
    """tr((D cov(P) D)^{1/2}), of Theorem 26: points (k, d), weights (k,), rows = D^2 before scaling."""
    P = weights / weights.sum()
    centred = points - P @ points if shift else points
    return trace_norm(np.sqrt(row_scale(rows, p)) * centred * np.sqrt(P)[:, None])


def gamma_p(points: np.ndarray, p: float, shift: bool = True) -> tuple[float, float]:
    """(lower, upper) bounds of Gamma_p of a finite set, recomputed from the ellipsoid and the measure found."""
    points = np.unique(points + 0.0, axis=0)
    shape = noise_shape(FiniteSet(torch.as_tensor(points)), p, shift=shift, tol=SLACK / 5)
    A, v = shape.root.numpy(), shape.centre.numpy()
    if A.shape[1] == 0:
        return 0.0, 0.0
    u = (points - v) @ np.linalg.pinv(A).T
    upper = float(np.linalg.norm(u, axis=1).max()) * p_norm(np.linalg.norm(A, axis=1), p)
    sticks = np.abs(u @ A.T + v - points).max()
    if sticks > 1e-7 * (1e-300 + np.abs(points - v).max()):
        raise ArithmeticError(f"the ellipsoid does not hold the set: {sticks:g}")
    support, weights, rows = shape.support.numpy(), shape.weights.numpy(), shape.row_weights.numpy()
    middle = (points.max(0) + points.min(0)) / 2
    if shift and np.allclose(points, 2 * middle - points[::-1], atol=1e-12 * np.abs(points).max()):
        return dual(support - middle, weights, rows, p, False), upper  # symmetric: its measure may be made so
    return dual(support, weights, rows, p, shift), upper


def gamma_of(W: np.ndarray, p: float = math.inf, shift: bool = False) -> tuple[float, float]:
    """(lower, upper) bounds of gamma_(p)(W), recomputed from the factors and the dual weights; columns are types."""
    found = factorize(torch.as_tensor(W), p, shift=shift, tol=SLACK / 5)
    left, right = found.left.numpy(), found.right.numpy()
    moved = W if found.shift is None else W - found.shift.numpy()[:, None]
    if np.abs(left @ right - moved).max() > 1e-7 * (1e-300 + np.abs(W).max()):
        raise ArithmeticError("the factors do not multiply to W")
    upper = p_norm(np.linalg.norm(left, axis=1), p) * float(np.linalg.norm(right, axis=0).max())
    rows, columns = found.row_weights.numpy(), found.column_weights.numpy()
    return (dual(W.T, columns, rows, p, shift) if columns.sum() and rows.any() else 0.0), upper


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
