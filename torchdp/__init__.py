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
- :mod:`torchdp.session`: rows that are bound to a privacy budget
- :mod:`torchdp.auditing`: lower bounds of epsilon from simulated releases
- :mod:`torchdp.kernels`: the inner operations, each with its specification

And by themselves: :class:`torchdp.Session`, :func:`torchdp.audit`, :func:`torchdp.audit_one_run`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what an editor knows of ``torchdp.pairwise``
    from torchdp import auditing, collection, density, distributed, domains, factorization  # noqa: I001
    from torchdp import kernels, mean
    from torchdp import noise, pairwise, privacy, protocol, queries, randomizers, regression
    from torchdp import secure, session, shuffle, simulate, sketching, training, workloads
    from torchdp import sklearn as sklearn
    from torchdp.auditing import audit as audit, audit_one_run as audit_one_run
    from torchdp.session import Session as Session

__version__ = "0.1.0"
__all__ = [
    "auditing", "collection", "density", "distributed", "domains", "factorization", "kernels",
    "mean", "noise", "pairwise", "privacy", "protocol", "queries", "randomizers", "regression",
    "secure", "session", "shuffle", "simulate",
    "sketching", "training", "workloads",
]  # fmt: skip


# These need a package of their own: ``from torchdp import *`` goes without them.
OPTIONAL = ("sklearn",)
# What is not a package, and the module in which it is.
NAMES = {"Session": "session", "audit": "auditing", "audit_one_run": "auditing"}


def __getattr__(name: str) -> Any:
    if name in (*__all__, *OPTIONAL):
        return importlib.import_module(f"torchdp.{name}")
    if name in NAMES:
        return getattr(importlib.import_module(f"torchdp.{NAMES[name]}"), name)
    raise AttributeError(f"module 'torchdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *OPTIONAL, *NAMES, *filter(lambda name: name[:2] == "__", globals())})
