"""Any smooth function of the users' shares of types, through any channel that tells them.

Notation: g, the function; h, (*batch, k), the shares of n users, H as decoded; d, (b, k), and D,
(b, k, k), the first two derivatives of g; C, (b, k, k), the covariance of H.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from torchdp import checks
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.protocol.records import tensor_of
from torchdp.queries.bound import lower_bound
from torchdp.queries.channel import Channel, Question
from torchdp.simplex import onto_simplex

# Second derivatives and covariances hold k^2 numbers for each of a batch.
MOST_TYPES = 256

# Numbers in the second derivatives that are made together.
AT_ONCE = 2**24


class ShareFunction(Question):
    """A function g of shares h, (k,) -> (), of torch operations that have two derivatives.

    A frozen dataclass.
    """

    @abstractmethod
    def __call__(self, h: Tensor) -> Tensor:
        """g(h), for shares that may be below 0, since they are decoded; their sum is 1."""

    def of_users(self, h: Tensor, n: Tensor) -> Tensor:
        """g of n users of these shares, (b, k), (b, 1) -> (b,); here whatever n is."""
        return _of_rows(self, h)

    def derivatives(self, h: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``of_users`` in the shares: the first, (b, k), and the second, (b, k, k)."""
        return _of_rows(grad(self), h), _of_rows(hessian(self), h)

    @property
    def limits(self) -> tuple[float, float]:
        """What g of users' shares can be."""
        return -math.inf, math.inf

    @property
    def histograms(self) -> Tensor:
        """(j, k): public ones for choices where no prior is given; the flat one."""
        return torch.full((1, self.types), 1 / self.types, dtype=torch.float64)

    def queries(self, distinct: bool) -> Tensor:
        """The shares themselves."""
        return torch.eye(self.types, dtype=torch.float64)

    def analyst(self, channel: Channel) -> "FunctionAnalyst":
        return FunctionAnalyst(self, channel)

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """d, and (D C D)^{1/2}: tr(D C D C)/2 is linear in C up to its own size."""
        h = self.histograms if family is None else family
        first, second = self.derivatives(h, torch.full_like(h[:, :1], n))
        curvature = (second @ (covariance / n) @ second).mean(0)
        values, vectors = torch.linalg.eigh(curvature)
        # D C D is semidefinite: eigenvalues below 0 are rounding.
        root = (vectors * values.clamp_min(0).sqrt()).mT / math.sqrt(2)
        return torch.cat([first / math.sqrt(len(h)), root])

    def bound(self, n: int, epsilon: float, histogram: Tensor) -> float:
        """To first order in 1/n: the slopes are one linear query."""
        h = checks.shares("histogram", histogram, self.types)
        return lower_bound(vmap(grad(self))(h[None]), n, epsilon, prior=h)


class _Expansion(NamedTuple):
    """g to second order at shares h, (b, k), of n users, (b, 1)."""

    h: Tensor
    n: Tensor
    d: Tensor
    D: Tensor
    C: Tensor


@dataclass(frozen=True, eq=False)
class FunctionAnalyst:
    """g of the users' shares: corrected at the shares that a channel tells, to second order.

    With H these shares, moved to the sum 1, C(h) their covariance at shares h and d, D the first
    two derivatives of g, the value is g(H) - tr(D C)/2 and its variance d^T C d + tr(D C D C)/2:
    exactly for a quadratic g and normal errors, to second order for others. At H itself d^T C d is
    too large by tr(D C D C), which comes off. H may lie outside of the histograms, and g, d or D be
    undefined there: it warns, the value is g at the histogram nearest to H with one more user
    spread evenly, the standard error is infinite, and the interval all that g can be. It also warns
    where a value is none that g can have.

    function: g; channel: of the shares of its types, at most 256. Raises TypeError, ValueError.

    Source: the delta method, Oehlert (1992), with its second order.
    """

    function: ShareFunction
    channel: Channel

    def __post_init__(self) -> None:
        k = self.function.types
        W = self.channel.workload
        if W.shape != (k, k) or not torch.equal(W, torch.eye(k).to(W)):
            raise ValueError(f"channel must be of the shares of the function's {k} types")
        checks.integer("function's types", k, 2, MOST_TYPES)

    def analyse(self, tally: Tally) -> Estimate:
        """Raises TypeError, ValueError."""
        return self._estimate(tally, sampling=False)

    def _estimate(self, tally: Tally, sampling: bool) -> Estimate:
        """sampling: of g of the population, for which C gains (diag h - h h^T)/n."""
        tally = self.channel.whole(tally)
        n = tally.users(1)
        h = self._shares_of(tally)
        plain, linear, square, trace = self._expanded(h, n, sampling)
        value = self._corrected(tally, h, plain - trace / 2)
        # linear less square may fall below 0 by noise: the part of second order is left.
        variance = torch.maximum(linear - square / 2, square / 2)
        # One sum shows what is infinite or NaN in either.
        known = (value + variance).isfinite()
        if not known.all():
            # One more user, spread evenly: g is defined inside of the histograms.
            inside = (onto_simplex(h) * n + 1 / self.function.types) / (n + 1)
            value = torch.where(known, value, self._of_users(inside, n))
            variance = torch.where(known, variance, torch.inf)
            _warn(
                "the function is not defined at the decoded shares: the value is that of a "
                "histogram near them"
            )
        low, high = self.function.limits
        if ((value < low) | (value > high)).any():
            _warn(f"the value lies outside of [{low:g}, {high:g}], what the function can be")
        return Estimate(
            value,
            variance.sqrt(),
            tally.n,
            error=partial(self._error, h, n, sampling, known),
            limits=(low, high),
            sampled=sampling,
            population=partial(self._estimate, tally.kept(), sampling=True),
        )

    def _corrected(self, tally: Tally, h: Tensor, to_second_order: Tensor) -> Tensor:
        """The value at decoded shares (*batch, k), given that less its bias of second order."""
        return to_second_order

    def _error(self, h: Tensor, n: float | Tensor, sampling: bool, known: Tensor) -> QuadraticError:
        """As if g were its second-order expansion at the decoded shares.

        Without end where that is not known.
        """
        rows = []
        for part in self._expansions(h, n, sampling):
            rows.append(torch.stack(coordinates(part.d / 2, part.D / 2, part.C)))
        found = torch.cat(rows, 1).view(2, *h.shape)
        curved, linear = torch.where(known[..., None], found, 0.0)
        none = torch.zeros_like(curved[..., 0])
        slack = torch.where(known, none, torch.inf)
        return QuadraticError(curved, linear, curved[..., :0], none, slack)

    def _shares_of(self, tally: Tally) -> Tensor:
        """H, (*batch, k)."""
        z = self.channel.mean(tally)
        return z + (1 - z.sum(-1, keepdim=True)) / self.function.types

    def expansion(self, tally: Tally) -> tuple[Tensor, Tensor]:
        h = self._shares_of(tally)
        k = self.function.types
        d, D = self.function.derivatives(h.reshape(-1, k), rows_of(tally.users(1), h))
        # Shares of the channel are moved to the sum 1 before g reads them.
        d = d - d.mean(-1, keepdim=True)
        D = _centred(D)
        batch = h.shape[:-1]
        return d.view(*batch, 1, k), D.view(*batch, 1, k, k) / 2

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """No bound is known: inf."""
        return torch.full_like(tensor_of(n), torch.inf, dtype=torch.float64)

    def exact(self, summary: Tensor) -> Tensor:
        h, n = self._shares(summary)
        return self._of_users(h, n)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """d^T C d + tr(D C D C)/2, (*batch), for counts (*batch, k), real numbers allowed."""
        h, n = self._shares(summary)
        _, linear, square, _ = self._expanded(h, n, sampling=False)
        return linear + square / 2

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        return self.channel._shares(summary)

    def _of_users(self, h: Tensor, n: float | Tensor) -> Tensor:
        """(*batch, k), (*batch, 1) -> (*batch)."""
        values = self.function.of_users(h.reshape(-1, h.shape[-1]), rows_of(n, h))
        return values.view(h.shape[:-1])

    def _expanded(self, h: Tensor, n: float | Tensor, sampling: bool) -> tuple[Tensor, ...]:
        """(*batch, k), (*batch, 1) -> g, d^T C d, tr(D C D C), tr(D C), each (*batch)."""
        rows = []
        for part in self._expansions(h, n, sampling):
            DC = part.D @ part.C
            value = self.function.of_users(part.h, part.n)
            linear = part.d[:, None] @ part.C @ part.d[:, :, None]
            square = (DC * DC.mT).sum((-2, -1))
            trace = torch.linalg.diagonal(DC).sum(-1)
            rows.append(torch.stack([value, linear.flatten(), square, trace]))
        return torch.cat(rows, 1).view(4, *h.shape[:-1]).unbind()

    def _expansions(self, h: Tensor, n: float | Tensor, sampling: bool) -> Iterator[_Expansion]:
        """Of a bounded number of rows at a time; C is that at the histogram nearest to h.

        sampling: C has that of a sample from a population too.
        """
        k = self.function.types
        size = max(1, AT_ONCE // k**2)
        parts = h.reshape(-1, k).split(size)
        for part, users in zip(parts, rows_of(n, h).split(size), strict=True):
            d, D = self.function.derivatives(part, users)
            shares = onto_simplex(part)
            C = self._covariance(shares * users)
            if sampling:
                multinomial = shares.diag_embed() - shares[:, :, None] * shares[:, None]
                C = C + multinomial / users[..., None]
            yield _Expansion(part, users, d, D, C)

    def _covariance(self, counts: Tensor) -> Tensor:
        """C of users (*batch, k): (*batch, k, k)."""
        return _centred(self.channel.covariance(counts))


def _centred(A: Tensor) -> Tensor:
    """Of shares moved to the sum 1: rows and columns of (*batch, k, k) less their means."""
    A = A - A.mean(-1, keepdim=True)
    return A - A.mean(-2, keepdim=True)


def _of_rows(function: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    """The function of each row (b, k), which ``vmap`` does not take of none."""
    if len(h):
        return vmap(function)(h)
    flat = h.new_full((1, h.shape[-1]), 1 / h.shape[-1])
    return vmap(function)(flat)[:0]


def _warn(what: str) -> None:
    warnings.warn(f"{what}; use interval()", stacklevel=5)


def rows_of(n: float | Tensor, h: Tensor) -> Tensor:
    """n, a number or (*batch, 1), of each row of h (*batch, k): (b, 1)."""
    users = torch.as_tensor(n, dtype=torch.float64).to(h)
    return users.expand(*h.shape[:-1], 1).reshape(-1, 1)
