"""Moment tensors of bounded vectors: Gaussian noise with the covariance of a symmetric Kronecker power."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.encoding import Encoding, encoding
from torchdp.draws import Draws
from torchdp.mean.gaussian import GaussianRelease
from torchdp.protocol import Crowd, Estimate, Layout, Objective, Tally, Users
from torchdp.protocol.records import beside
from torchdp.protocol.rounded_sum import RoundedSum

MOST_ORDER, MOST_ENTRIES = 6, 2**27


@dataclass(frozen=True, eq=False)
class GaussianMoments(GaussianRelease):
    """The curator releases (1/n) sum_i x_i (x) ... (x) x_i (``order`` factors) plus symmetric Gaussian noise.

    With x = A u, ||u|| <= R, the tensor is A^{(x) l} u^{(x) l}, and u^{(x) l} lies in the symmetric tensors: the noise
    is A^{(x) l} (multiplier D / n) Sym(g), g standard normal of shape (r, ..., r), Sym the mean over all orders of the
    indices, which is the orthogonal projection. Entry i_1 ... i_l has variance (multiplier D/n)^2 / l! times the
    permanent of (A A^T)[i, i], l! times less than noise on every coordinate apart where the i_k are far from each
    other. D bounds ||u^{(x) l} - w^{(x) l}||: its square is ||u||^{2l} + ||w||^{2l} - 2 <u, w>^l, so D = 2^{1/2} R^l
    for even l (R^l where r = 1) and 2 R^l for odd l. Noise and data cost O(l d^{l + 1}); no d^l x d^l matrix.

    shape: around the origin: noise_shape(domain, p, shift=False), or of a symmetric domain. order: 1 to 6. A tally is
    the noisy sum of u^{(x) l}. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public.
    Source: Nikolov, Tang (2023), Theorem 15 for the set {x^{(x) l}}, Lemma 62 for the ellipsoid around it.
    """

    order: int = 2

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)  # refuses what does not fit
        checks.keep(self, order=checks.count)
        if self.order > MOST_ORDER or self.domain.dimension**self.order > MOST_ENTRIES:
            raise ValueError(
                f"order {self.order} in dimension {self.domain.dimension} is too large: at most order {MOST_ORDER} "
                f"and {MOST_ENTRIES} entries"
            )
        if bool(self.shape.centre.any()):
            raise ValueError("shape must be around the origin: noise_shape(domain, p, shift=False)")
        super().__post_init__()

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball around the origin."""
        return Encoding(self.domain, self.shape, torch.zeros_like(self.shape.centre))

    @property
    def sensitivity(self) -> float:
        """D, in the space of u."""
        apart = 2.0 if self.order % 2 else math.sqrt(2) if self.shape.root.shape[1] > 1 else 1.0
        return apart * self.encoding.radius**self.order

    @cached_property
    def sums(self) -> RoundedSum:
        """Of u^{(x) l}."""
        r, own = self.shape.root.shape[1], self.encoding
        apart = self.sensitivity * (1 + 1e-12)
        return RoundedSum.least(self.multiplier, apart, own.radius**self.order, r**self.order)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.shape.root.shape[1],) * self.order, torch.float64)}

    def deviations(self, n: Users) -> Tensor:
        """Standard deviation of each entry's noise, (*batch, d, ..., d): scaled (permanent((A A^T)[i, i])/l!)^{1/2}."""
        G = self.shape.root @ self.shape.root.mT
        variances = torch.zeros((len(G),) * self.order).to(G)
        for places in itertools.permutations(range(self.order)):
            entry = torch.ones_like(variances)
            for k, other in enumerate(places):
                entry *= _along(G.diagonal() if k == other else G, (k, other), self.order)
            variances += entry
        scale = self.sums.sigma / beside(checks.people("n", n, 1), self.order)
        return scale * (variances / math.factorial(self.order)).clamp_min(0).sqrt()

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        each = (tensor_sum(u, self.order, c).flatten(-self.order) for u, c in self.encoded(summary))
        noisy = self.sums.released(self.sums.blocks(each, summary.n), draws, shape)
        whole = noisy.unflatten(-1, self.layout["sum"][0])
        return Tally(summary.n, {"sum": symmetrised(whole, self.order)})

    def analyse(self, tally: Tally) -> Estimate:
        """value: (*sample_shape, d, ..., d), symmetric."""
        value = apply_to_each(self.shape.root, self.check(tally)["sum"] / tally.users(self.order), self.order)
        return Estimate(value, self.deviations(tally.n).expand_as(value), tally.n)

    def exact(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        return tensor_sum(crowd.rows.double(), self.order, crowd.counts.double()) / beside(crowd.n, self.order)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        return self.deviations(self.validate_summary(summary).n).square()

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """The same for all data."""
        errors = self.deviations(n).square()
        return checks.instance("objective", objective, Objective).of(errors, errors.ndim - self.order)


def tensor_sum(u: Tensor, order: int, counts: Tensor) -> Tensor:
    """sum_i counts_i u_i (x) ... (x) u_i for rows u (*batch, k, r): (*batch, r, ..., r), from half powers."""
    left, right = _power(u, (order + 1) // 2), _power(u, order // 2)
    return ((counts[..., None] * left).mT @ right).reshape(*counts.shape[:-1], *(u.shape[-1],) * order)


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
    """Rows u_i^{(x) order}, flat: (*batch, k, r^order)."""
    result = torch.ones_like(u[..., :1])
    for _ in range(order):
        result = (result[..., :, None] * u[..., None, :]).flatten(-2)
    return result


def _along(values: Tensor, axes: tuple[int, int], order: int) -> Tensor:
    """A matrix (or its diagonal, for equal axes) laid along two axes of a tensor of so many."""
    shape = [1] * order
    for axis in axes:
        shape[axis] = len(values)
    return (values.mT if values.ndim == 2 and axes[0] > axes[1] else values).reshape(shape)
