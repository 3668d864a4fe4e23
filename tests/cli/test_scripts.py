"""The tutorial's script and commands, as docs/sweeps.md and docs/cluster.md give them; and the jobs beside them."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from torchdp import cli

ROOT = Path(__file__).parents[2]
COMMANDS, SHARDS = (re.findall(r"^    (torchdp .*)$", (ROOT / "docs" / name).read_text(), re.M)
                    for name in ("sweeps.md", "cluster.md"))  # fmt: skip


@pytest.fixture(autouse=True)
def coin(tmp_path, monkeypatch):
    """The page's script, where a user saves it."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/sweeps.md").read_text(), re.M | re.S)
    (tmp_path / "coin.py").write_text(block)
    monkeypatch.chdir(tmp_path)


def test_the_tutorial_runs_as_it_stands(capsys):
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        here = command.replace("--devices cpu,cpu", "--trials 4000")  # no processes
        assert cli.main(shlex.split(here)[1:]) == 0, command
    assert "results/coin/report.html" in capsys.readouterr().out
    page = Path("results/coin/report.md").read_text()
    assert "6 of 6 configurations done" in page
    assert float(re.search(r"largest of 6 z-scores is (\d+\.\d+)", page)[1]) < 4


def test_shards_make_one_page(capsys):
    assert len(SHARDS) == 4
    for command in SHARDS:
        here = command.replace("coin.py --shard", "coin.py --trials 4000 --shard")
        assert cli.main(shlex.split(here)[1:]) == 0, command
    assert cli.main(["sweep", "coin.py", "--trials", "4000", "--out", "one"]) == 0
    assert digest("all/report.md") == digest("one/report.md")
    capsys.readouterr()
    assert cli.main(["sweep", "coin.py", "--smoke", "--shard", "1/2", "--out", "idle"]) == 0  # one block alone
    assert "shard 1/2 has no block" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "again"), [(138, "requeue 7_2"), (0, ""), (1, "")])
def test_the_job_of_slurm_is_requeued_when_its_time_is_over_alone(tmp_path, code, again):
    """Beside commands that stand for SLURM's; its sweep is one that the command line takes."""
    for name, does in {"srun": f'echo "$@" > asked; exit {code}', "scontrol": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    script = ["bash", ROOT / "docs/jobs/slurm.sh"]
    said = subprocess.run(script, cwd=tmp_path, env=given, capture_output=True, text=True, check=False).stdout
    assert said.strip() == again and 128 + signal.SIGUSR1 == 138
    assert cli.parser().parse_args((tmp_path / "asked").read_text().split()[1:]).out == "results/coin"


def test_the_job_of_kubernetes_gives_each_pod_its_shard():
    spec = pytest.importorskip("yaml").safe_load((ROOT / "docs/jobs/kubernetes.yaml").read_text())["spec"]
    *shell, command = spec["template"]["spec"]["containers"][0]["command"]
    options = cli.parser().parse_args(command.replace("$JOB_COMPLETION_INDEX", "3").split()[2:])
    assert shell == ["sh", "-c"] and command.startswith("exec torchdp sweep")  # exec: the signal is for the sweep
    assert (options.shard, options.out) == (f"3/{spec['completions']}", "/data/3")
    assert spec["completionMode"] == "Indexed" and spec["template"]["spec"]["restartPolicy"] == "OnFailure"


def digest(page):
    return re.search(r"[0-9a-f]{16,}", Path(page).read_text())[0]
