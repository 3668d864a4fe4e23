"""Messages that arrive in batches, added up as they come."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from torchdp import checks
from torchdp.collection.batches import Batches
from torchdp.collection.description import same
from torchdp.pairwise.interactive import InteractiveProtocol
from torchdp.pairwise.protocol import PairwiseEstimate, PairwiseProtocol
from torchdp.privacy import Guarantee, Model


@dataclass(frozen=True, eq=False)
class Collection:
    """What has arrived: the sums that the analyst needs, from how many users, in which batches.

    It is a value: ``add`` and ``merge`` return another one. Start with ``Collection.empty(protocol)``. A batch has
    a name, and a batch that comes again under its name (a retry) is counted once.
    batches: name -> SHA-256 of the batch's content. n: users. sums: what ``protocol.collect`` returns, added up.

    Guarantees: those of the protocol, for users who send their messages once: the sums, the names' digests and all
    that is computed from them depend on users through their messages alone. One who answers in two batches spends
    epsilon twice; names are chosen by the collector and must not speak of users' values.
    """

    protocol: PairwiseProtocol
    batches: Batches = field(repr=False)
    n: int
    sums: tuple[Tensor, ...] = field(repr=False)

    @staticmethod
    def empty(protocol: PairwiseProtocol) -> "Collection":
        """Before the first batch. Raises TypeError; ValueError for a protocol that needs all its users at once."""
        if not isinstance(protocol, PairwiseProtocol):
            raise TypeError(f"protocol must be a PairwiseProtocol, not {type(protocol).__name__}")
        if isinstance(protocol, InteractiveProtocol) or protocol.guarantee.model is not Model.LOCAL:
            raise ValueError(
                f"protocol must be one whose users send their messages each on their own; {type(protocol).__name__} "
                "needs all its users at once: in batches it would estimate something else, or protect less"
            )
        return Collection(protocol, Batches(), 0, protocol.layout)

    @property
    def guarantee(self) -> Guarantee:
        """What each user was promised."""
        return self.protocol.guarantee

    def batch(self, name: str, sums: Sequence[Tensor], n: int) -> "Collection":
        """A collection of this batch alone: the sums of n users' messages, as ``protocol.collect`` returns them.

        Messages that arrive one by one are summed by ``protocol.tally``. Raises TypeError, ValueError.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"name must be a text that no other batch has, not {name!r}")
        n = checks.integer("n", n, 1)
        checked = self.protocol.check_sums(sums, n)
        for index, (given, own) in enumerate(zip(checked, self.sums, strict=True)):
            if given.shape != own.shape:
                raise ValueError(f"sums[{index}] must have shape {tuple(own.shape)}, not {tuple(given.shape)}")
        return Collection(self.protocol, Batches({name: digest(checked, n)}), n, checked)

    def add(self, name: str, sums: Sequence[Tensor], n: int) -> "Collection":
        """This collection and the batch; itself where the batch is in it already.

        Raises ValueError where ``name`` is taken by a batch of other content: users who are asked again must send
        what they sent, and another batch needs another name.
        """
        return self.merge(self.batch(name, sums, n))

    def merge(self, *others: "Collection") -> "Collection":
        """All batches of these collections, each counted once. Their protocols may differ by rounding.

        Raises ValueError for another protocol, for one name with two contents, and for collections of several
        batches that share some but not all of them: their sums cannot be told apart.
        """
        batches, n, sums = self.batches, self.n, self.sums
        for other in others:
            self._check_protocol(other)
            shared = [name for name in other.batches if name in batches]
            for name in shared:
                if batches[name] != other.batches[name]:
                    raise ValueError(
                        f"batch {name!r} came before with other content; give a new batch a new name, and never "
                        "have users randomize again for a retry"
                    )
            if shared and len(shared) == len(other.batches):
                continue
            if shared:
                raise ValueError(
                    f"the collections share {len(shared)} of {len(other.batches)} batches, such as {shared[0]!r}; "
                    "merge the batches one by one"
                )
            batches, n = batches.with_(other.batches), n + other.n
            sums = tuple(a + b.to(a.device) for a, b in zip(sums, other.sums, strict=True))
        return self if len(batches) == len(self.batches) else Collection(self.protocol, batches, n, sums)

    def estimate(self) -> PairwiseEstimate:
        """The statistic of the users who have arrived, with its standard error. Raises ValueError below 2 users.

        The interval has its level at a time fixed beforehand; who looks every day and stops when it suits has not.
        """
        if self.n < 2:
            raise ValueError(f"an estimate needs messages of at least 2 users, {self.n} arrived")
        return self.protocol.analyse(self.sums, self.n)

    def _check_protocol(self, other: "Collection") -> None:
        if not same(checks.instance("other", other, Collection).protocol, self.protocol):
            raise ValueError(
                "collections of different protocols do not merge: the statistic, epsilon or the randomizer differs"
            )


def to_bytes(sums: Sequence[Tensor]) -> bytes:
    """The sums one after another, bit by bit."""
    return b"".join(each.detach().cpu().contiguous().numpy().tobytes() for each in sums)


def digest(sums: Sequence[Tensor], n: int) -> str:
    """SHA-256 of n and sums, 64 hex digits."""
    return hashlib.sha256(b"%d " % n + to_bytes(sums)).hexdigest()
