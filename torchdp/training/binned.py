"""Balls in bins: each user draws one of so many bins, and takes part in every pass in that bin's step."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from scipy.special import betaincinv
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.mixtures import mixture_epsilon, mixture_sigma
from torchdp.root import least, root
from torchdp.training.strategy import MOST_DENSE, Strategy, as_strategy

FEW, BEYOND = 2**15, 10.0  # samples of a search; powers of e of noise above what is needed without any chance
NUMBERS = 2**20  # normals made together
LEAST, FARTHEST = 1e-300, 4  # of a bound: not 0, to divide by; of a tilt, in tilts that are best for the worst bin
SAFE = 1.002  # of sigma: its search and the search of epsilon end within less
EPS = torch.finfo(torch.float64).eps
BINS = "Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2025), balls in bins"
COMPARED = "Kahane (1985), comparison with chains, torchdp.privacy.mixtures"
SAMPLED = "Clopper, Pearson (1934)"


@dataclass(frozen=True)
class BallsInBins:
    """A user draws one of ``bins`` bins i, each as likely, and is in steps i, i + bins, i + 2 bins, ...; in secret.

    A strategy C >= 0 of any bands is served, buffers too. The dominating pair of one user is P and Q:
    Q = N(0, sigma^2 I), P = the mean over i of N(m_i, sigma^2 I), m_i / bound = the sum of C's columns i, i + bins, ...
    ``guarantee`` bounds both directions' hockey-stick divergences by comparison with chains
    (:mod:`torchdp.privacy.mixtures`); ``likely_guarantee`` samples them, for somewhat less noise and with a doubt.

    bins: at least 1. Raises ValueError.
    Source: Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2025), near exact privacy amplification.
    """

    bins: int
    chance: ClassVar[float] = 1.0  # of a member of the step's bin to be in it

    def __post_init__(self) -> None:
        checks.keep(self, bins=checks.count)

    @property
    def groups(self) -> int:
        """Steps of a pass."""
        return self.bins

    def drawn(self, users: int, draws: Noise) -> Tensor:
        """Each user's bin, independently: (users,)."""
        return draws.below(self.bins, (users,))

    def guarantee(self, strategy: Strategy, sigma: float, bound: float, delta: float) -> Guarantee:
        """The guarantee of the outputs W (G + C^{-1} Z) of all steps: C is ``strategy``, Z of N(0, sigma^2) entries.

        bound: largest norm of a user's part of one sum. strategy: C >= 0; of more than 4,096 steps a Toeplitz or a
        :class:`BufferedStrategy`. Raises TypeError, ValueError.

        Guarantees: (epsilon, delta)-DP for adding or removing one user, each sum's gradients depending on all earlier
        outputs; a deterministic upper bound. At most that of N(m_i, sigma^2 I) alone, the longest m_i's.
        Source: as the class, for P and Q; Kahane (1985), comparison, and ``torchdp.privacy.mixtures`` for the bound.
        """
        met = self.met(strategy) * (checks.positive("bound", bound) / checks.positive("sigma", sigma)) ** 2
        epsilon = mixture_epsilon(met.cpu().numpy() * (1 + 1e-15), delta)
        return Guarantee(epsilon, delta, Model.CENTRAL, Neighbours.ADD_REMOVE, False, f"{BINS}; {COMPARED}")

    def sigma(self, strategy: Strategy, bound: float, epsilon: float, delta: float) -> float:
        """About the least sigma for which ``guarantee`` is at most ``epsilon``. Raises TypeError, ValueError."""
        found = mixture_sigma(self.met(strategy).cpu().numpy(), epsilon, delta)
        return checks.positive("bound", bound) * found * SAFE

    def met(self, strategy: Strategy) -> Tensor:
        """(bins,), [d] at least <m_i, m_j> for bound 1 and all bins i, j with j - i = d or d - bins, float64."""
        strategy = as_strategy(strategy)
        known = None if strategy.steps <= MOST_DENSE else strategy.met(self.bins)
        if known is not None:
            return known.clamp_max(known[0])
        gram = self.gram(strategy, 1.0)
        moved = strategy.recurrence.dense()[1].max() * -(-strategy.steps // self.bins)
        size = float(gram.diagonal().max())
        place = torch.arange(self.bins, device=gram.device)
        met = torch.stack([gram[place, (place + d) % self.bins].max() for d in place.tolist()])
        met = met * (1 + (strategy.steps + 16) * EPS) + 3 * float(moved) * math.sqrt(size)
        return torch.cat([met.max()[None], met[1:]])

    def likely_guarantee(
        self,
        strategy: Strategy,
        sigma: float,
        bound: float,
        epsilon: float,
        *,
        doubt: float,
        samples: int,
        generator: torch.Generator,
    ) -> Guarantee:
        """(epsilon, delta) that the outputs of all steps have, by Monte Carlo.

        Each direction's hockey-stick divergence is a sum of two means of numbers in a known range, under distributions
        that make it no rare event; coins with such chances have exact binomial bounds. delta is ``doubt`` and the
        larger direction's bound, each of them wrong with chance doubt / 2. So delta counts the generator's draws: the
        guarantee is of all randomness together, the accountant's and the mechanism's. samples: of each distribution, 4
        in all, after a few that set a range. strategy: C >= 0, at most 4,096 steps. Raises TypeError, ValueError.

        Guarantees: (epsilon, delta)-DP for adding or removing one user, each sum's gradients depending on all earlier
        outputs.
        """
        gram = self.gram(strategy, checks.positive("bound", bound) / checks.positive("sigma", sigma))
        epsilon, doubt = checks.non_negative("epsilon", epsilon), checks.fraction("doubt", doubt)
        samples = checks.integer("samples", samples, 100)
        found = [divergence(gram, epsilon, samples, doubt / 2, generator, added)[1] for added in (False, True)]
        delta = min(max(found) + doubt, 1 - 2.0**-53)
        right = f"{samples} samples, right with confidence 1 - {doubt:.2g}, the rest is in delta"
        source = f"{BINS}; {SAMPLED}; {right}"
        return Guarantee(epsilon, delta, Model.CENTRAL, Neighbours.ADD_REMOVE, False, source)

    def likely_sigma(
        self,
        strategy: Strategy,
        bound: float,
        epsilon: float,
        delta: float,
        *,
        doubt: float,
        samples: int,
        generator: torch.Generator,
    ) -> float:
        """A sigma, about the least, for which ``likely_guarantee`` is likely to find ``delta``: not itself a promise.

        By the same few samples for every sigma. Raises ValueError.
        """
        gram = self.gram(strategy, checks.positive("bound", bound))
        samples = checks.integer("samples", samples, 100)
        if not 0 < checks.positive("doubt", doubt) < checks.fraction("delta", delta):
            raise ValueError(f"doubt must be below delta = {delta:g}, not {doubt:g}")
        return search(gram, epsilon, delta, doubt, samples, generator)

    def gram(self, strategy: Strategy, scale: float) -> Tensor:
        """<m_i, m_j> scale^2 for bound 1: (bins, bins)."""
        strategy = as_strategy(strategy)
        if strategy.steps > MOST_DENSE:
            raise ValueError(f"strategy must have at most {MOST_DENSE} steps, not {strategy.steps}")
        checks.fits("bins", self.bins, self.bins)
        C = strategy.dense().cpu()
        if (C < 0).any():
            raise ValueError("strategy must have no negative entry: the worst user is not known there")
        place = torch.arange(len(C), device=C.device) % self.bins
        m = C.new_zeros(len(C), self.bins).index_add_(1, place, C) * scale
        return m.mT @ m


def search(
    gram: Tensor, epsilon: float, delta: float, doubt: float, samples: int, generator: torch.Generator
) -> float:
    """The sigma for which ``guarantee`` is likely to find delta: over the same few draws."""
    gram = gram.to(generator.device)
    draws = _drawn(gram, FEW, generator)
    few = draws[0][: FEW // 16], draws[1][: FEW // 16]

    def found(sigma: float) -> float:
        laws = [_Tilted.of(gram / sigma**2, epsilon, added, few) for added in (False, True)]
        return doubt + max(law.likely(draws, samples, doubt / 4) for law in laws)

    usual = gaussian_sigma(epsilon, delta, float(gram.diagonal().max()) ** 0.5)  # without any chance
    if found(usual * math.exp(BEYOND)) > delta:
        raise ValueError(f"samples = {samples} are too few for delta = {delta:g}; take four times as many")
    return least(found, delta, usual * math.exp(-0.5), usual, 1e-3)


def divergence(
    gram: Tensor, epsilon: float, samples: int, doubt: float, generator: torch.Generator, added: bool
) -> tuple[float, float]:
    """The hockey-stick divergence of P from Q, ``added``: of Q from P; and a bound that is below it with chance doubt.

    P is the mean over i of N(m_i, I), Q = N(0, I), gram: <m_i, m_j>.
    """
    gram = gram.to(generator.device)
    law = _Tilted.of(gram, epsilon, added, _drawn(gram, FEW // 16, generator))
    cap = law.cap(law.ratio(_drawn(gram, FEW, generator), law.aimed))
    inside, beyond, mean, left = 0, 0, 0.0, samples
    while left:
        draws = _drawn(gram, left, generator)
        left -= len(draws[1])
        part = law.ratio(draws, law.aimed)
        mean += float(part.sum()) / samples
        inside += _coins(part.clamp_max(cap) / cap, generator)
        beyond += _coins(law.excess(_drawn(gram, len(draws[1]), generator), cap) / law.most, generator)
    found = cap * _highest(inside, samples, doubt / 2) + law.most * _highest(beyond, samples, doubt / 2)
    return mean, min(found, law.most)


@dataclass(frozen=True)
class _Tilted:
    """One direction of the divergence E_A max(0, 1 - e^epsilon B/A), by sampling where it is no rare event.

    Without ``added`` A = P, B = Q and A_t is the mean over i of N(t m_i, I); with it A = Q, B = P and A_t =
    N((1 - t) mean m, I); A_1 = A. f = max(0, 1 - e^epsilon B/A), r_t = A_t/A. For any c the divergence is
    E_{A_t} min(f/r_t, c) + E_{A_s} max(0, f - c r_t)/r_s, t = ``aimed``, s = ``safe``, and f/r_s <= ``most``:
    with L = P/Q, by the inequality of means r_s L = mean_i exp(s <y, m_i> - s^2 |m_i|^2/2) >=
    L^s exp(-(s^2 - s) max |m|^2/2), and f L^{1-s} <= e^{-(s-1) epsilon} (s-1)^{s-1} / s^s; with ``added`` L >= exp(<y,
    mean m> - mean |m_i|^2/2) likewise.
    """

    gram: Tensor
    root: Tensor
    epsilon: float
    added: bool
    aimed: float
    safe: float
    most: float

    @classmethod
    def of(cls, gram: Tensor, epsilon: float, added: bool, draws: tuple[Tensor, Tensor]) -> "_Tilted":
        values, vectors = torch.linalg.eigh(gram)
        largest = float(gram.diagonal().max())
        s = 1 + torch.cat([gram.new_zeros(1), torch.logspace(-3, 4, 500, dtype=gram.dtype, device=gram.device)])
        if added:
            power = (s - 1) * (float(gram.diagonal().mean()) / 2 - epsilon) + (s - 1).square() * gram.mean() / 2
        else:
            power = (s - 1) * (s * largest / 2 - epsilon)
        best = power + torch.xlogy(s - 1, s - 1) - torch.xlogy(s, s)
        at = int(best.argmin())
        safe, most = float(s[at]), min(max(math.exp(float(best[at])), LEAST) * (1 + 1e-9), 1.0)
        law = cls(gram, vectors * values.clamp_min(0).sqrt(), epsilon, added, safe, safe, most)
        return law if added else replace(law, aimed=law.middle(draws))

    def middle(self, draws: tuple[Tensor, Tensor]) -> float:
        """.7 of the way to the tilt under which f > 0 half of the time, without ``added``: measured to vary least.

        ``safe`` where a much larger one does not reach it: half of the bins may have no step.
        """

        def loss(tilt: float) -> float:
            return self.epsilon - float(self.log_mean(self.seen(draws, tilt), 1.0).median())

        if loss(FARTHEST * self.safe) > 0:
            return self.safe
        return 0.3 + 0.7 * root(loss, 1.0, 2.0, 1e-2, grow=(False, True))

    def seen(self, draws: tuple[Tensor, Tensor], tilt: float) -> Tensor:
        """u_i = <y, m_i> of y from A_tilt: all of y that B/A depends on. (samples, bins)."""
        z, places = draws
        shift = (1 - tilt) * self.gram.mean(0) if self.added else tilt * self.gram[places]
        return z @ self.root.mT + shift

    def logs(self, u: Tensor, *tilts: float) -> list[Tensor]:
        """log f, and log r of each tilt."""
        loss = self.log_mean(u, 1.0)
        part = -torch.expm1(self.epsilon + (loss if self.added else -loss)).clamp_max(0)
        if self.added:
            weights = [(1 - t) * u.mean(1) - (1 - t) ** 2 * self.gram.mean() / 2 for t in tilts]
        else:
            weights = [self.log_mean(u, t) - loss for t in tilts]
        return [part.log(), *weights]

    def log_mean(self, u: Tensor, tilt: float) -> Tensor:
        """log mean_i exp(tilt u_i - tilt^2 |m_i|^2/2)."""
        return (tilt * u - tilt**2 * self.gram.diagonal() / 2).logsumexp(1) - math.log(len(self.gram))

    def ratio(self, draws: tuple[Tensor, Tensor], tilt: float) -> Tensor:
        """f/r_tilt of draws from A_tilt."""
        part, weight = self.logs(self.seen(draws, tilt), tilt)
        return (part - weight).exp()

    def excess(self, draws: tuple[Tensor, Tensor], cap: float) -> Tensor:
        """max(0, f - cap r_aimed)/r_safe of draws from A_safe."""
        part, aimed, safe = self.logs(self.seen(draws, self.safe), self.aimed, self.safe)
        rest = (part.exp() - cap * aimed.exp()).clamp_min(0)
        return (rest.log() - safe).exp()

    def cap(self, seen: Tensor) -> float:
        """About the most that f/r_aimed is, of some of them."""
        return min(float(seen.max()), self.most) or self.most

    def likely(self, draws: tuple[Tensor, Tensor], samples: int, doubt: float) -> float:
        """What the bound is likely to be at most."""
        seen = self.ratio(draws, self.aimed)
        cap = self.cap(seen)
        hits = float(seen.mean()) / cap * samples
        inside = cap * _highest(hits + 1.5 * math.sqrt(hits), samples, doubt)
        return min(inside + self.most * _highest(1, samples, doubt), self.most)


def _drawn(gram: Tensor, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Normals and bins of up to so many samples, fewer where there are many bins."""
    count, bins = max(1, min(most, NUMBERS // len(gram))), len(gram)
    z = torch.randn(count, bins, generator=generator, dtype=torch.float64, device=gram.device)
    return z, torch.randint(bins, (count,), generator=generator, device=gram.device)


def _coins(chances: Tensor, generator: torch.Generator) -> int:
    """How many coins of these chances fall on 1."""
    draws = torch.rand(len(chances), generator=generator, dtype=torch.float64, device=chances.device)
    return int((draws < chances).sum())


def _highest(hits: float, samples: int, doubt: float) -> float:
    """The chance for which so few ones are as unlikely as ``doubt``. Source: Clopper, Pearson (1934)."""
    return float(betaincinv(hits + 1, samples - hits, 1 - doubt)) if hits < samples else 1.0
