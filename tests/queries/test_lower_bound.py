"""Lower bounds beside predictions: no unbiased candidate is below them, and they are of the right
size.
"""

import math

import pytest
import torch
from laws import float64

from torchdp import queries, workloads
from torchdp.protocol import Choice, Objective
from torchdp.protocol.choice import Candidate


@pytest.mark.parametrize(
    ("objective", "given"),
    [
        (Objective.WORST, True),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                (Objective.WORST, False),
                (Objective.MEAN, True),
            )
        ),
        pytest.param(Objective.MEAN, False, marks=pytest.mark.slow),
    ],
)
def test_guarantee_no_unbiased_candidate_errs_less(brief, objective, given):
    W = float64([[0.0, 1, 2, 3, 4], [1, 0, 0, 0, 1], [0, 0, 5, 0, 0]])
    prior = torch.tensor([0.0, 1, 2, 1, 4]) if given else None
    for epsilon in (0.3, 3.0):
        choice = queries.choose(
            W,
            1_000,
            epsilon,
            objective=objective,
            prior=prior,
        )
        tried = [one for one in choice.candidates if float(one.protocol.bias.abs().max()) < 1e-9]
        unbiased = [one.error for one in tried]
        assert 0.3 * min(unbiased) < choice.bound <= min(unbiased) * (1 + 1e-9)
        assert choice.bound == queries.lower_bound(W, 1_000, epsilon, objective, prior=prior)


def test_one_query_and_the_worst_data_are_two_types_and_randomized_response():
    W = float64([[0.0, 0.5, 4.0]])
    n = 50
    two = torch.tensor([1.0, 0, 1])
    for epsilon in (1e-3, 1.0, 20.0):
        wanted = 2 / math.sinh(epsilon / 2) / math.sqrt(n)
        assert queries.lower_bound(W, n, epsilon, Objective.WORST) == pytest.approx(
            wanted, rel=1e-12
        )
        assert queries.lower_bound(W, n, epsilon, prior=two) == pytest.approx(wanted, rel=1e-9)
    assert queries.lower_bound(W, n, 1e-9) == queries.lower_bound(W, n, 1e-6)
    assert queries.lower_bound(W, n, 1e4) == 0 == queries.lower_bound(torch.ones(2, 3), n, 1.0)


def test_functions_by_their_slopes(brief):
    function = queries.Spearman(3, 3)
    n = 2_000
    h = torch.full((9,), 1 / 9, dtype=torch.float64)
    choice = queries.choose(function, n, 1.0, prior=h)
    assert 0 < function.bound(n, 1.0, h) <= choice.bound * (1 + 1e-12)
    assert choice.bound < choice.candidates[0].error < 2.5 * choice.bound
    # of two groups of one law: its slope vanishes
    flat = queries.EnergyDistance(3)
    assert flat.bound(n, 1.0, torch.ones(6)) == pytest.approx(0, abs=1e-9)


def test_a_choice_says_what_is_known():
    candidates = (Candidate("a", None, 2.0), Candidate("b", None, 1.5))
    assert str(Choice(candidates)).splitlines()[0] == "candidate    predicted error"
    assert str(Choice(candidates)).splitlines()[-1] == "lower bound  none known"
    assert str(Choice(candidates, 1.25)).splitlines()[-1].split()[:3] == [
        "lower",
        "bound",
        "1.25",
    ]
    parities = workloads.parities(11, 1).dense()[:3]
    many = queries.choose(parities, 100, 1.0, objective=Objective.MEAN)
    # beyond 1,024 types
    assert many.bound is None
