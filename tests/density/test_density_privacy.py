"""What a shuffled density promises, by enumeration of everything that the analyst may see."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
import torch
from buckets import LaplacianBuckets
from laws import bits_law, float64, generator, hockey_stick

from torchdp.density import (
    GaussianFourier,
    GaussianSquareWave,
    InnerProduct,
    ShuffledClasses,
    ShuffledKDE,
)
from torchdp.privacy import Model, Neighbours
from torchdp.privacy.accounting import composed_delta, largest_curve
from torchdp.randomizers import RandomizedResponse
from torchdp.shuffle import (
    PoissonSum,
    RandomizedResponseSum,
    delta_of,
    epsilon_of,
)

EPSILONS = (0.0, 0.3, 1.0, 2.0, 3.0)


def view(features, protocol, x):
    """Law of the number of ones that arrive, over all instances: bits are rounded, flipped,
    shuffled.
    """
    shares = features.left(x) / features.bound
    bits = ((1 + shares) / 2).numpy()
    arrive = bits * (1 - 2 * protocol.flip) + protocol.flip
    laws = [bits_law(column) for column in arrive.T]
    return reduce(np.multiply.outer, laws).ravel()


def releases(features, protocol, d, trials):
    """The views of neighbouring data sets of random vectors."""
    source = generator(5)
    for _ in range(trials):
        points = torch.randn(protocol.users + 1, d, dtype=torch.float64, generator=source)
        points = points / points.norm(dim=1, keepdim=True)
        x = points[1:]
        other = points[1:].clone()
        other[0] = points[0]
        yield (
            view(features, protocol, x),
            view(features, protocol, other),
        )


def worst_release(views, epsilon):
    """The largest divergence of these pairs of views."""
    return max(hockey_stick(*pair, epsilon) for pair in views)


@pytest.mark.parametrize("users", [1, 2, 4])
@pytest.mark.parametrize(
    "family",
    [
        GaussianFourier(2, 0.7),
        GaussianSquareWave(2, 0.7),
        InnerProduct(2),
    ],
    ids=lambda f: type(f).__name__,
)
def test_guarantee_of_a_release_bounds_every_view(family, users):
    features = family.draw(3 if family.coordinates == 1 else 2, generator=generator(1))
    protocol = RandomizedResponseSum(users, 0.2)
    kde = ShuffledKDE(features, protocol, 1e-3)
    views = [*releases(features, protocol, 2, 30)]
    for epsilon in EPSILONS:
        assert (
            worst_release(views, epsilon) <= delta_of(protocol, epsilon, features.composed) + 1e-12
        )
    guarantee = kde.guarantee
    assert worst_release(views, guarantee.epsilon) <= guarantee.delta
    assert guarantee.model == Model.SHUFFLE
    assert guarantee.neighbours == Neighbours.REPLACE_ONE


def test_fewer_instances_than_stated_would_promise_too_much():
    features = GaussianSquareWave(2, 0.1).draw(3, generator=generator(1))
    protocol = RandomizedResponseSum(1, 0.2)
    # the largest found: certified with all instances, not with one less
    worst = worst_release(releases(features, protocol, 2, 200), 2.0)
    assert worst > composed_delta(protocol.profiles(), features.composed - 1, 2.0)
    assert worst <= composed_delta(protocol.profiles(), features.composed, 2.0) + 1e-9


def response_laws(users, flip):
    """P_k and Q_k: the count where the user holds a one or a zero, k of the others a one."""

    def arrivals(bit, k):
        """Of the number of ones, where k of the others hold 1."""
        return bits_law([abs(bit - flip)] + [1 - flip] * k + [flip] * (users - 1 - k))

    return {k: (arrivals(0, k), arrivals(1, k)) for k in range(users)}


def poisson_laws(mean):
    k = np.arange(200)
    # by logarithms: powers would overflow
    factorials = np.array([math.lgamma(v + 1) for v in k])
    law = np.exp(k * math.log(mean) - mean - factorials)
    return {0: (np.append(law, 0), np.append(0, law))}


@pytest.mark.parametrize(
    "protocol, laws",
    [
        (RandomizedResponseSum(1, 0.1), response_laws(1, 0.1)),
        (RandomizedResponseSum(4, 0.2), response_laws(4, 0.2)),
        (PoissonSum(3, 2.5), poisson_laws(2.5)),
    ],
    ids=["one user", "response", "poisson"],
)
def test_guarantee_two_coordinates_that_are_coins_in_turn_cost_no_more_than_one_instance(
    protocol, laws
):
    epsilons = np.linspace(-3, 3, 25)
    one = largest_curve(protocol.profiles(), epsilons)
    without_coins = 0.0
    for k, m in itertools.product(laws, laws):
        # a coordinate that is 0 or 1 with chance one half
        coin = sum(laws[k]) / 2
        other_coin = sum(laws[m]) / 2
        for a, b in itertools.product((0, 1), (0, 1)):
            p = np.outer(laws[k][a], other_coin).ravel()
            q = np.outer(coin, laws[m][b]).ravel()
            found = np.array([hockey_stick(p, q, epsilon) for epsilon in epsilons])
            assert (found <= one + 1e-9).all()
            p = np.outer(laws[k][a], laws[m][1 - b]).ravel()
            q = np.outer(laws[k][1 - a], laws[m][b]).ravel()
            found = np.array([hockey_stick(p, q, epsilon) for epsilon in epsilons])
            without_coins = max(without_coins, float((found - one).max()))
    # two sure bits do cost more than one
    assert without_coins > 0.01


def test_guarantee_of_hashed_buckets_composes_one_instance_for_each_repetition():
    features = LaplacianBuckets(2, 1.0, 2).draw(2, generator=generator(3))
    assert features.instances == 4
    assert features.composed == 2
    protocol = RandomizedResponseSum(2, 0.15)
    views = [*releases(features, protocol, 2, 60)]
    for epsilon in EPSILONS:
        assert (
            worst_release(views, epsilon) <= composed_delta(protocol.profiles(), 2, epsilon) + 1e-12
        )
    # the bound is not idle
    assert worst_release(views, 0.5) > 0.05


def test_guarantee_of_a_calibrated_density_is_within_the_budget_and_uses_most_of_it():
    features = GaussianSquareWave(2).draw(64, generator=generator())
    for kind in (PoissonSum, RandomizedResponseSum):
        kde = ShuffledKDE.calibrated(features, kind, 200, 1.5, 1e-5)
        assert kde.guarantee.epsilon == 1.5
        assert kde.guarantee.delta == 1e-5
        assert (
            delta_of(kde.law, 1.5, features.composed)
            <= 1e-5
            < delta_of(kde.law, 1.45, features.composed)
        )
        # found from delta, rounded up
        assert 1.49 < ShuffledKDE(features, kde.law, 1e-5).guarantee.epsilon < 1.53
        assert kde.law.users == 200
        with pytest.raises(ValueError, match="not certified"):
            _ = ShuffledKDE(features, kde.law, 1e-5, epsilon=1.4).guarantee


def test_guarantee_of_rounded_coordinates_counts_how_far_their_probabilities_move():
    features = InnerProduct(3).draw(1, generator=generator())
    protocol = PoissonSum(1, 60.0)
    delta = 1e-4
    guarantee = ShuffledKDE(features, protocol, delta).guarantee
    assert guarantee.epsilon < epsilon_of(protocol, delta, features.composed)
    noise = poisson_laws(60.0)[0]
    worst = half = 0.0
    for point in (
        [1.0, 0, 0],
        [0.6, 0.8, 0],
        [1, 1, 1],
        [0.2, -0.5, 0.7],
    ):
        x = torch.nn.functional.normalize(float64([point]), dim=1)
        views = []
        for vector in (x, -x):
            q = ((1 + vector[0]) / 2).tolist()
            laws = [c * noise[1] + (1 - c) * noise[0] for c in q]
            laws = [law[20:120] for law in laws]
            views.append(reduce(np.multiply.outer, laws).ravel())
        worst = max(
            worst,
            hockey_stick(*views, guarantee.epsilon),
            hockey_stick(*views[::-1], guarantee.epsilon),
        )
        half = max(half, hockey_stick(*views, guarantee.epsilon / 2))
    assert 0 < worst <= delta < half
    calibrated = ShuffledKDE.calibrated(features, PoissonSum, 10, 1.0, 1e-5)
    assert calibrated.guarantee.epsilon == 1.0
    assert calibrated.law.mean < PoissonSum.calibrated(10, 1.0, 1e-5, 3).mean
    # by counting flips alone it would not be certified
    assert delta_of(calibrated.law, 1.0, 3) > 1e-5


def joint_view(features, kde_of, response, x, labels):
    """Law of (reported labels, counts that arrive in each class) for two users and two classes."""
    law = {}
    for reported in itertools.product(range(2), repeat=len(labels)):
        chance = math.prod(
            response.p if r == label else response.q
            for r, label in zip(reported, labels, strict=True)
        )
        views = []
        for c in range(2):
            members = [r == c for r in reported]
            alone = view(features, kde_of(sum(members)), x[members]) if any(members) else np.ones(1)
            views.append(alone)
        joint = np.multiply.outer(*views)
        law[reported] = chance * joint.ravel()
    return np.concatenate([law[reported] for reported in sorted(law)])


def test_guarantee_of_labels_and_vectors_together_is_the_sum_of_both():
    features = GaussianSquareWave(2, 0.7).draw(2, generator=generator(1))
    response = RandomizedResponse(2, 0.8)

    def kde_of(n):
        return RandomizedResponseSum(n, 0.1)

    kdes = [ShuffledKDE(features, kde_of(n), 0.05) for n in (1, 2)]
    classes = ShuffledClasses(kdes, response)
    stated = classes.guarantee
    assert stated.epsilon == pytest.approx(max(kde.guarantee.epsilon for kde in kdes) + 0.8)
    assert stated.delta == 0.05
    assert not stated.exact
    x = float64([[1.0, 0.2], [-0.5, 0.9]])
    worst = both = 0.0
    for angle in np.linspace(0, 2 * math.pi, 40):
        other = x.clone()
        other[0] = torch.tensor([2 * math.cos(angle), 2 * math.sin(angle)])
        for labels, changed in itertools.product(itertools.product(range(2), repeat=2), range(2)):
            p = joint_view(features, kde_of, response, x, labels)
            q = joint_view(
                features,
                kde_of,
                response,
                other,
                (changed, labels[1]),
            )
            worst = max(
                worst,
                hockey_stick(p, q, stated.epsilon),
                hockey_stick(q, p, stated.epsilon),
            )
            both = max(both, hockey_stick(p, q, stated.epsilon - 0.8))
    assert worst <= stated.delta
    # without the labels' share it would promise too much
    assert both > stated.delta
    # labels in the clear: of the vector alone
    alone = ShuffledClasses(kdes).guarantee
    assert alone.epsilon == pytest.approx(stated.epsilon - 0.8)
