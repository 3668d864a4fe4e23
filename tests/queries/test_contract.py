"""The battery for linear queries, answered by users and by a curator, and for the losses of
concepts.
"""

import dataclasses
import itertools
import math
from fractions import Fraction
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from contract import Contract, MessageContract, RelayContract, Unbiased
from gaussians import collected, furthest, neighbours, true_epsilon
from laws import float64, hockey_stick, uniform
from products import gaussian_delta
from scipy import stats
from scipy.stats import energy_distance, kendalltau

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Arithmetic
from torchdp.protocol.rounded_sum import exact_sums
from torchdp.queries import (
    CentralFactorization,
    CentralLaplace,
    CentralMarginals,
    EnergyDistance,
    FactoredQueries,
    FittedOracle,
    KendallB,
    LocalFactorization,
    LocalOracle,
    PrivateLearner,
    Quantiles,
    SecureQueries,
    ShuffledQueries,
    stumps,
)
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
)
from torchdp.randomness import keyed_generator
from torchdp.shuffle import CorrelatedSum, PoissonSum

W = workloads.prefix(4).dense()
# nobody holds one of the types
TYPES = torch.tensor([0, 1, 1, 3]).repeat(8)
GAMMA = FactoredQueries.of(W, factorize(W, shift=True))


class Queries:
    x = TYPES
    bad: ClassVar = [
        torch.tensor([4]),
        torch.tensor([-1]),
        torch.tensor([0.5]),
        TYPES[None],
    ]

    def truth(self):
        return (self.x <= torch.arange(4)[:, None]).double().mean(1)


class TestLocalFactorization(Queries, Unbiased, RelayContract):
    protocol = LocalFactorization.calibrated(GAMMA, epsilon=1.0)


# with a bias
class TestOfApproximateFactors(Queries, RelayContract):
    stacked = False
    protocol = LocalFactorization.calibrated(
        FactoredQueries.of(W, approximate(W, 0.3)), epsilon=1.0
    )
    # a standard error has no bias in it
    honest = (0.5, 1.4)


class TestLocalOracle(Queries, Unbiased, RelayContract):
    protocol = LocalOracle(W, RandomizedResponse(4, 1.0))


# reports that do not sum to 1
class TestOfBits(Queries, RelayContract):
    protocol = LocalOracle(W, OptimizedUnaryEncoding(4, 1.0))


class TestOfSigns(Queries, RelayContract):
    protocol = LocalOracle(W, HadamardResponse(4, 1.0))


def pairs_of_types(k, epsilon):
    """One of all pairs of types, likelier one that holds the own: more outputs than types."""
    # a pair with the own type is e^epsilon times as likely as another
    low = math.exp(-epsilon)
    pairs = combinations(range(k), 2)
    rows = torch.tensor([[1.0 if x in two else low for x in range(k)] for two in pairs])
    rows = rows / rows.sum(0)
    return StrategyMatrix(rows.double())


class TestAdapted(Queries, RelayContract):
    protocol = LocalOracle(W, pairs_of_types(4, 1.0), adapted=True)
    x = TYPES.repeat(20)
    # to first order
    slack = 0.1

    def test_a_wrong_constant_breaks_the_guarantee(self):
        # an epsilon a tenth above the one that is stated
        louder = dataclasses.replace(self.protocol, client=pairs_of_types(4, 1.1))
        assert self.loss(louder) > self.bound(self.protocol) * (1 + 1e-9)


class TestLocalQuantiles(Queries, RelayContract):
    protocol = LocalOracle.of(
        Quantiles(torch.tensor([0.0, 1.0, 3.0, 4.0, 8.0]), (0.2, 0.5)), RandomizedResponse(4, 4.0)
    )
    x = torch.tensor([0, 0, 0, 1, 2, 3, 3]).repeat(100)
    # of first order in the noise
    slack = 0.1

    def truth(self):
        """Each user in the middle of a part of its bin, as many parts as users."""
        edges = [0.0, 1.0, 3.0, 4.0, 8.0]
        counts = np.bincount(self.x, minlength=4)
        below = np.concatenate([[0], counts.cumsum()]) / len(self.x)
        return float64(np.interp([0.2, 0.5], below, edges))


class TestCentralMarginals(Unbiased, Contract):
    stacked = False
    protocol = CentralMarginals(4, 2, 1.0, 1e-6)
    x = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]]).repeat(8, 1)
    bad: ClassVar = [torch.full((2, 4), 2.0), torch.zeros(3, 3), torch.zeros(4)]

    def truth(self):
        tables = []
        for i, j in combinations(range(4), 2):
            numbers = self.x[:, i] + 2 * self.x[:, j]
            tables.append(torch.bincount(numbers, minlength=4).double() / len(self.x))
        return torch.stack(tables)

    def loss(self, protocol):
        people = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
        return true_epsilon(furthest(collected(protocol), neighbours(people)), protocol.delta)

    def test_guarantee_distance_is_that_of_all_pairs_of_people(self):
        for d, order in ((1, 1), (5, 3), (6, 2), (3, 3)):
            protocol = CentralMarginals(d, order, 1.0, 1e-6)
            people = torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)))
            encoded = protocol.factors.encode(protocol.codes, people)
            apart = float(torch.cdist(encoded, encoded).max())
            assert apart <= protocol.distance <= apart * (1 + 1e-9)


class TestFittedOracle(Queries, RelayContract):
    protocol = FittedOracle(W, RandomizedResponse(4, 2.0), ordered=False)
    repeats = 1_000
    # from draws
    slack = 0.5
    # of the unbiased estimate, whose error is larger
    honest = (1.0, 2.5)


class TestLocalFunction(Queries, RelayContract):
    protocol = LocalOracle.of(KendallB(2, 2), RandomizedResponse(4, 4.0))
    x = torch.tensor([0, 0, 0, 1, 2, 3, 3]).repeat(100)
    bad: ClassVar = [
        torch.tensor([4]),
        torch.tensor([-1]),
        torch.tensor([0.5]),
        x[None],
    ]
    # to second order
    slack = 0.1

    def truth(self):
        first = self.x.numpy() // 2
        second = self.x.numpy() % 2
        return float64(kendalltau(first, second).statistic)


# of squares, near their least value, through reports that do not sum to 1
class TestOfTwoGroups(TestLocalFunction):
    protocol = LocalOracle.of(EnergyDistance(2, spacing=3.0), OptimizedUnaryEncoding(4, 3.0))

    def truth(self):
        values = self.x.numpy() % 2 * 3.0
        first = self.x.numpy() < 2
        return float64(energy_distance(values[first], values[~first]) ** 2)


class TestShuffledQueries(Queries, Unbiased, MessageContract):
    alike = True
    bits = torch.tensor(
        [
            [1.0, 1.0, 0.0, 0.0],
            [1.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 1.0, 0.0],
        ]
    )
    protocol = ShuffledQueries.calibrated(W, PoissonSum, 32, 1.0, 1e-3, bits)

    def loss(self, protocol):
        """delta where a user's bits 110 become 001, from products of single sums."""
        # up to where double precision sees no mass
        noise = stats.poisson(protocol.law.mean).pmf(np.arange(128))
        views = np.array([1.0]), np.array([1.0])
        for bit in (1, 1, 0):
            one = np.roll(noise, bit)
            other = np.roll(noise, 1 - bit)
            views = (
                np.outer(views[0], one).ravel(),
                np.outer(views[1], other).ravel(),
            )
        return max(hockey_stick(*pair, 1.0) for pair in (views, views[::-1]))

    def bound(self, protocol):
        return protocol.delta

    def test_a_wrong_constant_breaks_the_guarantee(self):
        # a fifth less noise than the delta was computed for
        less = PoissonSum(32, 0.8 * self.protocol.law.mean)
        assert self.loss(dataclasses.replace(self.protocol, law=less, epsilon=None)) > self.bound(
            self.protocol
        )


class TestCentralLaplace(Queries, Unbiased, Contract):
    """Two sums that a user moves by up to 3 together: prefixes of three and, twice, of one."""

    stacked = False
    counts = float64([[1.0, 1.0, 1.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
    workload = float64([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    protocol = CentralLaplace(FactoredQueries.spanned(workload, counts), 1.0)
    weaker: ClassVar = {"epsilon": 1.3}

    def truth(self):
        return self.workload @ (torch.bincount(TYPES, minlength=4).double() / len(TYPES))

    def bound(self, protocol):
        return self.protocol.guarantee.epsilon

    def loss(self, protocol):
        """The largest log ratio of two types' chances, over whole numbers on either side of
        both.
        """
        # the variance is 1/(2 sinh^2(rate/2))
        rate = 2 * math.asinh((2 * protocol.noise) ** -0.5)
        ends = list(itertools.permutations(self.counts.mT.tolist(), 2))
        # far out on all sides, where the log ratio is constant
        views = list(itertools.product((-30, 30), repeat=2))

        def ratio(view, one, other):
            moves = zip(view, one, other, strict=True)
            return sum(rate * (abs(v - b) - abs(v - a)) for v, a, b in moves)

        return max(ratio(view, *pair) for pair in ends for view in views)

    def test_noise_is_discrete_laplace(self):
        """Chances in proportion to e^(-rate |z|), by a chi-squared test; of two sums no
        correlation.
        """
        draws = keyed_generator(b"laplace")
        tallies = self.protocol.sample_tally(
            torch.tensor([0, 0, 0, 5]),
            generator=draws,
            sample_shape=(20_000,),
        )
        noise = tallies["sum"].numpy()
        size = np.arange(-12, 13)
        # of rate 1/3
        chances = np.tanh(1 / 6) * np.exp(-np.abs(size) / 3)
        for column in noise.T:
            seen = np.array([(column == z).sum() for z in size])
            expected = chances * len(column)
            seen = np.append(seen, len(column) - seen.sum())
            expected = np.append(expected, len(column) - expected.sum())
            assert stats.chisquare(seen, expected).pvalue > 1e-4
        assert abs(np.corrcoef(noise.T)[0, 1]) < 0.03


def signed_view(law, bit, size=256):
    """P(U = u, V = v) of the numbers of "+1" and "-1", by summing over the flood."""
    noise = stats.nbinom(1, 1 - law.ratio).pmf(np.arange(size))
    flood = stats.nbinom(law.flood_shape, 1 - law.flood_ratio).pmf(np.arange(size))
    view = np.zeros((size + bit, size))
    for both, chance in enumerate(flood):
        view[both + bit :, both:] += chance * np.outer(noise[: size - both], noise[: size - both])
    return view[:size].ravel()


class TestCorrelatedQueries(Queries, Unbiased, MessageContract):
    """One sum: the share of two of four types."""

    alike = True
    workload = float64([[1.0, 0.0, 0.0, 1.0]])
    protocol = ShuffledQueries.calibrated(
        workload,
        CorrelatedSum,
        32,
        1.0,
        1e-3,
        workload,
    )

    def loss(self, protocol):
        """delta where a user's bit is another, of the two numbers of messages."""
        views = (
            signed_view(protocol.law, 0),
            signed_view(protocol.law, 1),
        )
        return max(hockey_stick(*pair, 1.0) for pair in (views, views[::-1]))

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return self.workload @ (torch.bincount(TYPES, minlength=4).double() / len(TYPES))

    def test_a_wrong_constant_breaks_the_guarantee(self):
        law = self.protocol.law
        # fewer hidden messages: noise falls off faster
        less = dataclasses.replace(law, ratio=law.ratio**1.2)
        assert self.loss(dataclasses.replace(self.protocol, law=less, epsilon=None)) > self.bound(
            self.protocol
        )


class TestSecureQueries(Queries, Unbiased, MessageContract):
    """32 clients of 40 are heard; the noise of 25 must be enough."""

    alike = True
    repeats = 4_000
    bad: ClassVar = [*Queries.bad, torch.zeros(41, dtype=torch.int64)]
    protocol = SecureQueries(GAMMA, 40, 2.0, 1e-3, corrupt=3, absent=12)

    def loss(self, protocol):
        """delta of a Gaussian pair as far apart as two columns can be; of Laplace noise of variance
        2 b^2 epsilon.
        """
        # Laplace noise hides distances in l_1
        size = 1 if protocol.laplace else 2
        distances = torch.pdist(GAMMA.right.mT, p=size)
        apart = float(distances.max()) / math.sqrt(25 * protocol.noise)
        return math.sqrt(2) * apart if protocol.laplace else gaussian_delta(apart, 2.0)

    def bound(self, protocol):
        return protocol.delta or self.protocol.epsilon


class TestSecureQueriesWithLaplaceNoise(TestSecureQueries):
    stacked = False
    protocol = SecureQueries(GAMMA, 40, 2.0, corrupt=3, absent=12)


class TestCentralFactorization(Queries, Unbiased, Contract):
    stacked = False
    protocol = CentralFactorization(GAMMA, 1.0, 1e-6)

    def loss(self, protocol):
        return true_epsilon(
            furthest(collected(protocol), neighbours(torch.arange(4))),
            protocol.delta,
        )


class TestCentralAnswers(TestCentralFactorization):
    protocol = CentralFactorization(FactoredQueries.plain(W), 0.02, 1e-6)


def test_guarantee_is_of_real_numbers_where_delta_does_not_pay_for_tables():
    assert CentralFactorization(GAMMA, 1e-6, 1e-9).guarantee.arithmetic is Arithmetic.ROUNDED
    assert CentralFactorization(GAMMA, 60.0, 1e-9).guarantee.arithmetic is Arithmetic.REAL


def test_sums_of_very_many_users_are_exact():
    """Columns of 2^-45 of the largest, counts up to 2^50, against Python's integers."""
    columns = uniform(3, 5, seed=1) * 7 - 3
    counts = torch.tensor([2**50, 1, 0, 2**33 + 5, 2**49 - 1])
    # the largest is in [2, 4)
    step = 2.0**-3
    unit = Fraction(2) ** -43
    found = exact_sums(columns, counts, step)
    for row, each in zip(columns.tolist(), found.tolist(), strict=True):
        pairs = zip(row, counts.tolist(), strict=True)
        exact = sum(round(Fraction(x) / unit) * n for x, n in pairs)
        assert each == round(exact * unit / Fraction(step))


class TestPrivateLearner(Unbiased, RelayContract):
    protocol = PrivateLearner.calibrated(stumps([3, 4]), epsilon=2.0)
    x = torch.tensor([[0, 1, 1], [2, 3, -1], [1, 0, 1], [2, 2, 1], [0, 3, -1]]).repeat(6, 1)
    bad: ClassVar = [
        x[:, :2],
        x.double(),
        torch.tensor([[3, 0, 1]]),
        torch.tensor([[0, -1, 1]]),
        torch.tensor([[0, 0, 0]]),
    ]

    # "feature >= t" and "feature < t", t = 1, ..., for both features
    def truth(self):
        first, second, label = self.x.mT
        above = [f >= t for f, size in ((first, 3), (second, 4)) for t in range(1, size)]
        signed = [
            *above[:2],
            *(~a for a in above[:2]),
            *above[2:],
            *(~a for a in above[2:]),
        ]
        wrong = torch.stack(signed) != (label > 0)
        return wrong.double().mean(1)
