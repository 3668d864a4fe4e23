"""Accounting by summed inversion: known noise, enumeration, the worst patterns found, and
limits.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import (
    from_two_probability_mass_functions,
)
from laws import hockey_stick
from scipy import stats

from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.shuffle import BoundedSum, PoissonSum, Sensitivity
from torchdp.shuffle.count_laws import poisson_law
from torchdp.shuffle.inversion import Cut, Move, moved_delta

KINDS = {"Poisson": PoissonSum, "bounded": BoundedSum}


@pytest.mark.parametrize(
    (
        "kind",
        "users",
        "instances",
        "change",
        "epsilon",
        "levels",
        "variance",
    ),
    [
        ("Poisson", 125, 64, 4, 4.5, 1, 14.29),
        ("Poisson", 125, 64, 4, 4.5, 4, 4.65),
        ("Poisson", 125, 768, 46, 1, 1, 652.3),
        ("bounded", 125, 64, 4, 4.5, 1, 4.615),
        ("bounded", 125, 64, 4, 4.5, 4, 3.93),
        ("bounded", 20, 64, 4, 4.5, 1, 4.75),
    ],
)
def test_known_noise(kind, users, instances, change, epsilon, levels, variance):
    """Variance of one sum at delta = 1e-5; never below the curator's."""
    moved = levels**2 * change
    law = KINDS[kind].calibrated(
        users,
        epsilon,
        1e-5,
        Sensitivity(instances, change=moved, largest=levels),
    )
    found = float(law.variance(torch.zeros(()))) / levels**2
    assert found == pytest.approx(variance, rel=5e-3)
    assert gaussian_log_delta(math.sqrt(found / change), epsilon) <= math.log(1e-5)


def shifted(mass, u):
    """The law of floor u + Bernoulli(u - floor u) + D on one array for all u up to 4."""
    whole = int(u)
    out = np.zeros(len(mass) + 6)
    for k, chance in ((whole, 1 - (u - whole)), (whole + 1, u - whole)):
        out[k : k + len(mass)] += chance * mass
    return out


def exact(pairs, epsilon):
    P = np.array([1.0])
    Q = np.array([1.0])
    for p, q in pairs:
        P = np.multiply.outer(P, p).ravel()
        Q = np.multiply.outer(Q, q).ravel()
    return hockey_stick(P, Q, epsilon)


MASSES = {
    "Poisson": (
        PoissonSum(9, 4.0),
        stats.poisson.pmf(np.arange(40), 4.0),
    ),
    "bounded": (
        BoundedSum(4, 1.3),
        BoundedSum(4, 1.3).noise_law().mass,
    ),
}


@pytest.mark.parametrize("levels", [0.7, 1, 1.6, 3])
@pytest.mark.parametrize("name", MASSES)
def test_guarantee_no_pair_of_vectors_in_two_coordinates_is_told_apart_better(name, levels):
    """Every pair on a grid, all outcomes; and the bound is not far above the worst of them."""
    law, mass = MASSES[name]
    values = np.linspace(0, levels, round(3 * levels) + 1)[:: 1 if levels < 3 else 2]
    laws = {u: shifted(mass, u) for u in values}
    worst = {}
    epsilon = 0.8 if levels >= 1 else 0.1
    for (a, b), (c, d) in itertools.product(
        itertools.combinations_with_replacement(values, 2), repeat=2
    ):
        # rounded: the same movement by two ways is one
        change = round((a - c) ** 2 + (b - d) ** 2, 9)
        if 0 < change:
            pairs = [(laws[a], laws[c]), (laws[b], laws[d])]
            found = exact(pairs, epsilon)
            worst[change] = max(worst.get(change, 0.0), found)
    ratios = [
        found / moved_delta(law.noise_law(), epsilon, 2, change, levels)
        for change, found in worst.items()
    ]
    # several movements were met
    assert len(ratios) > 4
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", MASSES)
def test_guarantee_no_pair_of_100_000_in_two_coordinates_is_told_apart_better(name):
    """As above on a grid of eighths of a step, against the bound at the least movement of sixty
    that is no less.
    """
    law, mass = MASSES[name]
    pairs = 0
    violated = 0
    for levels, steps in ((1, 12), (2, 12), (3, 8)):
        values = np.linspace(0, levels, levels * steps + 1)
        laws = np.stack([shifted(mass, u) for u in values])
        pairs_of_values = itertools.combinations_with_replacement(range(len(values)), 2)
        first, second = np.array(list(pairs_of_values)).T
        # the bound at a larger change holds for a smaller one
        marks = np.linspace(0, 2.0, 61)[1:]
        bounds = np.array(
            [moved_delta(law.noise_law(), 0.8, 2, levels**2 * mark, levels) for mark in marks]
        )
        Q = laws[first][:, :, None] * laws[second][:, None]
        Q = Q.reshape(len(first), -1)
        for i in range(len(values)):
            for j in range(i, len(values)):
                P = np.multiply.outer(laws[i], laws[j]).ravel()
                excess = np.maximum(P - math.exp(0.8) * Q, 0)
                found = excess.sum(1)
                change = (values[i] - values[first]) ** 2 + (values[j] - values[second]) ** 2
                bound = bounds[np.searchsorted(marks, change / levels**2 - 1e-12)]
                pairs = pairs + len(found)
                above = found > bound * (1 + 1e-9)
                violated = violated + int(above.sum())
    assert pairs > 100_000
    assert violated == 0


def composed(P, Q, times, epsilon):
    """A lower bound on delta of so many independent pairs, either way, by the package's optimistic
    grid.
    """
    with np.errstate(divide="ignore"):
        logs = [np.log(law).tolist() for law in (P, Q)]
        logs = [{i: x for i, x in enumerate(each) if x > -80} for each in logs]
    one = from_two_probability_mass_functions(
        *logs,
        pessimistic_estimate=False,
        value_discretization_interval=1e-3,
    )
    return float(one.self_compose(times).get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize(
    ("name", "epsilon", "change"),
    [
        ("Poisson", 1.0, 4.0),
        ("bounded", 1.0, 4.0),
        ("bounded", 4.5, 4.0),
    ],
)
def test_guarantee_the_worst_pattern_found_is_below_and_near(name, epsilon, change):
    """Equal moves of every size and of all four types, in 64 coordinates; 5 % less noise is
    noticed.
    """
    law = KINDS[name].calibrated(125, epsilon, 1e-5, Sensitivity(64, change=change))
    smaller = (
        PoissonSum(125, 0.95 * law.mean)
        if name == "Poisson"
        else BoundedSum(125, 0.975 * law.deviation)
    )

    def worst(law):
        mass = law.noise_law().mass
        found = 0.0
        base = shifted(mass, 0.0)
        one = shifted(mass, 1.0)
        for t in (0.25, 0.5, 0.75, 0.9, 1.0):
            times = min(64, int(change / t**2))
            up = shifted(mass, t)
            down = shifted(mass, 1 - t)
            for P, Q in ((base, up), (one, down)):
                found = max(found, composed(P, Q, times, epsilon))
        return found

    assert 0.75e-5 < worst(law) <= 1e-5 < worst(smaller)


def test_more_noise_than_a_gaussian_and_nearly_none_more():
    """Wide noise is Gaussian: 2,048 numbers that may all flip; told by blocks or one by one."""
    found = moved_delta(poisson_law(20_000.0), 1.0, 2048, 1024.0)
    curator = math.exp(gaussian_log_delta(math.sqrt(20_000.0 / 1024), 1.0))
    assert curator <= found < 1.05 * curator


def test_the_floor_of_poisson_noise():
    """delta >= about sqrt(I change) Pr[D = 0], attained at 64 numbers that move by 4 in all."""
    law = PoissonSum.calibrated(125, 4.5, 1e-5, Sensitivity(64, change=4.0))
    assert law.mean == pytest.approx(math.log(math.sqrt(64 * 4.0) / 1e-5), rel=2e-3)
    assert (
        BoundedSum.calibrated(125, 4.5, 1e-5, Sensitivity(64, change=4.0)).noise_variance
        < law.mean / 3
    )


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_more_movement_and_less_noise_cost_more(levels):
    noise = PoissonSum(50, 30.0).noise_law()
    moved = 4.0 * levels**2
    delta = moved_delta(noise, 1.5, 64, moved, levels)
    assert (
        moved_delta(noise, 1.5, 64, 1.1 * moved, levels)
        > delta
        > moved_delta(noise, 1.7, 64, moved, levels)
    )
    assert moved_delta(PoissonSum(50, 27.0).noise_law(), 1.5, 64, moved, levels) > delta
    assert moved_delta(noise, 1.5, 128, moved, levels) >= delta


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("up", [True, False], ids=["base Q", "base P"])
@pytest.mark.parametrize("turned", [False, True])
def test_moduli_are_those_of_the_pairs(turned, up, levels):
    """|sum P^(1 + z) Q^(-z)|, outcome by outcome, less what is lost, and the tails' mass where
    nothing is lost.
    """
    mass = stats.poisson.pmf(np.arange(25), 5.0)
    cut = Cut(mass[3:20], 0.01, 0.0)
    x = np.linspace(0.1, levels, 7 * levels)
    a = 1.7
    step = 0.9
    found = list(Move.of_noise(cut, x, turned, up).moduli(a, step, 3))
    base = np.concatenate([cut.mass[::-1] if turned else cut.mass, np.zeros(6)])
    for i, distance in enumerate(x):
        k = int(distance)
        theta = distance - int(distance)
        moved = shifted(base[:-6], distance)
        P, Q = (moved, base) if up else (base.copy(), moved.copy())
        # the part theta of the lowest outcome that Q reaches is lost
        if not up:
            P[k] *= 1 - theta
        both = (P > 0) & (Q > 0)
        for j in range(3):
            z = complex(a, step * j)
            products = P[both].astype(complex) ** (1 + z) * Q[both].astype(complex) ** -z
            M = products.sum() + 0.01
            assert found[j][i] == pytest.approx(abs(M), rel=1e-9)


def test_far_more_noise_than_is_needed_takes_no_longer():
    assert PoissonSum(1000, 400.0).moved_delta(8.0, Sensitivity(16, 1e-4)) == pytest.approx(
        1e-13, rel=1e-3
    )


@pytest.mark.parametrize(("epsilon", "levels"), [(0.001, 1), (0.02, 8)])
def test_wide_noise_is_told_from_gaussian_noise_by_little(epsilon, levels):
    sigma = 1.02 * gaussian_sigma(epsilon, 1e-6, 2.0)
    found = PoissonSum(100, (levels * sigma) ** 2).moved_delta(
        epsilon, Sensitivity(8, 4.0 * levels**2, largest=levels)
    )
    least = math.exp(gaussian_log_delta(sigma, epsilon, 2.0))
    assert least < found < 1.1 * least


def test_noise_of_three_users_is_calibrated_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BoundedSum.calibrated(3, 1.0, 1e-6, Sensitivity(8, change=4.0))
