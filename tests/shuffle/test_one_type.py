"""Identical messages: the view of a few users written out from what each of them sends."""

import numpy as np
import pytest
import torch
from laws import hockey_sticks
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.shuffle import NegativeBinomialSum, PoissonSum

EPSILONS = np.linspace(-2, 2, 81)
SIZE = 400
PROTOCOLS = [
    lambda n: PoissonSum(n, 0.5),
    lambda n: PoissonSum(n, 20.0),
    lambda n: NegativeBinomialSum(n, 1.0, 0.5),
    lambda n: NegativeBinomialSum(n, 0.3, 0.8),
    lambda n: NegativeBinomialSum(n, 8.0, 0.7),
]


def share(protocol):
    """The law of the noise messages of one user."""
    if isinstance(protocol, PoissonSum):
        return stats.poisson(protocol.mean / protocol.users).pmf(np.arange(SIZE))
    return stats.nbinom(protocol.shape / protocol.users, 1 - protocol.ratio).pmf(np.arange(SIZE))


def view(protocol, bits):
    """Pr[count] where these users are present."""
    law = np.eye(1, SIZE)[0]
    for bit in bits:
        law = np.convolve(law, np.roll(share(protocol), bit) * (np.arange(SIZE) >= bit))[:SIZE]
    return law


@pytest.mark.parametrize("make", PROTOCOLS)
@pytest.mark.parametrize(("users", "absent"), [(1, 0), (2, 0), (3, 0), (3, 1), (4, 3)])
def test_guarantee_the_profiles_are_the_pairs_of_neighbours(make, users, absent):
    protocol, present = make(users), users - absent
    rise, fall = protocol.profiles(absent)
    for ones in range(present):  # among the others
        others = (1,) * ones + (0,) * (present - 1 - ones)
        zero, one = (view(protocol, (bit, *others)) for bit in (0, 1))
        for profile, truth in (
            (rise, hockey_sticks(one, zero, EPSILONS)),
            (fall, hockey_sticks(zero, one, EPSILONS)),
        ):
            bound = profile(EPSILONS)
            assert (bound >= truth - 1e-12).all() and (bound <= truth + 1e-9).all()


@pytest.mark.parametrize("make", PROTOCOLS)
def test_the_profiles_of_more_noise_claim_too_much(make):
    protocol = make(2)
    more = (
        PoissonSum(2, protocol.mean * 1.1)
        if isinstance(protocol, PoissonSum)
        else NegativeBinomialSum(2, protocol.shape * 1.1, protocol.ratio)
    )
    truth = hockey_sticks(view(protocol, (0, 0)), view(protocol, (1, 0)), EPSILONS)
    assert (more.profiles()[1](EPSILONS) < truth - 1e-5).any()
    assert (
        protocol.profiles()[1](EPSILONS) < hockey_sticks(view(make(2), (0,)), view(make(2), (1,)), EPSILONS) - 1e-5
    ).any()


@pytest.mark.parametrize("make", PROTOCOLS)
def test_mean_and_variance_of_the_noise_are_those_of_its_law(make):
    protocol, law, counts = make(3), view(make(3), (1, 0, 1)), np.arange(SIZE)
    mean = law @ counts
    assert mean - protocol.noise_mean == pytest.approx(2)
    assert law @ (counts - mean) ** 2 == pytest.approx(float(protocol.variance(torch.tensor(2))))
    assert protocol.messages_per_user == pytest.approx(1 + protocol.noise_mean / 3)


def test_the_law_s_tail_is_below_rounding():
    for make in PROTOCOLS:
        assert view(make(3), (1, 1, 1)).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("make", PROTOCOLS)
@pytest.mark.parametrize("bits", [(0,), (1,), (1, 0)])
def test_messages_have_the_law_that_is_written_out(make, bits):
    protocol, instances = make(2), 40_000
    rows = torch.tensor(bits, dtype=torch.bool)[:, None].expand(-1, instances)
    sent = protocol.randomize_unchecked(rows, SeededNoise(0))
    found = np.bincount(torch.bincount(sent.instance.long(), minlength=instances).numpy(), minlength=SIZE)

    def pvalue(law):
        common = law * instances > 10
        expected, seen = law[common] * instances, found[:SIZE][common]
        expected, seen = np.append(expected, instances - expected.sum()), np.append(seen, instances - seen.sum())
        return stats.chi2.sf(((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum(), len(seen) - 1)

    assert pvalue(view(protocol, bits)) > 1e-6
    assert pvalue(view(make(3), bits)) < 1e-6  # shares of another number of users
