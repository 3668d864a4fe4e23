"""Of what a guarantee speaks: integers, rounded numbers or real ones. docs/mechanisms.md lists it
for each protocol.
"""

import inspect

import pytest
import torch
from test_architecture import concrete

from torchdp import factorization, pairwise, queries, randomizers, workloads
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours, compose
from torchdp.protocol import Protocol

# their messages are enumerated in rational numbers: tests/randomizers/test_channel_ratios.py
INTEGER = (
    randomizers.RandomizedResponse(4, 1.0),
    randomizers.SubsetSelection(4, 1.0),
    randomizers.HadamardResponse(4, 1.0),
    randomizers.OptimizedUnaryEncoding(4, 1.0),
    randomizers.SymmetricUnaryEncoding(4, 1.0),
    randomizers.ShiftStrategy(
        torch.eye(4).bool(),
        torch.ones(4),
        4,
        1.0,
    ),
    randomizers.StrategyMatrix(torch.tensor([[0.7, 0.3], [0.3, 0.7]], dtype=torch.float64)),
    randomizers.DuchiJordanWainwright(1, 1.0),
)


def below(kind):
    return {kind}.union(*map(below, kind.__subclasses__()))


def test_no_protocol_is_sampled_message_by_message():
    """The cost of sampling would grow with the number of users."""
    own = [each for each in below(Protocol) if each.__name__ in set(concrete(Protocol))]
    assert own
    assert not [each for each in own if "from_messages" in inspect.getsource(each.sample_unchecked)]


@pytest.mark.parametrize("protocol", INTEGER, ids=lambda each: type(each).__name__)
def test_guarantee_of_integers(protocol):
    assert protocol.guarantee.arithmetic is Arithmetic.INTEGER
    assert "exactly" in str(protocol.guarantee)


def test_the_client_decides():
    oracle = randomizers.HadamardResponse(4, 1.0)
    W = workloads.prefix(4)
    statistic = pairwise.unequal(4)
    factored = queries.FactoredQueries.of(W, factorization.factorize(W))
    function = queries.LocalOracle.of(queries.Spearman(2, 2), oracle)
    integer = [
        queries.LocalOracle(W, oracle),
        function,
        queries.LocalOracle.of(statistic, oracle),
    ]
    local = queries.LocalFactorization
    rounded = [local.calibrated(factored, epsilon=1.0), local.of(statistic, 1.0)]
    for protocols, arithmetic in ((integer, Arithmetic.INTEGER), (rounded, Arithmetic.ROUNDED)):
        assert {each.guarantee.arithmetic for each in protocols} == {arithmetic}


def of(arithmetic):
    return Guarantee(
        1.0,
        0.0,
        Model.LOCAL,
        Neighbours.REPLACE_ONE,
        True,
        "a theorem",
        arithmetic,
    )


def test_together_they_speak_of_what_the_weakest_speaks_of():
    whole = of(Arithmetic.INTEGER)
    real = of(Arithmetic.REAL)
    assert compose([whole, whole]).arithmetic is Arithmetic.INTEGER
    assert compose([whole, real]).arithmetic is compose([real, whole]).arithmetic is Arithmetic.REAL
    rounded = of(Arithmetic.ROUNDED)
    assert (
        compose([whole, rounded]).arithmetic
        is compose([rounded, rounded]).arithmetic
        is Arithmetic.ROUNDED
    )
    assert compose([rounded, real, whole]).arithmetic is Arithmetic.REAL


def test_exactly_is_said_of_integers_alone():
    assert str(of(Arithmetic.INTEGER)) == "local differential privacy, exactly epsilon = 1"
    assert str(of(Arithmetic.REAL)) == "local differential privacy, epsilon = 1, over real numbers"
    assert str(of(Arithmetic.ROUNDED)) == "local differential privacy, at most epsilon = 1"
