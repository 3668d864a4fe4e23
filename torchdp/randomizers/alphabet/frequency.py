"""Frequency oracles: finite alphabets, reports unbiased for the user's indicator vector.

Notation: x is a user's type, Y its decoded report, E Y = e_x; Y_i = <W_i, Y> is its part of answer
i of a workload W; Q holds the distributions of the messages, one column for each type.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.memory import rows_at_once
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.interval import ErrorParts, Range
from torchdp.protocol.records import users_of
from torchdp.randomizers.base import user_counts
from torchdp.randomizers.draws import multinomial
from torchdp.simplex import onto_simplex

# Of messages held in memory by the per-user path.
WORDS_AT_ONCE = 2**18

# Relative difference of decoded values that is rounding.
ROUNDED = 1e-9

# Below it d/artanh(d) is its series: 0/0 at 0, and off by 1e-17 here.
SERIES = 1e-4

TINY = 1e-300


class TypeVariance(ABC):
    """Var(Y_i | x) of one user's part Y_i of answer i, for each type x that the user may hold.

    It is ``slope`` times what the user adds to the answer, and a rest: under all types with one
    answer it is the rest alone that differs.
    """

    slope: Tensor | float
    """(m,) or a number, by regression over the types."""
    step: Tensor | float
    """The least distance of two values of Y_i, (m,) or a number."""

    @abstractmethod
    def under(self, shares: Tensor) -> Tensor:
        """Its mean over shares of types, (*batch, k) -> (*batch, m); linear in them."""

    @abstractmethod
    def rest(self, shares: Tensor) -> Tensor:
        """``under`` less the slope times the answers of such users, (*batch, k) -> (*batch, m)."""

    @property
    @abstractmethod
    def ends(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """The least and the largest over types, (m,) or one number each."""

    @abstractmethod
    def squares(self) -> "TypeVariance":
        """E(Y_i^2 | x), in the place of the variance."""

    def plug_in(self, shares: Tensor) -> Tensor:
        """An estimate of ``rest`` from the users' decoded shares: (*batch, k) -> (*batch, m).

        The larger of two. At the decoded shares themselves, moved to the sum 1, it has no bias; but
        what it says of a query that few messages tell of is noisy. At the nearest histogram it is
        steady; but that takes from a frequent type, whose own variance may be fifty times that of
        others.
        """
        moved = shares + (1 - shares.sum(-1, keepdim=True)) / shares.shape[-1]
        return torch.maximum(self.rest(moved), self.rest(onto_simplex(shares)))

    def estimate(
        self,
        value: Tensor,
        shares: Tensor,
        tally: Tally,
        limits: Range,
        own: Tensor | None = None,
        sampled: bool = False,
    ) -> Estimate:
        """``value``, (*batch, m), with intervals of the answers t likely under the variance at t.

        Args:
            value: the mean of the users' Y.
            shares: of the types, (*batch, k), decoded, or a histogram near these.
            tally: of the users.
            limits: of the answers; the standard error is that at the nearest possible one.
            own: the variance at ``shares``, (*batch, m), of a decoder that is not the plain one.
            sampled: whether users are drawn from a population: t^2 comes off the mean of squares.
        """
        moments = self.squares() if sampled else self
        # The variance at an answer t is linear in t: by regression over the types.
        n = tally.users(1)
        per_user = torch.ones_like(value) / n
        scale = torch.ones_like(value)
        if own is not None:
            added = own - self.under(shares)
            scale = 1 + added / moments.under(shares).clamp_min(TINY)
        slope = scale * moments.slope
        possible = value.clamp(*limits)
        plug_in = moments.plug_in(shares) + moments.slope * possible
        known = scale * plug_in.clamp(*moments.ends)
        variance = known + slope * (value - possible) - sampled * value.square()
        total_slope = (slope - 2 * sampled * value) / n
        half_step = moments.step * per_user / 2
        # Counts of reports are whole numbers: values lie on a lattice of these half steps.
        parts = ErrorParts(
            variance=(variance / n)[..., None],
            slope=total_slope[..., None],
            curvature=-sampled * per_user[..., None],
            step=half_step[..., None],
        )
        # Estimated squares less t^2 may fall below 0: the standard error is then 0.
        square = (known - sampled * possible.square()) / n
        return Estimate(
            value,
            square.clamp_min(0).sqrt(),
            tally.n,
            error=parts,
            limits=limits,
            sampled=sampled,
            population=partial(self.estimate, value, shares, tally, limits, own, True),
        )


@dataclass(frozen=True)
class AlikeVariance(TypeVariance):
    """Var(Y_i | x) where all k types are alike: ``own`` for i = x, ``other`` for any other i."""

    k: int
    own: float
    other: float
    step: float

    @property
    def slope(self) -> float:  # type: ignore[override]
        return self.own - self.other

    def under(self, shares: Tensor) -> Tensor:
        return self.rest(shares) + self.slope * shares

    def rest(self, shares: Tensor) -> Tensor:
        return self.other * shares.sum(-1, keepdim=True)

    @property
    def ends(self) -> tuple[float, float]:
        return min(self.own, self.other), max(self.own, self.other)

    def squares(self) -> "AlikeVariance":
        return replace(self, own=self.own + 1)

    def worst(self, objective: Objective) -> Tensor:
        mean = self.other + self.slope / self.k
        mse = self.ends[1] if objective is Objective.WORST else mean
        return torch.tensor(mse, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class VarianceMatrix(TypeVariance):
    """Var(Y_i | x) in general.

    Args:
        matrix: i by x, (m, k).
        queries: the answers of a user of each type, (m, k).
        step: the least distance of two values of Y_i, (m,).
    """

    matrix: Tensor
    queries: Tensor
    step: Tensor

    @cached_property
    def slope(self) -> Tensor:  # type: ignore[override]
        centred = self.queries - self.queries.mean(1, keepdim=True)
        size = centred.square().sum(1).clamp_min(TINY)
        return (self.matrix * centred).sum(1) / size

    def under(self, shares: Tensor) -> Tensor:
        return shares @ self.matrix.mT.to(shares.device)

    def rest(self, shares: Tensor) -> Tensor:
        return self.under(shares) - self.slope * (shares @ self.queries.mT)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        return self.matrix.amin(-1), self.matrix.amax(-1)

    def squares(self) -> "VarianceMatrix":
        return replace(self, matrix=self.matrix + self.queries.square())

    def worst(self, objective: Objective) -> Tensor:
        worst = objective is Objective.WORST
        of_types = self.matrix.amax(0) if worst else self.matrix.mean(0)
        return of_types.amax()


class FrequencyOracle(MessageProtocol[Tensor, Tensor]):
    """A user of type x in [0, k) sends a message; decoded, it is a report Y in R^k with E Y = e_x.

    The value is the users' shares of types, (k,). A tally holds the ``reports``: how many users
    sent each message, or set each bit of theirs. ``sample_tally`` costs the same whatever the
    number of users. For n users with histogram h, the workload answers W h / n have covariance
    sum_x h_x W Cov(Y | x) W^T / n^2.
    """

    k: int
    epsilon: float

    @property
    def held(self) -> int:
        return self.k

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many messages there are."""

    @property
    def bits_per_user(self) -> int:
        return (self.outputs - 1).bit_length()

    @property
    def device(self) -> torch.device:
        """Where the tensors of this oracle lie; the CPU where it holds none."""
        return self.home or torch.device("cpu")

    @property
    @abstractmethod
    def variance(self) -> AlikeVariance | VarianceMatrix:
        """Var(Y_i | x) of the shares of types."""

    @abstractmethod
    def covariance(self, x: int) -> Tensor:
        """Cov(Y | x), (k, k), float64, exactly. Raises ValueError."""

    @abstractmethod
    def workload_variance(self, W: Tensor) -> Tensor:
        """Var(<W_i, Y> | x), exactly: (*batch, m, k) -> (*batch, m, k), float64."""

    @abstractmethod
    def workload_proxy(self, W: Tensor) -> Tensor:
        """Variance proxies of <W_i, Y>, whatever the user's type: (m, k) -> (m,)."""

    @abstractmethod
    def workload_step(self, W: Tensor) -> Tensor:
        """The least distance of two values of <W_i, Y>, (m, k) -> (m,).

        Where messages are sets of bits, of two that differ in one type.
        """

    @property
    def variance_proxy(self) -> Tensor:
        """(k,)."""
        # Types that are alike have one proxy.
        different = 1 if isinstance(self.variance, AlikeVariance) else self.k
        return self.workload_proxy(self.identity[:different]).expand(self.k)

    @property
    def identity(self) -> Tensor:
        """(k, k), the workload of all types."""
        return torch.eye(self.k, dtype=torch.float64, device=self.device)

    @abstractmethod
    def totals(self, tally: Tally) -> Tensor:
        """Sum of Y over the users: (*batch, k), float64. Unchecked."""

    @abstractmethod
    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """The reports where counts[i, x] users hold x, exactly in distribution.

        (rows, k) -> (rows, reports), int64.
        """

    def laws(self, types: Tensor) -> Tensor:
        """Distributions of the messages, columns of Q: (t,) types -> (t, outputs), float64.

        Raises ValueError where messages are sets of bits: they are too many to be listed.
        """
        raise ValueError(
            f"{type(self).__name__} has too many messages to list; its reports are counts of bits"
        )

    @property
    def entry_variance(self) -> float | None:
        """Of an entry of Y but the user's, where messages are too many for ``laws``; else None."""
        return None

    @cached_property
    def _listed(self) -> Tensor:
        return self.laws(torch.arange(self.k))

    def mixed(self, shares: Tensor) -> Tensor:
        """Distribution of the message of a user of random type: (*batch, k) -> (*batch, outputs).

        shares: of the types, of sum 1. Raises ValueError as ``laws`` does.
        """
        return shares @ self._listed.to(shares.device)

    def gathered(self, values: Tensor) -> Tensor:
        """Mean of the messages' values, (*batch, outputs), for each type: (*batch, k)."""
        return values @ self._listed.mT.to(values.device)

    @property
    def layout(self) -> Layout:
        return {"reports": ((self.outputs,), torch.int64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"reports": Limits(0, n, n)}

    @property
    def words(self) -> int:
        """Numbers that one message takes in memory."""
        return 1

    def validate(self, x: Tensor) -> Tensor:
        """x, (n,) types of any width of integers, n >= 1. Raises TypeError, ValueError."""
        return checks.types("x", x, self.k, widen=False)

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack(checks.indices("messages", messages, self.outputs), self.bits_per_user)

    def decode(self, data: bytes) -> Tensor:
        return checks.indices("data", wire.unpack(data, self.bits_per_user), self.outputs)

    def tally(self, messages: Tensor) -> Tally:
        """messages: (n,) integers below ``outputs``, or (n, words) packed bits.

        Raises TypeError, ValueError.
        """
        rows = self.checked(messages)
        return Tally(len(rows), {"reports": self._counted(rows)})

    def checked(self, messages: Tensor) -> Tensor:
        """``messages``, if users send these. Raises TypeError, ValueError."""
        indices = checks.indices("messages", messages, self.outputs)
        return checks.shaped("messages", indices, "n", empty=True)

    def _counted(self, messages: Tensor) -> Tensor:
        """The reports of messages that are checked."""
        return torch.bincount(messages, minlength=self.outputs)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """Messages are drawn for each user and not kept: memory beside ``x`` does not grow."""
        size, dtype = self.layout["reports"]
        total = torch.zeros(size, dtype=dtype, device=x.device)
        for part in x.split(self._users_at_once):
            total += self._counted(self.randomize_unchecked(part, draws))
        return Tally(len(x), {"reports": total})

    @property
    def _users_at_once(self) -> int:
        return max(1, WORDS_AT_ONCE // self.words)

    def _counted_in(self, groups: Tensor, size: int, messages: Tensor) -> Tensor:
        """The reports of each group, (size, reports)."""
        cells = groups * self.outputs + messages
        return torch.bincount(cells, minlength=size * self.outputs).view(size, self.outputs)

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        """In one pass: memory for one part of the users, and for two tables of all groups."""
        shape, dtype = self.layout["reports"]
        total = x.new_zeros(size, *shape, dtype=dtype)
        at_once = self._users_at_once
        for part, own in zip(x.split(at_once), groups.split(at_once), strict=True):
            total += self._counted_in(own, size, self.randomize_unchecked(part, draws))
        return Tally(torch.bincount(groups, minlength=size), {"reports": total})

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """Each oracle states the cost. Raises TypeError, ValueError for what are no counts."""
        counts = user_counts("summary", summary, self.k).to(draws.device)
        batch = (*shape, *counts.shape[:-1])
        flat = counts.expand(*batch, self.k).reshape(-1, self.k)
        rows = flat.split(rows_at_once(max(self.layout["reports"][0])))
        reports = torch.cat([self._reports(some, draws) for some in rows])
        return Tally(users_of(counts), {"reports": reports.view(*batch, reports.shape[-1])})

    def analyse(self, tally: Tally) -> Estimate:
        """Unbiased shares, (*batch, k): some may be negative."""
        tally = self.check(tally)
        value = self.totals(tally) / tally.users(1)
        return self.variance.estimate(value, value, tally, (0.0, 1.0))

    def answers(self, tally: Tally, W: Tensor) -> Tensor:
        """Unbiased estimate of W c, c the users' counts of types: (m, k) -> (*batch, m).

        ``tally`` is unchecked.
        """
        return self.totals(tally) @ self._workload(W).mT

    def exact(self, summary: Tensor) -> Tensor:
        """The shares, (*batch, k)."""
        counts = checks.users("summary", summary, self.k)
        return counts / counts.sum(-1, keepdim=True)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        counts = checks.users("summary", summary, self.k)
        return self.variance.under(counts) / counts.sum(-1, keepdim=True).square()

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return self.variance.worst(objective) / n

    def _workload(self, W: Tensor) -> Tensor:
        W = checks.matrix("W", W).double()
        return checks.shaped("W", W, ..., "queries", self.k, note=", one column for each type")

    def _type(self, x: int) -> int:
        return checks.integer("x", x, 0, self.k - 1)


class StrategyOracle(FrequencyOracle):
    """One that is read through a decoder V with V Q = W."""

    @abstractmethod
    def decoder(self, W: Tensor) -> Tensor:
        """V with V Q = W: (*batch, q, k) -> (*batch, q, outputs).

        Raises ValueError where there is none.
        """

    def covariance(self, x: int) -> Tensor:
        types = torch.tensor([self._type(x)], dtype=torch.int64, device=self.device)
        distribution = self.laws(types)[0]
        V = self.decoder(self.identity)
        # Centred before it is squared: E Y Y^T less e_x e_x^T would cancel.
        centred = V - (V @ distribution)[:, None]
        return (centred * distribution) @ centred.mT

    @cached_property
    def variance(self) -> AlikeVariance | VarianceMatrix:
        every = self.identity
        return VarianceMatrix(self.workload_variance(every), every, self.workload_step(every))

    def workload_variance(self, W: Tensor) -> Tensor:
        """sum_y V_iy^2 Q[y, x] - W_ix^2, a few queries at a time."""
        W = self._workload(W)
        queries = W.reshape(-1, self.k)
        parts = queries.split(rows_at_once(4 * self.outputs))
        second = [self.gathered(self.decoder(rows).square()) for rows in parts]
        # V Q = W: the mean of <W_i, Y> is W_ix, whose square comes off.
        return torch.cat(second).view(W.shape) - W.square()

    def workload_proxy(self, W: Tensor) -> Tensor:
        """By the least and largest entry of the decoder for each query."""
        V = self.decoder(W)
        return bounded_proxy(V.amin(-1), V.amax(-1), self._workload(W))

    def workload_step(self, W: Tensor) -> Tensor:
        return least_step(self.decoder(W))

    def _reports(self, counts: Tensor, draws: Draws) -> Tensor:
        """One multinomial for each type held: O(k outputs) binomials, whatever the users."""
        result = counts.new_zeros(len(counts), self.outputs)
        every = torch.arange(self.k, device=self.device)
        for types in every.split(rows_at_once(self.outputs)):
            laws = self.laws(types).to(counts.device)
            result += multinomial(counts[:, types.to(counts.device)], laws, draws)
        return result


def keep_range(oracle: Any) -> None:
    """Refuses k and epsilon of a frozen dataclass but k >= 2 and epsilon in (0, 700].

    Raises TypeError, ValueError.
    """
    checks.keep(oracle, k=partial(checks.integer, least=2), epsilon=checks.positive)
    checks.within("epsilon", oracle.epsilon, 0, 700)  # its exponential must be a float


def spread(W: Tensor) -> tuple[Tensor, Tensor]:
    """Each row less its mean, (*batch, m, k), and the sum of its squares, (*batch, m, 1)."""
    d = W - W.mean(-1, keepdim=True)
    return d, d.square().sum(-1, keepdim=True)


def least_step(values: Tensor) -> Tensor:
    """The least distance of two values of a row, (m, v) -> (m,); 0 of rows of one value.

    Distances that rounding explains do not count.
    """
    steps = values.sort(-1).values.diff()
    real = steps > ROUNDED * values.abs().amax(-1, keepdim=True)
    least = torch.where(real, steps, torch.inf).amin(-1)
    return least.nan_to_num(posinf=0.0)


def bounded_proxy(low: Tensor, high: Tensor, means: Tensor) -> Tensor:
    """The largest variance proxy, (m,), of variables in [low, high] with one of these means.

    Of all that have one mean the variable with the values low and high alone has the largest E
    exp(t Y), since exp is convex; with d = (low + high - 2 mean)/(high - low) its least proxy is
    (high - low)^2/4 d/artanh(d). low, high: (m,); means: (m, k).
    Source: Hoeffding (1963), the first; Kearns, Saul (1998), the second.
    """
    width = (high - low).clamp_min(TINY)
    twice_from_middle = (low + high)[:, None] - 2 * means
    # Beyond +-1 is rounding; at +-1 the variable is constant, and the share is 0.
    d = (twice_from_middle / width[:, None]).clamp(-1, 1)
    share = torch.where(d.abs() < SERIES, 1 - d.square() / 3, d / torch.atanh(d))
    return width.square() / 4 * share.amax(-1)
