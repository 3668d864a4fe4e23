"""torchdp: differentially private mechanisms as batched tensor programs.

The packages (each a module; loaded on first use, so ``import torchdp`` costs nothing):

- :mod:`torchdp.privacy`: privacy guarantees, composition and calibration
- :mod:`torchdp.protocol`: the interface of every mechanism, tallies, estimates, choices
- :mod:`torchdp.noise`: the cryptographic randomness of what users and curators send
- :mod:`torchdp.workloads`: linear queries and pairwise kernels as matrices
- :mod:`torchdp.factorization`: certified factorization norms
- :mod:`torchdp.randomizers`: local randomizers: what one user runs
- :mod:`torchdp.queries`: linear queries, local and central; agnostic learning
- :mod:`torchdp.pairwise`: pairwise statistics under local differential privacy
- :mod:`torchdp.collection`: messages that arrive in batches, in memory and on disk; groups compared
- :mod:`torchdp.distributed`: users in parts: files that outgrow memory, Dask
- :mod:`torchdp.domains`: convex sets given by oracles, and the shape of the noise for each
- :mod:`torchdp.mean`: unbiased means of any bounded domain, with the Gaussian noise of the best
  shape
- :mod:`torchdp.shuffle`: sums of bits in the shuffle model, and their exact accounting
- :mod:`torchdp.density`: kernel density estimation in the shuffle model, and learning from it
- :mod:`torchdp.sketching`: public sketches and noise that clients divide among them
- :mod:`torchdp.secure`: secure aggregation by servers that see secret shares only
- :mod:`torchdp.regression`: ridge, low rank and moments of secure sums
- :mod:`torchdp.training`: correlated noise and public features in a training loop
- :mod:`torchdp.simulate`: Monte Carlo with error bars, and sweeps that resume
- :mod:`torchdp.sklearn`: estimators with scikit-learn's ``fit`` and ``predict``, of a curator
- :mod:`torchdp.kernels`: the inner operations, each with its specification
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what an editor knows of ``torchdp.pairwise``
    from torchdp import collection, density, distributed, domains, factorization  # noqa: I001
    from torchdp import kernels, mean
    from torchdp import noise, pairwise, privacy, protocol, queries, randomizers, regression
    from torchdp import secure, shuffle, simulate, sketching, training, workloads
    from torchdp import sklearn as sklearn

__version__ = "0.1.0"
__all__ = [
    "collection", "density", "distributed", "domains", "factorization", "kernels", "mean", "noise",
    "pairwise", "privacy", "protocol", "queries", "randomizers", "regression", "secure", "shuffle", "simulate",
    "sketching", "training", "workloads",
]  # fmt: skip


# These need a package of their own: ``from torchdp import *`` goes without them.
OPTIONAL = ("sklearn",)


def __getattr__(name: str) -> ModuleType:
    if name in (*__all__, *OPTIONAL):
        return importlib.import_module(f"torchdp.{name}")
    raise AttributeError(f"module 'torchdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *OPTIONAL, *(name for name in globals() if name.startswith("__"))})
