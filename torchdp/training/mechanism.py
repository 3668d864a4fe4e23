"""The mechanism of a private training run, and its guarantee: sampling, clipping and noise."""

import hashlib
from dataclasses import dataclass, field, replace

from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import StreamStrategy
from torchdp.privacy import Guarantee
from torchdp.training.adaptive import AdaptiveBound
from torchdp.training.noise import noise_guarantee
from torchdp.training.participation import OwnBatches, Participation
from torchdp.training.sampled import CyclicPoisson
from torchdp.training.stream import VERSION


@dataclass(frozen=True)
class Mechanism(Brief):
    """Sampling, clipping, strategy and noise that belong together, and their joint guarantee.

    strategy: C; sampling: how users come into the steps; bound: largest norm of a user's part; sigma: standard
    deviation of the noise before C^{-1}, in the gradients' units; users, batch: how many there are, and are in a step
    (where sampled: on average). guarantee: of all steps together.
    adaptive: how the clipping bound moves from ``bound`` on, which remains that of users' rows; None: it stays.
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
        C, delta = self.strategy.leading(steps), self.guarantee.delta
        rule = self.sampling.rule if isinstance(self.sampling, OwnBatches) else self.sampling
        if isinstance(rule, Participation):
            return noise_guarantee(C, self.sigma, self.bound, delta, rule)
        sampling = checks.instance("sampling", rule, CyclicPoisson)
        return sampling.guarantee(C, self.sigma, self.bound, delta)

    def spent(self, steps: int) -> Guarantee:
        """The guarantee of the gradients of the first ``steps`` steps. Raises ValueError."""
        if not checks.integer("steps", steps, 0, self.strategy.steps):
            return replace(self.guarantee, epsilon=0.0, delta=0.0, mu=None)
        found = self.computed(steps)
        if isinstance(self.sampling, CyclicPoisson):
            return found
        # fewer rows may cancel less, and make a sum of sizes larger; but all steps show the first ones, too
        return found if found.epsilon <= self.guarantee.epsilon else replace(self.guarantee, exact=False)

    def deviations(self) -> Tensor:
        """Standard deviation of the noise in each number of each step's ``.grad``, (steps,), on the CPU: public."""
        return (self.sigma / self.batch * self.strategy.recurrence.row_norms()).cpu()

    def digest(self) -> bytes:
        """32 bytes that name this plan."""
        rest = (VERSION, self.sampling, self.bound, self.sigma, self.users, self.batch, self.adaptive)
        return hashlib.sha256(self.strategy.recurrence.digest() + repr(rest).encode()).digest()

    def __str__(self) -> str:
        C = self.strategy
        return (
            f"{self.guarantee}\n{C.steps} steps of {self.batch} of {self.users} users, {self.sampling}, "
            f"clipped to {self.bound:g}{' at first' if self.adaptive else ''}; "
            f"noise of standard deviation {self.sigma:g} over a strategy of {C}"
        )
