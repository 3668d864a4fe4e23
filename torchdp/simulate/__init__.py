"""Monte Carlo with error bars over any callable, and sweeps that resume.

It knows no mechanism: a trial is ``trial(generator, size) -> (size,)`` independent samples, most often squared
errors. Randomness is a function of the run seed, the configuration and the block index alone.
``devices=["cuda:0", "cuda:1"]`` hands the blocks to a worker process for each device; the bits stay the same.

>>> import torch
>>> from torchdp.simulate import run
>>> def squared_error(generator, size):
...     return torch.randn(size, generator=generator).square()
>>> run(squared_error, 100_000, seed=1).moments.interval()  # doctest: +SKIP
"""

from torchdp.simulate.blocks import Sampler
from torchdp.simulate.engine import run
from torchdp.simulate.experiment import Experiment, Sweep
from torchdp.simulate.moments import Moments
from torchdp.simulate.plots import error_curves, ratio_strip, subplots, write_csv
from torchdp.simulate.report import Report, columns
from torchdp.simulate.sweep import OnError, OtherCode, Row, Trial, read, sweep
from torchdp.simulate.users import total

__all__ = [
    "Experiment",
    "Moments",
    "OnError",
    "OtherCode",
    "Report",
    "Row",
    "Sampler",
    "Sweep",
    "Trial",
    "columns",
    "error_curves",
    "ratio_strip",
    "read",
    "run",
    "subplots",
    "sweep",
    "total",
    "write_csv",
]
