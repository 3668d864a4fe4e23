"""An experiment: a grid, what one trial of it is, and how its rows are drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchdp.simulate.sweep import MakeTrial, Row


@dataclass(frozen=True)
class Experiment:
    """What a script under ``experiments/`` hands to ``torchdp sweep``.

    name: of the results' folder. grid, make_trial, trials, block_size: as in :func:`torchdp.simulate.sweep`.
    draw: ``draw(rows, folder)`` writes the figures from the rows alone and returns the files it wrote.
    needs: modules that ``draw`` imports, looked for before the work begins.
    """

    name: str
    grid: Sequence[Mapping[str, object]]
    make_trial: MakeTrial
    trials: int
    block_size: int
    draw: Callable[[Sequence[Row], Path], Sequence[Path]]
    needs: Sequence[str] = ()
