"""Every protocol of the package: what it refuses, and that its noise and its simulations are of two types."""

import inspect
import math

import pytest
import torch

import torchdp.pairwise as pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import AggregateProtocol, Form, Pairs, PairwiseProtocol, PairwiseStatistic
from torchdp.randomizers import OptimizedUnaryEncoding, PrivUnit, RandomizedResponse, SymmetricUnaryEncoding
from torchdp.randomizers.alphabet.strategy import StrategyMatrix
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.absolute_difference(4)
TYPES, COUNTS, N = torch.tensor([0, 1, 3, 3, 2, 0, 1, 1, 3]), torch.tensor([2, 3, 1, 3]), 9


def strategy():
    m = RandomizedResponse(4, 1.0).moments
    return StrategyMatrix(torch.full((4, 4), m.q).double() + (m.p - m.q) * torch.eye(4).double())


MADE = {
    "TwoMessage": lambda: pairwise.TwoMessage(STATISTIC, 1.0),
    "OneMessage": lambda: pairwise.OneMessage(STATISTIC, 1.0),
    "OneMessage PrivUnit": lambda: pairwise.OneMessage(STATISTIC, 1.0, PrivUnit),
    "OneMessagePairs": lambda: pairwise.OneMessagePairs(STATISTIC, 1.0),
    "SubsetPairs": lambda: pairwise.SubsetPairs(STATISTIC, 1.0),
    "SubsetPairs OUE": lambda: pairwise.SubsetPairs(STATISTIC, 1.0, OptimizedUnaryEncoding),
    "SubsetPairs SUE": lambda: pairwise.SubsetPairs(STATISTIC, 1.0, SymmetricUnaryEncoding),
    "StrategyReports": lambda: pairwise.StrategyReports(STATISTIC, 1.1, strategy()),
    "RandomizedResponsePlugIn": lambda: pairwise.RandomizedResponsePlugIn(STATISTIC, 1.0),
    "TwoRound": lambda: pairwise.TwoRound(STATISTIC, 1.0, 0.5),
    "TwoRound large": lambda: pairwise.TwoRound(STATISTIC, 9.0, 4.0),
    "ThreeRound": lambda: pairwise.ThreeRound.paper(STATISTIC, 4.0),
    "ProjectedTwoRound": lambda: pairwise.ProjectedTwoRound(STATISTIC, 3.0, (1.0, 1.0, 1.0)),
    "ShuffledForm": lambda: pairwise.shuffled_form(STATISTIC, N, 1.0, 1e-3),
}
every = pytest.mark.parametrize("name", MADE)
PROTOCOLS = {}


def made(name):
    return PROTOCOLS.setdefault(name, MADE[name]())


def finals(kind):
    below = kind.__subclasses__()
    own = set() if inspect.isabstract(kind) else {kind.__name__}
    return own.union(*map(finals, below))


def test_no_protocol_is_left_out():
    here = {name for name in finals(PairwiseProtocol) if getattr(pairwise, name, None) is not None}
    assert here == {name.split()[0] for name in MADE}


@every
@pytest.mark.parametrize(
    ("types", "error", "words"),
    [
        (torch.tensor([0, -1, 2]), ValueError, r"types must lie in \[0, 4\)"),
        (torch.tensor([0, 4, 2]), ValueError, r"types must lie in \[0, 4\)"),
        (torch.zeros(0, dtype=torch.int64), ValueError, "n >= 1"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, r"types must have shape \(n,\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "types must"),
        ([0, 1], TypeError, "types must"),
    ],
    ids=str,
)
def test_types(name, types, error, words):
    with pytest.raises(error, match=words):
        made(name).collect(types, noise=SeededNoise(1))


@every
def test_users_take_noise_and_simulations_a_generator(name):
    protocol, generator = made(name), keyed_generator(b"every")
    for verb in (protocol.collect, protocol.estimate):
        with pytest.raises(TypeError, match="noise must be None"):
            verb(TYPES, noise=generator)
        with pytest.raises(TypeError, match="unexpected keyword argument 'generator'"):
            verb(TYPES, generator=generator)
    one, two = (protocol.collect(TYPES, noise=SeededNoise(3)) for _ in range(2))
    assert all(map(torch.equal, one, two))
    assert not all(map(torch.equal, protocol.collect(TYPES), one))  # the system's own
    if isinstance(protocol, AggregateProtocol):
        for wrong in (SeededNoise(1), None, 0):
            with pytest.raises(TypeError, match="generator must be a"):
                protocol.collect_histogram(COUNTS, generator=wrong)


@every
def test_layout_is_what_arrives(name):
    protocol = made(name)
    sums = protocol.collect(TYPES, noise=SeededNoise(1))
    assert [(each.shape, each.dtype) for each in sums] == [(each.shape, each.dtype) for each in protocol.layout]
    if isinstance(protocol, AggregateProtocol):
        drawn = protocol.collect_histogram(COUNTS, generator=keyed_generator(b"every"), sample_shape=(200, 2))
        for each, own in zip(drawn, protocol.layout, strict=True):
            assert each.shape == (200, 2, *own.shape) and each.dtype == own.dtype
        protocol.check_sums(drawn, N)


@every
@pytest.mark.parametrize("n", [-1, 0, 1, 2.5, True, None, 10**30])
def test_number_of_users(name, n):
    sums = made(name).collect(TYPES, noise=SeededNoise(1))
    with pytest.raises(ValueError, match="n must be an integer"):
        made(name).analyse(sums, n)


@every
def test_sums_of_another_form(name):
    protocol = made(name)
    sums = protocol.collect(TYPES, noise=SeededNoise(1))
    for wrong in (sums[:-1], (*sums, sums[0]), sums[0], None, 3.0):
        with pytest.raises(ValueError, match=f"sums must be {len(sums)} tensors"):
            protocol.analyse(wrong, N)
    for index, each in enumerate(sums):
        bad = [torch.zeros(*each.shape, 7).to(each), torch.full_like(each, 1).double() * math.nan, each.tolist()]
        for value in bad + ([each.double()] if not each.is_floating_point() else []):
            given = (*sums[:index], value, *sums[index + 1 :])
            with pytest.raises((ValueError, TypeError), match=rf"sums(\[{index}\]| must have the same leading)"):
                protocol.analyse(given, N)
    if len(sums) > 1:
        with pytest.raises(ValueError, match="same leading dimensions"):
            protocol.analyse((sums[0][None], *sums[1:]), N)


@every
def test_sums_that_no_users_can_have_sent(name):
    protocol = made(name)
    sums = protocol.collect(TYPES, noise=SeededNoise(1))
    protocol.analyse(sums, N)
    for index, each in enumerate(sums):
        for wrong in (each + 10**12, each - 10**12):
            given = (*sums[:index], wrong, *sums[index + 1 :])
            with pytest.raises(ValueError, match="can have sent"):
                protocol.analyse(given, N)
            with pytest.raises(ValueError, match="can have sent"):  # in a batch too
                protocol.analyse(tuple(torch.stack([a, b]) for a, b in zip(sums, given, strict=True)), N)
    if not sums[0].is_floating_point():
        with pytest.raises(ValueError, match="can have sent"):
            protocol.analyse(sums, N + 1)


@pytest.mark.parametrize("name", ["OneMessagePairs", "SubsetPairs"])
def test_squares_hold_the_square_of_the_sum(name):
    protocol = made(name)
    total, squares = protocol.collect(TYPES, noise=SeededNoise(1))
    with pytest.raises(ValueError, match="the squares add up to less"):
        protocol.analyse((total, squares * 0), N)


@every
def test_a_constant_kernel_gets_a_sentence(name):
    made(name)  # a negative control: the same class takes a kernel that varies
    kind = type(made(name))
    constant = PairwiseStatistic("always 3", torch.zeros(4, 2).double(), Form(torch.ones(2).double(), 3.0))
    fields = {each: getattr(made(name), each) for each in inspect.signature(kind).parameters}
    with pytest.raises(ValueError, match="'always 3' is constant: its mean is 3 whatever users hold"):
        kind(**{**fields, "statistic": constant})


def test_the_other_collectors_check_too():
    tree = pairwise.HierarchicalAUC(2, 1.0)
    tallies = tree.collect(torch.tensor([0, 1, 3]), noise=SeededNoise(1))
    for wrong in (torch.tensor([-1, 0]), torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(ValueError, match="scores must"):
            tree.collect(wrong)
    tree.analyse(tallies, tallies)
    for bad in (tallies[:1], (tallies[0], tallies[1] - 5), (tallies[0] + torch.tensor([9, 0, 0]), tallies[1])):
        with pytest.raises(ValueError, match="positives"):
            tree.analyse(tallies, bad)
    triples = pairwise.OneMessageTriples(pairwise.three_distinct(3), 1.0)
    one, two, three = triples.collect(torch.tensor([0, 1, 2, 0]), noise=SeededNoise(1))
    for wrong, words in (
        ((one, two), "3 tensors"),
        ((one, two[:1], three), "shape"),
        ((one, 0 * two, three), "too"),
    ):
        with pytest.raises(ValueError, match=words):
            triples.analyse(wrong, 4)
    with pytest.raises(ValueError, match="types must lie"):
        triples.collect(torch.tensor([-1, 0, 2]))
    with pytest.raises(TypeError, match="noise must be None"):
        pairwise.ProjectedQueries.convex(STATISTIC.points, 1.0).answer(TYPES, noise=keyed_generator(b"x"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Form(torch.tensor([1.0, math.nan]).double()), "form weights holds NaN"),
        (lambda: Form(torch.ones(2).double(), math.nan), "form constant must be a finite number"),
        (lambda: Form(torch.ones(2).double(), math.inf), "form constant must be a finite number"),
        (
            lambda: PairwiseStatistic("x", torch.ones(2, 2).double(), STATISTIC.form, offset=math.nan),
            "offset must",
        ),
        (lambda: PairwiseStatistic("x", torch.ones(2, 2).double() * math.nan, STATISTIC.form), "points holds NaN"),
        (
            lambda: PairwiseStatistic("x", torch.ones(2, 3).double(), STATISTIC.form, limits=(1.0, 0.0)),
            "limits must be",
        ),
        (lambda: STATISTIC.exact(torch.zeros(4)), "at least 2 users"),
        (lambda: STATISTIC.exact(torch.tensor([[3, 1, 0, 0], [1, 0, 0, 0]])), "at least 2 users"),
        (lambda: STATISTIC.exact(torch.tensor([3, -1, 0, 0])), "no negative"),
        (lambda: STATISTIC.exact(torch.ones(3)), r"counts must be \(..., 4\)"),
        (lambda: STATISTIC.exact(torch.tensor([math.nan, 1, 1, 1])), "counts holds NaN"),
        (lambda: pairwise.auc(2).exact(torch.tensor([3, 4, 0, 0])), "one class is empty"),
    ],
)
def test_statistics(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_one_user_has_all_pairs():
    statistic = PairwiseStatistic("all", STATISTIC.points, STATISTIC.form, pairs=Pairs.ALL)
    assert float(statistic.exact(torch.tensor([0, 1, 0, 0]))) == pytest.approx(0)
