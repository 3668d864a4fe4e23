"""What can be said of every protocol, whoever is trusted."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar, cast, final

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.protocol.records import Crowd, Estimate, Layout, Limits, Objective, Tally

S = TypeVar("S")  # what the law of a tally depends on: counts (k,), a Crowd, moments, sums


class Protocol(ABC, Generic[S]):
    """From users' data to an estimate, under one guarantee. x: one row for each user.

    The final verbs check their arguments and draw; ``hear`` and ``drawn`` are what a class writes, unchecked.
    """

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What a user is promised; its model names the channel."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Name -> shape and dtype of each part of a tally."""

    @abstractmethod
    def limits(self, n: int) -> dict[str, Limits]:
        """Name -> what n >= 1 users can make of each part of a tally, with noise but for a chance of 1e-300."""

    def impossible(self, tally: Tally) -> str | None:
        """Why no users can have sent this tally though all of its parts are within their limits; None where they can.

        What parts say of each other; unchecked.
        """
        return None

    def check(self, tally: Tally, least: int = 1) -> Tally:
        """``tally``, if it has this layout and at least so many users, who can have sent it: what every analyst calls.

        Raises TypeError, ValueError.
        """
        checks.instance("tally", tally, Tally).checked(self.layout, self.limits, least)
        wrong = self.impossible(tally)
        if wrong is not None:
            raise ValueError(f"tally is not what {tally.n} users can have sent: {wrong}")
        return tally

    @abstractmethod
    def admit(self, x: Tensor) -> Tensor:
        """x, if these can be users' data, one user at least. Raises TypeError, ValueError: the one check of x."""

    def summary(self, x: Tensor) -> S:
        """All of x that the distribution of a tally depends on; additive. Not private. Here a crowd of rows."""
        return cast(S, Crowd.of(x))

    def counted(self, summary: S) -> S:
        """summary, if whole users can have it, one at least. Raises TypeError, ValueError: what sampling checks."""
        return cast(S, Crowd.checked(summary, self.admit))

    @abstractmethod
    def hear(self, x: Tensor, draws: Draws) -> Tally:
        """``collect``, unchecked, by any draws."""

    @abstractmethod
    def drawn(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """``sample_tally``, unchecked."""

    @abstractmethod
    def analyse(self, tally: Tally) -> Estimate:
        """The analyst. Raises TypeError, ValueError for what these users can not have sent."""

    @abstractmethod
    def exact(self, summary: S) -> Tensor:
        """What is estimated, (*answer). Not private."""

    @abstractmethod
    def predicted_mse(self, summary: S) -> Tensor:
        """E (value - exact)^2, (*answer), float64, squared. Shares times n will do: users need not be whole."""

    def worst_mse(self, n: int, objective: Objective = Objective.WORST) -> Tensor:
        """(): the largest ``objective.of(predicted_mse)`` over all data of n users, or a bound; inf: none known."""
        checks.integer("n", n, 1)
        checks.instance("objective", objective, Objective)
        return torch.tensor(torch.inf, dtype=torch.float64)

    @final
    def collect(self, x: Tensor, *, noise: Noise | None = None) -> Tally:
        """What the analyst hears of these users. noise: None is the system's cipher. Raises TypeError, ValueError."""
        x = self.admit(x).detach()  # an estimate must not carry the users' data in its graph
        return self.hear(x, source(noise, x.device))

    @final
    def sample_tally(self, summary: S, *, generator: torch.Generator, sample_shape: Sequence[int] = ()) -> Tally:
        """In law ``collect``, no message made; parts of shape (*sample_shape, ...). Raises TypeError, ValueError."""
        return self.drawn(self.counted(summary), Simulated(generator), checks.sample_shape(sample_shape))

    @final
    def estimate(self, x: Tensor, *, noise: Noise | None = None) -> Estimate:
        """``analyse(collect(x))``."""
        return self.analyse(self.collect(x, noise=noise))

    @final
    def sample_estimate(
        self, summary: S, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Estimate:
        """``analyse(sample_tally(summary))``."""
        return self.analyse(self.sample_tally(summary, generator=generator, sample_shape=sample_shape))
