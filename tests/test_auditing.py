"""Audits: their bounds hold at the stated level, see what is broken, and leave ours alone."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import binom

import torchdp
from torchdp import density, domains, mean, pairwise, queries, randomizers, regression, workloads
from torchdp.auditing import Audit, _chance, _chances, audit, audit_guesses, audit_one_run
from torchdp.privacy import Model, gaussian_sigma

NOBODY = torch.tensor([1.0, 0.0])
SOMEBODY = torch.tensor([1.0, 1.0])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def laplace(scale, generator):
    def release(x, runs):
        shares = torch.rand(runs, generator=generator, dtype=torch.float64) - 0.5
        return x.sum() - scale * shares.sign() * torch.log1p(-2 * shares.abs())

    return release


def normal(sigma, generator):
    return lambda x, runs: x.sum() + sigma * torch.randn(runs, generator=generator)


# Of a release at epsilon = 1, what is asked of it, and what is found at least of what is broken.
BROKEN = {
    "half of the noise": (laplace(0.5, seeded(1)), NOBODY, SOMEBODY, 1.8),
    # a sum of values in [0, 10], with the noise for [0, 1]
    "sensitivity forgotten": (laplace(1.0, seeded(2)), 10 * NOBODY, 10 * SOMEBODY, 6.0),
    # the noise of both answers is one number, which their difference does not have
    "a seed for two answers": (
        lambda x, runs: torch.stack([x.sum(), 2 * x.sum()]) + 100 * torch.randn(runs, 1),
        NOBODY,
        SOMEBODY,
        6.0,
    ),
    "a seed for all runs": (
        lambda x, runs: (x.sum() + torch.randn(1, generator=seeded())).expand(runs),
        NOBODY,
        SOMEBODY,
        6.0,
    ),
    "no noise": (lambda x, runs: x.sum().expand(runs), NOBODY, SOMEBODY, 6.0),
    # a support that ends: one tail is reached from one data set alone
    "a tail cut off": (
        lambda x, runs: x.sum() + 4 * torch.randn(runs).clamp(-2, 2),
        NOBODY,
        SOMEBODY,
        4.0,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_caught(name):
    mechanism, x, y, least = BROKEN[name]
    torch.manual_seed(0)
    assert audit(mechanism, x, y).epsilon > least
    # no matter which of the two comes first
    assert audit(mechanism, y, x).epsilon > least


def test_noise_of_a_fixed_seed_is_named():
    mechanism = lambda x, runs: x.sum() + torch.randn(runs, generator=seeded())  # noqa: E731
    with pytest.raises(ValueError, match=r"repeats itself.*fixed seed"):
        audit(mechanism, NOBODY, SOMEBODY)


def test_a_protocol_with_half_of_its_noise_is_caught(monkeypatch):
    """By mu, where epsilon at a delta of 1e-6 is out of a simulation's reach."""
    box = domains.Box(torch.zeros(3), torch.ones(3))
    honest = mean.GaussianMean.tuned(box, epsilon=1.0, delta=1e-6)
    weak = mean.GaussianMean.tuned(box, epsilon=2.0, delta=1e-6)
    x = torch.zeros(20, 3)
    y = x.clone()
    y[0] = 1.0
    assert not audit(honest, x, y, generator=seeded()).broken
    monkeypatch.setattr(mean.GaussianMean, "guarantee", honest.guarantee)
    found = audit(weak, x, y, generator=seeded())
    assert found.broken
    assert found.epsilon < 1.0
    assert found.mu > 1.5 * honest.guarantee.mu
    assert "BROKEN" in str(found)


def ours():
    """Name -> protocol, a data set and its neighbour, of nine packages and models."""
    box = domains.Box(torch.zeros(3), torch.ones(3))
    rows = torch.zeros(50, 3)
    other = rows.clone()
    other[7] = 1.0
    types = torch.zeros(50, dtype=torch.int64)
    changed = types.clone()
    changed[3] = 7
    unit = torch.eye(16, dtype=torch.float64)
    prefix = workloads.prefix(8)
    central = queries.choose(prefix, 50, 1.0, 1e-6, trust="curator", search=False).best
    shuffled = queries.choose(prefix, 50, 1.0, 1e-6, trust="shuffle", search=False).best
    local = queries.choose(prefix, 50, 1.0, search=False).best
    pairs = queries.choose(pairwise.kendall(2, 4), 50, 1.0, search=False).best
    features = density.InnerProductRotated(3).draw(1, generator=seeded())
    kde = density.CentralKDE.calibrated(features, 50, 1.0, 1e-6)
    return {
        "randomizers": (randomizers.RandomizedResponse(8, 1.0), types[:1], changed[3:4]),
        "randomizers.ball": (randomizers.PrivUnit(16, 1.0), unit[:1], -unit[:1]),
        "queries": (local, types[:1], changed[3:4]),
        "queries, curator": (central, types, changed),
        "shuffle": (shuffled, types, changed),
        "pairwise": (pairs, types[:2], torch.tensor([0, 7])),
        "mean": (mean.GaussianMean.tuned(box, epsilon=1.0, delta=1e-6), rows, other),
        "regression": (
            regression.GramRelease(50, 3, 2.0, 1.0, 1e-6, model=Model.CENTRAL),
            2 * torch.eye(3)[:1].expand(50, 3),
            2 * torch.eye(3)[[0] * 49 + [1]],
        ),
        "density": (kde, rows + 0.5, rows + 0.5 - other),
    }


def test_ours_are_not_refuted():
    for seed, (protocol, x, y) in enumerate(ours().values()):
        found = audit(protocol, x, y, runs=40_000, generator=seeded(seed))
        assert not found.broken
        # and the audit has seen the data
        assert found.mu > 0.05


def test_guarantee_level_by_enumeration():
    """Two bounds fail together with at most their stated chance, whatever the two chances are."""
    runs = 14
    failure = 0.05
    counts = np.arange(runs + 1)
    least, most = _chances(counts, counts, runs, failure)
    for chance in np.linspace(0.0, 1.0, 101):
        weights = binom.pmf(counts, runs, chance)
        assert weights[least > chance].sum() <= failure * (1 + 1e-9)
        assert weights[most < chance].sum() <= failure * (1 + 1e-9)


def respond(epsilon, delta, generator):
    """Attains (epsilon, delta): tells the bit with chance delta, else responds."""
    truth = 1 / (1 + math.exp(-epsilon))

    def release(bit, runs):
        told = torch.rand(runs, generator=generator) < delta
        right = torch.rand(runs, generator=generator) < truth
        answer = torch.where(right, bit, 1 - bit)
        return torch.where(told, 2 + bit, answer)

    return release


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.3, 0.1)])
def test_guarantee_false_alarms_are_at_most_the_stated_rate(epsilon, delta):
    mechanism = respond(epsilon, delta, seeded())
    audits = 400
    alarms = 0
    found = []
    for _ in range(audits):
        one = audit(mechanism, 0, 1, runs=1000, delta=delta, confidence=0.8)
        found.append(one.epsilon)
        alarms += one.epsilon > epsilon
    # a chance of .2 is exceeded by so many with one of 1e-6
    assert alarms <= binom.isf(1e-6, audits, 0.2)
    assert np.median(found) > 0.3 * epsilon


def worst_by_programming(m, r, v, epsilon, delta):
    """The largest P(W >= v): a linear program over all mechanisms, each output's chance a variable.

    Shares nothing with Stein's equation.
    """
    coins = list(itertools.product([-1, 1], repeat=m))
    guesses = [t for t in itertools.product([-1, 0, 1], repeat=m) if sum(map(abs, t)) == r]
    chances = len(coins) * len(guesses)
    pairs = [(s, j) for s in range(len(coins)) for j in range(m)]
    size = chances + len(pairs) * len(guesses)
    gain = np.zeros(size)
    for s, t in itertools.product(range(len(coins)), range(len(guesses))):
        right = sum(a == b for a, b in zip(coins[s], guesses[t], strict=True))
        gain[s * len(guesses) + t] = -(right >= v) / len(coins)
    rows, limits = [], []
    for number, (s, j) in enumerate(pairs):
        other = list(coins[s])
        other[j] *= -1
        beside = coins.index(tuple(other))
        excess = chances + number * len(guesses)
        budget = np.zeros(size)
        budget[excess : excess + len(guesses)] = 1
        rows.append(budget)
        limits.append(delta)
        for t in range(len(guesses)):
            row = np.zeros(size)
            row[s * len(guesses) + t] = 1
            row[beside * len(guesses) + t] = -math.exp(epsilon)
            row[excess + t] = -1
            rows.append(row)
            limits.append(0.0)
    whole = np.zeros((len(coins), size))
    for s in range(len(coins)):
        whole[s, s * len(guesses) : (s + 1) * len(guesses)] = 1
    return -linprog(gain, rows, limits, whole, np.ones(len(coins))).fun


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"),
    [
        (2, 2, 2, 1.0, 0.05),
        (3, 3, 2, 0.5, 0.01),
        (3, 2, 2, 1.0, 0.03),
        (3, 3, 3, 0.0, 0.02),
        (3, 1, 1, 1.0, 0.0),
    ],
)
def test_guarantee_of_guesses_is_the_worst_of_all_mechanisms(m, r, v, epsilon, delta):
    worst = worst_by_programming(m, r, v, epsilon, delta)
    assert _chance(epsilon, v, r, m, delta) == pytest.approx(worst, rel=1e-6)


def printed(m, r, v, epsilon, delta):
    """Steinke, Nasr, Jagielski (2023), Theorem 5.2."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = binom.sf(v - 1, r, q)
    steps = np.arange(1, v + 1)
    return tail + 2 * m * delta * ((binom.sf(v - 1 - steps, r, q) - tail) / steps).max()


def test_guesses_beside_the_numbers_that_the_paper_prints():
    for (m, r, v, delta), epsilon in {
        (1000, 100, 75, 1e-4): 0.673,
        (100_000, 1510, 1439, 1e-5): 2.6758,
    }.items():
        # at the paper's epsilon its chance is .05, and ours is less
        assert printed(m, r, v, epsilon, delta) == pytest.approx(0.05, rel=2e-3)
        assert _chance(epsilon, v, r, m, delta) < 0.05
        found = audit_guesses(v, r, m, delta=delta).epsilon
        assert epsilon < found < epsilon + 0.15
        assert _chance(found, v, r, m, delta) == pytest.approx(0.05, rel=1e-6)


def test_guarantee_of_one_run_by_enumeration():
    """Canaries that respond at exactly epsilon: P(bound > epsilon) over all numbers of right ones."""
    epsilon = 1.0
    q = 1 / (1 + math.exp(-epsilon))
    for guesses in (1, 5, 40):
        right = np.arange(guesses + 1)
        above = [
            audit_guesses(int(v), guesses, 60, confidence=0.9).epsilon > epsilon for v in right
        ]
        assert binom.pmf(right, guesses, q)[above].sum() <= 0.1


def test_guarantee_one_run_sees_canaries_and_little_noise():
    def trained(sigma, generator):
        return lambda included: included + sigma * torch.randn(1000, generator=generator)

    sigma = gaussian_sigma(2.0, 1e-5)
    honest = audit_one_run(trained(sigma, seeded(1)), 1000, delta=1e-5, generator=seeded(2))
    assert 0 < honest.epsilon < 2.0
    weak = audit_one_run(trained(sigma / 8, seeded(1)), 1000, delta=1e-5, generator=seeded(2))
    assert weak.epsilon > 2.0
    # all of 200 guesses right: q^200 = .05
    everything = audit_one_run(lambda included: included.double(), 1000).epsilon
    assert everything == pytest.approx(-math.log(math.expm1(-math.log(0.05) / 200)))
    assert audit_one_run(lambda included: torch.zeros(1000), 1000, generator=seeded()).epsilon < 0.5


def test_what_is_wrong_is_named():
    response = randomizers.RandomizedResponse(3, 1.0)
    for wrong, words in {
        lambda: audit(response, [0, 1], [1, 0]): "differ in one user's row.*not in 2",
        lambda: audit(response, [0], [0]): "not in 0",
        lambda: audit(response, [0], [0, 1]): "the same number of users",
        lambda: audit(lambda x, runs: torch.zeros(3), 0, 1): "a row for each of 50000 releases",
        lambda: audit(lambda x, runs: torch.full((runs,), math.nan), 0, 1): "finite numbers",
        lambda: audit(response, [0], [1], runs=3): "runs must be an integer >= 64",
        lambda: audit_guesses(3, 2, 10): "right must be an integer of at most 2",
        lambda: audit_one_run(lambda included: torch.zeros(3), 10): "a score for each of 10",
    }.items():
        with pytest.raises(ValueError, match=words):
            wrong()
    with pytest.raises(TypeError, match="mechanism must be a Protocol or a function"):
        audit(3, 0, 1)


def test_an_audit_says_what_it_found():
    found = torchdp.audit(randomizers.RandomizedResponse(3, 1.0), [0], [1], generator=seeded())
    assert "not refuted (local differential privacy, exactly epsilon = 1)" in str(found)
    assert 0.9 < found.epsilon <= 1.0
    assert str(Audit(0.5, 0.0, 0.95)) == "epsilon >= 0.5 at delta = 0, with 95 % confidence"
