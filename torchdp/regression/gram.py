"""The Gram route: each client encodes x x^T and y x, the servers only add up.

In the linear-transformation model a client may encode before the public linear map is applied. With
the products encoded, the map is the plain sum, and the released sum is the central Gaussian
mechanism for A^T A and A^T b ("Analyze Gauss") in distribution, on a grid: no sketch is embedded,
and no noise is squared.

Exact sensitivities for replacing one row and label, how far one client's products can move A^T A
and A^T b: Let |x|, |x'| <= B and |y|, |y'| <= B be one client's values in neighbouring data, labels
on the rows' scale, a and a' the norms of x and x', c the cosine between them. Then |x x^T - x'
x'^T|_F^2 + |y x - y' x'|^2 =
    a^4 + a'^4 - 2 a^2 a'^2 c^2 + y^2 a^2 + y'^2 a'^2 - 2 y y' a a' c,
convex in y and in y', so largest at |y| = |y'| = B with the signs that turn the last term into + 2
B^2 a a' |c|. As a concave parabola in |c| it is at most a^4 + a'^4 + B^2 (a^2 + a'^2) + B^4/2 <= 9
B^4/2, attained at a = a' = B and
|c| = 1/2. With one column |c| = 1: with s = a + a' and t = abs(a - a') the value is s^2 (t^2 + B^2)
<= (2 B - t)^2 (t^2 + B^2), whose logarithm has the sign of t (2 B - t) - t^2 - B^2 < 0 as its
slope: t = 0, 4 B^4.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.privacy import Guarantee, Model
from torchdp.protocol import Users
from torchdp.regression.errors import RowsProtocol, SecondMoments
from torchdp.regression.second_moment_noise import NoisyMoments, vectorized
from torchdp.secure.shared_sum import SharedSum, Shown
from torchdp.symmetric import triangular


def gram_sensitivity(bound: float, columns: int, labelled: bool = False) -> float:
    """Largest |x x^T - x' x'^T|_F over |x|, |x'| <= B: sqrt 2 B^2, and B^2 with one column.

    labelled: of (x x^T, y x) from (x' x'^T, y' x'), for abs(y), abs(y') <= B: 3 B^2/sqrt 2, 2 B^2
    with one column. Attained; derived at the top of this module. Raises ValueError.
    """
    bound = checks.squarable("bound", bound, 4)
    columns = checks.integer("columns", columns, 1)
    if labelled:
        return bound**2 * (3 / math.sqrt(2) if columns > 1 else 2.0)
    # a^4 + a'^4 - 2 (x . x')^2 is largest for orthogonal rows of norm B, which one column has not.
    return bound**2 * (math.sqrt(2) if columns > 1 else 1.0)


@dataclass(frozen=True)
class GramRelease(RowsProtocol, SharedSum[SecondMoments]):
    """A^T A, and with labels A^T b, released with Gaussian noise that the clients share.

    Each client shows svec(x x^T)/B^2 and y x/(B C), d (d + 1)/2 + d numbers, in integers with its
    share of the noise (:class:`SharedSum`). That puts labels and rows on one scale: the sensitivity
    is 3/sqrt 2 (with one column 2; without labels sqrt 2), and no result depends on the units of
    either.

    Args:
        clients: n.
        columns: d.
        bound: B, longer rows are shortened to it.
        epsilon: > 0.
        delta: in (0, 1).
        label_bound: C, labels are cut to it; None for no labels.
        corrupt: clients who collude.
        model: Model.LINEAR_TRANSFORM; or Model.CENTRAL, a curator's, of the same distribution,
            without corrupt and absent ones.
        absent: others, who may drop out; together fewer than n.

    Raises ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's row and label, n public, in this
    model: that of
        :class:`SecureSketch` on a plain sum, at the exact sensitivity before rounding.
    Source: Dwork, Talwar, Thakurta, Zhang (2014), Algorithm 1; Balle, Wang (2018), Theorem 8;
    gram_sensitivity.
    """

    clients: int
    columns: int
    bound: float
    epsilon: float
    delta: float
    label_bound: float | None = None
    corrupt: int | None = None
    model: Model = Model.LINEAR_TRANSFORM
    absent: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # delta = 0 would mean discrete Laplace noise, for an l_1 distance that is not derived here.
        checks.fraction("delta", self.delta)
        curator = self.model is Model.CENTRAL and not self.corrupt and not self.absent
        if not curator and self.model is not Model.LINEAR_TRANSFORM:
            raise ValueError(
                "model must be Model.LINEAR_TRANSFORM, or Model.CENTRAL with corrupt = absent = 0"
            )
        checks.validated(self, "client")  # clients, epsilon and delta that have no noise

    @property
    def guarantee(self) -> Guarantee:
        # A curator who adds this noise has the same law: what differs is who is trusted.
        return replace(self.client.guarantee, model=self.model)

    @property
    def shown(self) -> Shown:
        # |svec(x x^T)|^2 = |x|^4 <= 1, with labels + |y x|^2 <= 1, in units of the bounds.
        norm = math.sqrt(1 + self.labelled)
        distance = gram_sensitivity(1.0, self.columns, self.labelled)
        return Shown(self.width, norm, 1.0, distance)

    @property
    def gram_sigma(self) -> float:
        """Level of the gram's noise, nobody absent: on the diagonal, 1/sqrt 2 of it elsewhere."""
        return self.level * self.bound**2

    @property
    def cross_sigma(self) -> float:
        """Standard deviation of the entries of A^T b, nobody absent; 0 without labels."""
        return self.level * self.bound * (self.label_bound or 0.0)

    @property
    def scales(self) -> Tensor:
        scales = torch.full((self.width,), self.bound**2, dtype=torch.float64)
        scales[triangular(self.columns) :] = self.bound * (self.label_bound or 0.0)
        return scales

    def validate(self, x: Tensor) -> Tensor:
        return self.few(super().validate(x))

    def client_input(self, x: Tensor) -> Tensor:
        scaled = self.clipped(x)
        # labels and rows on one scale, so that no result depends on their units
        scaled[:, : self.columns] /= self.bound
        if self.label_bound is not None:
            scaled[:, self.columns :] /= self.label_bound
        return vectorized(scaled, self.labelled)

    def total(self, summary: SecondMoments) -> tuple[Tensor, Users]:
        value = self.exact(summary)
        return value / self.scales.to(value), summary.n

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> NoisyMoments:
        return NoisyMoments(value, error, n, columns=self.columns)
