"""Public random sketches S, and the noise that clients divide so that S A can be published.

Client i holds row a_i of A. Each adds a little noise; that of the honest clients in a row of S A
protects each of them.

>>> import torch
>>> from torchdp import sketching
>>> sketch = sketching.balanced_osnap(1000, 10, 2, generator=torch.Generator().manual_seed(0))
>>> noise = sketching.GaussianNoise.calibrated(sketch, 1.0, epsilon=1.0, delta=1e-6)
>>> print(noise.guarantee(sketch, 1.0, delta=1e-6))
linear-transform differential privacy, epsilon = 1, delta = 1e-06, over real numbers

| name | symbol | what it is |
|---|---|---|
| ``clients``, ``height``, ``copies`` | n, m, s | S is m x n, with s nonzeros +-s^(-1/2) a column |
| ``columns`` | d | numbers in a client's row |
| ``bound`` | B, B_1 | largest l_2 norm of a client's row; l_1 for pure noise |
| ``counts()``, ``honest`` | c_j, h_j | all pairs (client, copy) of row j, and honest ones at least |
| ``corrupt``, ``absent`` | t' together | clients who collude, and clients who may drop out |
| ``entry_variance`` | V | the least variance of an entry of S A + noise |

To read in this order:

- ``sketch``, ``constructions``: what is published of whom
- ``coalition``: whose noise counts; the honest clients of each row, Burkhardt, Keller, Orlandi,
  Schwiegelshohn (2025), Theorem 4.4, with exact counts
- ``noise``: its least size and its guarantee, Balle, Wang (2018), Theorem 8
- ``paper``: the noise of their paper, with its own constants
"""

from torchdp.sketching.coalition import AdaptiveCoalition
from torchdp.sketching.constructions import (
    balanced_count_sketch,
    balanced_osnap,
    count_sketch,
    ones,
    osnap,
    rademacher,
)
from torchdp.sketching.noise import GaussianNoise, LaplaceNoise, entry_variance
from torchdp.sketching.sketch import Sketch

__all__ = [
    "AdaptiveCoalition",
    "GaussianNoise",
    "LaplaceNoise",
    "Sketch",
    "balanced_count_sketch",
    "balanced_osnap",
    "count_sketch",
    "entry_variance",
    "ones",
    "osnap",
    "rademacher",
]
