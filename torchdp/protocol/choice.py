"""Protocols compared by the error that each predicts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torchdp.brief import Brief, html_table

T = TypeVar("T", covariant=True)
P = TypeVar("P")
EQUAL = 1e-3  # relative difference of errors that does not count


@dataclass(frozen=True)
class Candidate(Brief, Generic[T]):
    """A protocol, its predicted error (of a mean square the root), and what else there is to say of
    it.

    flat: the error where all types are equally frequent, if ``error`` is on the worst data; None:
    not known.
    """

    name: str
    protocol: T  # a Protocol; in training, a plan
    error: float
    note: str = ""
    flat: float | None = None


@dataclass(frozen=True)
class Choice(Brief, Generic[T]):
    """Candidates, the least predicted error first; ``print`` shows the table that the choice was
    made from.

    Errors that differ by no more than about 0.1 % count as equal: of these the one that was named
    first comes first. bound: no unbiased protocol of this privacy has lower error; None: unknown.
    near: those with error at most so much more than the least, relatively, come first of all, as
    they were named. The table shows the errors on flat data beside those on the worst where another
    candidate has less there than the first.
    """

    candidates: tuple[Candidate[T], ...]
    bound: float | None = None
    near: float = 0.0

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("candidates must hold one protocol at least")
        least = min(one.error for one in self.candidates) * (1 + self.near)
        found = sorted(self.candidates, key=lambda one: _rank(max(one.error, least)))
        object.__setattr__(self, "candidates", tuple(found))

    @staticmethod
    def of(
        named: Iterable[tuple[str, P]], errors: Iterable[float], bound: float | None = None
    ) -> "Choice[P]":
        """From protocols with their names, and the error that each predicts."""
        each = zip(named, errors, strict=True)
        return Choice(
            tuple(Candidate(name, protocol, error) for (name, protocol), error in each), bound
        )

    @property
    def best(self) -> T:
        """The protocol of the first candidate."""
        return self.candidates[0].protocol

    @property
    def _disagree(self) -> bool:
        """Whether another candidate than the first has less error on flat data."""
        flat = [one.flat for one in self.candidates if one.flat is not None]
        first = self.candidates[0].flat
        return first is not None and _rank(first) > _rank(min(flat))

    def __str__(self) -> str:
        width = max(len("lower bound"), *(len(one.name) for one in self.candidates))
        disagree = self._disagree
        lines = [f"{'candidate':<{width}}  predicted error" + "  on flat data" * disagree]
        for one in self.candidates:
            flat = "" if one.flat is None else f"{one.flat:.6g}"
            error = f"{one.error:<15.6g}  {flat:<12}" if disagree else f"{one.error:<10.6g}"
            lines.append(f"{one.name:<{width}}  {error}  {one.note}".rstrip())
        least = (
            "none known" if self.bound is None else f"{self.bound:<10.6g}  for unbiased estimators"
        )
        return "\n".join([*lines, f"{'lower bound':<{width}}  {least}"])

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
        head = ["candidate", "predicted error", "note"]
        rows: list[list[object]] = [[one.name, one.error, one.note] for one in self.candidates]
        rows.append(["lower bound for unbiased estimators", bound, ""])
        if self._disagree:
            head.insert(2, "on flat data")
            for row, flat in zip(rows, [*(one.flat for one in self.candidates), None], strict=True):
                row.insert(2, "" if flat is None else flat)
        return html_table(rows, head)


def _rank(error: float) -> float:
    """The logarithm of an error, rounded."""
    return (
        round(math.log(error) / EQUAL)
        if 0 < error < math.inf
        else (-math.inf if error == 0 else math.inf)
    )
