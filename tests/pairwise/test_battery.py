"""Questions of pairs, shares and both through every channel; each truth is an average over pairs of
users.

A question is a row of QUESTIONS, a channel a row of CHANNELS: each two of them are a cell of the
grid. The whole battery runs on the cells of BATTERY, and on protocols in rounds.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from contract import (
    Contract,
    LocalContract,
    MessageContract,
    channel_of,
)
from gaussians import collected, furthest, neighbours, true_epsilon
from laws import float64, hockey_stick, sampled, z_scores
from responses import channel as messages
from responses import nested, spent_by, two_densities
from scipy import stats

from torchdp import pairwise, queries, workloads
from torchdp.pairwise import Pairs
from torchdp.pairwise.rounds.round import Round
from torchdp.protocol import Objective
from torchdp.queries import (
    CentralAnswers,
    CentralFactorization,
    CentralLaplace,
    LocalFactorization,
    LocalOracle,
    SecureQueries,
    ShuffledQueries,
)
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    SubsetSelection,
)
from torchdp.shuffle import BoundedSum, CorrelatedSum, PoissonSum

GINI = pairwise.absolute_difference(4)
# uneven shares, and every type is held
X = torch.tensor([0] * 4 + [1] * 2 + [2] * 6 + [3] * 12)
MANY = X.repeat(8)
DELTA = 1e-3
KERNEL = torch.tensor(
    [
        [1.0, 0.5, -1.0, 2.0],
        [0.5, -2.0, 1.0, 0.0],
        [-1.0, 1.0, 3.0, 1.0],
        [2.0, 0.0, 1.0, 0.5],
    ]
)


def over_pairs(f, distinct=True):
    """Mean of the matrix f of pairs of users."""
    n = len(f)
    f = f.double()
    if not distinct:
        return f.mean()
    return (f.sum() - f.diagonal().sum()) / (n * (n - 1))


def apart(x):
    return over_pairs((x[:, None] - x).abs())


def of_kernel(x, distinct=True):
    return over_pairs(KERNEL[x][:, x], distinct)


def auc(x):
    negatives = x[x < 2]
    positives = x[x >= 2] - 2
    above = (positives > negatives[:, None]).double()
    ties = (positives == negatives[:, None]).double()
    return (above + ties / 2).mean()


def shares(x):
    # of the users below each of three thresholds
    return (x <= torch.arange(3)[:, None]).double().mean(1)


def spearman(x):
    return float64(stats.spearmanr(x // 2, x % 2).statistic)


THRESHOLDS = workloads.prefix(4).dense()[:3]
LINEAR = queries.Linear(THRESHOLDS)
SEVERAL = queries.Several((GINI, LINEAR))
# what is asked, its truth
QUESTIONS = {
    "gini": (GINI, apart),
    "distinct": (pairwise.from_kernel(KERNEL), of_kernel),
    "all": (
        pairwise.from_kernel(KERNEL, pairs=Pairs.ALL),
        partial(of_kernel, distinct=False),
    ),
    "auc": (pairwise.auc(2), auc),
    "ratio": (
        pairwise.gini(4, low=1.0, high=4.0),
        lambda x: apart(x) / over_pairs(2 + x[:, None] + x),
    ),
    "spearman": (queries.Spearman(2, 2), spearman),
    "linear": (LINEAR, shares),
    "several": (
        SEVERAL,
        lambda x: torch.cat([apart(x)[None], shares(x)]),
    ),
}
# functions of means, predicted to second order: more slack
SECOND_ORDER = {"auc", "ratio", "spearman"}


def by_poisson(channel):
    """Types that differ in two sums, each Poisson or one more: the larger delta at epsilon 1."""
    # of one sum, where the user adds nothing; one more where the bit is set
    zero = stats.poisson(channel.law.mean).pmf(np.arange(150))
    one = np.roll(zero, 1)
    return hockey_stick(np.outer(one, zero).ravel(), np.outer(zero, one).ravel(), 1.0)


def local(oracle):
    return lambda question, epsilon: LocalOracle.of(question, oracle(question.types, epsilon))


def shuffled(kind):
    return lambda question, epsilon: ShuffledQueries.of(question, kind, len(MANY), epsilon, DELTA)


def from_oracle(channel):
    return spent_by(messages(channel.client))


def gaussian(channel):
    return true_epsilon(
        furthest(collected(channel), neighbours(torch.arange(4))),
        channel.delta,
    )


def discrete_laplace(channel):
    """The largest log ratio of two types' chances, of sums of whole numbers."""
    # the variance is 1/(2 sinh^2(rate/2))
    rate = 2 * math.asinh((2 * channel.noise) ** -0.5)
    rows = channel.queries.right.mT
    pairs = itertools.combinations(rows, 2)
    return rate * max(float((a - b).abs().sum()) for a, b in pairs)


def neighbouring_answers(protocol):
    """The largest log ratio of the answers' chances, over all data of three users."""
    noise = float(protocol.predicted_mse(X.bincount()).flatten()[0])
    step = float(protocol.step(len(X)).flatten()[0])
    # in steps the variance is 1/(2 sinh^2(rate/2))
    rate = 2 * math.asinh((2 * noise / step**2) ** -0.5)
    few = torch.cartesian_prod(*[torch.arange(4)] * 3)
    counts = torch.stack([row.bincount(minlength=4) for row in few])
    answers = protocol.exact(counts) / protocol.step(3)
    steps = answers.round().reshape(len(few), -1)
    moved = (steps[:, None] - steps).abs().sum(-1)
    neighbours = (few[:, None] != few).sum(-1) <= 1
    return rate * float(moved[neighbours].max())


@dataclasses.dataclass(frozen=True)
class Row:
    """A channel: made for a question at an epsilon, the law's largest loss, and what its contract
    is.
    """

    of: Callable
    loss: Callable | None
    contract: type = LocalContract
    epsilon: float = 4.0
    # so many users like MANY in the grid
    times: int = 1
    own: dict[str, Any] = dataclasses.field(default_factory=dict)


RAGGED = {"stacked": False}
SHUFFLED = {
    "alike": True,
    "bound": lambda self, protocol: protocol.guarantee.delta,
    "louder": 1.3,
}
CHANNELS = {
    "responses": Row(local(RandomizedResponse), from_oracle),
    "subsets": Row(local(SubsetSelection), from_oracle, own=RAGGED),
    "bits": Row(local(OptimizedUnaryEncoding), from_oracle),
    "hadamard": Row(local(HadamardResponse), from_oracle, times=8, own=RAGGED),
    "strategy": Row(local(nested), from_oracle, times=8),
    "vectors": Row(
        LocalFactorization.of,
        lambda channel: two_densities(channel.client),
        epsilon=8.0,
    ),
    "twice": Row(
        queries.Twice.of,
        lambda channel: 2 * two_densities(channel.randomizer),
        epsilon=16.0,
    ),
    "poisson": Row(
        shuffled(PoissonSum),
        by_poisson,
        MessageContract,
        1.0,
        own=SHUFFLED,
    ),
    "correlated": Row(shuffled(CorrelatedSum), None, MessageContract, 1.0),
    "bounded": Row(shuffled(BoundedSum), None, MessageContract, 1.0),
    "servers": Row(
        lambda question, epsilon: SecureQueries.of(question, len(MANY), epsilon, 1e-6),
        None,
        MessageContract,
        1.0,
    ),
    "gaussian": Row(
        lambda question, epsilon: CentralFactorization.of(question, epsilon, 1e-6),
        gaussian,
        Contract,
        1.0,
        own=RAGGED,
    ),
    "laplace": Row(CentralLaplace.of, discrete_laplace, Contract, 1.0, own=RAGGED),
    "answers": Row(CentralAnswers, neighbouring_answers, Contract, 1.0, own=RAGGED),
}
BATTERY = [
    ("spearman", "responses"),
    ("several", "subsets"),
    ("distinct", "bits"),
    ("gini", "hadamard"),
    ("all", "strategy"),
    ("distinct", "vectors"),
    ("all", "twice"),
    ("linear", "twice"),
    ("distinct", "poisson"),
    ("several", "gaussian"),
    ("ratio", "laplace"),
    ("several", "answers"),
    ("gini", "answers"),
]
# One user moves a ratio by an amount that hangs on the others.
CELLS = [
    each
    for each in itertools.product(QUESTIONS, CHANNELS)
    if each[1] != "answers" or QUESTIONS[each[0]][0].bounded is not None
]


@cache
def cell(question, channel, louder=1.0):
    row = CHANNELS[channel]
    return row.of(QUESTIONS[question][0], louder * row.epsilon)


@pytest.mark.filterwarnings("ignore:the denominator")  # few users of a class
@pytest.mark.parametrize(("question", "channel"), CELLS)
def test_every_question_through_every_channel(question, channel):
    """Its truth by a loop over users, no bias, the predicted error, and a bound of it."""
    protocol = cell(question, channel)
    runs = 2_000
    x = MANY.repeat(CHANNELS[channel].times)
    counts = protocol.summary(protocol.validate(x))
    truth = QUESTIONS[question][1](x)
    torch.testing.assert_close(protocol.exact(counts), truth, rtol=1e-6, atol=1e-9)
    found = protocol.sample_estimate(counts, **sampled(runs, 1))
    slack = 0.15 if question in SECOND_ORDER else 0.01
    predicted = protocol.predicted_mse(counts)
    error = found.value - truth
    bias = z_scores(error, torch.zeros(()))
    assert bool((bias.abs() < 5 + slack * math.sqrt(runs)).all()), bias
    squares = error.square()
    noise = z_scores(squares, predicted)
    allowed = 5 + slack * predicted / (squares.std(0) / math.sqrt(runs))
    assert bool((noise.abs() < allowed).all()), noise
    stated = found.standard_error.square().mean(0)
    ratio = stated / squares.mean(0)
    assert bool(((0.7 < ratio) & (ratio < 1.4)).all()), ratio
    worst = protocol.worst_mse(len(x))
    assert float(Objective.WORST.of(predicted)) <= float(worst) * (1 + 1e-9)
    assert protocol.guarantee.epsilon <= CHANNELS[channel].epsilon * (1 + 1e-9)


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_constant_kernel_gets_a_sentence(channel):
    points = torch.zeros(4, 2, dtype=torch.float64)
    one = torch.ones(2, dtype=torch.float64)
    constant = pairwise.PairwiseStatistic("always 3", points, pairwise.Form(one, 3.0))
    with pytest.raises(
        ValueError,
        match="'always 3' is constant: its mean is 3 whatever users hold",
    ):
        CHANNELS[channel].of(constant, 1.0)


class Pairwise:
    x = X
    bad: ClassVar = [
        torch.tensor([4]),
        torch.tensor([-1]),
        torch.tensor([0.5]),
        X[None],
    ]

    def truth(self):
        return apart(self.x)


class Cell(Pairwise):
    x = MANY
    # times epsilon: what breaks the guarantee
    louder = 1.1
    bad: ClassVar = [*Pairwise.bad[:3], MANY[None]]

    def truth(self):
        return QUESTIONS[self.question][1](self.x)

    def loss(self, protocol):
        return CHANNELS[self.channel].loss(channel_of(protocol))

    def test_a_wrong_constant_breaks_the_guarantee(self):
        assert self.loss(cell(self.question, self.channel, self.louder)) > self.bound(
            self.protocol
        ) * (1 + 1e-9)


def battery(question, channel):
    """The battery's class of a cell."""
    row = CHANNELS[channel]
    own = {
        "question": question,
        "channel": channel,
        "protocol": cell(question, channel),
        **row.own,
    }
    own["slack"] = 0.15 if question in SECOND_ORDER else 0.01
    return type(
        f"Test{question.title()}{channel.title()}",
        (Cell, row.contract),
        own,
    )


for each in BATTERY:
    kind = battery(*each)
    globals()[kind.__name__] = kind
del kind


def scalar(response):
    if isinstance(response, PrivUnit):
        return two_densities(response)
    return math.log1p(response.bias) - math.log1p(-response.bias)


class Rounds(Pairwise):
    def bound(self, protocol):
        return protocol.epsilon


class TestTwoRound(Rounds, Contract):
    protocol = pairwise.TwoRound(GINI, 8.0, 4.0, 0.8)
    # from 256 draws
    slack = 0.03

    def loss(self, protocol):
        first = protocol.round(())
        second = protocol.round((first.collect(X),))
        return sum(two_densities(each) for each in first.randomizers) + sum(
            map(scalar, second.responses)
        )


class TestThreeRound(Rounds, Contract):
    protocol = pairwise.ThreeRound(GINI, 12.0, (3.0, 4.0, 3.0, 2.0))
    slack = 0.06
    repeats = 2000
    runs = 100
    honest = (0.7, 1.8)

    def loss(self, protocol):
        heard = ()
        total = 0.0
        for _ in range(protocol.rounds):
            one = protocol.round(heard)
            total += sum(two_densities(each) for each in one.randomizers) + sum(
                map(scalar, one.responses)
            )
            heard = (*heard, one.collect(X))
        return total

    def test_a_wrong_constant_breaks_the_guarantee(self):
        with pytest.raises(ValueError, match="budgets must add up to at most epsilon"):
            dataclasses.replace(self.protocol, epsilon=11.9)


class TestProjectedTwoRound(TestThreeRound):
    protocol = pairwise.ProjectedTwoRound(GINI, 12.0, (3.0, 5.0, 4.0))


class TestRound(Pairwise, LocalContract):
    """Two vectors and two answers, one of a question that clips, one of each response."""

    narrow = pairwise.rounds.round.ask(GINI.points, GINI.points[1], 0.5)
    wide = pairwise.rounds.round.ask(GINI.points, GINI.points[1] * 3, 1.5)
    protocol = Round(GINI.points, (3.0, 2.0), (narrow, wide), (1.0, 3.0))

    def loss(self, protocol):
        return sum(two_densities(each) for each in protocol.randomizers) + sum(
            map(scalar, protocol.responses)
        )

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
            low = question.center - question.half_width
            high = question.center + question.half_width
            answers.append(values.clamp(low, high).mean())
        return torch.cat([mean, mean, torch.stack(answers)])
