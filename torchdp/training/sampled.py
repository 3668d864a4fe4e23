"""Users sampled at random: which of them are in a step, and the amplification by subsampling."""

import math
from dataclasses import dataclass, replace

from torchdp import checks
from torchdp.factorization import StreamStrategy
from torchdp.noise import Noise, SeededNoise, source
from torchdp.privacy import Guarantee, sampled_guarantee, sampled_multiplier
from torchdp.training.batches import PlannedBatches
from torchdp.training.participation import ONCE, sensitivity
from torchdp.training.strategy import Strategy, as_strategy

SOURCE = "Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 4"


@dataclass(frozen=True)
class CyclicPoisson:
    """Users are in ``groups`` groups, made without the data; step t takes each of group t mod groups with ``chance``.

    One group: Poisson sampling. The number of users is public, as groups are alike in size: who is removed leaves a
    number that adds 0. A strategy of at most ``groups`` bands answers one user's steps by rows that no two of them
    share, so that all steps together are as private as steps / groups sums of a user with this chance.

    groups: at least 1; chance: in (0, 1]. Raises ValueError.
    Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 4.
    """

    groups: int
    chance: float

    def __post_init__(self) -> None:
        checks.keep(self, groups=checks.count, chance=checks.positive)
        checks.within("chance", self.chance, 0, 1, ": take fewer groups, or smaller batches")

    def guarantee(self, strategy: Strategy, sigma: float, bound: float, delta: float) -> Guarantee:
        """The guarantee of the outputs W (G + C^{-1} Z) of all steps: C is ``strategy``, Z of N(0, sigma^2) entries.

        bound: largest norm of a user's part of one sum. Raises ValueError, also where C has more than ``groups`` bands.

        Guarantees: (epsilon, delta)-DP for adding or removing one user, each sum's gradients depending on all earlier
        outputs: given these, the rows of one step of a user are N(0, sigma^2 I), shifted by g c_t with this chance,
        ||g c_t|| <= bound * largest column norm of C.
        Source: as the class; Denisov et al. (2022), Theorem 2.1, for what depends on earlier outputs.
        """
        C = as_strategy(strategy)
        multiplier = checks.positive("sigma", sigma) / (checks.positive("bound", bound) * self._longest(C))
        found = sampled_guarantee(multiplier, self.chance, self.times(C.steps), delta)
        return replace(found, source=f"{found.source}; {SOURCE}")

    def sigma(self, strategy: Strategy, bound: float, epsilon: float, delta: float) -> float:
        """The least sigma, within 1e-4 of itself, for which ``guarantee`` is at most ``epsilon``. Raises ValueError."""
        C = as_strategy(strategy)
        longest = checks.positive("bound", bound) * self._longest(C)
        multiplier = sampled_multiplier(epsilon, delta, self.chance, self.times(C.steps))
        return multiplier * longest * (1 + 1e-12)

    def times(self, steps: int) -> int:
        """How many of ``steps`` steps take one user's group, at most."""
        return -(-steps // self.groups)

    def _longest(self, C: StreamStrategy) -> float:
        """The largest column norm, rounded up, of a strategy of few enough bands."""
        if C.bands > self.groups:
            raise ValueError(
                f"strategy must be one square lower triangular matrix of at most {self.groups} bands, as many as there "
                "are groups; more would let two steps of a user share an output"
            )
        return sensitivity(C, ONCE).value


class SampledBatches(PlannedBatches):
    """The batches of :class:`CyclicPoisson` for all steps: users' numbers, of any size.

    A user's group is drawn once; each step draws its group's members by one word for each, so that the chance is at
    most ``sampling.chance`` and at least that less 2^-63. ``step`` batches are handed out; after the last one iteration
    raises RuntimeError. The draws are secret: who knows them knows who was in a batch.

    users: how many. steps: at least 1. noise: source of the 256 bits of which all draws are a function, None for the
    system's. first: the step to go on from, after a restart with the same bits. Raises TypeError, ValueError.

    Guarantees: the groups and who is in a step do not depend on the data; given the groups, users are in a step
    independently of each other, and of all other steps.
    """

    def __init__(
        self,
        sampling: CyclicPoisson,
        users: int,
        steps: int,
        *,
        noise: Noise | None = None,
        first: int = 0,
    ) -> None:
        checks.instance("sampling", sampling, CyclicPoisson)
        self.sampling = sampling
        super().__init__(users, steps, first)
        checks.fits("users", self.users)
        self._key = source(noise).words((4,)).cpu().numpy().tobytes()
        # each user's, all of them alike in size
        self._group = self._draws(self.steps).permutation(self.users) % self.sampling.groups

    def _users(self, step: int) -> list[int]:
        members = (self._group == step % self.sampling.groups).nonzero()[:, 0]
        if self.sampling.chance < 1:
            words = self._draws(step).integers((len(members),))
            members = members[words < math.floor(self.sampling.chance * 2**63)]
        return members.tolist()

    def _draws(self, step: int) -> Noise:
        """Of one step, ``steps`` for the groups: steps that are passed over need no draws."""
        return SeededNoise(int.from_bytes(self._key + step.to_bytes(8, "little"), "little"), "cpu")
