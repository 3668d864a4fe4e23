"""A private sketch by secret sharing: clients add rounded noise and share it out, servers add, anyone adds up."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.draws import Draws, Simulated
from torchdp.kernels import secure_sketch
from torchdp.protocol import Tally
from torchdp.secure.gaussian import GaussianSettings
from torchdp.secure.sums import SecureSums, Words

COARSEST = (
    64.0  # deviation of noise in grid units: from it on a rounded normal stands for a sum of rounded normals
)


@dataclass(frozen=True, eq=False)
class SecureSketch(GaussianSettings, SecureSums):
    """Y = s^-1/2 (S A + noise) for n clients who each hold one row of A, computed by servers that see only shares.

    x: A, a row for each client, in their order. A message is a client's words before it shares them out; a tally is
    their signed total modulo 2^bits, what the servers' sums add up to. Summaries are the exact sums of the truncated
    rows, (m, d) integers. Shares, frames and servers are the channel: ``share``, ``servers``, ``processes``.

    Client i adds to its integers q = trunc(a_i 2^f), for each copy c, fresh noise round(N(0, sigma_j^2 4^f I)), j =
    rows[c, i], multiplies by the public sign, splits the words into one share for each server. Servers add the shares
    of each row and publish the sums; their total is sqrt(s) 2^f Y, modulo 2^bits, and does not wrap around.

    sketch: public; ``ones(n)`` makes this a secure sum. columns: d. bound: B, |a_i|_2 <= B. epsilon, delta: the whole
    budget. servers: S >= 2. coalition: how many clients may collude, and how many drop out. bits: of the ring, 32 or
    64. fraction_bits: f; as many as fit where None. sensitivity: D, the largest distance of two rows that clients may
    hold, 2B where None. entry: the largest |a_il|, B where None; a smaller one leaves room for more fraction bits.
    Raises ValueError before anything is drawn: where a used row has no honest client, or the sums may wrap. Warns where
    the grid makes the noise's variance 1.1 times the least or more (``grid_factor``).

    Guarantees: (epsilon, delta)-DP, one client's row replaced by any other within the bounds, against a coalition of
        all servers but one, the analyst and t' clients: their shares are uniform and independent of the words
        (``share``), and what the last server publishes is then a function of the sums and of what they know.
        Semi-honest servers: all publish the sum of what they were sent, once. A server that lies about its sum
        changes the result unnoticed, and so does a client that sends words of its own choice: to its own rows alone.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 4.4, with exact counts and one Gaussian
        mechanism for the whole row in place of Corollary 4.7's composition; on the grid: ``torchdp.grid``, 3, 4.
    """

    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        return self.keyed(x, first, one_key(draws))

    def spoken(self, x: Tensor, draws: Draws) -> Iterator[Words]:
        key = one_key(draws)  # of all clients' noise, as ``collect_unchecked`` draws it
        for part in self.parts():
            yield self.keyed(x[part], part.start, key)

    def keyed(self, x: Tensor, first: int, key: Tensor) -> Words:
        """Words sign (q + round(g)) from a key that all clients may share, whatever their parts; unchecked."""
        part, ring = slice(first, first + len(x)), self.ring
        rows, signs = self.sketch.rows[:, part], self.sketch.signs[:, part]
        words = secure_sketch.words(x, rows, signs, self.sigma * ring.scale, key, first, ring.scale, ring.dtype)
        return Words(first, words.transpose(0, 1))  # client by client, as they are drawn

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """The integers that ``tally`` of the messages of the same draws has, made and added without storing them.

        On a GPU one pass over x, in which floats decide where a noise lies next to a half: there an integer may differ
        by one. kernels/secure_sketch says more.
        """
        sums = torch.zeros(1, *self.layout["words"][0], dtype=self.ring.dtype, device=x.device)
        rows, signs, scale = self.sketch.rows, self.sketch.signs, self.ring.scale
        secure_sketch.add(sums, x, rows, signs, self.sigma * scale, one_key(draws), scale=scale)
        return Tally(len(x), {"words": sums[0]})

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """A row's noise as one number, whatever n.

        A sum of c rounded normals is, up to 1e-3/(c sigma^4) in total variation (sigma in grid units), the rounded
        normal of the same variance c sigma^2 + (c - 1)/12. Raises ValueError where that is more than 3e-11: two
        clients below 64 units.
        """
        counts, units = self.sketch.counts(), self.sigma * self.ring.scale
        if bool(((counts > 1) & (counts * units**4 < 2 * COARSEST**4)).any()):
            raise ValueError(
                f"fraction_bits = {self.ring.fraction_bits} make the grid too coarse for sums drawn at once; take "
                "more of them, or collect"
            )
        noise = draws.normal((*shape, *summary.shape))
        noise *= (counts * units**2 + (counts - 1).clamp_min(0) / 12).sqrt()[:, None]
        return Tally(self.sketch.clients, {"words": (summary + noise.round_().long()).to(self.ring.dtype)})


def one_key(draws: Draws) -> Tensor:
    """256 bits for ChaCha20, which then makes the same noise on every device: (8,) int32."""
    return draws.words((4,)).view(torch.int32)
