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
from torchdp.protocol.records import ROUNDING, beside, tensor_of
from torchdp.randomizers import GaussianVector
from torchdp.regression.errors import RowsProtocol, SecondMoments
from torchdp.regression.second_moment_noise import NoisyMoments, from_noisy_rows, product_variances


@dataclass(frozen=True)
class LocalRows(RowsProtocol, Relay[SecondMoments, Tensor, GaussianVector]):
    """Each client publishes its row, and its label, plus N(0, sigma^2 I): no trusted party.

    Two rows with labels are at most 2 sqrt(B^2 + C^2) apart; rounding is a part of sigma^2. The
    tally is Z^T Z, Z = [A b] + E, with E Z^T Z = [A b]^T [A b] + n sigma^2 I; the estimate
    subtracts n sigma^2 I.

    columns: d; bound: B, longer rows are shortened to it; epsilon in [1e-3, 30], delta in (0, 1);
    label_bound: C, labels are cut to it, None for no labels. Raises ValueError.

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
        """What a client runs: two rows, labels included, lie in a ball of radius
        sqrt(B^2 + C^2).
        """
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
        return {"gram": Limits.around(n * self.client.entry_limit**2)}

    def impossible(self, tally: Tally) -> str | None:
        gram = tally["gram"]
        squares = gram.diagonal(dim1=-2, dim2=-1)
        product = squares[..., :, None] * squares[..., None, :]
        room = ROUNDING * squares.sum(-1)[..., None, None]
        wrong = ((gram - gram.mT).abs() > room) | (gram.square() > product + room.square())
        return "gram holds no products of rows" if bool(wrong.any() | (squares < 0).any()) else None

    def client_input(self, x: Tensor) -> Tensor:
        return self.clipped(x)

    def tally(self, messages: Tensor) -> Tally:
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
        n, d = tensor_of(summary.n).to(summary.matrix.device), summary.columns
        values, vectors = torch.linalg.eigh(summary.matrix)
        root = values.clamp_min(0).sqrt()[..., :, None] * vectors.mT
        # some of its rows, the largest of which is last
        some = torch.arange(d - 1, -1, -1, device=n.device) < n[..., None]
        rotated = (root + self.sigma * draws.normal((*shape, *root.shape))) * some[..., None]
        rest = wishart((n - d).clamp_min(0), d, (*shape, *n.shape), draws)
        return Tally(summary.n, {"gram": rotated.mT @ rotated + self.sigma**2 * rest})

    def analyse(self, tally: Tally) -> NoisyMoments:
        """Standard errors are of the rows' products with the noise, their squares taken from the
        tally.
        """
        total, variance = self.check(tally)["gram"], self.sigma**2
        matrix = total - tally.users(2) * variance * torch.eye(self.size).to(total)
        each = total.new_full(total.shape[:-2], variance)
        return from_noisy_rows(matrix, tally.users() * each**2, each, self.labelled, tally.n)

    def predicted_mse(self, summary: SecondMoments) -> Tensor:
        """n sigma^4 + sigma^2 (M_ii + M_jj) for entry (i, j) of [A b]^T [A b], twice that in
        svec.
        """
        diagonal = self.validate_summary(summary).matrix.diagonal(dim1=-2, dim2=-1)
        return product_variances(
            diagonal, beside(summary.n, 1) * self.sigma**4, self.sigma**2, self.labelled
        )

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """Exact. The worst entry: all rows along one axis; the mean: rows and labels at their
        bounds.
        """
        checks.instance("objective", objective, Objective)
        n, d = checks.people("n", n, 1), self.columns
        squares = torch.full(
            (self.size,), self.bound**2 / d, dtype=torch.float64, device=tensor_of(n).device
        )
        if objective is Objective.WORST:
            squares[0], squares[1:d] = self.bound**2, 0.0
        squares[d:] = (self.label_bound or 0.0) ** 2
        users = beside(n, 1)
        errors = product_variances(
            users * squares, users * self.sigma**4, self.sigma**2, self.labelled
        )
        return objective.of(errors, errors.ndim - 1)


def wishart(degrees: Tensor, d: int, shape: Sequence[int], draws: Draws) -> Tensor:
    """G^T G for standard normal G, degrees x d, exactly in distribution: (*shape, d, d), float64,
    in O(d^3).

    degrees: whole numbers >= 0 that ``shape`` ends with.
    Source: Bartlett (1933): G = Q T with T upper triangular, chi on its diagonal and normal above
    it; below as many rows as G has T is 0.
    """
    left = degrees[..., None] - torch.arange(d, device=degrees.device)
    chi = (2 * draws.gamma((left.clamp_min(1) / 2).double().expand(*shape, d))).sqrt()
    triangular = (draws.normal((*shape, d, d)).triu(1) + torch.diag_embed(chi)) * (left > 0)[
        ..., None
    ]
    return triangular.mT @ triangular
