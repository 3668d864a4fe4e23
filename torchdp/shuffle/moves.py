"""One direction and role of a user's move, and its terms: what ``inversion`` adds up, by the proof told there."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchdp.shuffle.count_laws import CountLaw, merged

Array = np.ndarray
WIDTH = 2048  # outcomes beyond which they are told by blocks


@dataclass(frozen=True)
class Cut:
    """D where it is followed, the mass of its tails, and what is lost for each step of distance."""

    mass: Array
    beta: float
    lost: float


def cut_of(law: CountLaw, rate: float, most: int) -> Cut | None:
    """The narrowest range beyond which at most ``rate`` is lost a step; None where too few outcomes are left."""
    d = law.mass
    light = np.flatnonzero(d > rate / 4)
    if not len(light):
        return None
    a, b = int(light[0]), int(light[-1]) + 1
    kept = d[a:b]
    if len(kept) <= most + 1:
        return None
    count = np.arange(1, most + 1)
    edges = max(float((np.cumsum(part[:most]) / count).max()) for part in (kept, kept[::-1]))
    outside = (float(d[a - 1]) if a else 0.0) + (float(d[b]) if b < len(d) else 0.0)
    return Cut(kept, float(d[:a].sum() + d[b:].sum()), edges + outside)


class Move:
    """One direction and role: base masses and ln(O_x/base) at each x of the grid, and the series near 0.

    up: whether the base is Q, so that the power is 1 + z; else -z. excess: O_1/base - 1 on the kept outcomes; corner:
    of the outcome that is linear in x, edge its slope; beta: mass on which both distributions are the same.
    """

    def __init__(
        self, grid: Array, base: Array, excess: Array, up: bool, edge: float = 0.0, beta: float = 0.0
    ) -> None:
        self.up, self.beta, self.edge = up, beta, edge
        if len(base) > WIDTH:
            base, excess = (each[0] for each in merged(base[None], excess[None], starts_of(base)))
        self.base, self.excess = base, excess
        self.moments = [float(base @ excess**j) for j in (1, 2, 3)]
        with np.errstate(divide="ignore"):
            self.mass: Array = np.broadcast_to(base, (len(grid), len(base)))
            self.logs = np.log1p(np.minimum(grid, 1.0)[:, None] * excess)
            self.corner: Array = (1 - grid) * self.edge

    @staticmethod
    def of_noise(cut: Cut, grid: Array, turned: bool, up: bool) -> "Move":
        """Of D up to the cut; turned: whether it moves down."""
        d = cut.mass[::-1] if turned else cut.mass
        one = np.concatenate([[0.0], d[:-1]])
        base, excess = (d, one / d - 1) if up else (d[1:], d[:-1] / d[1:] - 1)
        move = Move(grid, base, excess, up, 0.0 if up else float(d[0]), cut.beta)
        if grid[-1] > 1:
            with np.errstate(divide="ignore"):
                move.mass, move.logs = move._farther(d, grid)
            move.corner = np.zeros(len(grid))
        return move

    def _farther(self, d: Array, grid: Array) -> tuple[Array, Array]:
        """The same for any number of whole steps: outcomes below the shift are lost, or P has none there."""
        mass, other = np.repeat(d[None], len(grid), 0), np.zeros((len(grid), len(d)))
        for row, x in enumerate(grid):
            k = min(int(x), len(d) - 1)
            theta = x - k
            other[row, k:] += (1 - theta) * d[: len(d) - k]
            other[row, k + 1 :] += theta * d[: len(d) - k - 1]
            if not self.up:
                mass[row, :k] = 0.0
                mass[row, k] *= 1 - theta
        ratio = other / d
        if not self.up:
            k = np.minimum(grid.astype(int), len(d) - 1)
            ratio[np.arange(len(grid)), k] = d[0] / d[k]
            ratio = np.where(mass > 0, ratio, 1.0)
        if len(d) > WIDTH:
            mass, ratio = merged(mass, ratio, starts_of(mass.max(0)))
        return mass, np.log(ratio)

    def moduli(self, a: float, step: float, count: int) -> Iterator[Array]:
        """|M| at each x of the grid, for z = a + i step k, k = 0, ..., count - 1."""
        power = 1 + a if self.up else -a
        with np.errstate(invalid="ignore", over="ignore"):
            terms = self.mass * np.exp(power * self.logs)
            rest = self.corner + self.beta
            yield np.abs(terms.sum(1) + rest)
            if count == 1:
                return
            turns = (step if self.up else -step) * np.where(np.isfinite(self.logs), self.logs, 0.0)
            turn, terms = np.exp(1j * turns), terms.astype(complex)
            for _ in range(1, count):
                terms *= turn
                yield np.abs(terms.sum(1) + rest)

    def near(self, z: Array, x: float) -> tuple[Array, Array]:
        """G and r for all distances up to x, at each z; their real parts are one number."""
        p = 1 + z if self.up else -z
        c1, c2, c3 = self.moments
        with np.errstate(over="ignore", invalid="ignore"):  # then no bound is found
            grown = np.maximum(1.0, (1 + x * self.excess) ** (float(p[0].real) - 4))
            fourth = float(self.base @ (self.excess**4 * grown))
            rest = np.abs(p * (p - 1) * (p - 2) * (p - 3)) * x * x / 24 * fourth
            slope = p * c1 - self.edge
            curves = np.stack([p * (p - 1) * (c2 / 2 + at * (p - 2) * c3 / 6) for at in (0.0, x)])
            largest = np.abs(curves).max(0) + rest
            rate = curves.real.max(0) + rest + (np.abs(slope) + largest * x) ** 2 / 2
        return rate, np.maximum(0.0, slope.real)


def starts_of(mass: Array, width: int = WIDTH) -> Array:
    """Where blocks begin: half of them evenly, half as the cube root of the mass asks, for the loss' variance."""
    weight = np.cumsum(np.cbrt(mass))
    weight = weight / weight[-1] + np.arange(1, len(mass) + 1) / len(mass)
    return np.unique(np.searchsorted(weight, weight[-1] * np.arange(width // 2) / (width // 2), side="right"))
