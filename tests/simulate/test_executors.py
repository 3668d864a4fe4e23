"""Any executor gives the bits of one process; a cluster may lose workers and get new ones."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, SETTINGS, results

from torchdp.simulate import OnError, run, sweep
from torchdp.simulate.config_runs import Work


def test_threads(tmp_path, expected):
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(3) as executor:
        rows = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", executor=executor, **SETTINGS)
        assert executor.submit(threading.get_ident).result()  # it stays open
    assert results(rows) == expected and torch.get_num_threads() == threads


@pytest.mark.slow  # starts processes
def test_a_pool_of_the_user_s(tmp_path, expected):
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        rows = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", executor=executor, **SETTINGS)
        assert results(rows) == expected
        with pytest.raises(ChildProcessError, match="executor"):
            sweep(trials.dying, GRID, store=tmp_path / "t.jsonl", executor=executor, **SETTINGS)


@pytest.mark.parametrize(
    ("trial", "error", "words"),
    [
        (trials.poisoned, ValueError, r"unusable samples in block 1 of seed 7.*\(on cpu\)"),
        (trials.leaving, RuntimeError, r"SystemExit: 3 \(block 0 of seed 7, config {}, on cpu\)"),
    ],
)
def test_errors_name_their_block_once(trial, error, words, monkeypatch):
    submit = ThreadPoolExecutor.submit  # all tasks are done when the first is looked at
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *task: wait([each := submit(*task)]) and each)
    with ThreadPoolExecutor(8) as executor, pytest.raises(error, match=words) as caught:
        run(trial, 300, 7, block_size=10, executor=executor)
    assert str(caught.value).count("block") == 1


class Losing(ThreadPoolExecutor):
    """It loses every other task, some before they began and some after they were done."""

    count = 0

    def submit(self, *task):
        self.count += 1
        future = super().submit(*task)
        if self.count % 2:
            return future
        if self.count % 4:
            future.result()
        lost = Future()
        lost.set_exception(RuntimeError("the node was taken away"))
        return lost


def test_lost_tasks_are_done_again(tmp_path, expected):
    with Losing(2) as executor:
        rows = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", executor=executor, retries=9, **SETTINGS)
    assert results(rows) == expected and executor.count > 12


def test_a_block_that_is_lost_too_often_fails(tmp_path, expected):
    with Losing(2) as executor, pytest.raises(ChildProcessError, match=r"lost a task \(.*taken away\) in block"):
        sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", executor=executor, retries=0, **SETTINGS)
    rows = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", **SETTINGS)
    assert results(rows) == expected


def test_many_small_jobs_go_in_few_tasks():
    with Losing(1) as executor:
        executor.count = -10000  # loses none
        executor.submit = lambda *task: (counted.append(1), ThreadPoolExecutor.submit(executor, *task))[1]
        counted = []
        alone = run(trials.squared_error, 1500, 1, block_size=1)
        assert run(trials.squared_error, 1500, 1, block_size=1, executor=executor).moments == alone.moments
    assert len(counted) < 150


def test_workers_of_an_executor_do_one_configuration_at_a_time(tmp_path):
    """Else each would make the trial of another configuration before every task."""
    order = []

    class One(ThreadPoolExecutor):
        def submit(self, do, token, sent, device, jobs):
            order.extend(job.run for job in jobs)
            return super().submit(do, token, sent, device, jobs)

    with One(3) as executor:
        settings = {"trials": 40, "seed": 7, "block_size": 2}
        sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", executor=executor, **settings)
    assert order == sorted(order) and len(order) == 80


@pytest.mark.slow  # starts processes
def test_a_block_that_takes_too_long_fails_alone(tmp_path, expected):
    settings = {**SETTINGS, "devices": ["cpu"], "time_limit": 1.0, "on_error": OnError.GO_ON}
    rows = sweep(trials.hanging, GRID, store=tmp_path / "s.jsonl", **settings)
    assert "longer than time_limit = 1 seconds" in rows[1].error
    assert [results(rows)[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]


KEPT = """
import resource, torch
from torchdp.simulate import pools

def pages():
    for _ in range(25):
        before, x = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, torch.zeros(300_000)
        for _ in range(8):
            x = x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = pages()
pools._keep_memory()
print(before, pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's allocator")
@pytest.mark.parametrize(("told", "kept"), [("65536", True), pytest.param("4096", False, marks=pytest.mark.slow)])
def test_a_worker_keeps_the_memory_that_trials_free_unless_told_otherwise(told, kept):
    """Pages that the system hands out in the last of 25 trials; with Dask's setting all of each of its arrays."""
    given = {**os.environ, "MALLOC_TRIM_THRESHOLD_": told}
    said = subprocess.run([sys.executable, "-c", KEPT], env=given, capture_output=True, text=True, check=True)
    before, after = map(int, said.stdout.split())
    assert before > 1000 and (after < 50) == kept, said.stdout


@pytest.mark.slow  # starts a cluster
def test_a_cluster_that_loses_workers_and_gets_another(tmp_path, expected, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        rows = sweep(trials.make_trial, GRID, store=tmp_path / "a.jsonl", executor=client, **SETTINGS)
        assert results(rows) == expected
        again = threading.Timer(0.3, cluster.scale, [3])
        again.start()
        settings = {**SETTINGS, "on_error": OnError.GO_ON, "retries": 0}
        rows = sweep(trials.dying, GRID, store=tmp_path / "b.jsonl", executor=client, **settings)
        again.join()
    assert "executor lost" in rows[2].error
    assert [results(rows)[i] for i in (0, 1, 3)] == [expected[i] for i in (0, 1, 3)]


@pytest.mark.slow  # starts processes
def test_a_worker_that_is_killed_between_two_tasks_is_replaced(tmp_path, expected, monkeypatch):
    """Its pool refuses the next task."""
    killed, take = [], Work._take

    def kill_then_take(self, job, record):
        if not killed:
            killed.extend(child.pid for child in active_children())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
        take(self, job, record)

    monkeypatch.setattr(Work, "_take", kill_then_take)
    rows = sweep(trials.make_trial, GRID, store=tmp_path / "s.jsonl", devices=["cpu"], **SETTINGS)
    assert killed and results(rows) == expected
