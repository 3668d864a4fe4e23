"""Whose noise counts: clients who know their own noise, or send none, protect no one else.

Two numbers: ``corrupt`` clients may collude with the reader of the result, and beside them ``absent`` ones may drop
out. Both are taken away, t' = corrupt + absent; what is left of each row, h_j honest (client, copy) pairs, is what
noise is calibrated to. S is public, so its counts c_j are read, not bounded: no probability is spent on them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.sketching.losses import Losses, copy_losses, worst_loss
from torchdp.sketching.sketch import Sketch

CHANCE = 2.0**-41  # of delta: what is sure but with less


def known(sketch: Sketch, coalition: "Coalition") -> Sketch:
    """``sketch``, if the two are what they should be. Raises TypeError."""
    checks.instance("coalition", coalition, Coalition)
    return checks.instance("sketch", sketch, Sketch)


class Coalition(ABC):
    """At most ``corrupt`` clients who collude and ``absent`` ones who drop out: their noise does not count."""

    corrupt: int
    absent: int

    def __post_init__(self) -> None:
        for name in ("corrupt", "absent"):  # as int: sessions are named after them
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 0))

    @property
    def missing(self) -> int:
        """t' = corrupt + absent."""
        return self.corrupt + self.absent

    @abstractmethod
    def honest(self, sketch: Sketch, delta: float) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64; 0 in empty rows.

        delta: of the whole release, of which ``slack(delta)`` goes into this. Raises ValueError where a used row may
        have no honest client: such a sketch must not be released.
        """

    def surely(self, sketch: Sketch, delta: float) -> Tensor:
        """``honest``, but with a chance of at most 2^-41 of delta: (m,), int64. Raises ValueError."""
        return self.honest(sketch, delta)

    def shares(self, sketch: Sketch, delta: float) -> Tensor:
        """Among how many the noise of each row is divided, up to one factor: (m,). Raises ValueError."""
        return self.honest(sketch, delta)

    def losses(self, sketch: Sketch, ratio: Tensor, delta: float) -> Losses:
        """Of noise N(0, (2 B ratio_j)^2) in each pair of row j, independent copies; ratio: (m,). Raises ValueError."""
        square = row_loss(self.honest(sketch, delta) * ratios(ratio, sketch) ** 2, sketch)
        return worst_loss(square, self.exact(sketch))

    @abstractmethod
    def slack(self, delta: float) -> float:
        """The part of delta that is spent on the chance that fewer are honest."""

    @abstractmethod
    def exact(self, sketch: Sketch) -> bool:
        """Whether some coalition of this kind attains the bounds."""

    def _members(self, sketch: Sketch) -> int:
        if self.missing >= checks.instance("sketch", sketch, Sketch).clients:
            raise ValueError(
                f"corrupt + absent must be below the number of clients, {sketch.clients}, not {self.missing}"
            )
        return self.missing


@dataclass(frozen=True)
class AdaptiveCoalition(Coalition):
    """Chosen by somebody who sees the sketch: h_j = c_j - min(t', c_j), certain. With 0: everybody is honest.

    Raises ValueError.
    """

    corrupt: int = 0
    absent: int = 0

    def honest(self, sketch: Sketch, delta: float) -> Tensor:
        members, counts = self._members(sketch), sketch.counts()
        return _present(counts, counts - counts.clamp(max=members))

    def slack(self, delta: float) -> float:
        return 0.0 * checks.non_negative("delta", delta)

    def exact(self, sketch: Sketch) -> bool:
        return self._members(sketch) == 0 or sketch.copies == 1


@dataclass(frozen=True)
class StaticCoalition(Coalition):
    """Chosen before the sketch is drawn, whose columns are exchangeable: the honest pairs of row j are
    Hypergeometric(n, c_j, n - t'), and at least their (share delta/m)-quantile in every row but with probability
    share delta. Gaussian noise in independent copies needs no such bound and spends no delta on it: its delta is
    averaged over where client and coalition lie (``losses``).

    share: of delta, in (0, 1). For sketches with exchangeable columns alone (``Sketch.exchangeable``), as those drawn
    by the functions of this package, and drawn after the data and the coalition, drop-outs too, are fixed. Raises
    ValueError.
    """

    corrupt: int
    share: float = 0.01
    absent: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, share=checks.fraction)

    def _members(self, sketch: Sketch) -> int:
        members = super()._members(sketch)
        if not sketch.exchangeable:
            raise ValueError(
                "the sketch's columns must be exchangeable for a StaticCoalition: draw it by osnap or another function "
                "of this package and do not sort its clients, or take an AdaptiveCoalition"
            )
        return members

    def honest(self, sketch: Sketch, delta: float) -> Tensor:
        members, counts = self._members(sketch), sketch.counts()
        distinct, where = torch.unique(counts, return_inverse=True)
        level = self.slack(delta) / int((counts > 0).sum())
        held = [hypergeometric_quantile(sketch.clients, int(c), sketch.clients - members, level) for c in distinct]
        return _present(counts, torch.tensor(held, dtype=torch.int64, device=counts.device)[where])

    def surely(self, sketch: Sketch, delta: float) -> Tensor:
        return replace(self, share=CHANCE).honest(sketch, delta)

    def shares(self, sketch: Sketch, delta: float) -> Tensor:
        return checks.instance("sketch", sketch, Sketch).counts()

    def losses(self, sketch: Sketch, ratio: Tensor, delta: float) -> Losses:
        members = self._members(sketch)
        return copy_losses(sketch, members, ratios(ratio, sketch), lambda honest, r: 1 / (honest * r**2))

    def slack(self, delta: float) -> float:
        return self.share * checks.fraction("delta", delta)

    def exact(self, sketch: Sketch) -> bool:
        return False


def ratios(ratio: Tensor, sketch: Sketch) -> Tensor:
    """One number > 0 for each row, (m,), float64. Raises ValueError, TypeError."""
    ratio = checks.floating("ratio", ratio).detach().double()
    if ratio.shape != (sketch.height,) or not bool((ratio > 0).all()):
        raise ValueError(f"ratio must hold {sketch.height} numbers > 0, one for each row")
    return ratio


def row_loss(information: Tensor, sketch: Sketch) -> float:
    """max over clients of the sum over copies of 1/information_j, j = rows[c, i]; information: (m,)."""
    each = torch.where(sketch.counts() > 0, 1 / information.double(), 0.0)
    return float(each[sketch.kinds].sum(0).max())


def hypergeometric_quantile(population: int, marked: int, drawn: int, level: float) -> int:
    """The largest q with P(X < q) <= level, X the marked ones among ``drawn`` of the population; q >= the least X."""
    least, most = max(0, marked - (population - drawn)), min(marked, drawn)
    if least == most:
        return least
    from scipy.stats import hypergeom  # here, because loading it takes half a second

    values = np.arange(least, most)  # P(X < q) for q = least + 1 .. most
    below = np.logaddexp.accumulate(hypergeom.logpmf(values, population, marked, drawn))
    safe = math.log(level) - 1e-6  # whatever the rounding
    return least + int(np.searchsorted(below, safe, side="right"))


_REMEDY = (
    "some used row of the sketch may have no honest client: take fewer rows, more copies or fewer corrupt clients, or "
    "a StaticCoalition where the sketch is drawn after the coalition is fixed"
)


def _present(counts: Tensor, honest: Tensor) -> Tensor:
    if ((counts > 0) & (honest <= 0)).any():
        raise ValueError(_REMEDY)
    return honest
