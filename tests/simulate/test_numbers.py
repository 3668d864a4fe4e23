"""Trials of several numbers: one sweep, one store, moments of each, coverage beside error."""

import csv

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, SETTINGS

from torchdp.simulate import OnError, run, sweep, write_page
from torchdp.simulate.plots import write_csv
from torchdp.simulate.store import load

NAMES = ["squared error", "coverage", "bias"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return sweep(
        trials.several, GRID, store=tmp_path_factory.mktemp("several") / "s.jsonl", **SETTINGS
    )


def test_every_number_is_that_of_its_own_samples(rows):
    for config, row in zip(GRID, rows, strict=True):
        sample = trials.several(config).sample
        for name in ("squared error", "coverage", "bias"):
            only = lambda g, size, sample=sample, name=name: sample(g, size)[name]  # noqa: E731
            alone = run(
                only,
                250,
                7,
                config=config,
                block_size=100,
            )
            assert row.metrics[name] == alone.moments
        assert (
            run(sample, 250, 7, config=config, block_size=100).metrics["coverage"]
            == row.metrics["coverage"]
        )


def test_the_first_number_is_what_a_target_is_about():
    def drawn(generator, size):
        x = torch.rand(size, generator=generator)
        return {"narrow": 1 + x / 100, "wide": x - 0.5}

    settings = {"block_size": 100, "target_relative_ci": 0.01}
    assert run(drawn, 10_000, 1, **settings).moments.count == 100
    turned = run(lambda g, size: dict(reversed(drawn(g, size).items())), 10_000, 1, **settings)
    assert turned.moments.count == 10_000
    assert not turned.reached_target


def test_blocks_of_other_numbers_are_refused_and_not_stored(tmp_path):
    def changing(config):
        def sample(generator, size):
            x = torch.rand(size, generator=generator)
            return {"a": x, "b": x} if size == 100 else {"b": x, "a": x}

        return sample

    store = tmp_path / "s.jsonl"
    with pytest.raises(
        ValueError, match=r"same numbers in each block, not \['a', 'b'\] and then \['b', 'a'\]"
    ):
        sweep(changing, GRID, store=store, **SETTINGS)
    assert len(trials.block_lines(store)) == 2
    found = sweep(
        changing,
        GRID,
        store=store,
        on_error=OnError.GO_ON,
        **SETTINGS,
    )
    assert all("same numbers" in row.error and row.moments.count == 200 for row in found)
    assert load(store).skipped == 0
    with pytest.raises(ValueError, match="same numbers"):
        run(changing({}), 250, 1, block_size=100)


def test_the_table_and_the_page_have_coverage_beside_error(rows, tmp_path):
    write_csv(rows, tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        first = next(csv.DictReader(file))
    share = rows[0].metrics["coverage"]
    assert float(first["mse"]) == rows[0].moments.mean
    assert float(first["coverage"]) == share.mean
    assert (float(first["coverage_low"]), float(first["coverage_high"])) == share.interval()
    pytest.importorskip("matplotlib")
    store = tmp_path / "s.jsonl"
    sweep(trials.several, GRID, store=store, **SETTINGS)
    page = write_page(store, tmp_path / "out.html").read_text()
    for number in (share.mean, *share.interval()):
        assert f"<td>{number:.4g}</td>" in page
    assert "<th>coverage</th>" in page
    assert page.count("<svg") == 3
    assert "coverage against users" in page
    assert "exact binomial" in page
