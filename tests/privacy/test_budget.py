"""Budget: what it lets pass, against the worst that an adversary makes of it who chooses as answers
come in.
"""

import copy
import functools
import math
import pickle
import threading

import pytest

from torchdp.privacy import (
    Arithmetic,
    Budget,
    Guarantee,
    Model,
    Neighbours,
    gaussian_guarantee,
    gaussian_sigma,
)

MODEL = (Model.CENTRAL, Neighbours.REPLACE_ONE)


def asked(epsilon, delta=0.0, **other):
    return Guarantee(epsilon, delta, *MODEL, True, "source", **other)


def normal(mu, delta=1e-6):
    return gaussian_guarantee(1.0, delta, mu, *MODEL)


def test_sums_are_spent_to_the_end_and_no_further():
    budget = Budget(asked(1.0, 1e-6))
    for _ in range(3):
        # three thirds fit, whichever way they were rounded
        left = budget.spend(asked(1 / 3, 1e-6 / 3))
    assert left == budget.left
    assert (left.epsilon, left.delta) == pytest.approx((0.0, 0.0), abs=1e-15)
    for more in (
        asked(1e-8),
        asked(0.0, 1e-14),
        asked(1.0),
    ):
        with pytest.raises(ValueError, match=r"more than the budget has left.*left: .*epsilon = "):
            budget.spend(more)
    # nothing costs nothing
    assert budget.spend(asked(0.0)) == left


def test_gaussian_noise_is_spent_by_the_square():
    mu = 1 / gaussian_sigma(1.0, 1e-6)
    budget = Budget(normal(mu))
    for left in range(15, -1, -1):
        # at whatever delta
        found = budget.spend(normal(mu / 4, 1e-9))
        assert found.mu == pytest.approx(mu * math.sqrt(left) / 4, abs=1e-6)
        assert found.epsilon <= 1.0 + 1e-9
        assert found.delta == 1e-6
    with pytest.raises(ValueError, match="more than the budget has left"):
        budget.spend(normal(mu / 1000))
    # the same releases by sums
    summed = Budget(asked(1.0, 1e-6))
    for _ in range(3):
        summed.spend(normal(mu / 4, 1e-8))
    with pytest.raises(ValueError, match="more"):
        summed.spend(normal(mu / 4, 1e-8))


def test_rounded_integers_spend_their_variation_too():
    def integers(mu, variation):
        return gaussian_guarantee(1.0, 1e-6, mu, *MODEL, variation)

    budget = Budget(integers(1.0, 1e-25))
    left = budget.spend(integers(0.5, 0.75e-25))
    assert left.arithmetic is Arithmetic.ROUNDED
    assert left.variation == pytest.approx(0.25e-25)
    for more in (integers(0.5, 0.3e-25), integers(0.9, 0.2e-25)):
        with pytest.raises(ValueError, match=r"more than the budget has left.*variation = 2.5e-26"):
            budget.spend(more)
    with pytest.raises(ValueError, match="kind of privacy"):
        budget.spend(normal(0.5))
    # of real numbers: their theorem alone
    real = Budget(normal(1.0))
    assert real.spend(integers(0.5, 0.75e-25)).variation == 0


def worst(costs, limit, epsilon, steps):
    """The largest delta at epsilon of up to ``steps`` randomized responses, the next chosen from
    the loss so far.

    costs: from a response's epsilon, in tenths, to what it takes of ``limit``.
    """

    @functools.cache
    def value(loss, spent, steps):
        found = max(0.0, 1 - math.exp(epsilon - loss / 10))
        for each, cost in costs.items() if steps else ():
            if spent + cost <= limit * (1 + 1e-12):
                likely = 1 / (1 + math.exp(-each / 10))
                total = round(spent + cost, 12)
                up = value(loss + each, total, steps - 1)
                down = value(loss - each, total, steps - 1)
                found = max(found, likely * up + (1 - likely) * down)
        return found

    return value(0, 0.0, steps)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_guarantee_of_mu_against_responses_chosen_as_answers_come_in(epsilon):
    limit = gaussian_guarantee(1.0, 0.02, 0.9, *MODEL)

    def cost(each):
        budget = Budget(limit)
        return 0.81 - budget.spend(asked(each / 10)).mu ** 2

    costs = {each: cost(each) for each in (1, 2, 4, 6)}
    allowed = 0.5 * (math.erfc(-(0.45 - epsilon / 0.9) / math.sqrt(2)))
    allowed -= math.exp(epsilon) * 0.5 * math.erfc((0.45 + epsilon / 0.9) / math.sqrt(2))
    # the best adversary takes a third of what the bound allows
    assert 0.3 * allowed < worst(costs, 0.81, epsilon, 12) <= allowed
    # half of what zCDP would take
    cheap = {each: (each / 10) ** 2 / 2 for each in costs}
    assert worst(cheap, 0.81, epsilon, 12) > 1.1 * allowed


def test_guarantee_of_sums_against_responses_chosen_as_answers_come_in():
    def cost(each):
        budget = Budget(asked(1.0))
        return 1 - budget.spend(asked(each / 10)).epsilon

    costs = {each: cost(each) for each in (1, 2, 4, 6)}
    assert worst(costs, 1.0, 1.0, 10) <= 1e-12
    # five per cent less epsilon is not enough
    assert worst(costs, 1.0, 0.95, 10) > 0.01
    # negative control: responses that cost a tenth less
    assert worst({each: 0.9 * cost for each, cost in costs.items()}, 1.0, 1.0, 12) > 0.01


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0, 5.0, 30.0, 600.0])
def test_guarantee_mu_of_pure_privacy_is_the_least_that_covers_it(epsilon):
    budget = Budget(gaussian_guarantee(1.0, 0.999, 100.0, *MODEL))
    mu = math.sqrt(100.0**2 - budget.spend(asked(epsilon)).mu ** 2)
    # the Gaussian trade-off curve meets the response's corner
    lie = 0.5 * math.erfc(mu / 2 / math.sqrt(2))
    expected = -epsilon - math.log1p(math.exp(-epsilon))
    assert math.log(lie) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_threads_spend_what_there_is_and_no_more():
    budget = Budget(asked(1.0))
    passed = []

    def spend():
        for _ in range(50):
            try:
                budget.spend(asked(1 / 64))
                passed.append(1)
            except ValueError:
                pass

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(passed) == 64
    assert budget.left.epsilon == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(duplicate):
    with pytest.raises(TypeError, match="copied or pickled"):
        duplicate(Budget(asked(1.0)))


def test_budgets_of_numbers():
    plain = Budget.of(epsilon=1.0, delta=1e-6)
    assert (plain.limit.epsilon, plain.limit.delta, plain.limit.mu) == (1.0, 1e-6, None)
    assert (plain.limit.model, plain.limit.neighbours) == MODEL
    with pytest.raises(ValueError, match="more than the budget has left"):
        plain.check(asked(1.1))
    # a check takes nothing
    for _ in range(2):
        plain.check(asked(1.0))
    squared = Budget.of(epsilon=1.0, delta=1e-6, squares=True).limit
    assert squared.mu == pytest.approx(1 / gaussian_sigma(1.0, 1e-6))
    with pytest.raises(ValueError, match="epsilon or rho must be given"):
        Budget.of(epsilon=1.0, rho=1.0)


def test_guarantee_rho_spends_as_zero_concentrated_privacy_composes():
    budget = Budget.of(rho=0.5)
    for left in (0.375, 0.25, 0.125, 0.0):
        assert budget.spend(normal(0.5)).rho == pytest.approx(left)
    with pytest.raises(ValueError, match="more than the budget has left"):
        budget.spend(normal(0.01))
