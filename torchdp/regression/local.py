"""The local model's baseline: every client publishes a noisy row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.protocol import Layout, Limits, Objective, Relay, Tally, Users
from torchdp.protocol.records import ROUNDING, broadcast_users, tensor_of
from torchdp.randomizers import GaussianVector
from torchdp.regression.errors import RowsProtocol, SecondMoments
from torchdp.regression.second_moment_noise import NoisyMoments, from_noisy_rows, product_variances


@dataclass(frozen=True)
class LocalRows(RowsProtocol, Relay[SecondMoments, Tensor, GaussianVector]):
    """Each client publishes its row, and its label, plus N(0, sigma^2 I): no trusted party.

    Two rows with labels are at most 2 sqrt(B^2 + C^2) apart; rounding is a part of sigma^2. The
    tally is Z^T Z, Z = [A b] + E, with E Z^T Z = [A b]^T [A b] + n sigma^2 I; the estimate
    subtracts n sigma^2 I.

    Args:
        columns: d.
        bound: B, longer rows are shortened to it.
        epsilon: in [1e-3, 30].
        delta: in (0, 1).
        label_bound: C, labels are cut to it; None for no labels.

    Raises ValueError.

    Guarantees: (epsilon, delta)-LDP, for the numbers as they are sent; no smaller sigma is
    (to 1e-5).
    Source: Balle, Wang (2018), Theorem 8.
    """

    columns: int
    bound: float
    epsilon: float
    delta: float
    label_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validated(self, "client")  # an epsilon or a delta out of its range

    @cached_property
    def client(self) -> GaussianVector:  # type: ignore[override]
        """What a client runs: rows with labels lie in a ball of radius sqrt(B^2 + C^2)."""
        longest = math.hypot(self.bound, self.label_bound or 0.0)
        return GaussianVector(self.size, self.epsilon, longest, delta=self.delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in each entry."""
        return math.sqrt(self.client.moments.variance)

    @property
    def size(self) -> int:
        """Numbers that one client publishes."""
        return self.columns + self.labelled

    @property
    def layout(self) -> Layout:
        return {"gram": ((self.size, self.size), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        # Each of n products of two entries is at most the square of the largest entry.
        return {"gram": Limits.around(n * self.client.entry_limit**2)}

    def impossible(self, tally: Tally) -> str | None:
        gram = tally["gram"]
        squares = gram.diagonal(dim1=-2, dim2=-1)
        products = squares[..., :, None] * squares[..., None, :]
        rounding = ROUNDING * squares.sum(-1)[..., None, None]
        lopsided = (gram - gram.mT).abs() > rounding
        # Cauchy and Schwarz: |Z_i . Z_j|^2 <= |Z_i|^2 |Z_j|^2
        too_large = gram.square() > products + rounding.square()
        if bool((lopsided | too_large).any() | (squares < 0).any()):
            return "gram holds no products of rows"
        return None

    def client_input(self, x: Tensor) -> Tensor:
        return self.clipped(x)

    def tally(self, messages: Tensor) -> Tally:
        # n sigma^2 is subtracted later, and float32 sums would lose what it leaves.
        messages = checks.floating("messages", messages).double()
        checks.shaped("messages", messages, "n", self.size, empty=True)
        return Tally(len(messages), {"gram": messages.mT @ messages})

    def sample_unchecked(
        self, summary: SecondMoments, draws: Simulated, shape: tuple[int, ...]
    ) -> Tally:
        """O(d^3) a repetition, whatever n.

        With [A b] = Q R, Q^T E and the rest of E are independent: Z^T Z = (R + G)^T (R + G) + W, G
        normal, W Wishart with n - r degrees of freedom, r = min(n, d): the rows that can differ
        from zero after a rotation of the users.
        """
        n = tensor_of(summary.n).to(summary.matrix.device)
        d = summary.columns
        values, vectors = torch.linalg.eigh(summary.matrix)
        R = values.clamp_min(0).sqrt()[..., :, None] * vectors.mT
        # r of its rows; eigenvalues rise, so the largest ones are last
        kept = torch.arange(d - 1, -1, -1, device=n.device) < n[..., None]
        noisy = R + self.sigma * draws.normal((*shape, *R.shape))
        rotated = noisy * kept[..., None]
        # n - min(n, d) degrees of freedom: the users that the rotation leaves with noise alone.
        W = wishart((n - d).clamp_min(0), d, (*shape, *n.shape), draws)
        return Tally(summary.n, {"gram": rotated.mT @ rotated + self.sigma**2 * W})

    def analyse(self, tally: Tally) -> NoisyMoments:
        """Standard errors are of products with the noise, rows' squares taken from the tally."""
        total = self.check(tally)["gram"]
        variance = self.sigma**2
        # Unbiased, and so perhaps indefinite: whoever solves with it regularizes.
        matrix = total - tally.users(2) * variance * torch.eye(self.size).to(total)
        variances = total.new_full(total.shape[:-2], variance)
        squares = tally.users() * variances**2
        return from_noisy_rows(matrix, squares, variances, self.labelled, tally.n)

    def predicted_mse(self, summary: SecondMoments) -> Tensor:
        """n sigma^4 + sigma^2 (M_ii + M_jj) for entry (i, j) of M, twice that in svec."""
        matrix = self.validate_summary(summary).matrix
        return self._mse(matrix.diagonal(dim1=-2, dim2=-1), summary.n)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """Exact. The worst entry: all rows along one axis; the mean: all at their bound.

        Labels are at their bound for both.
        """
        d = self.columns
        squares = torch.zeros(self.size, dtype=torch.float64, device=tensor_of(n).device)
        if objective is Objective.WORST:
            # Errors grow with M_ii + M_jj: rows along one axis make both n B^2 where i = j.
            squares[0] = self.bound**2
        else:
            # The mean depends on the trace alone: any rows of length B will do.
            squares[:d] = self.bound**2 / d
        squares[d:] = (self.label_bound or 0.0) ** 2
        errors = self._mse(broadcast_users(n, 1) * squares, n)
        return objective.of(errors, errors.ndim - 1)

    def _mse(self, diagonal: Tensor, n: Users) -> Tensor:
        """Of n rows whose second moments have this diagonal."""
        variance = self.sigma**2
        return product_variances(
            diagonal, broadcast_users(n, 1) * self.sigma**4, variance, self.labelled
        )


def wishart(degrees: Tensor, d: int, shape: Sequence[int], draws: Draws) -> Tensor:
    """G^T G for standard normal G, degrees x d, exactly in distribution: (*shape, d, d), in O(d^3).

    degrees: whole numbers >= 0 that ``shape`` ends with. Returns float64.
    Source: Bartlett (1933): G = Q T with T upper triangular, chi on its diagonal and normal above
    it; below as many rows as G has T is 0.
    """
    left = degrees[..., None] - torch.arange(d, device=degrees.device)
    # Rows of T below those of G are set to 0 at the end; 1 keeps their Gamma defined until then.
    half = left.clamp_min(1).double() / 2
    # The square of chi with q degrees of freedom is 2 Gamma(q/2).
    chi = (2 * draws.gamma(half.expand(*shape, d))).sqrt()
    full = draws.normal((*shape, d, d)).triu(1) + torch.diag_embed(chi)
    T = full * (left > 0)[..., None]
    return T.mT @ T
