"""Whose noise counts: clients who know their own noise, or send none, protect no one else.

Two numbers: ``corrupt`` clients may collude with the reader of the result, and beside them
``absent`` ones may drop out. Both are taken away, t' = corrupt + absent; what is left of each row,
h_j honest (client, copy) pairs, is what noise is calibrated to. S is public, so its counts c_j are
read, not bounded: no probability is spent on them.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from torchdp import checks
from torchdp.sketching.sketch import Sketch


@dataclass(frozen=True)
class AdaptiveCoalition:
    """Chosen by somebody who sees the sketch: h_j = c_j - min(t', c_j), certain.

    Args:
        corrupt: clients who collude. None: as many as the largest organisation has, in a
            ``Session``, which counts them; elsewhere everybody speaks for itself, and it is 0.
        absent: clients who may drop out beside them.

    With 0 and 0 everybody is honest. Raises ValueError.
    """

    corrupt: int | None = None
    absent: int = 0

    def __post_init__(self) -> None:
        # as int: sessions are named after them
        whole = partial(checks.integer, least=0)
        checks.keep(self, absent=whole)
        if self.corrupt is not None:
            checks.keep(self, corrupt=whole)

    @property
    def missing(self) -> int:
        """t' = corrupt + absent."""
        # Outside of a session nobody is known to speak for several clients: None counts as 0.
        return (self.corrupt or 0) + self.absent

    def honest(self, sketch: Sketch) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64; 0 in empty rows.

        Raises ValueError where a used row may have no honest client: such a sketch must not be
        released.
        """
        clients = checks.instance("sketch", sketch, Sketch).clients
        if self.missing >= clients:
            raise ValueError(
                f"corrupt + absent must be below the number of clients, {clients}, "
                f"not {self.missing}"
            )
        counts = sketch.counts()
        # A client's rows are distinct over the copies, so that it has at most one pair in each row:
        # t' clients take at most t' pairs away from a row.
        honest = (counts - self.missing).clamp_min(0)
        # The coalition may know all the noise of such a row, and subtract it.
        if bool(((counts > 0) & (honest == 0)).any()):
            raise ValueError(
                "some used row of the sketch may have no honest client: take fewer rows, "
                "more copies or fewer corrupt clients"
            )
        return honest

    def exact(self, sketch: Sketch) -> bool:
        """Whether some coalition of this kind attains the bounds."""
        # With one copy the coalition can sit in the row of the client it is after, and leaves h_j
        # there. With several, each row of that client would have to lose t' clients, always the
        # same ones.
        return self.missing == 0 or checks.instance("sketch", sketch, Sketch).copies == 1


EVERYBODY = AdaptiveCoalition()  # is honest
