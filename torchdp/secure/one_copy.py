"""A secure sketch whose clients send one noisy row, whatever the number of copies; a proof on the grid.

Client i sends u_i = q_i + round(G_i 2^f), G_i ~ N(0, sigma^2 I_d); servers form Z = sqrt(s) S u, of m rows, from their
shares and each adds E_k, of m x d independent round(N(0, tau^2) 2^f), to what it publishes.

*Claim.* Let l >= S_i^T (S_h S_h^T)^-1 S_i, S_h the honest columns, for every honest client i, and D >= |q_i - q_i'|_2
for any two values of a client, in units of the grid, as sigma and tau here. Against all servers but one, the reader and
the other clients, replacing q_i by q_i' is no easier to see than N(0, 1) from N(mu, 1), mu^2 = (l D^2 + V)/sigma^2 +
s V/tau^2 with V = min(n d/4, D sqrt(n d l)).

*Proof.* Let w = q_i' - q_i, T = sqrt(s) S_h, of entries 0 and +-1, s in each column, t = T^T (T T^T)^-1 T_i, so that
T t = T_i and |t|^2 = S_i^T (S_h S_h^T)^-1 S_i <= l. Let W have independent entries, the two integers next to those of t
w^T, with these means. Its variances add up to at most V, because each is at most 1/4 and at most the size of the entry
(at most n d of them, of squares that add up to at most l D^2). So E |W|^2 <= l D^2 + V, and R = T_i w^T - T W, of
integers and mean 0, has E |R|^2 <= s V: some W has |W|^2/sigma^2 + |R|^2/tau^2 <= mu^2. Fix it. For an integer k,
round(g + k) = round(g) + k but on ties: with q_i' the sums are the same function of (G + W, E + R) as they are of (G,
E) with q_i, E of the honest server, everything else fixed. That pair of Gaussians is at distance mu at most, and the
function is post-processing, reduction modulo 2^b too. QED

Without E the sums lie on a lattice that the honest columns span, which may be too thin to hide anything on a coarse
grid. On a fine one E is nothing beside G: its part of mu^2 is chosen for the least variance.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.kernels import secure_sketch
from torchdp.kernels.secure_sketch import SURE, VARIATION
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.protocol import Tally
from torchdp.rounded import RoundedNormal
from torchdp.secure.gaussian import LEFT
from torchdp.secure.protocol import one_key
from torchdp.secure.ring import TAIL, Ring, largest_fraction_bits, reach
from torchdp.secure.rounding import grid_sensitivity
from torchdp.secure.sums import SecureSums, Words
from torchdp.sketching.gaussian_noise import OneCopyGaussianNoise
from torchdp.sketching.transform import add_rows

FLOATS = 1 + 1e-9  # of a leverage: what its inverse may be off by


@dataclass(frozen=True, eq=False)
class OneCopySecureSketch(SecureSums):
    """:class:`SecureSketch` for s >= 2 copies whose clients send d words to each server, not s d.

    Client i sends q + round(N(0, sigma^2 4^f I)), q = trunc(a_i 2^f), split into shares; servers add a client's share
    into its s rows with the public signs, and before they publish add round(N(0, tau^2 4^f)) of their own to each entry
    (``published``). ``collect`` plays the servers too; ``tally`` of messages is what they hold before that. The noise
    of a row is that of c_j clients and S servers; rows are correlated, sigma^2 S S^T.

    The arguments are those of ``SecureSketch``. Raises ValueError where the sketch has one copy, or where too many
    clients may be corrupt for the leverages.

    Guarantees: (epsilon, delta)-DP as for ``SecureSketch``, at most: proof above. One server at least must add its
        noise and keep it to itself: it is what makes the integers as good as real numbers.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4, with one noise for all copies of a client;
        proved above; Balle, Wang (2018), Theorem 8.
    """

    delta: float

    def __post_init__(self) -> None:
        self._set("delta", checks.fraction("delta", self.delta))
        super().__post_init__()

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

    @cached_property
    def row_variance(self) -> Tensor:
        """Variance of the noise in an entry of each row, (c_j sigma^2 + S tau^2 + (c_j + S) 4^-f/12)/s: (m,)."""
        counts, unit = self.sketch.counts().double(), 1 / (12 * self.ring.scale**2)
        return (counts * (self.sigma**2 + unit) + self.servers * (self.tau**2 + unit)) / self.sketch.copies

    @cached_property
    def grid_factor(self) -> float:
        distance = 2 * self.bound if self.sensitivity is None else min(2 * self.bound, self.sensitivity)
        counts = self.sketch.counts().double()
        least = counts * self.leverage * (distance / self._mu) ** 2 / self.sketch.copies
        return float((self.row_variance / least)[counts > 0].max())

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), of the words that are sent on a CPU, where noise is rounded without error."""
        mu = None if self.coalition.slack(self.delta) else self._mu
        source = "Burkhardt et al. (2025), section 4; proved here; Balle, Wang (2018), Theorem 8"
        if self.sensitivity is not None:
            source += f"; for rows of a client at most {self.sensitivity:g} apart"
        model, neighbours = Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE
        real = Guarantee(self.epsilon, self.delta * LEFT, model, neighbours, False, source, mu=mu)
        entries = self.servers * self.sketch.height * self.columns
        variation = self.sketch.clients * self.columns * VARIATION + entries * self._own.variation
        try:
            on_wire = real.rounded(variation, self.delta)
        except ValueError:
            return replace(real, delta=self.delta)
        return on_wire if self.sketch.device.type == "cpu" else replace(real, delta=self.delta)

    def speak(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        ring, rows = self.ring, torch.zeros(1, len(x), dtype=torch.int64, device=x.device)
        units = torch.tensor([self.sigma * ring.scale], dtype=torch.float64, device=x.device)
        words = secure_sketch.words(x, rows, rows + 1, units, one_key(draws), first, ring.scale, ring.dtype)
        return Words(first, words.transpose(0, 1))

    def place(self, sums: Tensor, clients: Tensor | slice, words: Tensor) -> None:
        rows, signs = (each.to(sums.device)[:, clients] for each in (self.sketch.rows, self.sketch.signs))
        add_rows(sums, rows, words * signs[..., None])

    def published(self, sums: Tensor, draws: Draws) -> Tensor:
        """The sums and this server's own noise, modulo 2^bits; of fresh draws for each server."""
        return sums + self._own.draw(tuple(sums.shape), draws).to(sums)

    def drawn(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """A normal of the same covariance, rounded once: on a grid of 64 units for ``sigma`` or finer.

        Raises ValueError on a coarser one.
        """
        units = self.sigma * self.ring.scale
        if units < 64:
            raise ValueError(
                f"fraction_bits = {self.ring.fraction_bits} make the grid too coarse for sums drawn at once; take "
                "more of them, or collect"
            )
        noise = OneCopyGaussianNoise(units).sums_of(self.sketch, (*shape, *summary.shape), draws)
        own = math.sqrt(self.servers) * self.tau * self.ring.scale
        noise += own * draws.normal(tuple(noise.shape))
        return Tally(self.sketch.clients, {"words": (summary + noise.round_().long()).to(self.ring.dtype)})

    @cached_property
    def _own(self) -> RoundedNormal:
        return RoundedNormal(self.tau * self.ring.scale)

    @cached_property
    def _mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta * LEFT - self.coalition.slack(self.delta))

    def _noise(self, ring: Ring) -> tuple[float, float]:
        """sigma and tau in units of the ring: the least variance of the fullest row at mu."""
        n, d, s = self.sketch.clients, self.columns, self.sketch.copies
        distance = grid_sensitivity(ring, self.bound, d, self.sensitivity) * ring.scale
        rounding = min(n * d / 4, distance * math.sqrt(n * d * self.leverage))
        clients, servers = self.leverage * distance**2 + rounding, s * rounding
        ratio = math.sqrt(self.servers * servers / (float(self._rows[1].max()) * clients))
        return math.sqrt(clients * (1 + ratio)) / self._mu, math.sqrt(servers * (1 + 1 / ratio)) / self._mu

    def _fits(self, ring: Ring) -> bool:
        sigma, tau = self._noise(ring)
        if max(sigma, tau) > SURE:
            return False
        entry = self.bound if self.entry is None else self.entry
        unit, whole = 1 / ring.scale, torch.tensor(sigma / ring.scale, dtype=torch.float64)
        distance = reach(self._rows[1], entry, whole, unit)
        distance += TAIL * math.sqrt(self.servers) * tau * unit + self.servers * unit / 2
        return largest_fraction_bits(self.bits, distance) >= ring.fraction_bits
