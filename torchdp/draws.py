"""Independent draws, whatever they are made from: uniform words, and distributions from them.

A sampler sees a :class:`Draws` and asks for words, uniforms, normals or counts. What stands behind
is decided by type: :class:`Simulated` is a ``torch.Generator`` (simulations, public features);
``torchdp.noise`` has the cipher that hides users.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchdp import checks

# pairs of normals: what the nearest cache holds
AT_ONCE = 2**14
# on a GPU, where each part costs a launch
AT_ONCE_THERE = 2**22
# rates up to here: torch.poisson is exact on a GPU below 64 only
FEW = 50.0
# trials counted one by one
SMALL_CROWD = 16
# An integer of 63 bits below this takes 63 further bits where its logarithm matters.
COARSE = 2**32
# Of 2^23 integers more than so many are below COARSE once in 2^90 times.
RARE = 8
MOST = 2**63 - 1
Shape = tuple[int, ...]
"""Sizes of a tensor's dimensions; of draws, how many there are."""


class Draws(ABC):
    """Independent draws on one device; whole numbers up to 2^53 are exact."""

    device: torch.device

    @abstractmethod
    def fill(self, words: Tensor) -> None:
        """Fills a contiguous int64 tensor of one dimension with words uniform on all 2^64."""

    @abstractmethod
    def kernel_key(self) -> int | None:
        """64 bits that key the Philox counter of a fused kernel; None for a cipher."""

    @property
    def _at_once(self) -> int:
        """Pairs of normals made together."""
        return AT_ONCE if self.device.type == "cpu" else AT_ONCE_THERE

    @property
    def _arrivals_at_once(self) -> int:
        """Drawn before the host looks who needs more: on a GPU that costs more than a few words."""
        return 1 if self.device.type == "cpu" else 8

    def words(self, shape: Shape) -> Tensor:
        """int64, uniform on all 2^64."""
        out = torch.empty(math.prod(shape), dtype=torch.int64, device=self.device)
        self.fill(out)
        return out.view(shape)

    def integers(self, shape: Shape) -> Tensor:
        """int64, uniform on [0, 2^63)."""
        return self.words(shape).bitwise_and_(MOST)

    def below(self, bound: int, shape: Shape) -> Tensor:
        """int64, uniform on [0, bound), 1 <= bound < 2^63."""
        last = 2**63 // bound * bound  # integers past the last whole multiple are drawn again
        value = self.integers(shape).flatten()
        where = (value >= last).nonzero()[:, 0] if last < 2**63 else value[:0]
        while len(where):
            again = self.integers((len(where),))
            value[where] = again
            where = where[again >= last]
        return value.remainder_(bound).view(shape)

    def permutation(self, size: int) -> Tensor:
        """A random order of 0, ..., size - 1: int64; uniform but for ties of words.

        Of ``size`` words two tie with probability size^2 2^-65.
        """
        return self.words((size,)).argsort()

    def uniform(self, shape: Shape) -> Tensor:
        """float64 in [0, 1), multiples of 2^-53."""
        # 53 bits are all that a float64 holds: with more, a number could be rounded up to 1.
        top = self.words(shape).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
        return top.double().mul_(2.0**-53)

    def exponential(self, shape: Shape) -> Tensor:
        """Exponential of mean 1, float64: -log U, U to 126 bits where it is small; up to 87.3."""
        size = math.prod(shape)
        numbers = torch.empty(size, dtype=torch.float64, device=self.device)
        for part in numbers.split(2 * self._at_once):
            self._logarithms(part)
        return numbers.neg_().view(shape)

    def normal(self, shape: Shape, dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normals, made in float64 and then rounded to ``dtype``; in size up to 13.2.

        (r cos a, r sin a) with r = sqrt(-2 log U), U to 126 bits where it is small, and the angle a
        to 64 bits.
        Source: Box, Muller (1958).
        """
        count = math.prod(shape)
        # Normals come in pairs, of which an odd number leaves one unused.
        half = (count + 1) // 2
        numbers = torch.empty(2 * half, dtype=torch.float64, device=self.device)
        cosines = numbers[:half].split(self._at_once)
        sines = numbers[half:].split(self._at_once)
        for first, second in zip(cosines, sines, strict=True):
            self._logarithms(first)
            radius = first.mul_(-2).sqrt_()
            # Signed words: angles in [-pi, pi], which is one full turn as well.
            turns = self.words((len(second),)).double()
            angle = turns.mul_(2 * math.pi * 2.0**-64)
            torch.mul(radius, angle.sin(), out=second)
            torch.mul(radius, angle.cos_(), out=first)
        return numbers[:count].view(shape).to(dtype)

    def _logarithms(self, out: Tensor) -> None:
        """log U in place of a contiguous float64 tensor (size,), U in (0, 1]."""
        integers = out.view(torch.int64)
        self.fill(integers)
        integers.bitwise_and_(MOST)
        if out.device.type == "cpu":
            where = (integers < COARSE).nonzero()[:, 0]  # once in 2^31
            low = integers[where]
        else:  # the host does not wait: the least ones, of which hardly any are that small
            low, where = integers.topk(min(RARE, len(integers)), largest=False)
        out.copy_(_in_unit(integers)).log_()
        if len(where):
            rest = _in_unit(self.integers((len(where),)))
            # 63 further bits below those that are there
            finer = (low.double() + rest).log() - 63 * math.log(2)
            out[where] = torch.where(low < COARSE, finer, out[where])

    def gamma(self, shape: Tensor) -> Tensor:
        """Gamma(shape, 1), float64, for shape >= 0, a tensor.

        d v, v = (1 + c z)^3, d = shape - 1/3, c = 1/sqrt(9 d), z normal, is kept where log u <
        z^2/2 + d(1-v+log v); Gamma(a) = Gamma(a + 1) e^(-E/a) below 1. Source: Marsaglia, Tsang
        (2000).
        """
        a = shape.double().flatten()
        d = torch.where(a < 1, a + 1, a) - 1 / 3
        result = torch.empty_like(d)
        where = torch.arange(len(d), device=d.device)
        while len(where):
            size = (len(where),)
            own_d = d[where]
            z = self.normal(size)
            root = 1 + z / (9 * own_d).sqrt()
            v = root.clamp_min(0) ** 3
            # v = 0 is refused: its logarithm is -inf
            log_ratio = z * z / 2 + own_d * (1 - v + v.log())
            kept = -self.exponential(size) < log_ratio
            result[where] = torch.where(kept, own_d * v, 0.0)
            where = where[~kept]
        low = (a < 1).nonzero()[:, 0]
        exponents = -self.exponential((len(low),)) / a[low]
        result[low] *= exponents.exp()
        return result.view(shape.shape)

    def binomial(self, counts: Tensor, probability: Tensor | float) -> Tensor:
        """Binomial(counts, probability), int64; the two broadcast.

        The a-th of n uniforms in order is Beta(a, n + 1 - a): it tells how many lie on one side of
        the probability, and leaves about half of them. Source: Relles (1972).
        """
        chance = torch.as_tensor(probability, dtype=torch.float64, device=counts.device)
        counts, chance = torch.broadcast_tensors(counts.to(torch.int64), chance)
        n = counts.flatten().clone()
        p = chance.flatten().clone()
        result = torch.zeros_like(n)
        where = (n > SMALL_CROWD).nonzero()[:, 0]
        while len(where):
            own_n = n[where]
            own_p = p[where]
            a = 1 + own_n // 2
            x, y = self.gamma(torch.stack([a, own_n + 1 - a]))
            x = x / (x + y)  # the a-th uniform
            below = x <= own_p
            result[where] += torch.where(below, a, 0)
            n[where] = torch.where(below, own_n - a, a - 1)
            rest = torch.where(below, (own_p - x) / (1 - x), own_p / x)
            p[where] = rest.nan_to_num_(0.0).clamp_(0, 1)
            where = where[n[where] > SMALL_CROWD]
        trials = torch.arange(SMALL_CROWD, device=n.device)
        parts = [x.split(AT_ONCE) for x in (result, n, p)]
        for hits, own_n, own_p in zip(*parts, strict=True):
            success = self.uniform((len(hits), SMALL_CROWD)) < own_p[:, None]
            hits += (success & (trials < own_n[:, None])).sum(-1)
        return result.view(counts.shape)

    def poisson(self, rate: Tensor) -> Tensor:
        """Poisson(rate), int64, for rates up to 1e14.

        The m-th arrival of a unit-rate process comes at time T ~ Gamma(m). If T <= rate, m points
        and those of the rest, Poisson(rate - T), lie before ``rate``; else the other m - 1 arrivals
        are uniform on (0, T) and Binomial(m - 1, rate/T) of them do. With m = 7/8 rate the second
        case is rare, and each round leaves an eighth.
        Source: Ahrens, Dieter (1974).
        """
        left = rate.double().flatten().clone()
        count = torch.zeros_like(left, dtype=torch.int64)
        where = (left > FEW).nonzero()[:, 0]
        while len(where):
            own = left[where]
            m = (own * 0.875).floor()
            time = self.gamma(m)
            over = time > own
            share = (own / time).clamp(max=1)
            before = self.binomial((m - 1).to(torch.int64), share)
            count[where] += torch.where(over, before, m.to(torch.int64))
            left[where] = torch.where(over, 0.0, own - time)
            where = where[left[where] > FEW]
        return (count + self._few(left)).view(rate.shape)

    def _few(self, rate: Tensor) -> Tensor:
        """Poisson(rate) for small rates (size,): arrivals counted one by one."""
        count = torch.zeros_like(rate, dtype=torch.int64)
        where = torch.arange(len(rate), device=rate.device)
        time = torch.zeros_like(rate)
        while len(where):
            gaps = self.exponential((len(where), self._arrivals_at_once))
            times = time[:, None] + gaps.cumsum(1)
            before = times <= rate[where, None]
            count[where] += before.sum(1)
            more = before[:, -1]
            where = where[more]
            time = times[more, -1]
        return count

    def negative_binomial(self, shape: Tensor, ratio: float) -> Tensor:
        """NB(shape, ratio), int64: Pr[k] = C(k + shape - 1, k) (1 - ratio)^shape ratio^k.

        A Poisson number whose rate is ratio/(1 - ratio) Gamma(shape).
        """
        return self.poisson(self.gamma(shape) * (ratio / (1 - ratio)))


class Simulated(Draws):
    """A ``torch.Generator`` as :class:`Draws`: for simulation and what is public, never for noise.

    Counts are torch's own. Raises TypeError for anything but a generator, ValueError where it is on
    another device than ``device``.
    """

    def __init__(self, generator: torch.Generator, device: torch.device | None = None) -> None:
        self.generator = checks.random_source(generator, device)
        self.device = generator.device if device is None else device

    def fill(self, words: Tensor) -> None:
        words.random_(-(2**63), None, generator=self.generator)

    def kernel_key(self) -> int:
        return int(self.words(()))

    def integers(self, shape: Shape) -> Tensor:
        out = torch.empty(shape, dtype=torch.int64, device=self.device)
        return out.random_(generator=self.generator)

    def uniform(self, shape: Shape) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, device=self.device, generator=self.generator)

    def gamma(self, shape: Tensor) -> Tensor:
        return torch._standard_gamma(shape.double().contiguous(), generator=self.generator)

    def binomial(self, counts: Tensor, probability: Tensor | float) -> Tensor:
        chance = torch.as_tensor(probability, dtype=torch.float64, device=counts.device)
        n, p = torch.broadcast_tensors(counts.double(), chance)
        hits = torch.binomial(n.contiguous(), p.contiguous(), generator=self.generator)
        return hits.to(torch.int64)

    def _few(self, rate: Tensor) -> Tensor:
        return torch.poisson(rate, generator=self.generator).to(torch.int64)


def _in_unit(integers: Tensor) -> Tensor:
    """Integers uniform on [0, 2^63) as float64 in (0, 1]: middles of steps of 2^-63."""
    return integers.double().add_(0.5).mul_(2.0**-63)
