"""Trials of several numbers: one sweep, one store, moments of each, quantiles by blocks, coverage beside error."""

import csv
import math
from typing import NamedTuple

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, SETTINGS, results

from torchdp.simulate import OnError, Trial, merge, read, run, sweep, write_page
from torchdp.simulate.page import digest_of
from torchdp.simulate.plots import write_csv
from torchdp.simulate.store import load

NAMES = ["squared error", "squared error_q0.5", "coverage", "bias", "bias_q0.5"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return sweep(trials.several, GRID, store=tmp_path_factory.mktemp("several") / "s.jsonl", **SETTINGS)


def test_a_plain_number_is_the_case_of_one(rows, expected, tmp_path):
    plain = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", **SETTINGS)
    for row, alone in zip(rows, plain, strict=True):
        assert list(row.metrics) == NAMES and list(alone.metrics) == ["value"]
        assert row.moments == row.metrics["squared error"] == alone.metrics["value"] == alone.moments
        assert row.metrics["coverage"].share and row.metrics["bias"].count == 250
        assert row.metrics["bias_q0.5"].count == 3  # blocks
    assert digest_of(rows) != digest_of(plain)


def test_every_number_is_that_of_its_own_samples(rows):
    for config, row in zip(GRID, rows, strict=True):
        sample = trials.several(config).sample
        for name in ("squared error", "coverage", "bias"):
            only = lambda g, size, sample=sample, name=name: sample(g, size)[name]  # noqa: E731
            alone = run(only, 250, 7, config=config, block_size=100)
            assert row.metrics[name] == alone.moments
        assert run(sample, 250, 7, config=config, block_size=100).metrics["coverage"] == row.metrics["coverage"]


@pytest.mark.parametrize("boundary", [0, 1, 5, 11])
def test_killed_and_begun_again_it_is_the_same(tmp_path, rows, boundary):
    left = iter(range(boundary))

    def killed(config):
        def sample(generator, size):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return trials.several(config).sample(generator, size)

        return Trial(sample, trials.several(config).facts, [0.5])

    killed.__wrapped__ = trials.several
    with pytest.raises(KeyboardInterrupt):
        sweep(killed, GRID, store=tmp_path / "s.jsonl", **SETTINGS)
    found = sweep(trials.several, GRID, store=tmp_path / "s.jsonl", **SETTINGS)
    assert results(found) == results(rows) and read(tmp_path / "s.jsonl") == found
    assert [list(row.metrics) for row in found] == 4 * [NAMES]


def test_workers_shards_and_order_change_nothing(tmp_path, rows):
    two = sweep(trials.several, GRID, store=tmp_path / "two.jsonl", devices=["cpu", "cpu"], **SETTINGS)
    for shard in range(2):
        sweep(trials.several, GRID[::-1], store=tmp_path / f"{shard}.jsonl", shard=(shard, 2), **SETTINGS)
    merge([tmp_path / f"{shard}.jsonl" for shard in range(2)], tmp_path / "all.jsonl")
    assert digest_of(two) == digest_of(read(tmp_path / "all.jsonl")) == digest_of(rows)


def test_a_named_tuple_is_a_mapping():
    class Numbers(NamedTuple):
        error: torch.Tensor
        inside: torch.Tensor

    def drawn(generator, size):
        x = torch.rand(size, generator=generator)
        return Numbers(x, x < 0.9)

    found = run(drawn, 1000, 3)
    assert found.metrics == run(lambda g, size: drawn(g, size)._asdict(), 1000, 3).metrics
    assert found.moments == found.metrics["error"] and found.metrics["inside"].share


def test_the_first_number_is_what_a_target_is_about():
    def drawn(generator, size):
        x = torch.rand(size, generator=generator)
        return {"narrow": 1 + x / 100, "wide": x - 0.5}

    settings = {"block_size": 100, "target_relative_ci": 0.01}
    assert run(drawn, 10_000, 1, **settings).moments.count == 100
    turned = run(lambda g, size: dict(reversed(drawn(g, size).items())), 10_000, 1, **settings)
    assert turned.moments.count == 10_000 and not turned.reached_target


@pytest.mark.parametrize("rank", [0.1, 0.5, 0.99])
def test_quantiles_by_blocks_are_right(tmp_path, rank):
    """Of exponentials, of whose order statistics the means are known; half as many samples beyond are seen."""

    def make(config):
        return Trial(lambda g, n: torch.empty(n, dtype=torch.float64).exponential_(generator=g), {}, [rank])

    (row,) = sweep(make, [{}], store=tmp_path / "s.jsonl", trials=100_500, seed=2, block_size=1000)
    found = row.metrics[f"value_q{rank}"]
    assert found.count == 100 + (500 * min(rank, 1 - rank) >= 10)  # the last block may be too short
    beyond = 1000 - math.ceil(1000 * rank)
    exact, planted = (sum(1 / left for left in range(last + 1, 1001)) for last in (beyond, beyond // 2))
    assert abs(found.z_score(exact)) < 5 < abs(found.z_score(planted))
    assert abs(exact + math.log(1 - rank)) <= rank / (1 - rank) / 1000  # the bias


@pytest.mark.parametrize(("quantiles", "words"), [
    ([0.95], "quantile 0.95 needs a block_size of at least 200, not 100"), ([1.0], "each of quantiles"),
    (0.5, "quantiles must be a sequence"), (["0.5"], "each of quantiles"),
])  # fmt: skip
def test_quantiles_that_blocks_cannot_say_are_refused(tmp_path, quantiles, words):
    with pytest.raises((ValueError, TypeError), match=words):
        sweep(
            lambda config: Trial(trials.make_trial(config).sample, {}, quantiles),
            GRID,
            store=tmp_path / "s.jsonl",
            **SETTINGS,
        )
    assert not trials.block_lines(tmp_path / "s.jsonl")


def test_blocks_of_other_numbers_are_refused_and_not_stored(tmp_path):
    def changing(config):
        def sample(generator, size):
            x = torch.rand(size, generator=generator)
            return {"a": x, "b": x} if size == 100 else {"b": x, "a": x}

        return sample

    store = tmp_path / "s.jsonl"
    with pytest.raises(ValueError, match=r"same numbers in each block, not \['a', 'b'\] and then \['b', 'a'\]"):
        sweep(changing, GRID, store=store, **SETTINGS)
    assert len(trials.block_lines(store)) == 2
    found = sweep(changing, GRID, store=store, on_error=OnError.GO_ON, **SETTINGS)
    assert all("same numbers" in row.error and row.moments.count == 200 for row in found)
    assert load(store).skipped == 0
    with pytest.raises(ValueError, match="same numbers"):
        run(changing({}), 250, 1, block_size=100)


def test_the_table_and_the_page_have_coverage_beside_error(rows, tmp_path):
    write_csv(rows, tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        first = next(csv.DictReader(file))
    share = rows[0].metrics["coverage"]
    assert float(first["mse"]) == rows[0].moments.mean and float(first["coverage"]) == share.mean
    assert (float(first["coverage_low"]), float(first["coverage_high"])) == share.interval()
    pytest.importorskip("matplotlib")
    store = tmp_path / "s.jsonl"
    sweep(trials.several, GRID, store=store, **SETTINGS)
    page, text = (path.read_text() for path in write_page(store, tmp_path / "out.html"))
    low, high = share.interval()
    assert f"| {share.mean:.4g} ({low:.4g} to {high:.4g}) |" in text and "| coverage |" in text
    assert page.count("<svg") == 3 and "coverage against users" in page and "exact binomial" in text
    clash = [{"n": 1, "coverage_low": 2}]
    with pytest.raises(ValueError, match="coverage_low"):
        write_csv(
            sweep(trials.several, clash, store=tmp_path / "c.jsonl", trials=20, seed=1, block_size=20),
            tmp_path / "x.csv",
        )
