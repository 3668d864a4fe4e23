"""Kernel density estimation in the shuffle model: random features, densities, learning from them.

    >>> import torch
    >>> from torchdp import density, shuffle
    >>> x = torch.nn.functional.normalize(torch.randn(1000, 8), dim=1)
    >>> public = torch.Generator().manual_seed(0)
    >>> features = density.GaussianOrthogonal(8).draw(16, generator=public)
    >>> kde = density.ShuffledKDE.calibrated(
    ...     features, shuffle.PoissonSum, users=1000, epsilon=2.0, delta=1e-6
    ... )
    >>> released = kde.estimate(x)  # from each user's own messages, their noise the system's
    >>> released.evaluate(x[:3]).shape, released.guarantee.epsilon
    (torch.Size([3]), 2.0)

A :class:`Family` is a kernel k(x, y) = E <f(x), g(y)> with bounded random f; :class:`Features` are
drawn pairs (f_i, g_i). Users round f to bits, which a ``BitLaw`` of ``torchdp.shuffle`` sums; a
:class:`Density` answers queries from the noisy means alone.

| symbol | name | |
|---|---|---|
| Q | ``coordinates`` | numbers of f of one repetition |
| I | ``repetitions`` | pairs (f_i, g_i); ``instances`` = I Q |
| R | ``bound`` | the largest absolute coordinate of f |
| S | ``support`` | largest number of nonzero coordinates of f(x) |
| beta | ``bias`` | of E <f, g> as an estimate of k |

In the order to read, with what each file proves:
``family``: features and how they are rounded; how many bits replacing a user can change.
``gaussian``: how far users of a ball move; ``inner_product``: the bias of clipping and projections;
``laplacian``: kernels as chances to share a cell, by tables of the same bits; ``waves``: errors and
movement of fixed waves on a box.
``density``: the released function, its error, slack for floats.
``kde``: (epsilon, delta) of shuffled bits (Wagner 2025, Theorem 3.1, with exact composition and with
accounting of how far features move), of a curator, of servers that see shares.
``learning``: the same for vectors and labels together; ``choose``: features of least error.

Guarantees: those of ``ShuffledKDE``, ``ShuffledClasses``, ``CentralKDE`` and ``SecureKDE``; what is
learned is post-processing.
"""

from torchdp.density.choose import choose
from torchdp.density.density import Density, kernel_means
from torchdp.density.family import Family, Features
from torchdp.density.gaussian import GaussianFourier, GaussianOrthogonal, GaussianSquareWave
from torchdp.density.inner_product import InnerProduct, InnerProductRotated, Projected
from torchdp.density.kde import CentralKDE, SecureKDE, ShuffledKDE
from torchdp.density.laplacian import Exponential, LaplacianSigns
from torchdp.density.learning import (
    ShuffledClasses,
    class_counts,
    classify,
    nearest_centre,
    nearest_words,
)
from torchdp.density.waves import ExponentialKernel, Gaussian, Laplacian, Waves

__all__ = [
    "CentralKDE",
    "Density",
    "Exponential",
    "ExponentialKernel",
    "Family",
    "Features",
    "Gaussian",
    "GaussianFourier",
    "GaussianOrthogonal",
    "GaussianSquareWave",
    "InnerProduct",
    "InnerProductRotated",
    "Laplacian",
    "LaplacianSigns",
    "Projected",
    "SecureKDE",
    "ShuffledClasses",
    "ShuffledKDE",
    "Waves",
    "choose",
    "class_counts",
    "classify",
    "kernel_means",
    "nearest_centre",
    "nearest_words",
]
