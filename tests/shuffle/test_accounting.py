"""What protocols guarantee over many instances: exact references, absent users, and the errors."""

import itertools
import math

import numpy as np
import pytest
from laws import hockey_stick
from scipy import stats

from torchdp.privacy import Model, Neighbours, gaussian_log_delta
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
    delta_of,
    epsilon_of,
)
from torchdp.shuffle.sums import promise

PROTOCOLS = [
    RandomizedResponseSum(60, 0.2),
    PoissonSum(60, 30.0),
    CorrelatedSum(60, 0.8, 20.0, 0.9),
    CentralGaussianSum(60, 5.0),
]


def names(protocol):
    return type(protocol).__name__


def response_view(bits, flip):
    law = np.ones(1)
    for bit in bits:
        law = np.convolve(law, [flip, 1 - flip] if bit else [1 - flip, flip])
    return law


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_guarantee_two_instances_of_response_cover_all_databases(epsilon):
    users = 4
    flip = 0.25
    pairs = []
    for others in itertools.product((0, 1), repeat=users - 1):
        one = response_view((1, *others), flip)
        zero = response_view((0, *others), flip)
        pairs += [(one, zero), (zero, one)]
    worst = 0.0
    # others' bits and directions differ in the instances
    for (p, q), (s, t) in itertools.product(pairs, repeat=2):
        worst = max(worst, hockey_stick(np.outer(p, s), np.outer(q, t), epsilon))
    found = delta_of(RandomizedResponseSum(users, flip), epsilon, 2)
    # the largest curve of few users is nobody's own
    assert worst <= found <= 1.3 * worst + 1e-6
    # more noise than there is: caught
    assert delta_of(RandomizedResponseSum(users, 0.32), epsilon, 2) < worst


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_guarantee_three_instances_of_poisson_cover_all_directions(epsilon):
    # beyond 40 is less than 1e-24
    law = stats.poisson(4.0).pmf(np.arange(40))
    one = np.append(0, law)
    zero = np.append(law, 0)
    worst = 0.0
    for directions in itertools.product(((one, zero), (zero, one)), repeat=3):
        p, q = (np.einsum("i,j,k->ijk", *side) for side in zip(*directions, strict=True))
        worst = max(worst, hockey_stick(p, q, epsilon))
    assert worst <= delta_of(PoissonSum(9, 4.0), epsilon, 3) <= 1.02 * worst


@pytest.mark.parametrize("instances", [1, 7, 768])
def test_guarantee_central_gaussian_is_exact(instances):
    protocol = CentralGaussianSum(10, 3.0 * math.sqrt(instances))
    distance = math.sqrt(instances)
    exact = gaussian_log_delta(protocol.sigma, 1.0, distance)
    assert math.log(delta_of(protocol, 1.0, instances)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=names)
@pytest.mark.parametrize("instances", [1, 12])
def test_guarantee_epsilon_and_delta_agree(protocol, instances):
    epsilon = epsilon_of(protocol, 1e-4, instances)
    assert delta_of(protocol, epsilon * (1 + 1e-6), instances) <= 1.01e-4
    assert delta_of(protocol, 0.97 * epsilon, instances) > 1e-4
    if isinstance(protocol, CentralGaussianSum):
        return
    promised = promise(protocol, 1e-4, instances)
    assert promised.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert promised.delta == 1e-4
    assert promised.model == Model.SHUFFLE
    assert promised.neighbours == Neighbours.REPLACE_ONE


@pytest.mark.parametrize("protocol", PROTOCOLS[:3], ids=names)
def test_guarantee_absent_users_cost_privacy(protocol):
    epsilons = [epsilon_of(protocol, 1e-3, 5, absent) for absent in (0, 6, 30)]
    assert epsilons == sorted(epsilons)
    assert epsilons[2] > epsilons[0] * 1.01


def test_guarantee_absent_users_leave_the_protocol_of_the_others():
    assert delta_of(PoissonSum(10, 20.0), 1.0, 3, absent=4) == delta_of(PoissonSum(6, 12.0), 1.0, 3)
    assert delta_of(RandomizedResponseSum(10, 0.2), 1.0, 3, absent=4) == delta_of(
        RandomizedResponseSum(6, 0.2), 1.0, 3
    )
    assert delta_of(CentralGaussianSum(10, 2.0), 1.0, 3, absent=4) == delta_of(
        CentralGaussianSum(6, 2.0), 1.0, 3
    )


def test_guarantee_without_delta():
    response = RandomizedResponseSum(100, 0.2)
    assert promise(response, 0, 3).epsilon == pytest.approx(3 * math.log(4))
    assert epsilon_of(response, 0, 3) == pytest.approx(3 * math.log(4))
    assert (
        delta_of(response, 3 * math.log(4) + 1e-9, 3)
        == 0
        < delta_of(response, 3 * math.log(4) - 0.1, 3)
    )
    assert PoissonSum(5, 1.0).pure_epsilon() == math.inf
    with pytest.raises(ValueError, match="no epsilon"):
        promise(PoissonSum(5, 1.0), 0, 1)
    assert epsilon_of(CentralGaussianSum(5, 1.0), 0, 1) == math.inf


def test_small_instances_compose_better_than_basic_composition():
    response = RandomizedResponseSum(1, 0.49)
    assert epsilon_of(response, 1e-6, 768) < 0.3 * epsilon_of(response, 0, 768)
    assert epsilon_of(response, 1e-6, 1) <= response.pure_epsilon()


def test_too_much_and_too_little_noise_are_named():
    hidden = promise(PoissonSum(10, 1e6), 0.1, 1)
    assert hidden.epsilon == 0.0
    assert hidden.delta == 0.1
    assert hidden.exact is False
