"""run: blocks, streams, refusals, the stopping rule."""

import math
from functools import reduce

import pytest
import torch
from scipy import stats

from torchdp.simulate import Moments, run
from torchdp.simulate.moments import merge
from torchdp.simulate.streams import block_generator


def squared_error(generator: torch.Generator, size: int) -> torch.Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64).square()


def test_result_is_the_ordered_merge_of_independent_blocks():
    config = {"n": 3}
    result = run(squared_error, 250, 5, config=config, block_size=100)
    parts = [Moments.of(squared_error(block_generator(5, config, b), s)) for b, s in enumerate((100, 100, 50))]
    assert result.moments == reduce(merge, parts)
    assert (result.moments.count, result.blocks, result.reached_target) == (250, 3, None)
    assert result.seconds > 0


def test_result_depends_on_seed_config_and_block_size_alone():
    first = run(squared_error, 300, 5, config={"n": 3}, block_size=100).moments
    torch.manual_seed(0)
    torch.rand(10)
    assert run(squared_error, 300, 5, config={"n": 3}, block_size=100).moments == first
    others = [
        run(squared_error, 300, 6, config={"n": 3}, block_size=100).moments,
        run(squared_error, 300, 5, config={"n": 4}, block_size=100).moments,
        run(squared_error, 300, 5, block_size=100).moments,
        run(squared_error, 300, 5, config={"n": 3}, block_size=50).moments,
    ]
    assert len({first, *others}) == 5


def test_global_generator_is_untouched():
    before = torch.random.get_rng_state()
    run(squared_error, 300, 5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_mean_is_right_and_the_check_has_power():
    moments = run(squared_error, 200_000, 1, block_size=50_000).moments
    assert abs(moments.z_score(1.0)) < 5
    assert abs(moments.z_score(1.03)) > 5
    assert moments.variance == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_samples_name_the_block(bad):
    def trial(generator: torch.Generator, size: int) -> torch.Tensor:
        samples = squared_error(generator, size)
        if generator.initial_seed() == block_generator(5, {"n": 3}, 2).initial_seed():
            samples[-1] = bad
        return samples

    assert run(trial, 20, 5, config={"n": 3}, block_size=10).blocks == 2
    with pytest.raises(ValueError, match=r'block 2 of seed 5, config \{"n":3\}.*NaN or infinite'):
        run(trial, 30, 5, config={"n": 3}, block_size=10)


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (lambda g, size: torch.rand(size + 1), ValueError, r"shape \(10,\), not \(11,\) \(block 0"),
        (lambda g, size: torch.rand(size, 1), ValueError, r"not \(10, 1\) \(block 0"),
        (lambda g, size: torch.rand(()), ValueError, r"not \(\) \(block 0"),
        (lambda g, size: 1.0, TypeError, r"not float \(block 0"),
        (lambda g, size: {}, TypeError, r"a mapping or a named tuple of such, not dict \(block 0"),
        (lambda g, size: {1: torch.rand(size)}, TypeError, "not dict"),
        (lambda g, size: (torch.rand(size), torch.rand(size)), TypeError, "not tuple"),
        (lambda g, size: {"a": torch.rand(size), "b": 1.0}, TypeError, "b of a trial must be .* not float"),
        (lambda g, size: {"a": torch.rand(size), "b": torch.rand(2)}, ValueError, r"b of a trial .* \(10,\), not"),
        (
            lambda g, size: {"a": torch.rand(size), "b": torch.rand(size) / 0},
            ValueError,
            "samples in block 0 .*: b: samples holds NaN",
        ),
        (lambda g, size: torch.zeros(size, dtype=torch.complex64), TypeError, "block 0.*real"),
        (
            lambda g, size: torch.full((size,), 1e300, dtype=torch.float64) * torch.arange(size),
            ValueError,
            "overfl",
        ),
    ],
)
def test_wrong_outputs_are_refused(trial, error, message):
    with pytest.raises(error, match=message):
        run(trial, 10, 0)


def test_target_stops_at_the_first_block_that_meets_it():
    result = run(squared_error, 100_000, 3, block_size=500, target_relative_ci=0.05)
    assert result.reached_target is True
    assert 1 < result.blocks < 200
    exact = run(squared_error, result.blocks * 500, 3, block_size=500)
    before = run(squared_error, (result.blocks - 1) * 500, 3, block_size=500)
    assert exact.moments == result.moments
    assert exact.moments.relative_half_width() <= 0.05 < before.moments.relative_half_width()


def test_a_huge_number_of_trials_starts_at_once():
    result = run(squared_error, 10**15, 3, block_size=100, target_relative_ci=0.2)
    assert result.moments == run(squared_error, result.moments.count, 3, block_size=100).moments


def test_target_out_of_reach_runs_all_trials():
    result = run(squared_error, 1000, 3, block_size=300, target_relative_ci=1e-6)
    assert (result.moments.count, result.reached_target) == (1000, False)


def test_a_mean_of_zero_never_stops_early():
    result = run(lambda g, size: torch.zeros(size), 50, 0, block_size=10, target_relative_ci=0.5)
    assert (result.blocks, result.reached_target) == (5, False)


def test_interval_after_early_stopping_covers():
    inside = 0
    for seed in range(300):
        moments = run(squared_error, 20_000, seed, block_size=500, target_relative_ci=0.06).moments
        low, high = moments.interval()
        inside += low <= 1.0 <= high
    assert stats.binomtest(inside, 300, 0.95).pvalue > 1e-4


def test_progress_is_silent_without_a_terminal(capsys):
    run(squared_error, 10, 0)
    assert capsys.readouterr() == ("", "")
    run(squared_error, 10, 0, progress=True)
    assert "10.0/10.0" in capsys.readouterr().err
