"""Any smooth function of the users' shares of types, from a frequency oracle's reports."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from torchdp import checks
from torchdp.protocol import Choice, Estimate, Tally
from torchdp.protocol.protocol import Same
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.queries.choose import lower_bound
from torchdp.queries.oracle import ORACLES
from torchdp.randomizers import StrategyMatrix, SubsetSelection
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomness import keyed_generator
from torchdp.simplex import onto_simplex

MOST_TYPES = 256  # covariances of all types are kept, k^3 numbers
LARGEST_STRATEGY = 64  # types up to which a strategy is optimised (seconds)
AT_ONCE = 2**24  # numbers in the second derivatives that are made together


class ShareFunction(ABC):
    """A function g of shares h, (k,) -> (), of torch operations that have two derivatives. A frozen dataclass."""

    @property
    @abstractmethod
    def types(self) -> int:
        """k."""

    @abstractmethod
    def __call__(self, h: Tensor) -> Tensor:
        """g(h), for shares that are only nearly those of users: entries may be below 0, the sum is 1."""

    @property
    def limits(self) -> tuple[float, float]:
        """What g of users' shares can be."""
        return -math.inf, math.inf

    @property
    def likely(self) -> Tensor:
        """(j, k): public histograms for choices where no prior is given; the flat one."""
        return torch.full((1, self.types), 1 / self.types, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class LocalFunction(Same[Tensor, Tensor, FrequencyOracle]):
    """g of the users' shares: each reports its type, the analyst corrects g at the decoded shares to second order.

    With H the decoded shares, moved to the sum 1, C(h) = sum_x h_x Cov(Y | x)/n their covariance and d, D the first two
    derivatives of g, the value is g(H) - tr(D C)/2 and its variance d^T C d + tr(D C D C)/2: exactly for a quadratic g
    and normal errors, to second order for others. At H itself d^T C d is too large by tr(D C D C), which comes off.
    H may lie outside of the histograms, and g, d or D be undefined there: it warns, the value is g at the histogram
    nearest to H with one more user spread evenly, the standard error is infinite, and the interval all that g can be.
    It also warns where a value is none that g can have.

    function: g; client: an oracle on its types, at most 256. Raises TypeError, ValueError.

    Guarantees: the client's own, for each user.
    Source: the delta method, Oehlert (1992), with its second order.
    """

    function: ShareFunction
    client: FrequencyOracle

    def __post_init__(self) -> None:
        k = checks.instance("function", self.function, ShareFunction).types
        if checks.instance("client", self.client, FrequencyOracle).k != k:
            raise ValueError(f"client must have the function's {k} types, not {self.client.k}")
        checks.integer("function's types", k, 2, MOST_TYPES)
        checks.validated(self, "client.variance")  # refuses a client whose reports do not tell all types apart

    @classmethod
    def tuned(
        cls,
        function: ShareFunction,
        n: int,
        epsilon: float,
        *,
        prior: Tensor | None = None,
        generator: torch.Generator,
        steps: int | None = None,
    ) -> "LocalFunction":
        """Reports by a strategy optimised for the derivatives of g at the prior.

        d is one query; tr(D C D C)/2 is linear in C up to its own size: queries (D C D)^{1/2} for the C of subsets.
        prior: (k,) or a few, (j, k); None: the function's own. Raises TypeError, ValueError.
        """
        n, epsilon = checks.integer("n", n, 1), checks.positive("epsilon", epsilon)
        family = _family(function, prior)
        usual = cls(function, SubsetSelection(function.types, epsilon))
        first, second = derivatives(function, family)
        covariance = usual._covariance(family) / n
        values, vectors = torch.linalg.eigh((second @ covariance @ second).mean(0))
        root = (vectors * values.clamp_min(0).sqrt()).mT / math.sqrt(2)
        workload = torch.cat([first / math.sqrt(len(family)), root])
        law = 0.98 * family.mean(0) + 0.02 / function.types
        centred = workload - workload.mean(1, keepdim=True)
        if not bool((centred.abs() > 1e-12 * workload.abs().max()).any()):
            raise ValueError("function must not be constant near the prior")
        strategy = StrategyMatrix.tuned(centred, epsilon, law, generator=generator, steps=steps)
        return cls(function, strategy)

    def analyse(self, tally: Tally) -> Estimate:
        """Raises TypeError, ValueError."""
        return self._estimate(tally, sampling=False)

    def _estimate(self, tally: Tally, sampling: bool) -> Estimate:
        """sampling: of g of the population, for which C gains (diag h - h h^T)/n."""
        n, totals = self.check(tally).users(1), self.client.totals(tally)
        h = (totals + (n - totals.sum(-1, keepdim=True)) / self.client.k) / n
        batch = h.shape[:-1]
        plain, linear, square, twice = (part.view(batch) for part in self._expanded(h, n, sampling))
        value = plain - twice / 2
        variance = torch.maximum(linear - square / 2, square / 2)
        known = (value + variance).isfinite()
        if not bool(known.all()):
            inside = (onto_simplex(h) * n + 1 / self.client.k) / (n + 1)
            nearest = vmap(self.function)(inside.view(-1, self.client.k)).view(batch)
            value = torch.where(known, value, nearest)
            variance = torch.where(known, variance, torch.inf)
            _warn("the function is not defined at the decoded shares: the value is that of a histogram near them")
        low, high = self.function.limits
        if bool(((value < low) | (value > high)).any()):
            _warn(f"the value lies outside of [{low:g}, {high:g}], what the function can be")
        error = partial(self._error, h, n, sampling, known)
        return Estimate(
            value,
            variance.sqrt(),
            tally.n,
            error=error,
            limits=self.function.limits,
            sampled=sampling,
            population=partial(self._estimate, tally.kept(), sampling=True),
        )

    def _error(self, h: Tensor, n: float | Tensor, sampling: bool, known: Tensor) -> QuadraticError:
        """As if g were its second-order expansion at the decoded shares; without end where that is not known."""
        found = [coordinates(d / 2, D / 2, C) for _, d, D, C in self._derived(h, n, sampling)]
        both = (torch.cat(each).view(*h.shape[:-1], -1) for each in zip(*found, strict=True))
        curved, linear = (torch.where(known[..., None], each, 0.0) for each in both)
        none = torch.zeros_like(curved[..., 0])
        return QuadraticError(curved, linear, curved[..., :0], none, torch.where(known, none, torch.inf))

    def exact(self, summary: Tensor) -> Tensor:
        h, _ = self._shares(summary)
        return vmap(self.function)(h.reshape(-1, h.shape[-1])).view(h.shape[:-1])

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """d^T C d + tr(D C D C)/2, (*batch), for counts (*batch, k) of users, real numbers allowed."""
        h, n = self._shares(summary)
        _, linear, square, _ = self._expanded(h, n)
        return (linear + square / 2).view(h.shape[:-1])

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        counts = checks.users("summary", summary, self.client.k)
        n = counts.sum(-1, keepdim=True)
        return counts / n, n

    def _expanded(
        self, h: Tensor, n: float | Tensor, sampling: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(*batch, k), (*batch, 1) -> g, d^T C d, tr(D C D C), tr(D C), one row after the other."""
        found = []
        for part, first, second, C in self._derived(h, n, sampling):
            both = second @ C
            linear = (first[:, None] @ C @ first[:, :, None]).flatten()
            trace = both.diagonal(dim1=-2, dim2=-1).sum(-1)
            found.append((vmap(self.function)(part), linear, (both * both.mT).sum((-2, -1)), trace))
        value, linear, square, trace = (torch.cat(each) for each in zip(*found, strict=True))
        return value, linear, square, trace

    def _derived(
        self, h: Tensor, n: float | Tensor, sampling: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Some shares, (b, k), d, D and C, of the nearest histogram, in turn.

        sampling: C has that of a sample from a population too.
        """
        users = torch.as_tensor(n, dtype=torch.float64).to(h).expand(*h.shape[:-1], 1)
        rows = max(1, AT_ONCE // self.client.k**2)
        for part, some in zip(*(x.reshape(-1, x.shape[-1]).split(rows) for x in (h, users)), strict=True):
            first, second = derivatives(self.function, part)
            shares = onto_simplex(part)
            C = self._covariance(shares)
            if sampling:
                C = C + shares.diag_embed() - shares[:, :, None] * shares[:, None]
            yield part, first, second, C / some[..., None]

    def _covariance(self, shares: Tensor) -> Tensor:
        """sum_x h_x Cov(Y | x) of reports moved to the sum 1: (b, k) -> (b, k, k)."""
        return (shares @ self._covariances.flatten(1)).unflatten(-1, (self.client.k, self.client.k))

    @cached_property
    def _covariances(self) -> Tensor:
        """(k, k, k)."""
        C = torch.stack([self.client.covariance(x) for x in range(self.client.k)])
        C = C - C.mean(-1, keepdim=True)
        return C - C.mean(-2, keepdim=True)


def choose_function(
    function: ShareFunction, n: int, epsilon: float, *, prior: Tensor | None = None, search: bool = True
) -> Choice[LocalFunction]:
    """The oracle of least predicted error for g of n users' shares.

    Candidates: randomized response, subset selection, OUE, SUE, Hadamard response, and, up to 64 types and where
    ``search`` is, a strategy optimised for g. The error is the root of the mean over the prior's histograms, (k,) or
    (j, k); None: the function's own. Raises TypeError, ValueError.
    Guarantees: the best's own; nothing is read from data.
    """
    n, epsilon = checks.integer("n", n, 1), checks.positive("epsilon", epsilon)
    family = _family(function, prior)
    k = function.types
    found = [(kind.__name__, LocalFunction(function, kind(k, epsilon))) for kind in ORACLES]
    if search and k <= LARGEST_STRATEGY and SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        strategy = LocalFunction.tuned(
            function, n, epsilon, prior=family, generator=keyed_generator(b"choose", family.device)
        )
        found.append(("optimised strategy", strategy))
    least = fmean(function_lower_bound(function, n, epsilon, h) ** 2 for h in family)
    errors = [math.sqrt(fmean(float(each.predicted_mse(h * n)) for h in family)) for _, each in found]
    return Choice.of(found, errors, math.sqrt(least))


def function_lower_bound(function: ShareFunction, n: int, epsilon: float, histogram: Tensor) -> float:
    """No unbiased epsilon-LDP mechanism has a smaller error near ``histogram``, (k,), to first order in 1/n.

    The function's slopes are one linear query: see ``lower_bound``. Raises TypeError, ValueError.
    """
    checks.instance("function", function, ShareFunction)
    h = checks.shares("histogram", histogram, function.types)
    return lower_bound(derivatives(function, h[None])[0], n, epsilon, prior=h)


def _warn(what: str) -> None:
    warnings.warn(f"{what}; use interval()", stacklevel=5)


def _family(function: ShareFunction, prior: Tensor | None) -> Tensor:
    """The prior's histograms, each normalised, (j, k)."""
    checks.instance("function", function, ShareFunction)
    rows = checks.instance("prior", function.likely if prior is None else prior, Tensor)
    rows = rows if rows.ndim > 1 else rows[None]
    return torch.stack([checks.shares("prior", each, function.types) for each in rows])


def derivatives(function: ShareFunction, h: Tensor) -> tuple[Tensor, Tensor]:
    """(b, k) -> the first, (b, k), and the second, (b, k, k)."""
    return vmap(grad(function))(h), vmap(hessian(function))(h)
