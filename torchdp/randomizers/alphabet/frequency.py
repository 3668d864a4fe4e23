"""Frequency oracles: finite alphabets, reports that are unbiased for the user's indicator vector."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise, source
from torchdp.randomizers.base import LocalRandomizer, user_counts

WORDS_AT_ONCE = 2**18  # of messages held in memory by the per-user path


class FrequencyOracle(LocalRandomizer):
    """A user of type x in [0, k) sends a message; decoded, it is a report Y in R^k with E Y = e_x.

    The *tally* of many messages is what the analyst needs: a vector of ``tallies`` counts, additive over groups of
    users. ``tally`` computes it from messages and ``sample_reports`` draws it at once, exactly in law, at a cost
    that does not grow with the number of users. For n users with histogram h, the workload answers W h are estimated
    with covariance sum_x h_x W Cov(Y | x) W^T / n.
    """

    k: int
    epsilon: float

    @property
    @abstractmethod
    def tallies(self) -> int:
        """Length of a tally."""

    @abstractmethod
    def covariance(self, x: int) -> Tensor:
        """Cov(Y | x), (k, k), float64, exactly. Raises ValueError."""

    @abstractmethod
    def workload_variance(self, W: Tensor) -> Tensor:
        """Var(<W_i, Y> | x) for each query i and type x, exactly: (*batch, m, k) -> (*batch, m, k), float64."""

    @abstractmethod
    def tally(self, messages: Tensor) -> Tensor:
        """The tally of these messages: (tallies,), int64."""

    @abstractmethod
    def decode_counts(self, reports: Tensor) -> Tensor:
        """Sum over the users of Y, from their tally: (*batch, tallies) -> (*batch, k), float64."""

    @abstractmethod
    def _reports(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """``sample_reports`` for counts (k,) that are checked."""

    @property
    @abstractmethod
    def _words(self) -> int:
        """Numbers that one message takes in memory."""

    def sample(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """One message for each user: int64, x: integers in [0, k) of any shape; noise: the system's where None.

        ``messages`` says what a message is. Raises TypeError, ValueError.
        """
        x = checks.indices("x", x, self.k)
        return self.messages(x, source(noise, x.device))

    def decode_sum(self, messages: Tensor) -> Tensor:
        """Sum of Y over the users of these messages: (k,), float64."""
        return self.decode_counts(self.tally(messages))

    def answer(self, reports: Tensor, W: Tensor) -> Tensor:
        """Unbiased estimate of W c, c the users' counts of types: (*batch, tallies), (m, k) -> (*batch, m)."""
        return self.decode_counts(reports) @ self._workload(W).mT

    def collect(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """The tally of one message of each user, part by part: (n,) integers in [0, k) -> (tallies,), int64.

        In law ``sample_reports``, from messages that are drawn for each user and not kept. Memory beside ``x``, of
        whatever width its integers have, does not grow with the number of users. noise: the system's where None.
        Raises TypeError, ValueError.
        """
        return self._collect(listed(x), source(noise, x.device))

    def sample_reports(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """The tally where counts[x] users hold x: (*sample_shape, tallies), int64, exactly in law.

        Each oracle states the cost. Raises TypeError, ValueError.
        """
        counts = user_counts(counts, self.k)
        draws = Simulated(generator, counts.device)
        return self._reports(counts, checks.sample_shape(sample_shape), draws)

    def _collect(self, x: Tensor, draws: Draws) -> Tensor:
        """``collect`` for types (n,) whose range is unread."""
        parts = in_parts(x, self.k, WORDS_AT_ONCE // self._words)
        total = torch.zeros(self.tallies, dtype=torch.int64, device=x.device)
        for part in parts:
            total += self.tally(self.messages(part.long(), draws))
        return total

    def sample_sum(
        self, points: Tensor, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """Sum of the decoded reports of counts[i] users who hold points[i]: (*sample_shape, k), float64.

        points: (m,) integers in [0, k); counts: (m,). Raises ValueError, TypeError.
        """
        points = checks.indices("points", points, self.k)
        if points.ndim != 1:
            raise ValueError(f"points must have shape (m,), not {tuple(points.shape)}")
        counts = user_counts(counts, points.shape[0])
        histogram = torch.zeros(self.k, dtype=torch.int64, device=counts.device).index_add_(0, points, counts)
        return self.decode_counts(self.sample_reports(histogram, generator=generator, sample_shape=sample_shape))

    def _workload(self, W: Tensor) -> Tensor:
        W = checks.matrix("W", W).double()
        if W.shape[-1] != self.k:
            raise ValueError(f"W must have {self.k} columns, one for each type, not shape {tuple(W.shape)}")
        return W

    def _type(self, x: int) -> int:
        if not 0 <= checks.integer("x", x, 0) < self.k:
            raise ValueError(f"x must lie in [0, {self.k}), not {x!r}")
        return x

    def _tallied(self, reports: Tensor) -> Tensor:
        reports = checks.floating("reports", reports).double()
        if reports.ndim == 0 or reports.shape[-1] != self.tallies:
            raise ValueError(f"reports must have shape (..., {self.tallies}), not {tuple(reports.shape)}")
        return reports


def listed(x: Tensor) -> Tensor:
    """The users' types in a row, of the width that their integers have, their range unread: (n,). Raises TypeError."""
    checks.indices("x", x.flatten()[:0] if isinstance(x, Tensor) and x.layout == torch.strided else x, 1)
    return x.flatten()


def in_parts(x: Tensor, k: int, users: int) -> Sequence[Tensor]:
    """(n,) integers in groups of so many users, all in [0, k), which is known before one is used. Raises ValueError."""
    parts = x.split(max(1, users))
    for part in parts:
        checks.indices("x", part, k)
    return parts


def all_counted(tally: Tensor, users: Tensor, x: Tensor, k: int) -> Tensor:
    """The tally, if it counts as many users as ``x`` holds: all have types in [0, k). Raises ValueError."""
    if int(users) != x.numel():
        raise ValueError(f"x must lie in [0, {k}); it holds values outside")
    return tally


def alphabet(k: int) -> int:
    """Number of types, at least 2. Raises ValueError."""
    return checks.integer("k", k, 2)


def budget(epsilon: float) -> float:
    """epsilon in (0, 700]: its exponential is a float. Raises ValueError."""
    epsilon = checks.positive("epsilon", epsilon)
    if epsilon > 700:
        raise ValueError(f"epsilon must be at most 700, not {epsilon!r}")
    return epsilon


def spread(W: Tensor) -> tuple[Tensor, Tensor]:
    """Each row less its mean, (*batch, m, k), and the sum of its squares, (*batch, m, 1)."""
    d = W - W.mean(-1, keepdim=True)
    return d, d.square().sum(-1, keepdim=True)
