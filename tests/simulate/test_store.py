"""The store: round trip, torn and damaged lines, full and unwritable disks."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import worker_trials as trials
from laws import uniform
from worker_trials import GRID, PATIENCE, SETTINGS, block_lines, results

import torchdp
from torchdp.simulate import Moments, merge, sweep
from torchdp.simulate.store import Claims, Record, append, load

CONFIG = {
    "n": 100,
    "eps": 0.1,
    "name": "é\n",
    "list": [1, None, True],
}


def numbers(samples: torch.Tensor) -> dict[str, Moments]:
    return {
        "z": Moments.of(samples),
        "a share": Moments.of(samples > 0.5),
        "none": Moments(),
    }


def record(block: int) -> Record:
    samples = uniform(50, seed=block)
    return Record(
        3,
        CONFIG,
        block,
        50,
        numbers(samples),
        {"predicted_mse": 1 / 3},
        0.25,
        "cpu",
        "trial a, torch 2.13.0",
    )


def filled(path: Path, blocks: int = 4) -> list[Record]:
    records = [record(block) for block in range(blocks)]
    for item in records:
        append(path, item)
    return records


def quiet_load(path: Path) -> list[Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        runs = load(path).runs.values()
    return [item for run in runs for item in run.values()]


def test_round_trip_is_exact(tmp_path):
    path = tmp_path / "folder" / "store.jsonl"
    records = filled(path)
    assert quiet_load(path) == records
    assert [list(each.metrics) for each in quiet_load(path)] == 4 * [["z", "a share", "none"]]
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    # plain JSON lines for any other reader
    assert json.loads(lines[0])["config"] == CONFIG


def test_truncation_at_every_byte_loses_at_most_the_torn_record(tmp_path):
    path = tmp_path / "store.jsonl"
    whole = tmp_path / "whole.jsonl"
    records = filled(whole)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for offset in range(ends[2], len(data) + 1):
        path.write_bytes(data[:offset])
        # a line that only lacks its newline is whole
        kept = sum(end - 1 <= offset for end in ends)
        assert quiet_load(path) == records[:kept], offset
        if offset % 40 == 0 or offset in ends or offset + 1 in ends:
            for item in records[kept:]:
                append(path, item)
            assert quiet_load(path) == records, offset


def test_damaged_lines_are_counted_and_reported(tmp_path):
    path = tmp_path / "store.jsonl"
    records = filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    foreign = b'{"block":1}\n[1,2]\nnull\nnot json\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    edited = lines[1].replace(b'"seconds":0.25', b'"seconds":0.26')
    assert edited != lines[1]
    path.write_bytes(lines[0] + b"\n" + foreign + edited + lines[2])
    with pytest.warns(RuntimeWarning, match=r"store\.jsonl: skipped 7 line"):
        runs = load(path).runs
    assert [item for run in runs.values() for item in run.values()] == [records[0], records[2]]


def test_full_disk_gives_a_clear_error_and_keeps_what_was_written(tmp_path):
    path = tmp_path / "store.jsonl"
    filled(path, 2)
    limit = path.stat().st_size + 100
    script = f"""
import resource
from pathlib import Path
from torchdp.simulate.store import append, load
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
path = Path({str(path)!r})
item = next(iter(next(iter(load(path).runs.values())).values()))
for _ in range(2):
    try:
        append(path, item)
    except OSError as error:
        print(error)
"""
    root = Path(torchdp.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    for line in (first, second):
        assert "cannot append to the results store" in line
        assert str(path) in line
    # the write that fitted in part
    assert "is the disk full?" in first
    # the write that did not fit at all
    assert "File too large" in second
    assert quiet_load(path) == [record(0), record(1)]
    append(path, record(2))
    assert quiet_load(path) == [record(0), record(1), record(2)]


def other_process(text: str, *arguments: object) -> subprocess.Popen:
    folders = Path(__file__).parent, Path(torchdp.__file__).parents[1]
    path = os.pathsep.join(map(str, folders))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def holding(store, *names):
    """A process that has these blocks in work until it is killed."""
    # at once, and claims are not a child's
    fork = multiprocessing.get_context("fork")
    held = fork.Event()

    def hold():
        claims = Claims(store)
        assert all([claims.take(name) for name in names])
        held.set()
        signal.pause()

    process = fork.Process(target=hold)
    process.start()
    assert held.wait(PATIENCE)
    return process


SWEEP = """
import sys
from functools import partial
from pathlib import Path
import worker_trials as trials
from torchdp.simulate import sweep
make_trial = partial(trials.slow, Path(sys.argv[1]), 0.05, 12)
make_trial.__wrapped__ = trials.make_trial
print("ready", flush=True)
sys.stdin.readline()
sweep(make_trial, trials.GRID, store=sys.argv[2], **trials.SETTINGS)
"""


def test_two_sweeps_on_one_store_share_its_work(tmp_path, expected):
    store = tmp_path / "s.jsonl"
    both = [other_process(SWEEP, tmp_path, store) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(PATIENCE) for process in both] == [0, 0]
    assert len(block_lines(store)) == 12
    assert len(load(store).starts) == 2
    made_by = {record.start for run in load(store).runs.values() for record in run.values()}
    assert len(made_by) == 2
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


def test_a_sweep_waits_for_blocks_in_other_hands_and_does_those_of_the_dead(tmp_path, expected):
    store = tmp_path / "s.jsonl"
    sweep(trials.make_trial, GRID, store=store, **SETTINGS)
    kept = [line for line in block_lines(store) if b'"block":1,' not in line]
    store.write_bytes(b"\n".join(kept) + b"\n")
    names = [f"{key} 1 100" for key in load(store).runs]
    holder = holding(store, *names)
    killed = []
    dead = threading.Timer(0.5, lambda: (killed.append(True), holder.kill()))
    dead.start()
    rows = sweep(trials.make_trial, GRID, store=store, **SETTINGS)
    # it had to wait for that
    assert killed
    assert results(rows) == expected
    holder.join()
    dead.join()


def test_shards_merge_to_the_rows_of_one(tmp_path, expected):
    parts = [tmp_path / f"{shard}.jsonl" for shard in range(3)]
    for shard, part in enumerate(parts):
        rows = sweep(
            trials.make_trial,
            GRID,
            store=part,
            shard=(shard, 3),
            **SETTINGS,
        )
        assert [row.moments.count for row in rows] == [100 if shard < 2 else 50] * 4
        assert len(block_lines(part)) == 4
    merged = tmp_path / "merged.jsonl"
    catted = tmp_path / "catted.jsonl"
    assert merge(parts, merged) == 12
    assert merge(parts, merged) == 0
    catted.write_bytes(b"".join(part.read_bytes() for part in parts))
    for store in (merged, catted):
        assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected
        # nothing was left to do
        assert len(block_lines(store)) == 12
        assert len(load(store).starts) == 3


def test_stores_that_contradict_each_other_do_not_merge(tmp_path):
    ours = tmp_path / "a.jsonl"
    theirs = tmp_path / "b.jsonl"
    for store, scale in ((ours, 1.0), (theirs, 2.0)):

        def make(config, scale=scale):
            return lambda generator, size: scale * torch.rand(size, generator=generator)

        make.__wrapped__ = trials.make_trial
        sweep(make, GRID[:1], store=store, **SETTINGS)
    before = ours.read_bytes()
    with pytest.raises(ValueError, match="twice with different moments"):
        merge([theirs], ours)
    assert ours.read_bytes() == before


def test_a_store_says_how_it_was_made(tmp_path):
    store = tmp_path / "s.jsonl"
    sweep(trials.make_trial, GRID, store=store, **SETTINGS)
    sweep(
        trials.make_trial,
        GRID,
        store=store,
        **{**SETTINGS, "trials": 300},
    )
    first, second = load(store).starts.values()
    # once is enough
    assert first.facts["grid"] == GRID
    assert "grid" not in second.facts
    assert first.facts["grid_digest"] == second.facts["grid_digest"]
    assert [each.facts["trials"] for each in (first, second)] == [250, 300]
    records = [record for run in load(store).runs.values() for record in run.values()]
    assert {record.start for record in records} == {first.start, second.start}
    assert all(abs(record.at - first.facts["at"]) < 600 for record in records)
