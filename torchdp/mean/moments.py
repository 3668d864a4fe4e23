"""Moment tensors of bounded vectors: Gaussian noise with the covariance of a symmetric Kronecker power."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.encoding import Encoding, admitted, encoding
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.norm_error import normal_moment
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma

MOST_ORDER, MOST_ENTRIES = 6, 2**27


@dataclass(frozen=True)
class GaussianMoments:
    """The curator releases (1/n) sum_i x_i (x) ... (x) x_i (``order`` factors) plus symmetric Gaussian noise.

    With x = A u, ||u|| <= R, the tensor is A^{(x) l} u^{(x) l}, and u^{(x) l} lies in the symmetric tensors: the noise
    is A^{(x) l} (multiplier D / n) Sym(g), g standard normal of shape (r, ..., r), Sym the mean over all orders of the
    indices, which is the orthogonal projection. Entry i_1 ... i_l has variance (multiplier D/n)^2 / l! times the
    permanent of (A A^T)[i, i], l! times less than noise on every coordinate apart where the i_k are far from each
    other. D bounds ||u^{(x) l} - w^{(x) l}||: its square is ||u||^{2l} + ||w||^{2l} - 2 <u, w>^l, so D = 2^{1/2} R^l
    for even l (R^l where r = 1) and 2 R^l for odd l. Noise and data cost O(l d^{l + 1}); no d^l x d^l matrix.

    shape: around the origin: noise_shape(domain, p, shift=False), or of a symmetric domain. order: 1 to 6. multiplier >
    0; delta in (0, 1): where the guarantee is stated. :func:`gaussian_moments` finds the multiplier. Raises ValueError.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public.
    Source: Nikolov, Tang (2023), Theorem 15 for the set {x^{(x) l}}, Lemma 62 for the ellipsoid around it.
    """

    domain: Domain
    shape: NoiseShape
    order: int
    multiplier: float
    delta: float

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)  # checks that they fit
        object.__setattr__(self, "order", checks.integer("order", self.order, 1))
        object.__setattr__(self, "multiplier", checks.positive("multiplier", self.multiplier))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
        if self.order > MOST_ORDER or self.domain.dimension**self.order > MOST_ENTRIES:
            raise ValueError(
                f"order {self.order} in dimension {self.domain.dimension} is too large: at most order {MOST_ORDER} "
                f"and {MOST_ENTRIES} entries"
            )
        if bool(self.shape.centre.any()):
            raise ValueError("shape must be around the origin: noise_shape(domain, p, shift=False)")

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball around the origin."""
        return Encoding(self.domain, self.shape, torch.zeros_like(self.shape.centre))

    @property
    def sensitivity(self) -> float:
        """D, in the space of u."""
        apart = 2.0 if self.order % 2 else math.sqrt(2) if self.shape.root.shape[1] > 1 else 1.0
        return apart * self.encoding.radius**self.order

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, by the exact curve of Gaussian noise."""
        found = gaussian_guarantee(self.multiplier, self.delta, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
        source = f"Nikolov, Tang (2023), Theorem 15; {found.source}"
        return Guarantee(found.epsilon, found.delta, found.model, found.neighbours, False, source)

    def deviations(self, n: int) -> Tensor:
        """Standard deviation of each entry's noise, (d, ..., d): scaled (permanent of (A A^T)[i, i] / l!)^{1/2}."""
        G = self.shape.root @ self.shape.root.mT
        variances = torch.zeros((len(G),) * self.order).to(G)
        for places in itertools.permutations(range(self.order)):
            entry = torch.ones_like(variances)
            for k, other in enumerate(places):
                entry *= _along(G.diagonal() if k == other else G, (k, other), self.order)
            variances += entry
        return self._scale(n) * (variances / math.factorial(self.order)).clamp_min(0).sqrt()

    def root_mean_square(self, n: int) -> float:
        """(E ||error||_2^2)^{1/2} over all d^l entries, exactly: (multiplier D/n) h_l(eigenvalues of A A^T)^{1/2}.

        h_l: the complete homogeneous symmetric polynomial, the trace of A A^T on symmetric tensors.
        """
        eigenvalues = torch.linalg.svdvals(self.shape.root).square()
        h = [1.0]
        for k in range(1, self.order + 1):
            h.append(sum(float(eigenvalues.pow(j).sum()) * h[k - j] for j in range(1, k + 1)) / k)
        return self._scale(n) * math.sqrt(h[-1])

    def root_mean_power(self, n: int, p: float) -> float:
        """(E ||error||_p^p)^{1/p} = (E |g|^p)^{1/p} times the l_p norm of the deviations, exactly; p in [2, inf)."""
        p = check_exponent(p)
        if p == math.inf:
            raise ValueError("p must be finite here; the largest entry has no such moment")
        return normal_moment(p) ** (1 / p) * float(torch.linalg.vector_norm(self.deviations(n), ord=p))

    def estimate(self, x: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()) -> Tensor:
        """The private moment of x, (n, d): (*sample_shape, d, ..., d), symmetric; noise: the system's where None.

        sample_shape: repetitions, for simulations: each is a release of its own, and the guarantee is that of one.
        Raises TypeError, ValueError.
        """
        x = admitted("x", x, self.domain, self.shape)
        root = self.shape.root
        shape = (*checks.sample_shape(sample_shape), *(root.shape[1],) * self.order)
        normals = source(noise, x.device).normal(shape)
        exact = sum(tensor_sum(u, self.order) for u in self.encoding.chunks(x)) / len(x)
        return apply_to_each(root, exact + self._scale(len(x)) * symmetrised(normals, self.order), self.order)

    def _scale(self, n: int) -> float:
        return self.multiplier * self.sensitivity / checks.integer("n", n, 1)


def gaussian_moments(
    domain: Domain, shape: NoiseShape, order: int, epsilon: float, delta: float
) -> GaussianMoments:
    """The mechanism with the least noise that is (epsilon, delta)-DP. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP.
    Source: Balle, Wang (2018), Theorem 8.
    """
    return GaussianMoments(domain, shape, order, gaussian_sigma(epsilon, delta), delta)


def tensor_sum(u: Tensor, order: int) -> Tensor:
    """sum_i u_i (x) ... (x) u_i for rows u (k, r): (r, ..., r), by one product of two half powers."""
    left, right = _power(u, (order + 1) // 2), _power(u, order // 2)
    return (left.mT @ right).reshape((u.shape[1],) * order)


def symmetrised(tensor: Tensor, order: int) -> Tensor:
    """The mean over all orders of the last ``order`` indices."""
    lead = tuple(range(tensor.ndim - order))
    total = torch.zeros_like(tensor)
    for places in itertools.permutations(range(tensor.ndim - order, tensor.ndim)):
        total += tensor.permute(lead + places)
    return total / math.factorial(order)


def apply_to_each(A: Tensor, tensor: Tensor, order: int) -> Tensor:
    """A (d, r) applied to each of the last ``order`` indices of (..., r, ..., r): (..., d, ..., d)."""
    for _ in range(order):  # each turn moves the index it has changed to the front of the others
        tensor = (tensor @ A.mT).movedim(-1, tensor.ndim - order)
    return tensor


def _power(u: Tensor, order: int) -> Tensor:
    """Rows u_i^{(x) order}, flat: (k, r^order)."""
    result = u.new_ones(len(u), 1)
    for _ in range(order):
        result = (result[:, :, None] * u[:, None, :]).flatten(1)
    return result


def _along(values: Tensor, axes: tuple[int, int], order: int) -> Tensor:
    """A matrix (or its diagonal, for equal axes) laid along two axes of a tensor of so many."""
    shape = [1] * order
    for axis in axes:
        shape[axis] = len(values)
    return (values.mT if values.ndim == 2 and axes[0] > axes[1] else values).reshape(shape)
