"""Monte Carlo with error bars over any callable, sweeps that resume, scripts of experiments.

    >>> import torch
    >>> from torchdp.simulate import run
    >>> def squared_error(generator, size):
    ...     return torch.randn(size, generator=generator).square()
    >>> low, high = run(squared_error, 100_000, seed=1).moments.interval()
    >>> low < 1 < high, high - low < 0.02
    (True, True)

| question | name |
|---|---|
| the mean of one trial, with its error | :func:`run`, :class:`Moments` |
| the same over a grid, killed and begun again, stored | :func:`sweep`, :class:`Trial`, :class:`Row` |
| the rows of a store; several stores in one | :func:`read`, :func:`merge` |
| its results as a page | :func:`write_page` |
| what ``torchdp sweep`` runs; a script with tables and figures | :class:`Sweep`; :class:`Experiment`, :class:`Report` |

Read ``moments`` (merging and its error bars), ``streams`` (each block's own seed), ``blocks``
(the order in which blocks count: :func:`run`), ``workers`` (who runs them), ``store`` (what a
killed sweep leaves), ``config_runs`` and ``sweep`` (what is left to do), ``code`` (what made a
number), then ``report``, ``plots``, ``page`` (tables, figures, the page).

It is independent of any mechanism: a trial is ``trial(generator, size) -> (size,)`` independent
samples, most often squared errors, or several such by name:
``{"squared error": (size,), "coverage": (size,) of bool}``. ``devices=["cuda:0", "cuda:1"]`` hands
the blocks to a worker process for each device.

Guarantees: randomness is a function of the run seed, the configuration and the block index alone,
so that moments do not depend on how many devices ran them, in what order, or how often a sweep was
killed; blocks of two codes never merge. Intervals cover asymptotically, with a target as it tends
to 0 (Chow, Robbins 1965); those of shares for any number of trials (Clopper, Pearson 1934).
"""

from torchdp.simulate.blocks import run
from torchdp.simulate.config_runs import OnError, OtherCode, Row
from torchdp.simulate.moments import Moments
from torchdp.simulate.page import write_page
from torchdp.simulate.plots import error_curves, subplots
from torchdp.simulate.report import Experiment, Report, Sweep, columns
from torchdp.simulate.store import merge
from torchdp.simulate.sweep import Trial, read, sweep

__all__ = [
    "Experiment",
    "Moments",
    "OnError",
    "OtherCode",
    "Report",
    "Row",
    "Sweep",
    "Trial",
    "columns",
    "error_curves",
    "merge",
    "read",
    "run",
    "subplots",
    "sweep",
    "write_page",
]
