"""How noise that is correlated over steps is made, as tables: what a step mixes, and its state."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief

EPS = torch.finfo(torch.float64).eps

# A bound of a column's rounding above this share of the column is sought again by the residual.
COARSE = 1e-10

# ||I - Y V F|| from which Y proves nothing: the series of (I - E)^{-1} may be too long.
LOOSEST = 0.5

NONE = torch.zeros(0, dtype=torch.float64, device="cpu")
NOTHING = torch.zeros(1, 0, dtype=torch.float64, device="cpu")

# Dimensions of each table; those of RUNNING have no row for each step.
DIMENSIONS = {"scale": 1, "feeds": 2, "gains": 1, "decays": 1, "of_w": 2, "of_u": 2}
RUNNING = ("gains", "decays")


@dataclass(frozen=True)
class Recurrence(Brief):
    """The noise w = C^{-1} z of a lower triangular C, step by step, from tables alone.

        u_t = sum_m feeds[t, m] z_{t - lags[m]}
        w_t = (u_t + sum_a gains[a] s_a + sum_j of_w[t, j] w_{t-1-j} + sum_j of_u[t, j] u_{t-1-j})
              / scale[t]
        s_a <- (1 + decays[a]) s_a + u_t

    z_t are the fresh normals of step t, and lags[0] = 0; those of earlier steps are drawn again.
    The state holds the running s, the last w and the last u, as many as of_w and of_u have columns.
    What lies before step 0 counts as 0. Tables have ``steps`` rows, or one that serves all steps;
    all are float64, on scale's device.

    Args:
        steps: at least 1.
        scale: (rows,), positive.
        feeds: (rows, draws), its first column positive.
        lags: one for each column of feeds: 0, then rising.
        gains: (running,).
        decays: (running,), as many.
        of_w: (rows, p).
        of_u: (rows, q).

    Raises TypeError, ValueError.
    """

    steps: int
    scale: Tensor
    feeds: Tensor
    lags: tuple[int, ...] = (0,)
    gains: Tensor = NONE
    decays: Tensor = NONE
    of_w: Tensor = NOTHING
    of_u: Tensor = NOTHING

    def __post_init__(self) -> None:
        # Copies: whoever changes a table later changes no noise that was accounted for.
        checks.own(self)
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, 1))
        for name, ndim in DIMENSIONS.items():
            value = checks.floating(name, getattr(self, name)).detach().double()
            rows_fit = name in RUNNING or value.shape[:1] in ((1,), (self.steps,))
            if value.ndim != ndim or not rows_fit:
                raise ValueError(
                    f"{name} must have 1 or {self.steps} rows, not the shape {tuple(value.shape)}"
                )
            object.__setattr__(self, name, value.to(self.scale.device))
        lags = tuple(checks.integer("lags", lag, 0) for lag in self.lags)
        object.__setattr__(self, "lags", lags)
        rising = lags[:1] == (0,) and list(lags) == sorted(set(lags))
        if not rising or self.feeds.shape[1] != len(lags):
            raise ValueError("lags must be 0 and then rise, one for each column of feeds")
        if len(self.gains) != len(self.decays):
            raise ValueError(
                f"gains and decays must be as many, not {len(self.gains)} and {len(self.decays)}"
            )
        if not ((self.scale > 0).all() and (self.feeds[:, 0] > 0).all()):
            raise ValueError(
                "scale and feeds[:, 0] must be positive; multiply a step's row of C^{-1} by -1"
            )

    @property
    def memory(self) -> int:
        """Rows of the state, each as long as a gradient."""
        return len(self.gains) + self.of_w.shape[1] + self.of_u.shape[1]

    @property
    def even(self) -> bool:
        """Whether one row of each table serves all steps, so that C is Toeplitz."""
        return max(len(self.scale), len(self.feeds), len(self.of_w), len(self.of_u)) == 1

    @property
    def deviations(self) -> Tensor:
        """Of w_t given all noise before it, for z of standard deviation 1: (rows,), 1 / diag(C)."""
        return self.feeds[:, 0] / self.scale

    @property
    def tables(self) -> dict[str, Any]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    def digest(self) -> bytes:
        """32 bytes that name the distribution of the noise, whatever class made the tables."""
        tables = [x.cpu().contiguous() for x in self.tables.values()]
        shapes = (self.steps, self.lags, [tuple(x.shape) for x in tables])
        digest = hashlib.sha256(repr(shapes).encode())
        for x in tables:
            digest.update(x.numpy().tobytes())
        return digest.digest()

    def to(self, device: torch.device) -> "Recurrence":
        """On another device."""
        moved = {name: x.to(device) for name, x in self.tables.items()}
        return replace(self, **moved)

    def leading(self, steps: int) -> "Recurrence":
        """Its first steps alone."""
        rows = {name: x[:steps] for name, x in self.tables.items() if name not in RUNNING}
        return replace(self, steps=steps, **rows)

    def dense(self) -> tuple[Tensor, Tensor]:
        """C, (steps, steps), and a bound on each column's distance from the true one's, (steps,).

        C = F^{-1} V^{-1} (D - L): F of feeds; V = I + U + S of of_u and the running numbers; D and
        L of scale and of_w. Rounding by comparison matrices M(A) = 2 diag(A) - abs(A): solving A
        x = b moves x by (n^2 + n + 1) eps / 2 M(A)^{-1} abs(b) at most (Higham 2002, Theorem 8.10),
        and abs(A^{-1}) <= M(A)^{-1} (Theorem 8.12). Where tables of either sign cancel, M(A)^{-1}
        may grow without end, and the residual gives the bound. Raises ValueError where C is too
        large.
        """
        n = self.steps
        checks.fits("C", n, n)
        F = _diagonals(self.feeds, self.lags, n)
        V = torch.eye(n, dtype=F.dtype, device=F.device)
        V = V + _diagonals(self.of_u, range(1, n), n)
        terms = V.abs()
        if len(self.gains):
            running, sizes = self._running_sums()
            V = V + running
            terms = terms + sizes
        D = self.scale.expand(n).diag()
        right = D - _diagonals(self.of_w, range(1, n), n)
        # Without substitution each entry is one division.
        if not (F.tril(-1).any() or V.tril(-1).any()):
            C = right / F.diagonal()[:, None]
            return C, EPS * C.norm(dim=0)
        C = _solved(F, V, right)
        sizes = _solved(_comparison(F), _comparison(terms), right.abs())
        moved = (n**2 + 8 * n + 64) * EPS * sizes.norm(dim=0)
        if bool((moved <= COARSE * C.norm(dim=0)).all()):
            return C, moved
        return C, torch.fmin(moved, off_by(F, V, terms, right, C))

    def _running_sums(self) -> tuple[Tensor, Tensor]:
        """S, (steps, steps), S_ij = sum_a gains_a (1 + decays_a)^{i-j-1}, and its terms' sizes."""
        step = torch.arange(self.steps, device=self.scale.device)
        powers = (1 + self.decays)[:, None] ** (step - 1).clamp_min(0)
        sizes = self.gains.abs() @ powers.abs()
        columns = torch.stack([self.gains @ powers, sizes])
        columns = torch.where(step > 0, columns, 0.0)
        age = (step[:, None] - step).clamp_min(0)
        sums, sizes = columns[:, age].tril()
        return sums, sizes

    def first_column(self) -> tuple[Tensor, float] | None:
        """C's first column, (steps,), in O(steps x order), and its relative rounding, or None.

        Of an even recurrence where each c_t is a sum of positive multiples of earlier ones: of_w,
        of_u and feeds[1:] are not positive. Else terms may cancel and rounding has no such bound:
        None, and with running numbers, too.
        """
        signs = (self.of_w, self.of_u, self.feeds[:, 1:])
        if not self.even or len(self.gains) or any((x > 0).any() for x in signs):
            return None
        V, F, D = self.polynomials()
        # Two divisions instead of one by the product V F, whose coefficients would be rounded.
        c = filtered([1.0], V, np.pad(D, (0, self.steps - len(D))))
        c = filtered([1.0], F, c)
        rounding = 2 * (len(V) + len(F) + 1) * self.steps * EPS
        return torch.from_numpy(c).to(self.scale.device), rounding

    def row_norms(self) -> Tensor:
        """Of C^{-1}, (steps,): the standard deviation of w_t for z of standard deviation 1.

        C is not formed: each z is followed through all steps, O(steps^2 (memory + draws)); where
        the recurrence is even and nothing runs, O(steps width).
        """
        n = self.steps
        if self.even and not len(self.gains):
            V, F, D = self.polynomials()
            response = filtered(F, [1.0], filtered(V, D, np.eye(1, n)[0]))
            squares = torch.from_numpy(response).square()
            return squares.cumsum(0).sqrt().to(self.scale.device)
        host = self.to(torch.device("cpu"))
        norms = NONE.new_empty(n)
        running = NONE.new_zeros(len(self.gains), n)
        last_w = NONE.new_zeros(self.of_w.shape[1], n)
        last_u = NONE.new_zeros(self.of_u.shape[1], n)
        for t in range(n):
            # Entry [s] of u, w and the state: what z_s has put into it so far.
            u = NONE.new_zeros(n)
            for lag, feed in zip(host.lags, row(host.feeds, t), strict=True):
                if lag <= t:
                    u[t - lag] = feed
            w = u + host.gains @ running
            w += row(host.of_w, t) @ last_w
            w += row(host.of_u, t) @ last_u
            w /= row(host.scale, t)
            norms[t] = w.norm()
            running = (1 + host.decays)[:, None] * running + u
            last_w = torch.cat([w[None], last_w])[: len(last_w)]
            last_u = torch.cat([u[None], last_u])[: len(last_u)]
        return norms.to(self.scale.device)

    def polynomials(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """V, F and D, up to ``steps``, of an even recurrence without running numbers.

        C = D / (V F) as power series.
        """
        feeds = np.zeros(min(self.steps, self.lags[-1] + 1))
        for lag, feed in zip(self.lags, self.feeds[0].tolist(), strict=True):
            if lag < self.steps:
                feeds[lag] = feed
        of_w = self.of_w[0, : self.steps - 1].tolist()
        of_u = self.of_u[0, : self.steps - 1].tolist()
        V = np.array([1.0, *of_u])
        D = np.array([float(self.scale[0]), *(-x for x in of_w)])
        return V, feeds, D


def filtered(
    above: Sequence[float] | np.ndarray, below: Sequence[float] | np.ndarray, x: np.ndarray
) -> np.ndarray:
    """The power series above / below times that of x, (n,)."""
    from scipy.signal import lfilter  # half a second to load

    return lfilter(above, below, x)


def row(table: Tensor, t: int) -> Tensor:
    """Step t's, of a table of one row for all steps or of one for each."""
    return table[t if len(table) > 1 else 0]


def _diagonals(table: Tensor, lags: range | tuple[int, ...], n: int) -> Tensor:
    """(n, n): entry [t, t - lags[m]] is table[t, m]."""
    matrix = table.new_zeros(n, n)
    for column, lag in zip(table.mT, lags, strict=False):
        if lag < n:
            matrix.diagonal(-lag).copy_(column[lag:] if len(column) > 1 else column)
    return matrix


def _comparison(A: Tensor) -> Tensor:
    return 2 * A.diagonal().diag() - A.abs()


def off_by(F: Tensor, V: Tensor, terms: Tensor, right: Tensor, C: Tensor) -> Tensor:
    """A bound on ||column of C - F^{-1} V^{-1} right||, for any C: (n,); inf or NaN for none.

    terms: the sum of the sizes of what each entry of V adds up, at most n + 100 numbers, each known
    up to n + 8 eps. With Y near F^{-1} V^{-1}, E = I - Y V F, ||E||_F <= e < 1, the error of C is
    (I - E)^{-1} Y (V F C - right), no longer than abs(Y) abs(V F C - right) / (1 - e). Three
    factors' product moves by 2 n eps of that of their sizes.
    Source: Rump (2010), verified solutions of linear systems.
    """
    n = len(C)
    identity = torch.eye(n, dtype=C.dtype, device=C.device)
    rounding = (4 * n + 128) * EPS
    Y = _solved(F, V, identity)
    sizes = F.abs()
    residual = (right - V @ (F @ C)).abs()
    added_up = terms @ (sizes @ C.abs()) + right.abs()
    residual = residual + rounding * added_up
    E = (identity - Y @ V @ F).abs()
    E = E + rounding * (Y.abs() @ terms @ sizes + identity)
    e = float(E.norm())
    # Also where e is NaN: F or V is singular to rounding.
    if not e < LOOSEST:
        return torch.full_like(C[0], torch.inf)
    moved = (Y.abs() @ residual).norm(dim=0)
    return (1 + rounding) * moved / (1 - e)


def _solved(F: Tensor, V: Tensor, right: Tensor) -> Tensor:
    """F^{-1} V^{-1} right."""
    inner = torch.linalg.solve_triangular(V, right, upper=False)
    return torch.linalg.solve_triangular(F, inner, upper=False)
