"""Means over pairs of users as quadratic forms in one vector for each type."""

import math
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property, partial
from types import NoneType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import free_constant, signature_form
from torchdp.protocol import Crowd
from torchdp.protocol.records import beside
from torchdp.queries.channel import histograms_of


class Pairs(Enum):
    """Which pairs of users the statistic averages over."""

    DISTINCT = "i != j"  # U-statistic: sum over i != j of f(x_i, x_j), over n (n - 1)
    ALL = "all i, j"  # V-statistic, the quadratic form h^T W h of the normalised histogram h


# Of the radius: the largest of the coordinates that a varying diagonal adds.
SMALL_COORDINATE = 0.1
M = TypeVar("M", bound="Form | PairwiseForms")
P = TypeVar("P", bound="PairwiseForms")
_finite = partial(checks.within, low=-1e300, high=1e300)


@dataclass(frozen=True)
class Form(Brief):
    """f(x, y) = constant + sum_t weights_t u_xt u_yt for vectors u; weights of shape (r,).

    Many forms of the same vectors: weights (*answer, r), and a constant for all or (*answer) of
    them. diagonal: d, like weights, where f(x, x) = d . u_x + its mean over types depends on x
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
        times = torch.as_tensor(factor, dtype=torch.float64, device=self.weights.device)[..., None]
        weights = self.weights + times * other.weights
        if self.diagonal is None or other.diagonal is None:
            return Form(weights)
        return Form(weights, diagonal=self.diagonal + times * other.diagonal)

    def to(self, device: torch.device | str) -> "Form":
        """The same form with its weights on ``device``."""
        return _moved(self, device)


@dataclass(frozen=True)
class PairwiseForms(Brief):
    """The quadratic forms of a statistic, see :class:`PairwiseStatistic`: what analysts compute
    with.
    """

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
        for form in self.forms:
            weights = checks.instance("form and denominator", form, Form).weights
            if weights.shape != (*self.answer, self.dim):
                raise ValueError(f"form weights must have shape {(*self.answer, self.dim)}")
        for name, tensor in (
            ("points", self.points),
            *(("form weights", form.weights) for form in self.forms),
        ):
            if (
                checks.floating(name, tensor).dtype != torch.float64
                or tensor.dtype != torch.float64
            ):
                raise TypeError(f"{name} must be float64, not {tensor.dtype}")
        if self.likely is not None:
            likely = histograms_of(self.likely, self.types, "likely").to(self.points)
            object.__setattr__(self, "likely", likely)
        near = self.approximates
        if near is None:
            return
        if one_kernel(near).pairs is not one_kernel(self).pairs or near.types != self.types:
            raise ValueError(
                "approximates must be over the same pairs of the same types, as this one must"
            )
        if (near.denominator is None) is not (self.denominator is None):
            raise ValueError("approximates must be a mean for a mean, and a ratio for a ratio")
        if near.denominator is not None and self.denominator is not None:
            apart = near.kernel(near.denominator) - self.kernel(self.denominator)
            if float(apart.abs().max()) > 1e-9 * near.size(near.denominator):
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
        """Largest norm of a user's vector; its square is the form's gamma_2 bound where
        abs(weights) = 1.
        """
        return float(self.points.norm(dim=1).max())

    def refuse_constant(self) -> None:
        """Raises ValueError for a statistic that is known beforehand."""
        if self.radius == 0:
            known = torch.as_tensor(self.form.constant, dtype=torch.float64).view(-1).tolist()
            told = f"is constant: its mean is {', '.join(map('{:g}'.format, known))} whatever users hold"
            raise ValueError(f"{self.name!r} {told}, so no user needs to send anything")

    @property
    def forms(self) -> tuple[Form, ...]:
        """The form, and the denominator where there is one."""
        return (self.form,) if self.denominator is None else (self.form, self.denominator)

    def to(self, device: torch.device | str) -> Self:
        """The same statistic with its tensors on ``device``."""
        return _moved(self, device)

    def kernel(self, form: Form) -> Tensor:
        """The matrix f(x, y) of a form: (k, k), or (*batch, k, k) for weights (*batch, r)."""
        return (self.points * form.weights[..., None, :]) @ self.points.mT + beside(
            form.constant, 2
        )

    def diagonal(self, form: Form) -> Tensor:
        """f(x, x), (*answer, k)."""
        return form.weights @ self.points.square().mT + beside(form.constant, 1)

    def size(self, form: Form) -> Tensor:
        """max_x sum_t abs(weights_t) u_xt^2 + abs(constant), at least max abs(f): what rounding is
        judged against.
        """
        return (form.weights.abs() @ self.points.square().mT).amax(-1) + abs(form.constant)

    def rounding(self, form: Form) -> Tensor:
        """What values of f that differ by may be rounding: 1e-9 of them without the constant, and
        eps of that.
        """
        size = self.size(form)
        return 1e-9 * (size - abs(form.constant)) + 16 * torch.finfo(torch.float64).eps * size

    def longest(self, form: Form) -> Tensor:
        """The largest norm of weights times u_x."""
        return (self.points * form.weights[..., None, :]).norm(dim=-1).amax(-1)

    @cached_property
    def wide(self) -> Self:
        """The same with more coordinates where f(x, x) varies: what it is above its mean over
        types, for each form.

        So the mean over other pairs can be turned into this one. The new coordinates are small
        beside the others, because their share of the answer falls like 1/n.
        """
        if self.approximates is not None or not any(self._varying):
            return self
        apart = [
            self.diagonal(form) - self.diagonal(form).mean(-1, keepdim=True) for form in self.forms
        ]
        columns = torch.stack(apart).view(-1, self.types).mT
        scale = SMALL_COORDINATE * self.radius / float(columns.abs().max())
        each = math.prod(self.answer)
        unit = torch.eye(each * len(self.forms)).to(self.points) / scale
        forms = []
        for form, own in zip(self.forms, unit.split(each), strict=True):
            weights = torch.cat([form.weights, form.weights.new_zeros(*self.answer, len(unit))], -1)
            diagonal = torch.cat(
                [torch.zeros_like(form.weights), own.view(*self.answer, len(unit))], -1
            )
            forms.append(Form(weights, form.constant, diagonal))
        below = forms[1] if len(forms) > 1 else None
        return replace(
            self,
            points=torch.cat([self.points, scale * columns], 1),
            form=forms[0],
            denominator=below,
        )

    @cached_property
    def distortion(self) -> float:
        """max abs(f - f') where it approximates another, at least its bias at any histogram;
        else 0.
        """
        near = self.approximates
        if near is None:
            return 0.0
        return float((near.kernel(near.form) - self.kernel(self.form)).abs().max())

    def common_diagonal(self, form: Form) -> Tensor:
        """The value of f(x, x) where it is the same for every x. Raises ValueError where it is not.

        Only then do the sums over i != j and over all pairs determine each other.
        """
        if self.approximates is not None:
            return self.approximates.common_diagonal(self.approximates.form)
        own = [told for each, told in zip(self.forms, self._varying, strict=True) if each is form]
        if any(own or replace(self, form=form, denominator=None)._varying):
            raise ValueError(
                f"the kernel of {self.name!r} has a diagonal f(x, x) that depends on x, so this protocol cannot "
                f"turn its answer into the mean over pairs {self.pairs.value!r}; use the other value of Pairs, or "
                "a channel, such as queries.LocalOracle"
            )
        return self.diagonal(form).mean(-1)

    @cached_property
    def common_diagonals(self) -> list[Tensor]:
        """``common_diagonal`` of each of its forms. Raises ValueError."""
        return [self.common_diagonal(form) for form in self.forms]

    @cached_property
    def _varying(self) -> list[bool]:
        """Whether f(x, x) depends on x, of each of its forms: the device is waited for once."""
        each = ((form, self.diagonal(form)) for form in self.forms)
        return [
            bool((one.amax(-1) - one.amin(-1) > self.rounding(form)).any()) for form, one in each
        ]

    def mean(self, counts: Tensor, form: Form) -> Tensor:
        """Exact, not private: the mean of f over pairs, for counts (*batch, k) of users
        (real numbers allowed).

        Many forms: of counts that have dimensions of one in their place, (*batch, 1, k).
        """
        counts = counts.double()
        n = counts.sum(-1)
        total = ((counts @ self.points).square() * form.weights).sum(-1) + form.constant * n**2
        if self.pairs is Pairs.ALL:
            return total / n**2
        return (total - (counts * self.diagonal(form)).sum(-1)) / (n * (n - 1))

    def users(self, counts: Tensor, least: int) -> Tensor:
        """counts (*batch, k) of users, real numbers allowed, beside the forms. Raises TypeError,
        ValueError.
        """
        counts = checks.users("summary", counts, self.types).to(self.points.device)
        few = counts.sum(-1) < least * (1 - 1e-9)
        if bool(few.any()):
            raise ValueError(f"summary must add up to at least {least} users{checks.at(few)}")
        return counts.reshape(*counts.shape[:-1], *[1] * len(self.answer), self.types)

    def crowd(self, counts: Tensor) -> Crowd:
        """These users (*batch, k) by their vectors."""
        return Crowd.shared(self.points, counts)

    def exact(self, counts: Tensor) -> Tensor:
        """Exact, not private: the statistic of counts (*batch, k), real numbers allowed:
        (*batch, *answer).

        Raises ValueError, TypeError: for fewer than 2 users (1 of Pairs.ALL), or a denominator
        of 0.
        """
        if self.approximates is not None:
            return self.approximates.exact(counts)
        counts = self.users(counts, 1 if self.pairs is Pairs.ALL else 2)
        value = self.mean(counts, self.form)
        if self.denominator is None:
            return value
        below = self.mean(counts, self.denominator)
        empty = below.abs() <= 1e-13 * self.size(self.denominator)
        if bool(empty.any()):
            raise ValueError(
                f"summary makes the statistic's denominator 0 (one class is empty){checks.at(empty)}"
            )
        return self.offset + value / below


def _moved(value: M, device: torch.device | str) -> M:
    """The same dataclass, what it holds moved to ``device`` where it can be."""
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(
        value, **{name: each.to(device) for name, each in held.items() if hasattr(each, "to")}
    )


def histogram_of(prior: Tensor | None, statistic: PairwiseForms) -> Tensor | None:
    """The prior, normalised. Raises TypeError, ValueError."""
    points = one_kernel(statistic).points
    return (
        None
        if prior is None
        else checks.shares("prior", prior, len(points)).detach().to(points.device)
    )


def one_kernel(statistic: P) -> P:
    """The statistic, if it is of one kernel: what searches and rounds are made for. Raises
    TypeError, ValueError.
    """
    if checks.instance("statistic", statistic, PairwiseForms).answer:
        raise ValueError(
            f"statistic must be of one kernel, not of {statistic.answer}: this call takes each by itself"
        )
    return statistic


def factorized(kernel: Tensor, tol: float = 1e-3) -> tuple[Tensor, Form]:
    """The points (k, r) and the form of a symmetric kernel f, (k, k), by its gamma_2 signature
    factorization.

    The points are the columns of R in f + c 1 1^T = R^T J R, with the free constant c that makes
    gamma_2 least, so their largest squared norm is at most that least value, up to ``tol``.
    Unchecked.
    """
    constant = free_constant(kernel, tol=tol).constant
    factors = signature_form(kernel + constant, tol)
    return factors.right.mT.contiguous(), Form(factors.signature, -constant)
