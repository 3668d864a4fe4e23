"""The Gram route: each client encodes x x^T and y x, the servers only add up. Central accuracy without a curator.

In the linear-transformation model a client may encode before the public linear map is applied. With the products
encoded, the map is the plain sum, and the released sum is the central Gaussian mechanism for A^T A and A^T b
("Analyze Gauss") in distribution: no sketch is embedded, and no noise is squared.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.privacy import Model
from torchdp.protocol import Users
from torchdp.protocol.users import tensor_of
from torchdp.regression.errors import SecondMoments
from torchdp.regression.rows import RowsProtocol
from torchdp.regression.second_moment_noise import NoisyMoments, triangular, vectorized
from torchdp.regression.sensitivity import gram_sensitivity, joint_sensitivity
from torchdp.secure.shared_noise import SharedGaussian
from torchdp.secure.shared_sum import SharedSum


@dataclass(frozen=True)
class GramRelease(RowsProtocol, SharedSum[SecondMoments]):
    """A^T A, and with labels A^T b, released with Gaussian noise that the clients share.

    Each client sends svec(x x^T) and weight y x, d (d + 1)/2 + d numbers, with its share of the noise
    (:class:`SharedGaussian`). weight = B/label_bound puts labels and rows on one scale: the sensitivity is 3 B^2/sqrt
    2 (with one column 2 B^2; without labels sqrt 2 B^2), and no result depends on the labels' unit.

    clients: n; columns: d; bound: B, longer rows are shortened to it; epsilon > 0, delta in (0, 1); label_bound:
    labels are cut to it, None for no labels; corrupt clients collude, absent others may drop out, together fewer than
    n; model: Model.LINEAR_TRANSFORM, or Model.CENTRAL (neither), a curator's, same distribution. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-DP for replacing one client's row and label, n public, in this model.
    Source: Dwork, Talwar, Thakurta, Zhang (2014), Algorithm 1; Balle, Wang (2018), Theorem 8; joint_sensitivity.
    """

    clients: int
    columns: int
    bound: float
    epsilon: float
    delta: float
    label_bound: float | None = None
    corrupt: int = 0
    model: Model = Model.LINEAR_TRANSFORM
    absent: int = 0

    def __post_init__(self) -> None:
        if self.label_bound is not None:
            checks.positive("label_bound", self.label_bound)
        checks.validated(self, "noise.sigma")  # clients, bounds, epsilon and delta that have no noise

    @cached_property
    def noise(self) -> SharedGaussian:
        """The clients' noise, at the exact sensitivity of their encodings."""
        if self.label_bound is None:
            sensitivity = gram_sensitivity(self.bound, self.columns)
        else:
            sensitivity = joint_sensitivity(self.bound, self.columns)
        return SharedGaussian(
            self.clients, sensitivity, self.epsilon, self.delta, self.corrupt, self.model, self.absent
        )

    @property
    def words(self) -> int:
        return self.width

    @property
    def norm_and_entry(self) -> tuple[float, float]:
        square = self.bound**2  # |svec(x x^T)|, and |weight y x|
        return square * (math.sqrt(2) if self.labelled else 1.0), square

    @property
    def weight(self) -> float:
        """What the labels are multiplied by before encoding."""
        return 1.0 if self.label_bound is None else self.bound / self.label_bound

    @property
    def gram_sigma(self) -> float:
        """Level of the released gram's noise, no client absent: this on the diagonal, 1/sqrt 2 of it elsewhere."""
        return self.noise.level

    @property
    def cross_sigma(self) -> float:
        """Standard deviation of each entry of the released A^T b, no client absent."""
        return self.noise.level / self.weight

    @property
    def scales(self) -> Tensor:
        """(words,): 1 for svec(A^T A), 1/weight for A^T b: what turns a sum into the value."""
        scales = torch.ones(self.words, dtype=torch.float64)
        scales[triangular(self.columns) :] /= self.weight
        return scales

    def validate(self, x: Tensor) -> Tensor:
        return self.few(super().validate(x))

    def contribution(self, x: Tensor) -> Tensor:
        rows = self.clipped(x)
        if self.label_bound is None:
            return vectorized(rows)
        return torch.cat([vectorized(rows[:, :-1]), self.weight * rows[:, -1:] * rows[:, :-1]], 1)

    def total(self, summary: SecondMoments) -> tuple[Tensor, Users]:
        value = self.exact(summary)
        return value / self.scales.to(value), summary.n

    def variances(self, n: Users) -> Tensor:
        return (self.noise.level_of(n, 1) * self.scales.to(tensor_of(n).device)).square()

    def value(self, total: Tensor, n: Users) -> Tensor:
        return total * self.scales.to(total)

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> NoisyMoments:
        return NoisyMoments(value, error, n, columns=self.columns)
