"""Protocols: from users' data to an estimate, by a curator or by messages of users.

Verbs are final and check their arguments; a class writes the ones named ``*_unchecked``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast, final

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief, keep_repr
from torchdp.draws import Draws, Shape, Simulated
from torchdp.memory import rows_at_once
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol.frames import Held, Rows, grouped, rows_of
from torchdp.protocol.records import (
    Crowd,
    Estimate,
    Layout,
    Limits,
    Objective,
    Tally,
    Users,
    tensor_of,
)

# What the distribution of a tally depends on: counts (k,), a Crowd, moments, sums.
S = TypeVar("S")
# What users send: a tensor with a row for each, or a bag.
M = TypeVar("M")
C = TypeVar("C", bound="MessageProtocol")


def counts_on(device: torch.device, summary: S) -> S:
    """Counts of types on ``device``; a crowd's rows, which may be many, stay where they are."""
    return cast(S, summary.to(device)) if isinstance(summary, Tensor) else summary


class Protocol(ABC, Generic[S]):
    """From users' data to an estimate, under one guarantee. x: one row for each user.

    It prints itself as a ``Brief`` does, without one more class among its ancestors.
    """

    _printed = Brief._printed
    _fields = Brief._fields
    _repr_html_ = Brief._repr_html_
    __repr__ = Brief.__repr__

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_repr(cls)

    # Whether users of several groups can be asked by one call.
    takes_groups: ClassVar[bool] = True

    @property
    @abstractmethod
    def held(self) -> Held:
        """What one user holds: a number of types, or the shape of numbers."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What a user is promised; its model names the channel."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Name -> shape and dtype of each part of a tally."""

    @abstractmethod
    def limits(self, n: Users) -> dict[str, Limits]:
        """Name -> what n >= 1 users can make of each part of a tally.

        With noise, but for a chance of 1e-300.
        """

    def impossible(self, tally: Tally) -> str | None:
        """Why no users can have sent this tally though its parts are within limits, or None.

        What parts say of each other; unchecked.
        """
        return None

    @property
    def home(self) -> torch.device | None:
        """Where the tensors are that read a tally; None: it has none, and reads it where it is."""
        return None

    def drawn_on(self, data: torch.device) -> torch.device:
        """Where noise is drawn for users' data there: here beside them, by each user."""
        return data

    def check(self, tally: Tally, least: int = 1) -> Tally:
        """``tally`` on ``home``, if at least so many users can have sent it.

        What every analyst calls. Raises TypeError, ValueError.
        """
        checks.instance("tally", tally, Tally).checked(self.layout, self.limits, least)
        # Tallies come from outside: one that nobody sent would be analysed as if it were private.
        wrong = self.impossible(tally)
        if wrong is not None:
            n = "so many" if isinstance(tally.n, Tensor) else tally.n
            raise ValueError(f"tally is not what {n} users can have sent: {wrong}")
        return self._at_home(tally)

    def _at_home(self, tally: Tally) -> Tally:
        return tally if self.home is None else tally.to(self.home)

    def whole(self, tally: Tally) -> Tally:
        """``check``, and the tally is of as many users as the guarantee counts on."""
        return self.check(tally)

    def validate(self, x: Tensor) -> Tensor:
        """x, if these can be users' data, one user at least: the one check of x.

        Here that it is what users hold (``held``). Raises TypeError, ValueError.
        """
        if isinstance(self.held, int):
            return checks.types("x", x, self.held)
        return checks.shaped("x", checks.precise("x", x), "n", *self.held, note=" with n >= 1")

    @final
    def summary(self, x: Rows) -> S:
        """All of x that the distribution of a tally depends on; additive. Not private.

        x: as of ``collect``, of one group. Raises TypeError, ValueError.
        """
        return self.summary_unchecked(self.validate(rows_of(x, self.held)).detach())

    def summary_unchecked(self, x: Tensor) -> S:
        """``summary``, unchecked: here the counts of the types, or a crowd of rows."""
        if isinstance(self.held, int):
            return cast(S, torch.bincount(x, minlength=self.held))
        return cast(S, Crowd.of(x))

    def validate_summary(self, summary: S) -> S:
        """summary, if whole users can have it, one at least: what sampling checks.

        Raises TypeError, ValueError.
        """
        if isinstance(self.held, int):
            return cast(S, checks.counts("summary", cast(Tensor, summary), self.held, fewest=1))
        return cast(S, Crowd.checked(summary, self.validate))

    @abstractmethod
    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """``collect``, unchecked, by any draws."""

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        """``collect`` for each of ``size`` groups, unchecked: n (size,).

        groups: the number of each user's, (n,). Here one group after the other, its rows in their
        order.
        """
        n = torch.bincount(groups, minlength=size)
        # An empty group has no users to collect from, and a tally of 0.
        parts = {}
        for name, (shape, dtype) in self.layout.items():
            parts[name] = x.new_zeros(size, *shape, dtype=dtype)
        in_order = x[groups.argsort(stable=True)]
        for group, rows in enumerate(in_order.split(n.tolist())):
            if len(rows):
                for name, part in self.collect_unchecked(rows, draws).parts.items():
                    parts[name][group] = part
        return Tally(n, parts)

    @abstractmethod
    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        """``sample_tally``, unchecked."""

    @abstractmethod
    def analyse(self, tally: Tally) -> Estimate:
        """The analyst. Raises TypeError, ValueError for what these users can not have sent."""

    @abstractmethod
    def exact(self, summary: S) -> Tensor:
        """What is estimated, (*answer). Not private."""

    @abstractmethod
    def predicted_mse(self, summary: S) -> Tensor:
        """E (value - exact)^2, (*answer), float64, squared. Users need not be whole numbers."""

    @final
    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """The largest ``objective.of(predicted_mse)`` over all data of n users, or a bound.

        () or, for n (*batch), (*batch); inf: none known.
        """
        checks.instance("objective", objective, Objective)
        return self.worst_unchecked(checks.people("n", n, 1), objective)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """``worst_mse``, unchecked; here none is known."""
        return torch.full_like(tensor_of(n), math.inf, dtype=torch.float64)

    @final
    def collect(
        self,
        x: Rows,
        *,
        groups: Rows | None = None,
        size: int | None = None,
        noise: Noise | None = None,
    ) -> Tally:
        """What the analyst hears of these users, or of each group of them.

        Args:
            x: a row for each user: a tensor, an array, a list, or a pandas Series or DataFrame
                (``rows_of``); a tensor (*batch, n, ...) has users of several groups.
            groups: the number of each user's group, (n,); n of the tally is then (size,), or
                (*batch).
            size: how many groups there are, by default up to the largest number.
            noise: None is the system's cipher.

        Raises TypeError, ValueError.
        Guarantees: for the users of each group, and for all together: who is in which group is
            public, and what one user holds moves the tally of its own group alone.
        """
        x, own, batch = grouped(x, self.held, groups, size)
        if own is None:
            # Detached: an estimate must not carry the users' data in its graph.
            x = self.validate(x).detach()
            draws = source(noise, self.drawn_on(x.device))
            return self._at_home(self.collect_unchecked(x, draws))
        if not self.takes_groups:
            raise ValueError(
                f"x must be of one group of users, not {batch}: {type(self).__name__} takes one "
                "at a time"
            )
        count = math.prod(batch)
        checks.fits("tally", count, self._numbers)
        # Rows are checked in parts of as many as a group may have, which is what a class expects.
        largest = max(1, int(torch.bincount(own, minlength=1).max()))
        x = torch.cat([self.validate(part).detach() for part in x.split(largest)])
        draws = source(noise, self.drawn_on(x.device))
        tally = self.collect_groups(x, own.to(x.device), count, draws)
        parts = {name: part.unflatten(0, batch) for name, part in tally.parts.items()}
        return self._at_home(Tally(tensor_of(tally.n).view(batch), parts))

    @property
    def _numbers(self) -> int:
        """In a tally."""
        return sum(math.prod(shape) for shape, _ in self.layout.values())

    @final
    def sample_tally(
        self, summary: S, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tally:
        """Distributed as ``collect``, no messages; of shape (*sample_shape, ...).

        It is drawn where the generator is. Raises TypeError, ValueError.
        """
        # A generator's draws can be repeated: they are for simulation, and hide nobody.
        draws = Simulated(generator)
        checks.random_source(generator, self.drawn_on(draws.device))
        shape = checks.sample_shape(sample_shape)
        summary = counts_on(draws.device, self.validate_summary(summary))
        return self._at_home(self.sample_unchecked(summary, draws, shape))

    @final
    def estimate(
        self,
        x: Rows,
        *,
        groups: Rows | None = None,
        size: int | None = None,
        noise: Noise | None = None,
    ) -> Estimate:
        """``analyse(collect(x))``; no group may be empty.

        Each call is a release: two spend the guarantee twice, ``privacy.Budget`` adds up.
        """
        return self.analyse(self.collect(x, groups=groups, size=size, noise=noise))

    @final
    def sample_estimate(
        self, summary: S, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Estimate:
        """``analyse(sample_tally(summary))``."""
        tally = self.sample_tally(summary, generator=generator, sample_shape=sample_shape)
        return self.analyse(tally)


class CuratorProtocol(Protocol[S]):
    """Collecting is the summary, released once. Nothing is sent, and tallies do not add."""

    def drawn_on(self, data: torch.device) -> torch.device:
        """Where the protocol's tensors are: noise is drawn for answers, not for users."""
        return self.home or data

    @abstractmethod
    def release(self, summary: S, draws: Draws, shape: Shape) -> Tally:
        """The summary under its noise, ``shape`` times over."""

    def added(self, x: Tensor) -> Tally:
        """What validated users add to what is released, without noise: not private.

        Such tallies add. Raises TypeError where only all users together have one.
        """
        if not isinstance(self.held, int):
            raise TypeError(
                f"protocol must be of types or GaussianMean, not {type(self).__name__}: it takes "
                "all users at once"
            )
        return Tally(len(x), {"counts": cast(Tensor, self.summary(x))})

    def noised(self, total: Tally, draws: Draws) -> Tally:
        """The release of all that was ``added``."""
        return self.release(counts_on(draws.device, cast(S, total["counts"])), draws, ())

    @final
    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.release(counts_on(draws.device, self.summary_unchecked(x)), draws, ())

    @final
    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        return self.release(summary, draws, shape)


class MessageProtocol(Protocol[S], Generic[S, M]):
    """Each user sends one message; tallies of different users add.

    In the local model each message is private by itself: tallies may be kept, added and looked
    at as they come.
    """

    # Whose messages ``collect`` holds.
    users_at_once: int = 2**18

    @property
    @abstractmethod
    def bits_per_user(self) -> float:
        """Bits that one user sends, in the mean where their number is random."""

    @abstractmethod
    def randomize_unchecked(self, x: Tensor, draws: Draws) -> M:
        """``randomize``, unchecked, by any draws."""

    @abstractmethod
    def tally(self, messages: M) -> Tally:
        """Raises TypeError, ValueError for what no user sends."""

    @abstractmethod
    def encode(self, messages: M) -> bytes:
        """Messages as bytes: bits_per_user each, rounded up to bytes."""

    @abstractmethod
    def decode(self, data: bytes) -> M:
        """Raises ValueError for bytes that no ``encode`` made."""

    def randomize(self, x: Rows, *, noise: Noise | None = None) -> M:
        """What these users send: the client half, for one row as for a million.

        Raises TypeError, ValueError.
        """
        # Detached: what is sent must not carry the users' data in its graph.
        x = self.validate(rows_of(x, self.held)).detach()
        return self.randomize_unchecked(x, source(noise, x.device))

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        tallies = []
        for part in x.split(self.users_at_once):
            tallies.append(self.tally(self.randomize_unchecked(part, draws)))
        return tallies[0] if len(tallies) == 1 else self.add(*tallies)

    @property
    def blanket(self) -> Blanket:
        """What a message has in common with everybody's, for a crowd behind a shuffler.

        Here what epsilon alone says of it. Of messages that are private by themselves.
        """
        return Blanket.unknown(self.guarantee.epsilon)

    @property
    def subject(self) -> object:
        """What is asked: answers to the same may be compared. A frozen dataclass, or self."""
        return self

    @property
    def variance_proxy(self) -> Tensor:
        """v, (*answer): values are means of Y with E exp(t (Y - E Y)) <= exp(t^2 v/2) for all t.

        Y is a user's part, whatever it holds. Intervals at all times rest on it
        (``Collection.sequence``). Raises TypeError where none is known, as of values that are no
        means of users' parts.
        """
        raise TypeError(
            "protocol must be one whose value is a mean of one number for each message, of bounded "
            "tails (a frequency oracle, linear queries, a mean), "
            f"not {type(self).__name__}: no interval holds at all times"
        )

    @property
    def empty(self) -> Tally:
        """Before the first user, on the CPU."""
        parts = {}
        for name, (shape, dtype) in self.layout.items():
            parts[name] = torch.zeros(shape, dtype=dtype, device="cpu")
        return Tally(0, parts)

    @final
    def add(self, *tallies: Tally) -> Tally:
        """One tally of all these users, on ``home``, or the device of the first that has any.

        Raises TypeError, ValueError.
        """
        checked = [self.check(tally, 0) for tally in (tallies or (self.empty,))]
        # A tally of nobody adds 0 to any batch.
        some = [tally for tally in checked if isinstance(tally.n, Tensor) or tally.n] or checked[:1]
        batches = {tuple(tensor_of(tally.n).shape) for tally in some}
        if len(batches) > 1:
            raise ValueError(
                f"tallies must be of the same groups, not of batches {sorted(batches)}"
            )
        n: Users = 0
        parts = {name: torch.zeros_like(part) for name, part in some[0].parts.items()}
        for tally in some:
            n = n + tally.n
            parts = {name: part + tally[name].to(part.device) for name, part in parts.items()}
        return Tally(n, parts)


class Relay(MessageProtocol[S, M], Generic[S, M, C]):
    """Users send what ``client`` makes of ``client_input(x)``; a class adds the analyst.

    It keeps the guarantee. Here users hold rows, and the client gets them part by part.
    """

    client: C

    def client_input(self, x: Tensor) -> Tensor:
        """The client's data of these users: x itself where nothing else is said."""
        return x

    @property
    def home(self) -> torch.device | None:
        return self.client.home

    @property
    def guarantee(self) -> Guarantee:
        return self.client.guarantee

    @property
    def blanket(self) -> Blanket:
        return self.client.blanket

    @property
    def layout(self) -> Layout:
        return self.client.layout

    def limits(self, n: Users) -> dict[str, Limits]:
        return self.client.limits(n)

    def impossible(self, tally: Tally) -> str | None:
        return self.client.impossible(tally)

    @property
    def bits_per_user(self) -> float:
        return self.client.bits_per_user

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> M:
        return self.client.randomize_unchecked(self.client_input(x), draws)

    def tally(self, messages: M) -> Tally:
        return self.client.tally(messages)

    def encode(self, messages: M) -> bytes:
        return self.client.encode(messages)

    def decode(self, data: bytes) -> M:
        return self.client.decode(data)

    @property
    def _at_once(self) -> int:
        """Users whose client data are held."""
        return rows_at_once(self._numbers)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        if self.layout != self.client.layout:  # the tally is not the client's
            return super().collect_unchecked(x, draws)
        tallies = []
        for part in x.split(self._at_once):
            tallies.append(self.client.collect_unchecked(self.client_input(part), draws))
        return self.add(*tallies)

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        if self.layout != self.client.layout:
            return super().collect_groups(x, groups, size, draws)
        tallies = []
        for part, own in zip(x.split(self._at_once), groups.split(self._at_once), strict=True):
            tallies.append(self.client.collect_groups(self.client_input(part), own, size, draws))
        return self.add(*tallies)

    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        crowd = checks.instance("summary", summary, Crowd)
        return self.client.sample_unchecked(crowd.mapped(self.client_input), draws, shape)


class Same(Relay[S, M, C]):
    """A relay whose users hold what the client's do, which checks, counts and draws their data."""

    @property
    def held(self) -> Held:
        return self.client.held

    def validate(self, x: Tensor) -> Tensor:
        return self.client.validate(x)

    def summary_unchecked(self, x: Tensor) -> S:
        return cast(S, self.client.summary_unchecked(x))

    def validate_summary(self, summary: S) -> S:
        return cast(S, self.client.validate_summary(summary))

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_unchecked(x, draws)

    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        """At the client's cost."""
        return self.client.sample_unchecked(summary, draws, shape)
