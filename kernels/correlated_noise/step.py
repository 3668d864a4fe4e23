"""One step's numbers of correlated noise, whatever strategy they come from."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """Where u is what is drawn, w the step's noise, and the state has ``memory`` rows.

    gains: (memory,), what w takes of each row; decays: (running,), by which the first rows change;
    both in the state's dtype. numbers: (scale, feeds_0, feeds_1, ...), float64. lags: (draws,)
    int32, how many steps ago each normal was drawn first; lags_0 = 0. slots: the rows that w and u
    take after the step, beyond the running ones; -1: none.
    """

    gains: Tensor
    decays: Tensor
    numbers: Tensor
    lags: Tensor
    slots: tuple[int, int] = (-1, -1)
