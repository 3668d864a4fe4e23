"""Pairwise statistics as quadratic forms in one vector for each type."""

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from types import NoneType

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.protocol import Crowd


class Pairs(Enum):
    """Which pairs of users the statistic averages over."""

    DISTINCT = "i != j"  # U-statistic: sum over i != j of f(x_i, x_j), over n (n - 1)
    ALL = "all i, j"  # V-statistic, the quadratic form h^T W h of the normalised histogram h


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


@dataclass(frozen=True)
class Form(Brief):
    """f(x, y) = constant + sum_t weights_t u_xt u_yt for vectors u; weights of shape (r,)."""

    weights: Tensor
    constant: float = 0.0

    def __post_init__(self) -> None:
        checks.own(self)
        checks.floating("form weights", self.weights)
        object.__setattr__(self, "constant", _finite("form constant", self.constant))

    def scaled(self, factor: float) -> "Form":
        """``factor`` times f."""
        return Form(factor * self.weights, factor * self.constant)

    def to(self, device: torch.device | str) -> "Form":
        """The same form with its weights on ``device``."""
        return Form(self.weights.to(device), self.constant)


@dataclass(frozen=True)
class PairwiseStatistic(Brief):
    """mean f over pairs of users, or offset + (mean f) / (mean g) where ``denominator`` g is given.

    points: (k, r), float64; row x is the vector u_x that a user of type x holds, and all that a user needs.
    form, denominator: f and g as quadratic forms in these vectors. pairs: which pairs are averaged over.
    A constant in the form costs no noise: h^T (W + c 1 1^T) h = h^T W h + c.
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
        for form in self.forms:
            checks.instance("form and denominator", form, Form)
        object.__setattr__(self, "offset", _finite("offset", self.offset))
        checks.instance("name", self.name, str)
        checks.instance("pairs", self.pairs, Pairs)
        checks.instance("approximates", self.approximates, (PairwiseStatistic, NoneType))
        if self.limits is not None:
            low, high = checks.instance("limits", self.limits, tuple)
            if not _finite("limits", low) < _finite("limits", high):
                raise ValueError(f"limits must be (low, high) with low < high, not {self.limits}")
        for name, tensor in (("points", self.points), *(("form weights", form.weights) for form in self.forms)):
            if checks.floating(name, tensor).dtype != torch.float64 or tensor.dtype != torch.float64:
                raise TypeError(f"{name} must be float64, not {tensor.dtype}")
        for form in self.forms:
            if form.weights.shape != (self.points.shape[1],):
                raise ValueError(f"form weights must have shape ({self.points.shape[1]},)")
        object.__setattr__(self, "likely", histograms_of(self.likely, self.points, "likely"))
        near = self.approximates
        if near is None:
            return
        if (near.types, near.pairs) != (self.types, self.pairs):
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
    def dim(self) -> int:
        """r, the length of a user's vector."""
        return self.points.shape[1]

    @cached_property
    def radius(self) -> float:
        """Largest norm of a user's vector; its square is the form's gamma_2 bound where abs(weights) = 1."""
        return float(self.points.norm(dim=1).max())

    @cached_property
    def _numbers(self) -> list[list[float]]:
        """For each of its own forms ``_measured``."""
        return [self._measured(form) for form in self.forms]

    def _measured(self, form: Form) -> list[float]:
        """size, longest, least, largest and mean of the diagonal: the device is waited for once."""
        squares, diagonal = self.points.square(), self.diagonal(form)
        size = (squares @ form.weights.abs()).max() + abs(form.constant)
        longest = (self.points * form.weights).norm(dim=-1).max()
        return checks.read(size, longest, *diagonal.aminmax(), diagonal.mean())

    def _known(self, form: Form) -> list[float]:
        for own, numbers in zip(self.forms, self._numbers, strict=True):
            if own is form:
                return numbers
        return self._measured(form)

    @property
    def forms(self) -> tuple[Form, ...]:
        """The form, and the denominator where there is one."""
        return (self.form,) if self.denominator is None else (self.form, self.denominator)

    def to(self, device: torch.device | str) -> "PairwiseStatistic":
        """The same statistic with its tensors on ``device``."""
        denominator = None if self.denominator is None else self.denominator.to(device)
        near = None if self.approximates is None else self.approximates.to(device)
        likely = None if self.likely is None else self.likely.to(device)
        return replace(
            self,
            points=self.points.to(device),
            form=self.form.to(device),
            denominator=denominator,
            approximates=near,
            likely=likely,
        )

    def kernel(self, form: Form) -> Tensor:
        """The matrix f(x, y) of a form: (k, k), or (*batch, k, k) for weights (*batch, r)."""
        return (self.points * form.weights[..., None, :]) @ self.points.mT + form.constant

    def diagonal(self, form: Form) -> Tensor:
        """f(x, x), (k,)."""
        return self.points.square() @ form.weights + form.constant

    def size(self, form: Form) -> float:
        """max_x sum_t abs(weights_t) u_xt^2 + abs(constant), at least max abs(f): what rounding is judged against."""
        return self._known(form)[0]

    def rounding(self, form: Form) -> float:
        """What values of f that differ by may be rounding: 1e-9 of them without the constant, and eps of that."""
        size, constant = self.size(form), abs(form.constant)
        return 1e-9 * (size - constant) + 16 * torch.finfo(torch.float64).eps * size

    def longest(self, form: Form) -> float:
        """The largest norm of weights times u_x."""
        return self._known(form)[1]

    @property
    def distortion(self) -> float:
        """max abs(f - f') where it approximates another, at least its bias at any histogram; else 0."""
        near = self.approximates
        return 0.0 if near is None else float((near.kernel(near.form) - self.kernel(self.form)).abs().max())

    def common_diagonal(self, form: Form) -> float:
        """The value of f(x, x) where it is the same for every x. Raises ValueError where it is not.

        Only then do the sums over i != j and over all pairs determine each other.
        """
        if self.approximates is not None:
            return self.approximates.common_diagonal(self.approximates.form)
        _, _, least, largest, mean = self._known(form)
        if largest - least > self.rounding(form):
            raise ValueError(
                f"the kernel of {self.name!r} has a diagonal f(x, x) that depends on x, so this protocol cannot "
                f"turn its answer into the mean over pairs {self.pairs.value!r}; use the other value of Pairs, or "
                "OneMessagePairs for Pairs.DISTINCT and OneMessage for Pairs.ALL"
            )
        return mean

    def mean(self, counts: Tensor, form: Form) -> Tensor:
        """Exact, not private: the mean of f over pairs, for counts (*batch, k) of users (real numbers allowed)."""
        counts = counts.double()
        n = counts.sum(-1)
        total = ((counts @ self.points).square() @ form.weights) + form.constant * n**2
        if self.pairs is Pairs.ALL:
            return total / n**2
        return (total - counts @ self.diagonal(form)) / (n * (n - 1))

    def users(self, counts: Tensor, least: int) -> Tensor:
        """counts (*batch, k) of users, real numbers allowed, as float64. Raises TypeError, ValueError."""
        counts = checks.users("summary", counts, self.types).to(self.points.device)
        few = counts.sum(-1) < least * (1 - 1e-9)
        if bool(few.any()):
            raise ValueError(f"summary must add up to at least {least} users{checks.at(few)}")
        return counts

    def crowd(self, counts: Tensor) -> Crowd:
        """These users (*batch, k) by their vectors."""
        return Crowd.shared(self.points, counts)

    def exact(self, counts: Tensor) -> Tensor:
        """Exact, not private: the statistic of counts (*batch, k), real numbers allowed.

        Raises ValueError, TypeError: for fewer than 2 users (1 of Pairs.ALL), or a denominator of 0.
        """
        counts = self.users(counts, 1 if self.pairs is Pairs.ALL else 2)
        if self.approximates is not None:
            return self.approximates.exact(counts)
        value = self.mean(counts, self.form)
        if self.denominator is None:
            return value
        below = self.mean(counts, self.denominator)
        empty = below.abs() <= 1e-13 * self.size(self.denominator)
        if bool(empty.any()):
            raise ValueError(f"summary makes the statistic's denominator 0 (one class is empty){checks.at(empty)}")
        return self.offset + value / below


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
    checks.instance("statistic", statistic, PairwiseStatistic)
    return (
        None
        if prior is None
        else checks.shares("prior", prior, statistic.types).detach().to(statistic.points.device)
    )
