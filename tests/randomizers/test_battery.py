"""Every randomizer in the battery: types are counted, points of a ball averaged."""

import math
from typing import ClassVar

import pytest
import torch
from contract import LocalContract, Unbiased
from laws import float64, generator, uniform
from responses import (
    channel,
    hockey_stick,
    signs,
    spent_by,
    two_densities,
)

from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd, Tally
from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet import bit_vectors, frequency
from torchdp.randomizers.ball.sphere import CapLaw

KINDS = [
    RandomizedResponse,
    OptimizedUnaryEncoding,
    SymmetricUnaryEncoding,
    SubsetSelection,
    HadamardResponse,
]
COUNTS = torch.tensor([10**13 + 1, 3, 123_456_789])
POINTS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.3, -0.4]])

DRAWS = {
    "cap": lambda g: CapLaw(3, 1.0).draw((50,), Simulated(g))[0],
    "privunit float32": lambda g: PrivUnit(2, 4.0).randomize_unchecked(POINTS, SeededNoise.of(g)),
    # a tally of 10^13 users, where eight digits would lose the law
    "privunit sum": lambda g: PrivUnit(2, 0.5).sample_tally(
        Crowd(POINTS, COUNTS), generator=g, sample_shape=(5,)
    )["sum"],
    "response": lambda g: RandomizedResponse(5, 1.0).randomize_unchecked(
        torch.arange(5), SeededNoise.of(g)
    ),
    "response reports": lambda g: RandomizedResponse(3, 1.0).sample_tally(
        COUNTS, generator=g, sample_shape=(5,)
    )["reports"],
}


class UnbiasedContract(Unbiased, LocalContract):
    def test_messages_are_unbiased(self, slow):
        total = {name: part.sum(0) for name, part in slow.items()}
        together = self.protocol.analyse(Tally(self.runs * len(self.x), total))
        z = (together.value - self.truth()) / together.standard_error
        assert float(z.abs().max()) < 5


class OracleContract(UnbiasedContract):
    """Users of five types; nobody holds the last."""

    x = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3]).repeat(3)
    bad: ClassVar = [
        torch.tensor([5]),
        torch.tensor([-1]),
        torch.tensor([0.5]),
        x[None],
        torch.tensor(1),
    ]
    repeats = 4000

    def loss(self, protocol):
        return spent_by(channel(protocol))

    def truth(self):
        held = self.x.tolist()
        return float64([held.count(t) / len(held) for t in range(5)])


class TestRandomizedResponse(OracleContract):
    protocol = RandomizedResponse(5, 1.0)


class TestHadamardResponse(OracleContract):
    protocol = HadamardResponse(5, 1.0)


class TestSubsetSelection(OracleContract):
    stacked = False
    protocol = SubsetSelection(5, 0.5)


class TestOptimizedUnaryEncoding(OracleContract):
    protocol = OptimizedUnaryEncoding(5, 1.0)


class TestSymmetricUnaryEncoding(OracleContract):
    protocol = SymmetricUnaryEncoding(5, 1.0)


def uneven(power):
    rows = uniform(7, 5, seed=3).add(0.3) ** power
    return rows / rows.sum(0)


class TestStrategyMatrix(OracleContract):
    protocol = StrategyMatrix(uneven(2.0))
    honest = (0.7, 1.5)

    def test_a_wrong_constant_breaks_the_guarantee(self):
        assert self.loss(StrategyMatrix(uneven(2.2))) > self.protocol.guarantee.epsilon * (1 + 1e-9)


class TestShiftStrategy(OracleContract):
    protocol = ShiftStrategy(
        torch.tensor([[1, 1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0, 0]]).bool(),
        torch.tensor([2.0, 1.0]),
        5,
        1.0,
    )


# of sides 3 and 4, five types of 2 x 3
class TestShiftsOnATorus(OracleContract):
    protocol = ShiftStrategy(
        torch.arange(24).view(2, 12) % 7 < torch.tensor([[2], [4]]),
        shares=torch.tensor([2.0, 1.0]),
        k=5,
        epsilon=1.0,
        place=torch.tensor([0, 9, 6, 4, 1]),
    )


def unfit(x):
    return [
        2 * x,
        x[:, :-1],
        x[0],
        x * math.nan,
        x.half(),
        x.to(torch.complex64),
    ]


class BallContract(UnbiasedContract):
    """Users at the centre, inside and on the sphere of radius 2."""

    x = float64(
        [
            [0.0, 0.0, 0.0],
            [0.4, -0.8, 0.2],
            [1.2, 0.0, 1.6],
            [0.0, 2.0, 0.0],
        ]
    ).repeat(6, 1)
    bad: ClassVar = unfit(x)
    repeats = 4000

    def truth(self):
        held = self.x.mT.tolist()
        return float64([sum(column) / len(column) for column in held])


class TestPrivUnit(BallContract):
    stacked = False
    protocol = PrivUnit(3, 6.0, 2.0)
    loss = staticmethod(two_densities)

    def test_a_message_of_no_user_is_refused(self):
        tally = self.protocol.collect(self.x[:1], noise=SeededNoise(1))
        with pytest.raises(ValueError, match="sum must"):
            self.protocol.add(Tally(0, tally.parts))


class TestDuchiJordanWainwright(BallContract):
    stacked = False
    protocol = DuchiJordanWainwright(1, 1.0, 2.0)
    x = float64([[0.0], [0.4], [-1.6], [2.0]]).repeat(6, 1)
    bad: ClassVar = unfit(x)
    loss = staticmethod(signs)


class TestGaussianVector(BallContract):
    protocol = GaussianVector(3, 6.0, 2.0, delta=1e-6)
    weaker: ClassVar = {"delta": 1.1}
    loss = staticmethod(hockey_stick)

    def bound(self, protocol):
        # sigma is known to 1e-8
        return protocol.guarantee.delta * (1 + 1e-7)


def test_messages_of_many_types_travel():
    """More than a word each."""
    for oracle in (
        SymmetricUnaryEncoding(200, 1.0),
        SubsetSelection(200, 3.5),
    ):
        sent = oracle.randomize(torch.arange(50))
        data = oracle.encode(sent)
        assert torch.equal(oracle.decode(data), sent)
        assert len(data) == 50 * math.ceil(oracle.bits_per_user / 8)


@pytest.mark.parametrize(
    "oracle",
    [
        RandomizedResponse(5, 40.0),
        SubsetSelection(5, 40.0),
        SymmetricUnaryEncoding(5, 80.0),
    ],
)
def test_no_user_is_lost_between_parts(oracle, monkeypatch):
    """Where hardly any noise is left, users heard eight at a time are all there."""
    for module in (frequency, bit_vectors):
        monkeypatch.setattr(module, "WORDS_AT_ONCE", 8)
    x = torch.arange(203) ** 2 % 5
    shares = torch.bincount(x, minlength=5).double() / 203
    torch.testing.assert_close(oracle.estimate(x).value, shares, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "oracle",
    [
        OptimizedUnaryEncoding(3, 1.0),
        SymmetricUnaryEncoding(3, 1.0),
    ],
)
def test_one_user_without_a_bit_has_a_standard_error(oracle):
    silent = torch.zeros(3, dtype=torch.int64)
    found = oracle.analyse(Tally(1, {"reports": silent}))
    flat = oracle.predicted_mse(torch.ones(3) / 3).sqrt()
    torch.testing.assert_close(found.standard_error, flat, rtol=0.1, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e-6, 700.0])
def test_extreme_budgets_give_finite_variances(kind, epsilon):
    oracle = kind(5, epsilon)
    variance = oracle.workload_variance(torch.eye(5))
    assert torch.isfinite(variance).all()
    assert (variance >= 0).all()
    assert (
        oracle.sample_estimate(torch.full((5,), 10), generator=generator(3)).value.isfinite().all()
    )


def test_messages_of_the_errors_hold_no_data():
    secret = 1.23456789
    with pytest.raises(ValueError) as error:
        PrivUnit(3, 1.0, 2.0).randomize(torch.full((1, 3), secret * 2))
    assert "1.2345" not in str(error.value)
    assert "2.469" not in str(error.value)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_the_default_dtype_does_not_matter(draw):
    """An integer tensor times a number, or its root, is float32 by default: 8 digits, and the law
    is lost.
    """
    first = draw(generator())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(first, draw(generator()))
    finally:
        torch.set_default_dtype(torch.float32)
    # what this test is here to catch
    assert (torch.tensor([10**13 + 1]) * 0.1).dtype == torch.float32
