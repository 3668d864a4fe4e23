"""Protocols compared by the error that each predicts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torchdp.brief import Brief, html_table

T = TypeVar("T", covariant=True)
P = TypeVar("P")
# Relative difference of errors that does not count.
EQUAL = 1e-3


@dataclass(frozen=True)
class Candidate(Brief, Generic[T]):
    """A protocol and the error that it predicts.

    Args:
        name: of the protocol.
        protocol: a Protocol; in training, a plan.
        error: predicted, of a mean square the root.
        note: what else there is to say.
        flat: the error where all types are equally frequent, if ``error`` is on the worst data;
            None: not known.
    """

    name: str
    protocol: T
    error: float
    note: str = ""
    flat: float | None = None


@dataclass(frozen=True)
class Choice(Brief, Generic[T]):
    """Candidates, the least predicted error first; ``print`` shows their table.

    Errors that differ by no more than about 0.1 % count as equal: of these the one that was named
    first comes first. The table shows the errors on flat data beside those on the worst where
    another candidate has less there than the first.

    Args:
        candidates: one at least.
        bound: no unbiased protocol of this privacy has lower error; None: unknown.
        near: those with error at most so much more than the least, relatively, come first of all,
            as they were named.
    """

    candidates: tuple[Candidate[T], ...]
    bound: float | None = None
    near: float = 0.0

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("candidates must hold one protocol at least")
        # Errors up to ``near`` share a rank, and sorting keeps the order of equal ones.
        near = min(candidate.error for candidate in self.candidates) * (1 + self.near)
        order = sorted(self.candidates, key=lambda candidate: _rank(max(candidate.error, near)))
        object.__setattr__(self, "candidates", tuple(order))

    @staticmethod
    def of(
        named: Iterable[tuple[str, P]], errors: Iterable[float], bound: float | None = None
    ) -> "Choice[P]":
        """From protocols with their names, and the error that each predicts."""
        candidates = []
        for (name, protocol), error in zip(named, errors, strict=True):
            candidates.append(Candidate(name, protocol, error))
        return Choice(tuple(candidates), bound)

    @property
    def best(self) -> T:
        """The protocol of the first candidate."""
        return self.candidates[0].protocol

    @property
    def _disagree(self) -> bool:
        """Whether another candidate than the first has less error on flat data."""
        # With the first's own, so that it is not empty where that is known.
        flat = [other.flat for other in self.candidates if other.flat is not None]
        first = self.candidates[0].flat
        return first is not None and _rank(first) > _rank(min(flat))

    def __str__(self) -> str:
        width = max(len("lower bound"), *(len(candidate.name) for candidate in self.candidates))
        disagree = self._disagree
        lines = [f"{'candidate':<{width}}  predicted error" + "  on flat data" * disagree]
        for candidate in self.candidates:
            error = f"{candidate.error:<10.6g}"
            if disagree:
                flat = "" if candidate.flat is None else f"{candidate.flat:.6g}"
                error = f"{error:<15}  {flat:<12}"
            lines.append(f"{candidate.name:<{width}}  {error}  {candidate.note}".rstrip())
        least = "none known"
        if self.bound is not None:
            least = f"{self.bound:<10.6g}  for unbiased estimators"
        lines.append(f"{'lower bound':<{width}}  {least}")
        return "\n".join(lines)

    def _fields(self) -> dict[str, object]:
        best = self.candidates[0]
        return {
            "best": best.name,
            "error": best.error,
            "bound": self.bound,
            "candidates": len(self.candidates),
        }

    def _repr_html_(self) -> str:
        bound: object = "none known" if self.bound is None else self.bound
        head = ["candidate", "predicted error", "on flat data", "note"]
        rows: list[list[object]] = []
        for candidate in self.candidates:
            flat: object = "" if candidate.flat is None else candidate.flat
            rows.append([candidate.name, candidate.error, flat, candidate.note])
        rows.append(["lower bound for unbiased estimators", bound, "", ""])
        if not self._disagree:
            del head[2]
            for row in rows:
                del row[2]
        return html_table(rows, head)


def _rank(error: float) -> float:
    """The logarithm of an error, rounded."""
    if error == 0:
        return -math.inf
    # In steps of EQUAL, so that a search's tolerance does not order equal errors.
    return round(math.log(error) / EQUAL) if 0 < error < math.inf else math.inf
