"""Randomized response behind a shuffler: every user sends one bit. Its exact curve, for the worst
of others' bits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.draws import Draws
from torchdp.privacy import gaussian_sigma
from torchdp.privacy.accounting import Profile
from torchdp.protocol import Limits
from torchdp.root import Number, root
from torchdp.shuffle.count_laws import SURELY
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Target, least_noise

# Others whose messages are given to the adversary: one in _GIVEN, none up to that many.
_GIVEN = 512
# Counts that lie further out than probability e^-_OUTSIDE are lost privacy; twice that is followed
# (see _laws).
_OUTSIDE = 60.0
_LOST = 4 * math.exp(-_OUTSIDE)
_AT_ONCE = 1 << 22
_WIDEST = 1 << 18  # counts to follow for each k
_ROUNDING = 1e-10
_NEAR = 5e-5  # of the logarithm of the noise that is found


def response_profile(users: int, flip: float) -> Profile:
    """The largest curve of all pairs of neighbours of randomized response behind a shuffler, both
    directions.

    The view is the number of ones Y among ``users`` = n messages. With k ones among the n - 1
    others, N ~ Binomial(n - 1 - k, p) + Binomial(k, 1 - p) of distribution f counts theirs, p =
    flip < 1/2, and the user adds a bit that is one with probability 1 - p (a one: distribution P_k)
    or p (a zero: Q_k). f is log-concave (a sum of independent bits), so P_k/Q_k rises with the
    count, and at r = e^epsilon >= 1, with a = 1 - p - r p,
        H(P_k||Q_k) = max over y of a f(y - 1) - (r - 1) Pr[N >= y],
        H(Q_k||P_k) = max over y of a f(y) - (r - 1) Pr[N <= y - 1],
    or 0 where a <= 0. Exchanging zeros and ones turns k into n - 1 - k and one direction into the
    other, so both directions of k <= (n - 1)/2 are all there is; below 0, H(-epsilon) = 1 -
    e^-epsilon + e^-epsilon H(epsilon).

    The worst k is not always an end point, nor always the middle. Up to 512 users every k is
    computed. Beyond, the adversary is given the messages of c = floor((n - 1)/512) of the others:
    then k stands for n - 1 - c others with any k0 in [k - c, k] ones, so every k0 that is a
    multiple of c + 1 (and the middle) covers all k, at the price of a 512th of the noise variance,
    and the time does not grow with n. Raises ValueError.

    Guarantees: nowhere below the curve of any k in 0..n - 1, in either direction; up to 512 users,
    their maximum.
    """
    users, p = checks.integer("users", users, 1), checks.fraction("flip", flip)
    if p >= 0.5:
        raise ValueError(f"flip must be below 1/2, not {flip!r}")
    kept, ones = _covering(users)
    parts = np.array_split(ones, math.ceil(len(ones) * _width(kept, p) / _AT_ONCE))
    held = [_laws(kept, p, ones)] if len(parts) == 1 else []  # what is small enough is made once

    def profile(epsilons: np.ndarray) -> np.ndarray:
        epsilons = np.clip(np.asarray(epsilons, dtype=np.float64), -700.0, 700.0)
        sizes, inverse = np.unique(np.abs(epsilons), return_inverse=True)
        a = 1 - p - np.exp(sizes) * p
        b = np.exp(sizes) * (1 - p) - p
        worst, inside = np.zeros(len(sizes)), a > 0
        for inverse_steps, law in held or (_laws(kept, p, part) for part in parts):
            for rising, f in zip(inverse_steps, law, strict=True):
                curve = _both_directions(rising, f, a[inside], b[inside], np.expm1(sizes[inside]))
                worst[inside] = np.maximum(worst[inside], curve)
        curve = np.where(inside, worst * (1 + _ROUNDING) + _LOST, 0.0)[inverse].reshape(
            epsilons.shape
        )
        return np.minimum(
            np.where(epsilons < 0, -np.expm1(epsilons) + np.exp(epsilons) * curve, curve), 1.0
        )

    return profile


def _both_directions(
    rising: np.ndarray, f: np.ndarray, a: np.ndarray, b: np.ndarray, excess: np.ndarray
) -> np.ndarray:
    """H in the worse direction from f on a range of counts and ``rising`` = f(y - 1)/f(y), 0 at its
    start.

    The best y is where the ratio passes b/a, or a/b. At any other y the expression is smaller, so
    that rounding of the ratios matters in second order only.
    """
    zero = np.zeros(1)
    upper = np.append(np.cumsum(f[::-1])[::-1], zero)  # Pr[N >= y], y one past the range included
    lower = np.append(zero, np.cumsum(f))  # Pr[N <= y - 1]
    first = np.searchsorted(rising, b / a, side="right")
    last = np.searchsorted(rising, a / b, side="left") - 1
    up = a * f[first - 1] - excess * upper[first]
    down = a * f[last] - excess * lower[last]
    return np.maximum(np.maximum(up, down), 0.0)


@entrywise(
    users=partial(checks.within, low=1, high=2**31),
    epsilon=partial(checks.within, low=1e-9, high=700.0),
    delta=partial(checks.within, low=1e-25, high=1 - 2.0**-53),
)
def least_flip(users: Numbers, epsilon: Numbers, delta: Numbers) -> Numbers:
    """The least flip at which shuffled randomized response is (epsilon, delta)-DP: of its RMSE,
    within 1e-4 of itself.

    Numbers, or batches that broadcast: users of one number are solved together, by numpy on the
    host. Some numbers of ones among the others bound the largest curve from below; where all of
    them hold at the flip that these ask for, it is the least one. epsilon: in [1e-9, 700]; delta:
    at least 1e-25. Raises TypeError, ValueError.

    Guarantees: ``response_profile(users, flip)`` at epsilon is at most delta: all numbers of ones
    are tried last.
    Source: as there; the curve falls with the flip.
    """
    found = torch.full_like(delta, math.nan)
    for n in users[users == users.floor()].unique().tolist():
        at = users == n
        found[at] = _flips_of(int(n), epsilon[at], delta[at])
    return found


def _flips_of(users: int, epsilon: Tensor, delta: Tensor) -> Tensor:
    kept, ones = _covering(users)
    # the worst one is among the first
    few = ones[np.unique(np.geomspace(1, len(ones), 16).astype(int)) - 1]

    def excess(ones: np.ndarray, some: Tensor) -> Callable[[Tensor], Tensor]:
        def of(log_rmse: Tensor) -> Tensor:
            flips = flip_of(users, log_rmse.exp()).cpu().numpy()
            curve = _worst(kept, flips, epsilon[some].cpu().numpy(), ones)
            return (
                torch.from_numpy(np.log(curve + 1e-300)).to(delta) - delta[some].log() + _ROUNDING
            )

        return of

    every, guess = (
        torch.arange(len(delta), device=delta.device),
        gaussian_sigma(epsilon, delta).log(),
    )
    log_rmse = root(excess(few, every), guess - 0.05, guess + 0.1, _NEAR)
    left = (excess(ones, every)(log_rmse) > 0).nonzero()[:, 0]
    if len(left):
        low = log_rmse[left]
        log_rmse[left] = root(excess(ones, left), low, low + _NEAR, _NEAR)
    return flip_of(users, log_rmse.exp())


def flip_of(users: float, rmse: Number) -> Number:
    """(1 - sqrt(n/(n + 4 rmse^2)))/2, without cancellation."""
    whole = users + 4 * rmse * rmse
    return 2 * rmse * rmse / (whole * (1 + (users / whole) ** 0.5))


def _worst(others: int, p: np.ndarray, epsilon: np.ndarray, ones: np.ndarray) -> np.ndarray:
    """The largest curve over the rows ``ones`` in both directions, of each flip p at its own
    epsilon, (problems,).
    """
    a = 1 - p - np.exp(epsilon) * p
    b = np.exp(epsilon) * (1 - p) - p
    found = np.zeros(len(p))
    for part in _alike(others, p, np.flatnonzero(a > 0), len(ones)):
        rows = np.repeat(part, len(ones))
        rising, f = _laws(others, p[rows], np.tile(ones, len(part)))
        up, down, each = (b / a)[rows, None], (a / b)[rows, None], np.arange(len(rows))
        first, last = (rising <= up).sum(1), (rising < down).sum(1) - 1
        above = np.where(np.arange(f.shape[1]) >= first[:, None], f, 0.0).sum(1)
        below = np.where(np.arange(f.shape[1]) < last[:, None], f, 0.0).sum(1)
        tails = np.expm1(epsilon[rows])
        curve = np.maximum(
            a[rows] * f[each, first - 1] - tails * above, a[rows] * f[each, last] - tails * below
        )
        found[part] = (
            np.maximum(curve.reshape(len(part), len(ones)).max(1), 0.0) * (1 + _ROUNDING) + _LOST
        )
    return found


def _alike(others: int, p: np.ndarray, problems: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Problems to compute at once: of about one width, since each is followed as far as the widest
    among them.
    """
    scale = np.floor(np.log2(p[problems]))
    for size in np.unique(scale):
        alike = problems[scale == size]
        at_once = max(1, _AT_ONCE // (rows * _width(others, p[alike])))
        for first in range(0, len(alike), at_once):
            yield alike[first : first + at_once]


def _covering(users: int) -> tuple[int, np.ndarray]:
    """Others whose messages are not given, and the numbers of ones among them that cover all
    numbers.
    """
    others = users - 1
    given = others // _GIVEN
    kept = others - given
    return kept, np.unique(np.minimum(np.arange(0, others // 2 + given + 1, given + 1), kept // 2))


def _laws(others: int, p: float | np.ndarray, ones: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f(y - 1)/f(y) and f(y), N ~ Binomial(others - k, p) + Binomial(k, 1 - p), for each k <=
    others/2, and its p.

    The generating function F = (q + p z)^(others - k) (p + q z)^k, q = 1 - p, satisfies
    (q + p z)(p + q z) F' = ((others - k) p (p + q z) + k q (q + p z)) F, that is
        p q (y + 1) f(y + 1) + D(y) f(y) = p q (others - y + 1) f(y - 1),  D(y) =
        (p^2 + q^2)(y - y0),
    y0 = ((others - k) p^2 + k q^2)/(p^2 + q^2), which is at most the mean. Downwards from the top
    where y >= y0 and upwards from the bottom where y < y0 all terms are positive, so nothing
    cancels. Above the mean f(y + 1) <= f(y), so an error in the ratio shrinks at every step down,
    by 1 + (p^2 + q^2)(y - mean)/(p q (y + 1)) at least, and the same on the other side. The rows
    run over all counts that have probability above e^-(2 _OUTSIDE) by Bernstein's inequality, so
    that within those above e^-_OUTSIDE the start of a row is forgotten, to e^-40
    (summed in a test).
    """
    q, reach, width = 1 - p, _tail_width(others, p), _width(others, p)
    mean = others * p + ones * (q - p)
    bottom = np.clip(np.floor(mean - reach), 0, others + 1 - width).astype(np.int64)
    coefficients = _coefficients(others, p, ones, bottom, width)
    down, up = _downwards(*coefficients), _upwards(*coefficients)
    counts = bottom[:, None] + np.arange(width)
    middle = ((others - ones) * p * p + ones * q * q) / (p * p + q * q)
    rising = np.where(counts >= middle[:, None], down, up)
    rising[:, 0] = 0.0
    logs = np.zeros_like(rising)
    np.cumsum(-np.log(rising[:, 1:]), axis=1, out=logs[:, 1:])
    law = np.exp(logs - logs.max(axis=1, keepdims=True))
    return rising, law / law.sum(axis=1, keepdims=True)


def _tail_width(others: int, p: float | np.ndarray) -> float:
    """How far from the mean a count lies with probability e^-(2 _OUTSIDE) at most, for each of the
    flips.
    """
    spread = others * float(np.max(p * (1 - p), initial=0.0))
    return 2 * _OUTSIDE / 3 + math.sqrt((2 * _OUTSIDE / 3) ** 2 + 4 * _OUTSIDE * spread)


def _width(others: int, p: float | np.ndarray) -> int:
    """Counts to follow. Raises ValueError."""
    width = min(others, math.ceil(2 * _tail_width(others, p))) + 1
    if width > _WIDEST:
        raise ValueError(
            f"flip = {np.max(p):g} among {others + 1} users spreads the count over {width} values, and at most "
            f"{_WIDEST} are followed; take PoissonSum for so much noise"
        )
    return width


def _downwards(y: np.ndarray, slope: np.ndarray, left: np.ndarray) -> np.ndarray:
    """f(y - 1)/f(y) from the top of the range down: (rows, width), to be trusted where y >= y0."""
    back, forth = (y + 1) / left, slope / left
    ratios, above = np.empty(slope.shape), np.zeros(slope.shape[1])  # f(y + 1)/f(y)
    with np.errstate(all="ignore"):
        for i in reversed(range(len(ratios))):
            np.multiply(back[i], above, out=above)
            np.add(above, forth[i], out=ratios[i])
            np.reciprocal(ratios[i], out=above)
    return ratios.T


def _upwards(y: np.ndarray, slope: np.ndarray, left: np.ndarray) -> np.ndarray:
    """f(y - 1)/f(y) from the bottom of the range up: (rows, width), to be trusted where y < y0."""
    back, forth, ratios = left / (y + 1), -slope / (y + 1), np.zeros(slope.shape)
    with np.errstate(all="ignore"):
        for i in range(len(ratios) - 1):
            np.multiply(back[i], ratios[i], out=ratios[i + 1])
            np.add(ratios[i + 1], forth[i], out=ratios[i + 1])
            np.reciprocal(ratios[i + 1], out=ratios[i + 1])
    return ratios.T


def _coefficients(
    others: int, p: float | np.ndarray, ones: np.ndarray, bottom: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, D(y)/(p q) and others - y + 1, (width, rows)."""
    q, y = 1 - p, bottom + np.arange(width)[:, None]
    return (
        y,
        ((p * p + q * q) * y - ((others - ones) * p * p + ones * q * q)) / (p * q),
        others - y + 1,
    )


@dataclass(frozen=True)
class RandomizedResponseSum(MessageLaw):
    """Each user sends its bit, flipped with probability ``flip`` in (0, 1/2): exactly one message.

    The shuffled messages are their number of ones Y ~ Binomial(S, 1 - flip) +
    Binomial(n - S, flip), and the estimate is (Y - n flip)/(1 - 2 flip), with variance n flip
    (1 - flip)/(1 - 2 flip)^2 whatever the bits. Raises ValueError.

    Guarantees: its exact dominating pairs. With k ones among the other n - 1 users, Y has
    distribution P_k = (1 - flip) (N_k + 1) + flip N_k if the user holds a one and Q_k = flip
    (N_k + 1) + (1 - flip) N_k if not, N_k ~ Binomial(n - 1 - k, flip) + Binomial(k, 1 - flip).
    Every pair of neighbours is some (P_k, Q_k) or its swap, so their largest hockey-stick
    divergence is the smallest curve that bounds all of them; it need not be attained at k = 0 or
    n - 1. Flips alone are counted, also of numbers that are rounded to bits. Users who are absent
    leave the protocol of those present. Before any shuffling it is ln((1 - flip)/flip)-private.
    Source: Warner (1965); Cheu, Smith, Ullman, Zeber, Zhilyaev (2019) for the protocol behind a
    shuffler.
    """

    own_number: ClassVar[bool] = True

    flip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, flip=checks.fraction)
        if self.flip >= 0.5:
            raise ValueError(
                f"flip must be below 1/2, not {self.flip}: at 1/2 the messages say nothing"
            )

    @property
    def contents(self) -> tuple[int, ...]:
        return (0, 1)

    @property
    def messages_per_user(self) -> float:
        """1."""
        return 1.0

    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """One message of each user in each instance."""
        # no fewer than flip
        flips = draws.integers(tuple(bits.shape)) < math.ceil(Fraction(self.flip) * 2**63)
        instance = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device).repeat(
            len(bits)
        )
        return ShuffledMessages(len(bits), instance, (bits ^ flips).flatten().to(torch.int8))

    @property
    def variation(self) -> float:
        return 0.0

    def refuse(self, messages: Tensor, n: int) -> None:
        if (messages != n).any():
            raise ValueError(
                f"messages must have one of each of the {n} users in every instance; some instance has more or "
                "fewer. Count only the users who sent, and leave out what was sent twice"
            )

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """Binomial(S, 1 - flip) + Binomial(n - S, flip)."""
        return ones - draws.binomial(ones, self.flip) + draws.binomial(self.users - ones, self.flip)

    def decode(self, total: Tensor, n: int) -> Tensor:
        """(Y - n flip)/(1 - 2 flip)."""
        return (total.double() - n * self.flip) / (1 - 2 * self.flip)

    def limits(self, n: int, most: float = 1.0) -> Limits:
        return Limits(0, n)

    def variance(self, ones: Tensor) -> Tensor:
        """n flip (1 - flip)/(1 - 2 flip)^2."""
        variance = self.users * self.flip * (1 - self.flip) / (1 - 2 * self.flip) ** 2
        return torch.full_like(ones, variance, dtype=torch.float64)

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of those of n flips, whose third has the sign of 1/2 less the bit."""
        one = self.flip * (1 - self.flip)
        gap = 1 - 2 * self.flip
        third = one / gap**2 * (self.users - 2 * ones.double())
        fourth = torch.full_like(third, self.users * one * (1 - 6 * one) / gap**4)
        return third, fourth

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        return (response_profile(self.present(absent), self.flip),)

    def pure_epsilon(self, absent: int = 0) -> float:
        """ln((1 - flip)/flip), rounded up; 1 - 2 flip loses no digit near 1/2."""
        return math.log1p((1 - 2 * self.flip) / self.flip) * SURELY

    @classmethod
    def least(cls, target: Target) -> Self:
        if target.delta == 0:
            law = cls(target.users, 1 / (1 + math.exp(target.epsilon / target.sensitivity.flips)))
            while (
                law.pure_epsilon() * target.sensitivity.flips > target.epsilon
            ):  # by some units in the last place
                law = cls(target.users, math.nextafter(law.flip, 1))
            return law
        target = target.composed(cls)
        if target.sensitivity.flips == 1:
            present = target.users - target.absent
            return cls(target.users, least_flip(present, target.epsilon, target.delta))
        users = target.users
        return least_noise(lambda rmse: cls(users, flip_of(users, rmse)), target.central, target)
