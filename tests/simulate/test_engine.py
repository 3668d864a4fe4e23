"""run: blocks, streams, refusals, the stopping rule."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import numpy as np
import pytest
import torch
import worker_trials as trials
from scipy import stats
from worker_trials import GRID, SETTINGS

from torchdp.simulate import Moments, Trial, run, sweep
from torchdp.simulate.moments import merge
from torchdp.simulate.streams import block_generator, canonical, digest

CONFIG = {
    "n": 100,
    "eps": 0.5,
    "name": "é",
    "flag": True,
    "list": [1, None],
}
THREADS = ThreadPoolExecutor(1)


def squared_error(generator: torch.Generator, size: int) -> torch.Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64).square()


def test_result_is_the_ordered_merge_of_independent_blocks():
    config = {"n": 3}
    result = run(
        squared_error,
        250,
        5,
        config=config,
        block_size=100,
    )
    parts = [
        Moments.of(squared_error(block_generator(5, config, b), s))
        for b, s in enumerate((100, 100, 50))
    ]
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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_samples_name_the_block(bad):
    def trial(generator: torch.Generator, size: int) -> torch.Tensor:
        samples = squared_error(generator, size)
        if generator.initial_seed() == block_generator(5, {"n": 3}, 2).initial_seed():
            samples[-1] = bad
        return samples

    assert run(trial, 20, 5, config={"n": 3}, block_size=10).blocks == 2
    with pytest.raises(ValueError, match=r'block 2 of seed 5, config \{"n":3\}.*NaN or infinite'):
        run(
            trial,
            30,
            5,
            config={"n": 3},
            block_size=10,
        )


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (lambda g, size: torch.rand(size + 1), ValueError, r"shape \(10,\), not \(11,\) \(block 0"),
        (lambda g, size: 1.0, TypeError, r"not float \(block 0"),
        (
            lambda g, size: {"a": torch.rand(size), "b": 1.0},
            TypeError,
            "b of a trial must be .* not float",
        ),
        (
            lambda g, size: {"a": torch.rand(size), "b": torch.rand(size) / 0},
            ValueError,
            "samples in block 0 .*: b: samples holds NaN",
        ),
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
    result = run(
        squared_error,
        100_000,
        3,
        block_size=500,
        target_relative_ci=0.05,
    )
    assert result.reached_target is True
    assert 1 < result.blocks < 200
    moments = run(squared_error, result.blocks * 500, 3, block_size=500).moments
    before = run(squared_error, (result.blocks - 1) * 500, 3, block_size=500)
    assert moments == result.moments
    assert moments.relative_half_width() <= 0.05 < before.moments.relative_half_width()


def test_a_mean_of_zero_never_stops_early():
    result = run(
        lambda g, size: torch.zeros(size),
        50,
        0,
        block_size=10,
        target_relative_ci=0.5,
    )
    assert (result.blocks, result.reached_target) == (5, False)


def test_interval_after_early_stopping_covers():
    inside = 0
    for seed in range(300):
        moments = run(squared_error, 20_000, seed, block_size=500, target_relative_ci=0.06).moments
        low, high = moments.interval()
        inside += low <= 1.0 <= high
    # 300 intervals at 95 %: as many hold the truth as should
    assert stats.binomtest(inside, 300, 0.95).pvalue > 1e-4


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [2, 3, 1000, 1023, 1024, 1025, 70_000])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_direct_moments_match_numpy(count, offset):
    x = torch.randn(count, generator=generator(count), dtype=torch.float64) + offset
    moments = Moments.of(x)
    exact = x.numpy().astype(np.longdouble)
    assert (moments.count, moments.minimum, moments.maximum) == (
        count,
        float(x.min()),
        float(x.max()),
    )
    # merged in any order, to the last digits
    assert moments.mean == pytest.approx(float(exact.mean()), rel=1e-14, abs=1e-15)
    assert moments.variance == pytest.approx(
        float(exact.var(ddof=1)), rel=1e-7 if offset else 1e-12
    )
    assert moments.standard_error == pytest.approx(float(stats.sem(exact.astype(float))), rel=1e-7)


def test_known_answer():
    moments = Moments.of(torch.tensor([1, 2, 3, 4]))
    assert moments == Moments(4, 2.5, 5.0, 1.0, 4.0)
    assert moments.variance == 5 / 3
    half = 1.959963984540054 * math.sqrt(5 / 12)
    assert moments.interval() == pytest.approx((2.5 - half, 2.5 + half), rel=1e-15)
    assert moments.relative_half_width(0.95) == pytest.approx(half / 2.5, rel=1e-15)
    assert moments.z_score(2.0) == pytest.approx(0.5 / math.sqrt(5 / 12))


def test_count_zero_and_one():
    empty = Moments.of(torch.empty(0))
    one = Moments.of(torch.tensor([3.0]))
    assert (empty.count, empty.m2, math.isnan(empty.mean)) == (0, 0.0, True)
    assert one == Moments(1, 3.0, 0.0, 3.0, 3.0)
    for moments in (empty, one):
        assert math.isnan(moments.variance)
        assert math.isnan(moments.z_score(0.0))
        assert moments.standard_error == math.inf
        assert moments.interval() == (-math.inf, math.inf)
        assert moments.relative_half_width() == math.inf
    assert merge(empty, one) == one == merge(one, empty)


def test_threads_do_not_change_a_bit():
    x = torch.randn(300_001, generator=generator(2), dtype=torch.float64)
    threads = torch.get_num_threads()
    try:
        found = set()
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.add(Moments.of(x))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("hits", "count"),
    [
        (0, 5),
        (5, 5),
        (1, 40),
        (190, 200),
        (99_000, 100_000),
    ],
)
def test_a_share_has_the_exact_binomial_interval(hits, count):
    """Whatever the blocks; the chance of as many hits or more is half of the rest at the lower
    end.
    """
    drawn = torch.arange(count) < hits
    moments = merge(*(Moments.of(part) for part in drawn.split([2, count - 2])))
    assert moments.share
    assert not merge(moments, Moments.of(torch.rand(3))).share
    assert (moments.mean, moments.count) == (pytest.approx(hits / count), count)
    for level in (0.5, 0.95):
        exact = stats.binomtest(hits, count).proportion_ci(level, method="exact")
        # Clopper and Pearson's interval
        assert moments.interval(level) == pytest.approx((exact.low, exact.high), rel=1e-9)
    assert Moments.of(drawn[:0]).interval() == (0, 1)


def draws(seed, config, block):
    generator = block_generator(seed, config, block)
    return tuple(torch.randint(2**62, (2,), generator=generator).tolist())


def test_digest_known_answer():
    assert canonical(CONFIG) == '{"eps":0.5,"flag":true,"list":[1,null],"n":100,"name":"\\u00e9"}'
    assert digest(CONFIG) == "c9248e9b12ece92f2fdc7aa53fe537b8c94a8c0cac3706c350c9b3c23db70817"


def test_stream_known_answer():
    assert draws(7, {"n": 100}, 3) == (2050638398449657253, 262505935885969578)


def test_digest_ignores_key_order_and_nothing_else():
    assert digest(CONFIG) == digest(dict(reversed(CONFIG.items())))
    variants: list[dict[str, object]] = [
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": [1]},
        {"a": None},
        {"b": 1},
        {},
    ]
    assert len({digest(config) for config in variants}) == len(variants)


def test_streams_are_separate():
    keys = [(s, {"n": n}, b) for s in (0, 1, 11) for n in (0, 1, 11) for b in (0, 1, 11, 111)]
    keys += [(0, {"n": 0}, b) for b in range(200, 5000)]
    assert len({draws(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "value",
    [
        (1,),
        {"a": 1},
        torch.tensor(1.0),
        np.int64(1),
        np.zeros(2),
        b"x",
        [1, (2,)],
        1j,
    ],
)
def test_other_values_are_refused_by_name(value):
    with pytest.raises(TypeError, match=r"config\['key'\]"):
        digest({"key": value})


def facts(value):
    return lambda config: Trial(torch.rand, {"p": value})


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"trials": None}, ValueError, "as many as target_relative_ci needs"),
    ({"device": "abacus"}, ValueError, "device must be a device of this machine"),
])  # fmt: skip
def test_of_run(arguments, error, words):
    with pytest.raises(error, match=words):
        run(**{"trial": trials.squared_error, "trials": 10, "seed": 0, **arguments})


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"grid": [*GRID, dict(GRID[0])]}, ValueError, "twice"),
    ({"make_trial": facts(math.nan)}, ValueError, r"facts\['p'\]"),
    ({"make_trial": facts(torch.tensor(1.0))}, TypeError, r"facts\['p'\]"),
    ({"shard": (2, 2)}, ValueError, r"shard\[0\]"), ({"shard": (0, 0)}, ValueError, r"shard\[1\]"),
    ({"devices": ["abacus"]}, ValueError, "devices must be of torch"),
    ({"devices": ["cpu", "meta"]}, ValueError, "of one kind"),
    ({"executor": THREADS, "devices": ["cpu"]}, ValueError, "excludes device and executor"),
    ({"executor": 3}, TypeError, "concurrent.futures.Executor or a dask"),
    ({"shard": (0, 2), "target_relative_ci": 0.1}, ValueError, "share one store"),
])  # fmt: skip
def test_of_sweep(tmp_path, arguments, error, words):
    how = {"make_trial": trials.make_trial, "grid": GRID, "store": tmp_path / "s.jsonl", **SETTINGS}
    with pytest.raises(error, match=words):
        sweep(**how | arguments)
    assert trials.block_lines(tmp_path / "s.jsonl") == []
