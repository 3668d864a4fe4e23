"""One plan of a private training run: who is in which step, how far a user is clipped, and what noise is added."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.factorization import BandedStrategy, BufferedStrategy
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.randomness import keyed_generator
from torchdp.training.batches import Batches
from torchdp.training.clipping import clip_and_sum, set_gradients
from torchdp.training.noise import CorrelatedNoise
from torchdp.training.participation import Participation
from torchdp.training.sampled import CyclicPoisson, PoissonBatches


@dataclass(frozen=True)
class Plan:
    """Sampling, clipping, strategy and noise that belong together, and what they promise together.

    strategy: C, as coefficients; sampling: how users come into the steps; bound: largest norm of a user's part; sigma:
    standard deviation of the noise before C^{-1}, in the gradients' units; users, batch: how many there are, and are in
    a step (:class:`CyclicPoisson`: on average). guarantee: of all steps together. standard_errors: of each row of
    W (G + C^{-1} Z), (queries,), in the gradients' units. Made by :func:`choose`.
    """

    strategy: BandedStrategy | BufferedStrategy
    sampling: Participation | CyclicPoisson
    bound: float
    sigma: float
    users: int
    batch: int
    guarantee: Guarantee
    standard_errors: Tensor

    def start(
        self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *, noise: Noise | None = None
    ) -> "Run":
        """A run of this plan, spent once. noise: where sampling and noise come from, None for the system's."""
        return Run(self, module, loss, source(noise))

    def __str__(self) -> str:
        C = self.strategy
        kind = f"{C.bands} bands" if isinstance(C, BandedStrategy) else f"{len(C.poles)} buffers"
        return (
            f"{self.guarantee}\n{C.steps} steps of {self.batch} of {self.users} users, {self.sampling}, "
            f"clipped to {self.bound:g}; noise of standard deviation {self.sigma:g} over a strategy of {kind}"
        )


class Run:
    """The steps of a :class:`Plan`, each once and in order.

        for users in run:  # who is in this step
            run.backward(inputs[users], targets[users])  # private gradients in ``.grad``
            optimizer.step()

    ``backward`` clips each user's gradient, adds them up, adds the step's noise and divides by ``plan.batch``. Each
    batch that was handed out must be used, once, before the next one; else RuntimeError, and nothing is released.

    module, loss: as in :func:`clip_and_sum`, one example for each user. Raises TypeError, ValueError.

    Guarantees: all gradients together, and so the trained parameters, have ``plan.guarantee``.
    """

    def __init__(
        self, plan: Plan, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], draws: Noise
    ) -> None:
        self.plan, self.module, self.loss = checks.instance("plan", plan, Plan), module, loss
        parameters = [p for p in checks.instance("module", module, nn.Module).parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("module must have a parameter that requires a gradient")
        steps, dtype = plan.strategy.steps, torch.promote_types(parameters[0].dtype, torch.float32)
        self.batches: Batches | PoissonBatches
        if isinstance(plan.sampling, CyclicPoisson):
            self.batches = PoissonBatches(plan.sampling, plan.users, steps, noise=draws)
        else:
            order = _public(draws.words((4,)))
            self.batches = Batches(plan.sampling, plan.users, plan.batch, steps, generator=order)
        strategy, size = plan.strategy.to(parameters[0].device), sum(p.numel() for p in parameters)
        self.noise = CorrelatedNoise(strategy, size, plan.sigma, noise=draws, dtype=dtype)
        self._waiting: int | None = None  # users in the batch that was handed out and not yet used

    @property
    def step(self) -> int:
        """How many steps are spent."""
        return self.noise.step

    @property
    def guarantee(self) -> Guarantee:
        """Of all steps, spent or not."""
        return self.plan.guarantee

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        batches = iter(self.batches)
        while len(self.batches):
            if self._waiting is not None:
                raise RuntimeError(
                    "the last batch was not used: call backward once for each, or the steps would not fit"
                )
            users = torch.tensor(next(batches), dtype=torch.int64)
            self._waiting = len(users)
            yield users
        if self._waiting is not None:
            raise RuntimeError("the last batch was not used: call backward once for each")

    def backward(self, inputs: Tensor, targets: Tensor) -> None:
        """Puts the step's private mean gradient into ``.grad`` of the module's parameters; one row for each user."""
        if self._waiting is None:
            raise RuntimeError("no batch waits: backward once for each batch that iteration hands out")
        if len(inputs) != self._waiting:
            raise ValueError(f"inputs must be those of the batch's {self._waiting} users, not {len(inputs)}")
        total = clip_and_sum(self.module, self.loss, inputs, targets, self.plan.bound)
        private = self.noise(total)
        self._waiting = None
        set_gradients(self.module, private / self.plan.batch)


def _public(words: Tensor) -> torch.Generator:
    """A generator for a public order: it may become known, and tells of no other word of the source."""
    return keyed_generator(words.cpu().numpy().tobytes())
