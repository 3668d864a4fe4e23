"""Correlated noise: the two counts of a few users written out from what each of them sends."""

import functools
import math

import numpy as np
import pytest
import torch
from laws import hockey_sticks
from scipy import stats
from scipy.signal import convolve2d

from torchdp.noise import SeededNoise
from torchdp.shuffle import CorrelatedSum

EPSILONS = np.linspace(-2, 2, 41)
SIZE = 72
SETTINGS = [(0.4, 2.0, 0.5), (0.6, 0.7, 0.6), (0.2, 6.0, 0.4)]


@functools.cache
def user_law(protocol, bit):
    """Pr[(u, v)] of the numbers of "+1" and "-1" that one user sends."""
    n = protocol.users
    counts = np.arange(SIZE)
    noise = stats.nbinom(1 / n, 1 - protocol.ratio).pmf(counts)
    flood = stats.nbinom(protocol.flood_shape / n, 1 - protocol.flood_ratio).pmf(counts)
    law = np.zeros((SIZE, SIZE))
    for z in range(SIZE - bit):
        pairs = np.outer(noise[: SIZE - z - bit], noise[: SIZE - z])
        law[z + bit :, z:] += flood[z] * pairs
    return law


@functools.cache
def view(protocol, bits):
    law = user_law(protocol, bits[0])
    for bit in bits[1:]:
        law = convolve2d(law, user_law(protocol, bit))[:SIZE, :SIZE]
    return law


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("others", [(), (0,), (1,)])
def test_guarantee_the_profiles_are_the_pairs_of_neighbours(setting, others):
    protocol = CorrelatedSum(1 + len(others), *setting)
    zero = view(protocol, (0, *others))
    one = view(protocol, (1, *others))
    assert zero.sum() > 1 - 1e-9
    for profile, truth in zip(
        protocol.profiles(),
        (
            hockey_sticks(one, zero, EPSILONS),
            hockey_sticks(zero, one, EPSILONS),
        ),
        strict=True,
    ):
        bound = profile(EPSILONS)
        assert (bound >= truth - 1e-9).all()
        assert (bound <= truth + 1e-8).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_absent_users_are_covered(setting):
    protocol = CorrelatedSum(3, *setting)
    for present in ((), (1,)):
        zero = view(protocol, (0, *present))
        one = view(protocol, (1, *present))
        profiles = protocol.profiles(absent=2 - len(present))
        bounds = [profile(EPSILONS) for profile in profiles]
        truth = (
            hockey_sticks(one, zero, EPSILONS),
            hockey_sticks(zero, one, EPSILONS),
        )
        assert (bounds[0] >= truth[0] - 1e-9).all()
        assert (bounds[1] >= truth[1] - 1e-9).all()
        # does not cover them
        full = [profile(EPSILONS) for profile in protocol.profiles()]
        assert any((curve < true - 1e-3).any() for curve, true in zip(full, truth, strict=True))


@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_from_one_to_zero_the_protocol_is_pure(setting):
    protocol = CorrelatedSum(2, *setting)
    zero = view(protocol, (0, 1))
    one = view(protocol, (1, 1))
    held = one > 1e-300
    epsilon = -math.log(protocol.ratio)
    assert (np.log(one[held]) - np.log(zero[held])).max() <= epsilon + 1e-6
    # the other way it is not: some views become impossible
    assert (one[zero > 1e-3] == 0).any()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_error_is_discrete_laplace_exactly(setting):
    protocol = CorrelatedSum(2, *setting)
    law = view(protocol, (1, 1))
    w = protocol.ratio
    for k in range(-4, 5):
        chance = (1 - w) / (1 + w) * w ** abs(k)
        assert np.trace(law, -(2 + k)) == pytest.approx(chance, abs=1e-8)
    counts = np.arange(SIZE)
    differences = counts[:, None] - counts
    assert (law * (differences - 2) ** 2).sum() == pytest.approx(
        float(protocol.variance(torch.tensor(2))), rel=1e-4
    )
    sums = counts[:, None] + counts
    sent = (law * sums).sum() / 2
    assert sent == pytest.approx(protocol.messages_per_user, rel=1e-4)


def pvalue(law, plus, minus):
    """Chi-square of observed pairs of counts."""
    seen = np.zeros((2000, 2000))
    np.add.at(seen, (plus, minus), 1)
    # pairs that are expected ten times; all others are one cell
    common = law * len(plus) > 10
    expected = law[common] * len(plus)
    found = seen[:SIZE, :SIZE][common]
    expected = np.append(expected, len(plus) - expected.sum())
    found = np.append(found, len(plus) - found.sum())
    squares = (found - expected) ** 2 / expected
    return stats.chi2.sf(squares.sum(), len(found) - 1)


@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize("bits", [(1,), (0, 1)])
def test_messages_have_the_law_that_is_written_out(setting, bits):
    protocol = CorrelatedSum(2, *setting)
    instances = 40_000
    rows = torch.tensor(bits, dtype=torch.bool)
    rows = rows[:, None].expand(-1, instances)
    sent = protocol.randomize_unchecked(rows, SeededNoise(0))

    def counted(sign):
        of_sign = sent.instance[sent.content == sign].long()
        return torch.bincount(of_sign, minlength=instances).numpy()

    plus = counted(1)
    minus = counted(-1)
    law = view(protocol, bits)
    assert pvalue(law, plus, minus) > 1e-6
    # who sends which matters
    assert pvalue(law.T, plus, minus) < 1e-6
    # control: 15 per cent more flood is seen
    wrong = CorrelatedSum(
        2,
        protocol.ratio,
        1.15 * protocol.flood_shape,
        protocol.flood_ratio,
    )
    assert pvalue(view(wrong, bits), plus, minus) < 1e-6
