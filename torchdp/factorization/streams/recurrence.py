"""How noise that is correlated over steps is made, as tables: what step t mixes, and the state that
it keeps.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief

EPS = torch.finfo(torch.float64).eps
COARSE = 1e-10  # of a column: a bound of its rounding above this is looked for again
NONE, NOTHING = (torch.zeros(*shape, dtype=torch.float64, device="cpu") for shape in ((0,), (1, 0)))


@dataclass(frozen=True)
class Recurrence(Brief):
    """The noise w = C^{-1} z of a lower triangular C, step by step, from tables alone.

        u_t = sum_m feeds[t, m] z_{t - lags[m]}
        w_t = (u_t + sum_a gains[a] s_a + sum_j of_w[t, j] w_{t-1-j} + sum_j of_u[t, j] u_{t-1-j}) /
        scale[t] s_a <- (1 + decays[a]) s_a + u_t

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
        checks.own(self)
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, 1))
        for name, ndim in (
            ("scale", 1),
            ("feeds", 2),
            ("gains", 1),
            ("decays", 1),
            ("of_w", 2),
            ("of_u", 2),
        ):
            value = (
                checks.floating(name, getattr(self, name)).detach().double().to(self.scale.device)
            )
            if value.ndim != ndim or (
                name not in ("gains", "decays") and len(value) not in (1, self.steps)
            ):
                raise ValueError(
                    f"{name} must have 1 or {self.steps} rows, not the shape {tuple(value.shape)}"
                )
            object.__setattr__(self, name, value)
        lags = tuple(checks.integer("lags", lag, 0) for lag in self.lags)
        object.__setattr__(self, "lags", lags)
        if (
            not lags
            or lags[0]
            or list(lags) != sorted(set(lags))
            or self.feeds.shape[1] != len(lags)
        ):
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
        """Of w_t given all noise before it, for z of standard deviation 1: (rows,), one over C's
        diagonal.
        """
        return self.feeds[:, 0] / self.scale

    @property
    def tables(self) -> dict[str, Any]:
        """All of them, by name."""
        return {
            each.name: v
            for each in fields(self)
            if isinstance(v := getattr(self, each.name), Tensor)
        }

    def digest(self) -> bytes:
        """32 bytes that name the distribution of the noise, whatever class made the tables."""
        tables = [x.cpu().contiguous() for x in self.tables.values()]
        shapes = repr((self.steps, self.lags, [tuple(x.shape) for x in tables])).encode()
        return hashlib.sha256(shapes + b"".join(x.numpy().tobytes() for x in tables)).digest()

    def to(self, device: torch.device) -> "Recurrence":
        """On another device."""
        return replace(self, **{name: x.to(device) for name, x in self.tables.items()})

    def leading(self, steps: int) -> "Recurrence":
        """Its first steps alone."""
        rows = {
            name: x[:steps] for name, x in self.tables.items() if name not in ("gains", "decays")
        }
        return replace(self, steps=steps, **rows)

    def dense(self) -> tuple[Tensor, Tensor]:
        """C, (steps, steps), and above how far each column may lie from the true one's, in l_2:
        (steps,).

        C = F^{-1} V^{-1} (D - L): F of feeds; V = I + U + S of of_u and the running numbers; D and
        L of scale and of_w. Rounding by comparison matrices M(A) = 2 diag(A) - abs(A): solving A
        x = b moves x by (n^2 + n + 1) eps / 2 M(A)^{-1} abs(b) at most (Higham 2002, Theorem 8.10),
        and abs(A^{-1}) <= M(A)^{-1} (Theorem 8.12). Where tables of either sign cancel, M(A)^{-1}
        may grow without end, and the residual gives the bound. Raises ValueError where C is too
        large.
        """
        n, scale = self.steps, self.scale
        checks.fits("C", n, n)
        F, V = (
            _diagonals(self.feeds, self.lags, n),
            torch.eye(n, dtype=scale.dtype, device=scale.device),
        )
        V = V + _diagonals(self.of_u, range(1, n), n)
        terms = V.abs()
        if len(self.gains):
            place = torch.arange(n, device=scale.device)
            powers = (1 + self.decays)[:, None] ** (place - 1).clamp_min(0)
            first = torch.stack([self.gains @ powers, self.gains.abs() @ powers.abs()])
            first = torch.where(place > 0, first, 0.0)[
                :, (place[:, None] - place).clamp_min(0)
            ].tril()
            V, terms = V + first[0], terms + first[1]
        right = scale.expand(n).diag() - _diagonals(self.of_w, range(1, n), n)
        if not (F.tril(-1).any() or V.tril(-1).any()):
            C = right / F.diagonal()[:, None]
            return C, EPS * C.norm(dim=0)
        sizes = _solved(_comparison(F), _comparison(terms), right.abs())
        C, moved = _solved(F, V, right), (n**2 + 8 * n + 64) * EPS * sizes.norm(dim=0)
        if bool((moved <= COARSE * C.norm(dim=0)).all()):
            return C, moved
        return C, torch.fmin(moved, off_by(F, V, terms, right, C))

    def first_column(self) -> tuple[Tensor, float] | None:
        """C's first column, (steps,), of an even recurrence in O(steps x order), and its relative
        rounding.

        Each c_t is a sum of positive multiples of earlier ones where of_w, of_u and feeds[1:] are
        not positive. Else terms may cancel and rounding has no such bound: None, and with running
        numbers, too.
        """
        from scipy.signal import lfilter  # half a second to load

        signs = (self.of_w, self.of_u, self.feeds[:, 1:])
        if not self.even or len(self.gains) or any((x > 0).any() for x in signs):
            return None
        V, F, D = self.polynomials()
        c = np.pad(D, (0, self.steps - len(D)))
        for below in (V, F):
            c = lfilter([1.0], below, c)
        rounding = 2 * (len(V) + len(F) + 1) * self.steps * EPS
        return torch.from_numpy(c).to(self.scale.device), rounding

    def row_norms(self) -> Tensor:
        """Of C^{-1}, (steps,): the standard deviation of w_t for z of standard deviation 1, without
        forming C.

        Each z is followed through all steps: O(steps^2 (memory + draws)), and O(steps width) where
        the recurrence is even and nothing runs.
        """
        n, device = self.steps, self.scale.device
        if self.even and not len(self.gains):
            from scipy.signal import lfilter

            V, F, D = self.polynomials()
            impulse = np.eye(1, n)[0]
            found = lfilter(F, [1.0], lfilter(V, D, impulse))
            return torch.from_numpy(found).square().cumsum(0).sqrt().to(device)
        made, norms = self.to(torch.device("cpu")), torch.empty(n, dtype=torch.float64)
        running = torch.zeros(len(self.gains), n, dtype=torch.float64)
        of_w, of_u = ([NONE.new_zeros(n)] * table.shape[1] for table in (self.of_w, self.of_u))
        for t in range(n):
            u = torch.zeros(n, dtype=torch.float64)
            for lag, feed in zip(made.lags, row(made.feeds, t), strict=True):
                if lag <= t:
                    u[t - lag] = feed
            w = u + made.gains @ running
            for gains, past in ((row(made.of_w, t), of_w), (row(made.of_u, t), of_u)):
                for gain, x in zip(gains, past, strict=True):
                    w += gain * x
            w /= row(made.scale, t)
            norms[t] = w.norm()
            running = (1 + made.decays)[:, None] * running + u
            of_w, of_u = [w, *of_w][: len(of_w)], [u, *of_u][: len(of_u)]
        return norms.to(device)

    def polynomials(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """V, F and D of an even recurrence without running numbers, up to ``steps``: C = D / (V F)
        as power series.
        """
        feeds = np.zeros(min(self.steps, self.lags[-1] + 1))
        for lag, feed in zip(self.lags, self.feeds[0].cpu().tolist(), strict=True):
            if lag < self.steps:
                feeds[lag] = feed
        of_w, of_u = (x[0].cpu().numpy()[: self.steps - 1] for x in (self.of_w, self.of_u))
        return np.r_[1.0, of_u], feeds, np.r_[float(self.scale[0]), -of_w]


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
    """Above ||column of C - F^{-1} V^{-1} right||, for any C: (n,); inf or NaN where none is found.

    terms: the sum of the sizes of what each entry of V adds up, at most n + 100 numbers, each known
    up to n + 8 eps. With Y near F^{-1} V^{-1}, E = I - Y V F, ||E||_F <= e < 1, the error of C is
    (I - E)^{-1} Y (V F C - right), no longer than abs(Y) abs(V F C - right) / (1 - e). Three
    factors' product moves by 2 n eps of that of their sizes.
    Source: Rump (2010), verified solutions of linear systems.
    """
    n, one = len(C), torch.eye(len(C), dtype=C.dtype, device=C.device)
    rounding, Y, sizes = (4 * n + 128) * EPS, _solved(F, V, one), F.abs()
    left = (right - V @ (F @ C)).abs() + rounding * (terms @ (sizes @ C.abs()) + right.abs())
    E = (one - Y @ V @ F).abs() + rounding * (Y.abs() @ terms @ sizes + one)
    e = float(E.norm())
    return (
        (1 + rounding) * (Y.abs() @ left).norm(dim=0) / (1 - e)
        if e < 0.5
        else torch.full_like(C[0], torch.inf)
    )


def _solved(F: Tensor, V: Tensor, right: Tensor) -> Tensor:
    """F^{-1} V^{-1} right."""
    inner = torch.linalg.solve_triangular(V, right, upper=False)
    return torch.linalg.solve_triangular(F, inner, upper=False)
