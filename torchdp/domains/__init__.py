"""Bounded sets K in R^d given by oracles, and the least Gaussian noise that makes a point private.

    >>> import torch
    >>> from torchdp import domains
    >>> box = domains.Box(torch.zeros(2), torch.tensor([1.0, 100.0]))
    >>> shape = domains.noise_shape(box, 2.0)
    >>> bool(shape.certificate.closed(1e-2)), shape.root.shape
    (True, torch.Size([2, 2]))

| API name | symbol | meaning |
|---|---|---|
| root, centre | A, v | K lies in the ellipsoid {v + A u: norm_2(u) <= 1} |
| p | p | of the l_p norm, in [2, inf], of the deviations: the row norms of A |
| certificate.upper | | that norm; lower <= Gamma_p(K) <= upper, the least of all such ellipsoids |
| support, weights, row_weights | | points of K and the dual measure that prove ``lower`` |

:func:`noise_shape` is for the local model, :func:`difference_shape` for a curator
(one point replaced), :func:`least_error_shape` for the least (E norm_p^2)^{1/2}. A custom set
subclasses :class:`Domain`: its ``maximise`` returns a ``domain.Maximum``.

To read in this order; theorems are those of Nikolov, Tang (2023):

- ``domain``: what an ellipsoid needs to know of K, Definition 29
- ``noise_shape``: the search and its certificate, Theorems 26 and 30
- ``finite``, ``balls``, ``ball_image``, ``relaxation``: sets and their oracles, Theorem 32
- ``composite``: products, images and sums, Lemmas 31 and 60
- ``shapes``: the curator's noise, of least error, Theorem 15; ``nearest``: nearest points of sets
"""

from torchdp.domains.balls import Box, Ellipsoid, LpBall, SchattenBall, Zonotope, lp_ball
from torchdp.domains.composite import Product, linear_image, minkowski_sum
from torchdp.domains.domain import Domain
from torchdp.domains.finite import FiniteSet, Polytope
from torchdp.domains.noise_shape import NoiseShape, noise_shape
from torchdp.domains.shapes import difference_shape, least_error_shape, round_shape

__all__ = [
    "Box",
    "Domain",
    "Ellipsoid",
    "FiniteSet",
    "LpBall",
    "NoiseShape",
    "Polytope",
    "Product",
    "SchattenBall",
    "Zonotope",
    "difference_shape",
    "least_error_shape",
    "linear_image",
    "lp_ball",
    "minkowski_sum",
    "noise_shape",
    "round_shape",
]
