"""The Gram route: each client encodes x x^T and y x, the servers only add up. Central accuracy without a curator.

In the linear-transformation model a client may encode before the public linear map is applied. With the products
encoded, the map is the plain sum, and the released sum is the central Gaussian mechanism for A^T A and A^T b
("Analyze Gauss") in law: no sketch is embedded, and no noise is squared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model
from torchdp.regression.errors import NUMBERS_AT_ONCE, SecondMoments, checked, joined
from torchdp.regression.second_moment_noise import NoisyMoments, symmetric, triangle, vectorized
from torchdp.regression.sensitivity import gram_sensitivity, joint_sensitivity
from torchdp.secure.shared_noise import SharedGaussian


@dataclass(frozen=True)
class GramRelease:
    """A^T A, and with labels A^T b, released with Gaussian noise that the clients share.

    Each client sends svec(x x^T) and weight y x, d (d + 1)/2 + d numbers, with its share of the noise
    (:class:`SharedGaussian`). weight = B/label_bound puts labels and rows on one scale: the sensitivity is 3 B^2/sqrt
    2 (with one column 2 B^2; without labels sqrt 2 B^2), and no result depends on the labels' unit.

    clients: n; columns: d; bound: B, longer rows are shortened to it; epsilon > 0, delta in (0, 1); label_bound:
    labels are cut to it, None for no labels; corrupt clients collude, absent others may drop out, together fewer than
    n; model: Model.LINEAR_TRANSFORM, or Model.CENTRAL (neither), the same law from a curator. Raises ValueError.

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
        _ = self.noise.sigma  # refuses what it cannot calibrate

    @cached_property
    def noise(self) -> SharedGaussian:
        """The clients' noise, at the exact sensitivity of their encodings."""
        if self.label_bound is None:
            sensitivity = gram_sensitivity(self.bound, self.columns)
        else:
            sensitivity = joint_sensitivity(self.bound, self.bound, self.columns)
        return SharedGaussian(
            self.clients, sensitivity, self.epsilon, self.delta, self.corrupt, self.model, self.absent
        )

    @property
    def guarantee(self) -> Guarantee:
        return self.noise.guarantee

    def guarantee_of(self, clients: int) -> Guarantee:
        """What the sum of so many clients' messages promises, exactly. Raises ValueError where nothing."""
        return self.noise.guarantee_of(clients)

    @property
    def words(self) -> int:
        """Numbers that one client sends to each server."""
        return self.columns * (self.columns + 1) // 2 + (0 if self.label_bound is None else self.columns)

    @property
    def weight(self) -> float:
        """What the labels are multiplied by before encoding."""
        return 1.0 if self.label_bound is None else self.bound / self.label_bound

    @property
    def gram_sigma(self) -> float:
        """Level of the released gram's noise, everybody heard: this on the diagonal, 1/sqrt 2 of it elsewhere."""
        return self.noise.level

    @property
    def cross_sigma(self) -> float:
        """Standard deviation of each entry of the released A^T b, everybody heard."""
        return self.noise.level / self.weight

    def encode(self, A: Tensor, labels: Tensor | None = None) -> Tensor:
        """What the clients with rows (n, d) and labels (n,) encode, noise not yet added: (n, words), float64.

        Raises TypeError, ValueError.
        """
        x, y = self._clipped(A, labels)
        return vectorized(x) if y is None else torch.cat([vectorized(x), self.weight * y[:, None] * x], 1)

    def messages(self, A: Tensor, labels: Tensor | None = None, *, noise: Noise | None = None) -> Tensor:
        """What these clients send, in the clear: encodings with each one's share of the noise, (n, words).

        Raises TypeError, ValueError.
        """
        return self.noise.add_share(self.encode(A, labels), noise=noise)

    def collect(self, A: Tensor, labels: Tensor | None = None, *, noise: Noise | None = None) -> NoisyMoments:
        """The release from the messages of all n clients, made and added part by part.

        Raises TypeError, ValueError.
        """
        rows = self._rows(A, labels)
        if len(rows) != self.clients:
            raise ValueError(f"A must hold a row for each of the {self.clients} clients, not {len(rows)}")
        total = torch.zeros(self.words, dtype=torch.float64, device=rows.device)
        noise = source(noise, rows.device)
        for part in rows.split(max(1, NUMBERS_AT_ONCE // self.words)):
            x, y = part[:, : self.columns], None if self.label_bound is None else part[:, -1]
            total += self.messages(x, y, noise=noise).sum(0)
        return self.decode(total, self.clients)

    def decode(self, total: Tensor, clients: int) -> NoisyMoments:
        """The release from the sum of so many clients' messages, (*batch, words), as the servers publish it.

        Raises ValueError for fewer clients than n - absent, whose noise does not suffice for ``guarantee``
        (``guarantee_of`` says what it suffices for); TypeError.
        """
        level = self.noise.level_of(self.noise.heard(clients))
        total = checks.floating("total", total).double()
        if total.ndim == 0 or total.shape[-1] != self.words:
            raise ValueError(f"total must have shape (..., {self.words}), not {tuple(total.shape)}")
        split = self.columns * (self.columns + 1) // 2
        cross = None if self.label_bound is None else total[..., split:] / self.weight
        levels = (total.new_tensor(sigma).expand(total.shape[:-1]) for sigma in (level, level / self.weight))
        return NoisyMoments(symmetric(total[..., :split], self.columns), cross, *levels)

    def release(
        self, moments: SecondMoments, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()
    ) -> NoisyMoments:
        """The release for rows of these moments, in law that of ``collect``, whatever n: O(d^2) a repetition.

        moments: of rows and labels within the bounds (the labels last, where there are any). Raises ValueError.
        """
        within(moments, self.columns, self.bound, self.label_bound, self.clients)
        i, j = triangle(self.columns, moments.matrix.device)
        total = moments.matrix[i, j] * torch.where(i == j, 1.0, math.sqrt(2)).double()
        if self.label_bound is not None:
            total = torch.cat([total, self.weight * moments.cross])
        return self.decode(self.noise.add_sum(total, noise=noise, sample_shape=sample_shape), self.clients)

    def _clipped(self, A: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        rows = self._rows(
            A, labels
        ).double()  # in float32 a shortened row may be longer than the bound by its rounding
        x = shortened(rows[:, : self.columns], self.bound)
        return x, None if self.label_bound is None else rows[:, -1].clamp(-self.label_bound, self.label_bound)

    def _rows(self, A: Tensor, labels: Tensor | None) -> Tensor:
        return rows_of(A, labels, self.columns, self.label_bound)


def shortened(rows: Tensor, bound: float) -> Tensor:
    """Rows (n, d) projected on the l_2 ball of radius ``bound``."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / (norms / bound).clamp_min(1)


def rows_of(A: Tensor, labels: Tensor | None, columns: int, label_bound: float | None) -> Tensor:
    """[A b], with labels exactly where ``label_bound`` is given. Raises TypeError, ValueError."""
    rows, wanted = joined(A, labels), columns + (label_bound is not None)
    if (labels is None) != (label_bound is None) or rows.shape[1] != wanted:
        raise ValueError(
            f"A must have {columns} columns, with labels exactly where label_bound is given; "
            f"A has shape {tuple(A.shape)}, label_bound is {label_bound}"
        )
    return rows


def within(
    moments: SecondMoments, columns: int, bound: float, label_bound: float | None, clients: int | None = None
) -> None:
    """Refuses moments that rows within the bounds cannot have. Raises TypeError, ValueError."""
    checked(moments)
    bound = checks.squarable("bound", bound)
    if label_bound is not None:
        label_bound = checks.squarable("label_bound", label_bound)
    wanted = columns + (label_bound is not None)
    if moments.columns != wanted or clients not in (None, moments.clients):
        raise ValueError(
            f"moments must be of {'' if clients is None else f'{clients} '}rows of {wanted} columns (a label last, "
            f"where label_bound is given), not of {moments.clients} rows of {moments.columns}"
        )
    square = moments.matrix.diagonal()
    if float(square[:columns].sum()) > moments.clients * bound**2 * (1 + 1e-9):
        raise ValueError(f"moments are of rows longer than bound = {bound}; shorten the rows first")
    if label_bound is not None and moments.label_square > moments.clients * label_bound**2 * (1 + 1e-9):
        raise ValueError(f"moments are of labels larger than label_bound = {label_bound}; cut the labels first")
