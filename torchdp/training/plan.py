"""One plan of a private training run: who is in which step, how far a user is clipped, and what noise is added."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchdp.factorization import BandedStrategy, BufferedStrategy
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee
from torchdp.training.participation import Participation, sensitivity
from torchdp.training.run import Run
from torchdp.training.sampled import CyclicPoisson


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
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        noise: Noise | None = None,
        ledger: str | Path | None = None,
    ) -> Run:
        """A run of this plan, spent once.

        noise: 256 bits of which sampling and noise are a function come from here, for None from the system. ledger: a
        file that does not exist yet; it is told of each step before its gradient is.
        """
        return Run(self, module, loss, source(noise), ledger=ledger)

    def resume(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        secret: dict[str, Any],
        *,
        step: int = 0,
        ledger: str | Path | None = None,
    ) -> Run:
        """The run of which ``secret`` is :meth:`Run.secret_state`, from the first step on that may not have been seen.

        That is the latest of the secret state's, of ``step`` (of :meth:`Run.state_dict`) and of the ledger's. Steps in
        between are lost: their noise is drawn, as later noise needs it, and answers no other sum. Without a ledger the
        caller says by ``step`` what was released. The model may be an older one. Raises ValueError, where the secret
        state or the ledger is of another plan too.

        Guarantees: the gradients of all steps, before and after, have ``guarantee``.
        """
        return Run(self, module, loss, secret, step=step, ledger=ledger)

    def spent(self, steps: int) -> Guarantee:
        """What the gradients of the first ``steps`` steps promise."""
        if not steps:
            return replace(self.guarantee, epsilon=0.0, delta=0.0, mu=None)
        C, delta = self.strategy.leading(steps), self.guarantee.delta
        if isinstance(self.sampling, CyclicPoisson):
            return self.sampling.guarantee(C, self.sigma, self.bound, delta)
        longest = self.bound * sensitivity(C, self.sampling).value
        return gaussian_guarantee(self.sigma, delta, longest, Model.CENTRAL, Neighbours.ADD_REMOVE)

    def digest(self) -> bytes:
        """32 bytes that name this plan."""
        C = self.strategy
        kept = (C.coefficients,) if isinstance(C, BandedStrategy) else (C.poles, C.zeros, C.before, C.after)
        numbers = b"".join(each.cpu().contiguous().numpy().tobytes() for each in kept)
        rest = (C.steps, self.sampling, self.bound, self.sigma, self.users, self.batch)
        return hashlib.sha256(numbers + repr(rest).encode()).digest()

    def __str__(self) -> str:
        C = self.strategy
        kind = f"{C.bands} bands" if isinstance(C, BandedStrategy) else f"{len(C.poles)} buffers"
        return (
            f"{self.guarantee}\n{C.steps} steps of {self.batch} of {self.users} users, {self.sampling}, "
            f"clipped to {self.bound:g}; noise of standard deviation {self.sigma:g} over a strategy of {kind}"
        )
