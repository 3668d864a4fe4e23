"""Every protocol of pairwise statistics on the battery; each truth is an average over pairs of users."""

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from channels import two_densities
from contract import Contract, LocalContract, MessageContract
from pairs import from_factors
from scipy.stats import poisson

from torchdp import pairwise
from torchdp.pairwise.rounds.round import Round
from torchdp.randomizers import PrivUnit, RandomizedResponse, StrategyMatrix

GINI = pairwise.absolute_difference(4)
X = torch.tensor([0] * 4 + [1] * 2 + [2] * 6 + [3] * 12)


def distinct(kernel):
    """Mean of the kernel over pairs of different users of X."""
    pairs = [float(kernel(a, b)) for i, a in enumerate(X) for j, b in enumerate(X) if i != j]
    return torch.tensor(math.fsum(pairs) / len(pairs)).double()


def scalar(response):
    if isinstance(response, PrivUnit):
        return two_densities(response)
    return math.log1p(response.bias) - math.log1p(-response.bias)


class Pairwise:
    x = X
    bad: ClassVar = [torch.tensor([4]), torch.tensor([-1]), torch.tensor([0.5]), X[None]]

    def bound(self, protocol):
        return protocol.epsilon

    def truth(self):
        return distinct(lambda a, b: abs(a - b))


class TestTwoMessage(Pairwise, LocalContract):
    protocol = pairwise.TwoMessage(GINI, 8.0)

    def loss(self, protocol):
        return 2 * two_densities(protocol.randomizer)


class TestOneMessage(Pairwise, LocalContract):
    protocol = pairwise.OneMessage(GINI, 4.0)

    def loss(self, protocol):
        return two_densities(protocol.client)


class TestOneMessageOfAllPairs(TestOneMessage):
    """A diagonal that depends on the type, and a weight of each sign."""

    protocol = pairwise.OneMessage(
        from_factors(torch.eye(4), torch.diag(torch.arange(1.0, 5)) + 1, pairs=pairwise.Pairs.ALL), 4.0
    )

    def truth(self):
        total = sum(1 + (a == b) * (1 + a) for a in X for b in X)
        return total.double() / len(X) ** 2


class TestAUC(TestOneMessage):
    protocol = pairwise.OneMessage(pairwise.auc(2), 12.0)
    x = X.repeat(8)
    slack = 0.1  # to first order

    def truth(self):
        negatives, positives = X[X < 2], X[X >= 2] - 2
        return ((positives > negatives[:, None]).double() + (positives == negatives[:, None]) / 2).mean()


class Reports(Pairwise):
    def test_a_wrong_constant_breaks_the_guarantee(self):
        with pytest.raises(ValueError, match="epsilon must be at least the client's"):
            dataclasses.replace(self.protocol, epsilon=0.99 * self.protocol.epsilon)


class TestResponses(Reports, LocalContract):
    protocol = pairwise.PairReports(GINI, 3.0, RandomizedResponse)

    def loss(self, protocol):
        return math.log(protocol.client.p / protocol.client.q)


class TestSubsets(Reports, LocalContract):
    stacked = False
    protocol = pairwise.PairReports(pairwise.unequal(4), 2.0)
    repeats, runs, honest = 1500, 100, (0.7, 1.6)  # of 24 users 1.37

    def loss(self, protocol):  # of a set that holds x against one that does not
        p, size = protocol.client.on, protocol.client.subset
        return math.log(p / (1 - p) * (4 - size) / size)

    def truth(self):
        return distinct(lambda a, b: a != b)


class TestStrategyReports(Reports, LocalContract):
    matrix = torch.tensor([[4.0, 1, 1, 1], [1, 4, 1, 2], [1, 2, 4, 1], [2, 1, 2, 4]])
    protocol = pairwise.PairReports(GINI, math.log(4), StrategyMatrix(matrix / 8))

    def loss(self, protocol):
        matrix = protocol.client.matrix
        return float((matrix.amax(1) / matrix.amin(1)).log().max())


class TestTwoRound(Pairwise, Contract):
    protocol = pairwise.TwoRound(GINI, 8.0, 4.0, 0.8)
    slack = 0.03  # from 256 draws

    def loss(self, protocol):
        first = protocol.round(())
        second = protocol.round((first.collect(X),))
        return sum(two_densities(each) for each in first.randomizers) + sum(map(scalar, second.responses))


class TestThreeRound(Pairwise, Contract):
    protocol = pairwise.ThreeRound(GINI, 12.0, (3.0, 4.0, 3.0, 2.0))
    slack, repeats, runs, honest = 0.06, 2000, 100, (0.7, 1.8)

    def loss(self, protocol):
        heard, total = (), 0.0
        for _ in range(protocol.rounds):
            one = protocol.round(heard)
            total += sum(two_densities(each) for each in one.randomizers) + sum(map(scalar, one.responses))
            heard = (*heard, one.collect(X))
        return total

    def test_a_wrong_constant_breaks_the_guarantee(self):
        with pytest.raises(ValueError, match="budgets must add up to at most epsilon"):
            dataclasses.replace(self.protocol, epsilon=11.9)


class TestProjectedTwoRound(TestThreeRound):
    protocol = pairwise.ProjectedTwoRound(GINI, 12.0, (3.0, 5.0, 4.0))


class TestRound(Pairwise, LocalContract):
    """Two vectors and two answers, one of a question that clips, one of each response."""

    protocol = Round(
        GINI.points,
        (3.0, 2.0),
        tuple(pairwise.rounds.round.ask(GINI.points, GINI.points[1] * c, 0.5 * c) for c in (1.0, 3.0)),
        (1.0, 3.0),
    )

    def loss(self, protocol):
        return sum(two_densities(each) for each in protocol.randomizers) + sum(map(scalar, protocol.responses))

    def bound(self, protocol):
        return sum(protocol.vectors) + sum(protocol.answers)

    def test_a_wrong_constant_breaks_the_guarantee(self):
        changed = dataclasses.replace(self.protocol, answers=(1.1, 3.0))
        assert self.loss(changed) > self.bound(self.protocol) * (1 + 1e-9)

    def truth(self):
        mean = GINI.points[X].mean(0)
        answers = []
        for question in self.protocol.questions:
            values = GINI.points[X] @ question.vector
            low, high = question.center - question.half_width, question.center + question.half_width
            answers.append(values.clamp(low, high).mean())
        return torch.cat([mean, mean, torch.stack(answers)])


class TestShuffledForm(Pairwise, MessageContract):
    x = X.repeat(8)
    protocol = pairwise.ShuffledForm.calibrated(pairwise.absolute_difference(4), len(x), 1.0, 1e-3)

    def truth(self):
        return (self.x[:, None] - self.x).abs().sum().double() / (len(self.x) * (len(self.x) - 1))

    def bound(self, protocol):
        return protocol.delta

    def loss(self, protocol):  # types 0 and 3 differ in three sums, each Poisson or one more
        d = torch.arange(90)
        one, zero = poisson.pmf(d - 1, protocol.noise), poisson.pmf(d, protocol.noise)
        worst = 0.0
        for up in range(4):  # so many of the sums that differ are ones under the first type
            p = q = torch.ones(1).double()
            for index in range(3):
                a, b = (one, zero) if index < up else (zero, one)
                p = (p[:, None] * torch.as_tensor(a)).flatten()
                q = (q[:, None] * torch.as_tensor(b)).flatten()
            worst = max(worst, float((p - math.exp(protocol.epsilon) * q).clamp_min(0).sum()))
        return worst

    def test_a_wrong_constant_breaks_the_guarantee(self):
        with pytest.raises(ValueError, match="is not certified for this noise"):
            dataclasses.replace(self.protocol, noise=self.protocol.noise * 0.9)
