"""A mixture of normal distributions told apart from noise alone, without sampling.

Q = N(0, I), P = the mean over bins i of N(m_i, I), G_ij = <m_i, m_j>. Under Q the ratio P/Q is
L = mean_i W_i, W_i = exp(u_i - G_ii/2), u of N(0, G). Of the divergences of P from Q,
E (L - t)^+, and of Q from P, E (1 - t L)^+, t = e^epsilon, the first is the larger one, and four
steps bound it from above; F(L) = (L - t)^+ is convex and rises.

0. *Removal dominates.* log L is a convex function of a normal vector. By Ehrhard's inequality L has
   the distribution of e^g(Z), Z of N(0, 1), g convex and nondecreasing. Where g never reaches
   -epsilon, or epsilon is 0, the claim is plain. Else let g(a) = -epsilon, g(b) = epsilon, h the line
   through both points, s its slope, M = E e^h(Z). g >= h outside of [a, b], g <= h inside. So
   E (L - t)^+ - E (1 - t L)^+ is at least what it is for e^h, plus max(1 - M, 0), as E L = 1, t >= 1.
   Reflected at (a + b)/2 the first term for e^h is larger exactly where M >= 1. For M = e^-m < 1 and
   C(k) = E (e^{s Z - s^2/2} - k)^+, which is E (1 - k e^{s Z - s^2/2})^+, the whole is
   M C(t/M) + 1 - M - C(t M): 0 at t = 1, and its slope in t is M Pr(Z > A) - Pr(Z > A + 2 m / s) >= 0,
   A = (epsilon - m)/s + s/2, since Pr(Z > A + d) <= e^{-d A - d^2/2} Pr(Z > A).
1. *Comparison.* E F(L) is no smaller for a covariance G' >= G, entry by entry: along G + s (G' - G)
   its derivative is sum_ij (G' - G)_ij E[W_i W_j F''(L)] / (2 bins^2) >= 0.
2. *Revealing.* P is the mean, over the rotations of a circle of bins, of mixtures of some of them:
   ``runs`` runs of ``length`` neighbours, with bins between runs left out. F is convex, so what
   bounds the divergence of each of these mixtures bounds that of P.
3. *Chains.* G'_ij = common + [same run] (shared decay^|i - j| + [i = j] own). So L is a lognormal
   number times a mean of independent runs, and in each u is a Markov chain v and own noise.
4. *Atoms.* Lognormal factors become atoms: a number goes to one of those beside it, with its mean
   kept, which raises E F. So does v, to multiples of ``step``, in each bin. Given the normals, the
   mean of W_i is then W_i at least and e^slack W_i at most, slack = step^2 / 8 sum_k decay^2k, by
   Hoeffding's lemma for each move. So E F(L) rises. What leaves a grid is lost: of E L, and of Q, at
   most LOST e^slack, by the exponential moments of v, whose normals and moves act as the variance
   shared + 2 slack.

E (c - L)^+ <= E (c - L - tau Z)^+, Z normal: the mean of a function that is (c - x)^+ on one period,
begun FALLEN tau below 0, and no less beyond it: a Fourier series that tau ends, in E e^{zL}, a
product of matrices. E (L - c)^+ = E (c - L)^+ + E L - c.
Source: Ehrhard (1983), for 0; Kahane (1985), convexity inequality, for 1; Hoeffding (1963), for 4; the
rest: here.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from scipy.special import ndtr

from torchdp import checks
from torchdp.privacy.gaussian import gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from torchdp.root import least

EPS = 2.0**-52
LOST = 1e-12  # of E L, about, where grids end, in all bins
FALLEN = 8.0  # deviations of a normal: 6e-16 lie beyond
FINEST, COARSEST, SLACK = 0.02, 0.25, 0.01  # steps; slack over epsilon
SMOOTH, SHARE, TERMS = 16.0, 0.01, 2**12  # deviations of L over tau; tau over e^epsilon - 1 at least; most terms
LARGEST, WORK = 80.0, 4e10  # of an entry of G'; multiplications of an evaluation, beyond which none is made
LONGEST, TRIED = 128, 5  # bins of a run; comparisons for each size of G_ii
SIZES, MOST_SHARED = (0.2, 2.0), 1.5  # of G_ii; the shared part over it
DECAYS = 1 - np.geomspace(0.01, 0.9, 16)
ROUNDS, NEAR = 4, 0.99  # until no comparison finds less than so much of delta
NEARER = 0.8  # of a noise: where the search for less begins
TOLERANCE = 5e-4  # of the logarithm of sigma and of epsilon


@dataclass(frozen=True)
class Comparison:
    """G' of the third step."""

    runs: int
    length: int
    common: float
    shared: float
    decay: float
    own: float

    @property
    def bins(self) -> int:
        """Those that are not left out."""
        return self.runs * self.length

    @property
    def spread(self) -> float:
        """E L^2 - 1, without the common part."""
        lag = np.arange(1, self.length)
        pairs = 2 * ((1 - lag / self.length) * np.expm1(self.shared * self.decay**lag)).sum()
        return float(np.expm1(self.shared + self.own) + pairs) / self.bins

    @property
    def moves(self) -> float:
        """sum_{k < length} decay^2k: what moves of one size, one in each bin, come to in the last bin, in variance."""
        return (1 - self.decay ** (2 * self.length)) / (1 - self.decay**2) if self.shared else 0.0

    def scaled(self, by: float) -> "Comparison":
        """by G'."""
        return replace(self, common=self.common * by, shared=self.shared * by, own=self.own * by)


def mixture_delta(overlaps: np.ndarray, epsilon: float) -> float:
    """A bound on both hockey-stick divergences at ``epsilon`` between the mean over i of N(m_i, I) and N(0, I).

    overlaps: (bins,), [d] at least <m_i, m_j> for all bins with j - i = d or d - bins. epsilon: at least 0. Raises
    TypeError, ValueError.

    Guarantees: never below the truth, with float64's rounding; at most what the longest m_i alone would show.
    Source: Kahane (1985); Balle, Wang (2018), Theorem 8, for one bin; the chains: here.
    """
    overlaps, epsilon = _checked(overlaps), checks.non_negative("epsilon", epsilon)
    alone = math.exp(gaussian_log_delta(1.0, epsilon, math.sqrt(overlaps[0])))
    return min([alone, *(compared_delta(one, epsilon) for one in comparisons(overlaps))])


def mixture_epsilon(overlaps: np.ndarray, delta: float) -> float:
    """About the least epsilon with ``mixture_delta`` <= ``delta``; math.inf where there is none. Raises as it."""
    overlaps, delta = _checked(overlaps), checks.fraction("delta", delta)
    most = gaussian_epsilon(math.sqrt(overlaps[0]), delta)
    return _least(compared_delta, comparisons(overlaps), delta, most) if 0 < most < math.inf else most


def mixture_sigma(overlaps: np.ndarray, epsilon: float, delta: float) -> float:
    """About the least sigma with ``mixture_delta(overlaps / sigma**2, epsilon)`` <= ``delta``. Raises as it."""
    overlaps = _checked(overlaps)
    most = gaussian_sigma(epsilon, delta, math.sqrt(overlaps[0]))

    def found(one: Comparison, sigma: float) -> float:
        return compared_delta(one.scaled(sigma**-2), epsilon)

    return _least(found, comparisons(overlaps), delta, most)


def _least(
    found: Callable[[Comparison, float], float], tried: list[Comparison], delta: float, most: float
) -> float:
    """About the least x <= most with found <= delta for one of them: for the first, for the best at that x, ..."""

    def of_one(one: Comparison, high: float) -> float:
        x = least(lambda x: max(found(one, x), LOST), delta, high * NEARER, high, TOLERANCE, (True, False))
        return min(x, high) if x == x else high

    x = of_one(tried[0], most)
    for _ in range(ROUNDS):
        deltas = [found(one, x) for one in tried]
        if min(deltas) > NEAR * delta:
            break
        x = of_one(tried[int(np.argmin(deltas))], x)
    return x


def comparisons(overlaps: np.ndarray) -> list[Comparison]:
    """Some G' >= G: those of least E L^2, at a few sizes of G, of different numbers of runs. The same for multiples."""
    bins = len(overlaps)
    best: dict[tuple[int, float], tuple[float, Comparison]] = {}
    some = np.unique(np.r_[0:4, np.geomspace(1, bins, 24).astype(int)]).tolist()
    for gap in some:
        across = float(overlaps[gap + 1 : bins - gap].max(initial=0.0))  # of bins in two runs
        for runs in {bins // (length + gap) for length in some[1:]} - {0}:
            length = min(bins // runs - gap, LONGEST)
            for one in _runs(overlaps, runs, length, across if runs > 1 else 0.0):
                for size in SIZES:
                    scaled = one.scaled(size / overlaps[0])
                    looks = math.log1p(scaled.spread) + scaled.common
                    best[runs, size] = min(
                        best.get((runs, size), (math.inf, one)), (looks, one), key=itemgetter(0)
                    )
    kept = (sorted((found for key, found in best.items() if key[1] == size), key=itemgetter(0)) for size in SIZES)
    return list(dict.fromkeys(one for each in kept for _, one in each[:TRIED]))


def _runs(overlaps: np.ndarray, runs: int, length: int, across: float) -> Iterator[Comparison]:
    """Chains over such runs: common from ``across`` to what any two bins of a run share, and the least shared part."""
    if length == 1:
        yield Comparison(runs, 1, across, 0.0, 0.0, float(overlaps[0]) - across)
        return
    near, powers = overlaps[1:length], np.maximum(DECAYS[:, None] ** np.arange(1, length), 1e-300)
    for common in {across, *(across + max(float(near.min()) - across, 0.0) * share for share in (0.5, 1.0))}:
        shared = (np.maximum(near - common, 0.0) / powers).max(1) * (1 + 8 * EPS)
        for part, decay in zip(shared.tolist(), DECAYS.tolist(), strict=True):
            if part <= MOST_SHARED * overlaps[0]:
                own = max(float(overlaps[0]) - common - part, 0.0)
                yield Comparison(runs, length, common, part, decay, own)


def compared_delta(one: Comparison, epsilon: float) -> float:
    """A bound on both divergences for the covariance G' itself; 1.0 where none is found, or too slowly."""
    if epsilon > LARGEST or one.common + one.shared + one.own > LARGEST:
        return 1.0
    ratio = _Ratio.of(one, epsilon)
    return 1.0 if ratio is None else ratio.delta(epsilon)


@dataclass(frozen=True)
class _Ratio:
    """L = a factor times R, R of mean 1 or so: E e^{zR} at z = 2 pi i k / period; what is not lost.

    waves: (terms + 1,), of R + tau Z; mass, mean: of R. rounding: of each of these, at most.
    """

    waves: np.ndarray
    mass: float
    mean: float
    tau: float
    period: float
    factors: tuple[np.ndarray, np.ndarray]
    slack: float
    rounding: float

    @classmethod
    def of(cls, one: Comparison, epsilon: float) -> "_Ratio | None":
        """Tables that are fit for this epsilon; None where they take too long."""
        t, deviation = math.exp(epsilon), math.sqrt(one.spread)
        reach = math.sqrt(2 * math.log(4 * one.bins / LOST))
        parts = [math.sqrt(part) / 4 for part in (one.shared, one.own) if part > 0]
        fine = math.sqrt(8 * SLACK * min(max(epsilon, 0.05), 1.0) / max(one.moves, 1e-9))
        step = max(min([COARSEST, fine, *parts]), FINEST)
        tau = max(deviation / SMOOTH, SHARE * (t - 1))
        period = t * math.exp(3 * math.sqrt(one.common)) * (1 + 3 * min(1.0, 10 * deviation)) + 2 * FALLEN * tau
        tau = max(tau, FALLEN * period / (2 * math.pi * TERMS))
        waves = 2 * math.pi / period * np.arange(math.ceil(FALLEN / tau * period / (2 * math.pi)) + 1)
        made = _transform(one, 1j * waves, step, reach)
        if made is None:
            return None
        values, mass, mean, rounding = made
        smooth = values * np.exp(-((tau * waves) ** 2) / 2)
        factors = _atoms(one.common, max(min(COARSEST, math.sqrt(one.common) / 8), 1e-9), reach)
        slack = step**2 / 8 * one.moves
        rounding += 8 * EPS * waves[-1]
        return cls(smooth, mass, mean, tau, period, factors, slack, rounding)

    def delta(self, epsilon: float) -> float:
        """A bound on E (L - t)^+, the larger divergence."""
        (x, p), t = self.factors, math.exp(epsilon)
        x, p = x[x > 0], p[x > 0]
        above = x * (self.put(t / x) + self.mean + self.rounding) - t * (self.mass - self.rounding)
        removed = float(p @ np.maximum(above, 0.0))
        return min(removed * (1 + 1e-12) + LOST * math.exp(self.slack), 1.0)

    def put(self, c: np.ndarray) -> np.ndarray:
        """At least E (c - R)^+ of what is not lost, for each c > 0."""
        start, s = -FALLEN * self.tau, 2j * math.pi / self.period * np.arange(1, len(self.waves))
        most = self.period + 2 * start
        size = np.minimum(c, most)[:, None] - start
        terms = np.exp(-s * start) * (size / s - (1 - np.exp(-s * size)) / s**2) * self.waves[1:]
        size = size[:, 0]
        series = (size**2 / 2 * self.mass + 2 * terms.real.sum(1)) / self.period + np.maximum(c - most, 0.0)
        return np.maximum(series, 0.0) + self.rounding * (4 * size + self.period)


def _transform(
    one: Comparison, nodes: np.ndarray, step: float, reach: float
) -> tuple[np.ndarray, float, float, float] | None:
    """E e^{zR} at the nodes, R's mass and mean, the rounding of each: R = the mean of W_i over all runs, by atoms."""
    wide = one.shared + step**2 / 4 * one.moves
    ends = reach * math.sqrt(wide), reach * math.sqrt(wide) + wide
    points = step * np.arange(-math.ceil(ends[0] / step), math.ceil(ends[1] / step) + 1)
    if len(points) ** 2 * len(nodes) * 4 * one.length > WORK:
        return None
    x, p = _atoms(one.own, step, reach)
    size, x, kept = float(p @ x), x[x > 0], p[x > 0]
    sizes = x[0] * np.exp(points[0] - one.shared / 2 + step * np.arange(len(points) + len(x) - 1))
    each = np.exp(np.outer(sizes / one.bins, nodes))
    own = np.full((len(points), len(nodes)), p.sum() - kept.sum(), dtype=complex)
    for k, chance in enumerate(kept):
        own += chance * each[k : k + len(points)]
    first, moves, wild = np.ones(1), np.ones((1, 1)), 0.0
    if one.shared:
        moved = math.sqrt(one.shared * (1 - one.decay**2))
        first, wild = _hats(np.zeros(1), math.sqrt(one.shared), points)[0], (moved / step) ** 2
        moves = np.ascontiguousarray(_hats(one.decay * points, moved, points).T)
    heights = np.exp(points - one.shared / 2) * size  # of W_i, for each v
    waves, mass, mean = first[:, None] * own, first * p.sum(), first * heights
    for _ in range(one.length - 1):
        waves = (moves @ waves.view(float)).view(complex) * own
        moved_mass = moves @ mass
        mass, mean = moved_mass * p.sum(), moves @ mean * p.sum() + moved_mass * heights
    whole, total = float(mass.sum()), float(mean.sum()) / one.length
    rounding = one.bins * (2 * len(points) + len(x) + 64 + 8 * wild + 8 / step) * EPS
    return waves.sum(0) ** one.runs, whole**one.runs, total * whole ** (one.runs - 1), rounding


def _atoms(variance: float, step: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """0 and e^(step k - variance / 2), and chances: of a lognormal number of mean 1, kept in each cell.

    What lies above the last number is lost: ``reach`` deviations and the variance, of its logarithm, above the middle.
    """
    if not variance:
        return np.ones(1), np.ones(1)
    deviation = math.sqrt(variance)
    k = np.arange(-math.ceil(reach * deviation / step), math.ceil((reach * deviation + variance) / step) + 1)
    x, z = np.r_[0.0, np.exp(step * k - variance / 2)], np.r_[-np.inf, step * k / deviation]
    chances, means, apart = _between(z), _between(z - deviation), np.diff(x)
    p = np.zeros(len(x))
    p[:-1] = np.maximum(x[1:] * chances - means, 0.0) / apart
    p[1:] += np.maximum(means - x[:-1] * chances, 0.0) / apart
    return x, p


def _between(z: np.ndarray) -> np.ndarray:
    """Chances that a normal lies between two neighbours, to relative precision in both tails."""
    return np.where(z[1:] > 0, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1]))


def _hats(means: np.ndarray, deviation: float, points: np.ndarray) -> np.ndarray:
    """Chances that N(mean, deviation^2), moved left or right with its mean kept, comes to each point.

    (means, points).
    """
    step = (points[1] - points[0]) / deviation
    z = (points - means[:, None]) / deviation

    def beyond(z: np.ndarray) -> np.ndarray:  # E (|z| - Z)^+ - |z| = E (Z - |z|)^+
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi) - np.abs(z) * ndtr(-np.abs(z))

    curved = (beyond(z - step) - 2 * beyond(z) + beyond(z + step)) / step
    return np.maximum(curved + np.maximum(1 - np.abs(z) / step, 0.0), 0.0)


def _checked(overlaps: np.ndarray) -> np.ndarray:
    overlaps = np.asarray(overlaps, dtype=np.float64)
    if overlaps.ndim != 1 or not len(overlaps) or not (np.isfinite(overlaps) & (overlaps >= 0)).all():
        raise ValueError(f"overlaps must be numbers of at least 0, (bins,), not of shape {overlaps.shape}")
    if overlaps.max() > overlaps[0] or not overlaps[0]:
        raise ValueError("overlaps[0] must be the largest, and positive: what a bin has in common with itself")
    return overlaps
