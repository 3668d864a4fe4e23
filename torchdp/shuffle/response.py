"""Randomized response behind a shuffler: every user sends one bit; its exact privacy curve.

Notation: n users, each of whose bits is flipped with probability p; k of the other n - 1 hold a
one. N, of mass f, counts the ones that the others send, and Y those of all. r = e^epsilon.
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
from torchdp.shuffle.count_laws import SURELY, Array
from torchdp.shuffle.laws import MessageLaw, ShuffledMessages
from torchdp.shuffle.search import Target, least_noise

# One in _GIVEN of the others' messages is given to the adversary, none up to that many users.
_GIVEN = 512

# Counts that lie further out than probability e^-_OUTSIDE are lost privacy; distributions are
# followed to twice that (see _distributions).
_OUTSIDE = 60.0
_LOST = 4 * math.exp(-_OUTSIDE)

# Numbers that are held in memory for all k together, and the most for one k.
_AT_ONCE = 1 << 22
_WIDEST = 1 << 18

# Relative rounding of a curve.
_ROUNDING = 1e-10

# Accuracy of the logarithm of the noise that a search returns.
_NEAR = 5e-5

# Numbers of ones among the others on which a flip is searched, before all of them are tried.
_SAMPLE = 16


def response_profile(users: int, flip: float) -> Profile:
    """The largest curve of all pairs of neighbours of shuffled randomized response.

    Args:
        users: n >= 1, whose number of ones Y is the view.
        flip: p in (0, 1/2).

    With k ones among the n - 1 others, N ~ Binomial(n - 1 - k, p) + Binomial(k, 1 - p) of
    distribution f counts theirs, and the user adds a bit that is one with probability 1 - p (a one:
    distribution P_k) or p (a zero: Q_k). f is log-concave (a sum of independent bits), so P_k/Q_k
    rises with the count, and at r = e^epsilon >= 1, with a = 1 - p - r p,
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
    users = checks.integer("users", users, 1)
    p = checks.fraction("flip", flip)
    if p >= 0.5:
        raise ValueError(f"flip must be below 1/2, not {flip!r}")
    others, ones = _covering(users)
    parts = np.array_split(ones, math.ceil(len(ones) * _width(others, p) / _AT_ONCE))

    def distributions() -> Iterator[tuple[Array, Array]]:
        for part in parts:
            yield from zip(*_distributions(others, p, part), strict=True)

    # What fits into memory at once is computed once.
    kept = list(distributions()) if len(parts) == 1 else []

    def profile(epsilons: Array) -> Array:
        epsilons = np.clip(np.asarray(epsilons, dtype=np.float64), -700.0, 700.0)
        sizes, inverse = np.unique(np.abs(epsilons), return_inverse=True)
        a, b = _slopes(p, sizes)
        inside = a > 0
        r_less_one = np.expm1(sizes[inside])
        worst = np.zeros(len(sizes))
        for rising, mass in kept or distributions():
            curve = _both_directions(rising, mass, a[inside], b[inside], r_less_one)
            worst[inside] = np.maximum(worst[inside], curve)
        rounded = np.where(inside, worst * (1 + _ROUNDING) + _LOST, 0.0)
        curve = rounded[inverse].reshape(epsilons.shape)
        mirrored = -np.expm1(epsilons) + np.exp(epsilons) * curve
        return np.minimum(np.where(epsilons < 0, mirrored, curve), 1.0)

    return profile


def _slopes(p: float | Array, epsilon: Array) -> tuple[Array, Array]:
    """a = 1 - p - r p and b = r (1 - p) - p."""
    r = np.exp(epsilon)
    return 1 - p - r * p, r * (1 - p) - p


def _both_directions(rising: Array, mass: Array, a: Array, b: Array, r_less_one: Array) -> Array:
    """H in the worse direction where it is positive, at each epsilon.

    Args:
        rising: f(y - 1)/f(y) on a range of counts y, 0 at its start, (width,).
        mass: f(y), (width,).
        a, b: as of ``_slopes``, (epsilons,).
        r_less_one: e^epsilon - 1, (epsilons,).
    """
    upper = np.append(np.cumsum(mass[::-1])[::-1], 0.0)  # Pr[N >= y]
    lower = np.append(0.0, np.cumsum(mass))  # Pr[N <= y - 1]
    # The best y is where the ratio passes b/a, or a/b. At any other y the expression is smaller, so
    # that rounding of the ratios matters in second order only.
    first = np.searchsorted(rising, b / a, side="right")
    last = np.searchsorted(rising, a / b, side="left") - 1
    up = a * mass[first - 1] - r_less_one * upper[first]
    down = a * mass[last] - r_less_one * lower[last]
    return np.maximum(up, down)


@entrywise(
    users=partial(checks.within, low=1, high=2**31),
    epsilon=partial(checks.within, low=1e-9, high=700.0),
    delta=partial(checks.within, low=1e-25, high=1 - 2.0**-53),
)
def least_flip(users: Numbers, epsilon: Numbers, delta: Numbers) -> Numbers:
    """The least flip at which shuffled randomized response is (epsilon, delta)-DP.

    Args:
        users: n >= 1, a number or a batch; all arguments broadcast.
        epsilon: in [1e-9, 700].
        delta: in [1e-25, 1).

    Returns:
        p, to 1e-4 of the RMSE that it causes.

    Those of one number of users are solved together, by numpy on the host. Some numbers of ones
    among the others bound the largest curve from below; where all of them hold at the flip found
    from these, it is the least one. Raises TypeError, ValueError.

    Guarantees: ``response_profile(users, flip)`` at epsilon is at most delta: all numbers of ones
    are tried last.
    Source: as there; the curve falls with the flip.
    """
    flips = torch.full_like(delta, math.nan)
    for n in users[users == users.floor()].unique().tolist():
        at = users == n
        flips[at] = _flips_of(int(n), epsilon[at], delta[at])
    return flips


def _flips_of(users: int, epsilon: Tensor, delta: Tensor) -> Tensor:
    """``least_flip`` of one number of users, (problems,)."""
    others, all_ones = _covering(users)
    # The worst number of ones is mostly among the first.
    places = np.geomspace(1, len(all_ones), _SAMPLE).astype(int)
    sample = all_ones[np.unique(places) - 1]

    def excess(ones: Array, problems: Tensor) -> Callable[[Tensor], Tensor]:
        at = epsilon[problems].cpu().numpy()
        goal = delta[problems].log()

        def of(log_rmse: Tensor) -> Tensor:
            flips = flip_of(users, log_rmse.exp()).cpu().numpy()
            curve = _worst(others, flips, at, ones)
            return torch.from_numpy(np.log(curve + 1e-300)).to(delta) - goal + _ROUNDING

        return of

    every = torch.arange(len(delta), device=delta.device)
    guess = gaussian_sigma(epsilon, delta).log()
    log_rmse = root(excess(sample, every), guess - 0.05, guess + 0.1, _NEAR)
    left = (excess(all_ones, every)(log_rmse) > 0).nonzero()[:, 0]
    if len(left):
        low = log_rmse[left]
        log_rmse[left] = root(excess(all_ones, left), low, low + _NEAR, _NEAR)
    return flip_of(users, log_rmse.exp())


def flip_of(users: float, rmse: Number) -> Number:
    """(1 - sqrt(n/(n + 4 rmse^2)))/2, without cancellation."""
    whole = users + 4 * rmse * rmse
    return 2 * rmse * rmse / (whole * (1 + (users / whole) ** 0.5))


def _worst(others: int, p: Array, epsilon: Array, ones: Array) -> Array:
    """The largest curve over ``ones`` in both directions, each flip p at its epsilon, (problems,).

    The formulas are those of ``_both_directions``, for many flips at once.
    """
    a, b = _slopes(p, epsilon)
    worst = np.zeros(len(p))
    for part in _batches(others, p, np.flatnonzero(a > 0), len(ones)):
        rows = np.repeat(part, len(ones))
        rising, mass = _distributions(others, p[rows], np.tile(ones, len(part)))
        first = (rising <= (b / a)[rows, None]).sum(1)
        last = (rising < (a / b)[rows, None]).sum(1) - 1
        place = np.arange(mass.shape[1])
        upper = np.where(place >= first[:, None], mass, 0.0).sum(1)
        lower = np.where(place < last[:, None], mass, 0.0).sum(1)
        row = np.arange(len(rows))
        r_less_one = np.expm1(epsilon[rows])
        up = a[rows] * mass[row, first - 1] - r_less_one * upper
        down = a[rows] * mass[row, last] - r_less_one * lower
        curve = np.maximum(up, down).reshape(len(part), len(ones)).max(1)
        worst[part] = np.maximum(curve, 0.0) * (1 + _ROUNDING) + _LOST
    return worst


def _batches(others: int, p: Array, problems: Array, rows: int) -> Iterator[Array]:
    """Problems to compute at once: each is followed as far as the widest among them."""
    scale = np.floor(np.log2(p[problems]))
    for size in np.unique(scale):
        similar = problems[scale == size]
        at_once = max(1, _AT_ONCE // (rows * _width(others, p[similar])))
        for first in range(0, len(similar), at_once):
            yield similar[first : first + at_once]


def _covering(users: int) -> tuple[int, Array]:
    """Others whose messages are not given, and numbers of ones among them that cover all."""
    others = users - 1
    given = others // _GIVEN
    kept = others - given
    ones = np.arange(0, others // 2 + given + 1, given + 1)
    return kept, np.unique(np.minimum(ones, kept // 2))


def _distributions(others: int, p: float | Array, ones: Array) -> tuple[Array, Array]:
    """f(y - 1)/f(y) and f(y), (rows, width), for each k of ``ones``, at most others/2, and its p.

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
    q = 1 - p
    width = _width(others, p)
    mean = others * p + ones * (q - p)
    lowest = np.floor(mean - _tail_width(others, p))
    bottom = np.clip(lowest, 0, others + 1 - width).astype(np.int64)
    squares = p * p + q * q
    weighted = (others - ones) * p * p + ones * q * q
    y = bottom + np.arange(width)[:, None]
    slope = (squares * y - weighted) / (p * q)  # D(y)/(p q)
    remaining = others - y + 1
    up = np.zeros(slope.shape)
    with np.errstate(all="ignore"):
        # f(y - 1)/f(y) from the top of the range down, to be trusted where y >= y0.
        down = _followed(((y + 1) / remaining)[::-1], (slope / remaining)[::-1])[::-1]
        # The same from the bottom up, to be trusted where y < y0.
        up[1:] = 1 / _followed(remaining / (y + 1), -slope / (y + 1))[:-1]
    rising = np.where(y >= weighted / squares, down, up).T.copy()  # each row in one piece
    rising[:, 0] = 0.0
    logs = np.zeros_like(rising)
    np.cumsum(-np.log(rising[:, 1:]), axis=1, out=logs[:, 1:])
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    return rising, mass / mass.sum(axis=1, keepdims=True)


def _tail_width(others: int, p: float | Array) -> float:
    """Counts further from the mean have probability e^-(2 _OUTSIDE) at most, for each flip."""
    variance = others * float(np.max(p * (1 - p), initial=0.0))
    third = 2 * _OUTSIDE / 3
    return third + math.sqrt(third**2 + 4 * _OUTSIDE * variance)


def _width(others: int, p: float | Array) -> int:
    """Counts to follow. Raises ValueError."""
    width = min(others, math.ceil(2 * _tail_width(others, p))) + 1
    if width > _WIDEST:
        raise ValueError(
            f"flip = {np.max(p):g} among {others + 1} users spreads the count over {width} values, "
            f"and at most {_WIDEST} are followed; take PoissonSum for so much noise"
        )
    return width


def _followed(back: Array, forth: Array) -> Array:
    """t_i = back_i/t_{i-1} + forth_i, row by row, from t_0 = forth_0 on; 1/t_i may be infinite."""
    ratios = np.empty(forth.shape)
    inverse = np.zeros(forth.shape[1])
    for i in range(len(ratios)):
        np.multiply(back[i], inverse, out=inverse)
        np.add(inverse, forth[i], out=ratios[i])
        np.reciprocal(ratios[i], out=inverse)
    return ratios


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
        # Rounded up: no fewer bits flip than are accounted for.
        threshold = math.ceil(Fraction(self.flip) * 2**63)
        flips = draws.integers(tuple(bits.shape)) < threshold
        instances = torch.arange(bits.shape[1], dtype=torch.int32, device=bits.device)
        instance = instances.repeat(len(bits))
        return ShuffledMessages(len(bits), instance, (bits ^ flips).flatten().to(torch.int8))

    @property
    def variation(self) -> float:
        return 0.0

    def refuse(self, messages: Tensor, n: int) -> None:
        if (messages != n).any():
            raise ValueError(
                f"messages must have one of each of the {n} users in every instance; some instance "
                "has more or fewer. Count only the users who sent, and leave out what was sent twice"
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
        variance = self.flip * (1 - self.flip)
        gap = 1 - 2 * self.flip
        third = variance / gap**2 * (self.users - 2 * ones.double())
        fourth = self.users * variance * (1 - 6 * variance) / gap**4
        return third, torch.full_like(third, fourth)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        return (response_profile(self.present(absent), self.flip),)

    def pure_epsilon(self, absent: int = 0) -> float:
        """ln((1 - flip)/flip), rounded up; 1 - 2 flip loses no digit near 1/2."""
        return math.log1p((1 - 2 * self.flip) / self.flip) * SURELY

    @classmethod
    def least(cls, target: Target) -> Self:
        users = target.users
        flips = target.sensitivity.flips
        if target.delta == 0:
            law = cls(users, 1 / (1 + math.exp(target.epsilon / flips)))
            # Rounding may cost some units in the last place.
            while law.pure_epsilon() * flips > target.epsilon:
                law = cls(users, math.nextafter(law.flip, 1))
            return law
        target = target.composed(cls)
        if flips == 1:
            return cls(users, least_flip(users - target.absent, target.epsilon, target.delta))
        return least_noise(lambda rmse: cls(users, flip_of(users, rmse)), target.central, target)
