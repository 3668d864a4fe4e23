"""What can happen to a sweep: killed at random, by every road; its store cut and corrupted. The digest is the same."""

import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import worker_trials as trials
from test_shared_stores import SWEEP, other_process
from worker_trials import GRID, SETTINGS, block_lines, wait_until

from torchdp.simulate import merge, sweep
from torchdp.simulate.page import digest_of
from torchdp.simulate.store import load

pytestmark = pytest.mark.slow


def finished(store: Path, **more: object) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of damaged lines
        return digest_of(sweep(trials.make_trial, GRID, store=store, **SETTINGS, **more))


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    return finished(tmp_path_factory.mktemp("one") / "s.jsonl")


def test_every_road_gives_one_digest(tmp_path, expected, monkeypatch):
    assert finished(tmp_path / "two.jsonl", devices=["cpu", "cpu"]) == expected
    assert digest_of(sweep(trials.make_trial, GRID[::-1], store=tmp_path / "order.jsonl", **SETTINGS)) == expected
    parts = [tmp_path / f"{shard}.jsonl" for shard in range(2)]
    for shard, part in enumerate(parts):
        sweep(trials.make_trial, GRID, store=part, shard=(shard, 2), **SETTINGS)
    merge(parts, tmp_path / "merged.jsonl")
    assert finished(tmp_path / "merged.jsonl") == expected
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        more = threading.Timer(0.2, cluster.scale, [2])
        more.start()
        assert finished(tmp_path / "dask.jsonl", executor=client) == expected
        more.join()


def test_a_hundred_kills_of_two_sweeps_on_one_store(tmp_path, expected):
    """Each kill -9 at a random moment of one of two sweeps that share a store; then one finishes."""
    draw, kills = random.Random(1), 0
    for run in range(100):
        store = tmp_path / f"{run // 5}.jsonl"  # five kills each
        both = [other_process(SWEEP.replace("0.1", "0.02"), tmp_path, store) for _ in range(1 + run % 2)]
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        before = len(block_lines(store))
        wait_until(lambda store=store, before=before: not len(block_lines(store)) <= before < 12)
        time.sleep(draw.random() * 0.05)
        for process in both:
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        if run % 5 == 4:
            assert finished(store) == expected
            assert len(set(block_lines(store))) == 12
    assert kills > 60


def test_ten_thousand_corruptions_and_five_hundred_cuts(tmp_path, expected):
    store = tmp_path / "s.jsonl"
    assert finished(store) == expected
    whole, draw = store.read_bytes(), random.Random(2)
    known = {(r.key, r.block): r for run in load(store).runs.values() for r in run.values()}
    lost = 0
    for case in range(10_500):
        damaged = bytearray(whole)
        if case >= 10_000:
            damaged = damaged[: draw.randrange(len(whole))]
        elif case % 3 == 0:
            damaged[draw.randrange(len(whole))] = draw.randrange(256)
        elif case % 3 == 1:
            at = draw.randrange(len(whole))
            del damaged[at : at + draw.randrange(1, 400)]
        else:
            at, end = draw.randrange(len(whole)), draw.randrange(len(whole))
            damaged[at:at] = whole[end : end + draw.randrange(1, 400)]
        store.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = {(r.key, r.block): r for run in load(store).runs.values() for r in run.values()}
        assert all(known[name] == record for name, record in found.items())  # nothing wrong is accepted
        lost += len(found) < len(known)
        if case % 500 == 0:
            assert finished(store) == expected
    assert lost > 5000  # most of it did harm, and was seen
