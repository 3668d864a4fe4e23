"""A private sketch by secret sharing: clients add rounded noise and share it out, servers add, anyone adds up."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.kernels import secure_sketch
from torchdp.noise import Noise, source
from torchdp.protocol import Estimate, Layout, MessageProtocol, Objective, Tally
from torchdp.secure.settings import WORDS_AT_ONCE, Settings
from torchdp.sketching.transform import add_rows

SLACK = 1e-12  # of a norm, for rounding in whoever clipped the rows; calibration leaves a hundred times as much
COARSEST = (
    64.0  # deviation of noise in grid units: from it on a rounded normal stands for a sum of rounded normals
)
FIRST_BYTES = 8  # of a client's number


@dataclass(frozen=True, eq=False)
class Words:
    """What clients first, first + 1, ... share out: (s, k, d). Who sends matters: each has a column of its own."""

    first: int
    values: Tensor


@dataclass(frozen=True, eq=False)
class SecureSketch(Settings, MessageProtocol[Tensor, Words]):
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
        mechanism for the whole row in place of Corollary 4.7's composition; noise on the grid: proof in ``rounding``.
    """

    @property
    def layout(self) -> Layout:
        return {"words": ((self.sketch.height, self.columns), self.ring.dtype)}

    @property
    def bits_per_user(self) -> int:
        """Bits of one client's shares, to all servers."""
        return self.servers * self.sketch.copies * self.columns * self.bits

    def within(self, x: Tensor) -> Tensor:
        """x, rows (k, d) of any clients, if they keep within the stated bounds. Raises ValueError, TypeError."""
        x = checks.real("x", x)
        if x.ndim != 2 or x.shape[1] != self.columns or len(x) == 0:
            raise ValueError(f"x must have shape (clients, {self.columns}), not {tuple(x.shape)}")
        if x.device != self.sketch.device:
            raise ValueError(f"x is on {x.device}, the sketch on {self.sketch.device}; move one of them")
        for part in x.split(max(1, WORDS_AT_ONCE // self.columns)):
            self._check_rows(part.double(), x[0].double())
        return x

    def _check_rows(self, rows: Tensor, one: Tensor) -> None:
        if not bool((rows.square().sum(1).sqrt() <= self.bound * (1 + SLACK)).all()):  # NaN is not
            checks.floating("x", rows)
            raise ValueError(f"x holds a row of l_2 norm above bound = {self.bound}; clip rows, in float64")
        if self.entry is not None and bool((rows.abs() > self.entry * (1 + SLACK)).any()):
            raise ValueError(f"x holds an entry above entry = {self.entry} in size; clip them, in float64")
        if self.sensitivity is not None:
            apart = (rows - one).square().sum(1).sqrt()
            if bool((apart > self.sensitivity * (1 + SLACK)).any()):
                raise ValueError(
                    f"x holds rows more than sensitivity = {self.sensitivity} apart: the noise would not hide a "
                    "client who may hold either; state the largest distance"
                )

    def admit(self, x: Tensor) -> Tensor:
        """x, the rows (n, d) of all clients, if they keep within the stated bounds. Raises ValueError, TypeError."""
        x = self.within(x)
        if len(x) != self.sketch.clients:
            raise ValueError(f"x must have {self.sketch.clients} rows, one for each client, not {len(x)}")
        return x

    def summary(self, x: Tensor) -> Tensor:
        sums = torch.zeros(self.sketch.height, self.columns, dtype=torch.int64, device=self.sketch.device)
        for part in self.sketch.parts(self.columns):
            sums += self.sketch.part(part).sums(self.ring.to_words(x[part]).long())
        return sums

    def counted(self, summary: Tensor) -> Tensor:
        """``summary``, whole numbers (m, d) that rows within the bounds add up to. Raises TypeError, ValueError."""
        shape, sums = self.layout["words"][0], checks.real("summary", summary)
        if summary.dtype != torch.int64 or sums.shape != shape:
            raise ValueError(f"summary must be int64 sums {shape}, not {summary.dtype} {tuple(sums.shape)}")
        longest = (self.bound if self.entry is None else self.entry) * (1 + SLACK) * self.ring.scale
        if bool((summary.double().abs() > (self.sketch.counts() * longest)[:, None]).any()):
            raise ValueError(
                "summary holds a sum beyond what the clients of its row can hold; make it by summary(x)"
            )
        return summary

    def randomize(self, x: Tensor, *, first: int = 0, noise: Noise | None = None) -> Words:
        """What clients first, first + 1, ... with rows x (k, d) share out; a client passes its own row.

        Their noise is ChaCha20's under a key of 256 bits, drawn from ``noise`` for this call. Raises ValueError,
        TypeError before any draw.
        """
        x = self.within(x)
        if checks.integer("first", first, 0) + len(x) > self.sketch.clients:
            raise ValueError(f"first = {first} and {len(x)} rows x go beyond the {self.sketch.clients} clients")
        return self.speak(x, source(noise, x.device), first)

    def speak(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        return self.keyed(x, first, one_key(draws))

    def keyed(self, x: Tensor, first: int, key: Tensor) -> Words:
        """Words sign (q + round(g)) from a key that all clients may share, whatever their parts; unchecked."""
        part, ring = slice(first, first + len(x)), self.ring
        rows, signs = self.sketch.rows[:, part], self.sketch.signs[:, part]
        words = secure_sketch.words(x, rows, signs, self.sigma * ring.scale, key, first, ring.scale, ring.dtype)
        return Words(first, words.transpose(0, 1))  # client by client, as they are drawn

    def tally(self, messages: Words) -> Tally:
        words = self.ring.checked("messages", checks.instance("messages", messages, Words).values)
        shape = (self.sketch.copies, self.columns)
        if words.ndim != 3 or (len(words), words.shape[2]) != shape:
            raise ValueError(
                f"messages must hold words ({shape[0]}, clients, {shape[1]}), not {tuple(words.shape)}"
            )
        first = checks.integer("messages.first", messages.first, 0, self.sketch.clients - words.shape[1])
        sums = torch.zeros(self.layout["words"][0], dtype=words.dtype, device=words.device)
        rows = self.sketch.rows[:, first : first + words.shape[1]]
        return Tally(words.shape[1], {"words": add_rows(sums, rows, words)})

    def hear(self, x: Tensor, draws: Draws) -> Tally:
        """The integers that ``tally`` of the messages of the same draws has, made and added without storing them.

        On a GPU one pass over x, in which floats decide where a noise lies next to a half: there an integer may differ
        by one. kernels/secure_sketch says more.
        """
        sums = torch.zeros(1, *self.layout["words"][0], dtype=self.ring.dtype, device=x.device)
        rows, signs, scale = self.sketch.rows, self.sketch.signs, self.ring.scale
        secure_sketch.add(sums, x, rows, signs, self.sigma * scale, one_key(draws), scale=scale)
        return Tally(len(x), {"words": sums[0]})

    def drawn(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
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

    def analyse(self, tally: Tally) -> Estimate:
        """Y, (m, d), from the total of the servers' sums; its error with every client's noise, heard or not."""
        least = self.sketch.clients - self.coalition.absent
        if not least <= self.check(tally).n <= self.sketch.clients:
            raise ValueError(
                f"tally is of {tally.n} clients; the noise was calibrated to {self.sketch.clients}, of whom "
                f"absent = {self.coalition.absent} may drop out"
            )
        value = self.ring.to_reals(tally["words"]) / math.sqrt(self.sketch.copies)
        return Estimate(value, self.row_variance.sqrt()[:, None].expand_as(value), tally.n)

    def exact(self, summary: Tensor) -> Tensor:
        """S A, (m, d), of rows truncated to the grid."""
        return self.counted(summary).double() / (self.ring.scale * math.sqrt(self.sketch.copies))

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """(m, d); the same for all data."""
        self.counted(summary)
        return self.row_variance[:, None].expand(self.layout["words"][0])

    def worst_mse(self, n: int, objective: Objective = Objective.WORST) -> Tensor:
        checks.integer("n", n, self.sketch.clients - self.coalition.absent, self.sketch.clients)
        return checks.instance("objective", objective, Objective).of(self.row_variance)

    def encode(self, messages: Words) -> bytes:
        """Words before they are shared out, client by client, behind the first client's number."""
        self.tally(messages)
        words = messages.values.transpose(0, 1).cpu().contiguous().numpy().astype(f"<i{self.bits // 8}")
        return messages.first.to_bytes(FIRST_BYTES, "little") + words.tobytes()

    def decode(self, data: bytes) -> Words:
        each = self.sketch.copies * self.columns * self.bits // 8
        checks.instance("data", data, bytes)
        clients, rest = divmod(len(data) - FIRST_BYTES, each)
        first = int.from_bytes(data[:FIRST_BYTES], "little")
        if rest or clients < 1 or first + clients > self.sketch.clients:
            raise ValueError(
                f"data must hold {FIRST_BYTES} bytes and {each} for each of at most {self.sketch.clients} clients, "
                f"not {len(data)} bytes from client {first} on"
            )
        words = np.frombuffer(data, f"<i{self.bits // 8}", offset=FIRST_BYTES).astype(f"=i{self.bits // 8}")
        values = torch.from_numpy(words).view(clients, self.sketch.copies, self.columns).transpose(0, 1)
        return Words(first, values.to(self.sketch.device))


def one_key(draws: Draws) -> Tensor:
    """256 bits for ChaCha20, which then makes the same noise on every device: (8,) int32."""
    return draws.words((4,)).view(torch.int32)
