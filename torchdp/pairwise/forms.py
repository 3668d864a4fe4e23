"""Means over pairs of users as quadratic forms in one vector for each type.

Notation: a user of type x holds u_x, of r coordinates, row x of ``points``; J is the diagonal
matrix of a form's weights, so that f(x, y) = c + <u_x, J u_y>; h is a histogram of k types.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from types import NoneType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import free_constant, signature_form
from torchdp.protocol.records import broadcast_users
from torchdp.queries.channel import histograms_of


class Pairs(Enum):
    """Which pairs of users the statistic averages over."""

    DISTINCT = "i != j"  # U-statistic: sum over i != j of f(x_i, x_j), over n (n - 1)
    ALL = "all i, j"  # V-statistic, the quadratic form h^T W h of the normalised histogram h


# Of the radius: the largest of the coordinates that a varying diagonal adds.
SMALL_COORDINATE = 0.1
# Of a kernel's size: differences that may come from factorizations, and means that may be 0.
SAME = 1e-9
ZERO = 1e-13
EPS = torch.finfo(torch.float64).eps
P = TypeVar("P", bound="PairwiseForms")
# The difference of two such numbers is finite too.
_finite = partial(checks.within, low=-1e300, high=1e300)


@dataclass(frozen=True)
class Form(Brief):
    """f(x, y) = constant + sum_t weights_t u_xt u_yt for vectors u; weights of shape (r,).

    Args:
        weights: (r,), or (*answer, r) of many forms of the same vectors.
        constant: one for all, or (*answer).
        diagonal: d, like weights, where f(x, x) = d . u_x + its mean over types depends on x
            (``PairwiseForms.wide``).
    """

    weights: Tensor
    constant: Any = 0.0
    diagonal: Tensor | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        checks.floating("form weights", self.weights)
        if not isinstance(self.constant, Tensor):
            object.__setattr__(self, "constant", _finite("form constant", self.constant))
        elif checks.floating("form constant", self.constant).shape != self.weights.shape[:-1]:
            raise ValueError(
                f"form constant must be a number or have shape {tuple(self.weights.shape[:-1])}"
            )

    def plus(self, factor: Tensor | float, other: "Form") -> "Form":
        """f + factor g without a constant; factor: a number or (*batch)."""
        times = broadcast_users(factor, 1)
        weights = self.weights + times * other.weights
        if self.diagonal is None or other.diagonal is None:
            return Form(weights)
        return Form(weights, diagonal=self.diagonal + times * other.diagonal)

    def to(self, device: torch.device | str) -> "Form":
        """The same form with its weights on ``device``."""
        return checks.moved(self, device)


@dataclass(frozen=True)
class PairwiseForms(Brief):
    """The quadratic forms that analysts compute with, see :class:`PairwiseStatistic`."""

    name: str
    points: Tensor
    form: Form
    denominator: Form | None = None
    offset: float = 0.0
    pairs: Pairs = Pairs.DISTINCT
    approximates: "PairwiseForms | None" = None
    limits: tuple[float, float] | None = None
    likely: Tensor | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        if checks.matrix("points", self.points).ndim != 2:
            raise ValueError(f"points must have shape (types, r), not {tuple(self.points.shape)}")
        object.__setattr__(self, "offset", _finite("offset", self.offset))
        checks.instance("name", self.name, str)
        checks.instance("pairs", self.pairs, Pairs)
        checks.instance("approximates", self.approximates, (PairwiseForms, NoneType))
        if self.limits is not None:
            low, high = checks.instance("limits", self.limits, tuple)
            if not _finite("limits", low) < _finite("limits", high):
                raise ValueError(f"limits must be (low, high) with low < high, not {self.limits}")
        checks.typed("points", self.points, torch.float64)
        for form in self.forms:
            weights = checks.instance("form and denominator", form, Form).weights
            if weights.shape != (*self.answer, self.dim):
                raise ValueError(f"form weights must have shape {(*self.answer, self.dim)}")
            checks.typed("form weights", weights, torch.float64)
        if self.likely is not None:
            likely = histograms_of(self.likely, self.types, "likely").to(self.points)
            object.__setattr__(self, "likely", likely)
        if self.approximates is not None:
            self._check_approximated(self.approximates)

    def _check_approximated(self, exact: "PairwiseForms") -> None:
        """Raises ValueError where only something else than the form comes near ``exact``."""
        if one_kernel(exact).pairs is not one_kernel(self).pairs or exact.types != self.types:
            raise ValueError(
                "approximates must be over the same pairs of the same types, as this one must"
            )
        if (exact.denominator is None) is not (self.denominator is None):
            raise ValueError("approximates must be a mean for a mean, and a ratio for a ratio")
        # ``distortion`` compares the forms alone: no other error may come with them.
        if exact.denominator is not None and self.denominator is not None:
            difference = exact.kernel(exact.denominator) - self.kernel(self.denominator)
            if difference.abs().max() > SAME * exact.size(exact.denominator):
                raise ValueError(
                    "approximates must have the same denominator: only the form may come near"
                )

    @property
    def types(self) -> int:
        """k, the number of types."""
        return self.points.shape[0]

    @property
    def answer(self) -> tuple[int, ...]:
        """Of many forms, their shape; () of one."""
        return tuple(self.form.weights.shape[:-1])

    @property
    def dim(self) -> int:
        """r, the length of a user's vector."""
        return self.points.shape[1]

    @cached_property
    def radius(self) -> float:
        """Largest norm of a user's vector; its square bounds gamma_2 where abs(weights) = 1."""
        return float(self.points.norm(dim=1).max())

    def refuse_constant(self) -> None:
        """Raises ValueError for a statistic that is known beforehand."""
        if self.radius > 0:
            return
        constants = torch.as_tensor(self.form.constant, dtype=torch.float64).view(-1).tolist()
        shown = ", ".join(f"{constant:g}" for constant in constants)
        raise ValueError(
            f"{self.name!r} is constant: its mean is {shown} whatever users hold, so no user needs "
            "to send anything"
        )

    @property
    def forms(self) -> tuple[Form, ...]:
        """The form, and the denominator where there is one."""
        return (self.form,) if self.denominator is None else (self.form, self.denominator)

    def to(self, device: torch.device | str) -> Self:
        """The same statistic with its tensors on ``device``."""
        return checks.moved(self, device)

    def kernel(self, form: Form) -> Tensor:
        """The matrix f(x, y) of a form: (k, k), or (*batch, k, k) for weights (*batch, r)."""
        products = (self.points * form.weights[..., None, :]) @ self.points.mT
        return products + broadcast_users(form.constant, 2)

    def diagonal(self, form: Form) -> Tensor:
        """f(x, x), (*answer, k)."""
        return form.weights @ self.points.square().mT + broadcast_users(form.constant, 1)

    def size(self, form: Form) -> Tensor:
        """max_x sum_t abs(weights_t) u_xt^2 + abs(constant), at least max abs(f)."""
        # Cauchy-Schwarz: abs(<u_x, J u_y>)^2 is at most the product of this sum at x and at y.
        squares = form.weights.abs() @ self.points.square().mT
        return squares.amax(-1) + abs(form.constant)

    def rounding(self, form: Form) -> Tensor:
        """By what values of f may differ from rounding: of the factorization, and of adding c."""
        size = self.size(form)
        of_factors = SAME * (size - abs(form.constant))
        return of_factors + 16 * EPS * size

    @cached_property
    def wide(self) -> Self:
        """The same with a coordinate of f(x, x) less its mean, for each form, where f(x, x) varies.

        So the mean over other pairs can be turned into this one. The new coordinates are small
        beside the others, because their share of the answer falls like 1/n.
        """
        # One that approximates has the diagonal of the other statistic.
        if self.approximates is not None or not any(map(self._varies, self.forms)):
            return self
        diagonals = torch.stack([self.diagonal(form) for form in self.forms])
        centred = diagonals - diagonals.mean(-1, keepdim=True)
        columns = centred.view(-1, self.types).mT
        largest = float(columns.abs().max())
        scale = SMALL_COORDINATE * self.radius / largest
        # Each form reads its own column alone; the weight 1/scale undoes the column's scale.
        unit = torch.eye(columns.shape[1]).to(self.points) / scale
        forms = []
        for form, own in zip(self.forms, unit.view(*centred.shape[:-1], -1), strict=True):
            weights = torch.cat([form.weights, torch.zeros_like(own)], -1)
            diagonal = torch.cat([torch.zeros_like(form.weights), own], -1)
            forms.append(Form(weights, form.constant, diagonal))
        return replace(
            self,
            points=torch.cat([self.points, scale * columns], 1),
            form=forms[0],
            denominator=forms[1] if len(forms) > 1 else None,
        )

    @cached_property
    def distortion(self) -> float:
        """max abs(f - f') where it approximates another, at least its bias; else 0."""
        exact = self.approximates
        if exact is None:
            return 0.0
        difference = exact.kernel(exact.form) - self.kernel(self.form)
        return float(difference.abs().max())

    def common_diagonal(self, form: Form) -> Tensor:
        """The value of f(x, x) where it is the same for every x. Raises ValueError where it is not.

        Only then do the sums over i != j and over all pairs determine each other.
        """
        if self.approximates is not None:
            return self.approximates.common_diagonal(self.approximates.form)
        if self._varies(form):
            raise ValueError(
                f"the kernel of {self.name!r} has a diagonal f(x, x) that depends on x, so this "
                f"protocol cannot turn its answer into the mean over pairs {self.pairs.value!r}; "
                "use the other value of Pairs, or a channel, such as queries.LocalOracle"
            )
        return self.diagonal(form).mean(-1)

    def _varies(self, form: Form) -> bool:
        """Whether f(x, x) depends on x."""
        low, high = self.diagonal(form).aminmax(dim=-1)
        varies = high - low > self.rounding(form)
        return bool(varies.any())

    def mean(self, counts: Tensor, form: Form) -> Tensor:
        """Exact, not private: the mean of f over pairs of users.

        counts: (*batch, k), real numbers allowed; of many forms with dimensions of one in their
        place, (*batch, 1, k).
        """
        counts = counts.double()
        n = counts.sum(-1)
        # The sum of <u_i, J u_j> over all pairs is <s, J s>, s the sum of the vectors.
        products = (counts @ self.points).square() * form.weights
        total = products.sum(-1) + form.constant * n**2
        if self.pairs is Pairs.ALL:
            return total / n**2
        # Less the pairs of a user with itself.
        own = (counts * self.diagonal(form)).sum(-1)
        return (total - own) / (n * (n - 1))

    def below(self, counts: Tensor) -> Tensor:
        """The mean of a ratio's denominator, as ``mean``. Raises ValueError where it is 0."""
        form = self.forms[-1]
        mean = self.mean(counts, form)
        # A class without users leaves the rounding of the form, and not 0.
        empty = mean.abs() <= ZERO * self.size(form)
        if empty.any():
            raise ValueError(
                "summary makes the statistic's denominator 0 (one class is "
                f"empty){checks.at(empty)}"
            )
        return mean

    def users(self, counts: Tensor, least: int) -> Tensor:
        """counts (*batch, k) of users, real numbers allowed, beside the forms.

        Raises TypeError, ValueError.
        """
        counts = checks.users("summary", counts, self.types).to(self.points.device)
        # Predictions are for real numbers of users, which add up only up to rounding.
        missing = counts.sum(-1) < least * (1 - 1e-9)
        if missing.any():
            raise ValueError(f"summary must add up to at least {least} users{checks.at(missing)}")
        return counts.reshape(*counts.shape[:-1], *[1] * len(self.answer), self.types)

    def exact(self, counts: Tensor) -> Tensor:
        """Exact, not private: the statistic of counts (*batch, k), real numbers allowed.

        Returns (*batch, *answer). Raises ValueError, TypeError: for fewer than 2 users (1 of
        Pairs.ALL), or a denominator of 0.
        """
        if self.approximates is not None:
            return self.approximates.exact(counts)
        counts = self.users(counts, 1 if self.pairs is Pairs.ALL else 2)
        value = self.mean(counts, self.form)
        if self.denominator is None:
            return value
        return self.offset + value / self.below(counts)


def one_kernel(statistic: P) -> P:
    """The statistic, if it is of one kernel: what searches and rounds are made for.

    Raises TypeError, ValueError.
    """
    if checks.instance("statistic", statistic, PairwiseForms).answer:
        raise ValueError(
            f"statistic must be of one kernel, not of {statistic.answer}: this call takes each by "
            "itself"
        )
    return statistic


def factorized(kernel: Tensor, tol: float = 1e-3) -> tuple[Tensor, Form]:
    """The points (k, r) and the form of a symmetric kernel, by its gamma_2 signature factorization.

    The points are the columns of R in f + c 1 1^T = R^T J R, with the free constant c that makes
    gamma_2 least, so their largest squared norm is at most that least value, up to ``tol``.
    Unchecked.
    """
    constant = free_constant(kernel, tol=tol).constant
    factors = signature_form(kernel + constant, tol)
    # f = R^T J R - c: what was added to the kernel is the form's constant, which costs no noise.
    return factors.right.mT.contiguous(), Form(factors.signature, -constant)
