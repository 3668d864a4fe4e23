"""A private sketch by secret sharing: clients add rounded Gaussian noise and share it out.

Notation: f: fraction bits, 2^-f a grid unit; c_j: pairs of a client and a copy in row j, h_j: those
of honest clients who are there; sigma_j: a client's noise in row j; s: copies; D: the largest
distance of two rows; mu: of the Gaussian mechanism.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape
from torchdp.grid import grid_sensitivity, grid_sigma, grid_variation
from torchdp.kernels import secure_sketch
from torchdp.kernels.secure_sketch import SURE, VARIATION
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.secure.ring import Ring, farthest_sum
from torchdp.secure.sums import SecureSums, Words

# the share of delta that is not kept for the bits of noise
LEFT = 1 - 2.0**-42
# e to this power is a float
LARGEST_EXPONENT = 700.0
# deviation of noise in grid units: from it on a rounded normal stands for a sum of such
COARSEST = 64.0
# of sigma: for less than that mu is kept without a variation
GAINED = 1e-6


@dataclass(frozen=True, eq=False)
class SecureSketch(SecureSums):
    """Y = s^-1/2 (S A + noise) for n clients with a row of A each, by servers that see only shares.

    x: A, a row for each client, in their order. A message is a client's words before it shares them
    out; a tally is their signed total modulo 2^bits, what the servers' sums add up to. Summaries
    are the exact sums of the truncated rows, (m, d) integers. Shares, frames and servers are the
    channel: ``share``, ``servers``, ``roles``.

    Client i adds to its integers q = trunc(a_i 2^f), for each copy c, fresh noise
    round(N(0, sigma_j^2 4^f I)), j = rows[c, i], multiplies by the public sign, splits the words
    into one share for each server. Servers add the shares of each row and publish the sums; their
    total is sqrt(s) 2^f Y, modulo 2^bits, and does not wrap around.

    Args:
        sketch: S, public; ``ones(n)`` makes this a secure sum.
        columns: d.
        bound: B, |a_i|_2 <= B.
        epsilon: > 0; with delta the whole budget.
        delta: in (0, 1).
        servers: two or more.
        coalition: how many clients may collude, and how many drop out.
        bits: of the ring, 32 or 64.
        fraction_bits: f; as many as fit where None.
        sensitivity: D, the largest distance of two rows that clients may hold, 2B where None.
        entry: the largest |a_il|, B where None; a smaller one allows more fraction bits.

    Raises ValueError before anything is drawn: where a used row has no honest client, or the sums
    may wrap. Warns where the grid makes the noise's variance 1.1 times the least or more
    (``grid_factor``).

    Guarantees: (epsilon, delta)-DP, one client's row replaced by any other within the bounds,
    against a coalition of
        all servers but one, the analyst and t' clients: their shares are uniform and independent of
        the words (``share``), and what the last server publishes is then a function of the sums and
        of what they know. Semi-honest servers: all publish the sum of what they were sent, once. A
        server that lies about its sum changes the result unnoticed, and so does a client that sends
        words of its own choice: to its own rows alone. ``collect`` in one process, which holds all
        rows, draws one noise for each sum: as much as all clients draw.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 4.4, with exact counts and
    one Gaussian
        mechanism for the whole row in place of Corollary 4.7's composition; on the grid:
        ``torchdp.grid``, 3, 4.
    """

    delta: float

    def __post_init__(self) -> None:
        checks.keep(self, delta=checks.fraction)
        super().__post_init__()

    @cached_property
    def sigma(self) -> Tensor:
        """Deviation of one client's noise in each row, before rounding, in units of the data: (m,).

        That of real numbers at D, the sensitivity on the grid, where the noise of a client is wide
        enough on the grid (``grid_variation``); else sigma_j^2 = s cost_j / mu*^2, cost_j =
        D^2/h_j + d h_j 4^-f/4 (``row_cost``: the second term is what rounding costs). 0 in rows
        that no client uses.
        """
        return self._of_rows(self._calibrated[0])

    @property
    def variation(self) -> float:
        """Total variation distance of a client's protection from a function of Gaussian noise."""
        return self._calibrated[1]

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), an upper bound because the grid costs a little, and mu.

        Of the words that are sent on a CPU, where noise is rounded without error; a GPU's floats
        decide it.
        """
        # variation: of the noise from Gaussian noise; below, of what is drawn from the noise
        smooth = Guarantee(
            self.epsilon,
            self.delta * LEFT,
            Model.LINEAR_TRANSFORM,
            Neighbours.REPLACE_ONE,
            False,
            self._source("Theorem 4.4; Balle, Wang (2018), Theorem 8", "apart"),
            mu=1 / self._real if self.variation else self._mu,
            variation=self.variation,
        )
        if self.sketch.device.type != "cpu":
            return replace(smooth, delta=self.delta)
        # Total variation adds up over independent draws: every word that clients draw counts.
        words = self.sketch.clients * self.sketch.copies * self.columns
        return smooth.leaving(words * VARIATION, self.delta)

    @property
    def variance(self) -> Tensor:
        """sigma_j^2 + 4^-f/12: rounding adds 1/12 square unit where sigma is not below one unit."""
        return self.sigma**2 + 1 / (12 * self.ring.scale**2)

    @property
    def grid_factor(self) -> float:
        rounding = 1 / (12 * self.ring.scale**2)
        # ``_apart`` is the distance of real rows: the wider one of truncated rows is a cost too.
        pairs = zip(self._calibrated[0], self._ideal(self._apart), strict=True)
        return max((sigma**2 + rounding) / least**2 for sigma, least in pairs)

    @cached_property
    def _mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta * LEFT)

    @cached_property
    def _real(self) -> float:
        """Noise for one of real numbers at distance 1, 2^-40 of delta apart."""
        return gaussian_sigma(self.epsilon, self.delta * ROUNDED)

    @property
    def _honest(self) -> list[int]:
        """Honest pairs of the rows of each number in ``_used``."""
        return [number - self.coalition.missing for number in self._used]

    def _ideal(self, distance: float) -> list[float]:
        """A client's sigma in these rows for real numbers: s/h_j of the noise's variance."""
        whole = distance * self._real
        return [whole * math.sqrt(self.sketch.copies / honest) for honest in self._honest]

    @cached_property
    def _calibrated(self) -> tuple[list[float], float]:
        return self._noise(self.ring)

    def _noise(self, ring: Ring) -> tuple[list[float], float]:
        """A client's sigma in these rows on this grid, and the error in it.

        The sigma of real numbers, where its error costs 2^-42 of delta at most and it is less than
        ``grid_sigma``, which has none.
        """
        step = 1 / ring.scale
        distance = grid_sensitivity(step, self.bound, self.columns, self.sensitivity)
        ideal = self._ideal(distance)
        on_any_grid = []
        variation = 0.0
        copies = self.sketch.copies
        for honest, sigma in zip(self._honest, ideal, strict=True):
            safe = grid_sigma(honest, copies, self.columns, step, distance, self._mu)
            on_any_grid.append(safe)
            variation = max(variation, grid_variation(honest, sigma * ring.scale))
        # of all entries that one client moves
        variation *= copies * self.columns
        # ROUNDED keeps 2^-40 of delta: a quarter of it may go here, and LEFT keeps another for the
        # tables from which noise is drawn.
        cost = (1 + math.exp(min(self.epsilon, LARGEST_EXPONENT))) * variation
        if cost > self.delta * (1 - ROUNDED) / 4:
            return on_any_grid, 0.0
        # A mu that holds without a variation is worth a little noise, but not more than GAINED.
        for sigma, least in zip(on_any_grid, ideal, strict=True):
            if sigma > least * (1 + GAINED):
                return ideal, variation
        return on_any_grid, 0.0

    def _farthest(self, ring: Ring) -> float:
        sigmas = self._noise(ring)[0]
        # VARIATION is proved up to SURE units: a ring in which noise is wider is not chosen.
        if max(sigmas) * ring.scale > SURE:
            return math.inf
        step = 1 / ring.scale
        return max(
            farthest_sum(number, self._largest, sigma, step)
            for number, sigma in zip(self._used, sigmas, strict=True)
        )

    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        """Words sign (q + round(g)); client by client, as they are drawn."""
        part = slice(first, first + len(x))
        ring = self.ring
        rows = self.sketch.rows[:, part].to(x.device)
        signs = self.sketch.signs[:, part].to(x.device)
        units = (self.sigma * ring.scale).to(x.device)
        key = one_key(draws)
        words = secure_sketch.words(x, rows, signs, units, key, first, ring.scale, ring.dtype)
        return Words(first, words.transpose(0, 1))

    def gathered(self, clients: int, parts: Iterable[Tensor], draws: Draws) -> Tally:
        """The exact sums, and one rounded normal in each entry (``_together``).

        No client's own noise is drawn, so no client knows a part of it. By the second claim of
        ``torchdp.grid`` this is a function of the Gaussian mechanism at mu^2 = sum_c
        D^2/(c_j sigma_j^2), no more than the h_j <= c_j honest clients of each row leave. Where the
        grid is too coarse for one number, clients draw their own.
        """
        heard = self.sketch.rows[:, :clients].flatten()
        counts = torch.bincount(heard, minlength=self.sketch.height)
        units = self._together(counts.to(draws.device))
        if units is None:
            return super().gathered(clients, parts, draws)
        tally = self.added(self.exact_words(parts), draws.device)
        # One deviation for each row; its columns have independent noise of that size.
        entries = units.repeat_interleave(self.columns)
        noise = secure_sketch.rounded_normals(one_key(draws), 0, entries)
        sums = tally["words"]
        sums += noise.view_as(sums).to(sums.dtype)
        return tally

    def noise_of(self, words: Tensor, shape: Shape, draws: Draws) -> Tensor:
        """As one number, however many words. Raises ValueError where the grid is too coarse."""
        units = self._together(words.to(draws.device))
        if units is None:
            raise ValueError(
                f"fraction_bits = {self.ring.fraction_bits} make the grid too coarse for sums drawn "
                "at once; take more of them, or collect"
            )
        return (draws.normal(shape) * units[..., None]).round_().long()

    def _together(self, words: Tensor) -> Tensor | None:
        """Deviation of one rounded normal like the noise in sums of so many words, in grid units.

        A sum of c rounded normals is, up to 1e-3/(c sigma^4) in total variation
        (sigma in grid units), the rounded normal of the same variance c sigma^2 + (c - 1)/12. None
        where that is more than 3e-11: two clients below 64 units.
        """
        units = (self.sigma * self.ring.scale).to(words.device)
        # An error 1e-3/(c sigma^4) up to that of two clients at COARSEST; one is no sum.
        too_coarse = (words > 1) & (words * units**4 < 2 * COARSEST**4)
        if too_coarse.any():
            return None
        # c - 1 roundings become variance, 1/12 each; the last is that of the sum itself.
        return (words * units**2 + (words - 1).clamp_min(0) / 12).sqrt()


def one_key(draws: Draws) -> Tensor:
    """256 bits for ChaCha20, which then makes the same noise on every device: (8,) int32."""
    return draws.words((4,)).view(torch.int32)
