"""Audits: their bounds hold at the stated level, see what is broken, and leave ours alone."""

import math

import numpy as np
import pytest
import torch
from contract import entries
from scipy.optimize import linprog
from scipy.stats import binom

from torchdp import domains, mean, randomizers
from torchdp.auditing import _chance, _chances, audit, audit_guesses, audit_one_run
from torchdp.privacy import gaussian_sigma

NOBODY = torch.tensor([1.0, 0.0])
SOMEBODY = torch.tensor([1.0, 1.0])
RESPONSE = randomizers.RandomizedResponse(8, 1.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def laplace(scale):
    return lambda x, runs: x.sum() + torch.distributions.Laplace(0.0, scale).sample((runs,))


def doubled(x, runs):
    """The noise of both answers is one number, which their difference does not have."""
    return torch.stack([x.sum(), 2 * x.sum()]) + 100 * torch.randn(runs, 1)


# What is meant to have epsilon = 1, its data, and what is found at least.
BROKEN = {
    "half of the noise": (laplace(0.5), NOBODY, SOMEBODY, 1.8),
    # a sum of values in [0, 10], with the noise for [0, 1]
    "sensitivity forgotten": (laplace(1.0), 10 * NOBODY, 10 * SOMEBODY, 6.0),
    "a seed used again": (doubled, NOBODY, SOMEBODY, 6.0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_caught(name):
    mechanism, x, y, least = BROKEN[name]
    torch.manual_seed(0)
    assert audit(mechanism, x, y).epsilon > least
    # no matter which of the two comes first
    assert audit(mechanism, y, x).epsilon > least


def test_a_protocol_with_half_of_its_noise_is_caught(monkeypatch):
    """By mu, where epsilon at a delta of 1e-6 is out of a simulation's reach."""
    box = domains.Box(torch.zeros(3), torch.ones(3))
    honest = mean.GaussianMean.tuned(box, epsilon=1.0, delta=1e-6)
    weak = mean.GaussianMean.tuned(box, epsilon=2.0, delta=1e-6)
    data = torch.zeros(2, 3), torch.tensor([[0.0] * 3, [1.0] * 3])
    assert "not refuted" in str(audit(honest, *data, generator=seeded()))
    monkeypatch.setattr(mean.GaussianMean, "guarantee", honest.guarantee)
    found = audit(weak, *data, generator=seeded())
    assert found.epsilon < 1.0
    assert found.mu > 1.5 * honest.guarantee.mu
    assert "BROKEN" in str(found)


@pytest.mark.slow  # all mechanisms of the battery
def test_ours_are_not_refuted():
    found = {}
    for name, entry in entries().items():
        x = entry.x
        y = x.clone()
        # the first user's row is the last that differs from it
        other = (x != x[0]).reshape(len(x), -1).any(1).nonzero()
        y[0] = x[other[-1]]
        found[name] = audit(entry.protocol, x, y, runs=4000, generator=seeded())
    assert not {name: one for name, one in found.items() if one.broken}
    # and the audit sees the data of many
    assert sum(one.mu > 0.1 for one in found.values()) > 25


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


def test_guarantee_false_alarms_are_at_most_the_stated_rate():
    """Of a mechanism that attains epsilon = 1."""
    draws = seeded()
    found = torch.tensor(
        [
            audit(RESPONSE, [0], [1], runs=1000, confidence=0.8, generator=draws).epsilon
            for _ in range(400)
        ]
    )
    # a chance of .2 is exceeded by so many with one of 1e-6
    assert (found > 1.0).sum() <= binom.isf(1e-6, len(found), 0.2)
    assert 0.3 < found.median() < 1.0


def worst_by_programming(m, r, v, epsilon, delta):
    """The largest P(W >= v), by a linear program over P(W = w), w = 0, ..., r.

    Flipping coins, or renaming canaries, before and after is private as well: the worst mechanism
    may be as likely to be wrong on any r - w of its guesses. Shares nothing with Stein's equation.
    """
    right = np.arange(r + 1.0)
    wrong = r - right
    # what outputs of a right guess, and of a wrong one, have beyond e^epsilon times the others
    told = np.diag(right) - math.exp(epsilon) * np.diag(wrong[:-1], -1)
    missed = np.diag(wrong) - math.exp(epsilon) * np.diag(right[1:], 1)
    beyond = np.block([[np.vstack([told, missed]), -np.eye(2 * r + 2)]])
    chances = np.repeat([1.0, 0.0], [r + 1, 2 * r + 2])
    limits = np.append(np.zeros(2 * r + 2), m * delta)
    goal = np.append(right >= v, np.zeros(2 * r + 2))
    return -linprog(-goal, np.vstack([beyond, 1 - chances]), limits, chances[None], [1.0]).fun


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"),
    [(1, 1, 1, 1.0, 0.05), (3, 2, 2, 0.5, 0.01), (40, 30, 27, 1.0, 1e-4)],
)
def test_guarantee_of_guesses_is_the_worst_of_all_mechanisms(m, r, v, epsilon, delta):
    worst = worst_by_programming(m, r, v, epsilon, delta)
    assert _chance(epsilon, v, r, m, delta) == pytest.approx(worst, rel=1e-6)


def test_guesses_beside_the_numbers_that_the_paper_prints():
    """Steinke, Nasr, Jagielski (2023), Appendix D and Figure 11: a larger delta term."""
    assert 0.673 < audit_guesses(75, 100, 1000, delta=1e-4).epsilon < 0.7
    assert 2.675 < audit_guesses(1439, 1510, 100_000, delta=1e-5).epsilon < 2.81
    # all of 200 guesses right: q^200 = .05
    everything = audit_guesses(200, 200, 1000).epsilon
    assert everything == pytest.approx(-math.log(math.expm1(-math.log(0.05) / 200)))


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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: audit(RESPONSE, [0, 1], [1, 0]), "of whom exactly one differs"),
        (lambda: audit(lambda x, runs: torch.zeros(3), 0, 1), "finite numbers for each of 50000"),
        (
            lambda: audit(lambda x, runs: torch.randn(runs, generator=seeded()), 0, 1),
            "repeats itself.* fixed seed",
        ),
        (lambda: audit_one_run(lambda included: torch.zeros(3), 10), "a score for each of 10"),
    ],
)
def test_what_is_wrong_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
