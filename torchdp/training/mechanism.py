"""The mechanism of a private training run and its guarantee: sampling, clipping and noise.

The clipping bound may adapt.
"""

import hashlib
import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import StreamStrategy
from torchdp.privacy import Guarantee
from torchdp.training.noise import noise_guarantee
from torchdp.training.participation import CyclicPoisson, OwnBatches, Participation
from torchdp.training.stream import VERSION

# The bound stays within so many times the plan's.
FAR = 1e6

# For what rounds where a sum is scaled.
SHORTER = 1 - 2.0**-50


@dataclass(frozen=True)
class AdaptiveBound:
    """The clipping bound C_t of step t follows the ``quantile`` of the norms of users' gradients.

        C_1 = plan.bound,  C_{t+1} = C_t exp(-rate (u_t - quantile))

    u_t, in [0, 1], is the noisy share of the batch whose gradients are not longer than C_t, in
    groups none of a gradient's parts longer than its own part of C_t; it is public, and C_t within
    a millionth and a million times C_1.

    A user's row is B (sqrt(1 - s^2) g min(1, C_t / |g|) / C_t, +-s), B = plan.bound, + where |g| <=
    C_t; in groups g's parts are clipped one by one, which leaves it at most C_t long. To the rows'
    sum the plan adds its own noise. The first part times C_t / (B sqrt(1 - s^2)) is the gradient,
    with half a percent more noise where s = .1; the last number gives u_t = 1/2 + number /
    (2 s B batch). Noise of a correlated plan is in units of C_t and cancels less while C_t moves,
    which changes the error that the plan states and no guarantee. On a GPU the host waits for u_t
    at each step.

    Args:
        quantile: in (0, 1).
        rate: in (0, 1].
        share: s, in [.001, .9].

    Raises ValueError.

    Guarantees: gradients, counts and bounds of all steps together have the plan's guarantee.
    Proof: a row's norm is at most B sqrt((1 - s^2) + s^2) = B for every C_t > 0. It is a function
    of the user's data and of earlier outputs, of which alone C_t and the parameters are functions.
    The plan's guarantee is for such rows, which earlier outputs may choose, of any size. Sampling
    and strategy are as they were; gradient, u_t and C_{t+1} are functions of outputs up to step t,
    which every process of a group has.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), Theorem 2.1; Andrew, Thakkar, McMahan,
    Ramaswamy (2021).
    """

    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.1

    def __post_init__(self) -> None:
        checks.fraction("quantile", self.quantile)
        rate = checks.positive("rate", self.rate)
        checks.within("rate", rate, 0, 1, ": the bound would move too far")
        checks.within("share", self.share, 1e-3, 0.9)

    def rows(self, total: Tensor, balance: Tensor, bound: float, limit: float) -> Tensor:
        """The sum of rows of norm ``limit``, (size + 1,).

        total: of gradients clipped to ``bound``, (size,); balance: of signs.
        """
        gradient = total.double() * (SHORTER / self.unit(bound, limit))
        count = balance.to(gradient).view(1) * (SHORTER * limit * self.share)
        return torch.cat([gradient, count]).to(total.dtype)

    def unit(self, bound: float, limit: float) -> float:
        """What a row is multiplied by to be a gradient."""
        return bound / (limit * math.sqrt(1 - self.share**2))

    def following(self, number: float, bound: float, limit: float, batch: int) -> float:
        """The next step's bound, by the last number of a step's rows, with its noise."""
        within = min(1.0, max(0.0, 0.5 + number / (2 * self.share * limit * batch)))
        # A geometric update: the bound stays positive, and moves by at most a factor of e.
        moved = bound * math.exp(-self.rate * (within - self.quantile))
        return min(limit * FAR, max(limit / FAR, moved))


@dataclass(frozen=True)
class Mechanism(Brief):
    """Sampling, clipping, strategy and noise that belong together, and their joint guarantee.

    Args:
        strategy: C.
        sampling: how users come into the steps.
        bound: largest norm of a user's part.
        sigma: standard deviation of the noise before C^{-1}, in the gradients' units.
        users: how many there are.
        batch: how many are in a step, on average where they are sampled.
        guarantee: of all steps together.
        adaptive: how the clipping bound moves from ``bound`` on, which remains that of users' rows;
            None: it stays.
    """

    strategy: StreamStrategy
    sampling: Participation | CyclicPoisson | OwnBatches
    bound: float
    sigma: float
    users: int
    batch: int
    guarantee: Guarantee
    adaptive: AdaptiveBound | None = field(default=None, kw_only=True)

    def computed(self, steps: int) -> Guarantee:
        """Of the first ``steps`` steps by themselves, at least one."""
        C = self.strategy.leading(steps)
        delta = self.guarantee.delta
        rule = self.sampling.rule if isinstance(self.sampling, OwnBatches) else self.sampling
        if isinstance(rule, Participation):
            return noise_guarantee(C, self.sigma, self.bound, delta, rule)
        sampling = checks.instance("sampling", rule, CyclicPoisson)
        return sampling.guarantee(C, self.sigma, self.bound, delta)

    def spent(self, steps: int) -> Guarantee:
        """The guarantee of the gradients of the first ``steps`` steps. Raises ValueError."""
        if not checks.integer("steps", steps, 0, self.strategy.steps):
            return replace(self.guarantee, epsilon=0.0, delta=0.0, mu=None)
        guarantee = self.computed(steps)
        if isinstance(self.sampling, CyclicPoisson) or guarantee.epsilon <= self.guarantee.epsilon:
            return guarantee
        # Fewer rows may cancel less, and make a sum of sizes larger; but all steps show the first
        # ones, too.
        return replace(self.guarantee, exact=False)

    def deviations(self) -> Tensor:
        """Standard deviation of the noise in each number of each step's ``.grad``, (steps,).

        On the CPU; public.
        """
        return (self.sigma / self.batch * self.strategy.recurrence.row_norms()).cpu()

    def digest(self) -> bytes:
        """32 bytes that name this plan."""
        drawn = (VERSION, self.sampling, self.bound, self.sigma)
        rest = (*drawn, self.users, self.batch, self.adaptive)
        return hashlib.sha256(self.strategy.recurrence.digest() + repr(rest).encode()).digest()

    def __str__(self) -> str:
        C = self.strategy
        return (
            f"{self.guarantee}\n"
            f"{C.steps} steps of {self.batch} of {self.users} users, {self.sampling}, "
            f"clipped to {self.bound:g}{' at first' if self.adaptive else ''}; "
            f"noise of standard deviation {self.sigma:g} over a strategy of {C}"
        )
