"""A secure sketch whose clients send one noisy row, whatever the number of copies: ``torchdp.grid``, 5.

The servers' noise costs next to nothing: in units tau^2 grows with s^2 m alone, the clients' noise of a row with the
grid. Without it the sums lie on the lattice that the honest columns span, whose points may be far apart.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.grid import NARROW, lattice_variation
from torchdp.kernels import secure_sketch
from torchdp.kernels.secure_sketch import SURE, VARIATION
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.rounded import RoundedNormal
from torchdp.secure.protocol import one_key
from torchdp.secure.ring import TAIL, Ring, farthest_sum
from torchdp.secure.sums import SecureSums, Words
from torchdp.sketching.gaussian_noise import OneCopyGaussianNoise

FLOATS = 1 + 1e-9  # of a leverage: what its inverse may be off by


@dataclass(frozen=True, eq=False)
class OneCopySecureSketch(SecureSums):
    """:class:`SecureSketch` for s >= 2 copies whose clients send d words to each server, not s d.

    Client i sends q + round(N(0, sigma^2 4^f I)), q = trunc(a_i 2^f), split into shares; servers add a client's share
    into its s rows with the public signs, and before they publish add round(N(0, tau^2 4^f)) of their own to each entry
    (``published``). ``collect`` plays the servers too; ``tally`` of messages is what they hold before that. The noise
    of a row is that of c_j clients and S servers; rows are correlated, sigma^2 S S^T.

    The arguments are those of ``SecureSketch``. Raises ValueError where the sketch has one copy, or where too many
    clients may be corrupt for the leverages, and where a client's noise is too narrow for the proof on any grid that
    fits (32 bits and ten million clients).

    Guarantees: (epsilon, delta)-DP as for ``SecureSketch``, at most: ``torchdp.grid``, 5. One server at least must add
        its noise and keep it to itself: it is what makes the integers as good as real numbers.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4, with one noise for all copies of a client;
        proved there; Balle, Wang (2018), Theorem 8.
    """

    delta: float

    def __post_init__(self) -> None:
        self._set("delta", checks.fraction("delta", self.delta))
        super().__post_init__()
        if self.variation > self._most:
            raise ValueError(
                f"fraction_bits = {self.ring.fraction_bits} make the grid too coarse: the noise of a client is "
                f"{self._noise(self.ring)[0]:.3g} units, too narrow for sums of {self.sketch.height} rows"
            )

    @property
    def words_sent(self) -> int:
        """Rows of d words that a client sends to each server: one."""
        return 1

    @cached_property
    def honest(self) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64."""
        return self.coalition.honest(self.sketch, self.delta)

    @cached_property
    def leverage(self) -> float:
        """l, above the honest leverages of all clients."""
        if self.sketch.copies == 1:
            raise ValueError("sketch must have 2 copies or more; with one SecureSketch sends no more words")
        return float(self.coalition.leverages(self.sketch, self.delta).max()) * FLOATS

    @property
    def sigma(self) -> float:
        """Standard deviation of each client's noise, in units of the data, before rounding."""
        return self._noise(self.ring)[0] / self.ring.scale

    @property
    def tau(self) -> float:
        """Standard deviation of each server's noise, in units of the data, before rounding."""
        return self._noise(self.ring)[1] / self.ring.scale

    @property
    def variation(self) -> float:
        """Total variation distance of all noise that hides a client from a function of Gaussian noise, at most."""
        return self._variation(*self._noise(self.ring))

    @cached_property
    def row_variance(self) -> Tensor:
        """Variance of the noise in an entry of each row, (c_j sigma^2 + S tau^2 + (c_j + S) 4^-f/12)/s: (m,)."""
        counts, unit = self.sketch.counts().double(), 1 / (12 * self.ring.scale**2)
        return (counts * (self.sigma**2 + unit) + self.servers * (self.tau**2 + unit)) / self.sketch.copies

    @cached_property
    def grid_factor(self) -> float:
        counts = self.sketch.counts().double()
        least = counts * self.leverage * (self._apart / self._mu) ** 2 / self.sketch.copies
        return float((self.row_variance / least)[counts > 0].max())

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), of the words that are sent on a CPU, where noise is rounded without error."""
        mu = None if self.coalition.slack(self.delta) else self._mu
        source = "Burkhardt et al. (2025), section 4; proved here; Balle, Wang (2018), Theorem 8"
        entries = self.servers * self.sketch.height * self.columns
        words = self.sketch.clients * self.columns * VARIATION + entries * self._own.variation
        return self._on_wire(self.delta, mu, source, self.variation, words)

    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        ring, rows = self.ring, torch.zeros(1, len(x), dtype=torch.int64, device=x.device)
        units = torch.tensor([self.sigma * ring.scale], dtype=torch.float64, device=x.device)
        words = secure_sketch.words(x, rows, rows + 1, units, one_key(draws), first, ring.scale, ring.dtype)
        return Words(first, words.transpose(0, 1))

    def place(self, sums: Tensor, clients: Tensor | slice, words: Tensor) -> None:
        rows, signs = (each.to(sums.device)[:, clients] for each in (self.sketch.rows, self.sketch.signs))
        secure_sketch.add_rows(sums, rows.flatten(), (words * signs[..., None]).flatten(0, 1))

    def published(self, sums: Tensor, draws: Draws) -> Tensor:
        """The sums and this server's own noise, modulo 2^bits; of fresh draws for each server."""
        return sums + self._own.draw(tuple(sums.shape), draws).to(sums)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """A normal of the same covariance, rounded once: uniforms of a unit for each client are taken as normal."""
        units = math.hypot(self.sigma * self.ring.scale, math.sqrt(1 / 12))
        noise = OneCopyGaussianNoise(units).sums_of(self.sketch, (*shape, *summary.shape), draws)
        own = math.sqrt(self.servers) * self.tau * self.ring.scale
        noise += own * draws.normal(tuple(noise.shape))
        return Tally(self.sketch.clients, {"words": (summary + noise.round_().long()).to(self.ring.dtype)})

    @cached_property
    def _own(self) -> RoundedNormal:
        return RoundedNormal(self.tau * self.ring.scale)

    @cached_property
    def _mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta * ROUNDED - self.coalition.slack(self.delta))

    @cached_property
    def _most(self) -> float:
        """What ``variation`` may be: 2^-42 of delta pays for it."""
        return self.delta * (1 - ROUNDED) / (4 * (1 + math.exp(min(self.epsilon, 700.0))))

    def _variation(self, sigma: float, tau: float) -> float:
        sketch, counts = self.sketch, self._rows[1]
        return lattice_variation(
            sigma, tau, clients=sketch.clients, height=sketch.height, copies=sketch.copies, columns=self.columns,
            most=int(counts.max()),
        )  # fmt: skip

    def _noise(self, ring: Ring) -> tuple[float, float]:
        """sigma and tau in units of the ring: the least sigma at mu, and about the least tau at which E suffices."""
        distance = self._distance(ring) * ring.scale
        sigma, m, most = (
            math.sqrt(self.leverage) * distance / self._mu,
            self.sketch.height,
            int(self._rows[1].max()),
        )
        box = m * math.log(2 * math.sqrt(200 * (most * (sigma**2 + 1) + SURE**2)) + 1)
        exponent = box + math.log(self.columns * (4.1 + 3.1 * m)) - math.log(self._most)
        return sigma, max(NARROW, self.sketch.copies * math.sqrt(8 * exponent) / math.pi)

    def _farthest(self, ring: Ring) -> float:
        sigma, tau = self._noise(ring)
        if max(sigma, tau) > SURE or self._variation(sigma, tau) > self._most:
            return math.inf
        unit = 1 / ring.scale
        deviation = torch.tensor(sigma * unit, dtype=torch.float64, device="cpu")
        clients = farthest_sum(self._rows[1], self._largest, deviation, unit)
        return clients + TAIL * math.sqrt(self.servers) * tau * unit + self.servers * unit / 2
