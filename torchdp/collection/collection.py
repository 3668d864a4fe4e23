"""Messages that arrive in batches, added up as they come; the names of the batches."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.description import same
from torchdp.privacy import Guarantee, Model
from torchdp.protocol import Estimate, MessageProtocol, Tally
from torchdp.protocol.records import single


class Batches(Mapping[str, str]):
    """name -> digest, never changed: ``with_`` returns a longer one, which shares its entries.

    So n batches cost memory and time in proportion to n, while every collection on the way keeps
    its own. Only a second continuation of the same mapping copies. Threads need no lock: the right
    to continue is popped once.
    """

    def __init__(self, entries: Mapping[str, str] | None = None) -> None:
        # by name: number and digest; longer mappings append, and this one ends at its size
        self._shared: dict[str, tuple[int, str]] = {}
        self._size = 0
        self._right = [True]
        self._append(entries or {})

    def _append(self, fresh: Mapping[str, str]) -> None:
        for number, (name, text) in enumerate(fresh.items(), self._size):
            self._shared[name] = number, text
        self._size += len(fresh)

    def with_(self, fresh: Mapping[str, str]) -> "Batches":
        """These entries and ``fresh``, whose names are new."""
        longer = Batches()
        longer._size = self._size
        try:
            self._right.pop()
            longer._shared = self._shared
        except IndexError:
            # Only as far as this mapping goes: what the first continuation appended is not its.
            longer._shared = dict(list(self._shared.items())[: self._size])
        longer._append(fresh)
        return longer

    def __getitem__(self, name: str) -> str:
        number, text = self._shared[name]
        # An entry of a longer mapping with which the dictionary is shared.
        if number >= self._size:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        # A list first: another thread may append while somebody iterates.
        return iter(list(self._shared)[: self._size])

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[type["Batches"], tuple[dict[str, str]]]:
        return Batches, (dict(self),)


@dataclass(frozen=True, eq=False)
class Collection(Brief):
    """What has arrived: the tally that the analyst needs, of which users, in which batches.

    It is a value: ``add`` and ``merge`` return another one. Start with ``Collection.of(protocol)``.
    A batch has a name, and a batch that comes again under its name (a retry) is counted once.

    Args:
        protocol: of messages in the local model.
        batches: name -> SHA-256 of the batch's content.
        tally: of all of them.

    Guarantees: those of the protocol, for users who send their messages once: the tally, the
    digests and all that is computed from them depend on users through their messages alone. One who
    answers in two batches spends epsilon twice; names are chosen by the collector and must not
    reveal users' values.
    """

    protocol: MessageProtocol[Any, Any]
    batches: Batches = field(repr=False)
    tally: Tally = field(repr=False)

    @staticmethod
    def of(protocol: MessageProtocol[Any, Any]) -> "Collection":
        """Before the first batch. Raises TypeError for a protocol not of the local model."""
        if not isinstance(protocol, MessageProtocol) or protocol.guarantee.model is not Model.LOCAL:
            raise TypeError(
                f"protocol must be one of messages in the local model, not {type(protocol).__name__}: "
                "users of any other must be heard together; of one in rounds, collect each round "
                "(protocol.round) by itself"
            )
        return Collection(protocol, Batches(), protocol.empty)

    @property
    def n(self) -> int:
        """Users."""
        return single(self.tally.n)

    @property
    def guarantee(self) -> Guarantee:
        """What each user was promised."""
        return self.protocol.guarantee

    def add(self, name: str, tally: Tally) -> "Collection":
        """This collection and the batch; itself where the batch is in it already.

        Args:
            name: of the batch, that no other has.
            tally: what ``protocol.tally`` made.

        Raises TypeError, ValueError; ValueError also where ``name`` is taken by a batch of other
        content: users who are asked again must send what they sent, and another batch needs another
        name.
        """
        return self.merge(self.batch(name, tally))

    def batch(self, name: str, tally: Tally) -> "Collection":
        """A collection of this batch alone. Raises TypeError, ValueError."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be a text that no other batch has, not {name!r}")
        self.protocol.check(tally)
        for part, (shape, _) in self.protocol.layout.items():
            checks.shaped(part, tally[part], *shape, note=", one batch of users")
        # the caller may change its tensors afterwards
        copies = {part: value.detach().clone() for part, value in tally.parts.items()}
        kept = Tally(tally.n, copies)
        return Collection(self.protocol, Batches({name: digest(kept)}), kept)

    def merge(self, *others: "Collection") -> "Collection":
        """All batches of these collections, each counted once.

        Their protocols may differ by rounding. Raises ValueError for another protocol, for one name
        with two contents, and for collections of several batches that share some but not all of
        them: their tallies cannot be told apart.
        """
        merged = self
        for other in others:
            merged = merged._merged(checks.instance("other", other, Collection))
        return merged

    def _merged(self, other: "Collection") -> "Collection":
        if not same(other.protocol, self.protocol):
            raise ValueError(
                "collections of different protocols do not merge: what is asked, epsilon or the "
                "randomizer differs"
            )
        shared = [name for name in other.batches if name in self.batches]
        for name in shared:
            if self.batches[name] != other.batches[name]:
                raise ValueError(
                    f"batch {name!r} came before with other content; give a new batch a new name, "
                    "and never have users randomize again for a retry"
                )
        if len(shared) == len(other.batches):
            return self
        if shared:
            raise ValueError(
                f"the collections share {len(shared)} of {len(other.batches)} batches, such as "
                f"{shared[0]!r}; merge the batches one by one"
            )
        tally = self.protocol.add(self.tally, other.tally)
        return Collection(self.protocol, self.batches.with_(other.batches), tally)

    def estimate(self) -> Estimate:
        """What is asked, of the users who have arrived. Raises ValueError for too few of them.

        The interval has its level at a time fixed beforehand; who looks every day and stops when it
        suits has not, and needs ``sequence``.
        """
        return self.protocol.analyse(self.tally)

    def sequence(self, level: float = 0.95, *, best: int) -> tuple[Tensor, Tensor]:
        """(low, high), (*answer): intervals that may be read after every batch, by any rule.

        With probability ``level`` at all numbers of users n at once, and for all k entries of the
        answer, the answer of the users who have arrived lies between them. With a = (1 - level)/k,
        v the protocol's ``variance_proxy`` and r = best/(log(1 - 2 log a) - 2 log a) the ends are
        (v (n + r) log((n + r)/(r a^2)))^{1/2}/n away from the value. Messages are in the order of
        their batches, each drawn once; what a user holds may depend on what was seen before.

        Args:
            level: in (0, 1).
            best: the number of users at which the intervals are to be tightest for what they hold,
                fixed before the first look.

        Raises TypeError for protocols whose values are no means of users' messages, such as
        pairwise statistics; ValueError before the first user.

        Guarantees: that probability, for every data and every rule of looking and stopping:
        exp(t S - t^2 v n/2), S the
            sum of the users' parts less their means, is a supermartingale for every t, so its mean
            over normal t of variance 1/(v r) passes 1/a at any time with a chance of at most a.
        Source: Ville (1939); Robbins (1970); Howard, Ramdas, McAuliffe, Sekhon (2021), Proposition
        5, for r.
        """
        miss = 1 - checks.fraction("level", level)
        best = checks.integer("best", best, 1)
        proxy = self.protocol.variance_proxy
        found = self.estimate()
        # 2 log(1/a): each of the k entries has a k-th of the chance to miss, by a union bound.
        twice = -2 * math.log(miss / max(1, found.value.numel()))
        r = best / (math.log1p(twice) + twice)
        # log((n + r)/(r a^2)) = log(1 + n/r) + 2 log(1/a)
        variance = proxy.to(found.value.device) * (self.n + r) * (math.log1p(self.n / r) + twice)
        # A bias is no random error: it is added in full.
        half = variance.sqrt() / self.n + found.bias
        low = (found.centre - half).clamp(*found.limits)
        high = (found.centre + half).clamp(*found.limits)
        return low, high


def to_bytes(tally: Tally) -> bytes:
    """The parts in the order of their names, bit by bit."""
    parts = [tally[name].detach().cpu().contiguous() for name in sorted(tally.parts)]
    return b"".join(part.numpy().tobytes() for part in parts)


def digest(tally: Tally) -> str:
    """SHA-256 of n and the parts, 64 hex digits."""
    return hashlib.sha256(b"%d " % tally.n + to_bytes(tally)).hexdigest()
