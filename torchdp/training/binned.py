"""Balls in bins: each user draws one of so many bins, and takes part in every pass in that bin's step."""

import math
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from scipy.special import betaincinv
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.training.strategy import MOST_DENSE, Strategy, as_strategy

AT_ONCE = 2**15  # samples made together
ROUGH = 8  # how many times fewer samples the search for the noise takes
SOURCE = "Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2025), balls in bins; Clopper, Pearson (1934)"


@dataclass(frozen=True)
class BallsInBins:
    """A user draws one of ``bins`` bins i, each as likely, and is in steps i, i + bins, i + 2 bins, ...; in secret.

    A strategy C >= 0 of any bands is served. The most that a user changes is as far apart as P and Q:
    Q = N(0, sigma^2 I), P = the mean over i of N(m_i, sigma^2 I), m_i / bound = the sum of C's columns i, i + bins, ...
    Both directions' hockey-stick curves are found by Monte Carlo.

    bins: at least 1. Raises ValueError.
    Source: Choquette-Choo, Ganesh, Haque, Steinke, Thakurta (2025), near exact privacy amplification.
    """

    bins: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", checks.integer("bins", self.bins, 1))

    @property
    def groups(self) -> int:
        """Steps of a pass."""
        return self.bins

    @property
    def chance(self) -> float:
        """Of a member of the step's bin to be in it."""
        return 1.0

    def drawn(self, users: int, draws: Noise) -> Tensor:
        """Each user's bin, independently: (users,)."""
        return draws.below(self.bins, (users,))

    def guarantee(
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
        """(epsilon, delta) that the outputs of all steps have, by ``samples`` draws of P and as many of Q.

        For each direction, 1 with the chance max(0, 1 - e^epsilon Q/P) is a coin whose mean is the hockey-stick
        divergence; delta is ``doubt`` and the larger of two exact binomial bounds, each wrong with chance doubt / 2. So
        delta counts the generator's draws: the guarantee is of all randomness together, the accountant's and the
        mechanism's. strategy: C >= 0, at most 4,096 steps. Raises TypeError, ValueError.

        Guarantees: (epsilon, delta)-DP for adding or removing one user, each sum's gradients depending on all earlier
        outputs.
        """
        gram = self.gram(strategy, checks.positive("bound", bound) / checks.positive("sigma", sigma))
        epsilon, doubt = checks.non_negative("epsilon", epsilon), checks.fraction("doubt", doubt)
        samples = checks.integer("samples", samples, 100)
        hits = [divergence(gram, epsilon, samples, generator, added)[1] for added in (False, True)]
        delta = min(max(_highest(each, samples, doubt / 2) for each in hits) + doubt, 1 - 2.0**-53)
        source = f"{SOURCE}; {samples} samples, right with confidence 1 - {doubt:.2g}, the rest is in delta"
        return Guarantee(epsilon, delta, Model.CENTRAL, Neighbours.ADD_REMOVE, False, source)

    def sigma(
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
        """A sigma, about the least, for which ``guarantee`` is likely to find at most ``delta``: not itself a promise.

        By an eighth of the samples. Raises ValueError, also where there are too few of them for ``delta``.
        """
        gram, aim = self.gram(strategy, checks.positive("bound", bound)), _aim(delta, doubt, samples)
        return search(gram, epsilon, delta, aim, max(samples // ROUGH, 100), generator)

    def gram(self, strategy: Strategy, scale: float) -> Tensor:
        """<m_i, m_j> scale^2 for bound 1: (bins, bins)."""
        strategy = as_strategy(strategy)
        if strategy.steps > MOST_DENSE:
            raise ValueError(f"strategy must have at most {MOST_DENSE} steps, not {strategy.steps}")
        C = strategy.dense().cpu()
        if (C < 0).any():
            raise ValueError("strategy must have no negative entry: the worst user is not known there")
        place = torch.arange(len(C)) % self.bins
        m = C.new_zeros(len(C), self.bins).index_add_(1, place, C) * scale
        return m.mT @ m


def search(
    gram: Tensor, epsilon: float, delta: float, aim: float, samples: int, generator: torch.Generator
) -> float:
    """The sigma for which the larger divergence is about ``aim`` <= delta: by bisection over the same draws."""
    start = generator.get_state()

    def excess(log_sigma: float) -> float:
        found = 0.0
        for added in (False, True):
            generator.set_state(start)
            found = max(found, divergence(gram / math.exp(2 * log_sigma), epsilon, samples, generator, added)[0])
        return math.log(max(found, 1e-300) / aim)

    high = (
        math.log(gaussian_sigma(epsilon, delta, float(gram.diagonal().max()) ** 0.5)) + 0.1
    )  # without any chance
    low = high - 0.5
    while excess(low) < 0:
        high, low = low, low - 0.5
    return math.exp(float(brentq(excess, low, high, xtol=2e-3)) if excess(high) < 0 else high)


def divergence(
    gram: Tensor, epsilon: float, samples: int, generator: torch.Generator, added: bool
) -> tuple[float, int]:
    """The mean of max(0, 1 - e^epsilon Q/P) under P, ``added``: P and Q exchanged; and how many coins of it fell on 1.

    P is the mean over i of N(m_i, I), Q = N(0, I), gram: <m_i, m_j>. u_i = <y, m_i> is all of y that Q/P depends on.
    """
    values, vectors = torch.linalg.eigh(gram)
    root, half, bins = vectors * values.clamp_min(0).sqrt(), gram.diagonal() / 2, len(gram)
    total, hits = 0.0, 0
    for start in range(0, samples, AT_ONCE):
        count = min(AT_ONCE, samples - start)
        u = torch.randn(count, bins, generator=generator, dtype=torch.float64) @ root.mT
        if not added:
            u += gram[torch.randint(bins, (count,), generator=generator)]
        loss = (u - half).logsumexp(1) - math.log(bins)
        part = -torch.expm1(epsilon + loss if added else epsilon - loss).clamp_max(0)
        total += float(part.sum())
        hits += int((torch.rand(count, generator=generator, dtype=torch.float64) < part).sum())
    return total / samples, hits


def _highest(hits: int, samples: int, doubt: float) -> float:
    """The chance for which so few ones are as unlikely as ``doubt``. Source: Clopper, Pearson (1934)."""
    return float(betaincinv(hits + 1, samples - hits, 1 - doubt)) if hits < samples else 1.0


def _aim(delta: float, doubt: float, samples: int) -> float:
    """The mean at which the bound is at most delta but for 1.5 standard deviations of the ones. Raises ValueError."""
    delta, doubt = checks.fraction("delta", delta), checks.fraction("doubt", doubt)
    few, many = -1, checks.integer("samples", samples, 100)
    while many - few > 1:
        middle = (few + many) // 2
        if _highest(middle, samples, doubt / 2) <= delta - doubt:
            few = middle
        else:
            many = middle
    if few < 5:
        raise ValueError(f"samples must be about {30 / delta:.0e} for delta = {delta:g}, not {samples}")
    return (math.sqrt(few + 0.75**2) - 0.75) ** 2 / samples
