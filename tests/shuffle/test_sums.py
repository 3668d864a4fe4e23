"""Bit sums by the battery, their losses enumerated from what each user sends."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from contract import MessageContract, Unbiased
from laws import hockey_stick, shifted
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.shuffle import (
    BitSums,
    BoundedSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
    ShuffledMessages,
)

N = 30
DELTA = 1e-3
SIZE = 128
AT_ONCE = 2**16
X = torch.arange(2 * N).view(N, 2) % 7
X = X < torch.tensor([2, 5])


def only(law):
    """Counts of one kind of message."""
    return np.pad(law[:, None], [(0, 0), (0, SIZE - 1)])


def composed(p, q, epsilon, instances):
    # what is so rare adds less than the test's tolerance, and would make the square large
    kept = p + q > 1e-10
    p = p[kept]
    q = q[kept]
    if instances == 2:
        p = np.outer(p, p).ravel()
        q = np.outer(q, q).ravel()
    return hockey_stick(p, q, epsilon)


class SumsContract:
    """delta at the stated epsilon, where one user flips its bit in both instances."""

    alike = True
    # a law of less noise
    less: ClassVar
    x = X
    bad: ClassVar = [
        X[0],
        X.int(),
        X.double(),
        X[:, :1],
        X.repeat(2, 1),
    ]

    def user(self, law, bit):
        """Pr[(numbers of "+1" and of "-1")] that one user sends, (SIZE, SIZE)."""
        raise NotImplementedError

    def loss(self, protocol):
        epsilon = self.protocol.guarantee.epsilon
        worst = 0.0
        each = [np.fft.rfft2(self.user(protocol.law, bit)) for bit in (0, 1)]
        # among the others
        for ones in (0, N // 2, N - 1):
            others = each[1] ** ones * each[0] ** (N - 1 - ones)
            laws = [np.maximum(np.fft.irfft2(others * mine), 0) for mine in each]
            for p, q in (laws, laws[::-1]):
                worst = max(worst, composed(p, q, epsilon, protocol.instances))
        return worst

    def bound(self, protocol):
        return protocol.delta

    def released(self, row, seed, times):
        """Totals where the first user holds this bit: as many instances as releases, some at a
        time.
        """
        noise = SeededNoise(seed)
        found = []
        for start in range(0, times, AT_ONCE):
            many = dataclasses.replace(self.protocol, instances=min(AT_ONCE, times - start))
            x = self.x[:, :1].repeat(1, many.instances)
            x[0] = row[0]
            found.append(many.tally(many.randomize(x, noise=noise))["total"])
        return torch.cat(found)[:, None]

    def truth(self):
        columns = zip(*X.tolist(), strict=True)
        return torch.tensor([float(sum(column)) for column in columns]).double()

    def test_a_wrong_constant_breaks_the_guarantee(self):
        assert self.loss(dataclasses.replace(self.protocol, law=self.less)) > self.bound(
            self.protocol
        )


class TestResponse(SumsContract, Unbiased, MessageContract):
    protocol = BitSums(RandomizedResponseSum(N, 0.25), 2, DELTA)
    less = RandomizedResponseSum(N, 0.2)

    def user(self, law, bit):
        one = 1 - law.flip if bit else law.flip
        return only(np.pad([1 - one, one], (0, SIZE - 2)))


class TestPoisson(SumsContract, Unbiased, MessageContract):
    protocol = BitSums(PoissonSum(N, 20.0), 2, DELTA)
    less = PoissonSum(N, 15.0)

    def user(self, law, bit):
        noise = stats.poisson(law.mean / N)
        return shifted(only(noise.pmf(np.arange(SIZE))), bit, 0)


class TestBounded(SumsContract, Unbiased, MessageContract):
    protocol = BitSums(BoundedSum(N, 4.0), 2, DELTA)
    less = BoundedSum(N, 3.5)

    def user(self, law, bit):
        chances = np.pad(law.chances, (0, SIZE - len(law.chances)))
        return shifted(only(chances), bit, 0)


def pairs(law, flood, bit):
    """Noise of both kinds, and so many pairs that cancel."""
    noise = stats.nbinom(1 / N, 1 - law.ratio).pmf(np.arange(SIZE))
    both = np.outer(noise, noise)
    return sum(
        chance * shifted(both, bit + f, f) for f, chance in enumerate(flood) if chance > 1e-12
    )


class TestCorrelated(SumsContract, Unbiased, MessageContract):
    protocol = BitSums(CorrelatedSum(N, 0.6, 8.0, 0.6), 1, DELTA)
    less = CorrelatedSum(N, 0.6, 6.0, 0.6)
    x = X[:, :1]
    bad: ClassVar = [X, X[:, :1].int()]

    def truth(self):
        return super().truth()[:1]

    def user(self, law, bit):
        flood = stats.nbinom(law.flood_shape / N, 1 - law.flood_ratio).pmf(np.arange(SIZE))
        return pairs(law, flood, bit)


LAWS = [
    RandomizedResponseSum(5, 0.2),
    PoissonSum(5, 3.0),
    CorrelatedSum(5, 0.5, 2.0, 0.7),
]
BY_NAME = pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)


def holders(ones, instances, n=5):
    """The holders of a one move from instance to instance."""
    place = torch.arange(n)[:, None] + torch.arange(instances)
    return place % n < ones


@BY_NAME
def test_absent_users_leave_no_bias_and_are_asked_for(law):
    sums = BitSums(law, 20_000, DELTA, absent=2)
    bits = holders(2, 20_000)[:3]
    found = sums.estimate(bits, noise=SeededNoise(7))
    error = found.value - bits.sum(0)
    assert found.n == 3
    assert abs(error.mean()) < 5 * error.std() / math.sqrt(20_000)
    assert abs(float(error.var() / found.standard_error.square().mean()) - 1) < 0.1


def bag(n, instance, content):
    return ShuffledMessages(
        n,
        torch.tensor(instance, dtype=torch.int32),
        torch.tensor(content, dtype=torch.int8),
    )


def test_response_needs_one_message_of_every_user():
    sums = BitSums(RandomizedResponseSum(3, 0.25), 2, DELTA)
    full = bag(3, [0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0])
    assert sums.analyse(sums.tally(full)).value.tolist() == [2.5, -1.5]
    for instance in (
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0],
        [0, 0, 0, 0, 1, 1],
    ):
        with pytest.raises(ValueError, match="one of each of the 3 users"):
            sums.tally(bag(3, instance, [0] * len(instance)))


def test_calibrated_sums_state_their_target():
    sums = BitSums.calibrated(PoissonSum, 100, 1.0, DELTA, 3, absent=10)
    assert sums.guarantee.epsilon == 1.0
    assert sums.guarantee.delta == DELTA
    assert sums.absent == 10
    pure = BitSums.calibrated(RandomizedResponseSum, 100, 2.0, 0, 4)
    assert pure.guarantee.epsilon == pytest.approx(2.0)


@BY_NAME
def test_users_send_as_many_messages_as_predicted(law):
    sums = BitSums(law, 4000, DELTA)
    sent = sums.randomize(torch.ones(5, 4000, dtype=torch.bool), noise=SeededNoise(8))
    each = torch.bincount(sent.instance.long(), minlength=4000)
    each = each.double()
    error = each.std() / math.sqrt(4000)
    assert abs(each.mean() - 5 * law.messages_per_user) <= 5 * error
    assert (
        len(sent)
        >= len(
            sums.randomize(
                torch.zeros(5, 4000, dtype=torch.bool),
                noise=SeededNoise(8),
            )
        )
        - 800
    )
    assert set(sent.content.tolist()) <= set(law.contents)
    assert sums.messages_per_user == 4000 * law.messages_per_user
    assert sums.bits_per_message == math.ceil(math.log2(4000 * len(law.contents)))
    assert sums.bits_per_user == sums.messages_per_user * sums.bits_per_message
