"""Every protocol of the room: tallies that no users can have sent, kernels that are constant; bad statistics."""

import dataclasses

import pytest
import torch
from contract import never_sent

import torchdp.pairwise as pairwise
from pairwise.common import responses
from torchdp.noise import SeededNoise
from torchdp.pairwise import Form, Pairs, PairwiseStatistic
from torchdp.protocol import Tally
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SymmetricUnaryEncoding
from torchdp.randomizers.alphabet.strategy import StrategyMatrix
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.absolute_difference(4)
TYPES, N = torch.tensor([0, 1, 3, 3, 2, 0, 1, 1, 3]), 9


def strategy():
    m = RandomizedResponse(4, 1.0)
    return StrategyMatrix(torch.full((4, 4), m.q).double() + (m.p - m.q) * torch.eye(4).double())


MADE = {
    "TwoMessage": lambda: pairwise.TwoMessage(STATISTIC, 1.0),
    "OneMessage": lambda: pairwise.OneMessage(STATISTIC, 1.0),
    "subsets": lambda: pairwise.PairReports(STATISTIC, 1.0),
    "subsets OUE": lambda: pairwise.PairReports(STATISTIC, 1.0, OptimizedUnaryEncoding),
    "subsets SUE": lambda: pairwise.PairReports(STATISTIC, 1.0, SymmetricUnaryEncoding),
    "strategy": lambda: pairwise.PairReports(STATISTIC, 1.1, strategy()),
    "responses": lambda: responses(STATISTIC, 1.0),
    "TwoRound": lambda: pairwise.TwoRound(STATISTIC, 1.0, 0.5),
    "TwoRound large": lambda: pairwise.TwoRound(STATISTIC, 9.0, 4.0),
    "ThreeRound": lambda: pairwise.ThreeRound.paper(STATISTIC, 4.0),
    "ProjectedTwoRound": lambda: pairwise.ProjectedTwoRound(STATISTIC, 3.0, (1.0, 1.0, 1.0)),
    "ShuffledForm": lambda: pairwise.ShuffledForm.calibrated(STATISTIC, N, 1.0, 1e-3),
}
every = pytest.mark.parametrize("name", MADE)
PROTOCOLS = {}


def made(name):
    return PROTOCOLS.setdefault(name, MADE[name]())


@every
def test_tallies_that_no_users_can_have_sent(name):
    protocol = made(name)
    tally = protocol.collect(TYPES, noise=SeededNoise(1))
    for wrong in never_sent(protocol.check(tally)):
        with pytest.raises(ValueError, match=r"can have sent|must be|NaN"):
            protocol.analyse(wrong)
        if hasattr(protocol, "round") and wrong.n and not torch.equal(wrong["0.vector0"], tally["0.vector0"]):
            with pytest.raises(ValueError, match=r"can have sent|must be|NaN"):
                protocol.round(protocol.split(wrong)[:1])
    for part, each in tally.parts.items():
        if len(tally.parts) > 1:
            with pytest.raises(ValueError, match="same leading dimensions"):
                protocol.analyse(Tally(N, {**tally.parts, part: each[None]}))


@every
def test_a_constant_kernel_gets_a_sentence(name):
    made(name)  # a negative control: the same class takes a kernel that varies
    kind = type(made(name))
    constant = PairwiseStatistic("always 3", torch.zeros(4, 2).double(), Form(torch.ones(2).double(), 3.0))
    fields = {each.name: getattr(made(name), each.name) for each in dataclasses.fields(kind) if each.init}
    with pytest.raises(ValueError, match="'always 3' is constant: its mean is 3 whatever users hold"):
        kind(**{**fields, "statistic": constant})


@pytest.mark.parametrize("pairs", Pairs)
@every
def test_what_no_analyst_answers_is_refused_before_anybody_is_asked(name, pairs):
    """f(x, x) depends on x: the mean over one kind of pairs does not give that over the other."""
    kind = type(made(name))
    uneven = pairwise.from_kernel(torch.arange(1.0, 5.0).diag(), pairs=pairs)
    fields = {each.name: getattr(made(name), each.name) for each in dataclasses.fields(kind) if each.init}
    fields["statistic"] = uneven
    if "noise" in fields:
        fields["noise"] = 1e5  # its sums are certified by noise that is chosen for the statistic
    if pairs is kind.estimated_pairs:
        assert kind(**fields).estimate(TYPES, noise=SeededNoise(1)).value.isfinite()
        return
    with pytest.raises(ValueError, match="depends on x"):
        kind(**fields)


def test_errors_show_no_data():
    secret, protocol = 987654, made("OneMessage")
    for use in (
        lambda: protocol.estimate(torch.tensor([1, secret])),
        lambda: protocol.sample_estimate(torch.tensor([secret, -secret, 0, 0]), generator=keyed_generator(b"bad")),
        lambda: protocol.predicted_mse(torch.tensor([secret, -1.0, 0, 0])),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(secret) not in str(caught.value)
