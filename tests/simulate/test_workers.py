"""Workers: the same bits as one process, whatever dies, fails or is interrupted, and nothing left
behind.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, PATIENCE, SETTINGS, never, results, wait_until
from worker_trials import block_lines as lines

import torchdp
from torchdp.simulate import OnError, read, sweep

TWO = ["cpu", "cpu"]


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def test_rows_do_not_depend_on_the_workers_nor_on_the_order(tmp_path, expected):
    store = tmp_path / "store.jsonl"
    order = [2, 0, 3, 1]
    rows = sweep(
        trials.make_trial,
        [GRID[i] for i in order],
        store=store,
        devices=TWO,
        **SETTINGS,
    )
    assert results(rows) == [expected[i] for i in order]
    assert len(set(lines(store))) == len(lines(store)) == 12
    assert sorted(results(read(store))) == sorted(expected)
    # starts no worker
    assert results(sweep(never, GRID, store=store, devices=TWO, **SETTINGS)) == expected


def test_one_of_two_workers_that_is_killed_changes_nothing(tmp_path):
    """90 blocks of three configurations on two processes, none of them twice."""
    settings = {"trials": 300, "seed": 7, "block_size": 10}
    alone = sweep(
        trials.make_trial,
        GRID[:3],
        store=tmp_path / "one.jsonl",
        **settings,
    )
    store = tmp_path / "two.jsonl"
    killed = []

    def kill():
        wait_until(lambda: len(lines(store)) > 20)
        first = next(tmp_path.glob("*.pid"))
        killed.append(int(first.stem))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    slow = partial(trials.slow, tmp_path, 0.01, 90)
    slow.__wrapped__ = trials.make_trial
    rows = sweep(
        slow,
        GRID[:3],
        store=store,
        devices=TWO,
        **settings,
    )
    killer.join()
    # others did its blocks
    assert len(killed) == 1
    assert len([*tmp_path.glob("*.pid")]) > 1
    assert results(rows) == results(alone)
    assert len(set(lines(store))) == len(lines(store)) == 90


def test_a_target_gives_the_rows_of_one_process_though_workers_run_ahead(tmp_path):
    target = {**SETTINGS, "trials": 5000, "target_relative_ci": 0.1}
    alone = sweep(
        trials.make_trial,
        GRID[:1],
        store=tmp_path / "a.jsonl",
        **target,
    )
    store = tmp_path / "b.jsonl"
    late = partial(trials.late_first_block, store, len(lines(tmp_path / "a.jsonl")))
    late.__wrapped__ = trials.make_trial
    # others run ahead, or it does not end
    rows = sweep(
        late,
        GRID[:1],
        store=store,
        devices=TWO,
        **target,
    )
    assert results(rows) == results(alone)
    assert rows[0].moments.count < 5000


def test_a_block_that_kills_its_workers_fails_alone(tmp_path, expected):
    store = tmp_path / "store.jsonl"
    rows = sweep(
        trials.dying, GRID, store=store, devices=["cpu"], on_error=OnError.GO_ON, **SETTINGS
    )
    assert "ChildProcessError: the worker process on cpu died in block 1 of seed 7" in rows[2].error
    # or it was not let begin
    assert "if __name__ == '__main__'" in rows[2].error
    # another worker did the rest
    assert [*results(rows)[:2], results(rows)[3]] == [*expected[:2], expected[3]]
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected
    assert len(set(lines(store))) == len(lines(store)) == 12


@pytest.mark.parametrize("where", [{"devices": ["cpu"]}, {"executor": ThreadPoolExecutor(2)}])
def test_an_exception_names_its_block_and_device_once(tmp_path, expected, capfd, where):
    store = tmp_path / "store.jsonl"
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a planted error") as caught:
        sweep(
            trials.failing,
            GRID,
            store=store,
            **where,
            **SETTINGS,
        )
    for words in ("block 2 of seed 7", '{"n":100,"name":"b"}', "on cpu"):
        assert str(caught.value).count(words) == 1
    # with the worker's traceback
    assert "a planted error" in str(caught.value.__cause__)
    # nothing from the workers beside it
    assert capfd.readouterr().err == ""
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


def test_workers_have_the_bits_of_one_thread_and_the_default_dtype_of_this_process(tmp_path):
    """A function inside a function is sent too."""
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    scale = 2.0

    def sums(config):
        return lambda generator, size: scale * trials.large_sum(generator, size)

    def once(name, **where):
        store = tmp_path / name
        rows = sweep(sums, [{}], trials=2, seed=5, block_size=1, store=store, **where)
        return rows[0].moments

    try:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        one = once("one")
        torch.set_num_threads(4)
        # the check has power
        assert once("four") != one
        assert once("worker", devices=["cpu"]) == one
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def test_what_cannot_be_sent_is_refused_before_any_work(tmp_path):
    store = tmp_path / "folder" / "store.jsonl"
    bad = partial(trials.slow, threading.Lock())
    with pytest.raises(
        TypeError, match=r"make_trial cannot be sent to workers.*functions and values"
    ):
        sweep(bad, GRID, store=store, devices=TWO, **SETTINGS)
    assert not store.parent.exists()


@pytest.mark.slow  # starts a cluster
@pytest.mark.parametrize(
    "made", [lambda client: client, lambda client: client.get_executor(pure=False)]
)
def test_a_cluster_of_dask_that_gets_another_worker(tmp_path, expected, monkeypatch, made):
    distributed = pytest.importorskip("distributed")
    folders = [str(Path(__file__).parent), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        more = threading.Timer(0.3, cluster.scale, [2])
        more.start()
        rows = sweep(
            trials.make_trial, GRID, store=tmp_path / "a.jsonl", executor=made(client), **SETTINGS
        )
        more.join()
    assert results(rows) == expected


def script(
    folder: Path,
    store: Path,
    seconds: float,
    count: int,
    most: int,
) -> subprocess.Popen:
    text = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(torchdp.__file__).parents[1])]!r}
from functools import partial
from pathlib import Path
import worker_trials
from torchdp.simulate import sweep
if __name__ == "__main__":
    make_trial = partial(worker_trials.slow, Path({str(folder)!r}), {seconds}, {most})
    make_trial.__wrapped__ = worker_trials.make_trial
    sweep(make_trial, worker_trials.GRID, store={str(store)!r}, devices=["cpu"] * {count}, **worker_trials.SETTINGS)
"""
    path = folder / "sweep_with_workers.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1]
        # a zombie has ended
        return state.split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks the workers up in /proc")
@pytest.mark.parametrize(
    ("how", "count"), [(signal.SIGKILL, 1), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow)]
)
def test_workers_end_with_their_parent_and_the_next_call_resumes(tmp_path, expected, how, count):
    store = tmp_path / "store.jsonl"
    parent = script(tmp_path, store, 0.2, count, 4)

    def started():
        return len(lines(store)) >= 3 and len([*tmp_path.glob("*.pid")]) == count

    wait_until(lambda: started() or parent.poll() is not None)
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(workers) == count
    assert all(map(alive, workers))
    if how == signal.SIGINT:
        # as a terminal does: all of them get it
        os.killpg(parent.pid, how)
    else:
        parent.send_signal(how)
    wait_until(lambda: not any(map(alive, workers)))
    _, said = parent.communicate(timeout=PATIENCE)
    # the parent's own KeyboardInterrupt
    assert said.count("Traceback") == (how == signal.SIGINT)
    assert len(lines(store)) < 12
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


def test_a_device_of_an_executor_need_not_be_here(tmp_path):
    """Its workers have it, or say so."""
    settings = {"store": tmp_path / "store.jsonl", "device": "cuda:99", **SETTINGS}
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises((RuntimeError, ValueError), match=r"block 0 of seed 7.*on cuda:99"):
            sweep(trials.make_trial, GRID, executor=executor, **settings)
    with pytest.raises(ValueError, match="device must be a device of this machine"):
        sweep(trials.make_trial, GRID, **settings)
