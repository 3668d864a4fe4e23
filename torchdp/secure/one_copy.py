"""A secure sketch whose clients send one noisy row, whatever the number of copies; a proof on the grid.

Client i sends u_i = q_i + round(G_i 2^f), G_i ~ N(0, sigma^2 I_d); servers form Z = sqrt(s) S u, of m rows, from their
shares and each adds E_k, of m x d independent round(N(0, tau^2) 2^f), to what it publishes.

*Claim.* Replacing q_i by q_i' at distance at most D, in units of the grid as sigma and tau here, is no easier to see
for all servers but one, the reader and the other clients than N(0, 1) from N(mu, 1), mu^2 = D^2 l/sigma^2, l >= S_i^T
(S_h S_h^T)^-1 S_i, S_h the honest columns, but for (1 + e^epsilon) v of delta, v = ``lattice_variation``.

*Proof.* Columns are independent: let d = 1. What is not known of Z and an honest server's E is Y = T X + E, T =
sqrt(s) S_h of entries 0 and +-1, s in each column, X_p = round(sigma g_p), E_j = round(tau g_j). Let L be the law of
round(T (sigma g + U) + tau g'), U uniform on [-1/2, 1/2]. Moved by an integer, L is a function of N(0, sigma^2 T T^T
+ tau^2 I) moved by it, at distance D T_i: at most mu. It remains that Y is within v of L in total variation. With
q_a(t) = e^(-a^2 t^2/2) sin(t/2)/(t/2), X_p has the series sum_k q_sigma(t + 2 pi k) and so on (``rounding``); L at
the integers is the density whose transform is f(x) = prod_p q_sigma(<T_p, x>) prod_j q_tau(x_j), the last uniforms
making these values the law of round(.). So no mass of Y and L differs by more than (2 pi)^-m times the integral of |f
- series| over |x_j| <= pi and of |f| beyond. Where all |x_j| <= pi/(2 s), |<T_p, x>| <= pi/2, and the factors, none
above 1, differ by 2.1 e^(-11 sigma^2) and 2.1 e^(-11 tau^2) at most. Where one is larger, it has both products below
3.1 e^(-tau^2 pi^2/ (8 s^2)). Beyond pi, |f| integrates to m e^(-tau^2 pi^2/2). So no mass differs by more than r =
(4.1 + 3.1 m) e^(-tau^2 pi^2/(8 s^2)) + 2.1 n e^(-11 sigma^2). Outside the box |Y_j| <= N, N^2 = 200 (c (sigma^2 + 1)
+ tau^2 + 1), c the most pairs of a row, lie 2.1 m e^-100 of either where sigma, tau >= 3 (``rounding``): v = d ((2 N
+ 1)^m r/2 + 2.1 m e^-100). QED

E costs next to nothing: in units tau^2 grows with s^2 m alone, the clients' noise of a row with the grid. Without E the
sums lie on the lattice that the honest columns span, whose points may be far apart.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.kernels import secure_sketch
from torchdp.kernels.secure_sketch import SURE, VARIATION
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.rounded import RoundedNormal
from torchdp.secure.protocol import one_key
from torchdp.secure.ring import TAIL, Ring, reach
from torchdp.secure.rounding import grid_sensitivity
from torchdp.secure.sums import SecureSums, Words
from torchdp.sketching.gaussian_noise import OneCopyGaussianNoise

NARROW = 3.0  # units: for less noise there is no bound
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

    Guarantees: (epsilon, delta)-DP as for ``SecureSketch``, at most: proof above. One server at least must add its
        noise and keep it to itself: it is what makes the integers as good as real numbers.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 4, with one noise for all copies of a client;
        proved above; Balle, Wang (2018), Theorem 8.
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
        distance = 2 * self.bound if self.sensitivity is None else min(2 * self.bound, self.sensitivity)
        counts = self.sketch.counts().double()
        least = counts * self.leverage * (distance / self._mu) ** 2 / self.sketch.copies
        return float((self.row_variance / least)[counts > 0].max())

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), of the words that are sent on a CPU, where noise is rounded without error."""
        mu = None if self.coalition.slack(self.delta) else self._mu
        source = "Burkhardt et al. (2025), section 4; proved here; Balle, Wang (2018), Theorem 8"
        entries = self.servers * self.sketch.height * self.columns
        words = self.sketch.clients * self.columns * VARIATION + entries * self._own.variation
        return self._on_wire(self.delta, mu, source, self.variation, words)

    def speak(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
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

    def drawn(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
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
        distance = grid_sensitivity(ring, self.bound, self.columns, self.sensitivity) * ring.scale
        sigma, m, most = (
            math.sqrt(self.leverage) * distance / self._mu,
            self.sketch.height,
            int(self._rows[1].max()),
        )
        box = m * math.log(2 * math.sqrt(200 * (most * (sigma**2 + 1) + SURE**2)) + 1)
        exponent = box + math.log(self.columns * (4.1 + 3.1 * m)) - math.log(self._most)
        return sigma, max(NARROW, self.sketch.copies * math.sqrt(8 * exponent) / math.pi)

    def _reach(self, ring: Ring) -> float:
        sigma, tau = self._noise(ring)
        if max(sigma, tau) > SURE or self._variation(sigma, tau) > self._most:
            return math.inf
        entry, unit = self.bound if self.entry is None else self.entry, 1 / ring.scale
        clients = reach(self._rows[1], entry, torch.tensor(sigma * unit, dtype=torch.float64), unit)
        return clients + TAIL * math.sqrt(self.servers) * tau * unit + self.servers * unit / 2


def lattice_variation(
    sigma: float, tau: float, *, clients: int, height: int, copies: int, columns: int, most: int
) -> float:
    """How far sums of one-copy noise and a server's are from rounded normals, for ``columns`` columns: proof above.

    sigma, tau: in grid units; most: c, the most pairs of a row. 1 where either is below 3.

    Guarantees: an upper bound on the total variation distance. Source: the proof above.
    """
    if min(sigma, tau) < NARROW:
        return 1.0
    box = height * math.log(2 * math.sqrt(200 * (most * (sigma**2 + 1) + tau**2 + 1)) + 1)
    servers = box + math.log(4.1 + 3.1 * height) - (tau * math.pi / copies) ** 2 / 8
    users = box + math.log(2.1 * clients) - 11 * sigma**2
    return min(
        1.0,
        columns * ((math.exp(min(servers, 1.0)) + math.exp(min(users, 1.0))) / 2 + 2.1 * height * math.exp(-100)),
    )
