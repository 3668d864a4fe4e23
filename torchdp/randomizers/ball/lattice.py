"""Vector messages on a lattice: whole numbers, private as they are sent, of a real mechanism.

Gaussian noise, the (epsilon, delta) reference, is the simplest of them.

Notation: V = b g + a x' is the real message in units of the noise, g normals, x' the point over the
radius; h is the lattice's step in these units, N the whole numbers sent, W the dither; G = (g, g_0)
are dim + 1 normals and u = (x', sqrt(1 - |x'|^2)) is the point lifted to the sphere.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws
from torchdp.kernels.normals.exact import arithmetic, joined, two_normals
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Tally
from torchdp.protocol.records import weighted_sum
from torchdp.randomizers.ball.ball import BallMoments, BallRandomizer, SubGaussian, rows_at_once
from torchdp.randomizers.base import real_local

# Steps in deviations of the noise, up to MANY numbers and beyond.
FINE = 2.0**-8
COARSE = 2.0**-6
MANY = 1000

# Points of the unit ball are whole numbers over it: their squares add up without error.
WHOLE = 2.0**26

DITHER = 2.0**-16
UNIT = 2.0**-53

# Of the error bound, above what its terms of first order say.
MARGIN = 4

# |dG| <= (4 pi + 2 sqrt(2) K + K + 2) UNIT |r|: K = 4 units in the last place for log, sin and cos.
NORMALS = 36

# Radius of a pair of normals whose first word has 15 bits.
LONGEST = math.sqrt(96 * math.log(2))

# Further words for each uniform number of a row in doubt, and what is then left undrawn of it.
MORE = 3
LEFT = 2.0**-255

# Steps whose multiples of 16 bits are normal numbers of float32.
SMALLEST = 2.0**-126
LARGEST = 2.0**112


class Words(NamedTuple):
    """The uniform words of n messages, int64."""

    radii: Tensor  # (n, pairs)
    angles: Tensor  # (n, pairs)
    dither: Tensor  # (n, ceil(dim/4))
    own: Tensor  # (n, own)


class Lifted(NamedTuple):
    """Floats of n messages: the normals G = (g, g_0), and the unit vector u of the point."""

    g: Tensor  # (n, dim)
    lift: Tensor  # (n,): g_0
    whole: Tensor  # (n, dim): 2^26 x', without error
    height: Tensor  # (n,)
    length: Tensor  # (n,): |G| at least
    error: Tensor  # (n,): bound on |dG|

    @property
    def along(self) -> tuple[Tensor, Tensor]:
        """<G, u>, (n,), and a bound on its error."""
        total, depth = added(self.g * self.whole, self.lift * self.height * WHOLE)
        total /= WHOLE
        return total, self.error + self.length * ((depth + 4) * UNIT)

    @property
    def square(self) -> tuple[Tensor, Tensor]:
        """|G|^2, (n,), and a bound on its error."""
        total, depth = added(self.g.square(), self.lift.square())
        return total, self.length * (2 * self.error + self.length * (depth * UNIT))


class Mixture(NamedTuple):
    """V = stretch g + along x', floats (n,).

    error: bound on the error of V that is not the normals' own, (n,) or a number.
    """

    stretch: Tensor
    along: Tensor
    error: Tensor | float


@dataclass(frozen=True)
class LatticeRandomizer(BallRandomizer):
    """Y = step N, N whole numbers of 16 or 32 bits: V/h + W, rounded, and cut off at the ends.

    V = b g + a x' has the distribution of a private vector of real numbers; x' is moved to a
    multiple of 2^-26, by at most 2^-25 in each coordinate; W_i uniform on {(j + 1/2) 2^-16}: N_i h
    is V_i without bias, and its variance h^2/6 larger; h is 2^-8 of the noise's deviation, 2^-6
    beyond dim = 1000, or less.

    float64 computes V_i/h + W_i and a bound on its error. Where the middle between two whole
    numbers lies within the bound, so that floats can not decide, 192 further bits are drawn for
    each uniform number and arithmetic of 448 bits decides: N is a function of the words alone, on
    every machine whose logarithm, sine and cosine are good to 4 units in the last place. A message
    in doubt (one in millions at dim = 256) takes thousands of times as long as the others.

    Guarantees: N is within total variation ``variation`` of the real mechanism's, rounded: the real
    (epsilon, delta)
        holds for what is sent, with (1 + e^epsilon) variation added to delta.
    Source: Mironov (2012) for what floats would tell; the construction is derived here.
    """

    _own: ClassVar[int]  # words that a message takes besides those of the normals

    @property
    def bits_per_user(self) -> int:
        """dim numbers."""
        return self._bits * self.dim

    @property
    def grid(self) -> float:
        """h, in units of V."""
        return FINE if self.dim <= MANY else COARSE

    @cached_property
    def step(self) -> float:
        """Messages are its whole multiples: h in the units of x."""
        return self.grid * self._unit

    @property
    def _bits(self) -> int:
        """Of each N_i."""
        return 16

    @property
    def _limit(self) -> int:
        return 1 << (self._bits - 1)

    @property
    def entry_limit(self) -> float:
        return self._limit * self.step

    @property
    def variation(self) -> float:
        """Bound on the total variation distance of a message from the real mechanism's, rounded.

        Two words of a pair of normals and two of the rest leave 2^-255 of a uniform number U
        undrawn, an error of at most e/U, e = 2 (2 sqrt(dim + 1) + 2) 2^-255 in each V_i, which
        decides the floor with chance 2 e/(U h). Over U, min(1, a/U) is a (1 + log 1/a) in the mean,
        for a = 2 dim e/h and dim + 3 words. A radius r has error e/(U r), less in the mean, a
        sqrt(2 log 1/a), and so do short normals across x', whose inverse has a mean.
        """
        largest = 2 * math.sqrt(self.dim + 1) + 2
        a = 4 * self.dim * largest * LEFT / self.grid
        return (self.dim + 3) * a * (1 + math.log(1 / a))

    def sent(self, real: Guarantee) -> Guarantee:
        """What the whole numbers promise, ``real`` being what real numbers do."""
        # At most e^700, a float. The last factor covers the rounding of this line.
        added = (1 + math.exp(min(real.epsilon, 700.0))) * self.variation * (1 + 1e-6)
        return real.rounded(self.variation, real.delta + added)

    @property
    @abstractmethod
    def _unit(self) -> float:
        """The noise's deviation before it is rounded: Y is V in these units."""

    @abstractmethod
    def _mixture(self, own: Tensor, lifted: Lifted) -> Mixture:
        """own: the message's own words, (n, own)."""

    @abstractmethod
    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        """(b, a) in the context's arithmetic. own: the same words, whole numbers of 256 bits."""

    @property
    def _pairs(self) -> int:
        return self.dim // 2 + 1

    def encode(self, messages: Tensor) -> bytes:
        whole = self._integers(self._checked(messages)).flatten()
        return wire.pack(whole + self._limit, self._bits)

    def decode(self, data: bytes) -> Tensor:
        whole = wire.unpack(data, self._bits) - self._limit
        if len(whole) % self.dim:
            size = self.bits_per_user // 8
            raise ValueError(
                f"data must hold {size} bytes for each message, not {len(data)} bytes in all"
            )
        messages = whole.view(-1, self.dim).double() * self.step
        if messages.numel() and float(messages.abs().amax()) > self.entry_limit * (1 + 1e-9):
            raise ValueError(
                f"data must hold numbers below {self.entry_limit:g} in size, what users send"
            )
        return messages

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """In x's dtype, but float64 where float32 does not hold the step or its multiples."""
        short = self._bits == 16 and SMALLEST <= self.step <= LARGEST
        return super().randomize_unchecked(x if short else x.double(), draws)

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        # -0 would show what rounded to it
        return self._whole(users, draws).mul_(self.step).add_(0.0)

    def _whole(self, users: Tensor, draws: Draws) -> Tensor:
        """N for points (n, dim), float64."""
        words = self.words(len(users), draws)
        whole, squares = on_lattice(users, self.radius)
        t, bound = self.shifted(whole, squares, words)
        N = t.round()
        away = t.sub_(N).abs_().amax(-1)  # 1/2 between two whole numbers
        rows = (~(away < 0.5 - bound)).nonzero()[:, 0]  # NaN is in doubt
        more = self.further(len(rows), draws).cpu()
        for row, further in zip(rows.tolist(), more, strict=True):
            own = Words(*(word[row].cpu() for word in words))
            exact = self.exactly(whole[row].tolist(), own, further)
            decided = [int(number.context.nint(number)) for number in exact]
            N[row] = torch.tensor(decided, dtype=torch.float64, device=N.device)
        return N.clamp_(-self._limit, self._limit - 1)

    def words(self, n: int, draws: Draws) -> Words:
        """All that n messages are a function of, beside their points, but for rows in doubt."""
        radii = draws.words((n, self._pairs))
        angles = draws.words((n, self._pairs))
        dither = draws.words((n, -(-self.dim // 4)))
        return Words(radii, angles, dither, draws.words((n, self._own)))

    def further(self, n: int, draws: Draws) -> Tensor:
        """192 more bits for each word that is a uniform number, (n, words, 3), int64."""
        return draws.words((n, 2 * self._pairs + self._own, MORE))

    def shifted(self, whole: Tensor, squares: Tensor, words: Words) -> tuple[Tensor, Tensor]:
        """V/h + W by float64, (n, dim), and a bound on its error, (n,), or what is no number.

        Args:
            whole: points on the lattice, times 2^26, (n, dim).
            squares: of their norms, (n,).
            words: of the messages.
        """
        # Normals by Box and Muller. Words are signed: |U| is uniform, and so is the half turn.
        logarithms = words.radii.double().abs_().mul_(2.0**-63).log_()
        radii = logarithms.abs_().mul_(2).sqrt_()  # no -0: its error would have no bound
        angles = words.angles.double().mul_(2 * math.pi * 2.0**-64)
        pairs = self._pairs
        normals = radii.new_empty(len(whole), 2 * pairs)
        torch.mul(radii, angles.cos(), out=normals[:, :pairs])
        torch.mul(radii, angles.sin_(), out=normals[:, pairs:])

        # The error of log U: what is not drawn of U, relative to it, and its rounding.
        longest = radii.amax(-1)
        length = torch.linalg.vector_norm(radii, dim=-1)
        rest = (longest.square() / 2).exp() * 2.0**-63 + 2 * UNIT
        rest.masked_fill_(longest > LONGEST, math.inf)
        of_radii = rest * (math.sqrt(pairs) / radii.amin(-1))
        error = length * (NORMALS * UNIT) + of_radii

        height = (WHOLE**2 - squares).sqrt() / WHOLE
        lifted = Lifted(normals[:, : self.dim], normals[:, self.dim], whole, height, length, error)
        stretch, along, other = self._mixture(words.own, lifted)
        g = lifted.g * stretch[:, None]
        t = torch.add(g, sixteen_bits(words.dither, self.dim), alpha=DITHER * self.grid)
        t.addcmul_(along[:, None] / WHOLE, whole)
        bound = error * stretch + other + (length * stretch + 40) * (8 * UNIT)
        return t.div_(self.grid).add_(DITHER / 2), bound * (MARGIN / self.grid)

    def exactly(self, point: list[float], words: Words, more: Tensor) -> list[Any]:
        """V/h + W of one message by arithmetic of 448 bits: a list of numbers.

        Args:
            point: on the lattice, times 2^26, (dim,).
            words: of one row.
            more: 192 further bits for each word, (words, 3).
        """
        context = arithmetic()
        pairs = self._pairs
        first = torch.cat([words.radii, words.angles, words.own])[:, None]
        long = [joined(row) for row in torch.cat([first, more], 1).tolist()]
        cosines = []
        sines = []
        for radius, angle in zip(long[:pairs], long[pairs : 2 * pairs], strict=True):
            # As in float64 the word is signed, and its size is what counts.
            signed = radius - (radius >> 255 << 256)
            uniform = context.ldexp(abs(2 * signed + 1), -256)
            turn = context.ldexp(2 * angle + 1, -256)
            cosine, sine = two_normals(context, uniform, turn)
            cosines.append(cosine)
            sines.append(sine)
        G = (cosines + sines)[: self.dim + 1]
        square = sum(int(x) ** 2 for x in point)
        height = context.sqrt((1 << 52) - square)
        u = [context.mpf(x) / WHOLE for x in (*point, height)]
        b, a = self._exactly(context, long[2 * pairs :], G, u)
        dither = (sixteen_bits(words.dither[None], self.dim)[0] + 0.5) * DITHER
        exact = zip(G, u, dither.tolist(), strict=False)  # without the lifted coordinate
        return [(b * g + a * x) / self.grid + w for g, x, w in exact]

    def tally(self, messages: Tensor) -> Tally:
        """messages: (n, dim), whole multiples of ``step``, added up without error.

        Raises TypeError, ValueError.
        """
        total = torch.zeros(self.dim, dtype=torch.int64, device=self._checked(messages).device)
        for some in messages.split(rows_at_once(messages, self.dim)):
            # Whole numbers: no rounding shows in the sum which messages came together.
            total += self._integers(some).sum(0)
        return Tally(len(messages), {"sum": total.double() * self.step})

    def _total(self, points: Tensor, types: Tensor, draws: Draws) -> Tensor:
        return self._whole(points.index_select(0, types), draws).sum(0) * self.step

    def _integers(self, messages: Tensor) -> Tensor:
        """N, int64, of messages (n, dim). Raises ValueError for what no user sends."""
        if not messages.numel():
            return messages.to(torch.int64)
        near = messages.double() / self.step
        whole = near.round()
        if not float((near - whole).abs_().amax()) < 0.01:  # NaN is none
            raise ValueError(
                f"messages must be whole multiples of step = {self.step!r}, as users send them"
            )
        least, most = map(float, whole.aminmax())
        fits = -self._limit <= least and most < self._limit
        if not fits or max(-least, most) * self.step > self.entry_limit * (1 + 1e-9):
            raise ValueError(
                f"messages must be below {self.entry_limit:g} in size, what users send"
            )
        return whole.to(torch.int64)


def on_lattice(users: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Points (n, dim) float64 over the radius, times 2^26, as whole numbers, and squared norms.

    Squares add up without error, below 2^53; none is above 2^52.
    """
    whole = (users * (WHOLE / radius)).round_()
    squares = whole.square().sum(-1)
    out = (squares > WHOLE**2).nonzero()[:, 0]
    if len(out):
        # Toward 0, from a point inside: no coordinate leaves it again.
        shrink = WHOLE / squares[out].sqrt() * (1 - 2.0**-50)
        inside = whole[out].mul_(shrink[:, None]).trunc_()
        whole[out] = inside
        squares[out] = inside.square().sum(-1)
    return whole, squares


def sixteen_bits(words: Tensor, dim: int) -> Tensor:
    """(n, words) int64 -> (n, dim) whole numbers from -2^15 to 2^15 - 1, float64."""
    return words.view(torch.int16)[:, :dim].double()


def added(products: Tensor, first: Tensor) -> tuple[Tensor, int]:
    """first + the sum of each row, (n,), in place, and how many roundings a term can see.

    In parts of sqrt(dim) numbers.
    """
    part = max(64, math.isqrt(products.shape[1]))
    parts = products.split(part, -1)
    for some in parts:
        first += some.sum(-1)
    return first, part + len(parts) + 2


@dataclass(frozen=True)
class GaussianVector(LatticeRandomizer):
    """For x with ||x|| <= radius the message x + N(0, sigma^2 I) of least sigma.

    Two points of the ball are at most 2 radius apart: sigma is that of the analytic Gaussian
    mechanism at this sensitivity. ``sample_tally`` costs O(dim) for each repetition, whatever the
    number of users. Raises ValueError.

    Args:
        dim: of x, a positive integer.
        epsilon: in [1e-3, 30].
        radius: of the ball, in [1e-140, 1e140].
        delta: in (0, 1), above what arithmetic costs.

    Guarantees: (epsilon, delta)-LDP of the numbers that are sent, for any two points of the ball;
    no smaller sigma is
        (to 1e-8).
    Source: Balle, Wang (2018), Theorem 8.
    """

    delta: float = field(kw_only=True)
    _own = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, delta=checks.fraction)
        checks.within("epsilon", self.epsilon, 1e-3, 30)
        checks.validated(self, "guarantee")  # a delta that arithmetic would use up

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return gaussian_sigma(self.epsilon, self.delta * ROUNDED, 2 * self.radius)

    @property
    def guarantee(self) -> Guarantee:
        source = "Balle, Wang (2018), Theorem 8, at sensitivity 2 radius, rounded"
        real = real_local(self.epsilon, source, self.delta * ROUNDED)
        real = replace(real, mu=2 * self.radius / self.sigma)
        return real.rounded(self.variation, self.delta)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance sigma^2 (1 + h^2/6); those of a normal, but for h^2."""
        return BallMoments(self.sigma**2 + self.step**2 / 6, 0.0, 3.0)

    @property
    def subgaussian(self) -> SubGaussian:
        """psi2 = sigma sqrt(8/3), proxy = sigma^2."""
        return SubGaussian(self.sigma * math.sqrt(8 / 3), self.sigma**2)

    @property
    def _unit(self) -> float:
        return self.sigma

    def _mixture(self, own: Tensor, lifted: Lifted) -> Mixture:
        """V = g + (radius/sigma) x'."""
        shift = self.radius / self.sigma
        one = torch.ones_like(lifted.height)
        return Mixture(one, shift * one, 8 * UNIT * shift)

    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        return context.mpf(1), context.mpf(self.radius / self.sigma)

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users = counts.double()
        deviation = math.sqrt(self.moments.variance) / self.radius
        normal = draws.normal((*shape, *counts.shape[:-1], self.dim))
        scale = users.sum(-1, keepdim=True).sqrt() * deviation
        return weighted_sum(users, points) + normal * scale
