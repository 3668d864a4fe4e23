"""Calibration: what is returned is certified, a little less noise is not, and close to a central
curator's.
"""

import functools
import math

import pytest

from torchdp.privacy import gaussian_sigma
from torchdp.shuffle import (
    BoundedSum,
    CentralGaussianSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
    Sensitivity,
    delta_of,
    epsilon_of,
)

KINDS = [
    RandomizedResponseSum,
    PoissonSum,
    CorrelatedSum,
    CentralGaussianSum,
]
# users, epsilon, delta, instances, absent
MANY = (1000, 2.0, 1e-5, 16, 0)
ABSENT = (300, 0.5, 1e-4, 3, 30)


@functools.cache
def calibrated(kind, setting):
    return kind.calibrated(*setting)


def less_noise(protocol, by):
    """The same protocol with ``by`` less noise, relative in the RMSE."""
    n = protocol.users
    # of the root mean squared error
    rest = 1 - by
    match protocol:
        case RandomizedResponseSum(flip=p):
            noise = rest**2 * n * p * (1 - p) / (1 - 2 * p) ** 2
            # n flip (1 - flip)/(1 - 2 flip)^2 is this noise
            root = math.sqrt(n / (n + 4 * noise))
            return RandomizedResponseSum(n, (1 - root) / 2)
        case PoissonSum(mean=mean):
            return PoissonSum(n, mean * rest**2)
        case CorrelatedSum(ratio=ratio, flood_shape=shape, flood_ratio=flood):
            return CorrelatedSum(n, ratio ** (1 / rest), shape, flood)
        case CentralGaussianSum(sigma=sigma):
            return CentralGaussianSum(n, sigma * rest)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *((kind, MANY) for kind in KINDS),
        *((kind, ABSENT) for kind in KINDS),
    ],
)
def test_guarantee_calibrated_protocols_are_private_and_need_their_noise(kind, setting):
    users, epsilon, delta, instances, absent = setting
    protocol = calibrated(kind, (users, epsilon, delta, instances, absent))
    assert type(protocol) is kind
    assert protocol.users == users
    assert delta_of(protocol, epsilon, instances, absent) <= delta * (1 + 1e-9)
    assert delta_of(less_noise(protocol, 0.01), epsilon, instances, absent) > delta


@pytest.mark.parametrize(
    ("users", "instances", "epsilon"),
    [
        (1000, 768, 7.0),
        pytest.param(10**9, 6144, 4.5, marks=pytest.mark.slow),
    ],
)
def test_one_message_comes_close_to_a_trusted_curator(users, instances, epsilon):
    central = gaussian_sigma(epsilon, 1e-6, math.sqrt(instances))
    one = RandomizedResponseSum.calibrated(users, epsilon, 1e-6, instances)
    assert one.messages_per_user == 1
    assert central < one.rmse <= 1.03 * central
    assert delta_of(one, epsilon, instances) <= 1e-6


def test_guarantee_a_flood_that_is_too_small_fails():
    protocol = calibrated(CorrelatedSum, MANY)
    # four fifths of the flood
    smaller = CorrelatedSum(
        1000,
        protocol.ratio,
        0.8 * protocol.flood_shape,
        protocol.flood_ratio,
    )
    assert delta_of(smaller, 2.0, 16) > 1e-5 >= delta_of(protocol, 2.0, 16)


@pytest.mark.parametrize(
    ("epsilon", "delta", "instances", "most"),
    [(0.01, 1e-8, 1, 110.0), (0.1, 1e-6, 64, 6.7)],
)
def test_guarantee_a_small_budget_is_met_by_a_flood_that_is_hardly_larger_than_it_must_be(
    epsilon, delta, instances, most
):
    """most: messages of a user, 2 % above what a search over certified floods found."""
    protocol = CorrelatedSum.calibrated(1000, epsilon, delta, instances)
    assert 0.8 * delta < delta_of(protocol, epsilon, instances) <= delta
    assert protocol.messages_per_user < most
    if instances == 1:
        # discrete Laplace noise at this epsilon
        assert protocol.rmse < 1.1 * math.sqrt(2) / epsilon


def test_guarantee_without_delta():
    local = RandomizedResponseSum.calibrated(1000, 4.0, 0, 16)
    assert epsilon_of(local, 0, 16) == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "users"),
    [
        (RandomizedResponseSum, 1),
        (RandomizedResponseSum, 2),
        (PoissonSum, 1),
        (CorrelatedSum, 1),
    ],
)
def test_one_user_or_two(kind, users):
    protocol = kind.calibrated(users, 1.0, 1e-3, 2)
    assert delta_of(protocol, 1.0, 2) <= 1e-3


@pytest.mark.parametrize("kind", [PoissonSum, RandomizedResponseSum])
def test_a_delta_below_what_movement_is_followed_to_is_paid_by_flips(kind):
    assert kind.calibrated(20, 1.0, 1e-15, Sensitivity(1, change=0.1)) == kind.calibrated(
        20, 1.0, 1e-15, 1
    )


@pytest.mark.parametrize("kind", [RandomizedResponseSum, BoundedSum])
def test_flips_are_counted_where_they_ask_for_less_than_little_movement(kind):
    little = kind.calibrated(3, 6.0, 1e-10, Sensitivity(1, 0.2))
    flips = kind.calibrated(3, 6.0, 1e-10, 1)
    assert little.rmse <= 1.001 * flips.rmse
    assert delta_of(little, 6.0, Sensitivity(1, change=0.2)) <= 1e-10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [PoissonSum, BoundedSum])
def test_movement_too_small_for_floats_is_counted_as_one_that_they_follow(kind):
    """At 1e-300 a Poisson law's mean was 39, that of a movement of 1e-30 is 3e-7, and squares were
    not numbers.
    """
    least, more = (
        kind.calibrated(100, 1.0, 1e-5, Sensitivity(2, change=change)) for change in (1e-300, 1e-18)
    )
    assert 0 < least.rmse <= more.rmse < 1e-2


@pytest.mark.parametrize("method", ["flipped_delta", "moved_delta"])
def test_an_error_of_a_law_is_not_taken_for_noise_that_is_not_followed(method, monkeypatch):
    def broken(*_):
        raise ValueError("an error of its own")

    moves = Sensitivity(16, change=0.5)
    monkeypatch.setattr(PoissonSum, method, broken)
    with pytest.raises(ValueError, match="an error of its own"):
        PoissonSum.calibrated(1000, 2.0, 1e-5, moves)
