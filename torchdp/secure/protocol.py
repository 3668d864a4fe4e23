"""A private sketch by secret sharing: clients add rounded noise and share it out, servers add, anyone adds up."""

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.kernels import secure_sketch
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.secure.frames import payload_bytes
from torchdp.secure.ring import Ring, largest_fraction_bits, reach
from torchdp.secure.rounding import grid_sensitivity, grid_sigma
from torchdp.secure.shares import reconstruct, share
from torchdp.sketching.coalition import Coalition
from torchdp.sketching.noise import EVERYBODY
from torchdp.sketching.sketch import Sketch
from torchdp.sketching.transform import add_rows

SLACK = 1e-12  # of a norm, for rounding in whoever clipped the rows; calibration leaves a hundred times as much
WASTE = 1.1  # times the least variance: from here on a warning
WORDS_AT_ONCE = 2**18  # of messages: their noise and shares stay in the cache
# standard deviations of noise in grid units: from COARSEST on a rounded normal stands for a sum of rounded normals; up
# to FINEST every normal drawn in float64 has digits below one unit, so that rounding leaves no gaps in its law
COARSEST, FINEST = 64.0, 2.0**40


@dataclass(frozen=True, eq=False)
class SecureSketch:
    """Y = s^-1/2 (S A + noise) for n clients who each hold one row of A, computed by servers that see only shares.

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

    sketch: Sketch
    columns: int
    bound: float
    epsilon: float
    delta: float
    _: KW_ONLY
    servers: int = 2
    coalition: Coalition = EVERYBODY
    bits: int = 64
    fraction_bits: int | None = None
    sensitivity: float | None = None
    entry: float | None = None

    def __post_init__(self) -> None:
        checks.instance("sketch", self.sketch, Sketch)
        checks.instance("coalition", self.coalition, Coalition)
        checks.fraction("delta", self.delta)
        checks.squarable("bound", self.bound)
        for name in ("bound", "epsilon", "delta", "sensitivity", "entry"):
            if name not in ("sensitivity", "entry") or getattr(self, name) is not None:
                self._set(name, checks.positive(name, getattr(self, name)))  # 1 and 1.0 are one session
        self._set("bits", checks.integer("bits", self.bits, 32, 64))
        self._set("columns", checks.integer("columns", self.columns, 1))
        self._set("servers", checks.integer("servers", self.servers, 2, 2**15 - 1))
        if self.entry is not None and self.entry > self.bound:
            raise ValueError(f"entry must be at most bound = {self.bound}, not {self.entry}")
        if self.grid_factor > WASTE:
            warnings.warn(
                f"a grid of {self.ring.fraction_bits} fraction bits in bits = {self.bits} makes the variance of the "
                f"noise {self.grid_factor:.3g} times the least; take bits=64, or a smaller entry",
                stacklevel=3,
            )

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    @cached_property
    def honest(self) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64."""
        return self.coalition.honest(self.sketch, self.delta)

    @cached_property
    def ring(self) -> Ring:
        """The ring of the words: the finest in which no sum wraps around and float64 noise has no gaps, unless
        fraction_bits says otherwise."""
        finest = next((f for f in range(self.bits - 2, -1, -1) if self._fits(Ring(self.bits, f))), None)
        if finest is None:
            raise ValueError(f"bits = {self.bits} hold no row's sum, even in whole units; scale the data down")
        if self.fraction_bits is None:
            return Ring(self.bits, finest)
        ring = Ring(self.bits, self.fraction_bits)
        if ring.fraction_bits > finest:
            raise ValueError(
                f"fraction_bits must be at most {finest}, not {self.fraction_bits}: or sums may wrap around, "
                "or float64 noise have gaps"
            )
        return ring

    @cached_property
    def sigma(self) -> Tensor:
        """Standard deviation of one client's noise in each row, in units of the data, before rounding: (m,), float64.

        sigma_j^2 = s cost_j / mu*^2, cost_j = D^2/h_j + d h_j 4^-f/4 (``row_cost``: the second term is what rounding
        costs), D the sensitivity on the grid. 0 in rows that no client uses.
        """
        return self._sigma(self.ring)

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), an upper bound because the grid costs a little."""
        source = "Burkhardt et al. (2025), Theorem 4.4; Balle, Wang (2018), Theorem 8"
        if self.sensitivity is not None:
            source += f"; for rows of a client at most {self.sensitivity:g} apart"
        return Guarantee(self.epsilon, self.delta, Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE, False, source)

    @cached_property
    def noise_variance(self) -> Tensor:
        """Variance of the noise in each entry of the release, row by row: c_j (sigma_j^2 + 4^-f/12) / s, (m,), float64.

        c_j: all pairs of the row, none of which failed. Rounding adds 1/12 square unit where sigma is not below one
        unit.
        """
        return self.sketch.counts() * (self.sigma**2 + 1 / (12 * self.ring.scale**2)) / self.sketch.copies

    @cached_property
    def grid_factor(self) -> float:
        """What the grid costs: the noise's variance over c_j D^2/(h_j mu*^2), that of real numbers; the worst row's."""
        distance = 2 * self.bound if self.sensitivity is None else min(2 * self.bound, self.sensitivity)
        used = self.honest > 0
        least = self.sketch.counts()[used] / self.honest[used] * (distance / self._mu) ** 2
        return float((self.noise_variance[used] / least).max())

    @property
    def payload_bytes(self) -> int:
        """Bytes of all words that are sent, ``payload_bytes`` of these sizes."""
        sketch = self.sketch
        return payload_bytes(
            self.servers, sketch.copies, sketch.clients, sketch.height, self.columns, bits=self.bits
        )

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name everything the parties must agree upon."""
        public = [getattr(self, field.name) for field in fields(self) if field.name != "sketch"]
        result = hashlib.sha256(repr((public, self.ring, self.sketch.height)).encode())
        for array in (self.sketch.rows, self.sketch.signs):
            result.update(array.cpu().contiguous().numpy().data)
        return result.digest()

    def session(self, nonce: bytes) -> bytes:
        """16 bytes that name one run of this protocol: who has other parameters has another name for it.

        nonce: 16 bytes or more, public, never used twice, such as os.urandom(32). Raises ValueError.
        """
        if not isinstance(nonce, bytes) or len(nonce) < 16:
            raise ValueError("nonce must be at least 16 bytes, such as os.urandom(32)")
        return hashlib.sha256(self.digest + nonce).digest()[:16]

    def parts(self) -> Iterator[slice]:
        """The clients in the parts in which ``release`` lets them speak."""
        step = max(1, WORDS_AT_ONCE // (self.sketch.copies * self.columns))
        for start in range(0, self.sketch.clients, step):
            yield slice(start, min(start + step, self.sketch.clients))

    def check(self, values: Tensor) -> Tensor:
        """Rows (k, d), if they keep within the stated bounds. Raises ValueError, TypeError."""
        values = checks.real("values", values)
        if values.ndim != 2 or values.shape[1] != self.columns:
            raise ValueError(f"values must have shape (clients, {self.columns}), not {tuple(values.shape)}")
        if values.device != self.sketch.device:
            raise ValueError(
                f"values are on {values.device}, the sketch on {self.sketch.device}; move one of them"
            )
        for part in values.split(max(1, WORDS_AT_ONCE // self.columns)):
            part = part.double()
            if not bool((part.square().sum(1).sqrt() <= self.bound * (1 + SLACK)).all()):  # NaN is not
                checks.floating("values", part)
                raise ValueError(
                    f"values hold a row of l_2 norm above bound = {self.bound}; clip rows, in float64"
                )
            if self.entry is not None and bool((part.abs() > self.entry * (1 + SLACK)).any()):
                raise ValueError(f"values hold an entry above entry = {self.entry} in size; clip them, in float64")
            if self.sensitivity is not None and bool(
                ((part - values[0].double()).square().sum(1).sqrt() > self.sensitivity * (1 + SLACK)).any()
            ):
                raise ValueError(
                    f"values hold rows more than sensitivity = {self.sensitivity} apart: the noise would not hide a "
                    "client who may hold either; state the largest distance"
                )
        return values

    def check_all(self, A: Tensor) -> Tensor:
        """All clients' rows (n, d), if they keep within the stated bounds. Raises ValueError, TypeError."""
        A = self.check(A)
        if len(A) != self.sketch.clients:
            raise ValueError(f"A must have {self.sketch.clients} rows, one for each client, not {len(A)}")
        return A

    def messages(self, values: Tensor, first: int = 0, *, noise: Noise | None = None) -> Tensor:
        """What clients first, first + 1, ... share out: (k, d) -> (s, k, d) words, sign (q + round(g)).

        g is ChaCha20's under a key of 256 bits drawn from ``noise`` for this call; a client passes its one row. Raises
        ValueError, TypeError before any draw.
        """
        self.check(values)
        if checks.integer("first", first, 0) + len(values) > self.sketch.clients:
            raise ValueError(f"first = {first} and {len(values)} rows go beyond the {self.sketch.clients} clients")
        return self._words(values, first, _key(source(noise, self.sketch.device)))

    def speak(self, A: Tensor, *, noise: Noise | None = None) -> Iterator[tuple[int, Tensor]]:
        """The messages of all clients, (n, d), in parts: the first client of each and its (s, k, d) words.

        All from one key, drawn first: together what ``messages`` of all makes of the same noise. Raises ValueError,
        TypeError before any draw.
        """
        A, key = self.check_all(A), _key(source(noise, self.sketch.device))
        return ((part.start, self._words(A[part], part.start, key)) for part in self.parts())

    def collect(self, A: Tensor, *, noise: Noise | None = None) -> Tensor:
        """What the servers publish: (n, d) -> (S, m, d) words, for ``reveal``; noise and masks from one key.

        The integers that ``messages`` makes of the same noise, shared out and added up, without storing them: for one
        party who holds A and runs every role. On a GPU one pass over A; the sums are the same integers on every device
        but where the devices' logarithms or cosines round a noise to the other side of a half. Raises ValueError,
        TypeError before any draw.

        Guarantees: that of the protocol for ``reveal`` of the sums, and any S - 1 of the sums tell nothing of A, each
            to anybody who can not tell ChaCha20 from random; the floats' tail and gaps as in kernels/secure_sketch.
        """
        A, key, scale = self.check_all(A), _key(source(noise, self.sketch.device)), self.ring.scale
        shape = (self.servers, self.sketch.height, self.columns)
        sums = torch.zeros(shape, dtype=self.ring.dtype, device=self.sketch.device)
        return secure_sketch.add(
            sums, A, self.sketch.rows, self.sketch.signs, self.sigma * scale, key, scale=scale
        )

    def release(self, A: Tensor, *, noise: Noise | None = None) -> Tensor:
        """The whole protocol in this process, part by part: (n, d) -> Y (m, d), float64.

        The result depends on the clients' noise, not on the masks of their shares. Raises ValueError, TypeError before
        any draw.
        """
        draws = source(noise, self.sketch.device)
        shape = (self.servers, self.sketch.height, self.columns)
        sums = torch.zeros(shape, dtype=self.ring.dtype, device=self.sketch.device)
        for first, words in self.speak(A, noise=draws):
            rows = self.sketch.rows[:, first : first + words.shape[1]]
            add_rows(sums, rows, share(words, self.servers, noise=draws))
        return self.reveal(sums)

    def reveal(self, sums: Tensor) -> Tensor:
        """Y from what the servers published: (S, m, d) words -> (m, d), float64, scaled by s^-1/2 here."""
        shape = (self.servers, self.sketch.height, self.columns)
        if tuple(self.ring.words("sums", sums).shape) != shape:
            raise ValueError(f"sums must have shape {shape}, one (m, d) for each server, not {tuple(sums.shape)}")
        return self.ring.decode(reconstruct(sums)) / math.sqrt(self.sketch.copies)

    def sample(self, A: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()) -> Tensor:
        """Releases without messages: (n, d) -> (*sample_shape, m, d), float64; a row's noise is drawn as one number.

        A sum of c rounded normals is, up to 1e-3/(c sigma^4) in total variation (sigma in grid units), the rounded
        normal of the same variance c sigma^2 + (c - 1)/12. For simulations: not what clients could run. Raises
        ValueError where sigma is below 64 units, which makes that more than 6e-11 (take more fraction bits, or
        ``release``); TypeError.
        """
        A, draws = self.check_all(A), Simulated(generator, self.sketch.device)
        counts, units = self.sketch.counts(), self.sigma * self.ring.scale
        if bool(((counts > 1) & (units < COARSEST)).any()):
            raise ValueError(
                f"fraction_bits = {self.ring.fraction_bits} make the grid too coarse for sums drawn at once"
            )
        shape = (self.sketch.height, self.columns)
        sums = torch.zeros(shape, dtype=torch.int64, device=self.sketch.device)
        for part in self.sketch.parts(self.columns):
            sums += self.sketch.part(part).sums(self.ring.encode(A[part]).long())
        noise = draws.normal((*checks.sample_shape(sample_shape), *shape))
        noise *= (counts * units**2 + (counts - 1).clamp_min(0) / 12).sqrt()[:, None]
        return (sums + noise.round_().long()).double() / (self.ring.scale * math.sqrt(self.sketch.copies))

    def _words(self, values: Tensor, first: int, key: Tensor) -> Tensor:
        part, ring = slice(first, first + len(values)), self.ring
        rows, signs = self.sketch.rows[:, part], self.sketch.signs[:, part]
        words = secure_sketch.words(
            values, rows, signs, self.sigma * ring.scale, key, first, ring.scale, ring.dtype
        )
        return words.transpose(0, 1)  # client by client, as they are drawn

    @cached_property
    def _mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta - self.coalition.slack(self.delta))

    def _sigma(self, ring: Ring) -> Tensor:
        distance = grid_sensitivity(ring, self.bound, self.columns, self.sensitivity)
        sigma = grid_sigma(self.honest, self.sketch.copies, self.columns, ring, distance, self._mu)
        return torch.where(self.sketch.counts() > 0, sigma, 0.0)

    def _fits(self, ring: Ring) -> bool:
        entry = self.bound if self.entry is None else self.entry
        sigma = self._sigma(ring)
        distance = reach(self.sketch.counts(), entry, sigma, 1 / ring.scale)
        dense = float(sigma.max()) * ring.scale <= FINEST
        return dense and largest_fraction_bits(self.bits, distance) >= ring.fraction_bits


def _key(draws: Noise) -> Tensor:
    """256 bits for ChaCha20, which then makes the same noise on every device: (8,) int32."""
    return draws.words((4,)).view(torch.int32)
