"""sweep: resuming, order, what may mix and what may not."""

import functools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import executed
from worker_trials import GRID, SETTINGS, block_lines, make_trial, never, results

import torchdp
from torchdp.simulate import OnError, OtherCode, Trial, read, run, sweep
from torchdp.simulate.code import code_of, package
from torchdp.simulate.streams import block_generator

SCRIPT = '''
FACTOR = 1

def make_trial(config, power=2):
    """What it does."""
    return lambda generator, size: FACTOR * torch.randn(size, generator=generator) ** power

class Made:
    def __init__(self, power):
        self.power = power

    def __call__(self, config):
        return make_trial(config, self.power)

    def method(self, config):
        return self(config)
'''


def test_rows_equal_run_and_come_back_from_the_store(tmp_path, expected):
    path = tmp_path / "store.jsonl"
    rows = sweep(make_trial, GRID, store=path, **SETTINGS)
    assert results(rows) == expected
    for config, row in zip(GRID, rows, strict=True):
        assert row.config == config
        assert row.facts == {"predicted_mse": 1 / config["n"]}
        assert (
            row.moments
            == run(make_trial(config).sample, 250, 7, config=config, block_size=100).moments
        )
    assert read(path) == rows
    before = path.read_bytes()
    assert sweep(never, GRID, store=path, **SETTINGS) == rows
    assert path.read_bytes() == before


@pytest.mark.parametrize("boundary", (0, 1, 6, 11))
def test_a_kill_at_every_block_boundary_changes_nothing(tmp_path, expected, boundary):
    path = tmp_path / "store.jsonl"
    left = boundary

    def killed(config: dict[str, Any]) -> Trial:
        trial = make_trial(config)

        def sample(generator: torch.Generator, size: int) -> torch.Tensor:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return trial.sample(generator, size)

        return Trial(sample, trial.facts)

    killed.__wrapped__ = make_trial
    with pytest.raises(KeyboardInterrupt):
        sweep(killed, GRID, store=path, **SETTINGS)
    assert len(block_lines(path)) == boundary
    assert results(sweep(make_trial, GRID, store=path, **SETTINGS)) == expected
    assert len(block_lines(path)) == 12


def test_a_damaged_first_record_is_run_again_and_read_in_block_order(tmp_path, expected):
    path = tmp_path / "store.jsonl"
    sweep(make_trial, GRID, store=path, **SETTINGS)
    path.write_bytes(path.read_bytes().replace(b'"block":0', b'"block":9', 1))
    with pytest.warns(RuntimeWarning, match="skipped 1 line"):
        assert results(sweep(make_trial, GRID, store=path, **SETTINGS)) == expected
    with pytest.warns(RuntimeWarning, match="skipped 1 line"):
        # block 0 now stands last in the file
        assert results(read(path)) == expected


def test_other_runs_in_the_store_never_mix(tmp_path, expected):
    path = tmp_path / "store.jsonl"
    sweep(
        make_trial,
        GRID,
        store=path,
        trials=250,
        seed=8,
        block_size=100,
    )
    sweep(
        make_trial,
        GRID,
        store=path,
        trials=250,
        seed=7,
        block_size=50,
    )
    sweep(
        make_trial,
        [{"n": 10, "name": "c"}],
        store=path,
        **SETTINGS,
    )
    assert results(sweep(make_trial, GRID, store=path, **SETTINGS)) == expected
    rows = read(path)
    assert len(rows) == 13
    assert [result for result in results(rows) if result in expected] == expected


def test_more_trials_extend_a_sweep(tmp_path):
    path = tmp_path / "store.jsonl"
    sweep(make_trial, GRID[:1], store=path, **SETTINGS)
    longer = sweep(
        make_trial,
        GRID[:1],
        store=path,
        trials=520,
        seed=7,
        block_size=100,
    )
    fresh = sweep(
        make_trial, GRID[:1], store=tmp_path / "b.jsonl", trials=520, seed=7, block_size=100
    )
    # the short third block was replaced
    assert results(longer) == results(fresh) == results(read(path))
    assert sweep(never, GRID[:1], store=path, **SETTINGS)[0].moments.count == 250


def test_target_stops_each_config_at_the_same_boundary(tmp_path):
    path = tmp_path / "store.jsonl"
    target: dict[str, Any] = {"trials": 5000, "seed": 7, "block_size": 100}
    rows = sweep(
        make_trial,
        GRID[:2],
        store=path,
        target_relative_ci=0.1,
        **target,
    )
    for config, row in zip(GRID, rows, strict=False):
        alone = run(
            make_trial(config).sample,
            5000,
            7,
            config=config,
            block_size=100,
            target_relative_ci=0.1,
        )
        assert (row.moments, alone.reached_target) == (alone.moments, True)
        assert row.moments.count < 5000
    # further blocks in the store
    sweep(make_trial, GRID[:2], store=path, **target)
    assert sweep(never, GRID[:2], store=path, target_relative_ci=0.1, **target) == rows


def test_facts_may_differ_by_rounding(tmp_path):
    def rounded(relative: float) -> Any:
        facts = {"p": 0.1 * (1 + relative), "list": [0.3 * (1 + relative), "word"]}
        rounded = functools.partial(
            lambda facts, config: Trial(make_trial(config).sample, facts), facts
        )
        rounded.__wrapped__ = make_trial
        return rounded

    path = tmp_path / "store.jsonl"
    sweep(
        rounded(0),
        GRID[:1],
        store=path,
        trials=100,
        seed=7,
        block_size=100,
    )
    # another number of threads
    (row,) = sweep(
        rounded(1e-14),
        GRID[:1],
        store=path,
        **SETTINGS,
    )
    assert row.facts == {"p": 0.1, "list": [0.3, "word"]}
    assert read(path) == [row]
    with pytest.raises(ValueError, match="facts of config"):
        sweep(
            rounded(1e-6),
            GRID[:1],
            store=path,
            trials=1000,
            seed=7,
            block_size=100,
        )


def factor(number: float) -> Any:
    def made(config: dict[str, Any]) -> Any:
        return lambda generator, size: (
            number * torch.rand(size, generator=generator, dtype=torch.float64)
        )

    return made


def test_other_code_is_refused_kept_or_measured_again_and_never_merged(tmp_path):
    path = tmp_path / "store.jsonl"
    longer = {**SETTINGS, "trials": 400}
    old = sweep(
        factor(1),
        GRID[:2],
        store=path,
        **SETTINGS,
    )
    stored = path.read_bytes()
    for policy in ({}, {"other_code": OtherCode.REFUSE}):
        with pytest.raises(
            ValueError, match=r"by other code: trial \w+, torchdp .*; this is trial \w+.*KEEP"
        ):
            sweep(
                factor(100),
                GRID[:2],
                store=path,
                **SETTINGS,
                **policy,
            )
    assert path.read_bytes() == stored
    assert sweep(factor(100), GRID[:2], store=path, **SETTINGS, other_code=OtherCode.KEEP) == old
    assert path.read_bytes() == stored
    # more trials, or another configuration: those are the present code's alone
    alone = sweep(
        factor(100),
        GRID[:3],
        store=tmp_path / "alone.jsonl",
        **longer,
    )
    kept = sweep(
        factor(100),
        GRID[:3],
        store=path,
        **longer,
        other_code=OtherCode.KEEP,
    )
    assert results(kept) == results(alone)
    assert {row.code for row in kept} == {row.code for row in alone}
    assert kept[0].code != old[0].code
    assert kept[0].moments.mean > 20 * old[0].moments.mean
    again = sweep(
        factor(2),
        GRID[:2],
        store=path,
        **SETTINGS,
        other_code=OtherCode.AGAIN,
    )
    assert again[0].moments.mean == pytest.approx(2 * old[0].moments.mean)
    assert len({row.code for row in read(path)}) == 3
    assert len(read(path)) == 2 + 3 + 2


def test_one_bad_configuration_does_not_stop_the_others(tmp_path, expected):
    path = tmp_path / "store.jsonl"
    bad = functools.partial(broken, GRID[1])
    with pytest.raises(ZeroDivisionError, match="a planted error"):
        sweep(bad, GRID, store=path, **SETTINGS)
    rows = sweep(
        bad,
        GRID,
        store=path,
        on_error=OnError.GO_ON,
        **SETTINGS,
    )
    # the block before it counts
    assert "a planted error" in rows[1].error
    assert rows[1].moments.count == 100
    good = [result for result, row in zip(results(rows), rows, strict=True) if row.error is None]
    assert good == [expected[0], *expected[2:]]


def broken(which: dict[str, Any], config: dict[str, Any]) -> Trial:
    trial = make_trial(config)
    seeds = [block_generator(7, which, block).initial_seed() for block in (1, 2)]

    def sample(generator: torch.Generator, size: int) -> torch.Tensor:
        if generator.initial_seed() in seeds:
            raise ZeroDivisionError("a planted error")
        return trial.sample(generator, size)

    return Trial(sample, trial.facts)


@pytest.mark.parametrize(
    "full", [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_out_of_memory_at_any_block_is_tried_again_and_resumed(tmp_path, expected, full):
    """Once at every block: the same rows. At one block always: a clear error, and what was done is
    kept.
    """
    seen: set[int] = set()

    def short(always: Any, config: dict[str, Any]) -> Trial:
        trial = make_trial(config)

        def sample(generator: torch.Generator, size: int) -> torch.Tensor:
            seed = generator.initial_seed()
            first = seed not in seen
            seen.add(seed)
            # the retry must not go on with this stream
            samples = trial.sample(generator, size)
            if first or seed == always:
                raise full
            return samples

        return Trial(sample, trial.facts)

    bad = block_generator(7, GRID[1], 1).initial_seed()
    for always in (bad, None):
        trial = functools.partial(short, always)
        trial.__wrapped__ = make_trial
        if always:
            with pytest.raises(
                MemoryError, match=r"block 1 of seed 7.*does not fit.*smaller block_size"
            ):
                sweep(
                    trial,
                    GRID[:2],
                    store=tmp_path / "s.jsonl",
                    **SETTINGS,
                )
            assert len(block_lines(tmp_path / "s.jsonl")) == 4
        else:
            assert (
                results(sweep(trial, GRID[:2], store=tmp_path / "s.jsonl", **SETTINGS))
                == expected[:2]
            )


def script(folder, text=SCRIPT):
    path = folder / "toy.py"
    path.write_text(text)
    return executed(path, "experiment_toy")


@pytest.mark.parametrize("new", ["FACTOR = 100", "FACTOR = 1  # a comment"])
def test_every_word_of_the_script_counts(tmp_path, new):
    one = script(tmp_path)
    two = script(tmp_path)
    before = [code_of(one.make_trial), code_of(one.Made(1))]
    assert before == [code_of(two.make_trial), code_of(two.Made(1))]
    toy = script(tmp_path, SCRIPT.replace("FACTOR = 1", new))
    assert not {code_of(toy.make_trial), code_of(toy.Made(1))} & set(before)


def test_values_that_a_trial_is_bound_to_count(tmp_path):
    toy = script(tmp_path)

    def closure(value):
        return lambda config: toy.make_trial(config, value)

    values = [
        1,
        1.0,
        "1",
        None,
        torch.ones(1),
        torch.zeros(1),
        [1],
        (1,),
        {1: 2},
        {2: 1},
        Path("a"),
    ]
    power = lambda value: partial(toy.make_trial, power=value)  # noqa: E731
    for wrap in (
        closure,
        power,
        toy.Made,
        lambda value: toy.Made(value).method,
        lambda value: partial(closure(value)),
    ):
        made = {code_of(wrap(value)) for value in values}
        assert len(made) == len(values)
        assert made == {code_of(wrap(value)) for value in values}
    wrapped = closure(3)
    wrapped.__wrapped__ = toy.make_trial
    assert code_of(wrapped) == code_of(toy.make_trial)


def test_it_is_the_same_in_another_process(tmp_path):
    here = code_of(partial(script(tmp_path).make_trial, power=3))
    root = str(Path(torchdp.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": os.pathsep.join([root, str(tmp_path)]),
    }
    asked = (
        "import functools, toy; from torchdp.simulate.code import code_of; "
        "print(code_of(functools.partial(toy.make_trial, power=3)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.stdout.strip() == here, done.stderr


def test_it_names_the_packages_and_their_versions(monkeypatch):
    said = code_of(test_it_names_the_packages_and_their_versions)
    assert f"torch {torch.__version__}" in said
    assert package() in said
    assert torchdp.__version__ in package()
    monkeypatch.setattr("torchdp.simulate.code.torch.__version__", "9.9")
    assert "torch 9.9" in code_of(test_it_names_the_packages_and_their_versions) != said
