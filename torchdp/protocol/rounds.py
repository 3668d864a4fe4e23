"""Protocols of several rounds."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from torchdp.draws import Draws, Simulated
from torchdp.protocol.protocol import MessageProtocol, Protocol, S
from torchdp.protocol.records import Tally


class InteractiveProtocol(Protocol[S]):
    """Each round is a local protocol, a public function of the tallies before it; the same users take part in all."""

    takes_groups = False

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many."""

    @abstractmethod
    def round(self, heard: tuple[Tally, ...]) -> MessageProtocol[S, Any]:
        """The next round's protocol; batched where ``heard`` is."""

    @final
    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self._play(lambda one, first: one.collect_unchecked(x, draws))

    @final
    def sample_unchecked(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self._play(lambda one, first: one.sample_unchecked(summary, draws, shape if first else ()))

    def _play(self, hear: Callable[[MessageProtocol[S, Any], bool], Tally]) -> Tally:
        heard: tuple[Tally, ...] = ()
        for _ in range(self.rounds):
            heard = (*heard, hear(self.round(heard), not heard))
        return self.joined(heard)

    @final
    def joined(self, heard: tuple[Tally, ...]) -> Tally:
        """All rounds' tallies as one: part p of round r is named r.p. Raises ValueError where the users differ."""
        if len({each.n for each in heard}) != 1:
            raise ValueError(f"heard must be of the same users in every round, not of {[t.n for t in heard]}")
        return Tally(heard[0].n, {f"{r}.{p}": t for r, each in enumerate(heard) for p, t in each.parts.items()})

    @final
    def split(self, tally: Tally) -> tuple[Tally, ...]:
        """The rounds' tallies of one that was ``joined``."""
        starts, parts = [f"{r}." for r in range(self.rounds)], tally.parts.items()
        return tuple(
            Tally(tally.n, {name[len(r) :]: t for name, t in parts if name.startswith(r)}) for r in starts
        )
