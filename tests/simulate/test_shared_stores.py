"""Several sweeps, one result: on one store at once, in shards, merged; and what a store says of its making."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, PATIENCE, SETTINGS, block_lines, results

import torchdp
from torchdp.simulate import merge, sweep
from torchdp.simulate.store import Claims, load


def other_process(text: str, *arguments: object) -> subprocess.Popen:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(torchdp.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def holding(store, *names):
    """A process that has these blocks in work until it is killed."""
    fork = multiprocessing.get_context("fork")  # at once, and claims are not a child's
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


def test_a_claim_keeps_others_off_and_dies_with_its_process(tmp_path):
    store = tmp_path / "s.jsonl"
    holder, ours = holding(store, "a block"), Claims(store)
    assert not ours.take("a block") and ours.take("another")
    holder.kill()
    holder.join()
    assert ours.take("a block") and ours.take("a block")  # ours already
    ours.close()


def test_without_locks_every_claim_is_granted(tmp_path):
    free = Claims(tmp_path / "missing" / "s.jsonl")
    assert free.take("a block")
    free.free("a block")
    free.close()


SWEEP = """
import sys
from functools import partial
from pathlib import Path
import worker_trials as trials
from torchdp.simulate import sweep
make_trial = partial(trials.slow, Path(sys.argv[1]), 0.1, 12)
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
    assert len(block_lines(store)) == 12 and len(load(store).starts) == 2
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
    assert killed  # it had to wait for that
    assert results(rows) == expected
    holder.join()
    dead.join()


def test_shards_merge_to_the_rows_of_one(tmp_path, expected):
    parts = [tmp_path / f"{shard}.jsonl" for shard in range(3)]
    for shard, part in enumerate(parts):
        rows = sweep(trials.make_trial, GRID, store=part, shard=(shard, 3), **SETTINGS)
        assert [row.moments.count for row in rows] == [100 if shard < 2 else 50] * 4
        assert len(block_lines(part)) == 4
    merged, catted = tmp_path / "merged.jsonl", tmp_path / "catted.jsonl"
    assert merge(parts, merged) == 12 and merge(parts, merged) == 0
    catted.write_bytes(b"".join(part.read_bytes() for part in parts))
    for store in (merged, catted):
        assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected
        assert len(block_lines(store)) == 12 and len(load(store).starts) == 3  # nothing was left to do


def test_stores_that_contradict_each_other_do_not_merge(tmp_path):
    ours, theirs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for store, scale in ((ours, 1.0), (theirs, 2.0)):
        make = lambda config, scale=scale: lambda generator, size: scale * torch.rand(size, generator=generator)  # noqa: E731
        make.__wrapped__ = trials.make_trial
        sweep(make, GRID[:1], store=store, **SETTINGS)
    before = ours.read_bytes()
    with pytest.raises(ValueError, match="twice with different moments"):
        merge([theirs], ours)
    assert ours.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        merge([tmp_path / "absent"], ours)


def test_a_store_says_how_it_was_made(tmp_path):
    store = tmp_path / "s.jsonl"
    sweep(trials.make_trial, GRID, store=store, **SETTINGS)
    sweep(trials.make_trial, GRID, store=store, **{**SETTINGS, "trials": 300})
    first, second = load(store).starts.values()
    assert first.facts["grid"] == GRID and "grid" not in second.facts  # once is enough
    assert first.facts["grid_digest"] == second.facts["grid_digest"]
    assert [each.facts["trials"] for each in (first, second)] == [250, 300]
    for name in ("at", "command", "git", "host", "package", "process", "python", "seed", "torch"):
        assert first.facts[name] or name == "git", name
    records = [record for run in load(store).runs.values() for record in run.values()]
    assert {record.start for record in records} == {first.start, second.start}
    assert all(abs(record.at - first.facts["at"]) < 600 for record in records)


def test_two_names_of_one_store_share_its_claims(tmp_path):
    (tmp_path / "s.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "s.jsonl")
    Claims(tmp_path / "link.jsonl").close()
    assert [path.name for path in tmp_path.glob("*.claims")] == ["s.jsonl.claims"]
