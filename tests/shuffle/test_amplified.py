"""A crowd behind a shuffler: its protocol by the battery, its bound against sums that are known
exactly.
"""

import dataclasses
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from contract import MessageContract, Unbiased
from laws import float64, hockey_stick
from responses import nested
from scipy.special import betainc
from scipy.stats import binom, multinomial

from torchdp import queries, shuffle
from torchdp.noise import SeededNoise
from torchdp.privacy import Arithmetic, composed_epsilon
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Relay
from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    ShiftStrategy,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.shuffle import Amplified
from torchdp.shuffle.amplified import blanket_delta, positive_part

N = 40
DELTA = 1e-3
TYPES = torch.arange(N) ** 2 % 3
KINDS = {
    "RandomizedResponse": lambda e: RandomizedResponse(64, e),
    "SubsetSelection": lambda e: SubsetSelection(64, e),
    "HadamardResponse": lambda e: HadamardResponse(64, e),
    "OptimizedUnaryEncoding": lambda e: OptimizedUnaryEncoding(64, e),
    "SymmetricUnaryEncoding": lambda e: SymmetricUnaryEncoding(64, e),
    "nested": lambda e: nested(64, e),
    "shifts": lambda e: ShiftStrategy(
        torch.arange(64)[None] < torch.tensor([[9], [24]]),
        torch.ones(2),
        64,
        e,
    ),
    "PrivUnit": lambda e: PrivUnit(32, e),
    "DuchiJordanWainwright": lambda e: DuchiJordanWainwright(1, e),
}


def least(divergence, delta):
    """The epsilon at which this divergence falls to delta."""
    low = 0.0
    high = 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > delta else (low, middle)
    return high


def of_two_types(client, n):
    """(law, law) of the counts of types 0 and 1 where all others hold type 2 of three, and one user
    0 or 1.
    """
    p = client.p
    q = client.q
    a, b = np.indices((n + 1, n + 1))
    counts = np.stack([a, b, n - 1 - a - b], -1)
    others = multinomial.pmf(counts, n - 1, [q, q, p])
    up = [np.roll(others, 1, axis) for axis in (0, 1)]
    one = p * up[0] + q * up[1] + q * others
    return one, q * up[0] + p * up[1] + q * others


class CrowdContract(MessageContract):
    def divergence(self, protocol, epsilon):
        raise NotImplementedError

    def loss(self, protocol):
        return least(
            lambda epsilon: self.divergence(protocol, epsilon),
            protocol.delta,
        )

    def test_a_wrong_constant_breaks_the_guarantee(self):
        client = self.protocol.client
        # half as much epsilon again for each client
        louder = dataclasses.replace(client, epsilon=1.5 * client.epsilon)
        assert self.loss(dataclasses.replace(self.protocol, client=louder)) > self.bound(
            self.protocol
        )


class TestAmplified(Unbiased, CrowdContract):
    protocol = Amplified(RandomizedResponse(3, 1.0), N, DELTA)
    x = TYPES
    bad: ClassVar = [
        torch.tensor([3]),
        torch.tensor([-1]),
        torch.tensor([0.5]),
        TYPES[None],
    ]

    def divergence(self, protocol, epsilon):
        return hockey_stick(*of_two_types(protocol.client, protocol.users), epsilon)

    def truth(self):
        return torch.bincount(self.x, minlength=3).double() / N


class TestAmplifiedVectors(Unbiased, CrowdContract):
    """On a line the message is a sign: counts of users on either side."""

    protocol = Amplified(DuchiJordanWainwright(1, 1.0), N, DELTA)
    x = torch.linspace(-1, 1, N, dtype=torch.float64)[:, None]
    bad: ClassVar = [
        torch.ones(3, 2),
        torch.full((3, 1), 1.5),
        torch.ones(3),
    ]

    def divergence(self, protocol, epsilon):
        flip = 1 / (1 + math.exp(protocol.client.epsilon))
        n = protocol.users
        others = binom.pmf(np.arange(n + 1), n - 1, flip)
        more = np.roll(others, 1)
        one = (1 - flip) * others + flip * more
        zero = flip * others + (1 - flip) * more
        return max(
            hockey_stick(one, zero, epsilon),
            hockey_stick(zero, one, epsilon),
        )

    def truth(self):
        return self.x.mean(0)


def by_counts(blanket, epsilon, n):
    """(1/n) E (Z_1 + ... + Z_n)_+ over all ways that n users fall on the five values of Z."""
    r = math.exp(blanket.epsilon)
    both = blanket.both
    alone = blanket.member - both
    e = math.exp(epsilon)
    rest = (r - 1) * blanket.member
    neither = max(1 - rest - 2 * alone - both, 0.0)
    mass = np.array([alone, alone, both, neither, rest])
    # of the difference of the two chances on each part
    value = np.array([r - e, 1 - r * e, r * (1 - e), 1 - e, 0.0])
    every = itertools.product(range(n + 1), repeat=5)
    counts = np.array([c for c in every if sum(c) == n])
    chances = multinomial.pmf(counts, n, mass / mass.sum())
    return float(chances @ np.maximum(counts @ value, 0)) / n


def by_binomials(local, epsilon, n):
    """The same where sets share nothing and fill all: K ~ Binomial(n, 2 q) bits, Binomial(K, 1/2)
    of them the one's.
    """
    # the ratio of one client, and E the one that the crowd is asked for
    e = math.exp(local)
    E = math.exp(epsilon)
    other = 1 - e * E
    step = (e - E) - (1 - e * E)
    K = np.arange(1, n + 1)
    # how many of the users' bits are of the two types
    weight = binom.pmf(K, n, 2 / (e + 1))
    K = K[weight > 1e-40]
    weight = weight[weight > 1e-40]
    first = np.floor(-other * K / step)
    part = other * K * binom.sf(first, K, 0.5)
    part += step * K / 2 * binom.sf(first - 1, K - 1, 0.5)
    return float(weight @ np.maximum(part, 0)) / n


@pytest.mark.parametrize(
    ("local", "epsilon", "n"),
    [
        *(
            (1, 0.03, 10**4),
            (2, 0.1, 10**4),
            (2, 0.01, 10**6),
            (4, 3.0, 100),
            (8, 1.1, 10**5),
        ),
        *(
            (8, 7.0, 1000),
            (0.5, 1e-3, 10**6),
            (1, 0.5, 10),
            (1, 0.9, 3),
            (1e-6, 1e-8, 1000),
        ),
    ],
)
def test_the_bound_is_the_exact_sum_of_binomials(local, epsilon, n):
    assert (
        1
        <= blanket_delta(Blanket.unknown(local), epsilon, n) / by_binomials(local, epsilon, n)
        < 1.03
    )


@pytest.mark.parametrize(
    "blanket",
    [
        KINDS["SubsetSelection"](2.0).blanket,
        KINDS["HadamardResponse"](2.0).blanket,
        # two sets above a half share something
        Blanket.two_level(0.5, 0.6),
        Blanket.two_level(0.5, 0.9),
    ],
)
@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_bound_is_the_exact_sum_over_all_counts(blanket, n):
    for epsilon in (0.0, 0.1, 0.4):
        assert 1 <= blanket_delta(blanket, epsilon, n) / by_counts(blanket, epsilon, n) < 1.05


def test_guarantee_a_part_that_is_never_positive_costs_nothing():
    halves = np.array([0.5, 0.5])
    assert positive_part(halves, np.array([-1.0, 0.0]), 100) == 0


@pytest.mark.parametrize("name", KINDS)
def test_guarantee_a_crowd_hides_more_than_the_clones_and_less_where_it_is_smaller(name):
    """In n, in epsilon, in the local epsilon; to what the sum is off, 1 %."""
    client = KINDS[name](2.0)
    at = [Amplified(client, n, 1e-6).delta_at(0.2) for n in (10, 10**3, 10**5, 10**8)]
    assert (np.diff(at) <= 0).all()
    assert at[-1] < 1e-100
    crowd = Amplified(client, 1000, 1e-6)
    fall = [crowd.delta_at(epsilon) for epsilon in (0.0, 0.05, 0.2, 1.0, 2.0)]
    assert (np.diff(fall) < 0).all()
    assert fall[-1] == 0
    assert crowd.guarantee.epsilon <= Amplified(KINDS[name](2.5), 1000, 1e-6).guarantee.epsilon
    assert fall[2] <= blanket_delta(Blanket.unknown(client.guarantee.epsilon), 0.2, 1000) * 1.01


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("local", [1e-3, 12.0, 30.0])
def test_extreme_epsilons(name, local):
    """At most the local epsilon; next to nothing in the largest crowds."""
    # as much or as little as each client can be asked
    client = KINDS[name](local)
    for n in (1, 100, 10**12):
        found = Amplified(client, n, 1e-9)
        assert 0 <= found.guarantee.epsilon <= client.guarantee.epsilon
        assert found.delta_at(found.guarantee.epsilon) <= 1e-9
    assert local > 12 or found.guarantee.epsilon < 0.02 * local


def test_tables_and_closed_forms_agree():
    """The same chances, written out: randomized response, all subsets, the rows of Hadamard's
    matrix, shifts.
    """

    def sets(client):
        return [set(each) for each in itertools.combinations(range(client.k), client.subset)]

    response = RandomizedResponse(5, 1.3)
    subsets = SubsetSelection(6, 0.4)
    hadamard = HadamardResponse(5, 0.7)
    odd = [[((x + 1) & y).bit_count() % 2 for y in range(hadamard.outputs)] for x in range(5)]
    held = [[x in each for each in sets(subsets)] for x in range(6)]
    circle = ShiftStrategy(
        torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 1, 0]], dtype=torch.bool),
        torch.ones(2),
        5,
        1.1,
    )
    found = [
        (response, torch.eye(5, dtype=torch.bool)),
        (subsets, torch.tensor(held)),
        (hadamard, torch.tensor(odd) == 0),
        (circle, None),
    ]
    for client, large in found:
        weights = 1 + math.expm1(client.epsilon) * (0 if large is None else large.double())
        laws = (
            circle.laws(torch.arange(5))
            if large is None
            else weights / weights.sum(1, keepdim=True)
        )
        blanket = Blanket.of_table(laws, client.epsilon)
        for part in ("member", "both"):
            assert math.isclose(
                getattr(blanket, part),
                getattr(client.blanket, part),
                rel_tol=1e-11,
                abs_tol=1e-14,
            )


def test_guarantee_caps_of_opposite_points_are_what_the_ball_shares_least():
    """Shares of a cap by scipy; its chance is e^epsilon that share over all."""
    client = PrivUnit(32, 2.0)
    # of the sphere beyond the cap's threshold
    share = betainc(16, 16, (1 - client.cap.threshold) / 2)
    blanket = client.blanket
    large = math.exp(2.0) * share / (1 + math.expm1(2.0) * share)
    assert math.isclose(blanket.member * math.exp(2.0), large, rel_tol=1e-9)
    assert blanket.both == 0
    # so that opposite ones are apart
    assert share < 0.5


def test_guarantee_two_types_take_the_exact_pairs():
    client = RandomizedResponse(2, 1.0)
    exact = shuffle.epsilon_of(shuffle.RandomizedResponseSum(1000, client.q), 1e-6, 1)
    found = Amplified(client, 1000, 1e-6).guarantee.epsilon
    assert (
        exact * (1 - 1e-9)
        <= found
        <= exact * 1.001
        < 0.9 * Amplified(DuchiJordanWainwright(1, 1.0), 1000, 1e-6).guarantee.epsilon
    )


def test_guarantee_composed_curves_are_never_below_one_use():
    crowd = Amplified(RandomizedResponse(64, 4.0), 10**4, 1e-6)
    once = crowd.guarantee.epsilon
    loss = crowd.distribution(16)
    assert once * (1 - 1e-3) < loss.get_epsilon_for_delta(1e-6) < once * 1.01
    many = loss.self_compose(16).get_epsilon_for_delta(1e-6)
    # of 16 by adding up
    assert 4 * once < many < 5 * once
    assert math.isclose(composed_epsilon([crowd.curve], 16, 1e-6), many, rel_tol=1e-3)
    points = np.array([-0.2, -0.05, 0.0, 0.05, 0.2, 4.0, 5.0])
    curve = crowd.curve(points)
    assert math.isclose(curve[4], crowd.delta_at(0.2))
    assert curve[6] == 0
    assert math.isclose(curve[0], -math.expm1(-0.2) + math.exp(-0.2) * curve[4])


@pytest.mark.parametrize("name", ["RandomizedResponse", "shifts", "PrivUnit"])
def test_guarantee_calibrated_crowds_are_private_and_no_louder_ones(name):
    found = Amplified.calibrated(KINDS[name], 10**4, 1.0, 1e-6)
    assert found.epsilon == found.guarantee.epsilon == 1.0
    assert found.delta_at(1.0) <= 1e-6
    # a thousandth more epsilon for each client is too much
    louder = KINDS[name](found.client.epsilon * 1.001)
    assert Amplified(louder, 10**4, 1e-6).delta_at(1.0) > 1e-6
    assert Amplified.calibrated(
        KINDS[name], 10**4, 1.0, 1e-6, largest=0.5
    ).client.epsilon == pytest.approx(1.0)
    assert Amplified.calibrated(
        KINDS[name], 10**4, 1.0, 1e-6, largest=2.0
    ).client.epsilon == pytest.approx(2.0)


def test_guarantee_absent_users_hide_nobody_and_too_few_are_refused():
    client = RandomizedResponse(3, 2.0)
    crowd = Amplified(client, 100, 1e-5, absent=20)
    assert crowd.guarantee == Amplified(client, 80, 1e-5).guarantee
    # the fewest who hide each other as stated
    heard = crowd.collect(torch.zeros(80, dtype=torch.int64))
    more = crowd.collect(torch.zeros(300, dtype=torch.int64))
    assert crowd.analyse(heard).n == 80
    # more hide no less
    assert crowd.analyse(more).n == 300
    with pytest.raises(ValueError, match="tally must be of at least 80 users"):
        crowd.analyse(crowd.collect(torch.zeros(79, dtype=torch.int64)))


def test_guarantee_messages_leave_in_an_order_that_says_nothing():
    """The first of five users is the only one of its type; at this epsilon all say the truth."""
    crowd = Amplified(RandomizedResponse(2, 30.0), 5, 1e-6)
    x = torch.tensor([1, 0, 0, 0, 0])
    sent = [crowd.randomize(x, noise=SeededNoise(seed)) for seed in range(500)]
    place = [int(each.argmax()) for each in sent]
    # of 100, four deviations
    assert np.bincount(place, minlength=5).min() > 60
    assert not torch.equal(
        RandomizedResponse(2, 30.0).randomize(x),
        torch.zeros(5, dtype=torch.int64),
    )


def test_guarantee_sums_of_floats_do_not_show_the_order():
    """1e8 and two halves of its last bit: a sum in the users' order would be another number."""
    crowd = Amplified(PrivUnit(2, 1.0), 3, 1e-6)
    x = float64([[1.0, 0.0], [0.5, 0.0], [-1.0, 0.0]])
    orders = set()
    same = []
    for seed in range(40):
        # the order that a crowd draws first
        order = SeededNoise(seed).permutation(3)
        orders.add(tuple(x[order].flatten().tolist()))
        mixed = crowd.collect(x, noise=SeededNoise(seed))["sum"]
        alone = crowd.client.collect(x, noise=SeededNoise(seed))["sum"]
        same.append(torch.equal(mixed, alone))
    # all orders of three users
    assert len(orders) == 6
    assert not all(same)


def test_guarantee_what_arithmetic_costs_is_paid_for_every_user():
    client = PrivUnit(4, 2.0)
    promise = Amplified(client, 1000, 1e-6).guarantee
    assert promise.arithmetic is Arithmetic.ROUNDED
    assert promise.delta == 1e-6
    assert math.isclose(promise.variation, 1000 * client.variation, rel_tol=1e-12)


def test_guarantee_relays_send_what_their_client_sends():
    """A relay's blanket is its client's: none may randomize in another way."""

    def below(kind):
        return [each for one in kind.__subclasses__() for each in (one, *below(one))]

    relays = [kind for kind in below(Relay) if kind is not Amplified]
    own = [kind for kind in relays if kind.__module__.startswith("torchdp")]
    assert len(own) > 5
    assert all(kind.randomize_unchecked is Relay.randomize_unchecked for kind in own)
    W = torch.ones(4, 4, dtype=torch.float64).tril()
    asked = queries.LocalOracle(W, RandomizedResponse(4, 1.0))
    crowd = Amplified(asked, 100, 1e-6)
    assert crowd.guarantee == Amplified(asked.client, 100, 1e-6).guarantee
    assert crowd.estimate(torch.arange(100) % 4).value.shape == (4,)


def chances(member, both, epsilon):
    """Of one large set alone, of another alone, of both, of neither, and of the user's own rest."""
    # what only the user's own message puts there
    rest = math.expm1(epsilon) * member
    return np.array(
        [
            member - both,
            member - both,
            both,
            1 - rest - 2 * member + both,
            rest,
        ]
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 12.0])
def test_guarantee_chances_of_a_blanket_add_up(epsilon):
    """For any share, the default both = 0 included: no chance is below 0, and no delta is below
    that of one set.
    """
    for share in (0.1, 0.4999, 0.5, 0.51, 0.9, 0.999):
        blanket = Blanket.two_level(epsilon, share)
        found = chances(blanket.member, blanket.both, epsilon)
        assert found.min() > -1e-15
        assert math.isclose(found.sum(), 1.0, rel_tol=1e-15)
        # the control
        assert (chances(blanket.member, 0.0, epsilon).min() < -1e-9) == (share > 0.5)
        assert blanket.both >= Blanket.two_level(epsilon, share, max(0.0, 2 * share - 1)).both * (
            1 - 1e-12
        )


def test_a_set_more_likely_than_one_is_refused():
    with pytest.raises(
        ValueError,
        match=r"member must be at most e\^-epsilon = 0.367879",
    ):
        Blanket(1.0, 0.4)
    # where all is in the set, so is the other's
    assert Blanket(1.0, math.exp(-1.0)).both == math.exp(-1.0)


@dataclasses.dataclass(frozen=True)
class Louder(RandomizedResponse):
    """States a guarantee of its own, and keeps the blanket of another."""

    stated: float = 8.0

    @property
    def guarantee(self):
        return dataclasses.replace(super().guarantee, epsilon=self.stated)

    @property
    def blanket(self):
        return RandomizedResponse(self.k, self.epsilon).blanket


def test_guarantee_a_blanket_of_less_than_the_guarantee_hides_nobody():
    with pytest.raises(
        ValueError,
        match=r"client must have a blanket of its guarantee's epsilon = 8 or more",
    ):
        Amplified(Louder(4, 1.0), 1000, 1e-6)
    assert Amplified(Louder(4, 1.0, 0.9), 1000, 1e-6).guarantee.epsilon < 0.5


def test_guarantee_two_types_in_any_crowd():
    """The exact curve is of up to 2^20 users: no crowd is refused, and no larger one costs more."""
    users = (2**20 - 1, 2**20, 2**20 + 1, 2**21, 10**7, 10**9, 10**12)
    client = RandomizedResponse(2, 3.0)
    epsilons = [Amplified(client, n, 1e-9).guarantee.epsilon for n in users]
    for fewer, more in itertools.pairwise(epsilons):
        assert more <= fewer * (1 + 1e-6)
    assert epsilons[-1] < 1e-4


def test_guarantee_sets_that_share_less_and_ratios_that_are_rounded_up_hide_less():
    """Lemmas (b) and (c) of ``privacy.blanket``: what is not known exactly is taken for the
    worse.
    """
    shared = [
        blanket_delta(Blanket.two_level(2.0, 0.3, both), 0.3, 200)
        for both in (0.0, 0.03, 0.09, 0.2)
    ]
    assert (np.diff(shared) < 0).all()
    ratios = [
        blanket_delta(Blanket.two_level(e, 0.3, 0.09), 0.3, 200) for e in (1.0, 1.5, 2.0, 4.0)
    ]
    assert (np.diff(ratios) > 0).all()


def test_a_crowd_of_noise_with_a_delta_is_refused():
    with pytest.raises(ValueError, match="client must be private by each message alone"):
        Amplified(GaussianVector(4, 1.0, delta=1e-6), 100, 1e-6)
