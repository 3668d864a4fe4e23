"""Statistics of pairs of rows as they are, by a curator's noise on the answer."""

import itertools
import math
from typing import ClassVar

import pytest
import torch
from contract import Contract
from laws import float64
from scipy import stats

from torchdp.pairwise import RowDifference, RowKendall
from torchdp.protocol import Crowd
from torchdp.queries import CentralAnswers
from torchdp.queries.answers import SPARE, STEPS

GENERATOR = torch.Generator().manual_seed(0)
PAIRS = torch.randint(6, (40, 2), generator=GENERATOR).double()
NUMBERS = torch.rand(40, 1, generator=GENERATOR, dtype=torch.float64) * 3 - 1


def over_pairs(kernel, rows):
    """The mean of kernel(x, y) over pairs of different users."""
    values = [float(kernel(x, y)) for x, y in itertools.permutations(rows, 2)]
    return math.fsum(values) / len(values)


def agree(x, y):
    return (x - y).sign().prod()


def apart(x, y):
    return (x - y).abs().sum()


def rate_of(protocol, x):
    """From the predicted error: the variance in steps is 1/(2 sinh^2(rate/2))."""
    noise = float(protocol.predicted_mse(Crowd.of(x)))
    return 2 * math.asinh((2 * noise / float(protocol.step(len(x))) ** 2) ** -0.5)


class Rows(Contract):
    stacked = False

    def truth(self):
        return float64(over_pairs(self.kernel, self.x))

    def loss(self, protocol):
        """Over all data of three users, each of whom holds one of a few rows."""
        answers = {}
        for users in itertools.product(range(len(self.places)), repeat=3):
            exact = protocol.exact(Crowd.of(self.places[list(users)]))
            answers[users] = round(float(exact / protocol.step(3)))
        moved = 0
        for users, answer in answers.items():
            for other in range(len(self.places)):
                moved = max(moved, abs(answer - answers[other, *users[1:]]))
        # Tight but for what rounding may add.
        assert moved > STEPS * (1 - SPARE / STEPS)
        return rate_of(protocol, self.x) * moved


class TestRowKendall(Rows):
    protocol = CentralAnswers(RowKendall(), 1.0)
    x = PAIRS
    places = float64([[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]])
    bad: ClassVar = [PAIRS[:, :1], PAIRS / 0]

    @staticmethod
    def kernel(x, y):
        return agree(x, y)


class TestRowDifference(Rows):
    protocol = CentralAnswers(RowDifference(-1.0, 2.0), 1.0)
    x = NUMBERS
    places = float64([[-1.0], [0.3], [2.0]])
    bad: ClassVar = [NUMBERS + 9, NUMBERS * math.nan]

    @staticmethod
    def kernel(x, y):
        return apart(x, y)


@pytest.mark.parametrize("values", [2, 5, 1_000])
@pytest.mark.parametrize("n", [2, 3, 17])
def test_rows_that_several_users_hold_count_so_often(values, n):
    generator = torch.Generator().manual_seed(values + n)
    rows = torch.randint(values, (n, 2), generator=generator).double()
    counts = torch.randint(4, (n,), generator=generator)
    counts[:2] += 1
    users = rows.repeat_interleave(counts, 0)
    tau = CentralAnswers(RowKendall(), 1.0).exact(Crowd(rows, counts))
    assert float(tau) == pytest.approx(over_pairs(agree, users), abs=1e-12)
    difference = CentralAnswers(RowDifference(0.0, values), 1.0)
    found = difference.exact(Crowd(rows[:, :1], counts))
    assert float(found) == pytest.approx(over_pairs(apart, users[:, :1]), abs=values * 1e-11)


def test_a_million_users_have_the_value_of_others_code():
    x = torch.randn(200_000, 2, generator=GENERATOR, dtype=torch.float64)
    x[:, 1] += x[:, 0] / 2
    found = CentralAnswers(RowKendall(), 500.0).estimate(x)
    # without ties tau-b is tau-a
    expected = stats.kendalltau(*x.mT.numpy()).statistic
    assert float(found.value) == pytest.approx(expected, abs=8 * float(found.standard_error))


def test_counts_of_users_beyond_whole_numbers_are_refused():
    protocol = CentralAnswers(RowKendall(), 1.0)
    crowd = Crowd(PAIRS[:2], torch.tensor([2**31, 5]))
    with pytest.raises(ValueError, match="fewer users"):
        protocol.sample_estimate(crowd, generator=GENERATOR)
    with pytest.raises(ValueError, match="of 2 users at least"):
        protocol.estimate(PAIRS[:1])
    with pytest.raises(ValueError, match="low must be below high"):
        RowDifference(1.0, 1.0)
