"""Standard errors of what is said of one frequent type among many: those that are predicted,
whatever the protocol.
"""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from contract import channel_of, entries
from laws import coverage, generator
from responses import nested

from torchdp import pairwise, queries, randomizers
from torchdp.pairwise import Pairs
from torchdp.queries import LocalOracle
from torchdp.randomizers import (
    RandomizedResponse,
    ShiftStrategy,
    SubsetSelection,
)
from torchdp.randomizers.alphabet.frequency import (
    TypeVariance,
    VarianceMatrix,
)
from torchdp.shuffle import Amplified, PoissonSum

K = 64
SHARE = 0.3
EPSILON = 2.0
DELTA = 1e-3
# by randomized response the noise of a share is a third of that of the frequent type
USERS = 500
NEAR = (0.8, 1.25)
FIRST = torch.eye(K, dtype=torch.float64)[:1]


def crowd(n=USERS, k=K):
    """Counts of n users, a share of them of type 0, the others spread evenly."""
    counts = torch.full((k,), int(n * (1 - SHARE) / (k - 1)), dtype=torch.int64)
    counts[0] = round(n * SHARE)
    # what rounding left
    counts[1] += n - counts.sum()
    return counts


@dataclass(frozen=True)
class FirstShare(queries.ShareFunction):
    """h_0^2: not linear."""

    types = K

    def __call__(self, h):
        return h[0].square()


STATISTIC = pairwise.unequal(K)
EVERY = pairwise.PairwiseStatistic(
    "all",
    STATISTIC.points,
    STATISTIC.form,
    pairs=Pairs.ALL,
)
FACTORS = queries.FactoredQueries.plain(FIRST)
MADE = {
    "randomized response": lambda: RandomizedResponse(K, EPSILON),
    "Hadamard response": lambda: randomizers.HadamardResponse(K, EPSILON),
    "subsets": lambda: SubsetSelection(K, EPSILON),
    "OUE": lambda: randomizers.OptimizedUnaryEncoding(K, EPSILON),
    "SUE": lambda: randomizers.SymmetricUnaryEncoding(K, EPSILON),
    "a strategy": lambda: nested(K, EPSILON),
    "shifts": lambda: ShiftStrategy.square_wave(16, EPSILON),
    "amplified": lambda: Amplified(RandomizedResponse(K, EPSILON), USERS, DELTA),
    "queries": lambda: LocalOracle(FIRST, RandomizedResponse(K, EPSILON)),
    "adaptive queries": lambda: LocalOracle(FIRST, nested(K, EPSILON), adapted=True),
    "a function": lambda: LocalOracle.of(FirstShare(), RandomizedResponse(K, EPSILON)),
    "factors": lambda: queries.LocalFactorization.calibrated(FACTORS, epsilon=EPSILON),
    "central factors": lambda: queries.CentralFactorization(FACTORS, EPSILON, DELTA),
    "central Laplace": lambda: queries.CentralLaplace(
        queries.FactoredQueries.spanned(FIRST, FIRST), EPSILON
    ),
    "answers": lambda: queries.CentralAnswers(STATISTIC, EPSILON),
    "secure sums": lambda: queries.SecureQueries(FACTORS, USERS, EPSILON, DELTA),
    "shuffled bits": lambda: queries.ShuffledQueries.calibrated(
        FIRST, PoissonSum, USERS, EPSILON, DELTA
    ),
    "one message": lambda: queries.LocalFactorization.of(EVERY, EPSILON),
    "two messages": lambda: queries.Twice.of(EVERY, EPSILON),
    "pairs of responses": lambda: LocalOracle.of(STATISTIC, RandomizedResponse(K, EPSILON)),
    "pairs of subsets": lambda: LocalOracle.of(STATISTIC, SubsetSelection(K, EPSILON)),
    "pairs of a strategy": lambda: LocalOracle.of(STATISTIC, nested(K, EPSILON)),
    "two rounds": lambda: pairwise.TwoRound(EVERY, EPSILON, EPSILON / 2),
    "two rounds, projected": lambda: pairwise.ProjectedTwoRound(EVERY, 3.0, (1.0, 1.0, 1.0)),
    "three rounds": lambda: pairwise.ThreeRound(EVERY, 4.0, (1.0, 1.0, 1.0, 1.0)),
    "shuffled pairs": lambda: queries.ShuffledQueries.of(
        STATISTIC, PoissonSum, USERS, EPSILON, DELTA
    ),
}
made = cache(lambda name: MADE[name]())


def ratio(protocol, summary, times=200):
    """Mean squared standard error of what is said of the first type over the squared error that is
    predicted.
    """
    found = protocol.sample_estimate(
        summary,
        generator=generator(),
        sample_shape=(times,),
    )
    squares = found.standard_error.square()
    squares = squares.reshape(times, -1)[:, 0]
    predicted = protocol.predicted_mse(summary).flatten()
    return float(squares.mean() / predicted[0])


@pytest.mark.parametrize("name", MADE)
def test_of_one_frequent_type_of_many(name):
    protocol = made(name)
    summary = crowd(k=getattr(protocol, "k", K))
    if name == "adaptive queries":
        # its decoder follows the reports of few users
        summary = 16 * summary
    assert NEAR[0] < ratio(protocol, summary) < NEAR[1]


def test_every_protocol_that_answers_about_types_is_here():
    """But a fit, whose standard error is that of the unbiased answers, and one round of several."""
    kinds = {type(channel_of(made(name))) for name in MADE} | {
        queries.FittedOracle,
        pairwise.rounds.Round,
    }
    battery = entries("queries", "randomizers", "pairwise", "shuffle").values()
    asked = [each.protocol for each in battery if isinstance(each.protocol.held, int)]
    missing = {type(channel_of(protocol)) for protocol in asked} - kinds
    assert not missing


def cut_off(shares):
    """The rule that shrinks a frequent type: cut off at 0, and scaled to the sum 1."""
    positive = shares.clamp_min(0)
    return positive / positive.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "name",
    ["randomized response", "queries", "amplified", "a function"],
)
def test_a_histogram_that_is_cut_off_is_seen(name, monkeypatch):
    plug_in = TypeVariance.plug_in

    def at_half(self, shares):
        """As if a type were half as frequent as it is said to be."""
        first = shares[..., :1] if isinstance(self, VarianceMatrix) else shares
        return plug_in(self, shares) - self.slope * first / 2

    monkeypatch.setattr(TypeVariance, "plug_in", at_half)
    monkeypatch.setattr("torchdp.queries.function.onto_simplex", cut_off)
    assert ratio(made(name), crowd()) < NEAR[0]


CELLS = {  # types, epsilon, users, share
    "1024 types": (1024, 4.0, 10_000, 0.28),
    "256 types": (256, 2.0, 10_000, 0.52),
    "half of few": (64, 2.0, 1_000, 0.5),
}


@pytest.mark.parametrize("cell", CELLS)
def test_intervals_of_a_frequent_type_cover(cell):
    k, epsilon, users, share = CELLS[cell]
    counts = torch.full((k,), int(users * (1 - share) / (k - 1)), dtype=torch.int64)
    counts[0] = 0
    counts[0] = users - counts.sum()
    protocol = LocalOracle(
        torch.eye(k, dtype=torch.float64)[:1],
        RandomizedResponse(k, epsilon),
    )
    low, high = protocol.sample_estimate(
        counts, generator=generator(), sample_shape=(2_000,)
    ).interval()
    truth = protocol.exact(counts)
    covered = coverage((low, high), truth)
    assert 0.93 - 3 * math.sqrt(0.93 * 0.07 / 2_000) < covered < 0.97
