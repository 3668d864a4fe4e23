"""``torchdp sweep``: measures, resumes, draws; refuses what it cannot run."""

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from torchdp import cli
from torchdp.cli.sweep import places
from torchdp.simulate import write_page
from torchdp.simulate.store import load

TOY = """
import torch
from torchdp.simulate import Sweep, Trial

def make_trial(config):
    def sample(generator, size):
        return torch.randn(size, generator=generator).square() / config["n"]
    return Trial(sample, {"predicted_mse": 1 / config["n"]})

def draw(rows, folder):
    path = folder / "drawn.txt"
    path.write_text(" ".join(f"{row.config['n']}:{row.seed}:{row.moments.count}" for row in rows))
    return [path]

def experiment(smoke):
    sizes = (1, 2) if smoke else (2, 4, 8)
    return Sweep("toy", [{"n": n} for n in sizes], make_trial, 100, 40, draw)
"""
ROOT = Path(__file__).parents[2]


def commands(name):
    """The commands that a page of the documentation shows."""
    return re.findall(r"^    (torchdp .*)$", (ROOT / "docs" / name).read_text(), re.M)


COMMANDS = commands("sweeps.md")
SHARDS = commands("cluster.md")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    # pages take half a second
    monkeypatch.setattr("torchdp.cli.sweep.write_page", lambda *_: "report.html")
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return str(path)


def run(*arguments):
    assert cli.main(["sweep", *map(str, arguments)]) == 0


def refuse(capsys, *arguments):
    assert cli.main(["sweep", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdp sweep: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_is_written_and_drawn_again(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torchdp.cli.sweep.write_page", write_page)
    run(toy, "--smoke", "--out", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    printed = [Path(line) for line in lines]
    names = ["results.jsonl", "results.csv", "drawn.txt", "report.html"]
    assert printed == [tmp_path / name for name in names]
    for row in table(tmp_path):
        # a hundred trials
        assert 0.3 < float(row["ratio"]) < 3
        assert abs(float(row["z"])) < 5
        assert row["trials"] == "100"
    stored = printed[0].read_bytes()
    written = printed[1].read_bytes()
    # nothing is left to measure
    run(toy, "--smoke", "--out", tmp_path)
    assert printed[0].read_bytes() == stored
    for path in printed[1:]:
        path.unlink()
    run(toy, "--smoke", "--out", tmp_path, "--draw-only")
    assert all(path.exists() for path in printed)
    assert printed[0].read_bytes() == stored
    assert printed[1].read_bytes() == written


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "defines no experiment(smoke)"),
        ("def experiment(smoke): return 3", "must return a torchdp.simulate.Sweep"),
        ("x = 1\nx / 0", "bad.py, line 2: ZeroDivisionError: division by zero"),
        ("def experiment(smoke):\n    return smoke['n']", "bad.py, line 2: TypeError: 'bool'"),
        (TOY.replace("[{", "[] and [{"), "its grid is empty, nothing was measured"),
        (TOY.replace("for row in rows", "for row in 3"), "bad.py, line 12: TypeError: 'int'"),
    ],
)
def test_bad_scripts(text, words, tmp_path, capsys):
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert words in refuse(capsys, path, "--out", tmp_path / "out")


@pytest.mark.parametrize("words, message", [
    ("--trials 0", "--trials must be an integer >= 1"), ("--shard 4/4", "--shard must be I/N"),
    ("--shard 0/\uff14", "--shard must be I/N"), ("--shard env", "--shard env found none of SLURM_ARRAY_TASK_ID"),
    ("--cluster local:4", "--cluster must be a scheduler's address"), ("--devices=", "devices must be"),
    ("--device abacus", "--device must be a device of this machine"), ("--out toy.py", "toy.py"),
])  # fmt: skip
def test_bad_options(toy, tmp_path, words, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refuse(capsys, toy, *words.split())


def table(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_an_edited_script_is_not_merged(toy, tmp_path, capsys):
    run(toy, "--out", tmp_path)
    before = table(tmp_path)
    Path(toy).write_text(
        TOY.replace(".square()", ".square() * 100").replace("drawn.txt", "figure.txt")
    )
    capsys.readouterr()
    assert "holds blocks of config {'n': 2} by other code: trial" in refuse(
        capsys, toy, "--out", tmp_path
    )
    run(toy, "--out", tmp_path, "--other-code", "keep")
    assert table(tmp_path) == before
    run(toy, "--out", tmp_path, "--draw-only")
    assert "drawn from blocks by other code: trial" in capsys.readouterr().err
    run(toy, "--out", tmp_path, "--other-code", "again", "--trials", 200)
    after = table(tmp_path)
    assert all(row["trials"] == "200" and float(row["mse"]) * float(row["n"]) > 50 for row in after)
    assert {row["code"] for row in after}.isdisjoint({row["code"] for row in before})
    run(toy, "--out", tmp_path, "--draw-only")
    assert capsys.readouterr().err == ""
    assert table(tmp_path) == after
    # the old script finds its own blocks
    Path(toy).write_text(TOY)
    run(toy, "--out", tmp_path)
    assert table(tmp_path) == before


def test_a_bad_configuration_does_not_stop_the_others(toy, tmp_path, capsys):
    bad = TOY.replace(
        "def sample(", "if config['n'] == 4: raise ValueError('a planted error')\n    def sample("
    )
    Path(toy).write_text(bad)
    assert cli.main(["sweep", toy, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err == "torchdp sweep: {'n': 4} failed: ValueError: a planted error\n"
    assert "drawn.txt" in said.out
    assert [(row["n"], row["trials"], row["error"]) for row in table(tmp_path)] == [
        ("2", "100", ""), ("4", "0", "ValueError: a planted error"), ("8", "100", "")
    ]  # fmt: skip
    assert (tmp_path / "drawn.txt").read_text() == "2:0:100 8:0:100"
    assert "a planted error" in refuse(capsys, toy, "--out", tmp_path, "--stop-on-error")


def test_what_figures_need_is_looked_for_before_the_work(toy, tmp_path, capsys):
    Path(toy).write_text(
        TOY.replace("100, 40, draw)", "100, 40, draw, needs=['a_package_that_nobody_has'])")
    )
    said = refuse(capsys, toy, "--out", tmp_path / "out")
    assert "a_package_that_nobody_has" in said
    assert "--measure-only" in said
    assert not (tmp_path / "out").exists()
    run(toy, "--out", tmp_path, "--measure-only")
    assert len(table(tmp_path)) == 3
    assert not (tmp_path / "drawn.txt").exists()


def test_shards_and_their_merge(toy, tmp_path, monkeypatch, capsys):
    run(toy, "--out", tmp_path / "whole", "--trials", 60)
    run(toy, "--out", tmp_path / "a", "--trials", 60, "--shard", "0/2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "3")
    run(toy, "--out", tmp_path / "b", "--trials", 60, "--shard", "env")
    stores = [str(tmp_path / name / "results.jsonl") for name in ("c", "a", "b")]
    assert cli.main(["merge", *stores]) == 0
    assert "new blocks in" in capsys.readouterr().out
    run(toy, "--out", tmp_path / "c", "--trials", 60)
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "c")
    for bad, words in ((tmp_path / "absent", "absent"), (toy, "holds no line of a sweep's store")):
        assert cli.main(["merge", stores[0], str(bad)]) == 2
        assert words in capsys.readouterr().err


def untimed(folder):
    return [{**row, "seconds": ""} for row in table(folder)]


def test_a_worker_writes_the_table_of_this_process(toy, tmp_path):
    run(toy, "--smoke", "--out", tmp_path / "one")
    run(toy, "--smoke", "--out", tmp_path / "two", "--devices", "cpu")
    assert untimed(tmp_path / "one") == untimed(tmp_path / "two")
    assert len(table(tmp_path / "two")) == 2


def test_a_cluster_writes_the_table_of_one_process(toy, tmp_path, monkeypatch):
    """Threads here stand for its processes."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    settings = {
        "n_workers": 2,
        "processes": False,
        "protocol": "tcp://",
        "dashboard_address": None,
    }
    run("toy.py", "--smoke", "--out", "one")
    with distributed.LocalCluster(**settings) as there:
        run("toy.py", "--smoke", "--out", "two", "--cluster", there.scheduler_address)
    assert untimed(tmp_path / "one") == untimed(tmp_path / "two")
    assert len(table(tmp_path / "two")) == 2


@pytest.mark.parametrize(
    ("number", "more"),
    [("SIGUSR1", ()), pytest.param("SIGTERM", ("--devices", "cpu,cpu"), marks=pytest.mark.slow)],
)
def test_a_signal_of_a_cluster_stops_a_sweep_that_then_goes_on(toy, tmp_path, number, more):
    """It reaches the workers too, as srun sends it; the code is a shell's, by which a batch script
    requeues.
    """
    naps = TOY.replace(
        "        return", "        time.sleep(float(os.environ.get('NAP', 0)))\n        return"
    )
    Path(toy).write_text("import os, time\n" + naps)
    asked = ["--smoke", "--out", str(tmp_path / "a"), *more]
    store = tmp_path / "a" / "results.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-m", "torchdp", "sweep", toy, *asked], env={**os.environ, "NAP": "1"},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while child.poll() is None and (not store.exists() or b'"block"' not in store.read_bytes()):
        time.sleep(0.05)
    os.killpg(child.pid, getattr(signal, number))
    _, said = child.communicate(timeout=600)
    assert child.returncode == 128 + getattr(signal, number)
    assert said == f"torchdp sweep: interrupted by {number}; finished blocks are kept\n"
    done = sum(map(len, load(store).runs.values()))
    assert 1 <= done < 6
    run(toy, *asked)
    run(toy, "--smoke", "--out", tmp_path / "b")
    assert sum(map(len, load(store).runs.values())) == 6
    assert len(load(store).starts) == 2
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")


@pytest.mark.parametrize(
    ("count", "given", "expected"),
    [
        (0, (None, None, None), {"device": torch.device("cpu")}),
        (3, (None, None, None), {"devices": ["cuda:0", "cuda:1", "cuda:2"]}),
        (3, ("cpu", None, None), {"device": torch.device("cpu")}),
        (3, (None, "cuda:1,cuda:2", None), {"devices": ["cuda:1", "cuda:2"]}),
    ],
)
def test_every_visible_gpu_has_a_worker_where_no_place_is_named(
    count, given, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert places(*given) == expected


@pytest.fixture
def coin(tmp_path, monkeypatch):
    """The page's script, where a user saves it."""
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/sweeps.md").read_text(), re.M | re.S
    )
    (tmp_path / "coin.py").write_text(block)
    monkeypatch.chdir(tmp_path)


def test_the_tutorial_runs_as_it_stands(coin, capsys):
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        # no processes
        here = command.replace("--devices cpu,cpu", "--trials 4000")
        assert cli.main(shlex.split(here)[1:]) == 0, command
    assert "results/coin/report.html" in capsys.readouterr().out
    page = Path("results/coin/report.html").read_text()
    assert "6 of 6 configurations done" in page
    assert float(re.search(r"largest of 6 z-scores is (\d+\.\d+)", page)[1]) < 4


def test_shards_make_one_page(coin, capsys):
    assert len(SHARDS) == 4
    for command in SHARDS:
        here = command.replace("coin.py --shard", "coin.py --trials 4000 --shard")
        assert cli.main(shlex.split(here)[1:]) == 0, command
    assert cli.main(["sweep", "coin.py", "--trials", "4000", "--out", "one"]) == 0
    assert digest("all/report.html") == digest("one/report.html")
    capsys.readouterr()
    # one block alone
    assert cli.main(["sweep", "coin.py", "--smoke", "--shard", "1/2", "--out", "idle"]) == 0
    assert "shard 1/2 has no block" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (138, "requeue 7_2"),
        (0, ""),
        (1, ""),
    ],
)
def test_the_job_of_slurm_is_requeued_when_its_time_is_over_alone(tmp_path, code, again):
    """Beside commands that stand for SLURM's; its sweep is one that the command line takes."""
    for name, does in {"srun": f'echo "$@" > asked; exit {code}', "scontrol": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "2",
    }
    script = ["bash", ROOT / "docs/jobs/slurm.sh"]
    said = subprocess.run(
        script, cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    ).stdout
    assert said.strip() == again
    assert 128 + signal.SIGUSR1 == 138
    words = (tmp_path / "asked").read_text().split()[1:]
    assert cli.parser().parse_args(words).out == "results/coin"


def test_the_job_of_kubernetes_gives_each_pod_its_shard():
    spec = pytest.importorskip("yaml").safe_load((ROOT / "docs/jobs/kubernetes.yaml").read_text())[
        "spec"
    ]
    *shell, command = spec["template"]["spec"]["containers"][0]["command"]
    options = cli.parser().parse_args(command.replace("$JOB_COMPLETION_INDEX", "3").split()[2:])
    # exec: the signal is for the sweep
    assert shell == ["sh", "-c"]
    assert command.startswith("exec torchdp sweep")
    assert (options.shard, options.out) == (f"3/{spec['completions']}", "/data/3")
    assert spec["completionMode"] == "Indexed"
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"


def digest(page):
    return re.search(r"results: ([0-9a-f]{16})", Path(page).read_text())[0]
