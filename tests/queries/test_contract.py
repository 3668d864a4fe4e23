"""The battery for linear queries, answered by users and by a curator, and for the losses of concepts."""

from typing import ClassVar

import torch
from contract import Contract, RelayContract, Unbiased
from gaussians import collected, furthest, neighbours, true_epsilon

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    LocalFactorization,
    LocalOracle,
    PrivateLearner,
    stumps,
)
from torchdp.randomizers import (
    DuchiJordanWainwright,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    PrivUnitG,
    RandomizedResponse,
    SubsetSelection,
)

W = workloads.prefix(4).dense()
TYPES = torch.tensor([0, 1, 1, 3]).repeat(8)
GAMMA = FactoredQueries.of(W, factorize(W, shift=True))


class Queries:
    x = TYPES
    bad: ClassVar = [torch.tensor([4]), torch.tensor([-1]), torch.tensor([0.5]), TYPES[None]]

    def truth(self):
        return torch.stack([(self.x <= i).double().mean() for i in range(4)])


class TestLocalFactorization(Queries, Unbiased, RelayContract):
    protocol = LocalFactorization.calibrated(GAMMA, epsilon=1.0, randomizer=PrivUnitG)


class TestOfPlainAnswers(Queries, RelayContract):
    protocol = LocalFactorization.calibrated(FactoredQueries.plain(W), epsilon=2.0, randomizer=PrivUnit)


class TestOfTheIdentity(Queries, Unbiased, RelayContract):  # less noise along the point: not isotropic
    protocol = LocalFactorization.calibrated(
        FactoredQueries.identity(W), epsilon=8.0, randomizer=DuchiJordanWainwright
    )
    x = torch.full((32,), 3)
    honest = (0.7, 2.0)


class TestOfApproximateFactors(Queries, RelayContract):  # with a bias
    protocol = LocalFactorization.calibrated(FactoredQueries.of(W, approximate(W, 0.3)), epsilon=1.0)
    honest = (0.5, 1.4)  # a standard error has no bias in it


class TestLocalOracle(Queries, Unbiased, RelayContract):
    protocol = LocalOracle(W, RandomizedResponse(4, 1.0))


class TestOfSubsets(Queries, RelayContract):
    protocol = LocalOracle(W, SubsetSelection(4, 1.0))


class TestOfBits(Queries, RelayContract):  # reports that do not sum to 1
    protocol = LocalOracle(W, OptimizedUnaryEncoding(4, 1.0))


class TestOfSigns(Queries, RelayContract):
    protocol = LocalOracle(W, HadamardResponse(4, 1.0))


class TestCentralFactorization(Queries, Unbiased, Contract):
    protocol = CentralFactorization(GAMMA, 1.0, 1e-6)

    def loss(self, protocol):
        return true_epsilon(furthest(collected(protocol), neighbours(torch.arange(4))), protocol.delta)


class TestOfTheGramNorm(TestCentralFactorization):
    protocol = CentralFactorization(FactoredQueries.of(W, factorize(W, 2.0, shift=True)), 0.5, 1e-9)


class TestPrivateLearner(Unbiased, RelayContract):
    protocol = PrivateLearner.calibrated(stumps([3, 4]), epsilon=2.0, randomizer=DuchiJordanWainwright)
    x = torch.tensor([[0, 1, 1], [2, 3, -1], [1, 0, 1], [2, 2, 1], [0, 3, -1]]).repeat(6, 1)
    bad: ClassVar = [
        x[:, :2],
        x.double(),
        torch.tensor([[3, 0, 1]]),
        torch.tensor([[0, -1, 1]]),
        torch.tensor([[0, 0, 0]]),
    ]

    def truth(self):  # "feature >= t" and "feature < t", t = 1, ..., for both features
        first, second, label = self.x.mT
        above = [f >= t for f, size in ((first, 3), (second, 4)) for t in range(1, size)]
        signed = [*above[:2], *(~a for a in above[:2]), *above[2:], *(~a for a in above[2:])]
        return torch.stack([(s != (label > 0)).double().mean() for s in signed])
