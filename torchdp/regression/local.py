"""The local model's baseline: every client publishes a noisy row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.regression.errors import NUMBERS_AT_ONCE, SecondMoments
from torchdp.regression.gram import rows_of, shortened, within
from torchdp.regression.second_moment_noise import NoisyMoments, from_noisy_rows


@dataclass(frozen=True)
class LocalRows:
    """Each client publishes its row, and its label, plus N(0, sigma^2 I): nobody need be trusted.

    Two rows with labels are at most 2 sqrt(B^2 + C^2) apart. The analyst sees Z = [A b] + E, with
    E Z^T Z = [A b]^T [A b] + n sigma^2 I.

    columns: d; bound: B, longer rows are shortened to it; epsilon > 0, delta in (0, 1); label_bound: C, labels are
    cut to it, None for no labels. Raises ValueError.

    Guarantees: exactly (epsilon, delta)-LDP.
    Source: Balle, Wang (2018), Theorem 8.
    """

    columns: int
    bound: float
    epsilon: float
    delta: float
    label_bound: float | None = None

    def __post_init__(self) -> None:
        checks.integer("columns", self.columns, 1)
        checks.positive("bound", self.bound)
        if self.label_bound is not None:
            checks.positive("label_bound", self.label_bound)
        _ = self.sigma

    @property
    def sensitivity(self) -> float:
        """Largest distance of two clients' rows, labels included."""
        return 2 * math.hypot(self.bound, self.label_bound or 0.0)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise in each entry."""
        return gaussian_sigma(self.epsilon, self.delta, self.sensitivity)

    @property
    def guarantee(self) -> Guarantee:
        source = "Balle, Wang (2018), Theorem 8"
        return Guarantee(self.epsilon, self.delta, Model.LOCAL, Neighbours.REPLACE_ONE, True, source)

    def messages(self, A: Tensor, labels: Tensor | None = None, *, noise: Noise | None = None) -> Tensor:
        """What these clients publish: (n, d) or, with labels, (n, d + 1), float64. Raises TypeError, ValueError."""
        rows = rows_of(A, labels, self.columns, self.label_bound).double()
        sent = shortened(rows[:, : self.columns], self.bound)
        if self.label_bound is not None:
            sent = torch.cat([sent, rows[:, -1:].clamp(-self.label_bound, self.label_bound)], 1)
        return sent + self.sigma * source(noise, rows.device).normal(tuple(sent.shape))

    def collect(self, A: Tensor, labels: Tensor | None = None, *, noise: Noise | None = None) -> Tensor:
        """Z^T Z of all messages, made and added part by part: (d, d) or (d + 1, d + 1), float64."""
        rows = rows_of(A, labels, self.columns, self.label_bound)
        noise = source(noise, rows.device)
        total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for part in rows.split(max(1, NUMBERS_AT_ONCE // rows.shape[1])):
            x, y = part[:, : self.columns], None if self.label_bound is None else part[:, -1]
            sent = self.messages(x, y, noise=noise)
            total.addmm_(sent.mT, sent)
        return total

    def release(
        self, moments: SecondMoments, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """Z^T Z for rows of these moments, in law that of ``collect``, whatever n: O(d^3) a repetition.

        With [A b] = Q R, Q^T E and the rest of E are independent: Z^T Z = (R + G)^T (R + G) + W, G normal, W Wishart
        with n - r degrees of freedom. moments: of rows within the bounds. Raises ValueError.
        """
        within(moments, self.columns, self.bound, self.label_bound)
        shape, d, draws = checks.sample_shape(sample_shape), moments.columns, source(noise, moments.matrix.device)
        values, vectors = torch.linalg.eigh(moments.matrix)
        r = min(moments.clients, d)  # rows that can differ from zero after a rotation of the clients
        root = (values.clamp_min(0).sqrt()[:, None] * vectors.mT)[d - r :]
        rotated = root + self.sigma * draws.normal((*shape, r, d))
        return rotated.mT @ rotated + self.sigma**2 * wishart(moments.clients - r, d, shape, draws)

    def decode(self, total: Tensor, clients: int) -> NoisyMoments:
        """The debiased moments, Z^T Z - n sigma^2 I, with the levels of their noise: (*batch, d', d').

        Raises ValueError, TypeError.
        """
        total, variance = checks.matrix("total", total).double(), self.sigma**2
        clients, size = checks.integer("clients", clients, 1), self.columns + (self.label_bound is not None)
        if total.shape[-2:] != (size, size):
            raise ValueError(f"total must have shape (..., {size}, {size}), not {tuple(total.shape)}")
        matrix = total - clients * variance * torch.eye(total.shape[-1]).to(total)
        return from_noisy_rows(matrix, clients * variance**2, variance, self.label_bound is not None)


def wishart(degrees: int, d: int, shape: Sequence[int], draws: Draws) -> Tensor:
    """G^T G for standard normal G, degrees x d, exactly in law: (*shape, d, d), float64, in O(d^3).

    Source: Bartlett (1933): G = Q T with T upper triangular, chi on its diagonal and normal above it.
    """
    if degrees < d:
        normal = draws.normal((*shape, degrees, d))
        return normal.mT @ normal
    halves = (degrees - torch.arange(d, dtype=torch.float64, device=draws.device)) / 2
    chi = (2 * draws.gamma(halves.expand(*shape, d))).sqrt()
    triangular = draws.normal((*shape, d, d)).triu(1) + torch.diag_embed(chi)
    return triangular.mT @ triangular
