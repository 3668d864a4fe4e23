"""Covariance of a few bounded numbers from a strategy matrix: rounding that keeps both moments, then one report."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains import Box
from torchdp.draws import Draws, Simulated
from torchdp.mean.local import LocalCovariance, OfCovariance
from torchdp.mean.moments import Covariance, symmetric
from torchdp.protocol import Choice, Crowd, Estimate, Tally
from torchdp.protocol.records import single
from torchdp.randomizers import StrategyMatrix
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomizers.draws import multinomial
from torchdp.randomness import keyed_generator
from torchdp.simplex import onto_simplex

MOST_TYPES, MOST_STEPS = 64, 8  # that a choice tries (seconds)
LARGEST = 1024  # types


@dataclass(frozen=True, eq=False)
class StrategyCovariance(OfCovariance[StrategyMatrix]):
    """Users round each number twice, at random to one of the two nearest steps, and report both by a strategy matrix.

    From roundings r, s of w in [-1, 1], independent with mean w, (r + s)/2 and r s have the means w and w^2: so do
    (2 steps + 1)^d types, and their decoded values Z, of w_i and w_i w_j. With m and S their means over n users and M
    that of the products of the first d, S - m m^T + (M - S)/n has no bias.

    domain: the box of the users' numbers, (n, d), wider than 0 in each; steps: of each number; client: a strategy of
    (2 steps + 1)^d types, of full rank. ``tuned`` makes one. Raises TypeError, ValueError.

    Guarantees: the client's own, for each user: the distribution of a message is a mixture of the client's.
    Source: derived here; McKenna, Maity, Mazumdar, Miklau (2020) for the strategy.
    """

    domain: Box
    steps: int
    client: StrategyMatrix

    def __post_init__(self) -> None:
        self._refuse_flat()
        types = (2 * checks.integer("steps", self.steps, 1) + 1) ** self.domain.dimension
        if checks.instance("client", self.client, StrategyMatrix).k != types:
            raise ValueError(f"client must have {types} types, not {self.client.k}")
        checks.finite(decoder=self._decoder)  # refuses a strategy that does not tell what is asked

    @classmethod
    def tuned(
        cls, domain: Box, epsilon: float, *, steps: int = 3, generator: torch.Generator, effort: int | None = None
    ) -> "StrategyCovariance":
        """By a strategy of small variance for the covariances at a few means. effort: steps of the search."""
        d = checks.instance("domain", domain, Box).dimension
        first, second, (rows, columns) = _moments(checks.integer("steps", steps, 1), d, domain.low.device)
        weight = torch.where(rows == columns, 1.0, first.new_tensor(2.0)).sqrt()
        half = first.new_full((d,), 0.5)
        means = [torch.zeros_like(half), half, half * (-1.0) ** torch.arange(d, device=half.device)]
        asked = [(second - m[rows] * first[:, columns] - m[columns] * first[:, rows]) * weight for m in means]
        W = torch.cat(asked, 1).mT.double()
        flat = first.new_ones(len(first))
        centred = W - W.mean(1, keepdim=True)
        strategy = StrategyMatrix.tuned(centred, epsilon, flat, generator=generator, steps=effort)
        return cls(domain, steps, strategy)

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        return _moments(self.steps, self.domain.dimension, self.half.device)

    @cached_property
    def _decoder(self) -> Tensor:
        """What each output says of the numbers and their products: (d + d (d + 1)/2, outputs)."""
        first, second, _ = self._tables
        return self.client.decoder(torch.cat([first, second], 1).mT)

    def client_input(self, x: Tensor) -> Tensor:
        """The nearest types, (n,); users draw one of those around them."""
        return self._types((2 * self._position(x)).round().long())

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        position = self._position(x)
        below, twice = position.floor(), torch.zeros_like(position, dtype=torch.int64)
        for _ in range(2):
            twice += below.long() + (draws.uniform(tuple(x.shape)) < position - below)
        return self.client.randomize_unchecked(self._types(twice), draws)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        sent = (self.randomize_unchecked(part, draws) for part in x.split(self.users_at_once))
        return self.add(*map(self.tally, sent))

    def sample_unchecked(self, summary: Crowd, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        counts = summary.counts.expand(*shape, -1)
        return Tally(summary.n, {"reports": multinomial(counts, self._laws(summary.values), draws)})

    def analyse(self, tally: Tally) -> Covariance:
        n, (first, second, (rows, columns)) = self.check(tally).users(1), self._tables
        c, V, d = tally["reports"].double() / n, self._decoder, self.domain.dimension
        mean = c @ V.mT
        m, S = mean[..., :d], mean[..., d:]
        products = c @ (V[rows] * V[columns]).mT  # M
        kappa = (products - S) / n
        value = S - m[..., rows] * m[..., columns] + kappa
        h = onto_simplex(c @ self.client.inverse.mT)
        # (*batch, pairs, outputs)
        told = V[d:] - m[..., rows, None] * V[columns] - m[..., columns, None] * V[rows]
        meant = second.mT - m[..., rows, None] * first.mT[columns] - m[..., columns, None] * first.mT[rows]
        own = ((h @ self.client.matrix.mT)[..., None, :] * told.square()).sum(-1)
        own = own - (h[..., None, :] * meant.square()).sum(-1)
        linear = (own + self._rounding(h, m, meant)) / n
        square = _squares(kappa, rows, columns)
        error = torch.maximum(linear - square, square.clamp_min(0)).clamp_min(0).sqrt()
        width = self.half[rows] * self.half[columns]
        spread = kappa[..., rows == columns].clamp_min(0).sqrt() * self.half
        where = Estimate(self.domain.middle + m * self.half, spread, tally.n)
        return Covariance(symmetric(value * width, d), symmetric(error * width, d), tally.n, mean=where)

    def _rounding(self, h: Tensor, m: Tensor, meant: Tensor) -> Tensor:
        """What the roundings add for one user to each entry's variance, at shares h of types and means m.

        (*batch, types), (*batch, d), what a type stands for (*batch, pairs, types) -> (*batch, pairs). A type tells w
        and w^2 without bias, and so the mean square of w_i w_j - m_i w_j - m_j w_i of two numbers. Of one number,
        rounded with variance v around w - m = u, the variance is 2 u^2 v + v^2: types between two steps show 2 v/D^2,
        D = 2/steps; w is taken to lie evenly around the middle between them, and (mean v)^2 for the mean of v^2.
        """
        first, second, (rows, columns) = self._tables
        w, one, two = first.mT, m[..., rows, None], m[..., columns, None]  # (d, types)
        square = second.mT[rows == columns]
        i, j = square[rows], square[columns]
        true = i * j + one.square() * j + two.square() * i + 2 * one * two * w[rows] * w[columns]
        true = true - 2 * one * w[rows] * j - 2 * two * i * w[columns]
        beside = (h[..., None, :] * (meant.square() - true)).sum(-1)
        step = 2 / self.steps
        v = step**2 / 2 * (w.square() - square > step**2 / 8)  # between two steps r s = w^2 - D^2/4
        places = 2 * (w[rows] - one).square() + step**2 / 2
        spread = (h[..., None, :] * v[rows]).sum(-1)
        own = (h[..., None, :] * v[rows] * places).sum(-1) - spread.square()
        return torch.where(rows == columns, own, beside)

    def validate_summary(self, summary: Crowd) -> Crowd:
        crowd = super().validate_summary(summary)
        single(crowd.n)
        return crowd

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """(d, d): of S - m m^T to first order, and of the square of m's error as if it were normal."""
        crowd, (_, _, (rows, columns)) = self.validate_summary(summary), self._tables
        n, V, d = crowd.n, self._decoder, self.domain.dimension
        h, laws, w = crowd.counts.double() / n, self._laws(crowd.values), self.scaled(crowd.values)
        m = h @ w
        told = V[d:] - m[rows, None] * V[columns] - m[columns, None] * V[rows]
        meant = w[:, rows] * w[:, columns] - m[rows] * w[:, columns] - m[columns] * w[:, rows]
        own = (h @ laws) @ told.square().mT - h @ meant.square()
        kappa = ((h @ laws) @ (V[rows] * V[columns]).mT - h @ (w[:, rows] * w[:, columns])) / n
        width = self.half[rows] * self.half[columns]
        return symmetric((own / n + _squares(kappa, rows, columns)) * width.square(), d)

    def _position(self, x: Tensor) -> Tensor:
        """In steps from the lower end."""
        return (self.scaled(x) + 1) * (self.steps / 2)

    def _types(self, twice: Tensor) -> Tensor:
        """Of the sums of two roundings, (n, d)."""
        places = (2 * self.steps + 1) ** torch.arange(self.domain.dimension - 1, -1, -1, device=twice.device)
        return (twice * places).sum(-1)

    def _laws(self, x: Tensor) -> Tensor:
        """Of the message of users with these numbers: (n, d) -> (n, outputs)."""
        position, laws = self._position(x), x.new_ones(len(x), 1, dtype=torch.float64)
        for each in position.mT:
            below, share = each.floor().long(), each - each.floor()
            one = laws.new_zeros(len(x), 2 * self.steps + 3)
            chances = torch.stack([(1 - share) ** 2, 2 * share * (1 - share), share**2], 1)
            one.scatter_(1, 2 * below[:, None] + torch.arange(3, device=x.device), chances)
            laws = (laws[:, :, None] * one[:, None, : 2 * self.steps + 1]).flatten(1)
        return laws @ self.client.matrix.mT


def choose_covariance(domain: Box, n: int, epsilon: float) -> Choice[LocalCovariance | StrategyCovariance]:
    """The protocol of least predicted error for the covariances of n users' numbers.

    Candidates: ``LocalCovariance``, and ``StrategyCovariance`` of 1, 2, ... steps up to 64 types. The error is the root
    of the mean over entries, in units of the half widths, for users spread evenly over the box, and on its diagonal.
    Raises TypeError, ValueError. Guarantees: the best's own; nothing is read from data.
    """
    d, n = checks.instance("domain", domain, Box).dimension, checks.integer("n", n, 1)
    found: list[tuple[str, LocalCovariance | StrategyCovariance]] = [
        ("numbers and products", LocalCovariance.calibrated(domain, epsilon=epsilon))
    ]
    fitting = [s for s in range(1, MOST_STEPS + 1) if (2 * s + 1) ** d <= MOST_TYPES]
    if SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        for steps in fitting[-2:]:
            generator = keyed_generator(b"choose", domain.low.device)
            made = StrategyCovariance.tuned(domain, epsilon, steps=steps, generator=generator)
            found.append((f"optimised strategy, {steps} steps", made))
    width = (domain.high - domain.low) / 2
    size = (width * width[:, None]).square()
    relative = [[(each.predicted_mse(c) / size).mean() for c in _crowds(domain, n)] for _, each in found]
    return Choice.of(found, (math.sqrt(sum(map(float, both)) / 2) for both in relative))


def _crowds(domain: Box, n: int) -> tuple[Crowd, Crowd]:
    """About n users spread evenly over the box, and along its diagonal."""
    d, generator = domain.dimension, keyed_generator(b"torchdp.mean.moments", domain.low.device)
    places = torch.rand(256, d, dtype=torch.float64, generator=generator, device=domain.low.device)
    both = (places, places[:, :1].expand(-1, d))
    counts = places.new_full((256,), max(1, round(n / 256)), dtype=torch.int64)
    one, two = (Crowd(domain.low + each * (domain.high - domain.low), counts) for each in both)
    return one, two


def _squares(kappa: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """kappa_ii kappa_jj + kappa_ij^2 of each pair: (*batch, pairs) -> (*batch, pairs)."""
    own = kappa[..., rows == columns]
    return own[..., rows] * own[..., columns] + kappa.square()


def _moments(steps: int, d: int, device: torch.device) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Of each type the numbers, (k, d), and the products of pairs i <= j, (k, pairs); the pairs."""
    checks.fits("types", (2 * steps + 1) ** d, most=LARGEST)
    twice = torch.cartesian_prod(*[torch.arange(2 * steps + 1, device=device)] * d).view(-1, d)
    ends = torch.linspace(-1, 1, steps + 1, dtype=torch.float64, device=device)
    one, two = ends[twice // 2], ends[(twice + 1) // 2]
    first = (one + two) / 2
    rows, columns = torch.triu_indices(d, d, device=device)
    second = torch.where(rows == columns, (one * two)[:, rows], first[:, rows] * first[:, columns])
    return first, second, (rows, columns)
