"""What the protocols refuse, and that they say why."""

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.privacy import Model
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    ExactSum,
    Messages,
    NegativeBinomialSum,
    PoissonSum,
    PureSum,
    RandomizedResponseSum,
    calibrate,
    calibrate_rounded,
    delta_of,
    epsilon_of,
    guarantee,
    join,
    pure_sum,
    rounded_delta_of,
    rounded_guarantee,
    shuffle,
)


def generator(device="cpu"):
    return torch.Generator(device).manual_seed(0)


def messages(instance, content):
    return Messages(torch.tensor(instance, dtype=torch.int32), torch.tensor(content, dtype=torch.int8))


SHUFFLED = [
    RandomizedResponseSum(3, 0.2),
    PoissonSum(3, 1.0),
    NegativeBinomialSum(3, 1.0, 0.5),
    CorrelatedSum(3, 0.5, 1.0, 0.5),
    PureSum(3, 1.0, 0.5, 0.1),
]
EVERY = [*SHUFFLED, CentralGaussianSum(3, 1.0), ExactSum(3)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RandomizedResponseSum(0, 0.2), "users must be an integer >= 1"),
        (lambda: ExactSum(2.5), "users must be an integer >= 1"),
        (lambda: RandomizedResponseSum(3, 0.5), "flip must be below 1/2"),
        (lambda: RandomizedResponseSum(3, 0.7), "flip must be below 1/2"),
        (lambda: RandomizedResponseSum(3, 0.0), "flip must lie strictly between 0 and 1"),
        (lambda: RandomizedResponseSum(3, float("nan")), "flip must lie"),
        (lambda: PoissonSum(3, 0.0), "mean must be a finite number > 0"),
        (lambda: PoissonSum(3, float("inf")), "mean must be a finite number > 0"),
        (lambda: NegativeBinomialSum(3, -1.0, 0.5), "shape must be"),
        (lambda: NegativeBinomialSum(3, 1.0, 1.0), "ratio must lie strictly between 0 and 1"),
        (lambda: CorrelatedSum(3, 1.0, 1.0, 0.5), "ratio must lie strictly between 0 and 1"),
        (lambda: CorrelatedSum(3, 0.5, 0.0, 0.5), "flood_shape must be"),
        (lambda: CorrelatedSum(3, 0.5, 1.0, 1.5), "flood_ratio must lie"),
        (lambda: PureSum(3, 0.0, 0.5, 0.1), "epsilon must be"),
        (lambda: PureSum(3, 1.0, 1.0, 0.1), "share must lie"),
        (lambda: PureSum(3, 1.0, 0.5, 0.0), "drop must lie"),
        (lambda: PureSum(3, 701.0, 0.5, 0.1), "epsilon must be at most 700"),
        (lambda: PureSum(3, 1.0, 0.5, 5e-324), "copies of a message"),
        (lambda: PureSum(3, 1e-300, 1e-10, 0.1), "at least 1e-9"),
        (lambda: PureSum(3, 1.0, 1 - 1e-15, 0.1), "at least 1e-9"),
        (lambda: PureSum(3, 1.0, 1e-301, 0.1), "copies of a message"),
        (lambda: PureSum(3, 1e-8, 0.5, 1e-6), "copies of a message"),
        (lambda: pure_sum(3, 1.0, slack=0.0), "slack must be"),
        (lambda: CentralGaussianSum(3, -1.0), "sigma must be"),
    ],
)
def test_parameters_out_of_range_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize("protocol", EVERY, ids=lambda p: type(p).__name__)
def test_bits_must_be_boolean_rows_of_users_who_exist(protocol):
    for call in [protocol.collect] + ([protocol.randomize] if protocol in SHUFFLED else []):
        with pytest.raises(TypeError, match=r"boolean tensor, not torch.int64; call"):
            call(torch.ones(3, 2, dtype=torch.int64))
        with pytest.raises(TypeError, match=r"bits must be a torch.Tensor, not list"):
            call([[True]])
        with pytest.raises(ValueError, match="1 to 3, not 4"):
            call(torch.ones(4, 2, dtype=torch.bool))
        with pytest.raises(ValueError, match="1 to 3, not 0"):
            call(torch.ones(0, 2, dtype=torch.bool))
        for shape in [(3,), (3, 0), (1, 3, 2)]:
            with pytest.raises(ValueError, match="shape"):
                call(torch.ones(shape, dtype=torch.bool))
        for public in (1, generator()):
            with pytest.raises(TypeError, match=rf"noise must be .*not {type(public).__name__}"):
                call(torch.ones(3, 2, dtype=torch.bool), noise=public)


@pytest.mark.parametrize("protocol", EVERY, ids=lambda p: type(p).__name__)
def test_ones_must_count_users(protocol):
    def draw(ones):
        return protocol.sample_sum(ones, generator=generator())

    for call in (draw, protocol.variance):
        for ones in ([4], [-1], [0, 10**12]):
            with pytest.raises(ValueError, match=r"ones must lie in \[0, 3\], the number of users"):
                call(torch.tensor(ones))
        with pytest.raises(TypeError, match=r"integer tensor, not torch.float32"):
            call(torch.tensor([1.0]))
        with pytest.raises(TypeError, match=r"integer tensor, not torch.bool"):
            call(torch.tensor([True]))
        with pytest.raises(TypeError, match="not int"):
            call(2)
        assert call(torch.zeros(0, 5, dtype=torch.int32)).shape == (0, 5)
        assert call(torch.tensor(2)).shape == ()
    with pytest.raises(ValueError, match="sample_shape"):
        protocol.sample_sum(torch.tensor(1), generator=generator(), sample_shape=(-1,))
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator, not SeededNoise"):
        protocol.sample_sum(torch.tensor(1), generator=SeededNoise(1))


def test_a_generator_elsewhere_is_refused():
    class Elsewhere(torch.Generator):
        device = torch.device("cuda")

    for protocol in EVERY:
        with pytest.raises(ValueError, match="generator is on cuda, the data on cpu"):
            protocol.sample_sum(torch.tensor([1]), generator=Elsewhere())
        noise = SeededNoise(1)
        noise.device = torch.device("cuda")
        with pytest.raises(ValueError, match="noise is on cuda, the data on cpu"):
            protocol.collect(torch.ones(3, 2, dtype=torch.bool), noise=noise)


@pytest.mark.parametrize("protocol", SHUFFLED, ids=lambda p: type(p).__name__)
def test_the_analyst_refuses_what_no_user_sends(protocol):
    content = protocol.contents[-1]
    for instance in ([0, 1, 5], [0, -1, 1]):
        with pytest.raises(ValueError, match=r"the instance of a message must lie in \[0, 2\)"):
            protocol.analyse(messages(instance, [content] * 3), 2)
    with pytest.raises(ValueError, match="the content of a message must be one of"):
        protocol.analyse(messages([0, 1], [content, 7]), 2)
    with pytest.raises(TypeError, match="shuffled must be a Messages, not Tensor"):
        protocol.analyse(torch.ones(3), 2)
    with pytest.raises(ValueError, match="instances must be an integer >= 1"):
        protocol.analyse(messages([], []), 0)
    for absent in (3, 4):
        with pytest.raises(ValueError, match="absent must be below the number of users, 3"):
            protocol.analyse(messages([], []), 1, absent=absent)
    with pytest.raises(ValueError, match="absent must be an integer >= 0"):
        protocol.profiles(-1)
    with pytest.raises(ValueError, match="absent must be below"):
        protocol.profiles(3)


def test_wrong_objects_are_named():
    sums = PoissonSum(3, 5.0)
    for call in (
        lambda: delta_of(3, 1.0, 1),
        lambda: epsilon_of(PoissonSum, 1e-3, 1),
        lambda: guarantee(None, 1e-3, 1),
        lambda: rounded_delta_of(3, 1.0, 4, 2.0),
        lambda: rounded_guarantee("poisson", 1e-3, 4, 2.0),
        lambda: calibrate_rounded(sums, 3, 1.0, 1e-3, 4, 2.0),
        lambda: join([3]),
        lambda: shuffle(torch.zeros(3)),
    ):
        with pytest.raises(TypeError, match="must be a"):
            call()
    with pytest.raises(ValueError, match="at most 2147483647"):
        sums.analyse(messages([0], [1]), 2**40)
    for kind in (PoissonSum, RandomizedResponseSum, CentralGaussianSum, PureSum):
        with pytest.raises(ValueError, match="epsilon must be at most 700"):
            calibrate(kind, 10, 1e30, 1e-6, 1)


def test_response_needs_one_message_of_every_user():
    protocol = RandomizedResponseSum(3, 0.25)
    full = messages([0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0])
    assert protocol.analyse(full, 2).tolist() == [2.5, -1.5]
    for instance in ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0], [0, 0, 0, 0, 1, 1]):
        with pytest.raises(ValueError, match=r"one message of each of the 3 users present.*absent"):
            protocol.analyse(messages(instance, [0] * len(instance)), 2)
    left = messages([0, 0, 1, 1], [1, 0, 0, 0])
    assert protocol.analyse(left, 2, absent=1).tolist() == [1.0, -1.0]
    with pytest.raises(ValueError, match="2 users present"):
        protocol.analyse(full, 2, absent=1)


def test_more_messages_than_float64_counts_are_refused():
    for protocol in (PoissonSum(3, 1e16), NegativeBinomialSum(3, 1e20, 0.5)):
        with pytest.raises(ValueError, match="float64 counts exactly"):
            protocol.sample_sum(torch.tensor([1]), generator=generator())
        with pytest.raises(ValueError, match="float64 counts exactly"):
            protocol.collect(torch.ones(3, 2, dtype=torch.bool), noise=SeededNoise(0))


def test_no_messages_at_all_are_an_answer_too():
    nothing = messages([], [])
    assert PoissonSum(3, 2.0).analyse(nothing, 2).tolist() == [-2.0, -2.0]
    assert NegativeBinomialSum(3, 2.0, 0.5).analyse(nothing, 1).tolist() == [-2.0]
    assert CorrelatedSum(3, 0.5, 2.0, 0.5).analyse(nothing, 1).tolist() == [0.0]
    assert PureSum(3, 1.0, 0.5, 0.1).analyse(nothing, 1).tolist() == [0.0]


def test_each_protocol_says_whom_it_trusts():
    assert {type(p).__name__: p.model for p in EVERY} == {
        **{type(p).__name__: Model.SHUFFLE for p in SHUFFLED},
        "CentralGaussianSum": Model.CENTRAL,
        "ExactSum": Model.CENTRAL,
    }
