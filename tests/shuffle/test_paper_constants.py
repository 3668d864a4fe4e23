"""Closed forms of the literature: what they promise, by how much they overshoot, and where they fail."""

import math

import pytest

from torchdp.shuffle import PoissonSum, RandomizedResponseSum, delta_of, epsilon_of, paper

DELTA = 1e-6


@pytest.mark.parametrize("total", [0.01, 1.0, 7.0])
@pytest.mark.parametrize("sparsity", [1, 3])
def test_guarantee_the_split_spends_the_budget_and_no_more(total, sparsity):
    each, delta = paper.split(total, DELTA, 768, sparsity)
    spent = paper.composition(each, delta, 768, DELTA / 2, sparsity)
    assert spent[0] <= total and spent[0] == pytest.approx(total, rel=1e-9)
    assert spent[1] == pytest.approx(DELTA, rel=1e-12)
    assert paper.composition(1.001 * each, delta, 768, DELTA / 2, sparsity)[0] > total


@pytest.mark.parametrize("users", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_guarantee_the_papers_composed_response_is_private_and_85_times_more_than_it_says(users):
    nominal = 2.0
    protocol = paper.randomized_response(users, *paper.split(nominal, DELTA, 768))
    assert delta_of(protocol, nominal, 768) <= 1e-10
    assert 83 < nominal / epsilon_of(protocol, DELTA, 768) < 90
    assert (
        60 < protocol.rmse / RandomizedResponseSum.calibrated(users, nominal, DELTA, 768).rmse < 65
    )
    assert protocol.rmse == pytest.approx(3920, rel=2e-3)


@pytest.mark.parametrize("users", [100, 1000, 100_000])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_guarantee_the_papers_response_holds_up_to_epsilon_1(users, epsilon, delta):
    assert delta_of(paper.randomized_response(users, epsilon, delta), epsilon, 1) <= delta


@pytest.mark.parametrize("users", [100, 100_000])
def test_guarantee_the_papers_response_of_one_instance_is_private_as_its_theorem_3_1_composes_it(
    users,
):
    one, delta = paper.split(7.0, DELTA, 1)
    assert one == pytest.approx(0.989258, abs=1e-6) and delta == DELTA / 2
    assert delta_of(paper.randomized_response(users, one, delta), 7.0, 1) <= 1e-300
    if (
        users == 100_000
    ):  # outside its range, at epsilon = 7 in one bit, which the paper never does, the form fails
        assert delta_of(paper.randomized_response(users, 7.0, DELTA), 7.0, 1) > 40 * DELTA


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_guarantee_the_papers_poisson_noise_is_private_and_too_much(epsilon, delta):
    protocol = paper.poisson(100, epsilon, delta)
    assert delta_of(protocol, epsilon, 1) <= 1e-15
    assert protocol.mean > 10 * PoissonSum.calibrated(100, epsilon, delta, 1).mean


@pytest.mark.parametrize("make", [paper.correlated, paper.correlated_one])
@pytest.mark.parametrize(("epsilon", "delta", "gamma"), [(0.9, 1e-3, 0.2), (0.5, 1e-6, 0.3)])
def test_guarantee_the_papers_correlated_noise_is_private(make, epsilon, delta, gamma):
    protocol = make(50, epsilon, delta, gamma)
    assert delta_of(protocol, epsilon, 1) <= delta
    assert protocol.ratio == pytest.approx(math.exp(-(1 - gamma) * epsilon))
    # no more than the noise that stays
    assert delta_of(protocol, 0.7 * (1 - gamma) * epsilon, 1) > delta


def test_the_papers_pure_parameters():
    ratio, drop = paper.pure(100_000, 2.0, 0.5)
    assert ratio == pytest.approx(math.exp(-1.995))
    assert 1e5 * drop == pytest.approx(0.1 / (math.exp(2) * (1 - math.exp(-2)) ** 2))
    assert 0.3 < paper.pure(40_000, 2.0 / 768)[1] < 0.4  # a third of the bits are dropped
