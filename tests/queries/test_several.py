"""Several questions of one collection: what is known asks for nothing, and answers are those of
each question alone.
"""

import pytest
import torch
from laws import float64, generator

from torchdp import pairwise, queries
from torchdp.queries import Linear, LocalOracle, Several
from torchdp.randomizers import SubsetSelection

MEAN = Linear(torch.arange(6, dtype=torch.float64)[None])
ONES = Linear(torch.ones(1, 6, dtype=torch.float64))
GINI = pairwise.absolute_difference(6)
COUNTS = torch.tensor([300, 200, 100, 200, 100, 100])


def test_each_answer_is_that_of_its_question_alone():
    together = LocalOracle.of(Several((MEAN, GINI)), SubsetSelection(6, 1.0))
    tally = together.sample_tally(COUNTS, generator=generator(1))
    found = together.analyse(tally)
    alone = [LocalOracle.of(one, SubsetSelection(6, 1.0)).analyse(tally) for one in (MEAN, GINI)]
    values = [each.value.flatten()[0] for each in alone]
    torch.testing.assert_close(found.value, torch.stack(values))
    for ends, first, second in zip(
        found.interval(),
        *(each.interval() for each in alone),
        strict=True,
    ):
        both = [first.flatten()[0], second.flatten()[0]]
        torch.testing.assert_close(ends, torch.stack(both))
    assert found.covariance().shape == (2, 2)


def test_a_strategy_is_made_for_several_questions_of_which_one_is_known():
    asked = Several((ONES, MEAN, GINI))
    made = LocalOracle.tuned(
        asked,
        1000,
        1.0,
        prior=asked.histograms,
        generator=generator(2),
        steps=30,
    )
    found = made.predicted_mse(COUNTS)
    plain = LocalOracle.of(asked, SubsetSelection(6, 1.0)).predicted_mse(COUNTS)
    assert float(found[0]) < 1e-20
    assert bool((found[1:] < plain[1:]).all())
    assert queries.choose((ONES, MEAN, GINI), 1000, 1.0, search=False).candidates[0].error < 2


def test_noise_on_whole_steps_is_the_least_for_one_mean():
    """A mean of 0, ..., 15 moves by 15/n: discrete Laplace noise of deviation 15 2^(1/2)/epsilon
    over n.
    """
    values = torch.arange(16, dtype=torch.float64)[None]
    for trust in ("curator", "servers"):
        best = queries.choose(
            0.3 * values + 5, 1000, 1.0, 1e-6, trust=trust, search=False
        ).candidates
        assert best[0].name == "whole answers, discrete Laplace"
        assert best[0].error == pytest.approx(0.3 * 15 * 2**0.5 / 1000, rel=2e-3)
        sums = next(one for one in best if one.name == "sums, discrete Laplace")
        assert 2.4 < sums.error / best[0].error < 2.5
    odd = float64([[0.0, 1.0, 2**0.5]])
    names = [
        one.name
        for one in queries.choose(odd, 1000, 1.0, 1e-6, trust="curator", search=False).candidates
    ]
    assert "whole answers, discrete Laplace" not in names


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((GINI, 1, 1.0), {}, "n must be an integer >= 2, not 1"),
        (
            ((MEAN, pairwise.third_central_moment(6)), 2, 1.0),
            {},
            "n must be an integer >= 3, not 2",
        ),
        (
            (torch.ones(2, 1).double(), 10, 1.0, 1e-6),
            {"trust": "servers"},
            "question must be of two types at least",
        ),
        (
            (GINI, 10, 1.0),
            {"trust": ["local"]},
            "trust must be a str, not list",
        ),
    ],
)
def test_what_a_choice_can_not_answer_is_said(arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        queries.choose(*arguments, **options)
