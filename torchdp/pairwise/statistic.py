"""Pairwise statistics as quadratic forms in one vector for each type."""

from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property, partial
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.protocol import Crowd
from torchdp.protocol.records import beside


class Pairs(Enum):
    """Which pairs of users the statistic averages over."""

    DISTINCT = "i != j"  # U-statistic: sum over i != j of f(x_i, x_j), over n (n - 1)
    ALL = "all i, j"  # V-statistic, the quadratic form h^T W h of the normalised histogram h


M = TypeVar("M", "Form", "PairwiseStatistic")
_finite = partial(checks.within, low=-1e300, high=1e300)


@dataclass(frozen=True)
class Form(Brief):
    """f(x, y) = constant + sum_t weights_t u_xt u_yt for vectors u; weights of shape (r,).

    Many forms of the same vectors: weights (*answer, r), and a constant for all or (*answer) of them.
    """

    weights: Tensor
    constant: Any = 0.0

    def __post_init__(self) -> None:
        checks.own(self)
        checks.floating("form weights", self.weights)
        if not isinstance(self.constant, Tensor):
            object.__setattr__(self, "constant", _finite("form constant", self.constant))
        elif checks.floating("form constant", self.constant).shape != self.weights.shape[:-1]:
            raise ValueError(f"form constant must be a number or have shape {tuple(self.weights.shape[:-1])}")

    def to(self, device: torch.device | str) -> "Form":
        """The same form with its weights on ``device``."""
        return _moved(self, device)


@dataclass(frozen=True)
class PairwiseStatistic(Brief):
    """mean f over pairs of users, or offset + (mean f) / (mean g) where ``denominator`` g is given.

    points: (k, r), float64; row x is the vector u_x that a user of type x holds, and all that a user needs.
    form, denominator: f and g as quadratic forms in these vectors. pairs: which pairs are averaged over.
    A constant in the form costs no noise: h^T (W + c 1 1^T) h = h^T W h + c.
    Many kernels: forms of weights (*answer, r), for all of which users send one message; values are (*answer).
    limits: what the statistic can be, where that is narrower than all numbers: intervals stay inside.
    approximates: where the form only comes near another statistic's, that one. ``exact`` and ``common_diagonal`` are
    then its own, and what an estimate misses on average counts as bias in every predicted error.
    likely: (j, k), public histograms, or None: used by choices where no prior is given.
    """

    name: str
    points: Tensor
    form: Form
    denominator: Form | None = None
    offset: float = 0.0
    pairs: Pairs = Pairs.DISTINCT
    approximates: "PairwiseStatistic | None" = None
    limits: tuple[float, float] | None = None
    likely: Tensor | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        if checks.matrix("points", self.points).ndim != 2:
            raise ValueError(f"points must have shape (types, r), not {tuple(self.points.shape)}")
        object.__setattr__(self, "offset", _finite("offset", self.offset))
        checks.instance("name", self.name, str)
        checks.instance("pairs", self.pairs, Pairs)
        checks.instance("approximates", self.approximates, (PairwiseStatistic, NoneType))
        if self.limits is not None:
            low, high = checks.instance("limits", self.limits, tuple)
            if not _finite("limits", low) < _finite("limits", high):
                raise ValueError(f"limits must be (low, high) with low < high, not {self.limits}")
        for form in self.forms:
            weights = checks.instance("form and denominator", form, Form).weights
            if weights.shape != (*self.answer, self.dim):
                raise ValueError(f"form weights must have shape {(*self.answer, self.dim)}")
        for name, tensor in (("points", self.points), *(("form weights", form.weights) for form in self.forms)):
            if checks.floating(name, tensor).dtype != torch.float64 or tensor.dtype != torch.float64:
                raise TypeError(f"{name} must be float64, not {tensor.dtype}")
        object.__setattr__(self, "likely", histograms_of(self.likely, self.points, "likely"))
        near = self.approximates
        if near is None:
            return
        if one_kernel(near).pairs is not one_kernel(self).pairs or near.types != self.types:
            raise ValueError("approximates must be over the same pairs of the same types, as this one must")
        if (near.denominator is None) is not (self.denominator is None):
            raise ValueError("approximates must be a mean for a mean, and a ratio for a ratio")
        if near.denominator is not None and self.denominator is not None:
            apart = near.kernel(near.denominator) - self.kernel(self.denominator)
            if float(apart.abs().max()) > 1e-9 * near.size(near.denominator):
                raise ValueError("approximates must have the same denominator: only the form may come near")

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
        """Largest norm of a user's vector; its square is the form's gamma_2 bound where abs(weights) = 1."""
        return float(self.points.norm(dim=1).max())

    @property
    def forms(self) -> tuple[Form, ...]:
        """The form, and the denominator where there is one."""
        return (self.form,) if self.denominator is None else (self.form, self.denominator)

    def to(self, device: torch.device | str) -> "PairwiseStatistic":
        """The same statistic with its tensors on ``device``."""
        return _moved(self, device)

    def kernel(self, form: Form) -> Tensor:
        """The matrix f(x, y) of a form: (k, k), or (*batch, k, k) for weights (*batch, r)."""
        return (self.points * form.weights[..., None, :]) @ self.points.mT + beside(form.constant, 2)

    def diagonal(self, form: Form) -> Tensor:
        """f(x, x), (*answer, k)."""
        return form.weights @ self.points.square().mT + beside(form.constant, 1)

    def size(self, form: Form) -> Tensor:
        """max_x sum_t abs(weights_t) u_xt^2 + abs(constant), at least max abs(f): what rounding is judged against."""
        return (form.weights.abs() @ self.points.square().mT).amax(-1) + abs(form.constant)

    def rounding(self, form: Form) -> Tensor:
        """What values of f that differ by may be rounding: 1e-9 of them without the constant, and eps of that."""
        size = self.size(form)
        return 1e-9 * (size - abs(form.constant)) + 16 * torch.finfo(torch.float64).eps * size

    def longest(self, form: Form) -> Tensor:
        """The largest norm of weights times u_x."""
        return (self.points * form.weights[..., None, :]).norm(dim=-1).amax(-1)

    @property
    def distortion(self) -> float:
        """max abs(f - f') where it approximates another, at least its bias at any histogram; else 0."""
        near = self.approximates
        return 0.0 if near is None else float((near.kernel(near.form) - self.kernel(self.form)).abs().max())

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
                "PairReports for Pairs.DISTINCT and OneMessage for Pairs.ALL"
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
        return [bool((one.amax(-1) - one.amin(-1) > self.rounding(form)).any()) for form, one in each]

    def mean(self, counts: Tensor, form: Form) -> Tensor:
        """Exact, not private: the mean of f over pairs, for counts (*batch, k) of users (real numbers allowed).

        Many forms: of counts that have dimensions of one in their place, (*batch, 1, k).
        """
        counts = counts.double()
        n = counts.sum(-1)
        total = ((counts @ self.points).square() * form.weights).sum(-1) + form.constant * n**2
        if self.pairs is Pairs.ALL:
            return total / n**2
        return (total - (counts * self.diagonal(form)).sum(-1)) / (n * (n - 1))

    def users(self, counts: Tensor, least: int) -> Tensor:
        """counts (*batch, k) of users, real numbers allowed, beside the forms. Raises TypeError, ValueError."""
        counts = checks.users("summary", counts, self.types).to(self.points.device)
        few = counts.sum(-1) < least * (1 - 1e-9)
        if bool(few.any()):
            raise ValueError(f"summary must add up to at least {least} users{checks.at(few)}")
        return counts.reshape(*counts.shape[:-1], *[1] * len(self.answer), self.types)

    def crowd(self, counts: Tensor) -> Crowd:
        """These users (*batch, k) by their vectors."""
        return Crowd.shared(self.points, counts)

    def exact(self, counts: Tensor) -> Tensor:
        """Exact, not private: the statistic of counts (*batch, k), real numbers allowed: (*batch, *answer).

        Raises ValueError, TypeError: for fewer than 2 users (1 of Pairs.ALL), or a denominator of 0.
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
            raise ValueError(f"summary makes the statistic's denominator 0 (one class is empty){checks.at(empty)}")
        return self.offset + value / below


def _moved(value: M, device: torch.device | str) -> M:
    """The same dataclass, what it holds moved to ``device`` where it can be."""
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: each.to(device) for name, each in held.items() if hasattr(each, "to")})


def histograms_of(prior: Tensor | None, points: Tensor, name: str = "prior") -> Tensor | None:
    """The prior, (k,), or the few of them, each normalised: (j, k). Raises TypeError, ValueError."""
    if prior is None:
        return None
    rows = checks.instance(name, prior, Tensor)
    rows = rows if rows.ndim > 1 else rows[None]
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"{name} must be ({len(points)},) or a few such rows, not of shape {tuple(rows.shape)}")
    return torch.stack([checks.shares(name, each, len(points)) for each in rows]).detach().to(points.device)


def histogram_of(prior: Tensor | None, statistic: PairwiseStatistic) -> Tensor | None:
    """The prior, normalised. Raises TypeError, ValueError."""
    points = one_kernel(statistic).points
    return None if prior is None else checks.shares("prior", prior, len(points)).detach().to(points.device)


def one_kernel(statistic: PairwiseStatistic) -> PairwiseStatistic:
    """The statistic, if it is of one kernel: what searches and rounds are made for. Raises TypeError, ValueError."""
    if checks.instance("statistic", statistic, PairwiseStatistic).answer:
        raise ValueError(
            f"statistic must be of one kernel, not of {statistic.answer}: this call takes each by itself"
        )
    return statistic
