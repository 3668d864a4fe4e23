"""The choice between routes: the errors that it predicts are those that are measured, and its
reasons hold.
"""

import math

import pytest
import torch
from laws import generator, sampled
from products import regression_rows, spectrum_rows

from torchdp.regression import (
    GramRelease,
    SecondMoments,
    adaptive_ridge,
    cautious_ridge,
    choose_low_rank,
    choose_regression,
    phi,
)
from torchdp.secure import SecureSketch


def regression(n=100_000, d=4):
    A, b = regression_rows(n, d)
    return SecondMoments.of(A, b)


def test_gram_wins_and_says_by_how_much_and_its_error_is_measured():
    moments = regression()
    choice = choose_regression(
        moments,
        10.0,
        2.0,
        1.0,
        generator=generator(),
        epsilon=0.1,
        delta=1e-6,
    )
    assert choice.candidates[0].name.startswith("gram, ")
    assert len(choice.candidates) == 6
    assert isinstance(choice.best, GramRelease)
    noisy = choice.best.sample_estimate(moments, **sampled(2000, 1))
    predicted = {one.name: one.error for one in choice.candidates}
    for solve in (adaptive_ridge, cautious_ridge):
        errors = phi(moments, solve(noisy, 10.0), 10.0) - 1
        of_64 = float(errors.std()) / 8
        assert abs(float(errors.mean()) - (predicted[f"gram, {solve.__name__}"] - 1)) < 5 * of_64
    assert choice.best.words == 14
    assert choice.candidates[0].note.startswith("14 words")
    before = str(choice).split(" times")[0]
    times = float(before.split()[-1])
    # more than at the least height, d + 2
    assert times > 2 * math.sqrt(2) * 6**0.5
    sketches = [one for one in choice.candidates if one.name.startswith("sketch")]
    sketch = sketches[0]
    assert isinstance(sketch.protocol, SecureSketch)
    assert sketch.protocol.columns == 5
    assert sketch.note.startswith("5 words")


def test_far_too_much_noise_is_worse_than_knowing_nothing_and_the_predictions_say_so():
    moments = regression(n=1000)
    choice = choose_regression(
        moments,
        10.0,
        2.0,
        1.0,
        generator=generator(),
        epsilon=1e-3,
        delta=1e-6,
    )
    zero = float(phi(moments, torch.zeros(4), 10.0))
    found = {one.name: one.error for one in choice.candidates}
    assert found["gram, cautious_ridge"] < found["gram, adaptive_ridge"]
    assert 0.9 * zero < found["gram, cautious_ridge"] < 1.5 * zero


def test_low_rank_ranks_gram_sketch_local():
    moments = SecondMoments.of(spectrum_rows(50_000, 10, 3) * 0.5)
    choice = choose_low_rank(
        moments,
        3,
        2.0,
        generator=generator(),
        epsilon=0.5,
        delta=1e-6,
    )
    assert isinstance(choice.best, GramRelease)
    assert choice.candidates[0].error < 1e-3 * max(r.error for r in choice.candidates)
    assert "gram" in str(choice)
    assert "words" in str(choice)


@pytest.mark.parametrize("epsilon", [1e-4, 60.0])
def test_local_noise_is_left_out_where_its_randomizer_takes_no_such_epsilon(epsilon):
    moments = regression(n=200)
    choice = choose_regression(
        moments,
        10.0,
        2.0,
        1.0,
        generator=generator(),
        epsilon=epsilon,
        delta=1e-6,
    )
    assert {one.name.split(",")[0] for one in choice.candidates} == {
        "gram",
        "sketch",
    }
    rows = SecondMoments.of(spectrum_rows(500, 6, 3) * 0.5)
    choice = choose_low_rank(
        rows,
        3,
        2.0,
        generator=generator(),
        epsilon=epsilon,
        delta=1e-6,
    )
    assert {one.name.split(",")[0] for one in choice.candidates} == {
        "gram",
        "sketch",
    }
