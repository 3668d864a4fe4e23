"""Worker processes: the same bits as one process, whatever dies, fails or is interrupted, and nothing left behind."""

import errno
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, PATIENCE, SETTINGS, never, results, wait_until
from worker_trials import block_lines as lines

import torchdp
from torchdp.simulate import OnError, read, run, sweep

TWO = ["cpu", "cpu"]


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_rows_do_not_depend_on_the_number_of_workers_nor_on_the_order(tmp_path, expected, count):
    store, order = tmp_path / "store.jsonl", [2, 0, 3, 1]
    rows = sweep(trials.make_trial, [GRID[i] for i in order], store=store, devices=["cpu"] * count, **SETTINGS)
    assert results(rows) == [expected[i] for i in order]
    assert len(set(lines(store))) == len(lines(store)) == 12
    assert sorted(results(read(store))) == sorted(expected)
    assert results(sweep(never, GRID, store=store, devices=TWO, **SETTINGS)) == expected  # starts no worker


def test_a_target_gives_the_rows_of_one_process_though_workers_run_ahead(tmp_path):
    target = {**SETTINGS, "trials": 5000, "target_relative_ci": 0.1}
    alone = sweep(trials.make_trial, GRID[:1], store=tmp_path / "a.jsonl", **target)
    store = tmp_path / "b.jsonl"
    late = partial(trials.late_first_block, store, len(lines(tmp_path / "a.jsonl")))
    late.__wrapped__ = trials.make_trial
    rows = sweep(late, GRID[:1], store=store, devices=TWO, **target)  # others run ahead, or it does not end
    assert results(rows) == results(alone) and rows[0].moments.count < 5000
    assert results(sweep(never, GRID[:1], store=store, **target)) == results(alone)


def test_a_killed_worker_is_reported_and_loses_its_block_alone(tmp_path, expected):
    store = tmp_path / "store.jsonl"
    rows = sweep(trials.dying, GRID, store=store, devices=["cpu"], on_error=OnError.GO_ON, retries=0, **SETTINGS)
    assert re.search(r'on cpu was killed by SIGKILL in block 1 of seed 7.*"n":100', rows[2].error)
    assert [*results(rows)[:2], results(rows)[3]] == [*expected[:2], expected[3]]  # another worker did the rest
    kept = lines(store)
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected
    assert lines(store)[: len(kept)] == kept and len(set(lines(store))) == len(lines(store)) == 12


def test_an_exception_is_reported_once_with_its_block_and_device(tmp_path, expected, capfd):
    store = tmp_path / "store.jsonl"
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a planted error") as caught:
        sweep(trials.failing, GRID, store=store, devices=["cpu"], **SETTINGS)
    for words in ("block 2 of seed 7", '{"n":100,"name":"b"}', "on cpu"):
        assert str(caught.value).count(words) == 1
    assert "in divide_by_zero" in "".join(caught.value.__notes__)  # the worker's traceback
    assert capfd.readouterr().err == ""  # nothing from the workers beside it
    assert 5 <= len(lines(store)) <= 11
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


def test_a_full_disk_stops_the_workers(tmp_path, expected, monkeypatch):
    store, left = tmp_path / "store.jsonl", 4  # the start, and three blocks
    real = torchdp.simulate.config_runs.append

    def full(path, record):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "cannot append to the results store", str(path))
        real(path, record)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"cannot append.*store\.jsonl"):
        patch.setattr("torchdp.simulate.config_runs.append", full)
        sweep(trials.make_trial, GRID, store=store, devices=["cpu"], **SETTINGS)
    assert multiprocessing.active_children() == [] and len(lines(store)) == 3
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


def test_workers_have_the_bits_of_one_thread_and_the_default_dtype_of_this_process():
    """A function inside a function is sent too."""
    threads, dtype, scale = torch.get_num_threads(), torch.get_default_dtype(), 2.0
    once = partial(run, lambda generator, size: scale * trials.large_sum(generator, size), 2, 5, block_size=1)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        one = once().moments
        torch.set_num_threads(4)
        assert once().moments != one  # the check has power
        assert once(devices=["cpu"]).moments == one
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def test_what_cannot_be_sent_is_refused_before_any_work(tmp_path):
    store, bad = tmp_path / "folder" / "store.jsonl", partial(trials.slow, threading.Lock())
    with pytest.raises(TypeError, match=r"make_trial cannot be sent to workers.*functions and values"):
        sweep(bad, GRID, store=store, devices=TWO, **SETTINGS)
    assert not store.parent.exists()
    with pytest.raises(TypeError, match="trial cannot be sent"):
        run(partial(torch.rand, threading.Lock()), 10, 0, devices=TWO)


def script(folder: Path, store: Path, seconds: float, count: int, most: int) -> subprocess.Popen:
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
    return subprocess.Popen([sys.executable, str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks the workers up in /proc")
@pytest.mark.parametrize(
    ("how", "count"), [(signal.SIGKILL, 1), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow)]
)
def test_workers_end_with_their_parent_and_the_next_call_resumes(tmp_path, expected, how, count):
    store = tmp_path / "store.jsonl"
    parent = script(tmp_path, store, 0.2, count, 4)
    wait_until(
        lambda: (len(lines(store)) >= 3 and len([*tmp_path.glob("*.pid")]) == count) or parent.poll() is not None
    )
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(workers) == count and all(map(alive, workers))
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does: all of them get it
    else:
        parent.send_signal(how)
    wait_until(lambda: not any(map(alive, workers)))
    _, said = parent.communicate(timeout=PATIENCE)
    assert said.count("Traceback") == (how == signal.SIGINT)  # the parent's own KeyboardInterrupt
    assert len(lines(store)) < 12
    assert results(sweep(trials.make_trial, GRID, store=store, **SETTINGS)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_kills_at_random_moments_change_nothing(tmp_path, expected, seed):
    draw, store = random.Random(seed), tmp_path / "store.jsonl"
    for _ in range(3):
        parent = script(tmp_path, store, 0.05, 1 + seed % 3, 12)  # ends, though a worker alone was killed
        wait_until(lambda there=parent: any(tmp_path.glob("*.pid")) or there.poll() is not None)
        time.sleep(draw.random() * 0.4)
        workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
        for process in draw.choice([[parent.pid], workers[:1], [parent.pid, *workers]]):
            if alive(process):
                os.kill(process, signal.SIGKILL)
        parent.communicate(timeout=PATIENCE)
        wait_until(lambda there=workers: not any(map(alive, there)))
        for path in tmp_path.glob("*.pid"):
            path.unlink()
    rows = sweep(trials.make_trial, GRID, store=store, devices=TWO, **SETTINGS)
    assert results(rows) == expected
    assert len(set(lines(store))) == len(lines(store)) == 12


@pytest.mark.slow
def test_a_script_that_workers_cannot_load_is_told_why(tmp_path):
    path, root = tmp_path / "script.py", Path(torchdp.__file__).parents[1]
    path.write_text("""
import torch
from torchdp.simulate import run
run(lambda generator, size: torch.zeros(size), 10, 0, devices=["cpu"])
""")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert done.returncode == 1 and "must do so under if __name__ == '__main__':" in done.stderr


@pytest.mark.gpu
def test_the_devices_of_this_machine_give_one_device_s_bits(tmp_path):
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = devices if len(devices) > 1 else devices * 2
    alone = sweep(trials.make_trial, GRID, store=tmp_path / "a.jsonl", device=devices[0], **SETTINGS)
    for there in (devices, devices[::-1]):
        rows = sweep(trials.make_trial, GRID, store=tmp_path / f"{there[0][-1]}.jsonl", devices=there, **SETTINGS)
        assert results(rows) == results(alone)
