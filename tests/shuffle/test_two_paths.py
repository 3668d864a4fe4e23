"""Messages of every user, or the sum at once: one law, for every protocol."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    ExactSum,
    NegativeBinomialSum,
    PoissonSum,
    PureSum,
    RandomizedResponseSum,
    join,
    shuffle,
)

ALPHA = 1e-6
INSTANCES = 20_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def protocols(n):
    return [
        RandomizedResponseSum(n, 0.2),
        RandomizedResponseSum(n, 0.45),
        PoissonSum(n, 3.0),
        NegativeBinomialSum(n, 1.5, 0.6),
        CorrelatedSum(n, 0.5, 2.0, 0.7),
        PureSum(n, 1.5, 0.4, 0.1),
    ]


def bits_with(n, ones, instances=INSTANCES):
    """The holders of a one move from instance to instance."""
    rank = (torch.arange(n)[:, None] + torch.arange(instances)) % n
    return rank < ones


def two_sample(x, y):
    """Chi-square p-value that two samples of a discrete law have one law."""
    values, cells = np.unique(
        np.concatenate([x, y]).round(6), return_inverse=True
    )  # atoms apart by rounding are one
    table = np.stack([np.bincount(part, minlength=len(values)) for part in (cells[: len(x)], cells[len(x) :])])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], 1)
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] < 2 else stats.chi2_contingency(table).pvalue


CASES = [(n, ones) for n in (1, 2, 5, 40) for ones in sorted({0, 1, n - 1, n})]


@pytest.mark.parametrize(("n", "ones"), CASES)
@pytest.mark.parametrize("which", range(len(protocols(1))))
def test_messages_and_sums_have_one_law(which, n, ones):
    protocol = protocols(n)[which]
    instances = 4000 if n == 40 else INSTANCES
    collected = protocol.collect(bits_with(n, ones, instances), noise=SeededNoise(which))
    drawn = protocol.sample_sum(torch.tensor(ones), generator=generator(n), sample_shape=(instances,))
    assert collected.dtype == drawn.dtype == torch.float64
    assert two_sample(collected.numpy(), drawn.numpy()) > ALPHA


@pytest.mark.parametrize("which", range(len(protocols(1))))
def test_the_two_sample_test_sees_one_more_user_with_a_one(which):
    protocol = protocols(5)[which]
    collected = protocol.collect(bits_with(5, 2), noise=SeededNoise(0))
    drawn = protocol.sample_sum(torch.tensor(3), generator=generator(1), sample_shape=(INSTANCES,))
    assert two_sample(collected.numpy(), drawn.numpy()) < ALPHA


@pytest.mark.parametrize("which", range(len(protocols(1))))
def test_users_one_by_one_send_what_they_send_together(which):
    protocol, bits = protocols(3)[which], bits_with(3, 2)
    noise = SeededNoise(3)
    alone = join(protocol.randomize(row[None], noise=noise) for row in bits)
    apart = protocol.analyse(shuffle(alone), INSTANCES)
    together = protocol.collect(bits, noise=SeededNoise(4))
    assert two_sample(apart.numpy(), together.numpy()) > ALPHA
    sizes = torch.bincount(alone.instance.long(), minlength=INSTANCES)
    at_once = torch.bincount(protocol.randomize(bits, noise=noise).instance.long(), minlength=INSTANCES)
    assert two_sample(sizes.numpy(), at_once.numpy()) > ALPHA


@pytest.mark.parametrize("which", range(len(protocols(1))))
def test_collecting_part_by_part_changes_nothing(which, monkeypatch):
    protocol, bits = protocols(7)[which], bits_with(7, 3)
    whole = protocol.collect(bits, noise=SeededNoise(5))
    monkeypatch.setattr("torchdp.shuffle.bitsum.MESSAGES_AT_ONCE", 2 * INSTANCES)
    parts = protocol.collect(bits, noise=SeededNoise(6))
    assert two_sample(whole.numpy(), parts.numpy()) > ALPHA


@pytest.mark.parametrize("n", [1, 2, 1000, 10**9])
@pytest.mark.parametrize("which", range(8))
def test_predicted_variance_is_the_variance_of_the_sums(which, n):
    protocol = [*protocols(n), CentralGaussianSum(n, 2.0), ExactSum(n)][which]
    ones = torch.tensor([[0, 1], [n // 3, n]])
    draws = 40_000
    error = protocol.sample_sum(ones, generator=generator(which), sample_shape=(draws,)) - ones
    assert error.shape == (draws, 2, 2) and error.dtype == torch.float64
    variance = protocol.variance(ones)
    assert variance.shape == ones.shape and variance.dtype == torch.float64
    assert protocol.rmse == pytest.approx(math.sqrt(variance.max()))
    if isinstance(protocol, ExactSum):
        assert not error.any() and not variance.any()
        return
    z = error.mean(0) / (variance / draws).sqrt()
    assert z.abs().max() < 5
    squares = error.square()
    z = (squares.mean(0) - variance) / (squares.std(0) / math.sqrt(draws))
    assert z.abs().max() < 5
    wrong = (squares.mean(0) - 1.2 * variance) / (squares.std(0) / math.sqrt(draws))
    assert wrong.abs().max() > 5


@pytest.mark.parametrize("which", range(len(protocols(1))))
def test_users_who_are_absent_leave_no_bias(which):
    protocol, bits = protocols(10)[which], bits_with(6, 2)
    estimates = protocol.collect(bits, noise=SeededNoise(7))
    error = estimates - 2
    assert abs(error.mean()) < 5 * error.std() / math.sqrt(INSTANCES)
    sent = shuffle(protocol.randomize(bits, noise=SeededNoise(7)))
    assert torch.equal(protocol.analyse(sent, INSTANCES, absent=4), estimates)


@pytest.mark.parametrize("which", range(len(protocols(1))))
@pytest.mark.parametrize("n", [2, 500])
def test_messages_of_a_user_are_as_many_as_predicted(which, n):
    protocol = protocols(n)[which]
    instances = 20_000 if n == 2 else 400
    sent = protocol.randomize(torch.ones(n, instances, dtype=torch.bool), noise=SeededNoise(8))
    of_instance = torch.bincount(sent.instance.long(), minlength=instances).double()
    spread = of_instance.std() / math.sqrt(instances)
    assert abs(of_instance.mean() - n * protocol.messages_per_user) <= 5 * spread
    held = torch.unique(sent.content).tolist()
    assert set(held) <= set(protocol.contents)
    assert protocol.bits_per_message(1) == math.ceil(math.log2(len(protocol.contents)))
    assert protocol.bits_per_message(768) == protocol.bits_per_message(1) + 10
    assert protocol.bits_per_message(1024) == protocol.bits_per_message(1) + 10


def test_a_one_is_the_bit_that_sends_more():
    for protocol in protocols(50):
        bits = torch.zeros(50, 2000, dtype=torch.bool)
        zeros, ones = (len(protocol.randomize(b, noise=SeededNoise(9))) for b in (bits, ~bits))
        assert zeros <= ones


@pytest.mark.parametrize("which", range(8))
def test_a_seed_fixes_every_draw(which):
    protocol = [*protocols(9), CentralGaussianSum(9, 2.0), ExactSum(9)][which]
    bits = bits_with(9, 4, 50)
    for draw in (
        lambda: protocol.collect(bits, noise=SeededNoise(1)),
        lambda: protocol.sample_sum(torch.tensor([1, 9]), generator=generator(1), sample_shape=(30,)),
    ):
        assert torch.equal(draw(), draw())
    if not isinstance(protocol, ExactSum):  # the system's noise repeats nothing
        assert not torch.equal(protocol.collect(bits), protocol.collect(bits))


def test_a_billion_users_cost_no_more_than_two():
    for protocol in protocols(10**9):
        estimate = protocol.sample_sum(
            torch.tensor([10**9, 123_456_789]), generator=generator(), sample_shape=(3,)
        )
        assert (estimate - torch.tensor([1e9, 123_456_789.0])).abs().max() < 6 * protocol.rmse
