"""What errors of low rank and of regression depend on: n and the second moments of clients' rows.

Notation: M = [A b]^T [A b], rows of A and labels b; x: a solution; lambda_i: eigenvalues of M.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.memory import rows_at_once
from torchdp.protocol import Protocol, Users
from torchdp.protocol.records import broadcast_users, tensor_of
from torchdp.regression.second_moment_noise import moment_vector
from torchdp.symmetric import triangular

# of moments that others have computed, relative to the largest entry
ROUNDING = 1e-9
# an eigenvalue, or a loss, below this share of what it is compared with is 0 to rounding
ZERO = 1e-12
# of |X^T X - I| for orthonormal columns X, as float32 has them
ORTHONORMAL = 1e-5


@dataclass(frozen=True, eq=False)
class SecondMoments(Brief):
    """n rows by their second moments M = A^T A; for regression A's last column holds the labels.

    ``+`` joins two groups of rows. Moments are not private: they are what mechanisms are measured
    against and, in a simulation, drawn from.

    Args:
        n: users, n >= 1; of a batch (*batch).
        matrix: (*batch, d, d), symmetric and, up to rounding, positive semidefinite; float64.

    Raises TypeError, ValueError.
    """

    n: Users
    matrix: Tensor

    def __post_init__(self) -> None:
        checks.keep(self, n=lambda name, n: checks.people(name, n, 1))
        matrix = checks.matrix("matrix", self.matrix, checks.LARGEST).double()
        d = checks.shaped("matrix", matrix, *tensor_of(self.n).shape, "d", "d").shape[-1]
        rounding = ROUNDING * matrix.abs().amax((-2, -1))
        lopsided = (matrix - matrix.mT).abs().amax((-2, -1)) > rounding
        if lopsided.any():
            raise ValueError(f"matrix must be symmetric{checks.at(lopsided)}; pass A^T A")
        # eigh reads one triangle alone: both are made equal, so that it does not matter which.
        matrix = (matrix + matrix.mT) / 2
        # Errors of one rounding in each entry move an eigenvalue by at most d of them.
        negative = torch.linalg.eigvalsh(matrix)[..., 0] < -d * rounding
        if negative.any():
            raise ValueError(
                f"matrix must be positive semidefinite{checks.at(negative)}; pass A^T A"
            )
        object.__setattr__(self, "matrix", matrix)

    @staticmethod
    def of(A: Tensor, labels: Tensor | None = None) -> "SecondMoments":
        """Those of rows (n, d), with labels (n,) as a last column. Raises TypeError, ValueError."""
        A = joined(A, labels)
        d = A.shape[1]
        total = A.new_zeros(d, d, dtype=torch.float64)
        for part in A.split(rows_at_once(d)):
            # Part by part: a float64 copy of the whole table would take twice its memory in
            # float32.
            part = part.double()
            total.addmm_(part.mT, part)
        return SecondMoments(len(A), total)

    @property
    def columns(self) -> int:
        """Columns of the rows, a label among them where there is one."""
        return self.matrix.shape[-1]

    @property
    def gram(self) -> Tensor:
        """A^T A without the label: (*batch, d, d)."""
        return self.matrix[..., :-1, :-1]

    @property
    def cross(self) -> Tensor:
        """A^T b: (*batch, d)."""
        return self.matrix[..., :-1, -1]

    @property
    def label_square(self) -> Tensor:
        """b^T b: (*batch)."""
        return self.matrix[..., -1, -1]

    def __add__(self, other: "SecondMoments") -> "SecondMoments":
        return SecondMoments(self.n + other.n, self.matrix + other.matrix)


def checked(moments: SecondMoments) -> SecondMoments:
    """``moments``, if that is what they are. Raises TypeError."""
    return checks.instance("moments, as SecondMoments.of makes them,", moments, SecondMoments)


def level(name: str, value: float) -> float:
    """``value`` as a float that is 0, or between 1e-150 and 1e150. Raises ValueError."""
    return checks.squarable(name, value) if checks.non_negative(name, value) else 0.0


def joined(A: Tensor, labels: Tensor | None) -> Tensor:
    """[A b], (n, d) or (n, d + 1): finite. Raises TypeError, ValueError."""
    A = checks.shaped("A", checks.matrix("A", A), "n", "d", note=", one row for each client")
    if labels is None:
        return A
    labels = checks.floating("labels", labels)
    if labels.shape != A.shape[:1] or labels.device != A.device:
        raise ValueError(
            f"labels must have shape ({len(A)},) and be on {A.device}, like the rows of A"
        )
    return torch.cat([A, labels[:, None].to(A.dtype)], 1)


def loss(moments: SecondMoments, x: Tensor, ridge: float) -> Tensor:
    """|A x - b|^2 + ridge |x|^2 of solutions x.

    Args:
        moments: (*batch), labels last.
        x: (*sample_shape, *batch, d).
        ridge: >= 0.

    Returns: (*sample_shape, *batch), float64. Raises TypeError, ValueError.
    """
    columns = checked(moments).columns - 1
    x = checks.shaped("x", checks.floating("x", x), ..., columns).to(moments.matrix)
    ridge = checks.non_negative("ridge", ridge)
    product = (moments.gram @ x[..., None])[..., 0]
    # x^T G x - 2 c^T x + b^T b cancels where the fit is nearly perfect; least_loss refuses that.
    quadratic = ((product - 2 * moments.cross) * x).sum(-1)
    return quadratic + moments.label_square + ridge * x.square().sum(-1)


def least_squares(moments: SecondMoments, ridge: float) -> Tensor:
    """The x of least |A x - b|^2 + ridge |x|^2, of least norm where there are several: (*batch, d).

    ridge >= 0. Returns float64. Raises ValueError.
    """
    ridge = checks.non_negative("ridge", ridge)
    if checked(moments).columns < 2:
        raise ValueError("moments must hold at least one column beside the label")
    values, vectors = torch.linalg.eigh(moments.gram)
    values = values.clamp_min(0) + ridge
    # The pseudo-inverse: x gets nothing in directions in which no row extends. eigh sorts upwards.
    inverse = torch.where(values > ZERO * values[..., -1:], 1 / values, 0.0)
    rotated = vectors.mT @ moments.cross[..., None]
    return (vectors @ (inverse[..., None] * rotated))[..., 0]


def phi(moments: SecondMoments, x: Tensor, ridge: float) -> Tensor:
    """The approximation factor of ridge regression: loss(x) / least loss, shapes as of ``loss``.

    1 at the optimum; x = 0 has phi = b^T b / least loss, which is where every method with far too
    much noise and enough regularization ends. The labels are the last column of the moments. Raises
    TypeError, ValueError; also where the least loss is zero to rounding, for then there is no
    factor.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.2.
    """
    return loss(moments, x, ridge) / least_loss(moments, ridge)


def least_loss(moments: SecondMoments, ridge: float) -> Tensor:
    """That of ``least_squares``, (*batch). Raises TypeError; ValueError for 0 to rounding."""
    least = loss(moments, least_squares(moments, ridge), ridge)
    # so that NaN is refused
    zero = ~(least > ZERO * moments.label_square)
    if zero.any():
        raise ValueError(
            f"the least loss is zero to rounding, so phi is undefined{checks.at(zero)}; "
            "use loss, or a ridge > 0 and labels not all 0"
        )
    return least


def psi(moments: SecondMoments, directions: Tensor) -> Tensor:
    """The excess risk of a k-dimensional space: (sum_{i <= k} lambda_i - tr X^T M X)/n.

    It is |A - A X X^T|_F^2 / n less its minimum.

    Args:
        moments: (*batch).
        directions: X, (*sample_shape, *batch, d, k), orthonormal columns.

    Returns: (*sample_shape, *batch), float64. Raises TypeError, ValueError.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.2.
    """
    X = checks.matrix("directions", directions).to(checked(moments).matrix)
    k = checks.shaped("directions", X, ..., moments.columns, "k").shape[-1]
    # Longer columns would explain more than there is, and make psi negative.
    deviation = X.mT @ X - torch.eye(k).to(X)
    if float(deviation.abs().amax()) > ORTHONORMAL:
        raise ValueError("directions must have orthonormal columns; see torch.linalg.qr")
    # Ky Fan: no k orthonormal directions explain more than the k largest eigenvalues.
    largest = torch.linalg.eigvalsh(moments.matrix)[..., -k:].sum(-1)
    explained = ((moments.matrix @ X) * X).sum((-2, -1))
    return (largest - explained) / broadcast_users(moments.n)


class RowsProtocol(Protocol[SecondMoments]):
    """x: rows [A b], (n, d) or, with labels last, (n, d + 1). The value is svec(A^T A) and A^T b.

    Rows longer than ``bound`` are shortened to it, labels cut to ``label_bound``; None: there are
    no labels.
    """

    columns: int
    bound: float
    label_bound: float | None

    def __post_init__(self) -> None:
        """Refuses columns and bounds of which no fourth power is a float.

        Raises TypeError, ValueError.
        """
        checks.integer("columns", self.columns, 1)
        # The noise of products is in proportion to B^2, and its variance to B^4.
        checks.squarable("bound", self.bound, 4)
        if self.label_bound is not None:
            checks.squarable("label_bound", self.label_bound, 4)

    @property
    def labelled(self) -> bool:
        return self.label_bound is not None

    @property
    def width(self) -> int:
        """Numbers that are estimated: d (d + 1)/2, and d more with labels."""
        return triangular(self.columns) + self.labelled * self.columns

    @property
    def held(self) -> tuple[int]:
        return (self.columns + self.labelled,)

    def validate(self, x: Tensor) -> Tensor:
        """x, if it can hold such rows. Raises TypeError, ValueError."""
        labels = "the label last" if self.labelled else "without labels, since label_bound is None"
        x = checks.floating("x", checks.precise("x", x))
        return checks.shaped("x", x, "n", *self.held, note=f", n >= 1, {labels}")

    def clipped(self, x: Tensor) -> Tensor:
        """Rows and labels within their bounds, float64; unchecked."""
        x = x.detach().double()
        rows = shortened(x[:, : self.columns], self.bound)
        if self.label_bound is None:
            return rows
        labels = x[:, -1:].clamp(-self.label_bound, self.label_bound)
        return torch.cat([rows, labels], 1)

    def summary_unchecked(self, x: Tensor) -> SecondMoments:
        """The second moments of [A b], clipped."""
        parts = x.split(rows_at_once(x.shape[1]))
        # Clipped part by part: no second table is held.
        moments = [SecondMoments.of(self.clipped(part)) for part in parts]
        return sum(moments[1:], moments[0])

    def validate_summary(self, summary: SecondMoments) -> SecondMoments:
        """``summary``, if rows within the bounds can have it. Raises TypeError, ValueError."""
        within(summary, self.columns, self.bound, self.label_bound, "summary")
        return summary

    def exact(self, summary: SecondMoments) -> Tensor:
        """svec(A^T A) and A^T b."""
        return moment_vector(self.validate_summary(summary).matrix, self.labelled)


def shortened(rows: Tensor, bound: float) -> Tensor:
    """Rows (n, d) projected on the l_2 ball of radius ``bound``: float64."""
    # float32 could leave a row longer than the bound
    rows = rows.double()
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    # Divided by max(1, |x|/B): short rows stay as they are, and a row of zeros makes no 0/0.
    return rows / (norms / bound).clamp_min(1)


def within(
    moments: SecondMoments,
    columns: int,
    bound: float,
    label_bound: float | None,
    name: str = "moments",
) -> None:
    """Refuses moments that rows within the bounds, checked before, cannot have.

    Raises TypeError, ValueError.
    """
    checks.instance(name, moments, SecondMoments)
    width = columns + (label_bound is not None)
    if moments.columns != width:
        raise ValueError(
            f"{name} must be of rows of {width} columns (a label last, where label_bound is given), "
            f"not of {moments.columns}"
        )
    squares = torch.linalg.diagonal(moments.matrix)
    n = broadcast_users(moments.n) * (1 + ROUNDING)
    # tr A^T A = sum_i |a_i|^2 <= n B^2.
    too_long = squares[..., :columns].sum(-1) > n * bound**2
    if too_long.any():
        where = checks.at(too_long)
        raise ValueError(f"{name} are of rows longer than bound = {bound}{where}; shorten them")
    if label_bound is None:
        return
    too_large = squares[..., -1] > n * label_bound**2
    if too_large.any():
        where = checks.at(too_large)
        raise ValueError(f"{name} are of labels above label_bound = {label_bound}{where}; cut them")
