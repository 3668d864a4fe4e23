"""``torchdp sweep --devices``: workers that load the script for themselves."""

import csv
from functools import partial

import pytest

from torchdp import cli
from torchdp.cli.sweep import cluster

TOY = """
import torch
from torchdp.simulate import Sweep, Trial

def make_trial(config):
    if config["n"] == 64:
        raise ValueError("a planted error")
    def sample(generator, size):
        return torch.randn(size, generator=generator).square() / config["n"]
    return Trial(sample, {"predicted_mse": 1 / config["n"]})

def experiment(smoke):
    return Sweep("toy", [{"n": n} for n in ((1, 2, 4) if smoke else (64,))], make_trial, 100, 40, draw)

def draw(rows, folder):
    return []
"""


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return str(path)


def table(folder):
    with (folder / "results.csv").open() as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def refuse(capfd, *arguments):
    assert cli.main(["sweep", *map(str, arguments)]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.startswith("torchdp sweep: ") and captured.err.count("\n") == 1
    return captured.err


def test_two_workers_write_the_table_of_one_process(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "toy.py", "--smoke", "--out", "one"]) == 0
    assert cli.main(["sweep", "toy.py", "--smoke", "--out", "two", "--devices", "cpu,cpu"]) == 0
    assert table(tmp_path / "one") == table(tmp_path / "two") and len(table(tmp_path / "two")) == 3


@pytest.mark.slow  # starts a cluster
def test_a_cluster_writes_the_table_of_one_process(toy, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "toy.py", "--smoke", "--out", "one"]) == 0
    assert cli.main(["sweep", "toy.py", "--smoke", "--out", "two", "--cluster", "local:2"]) == 0
    assert table(tmp_path / "one") == table(tmp_path / "two") and len(table(tmp_path / "two")) == 3


@pytest.mark.parametrize("count", [1, 3])
def test_a_local_cluster_has_as_many_workers_as_it_is_told(count, monkeypatch):
    """Threads here stand for its processes."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "LocalCluster", partial(distributed.LocalCluster, processes=False))
    with cluster(f"local:{count}") as client:
        workers = client.scheduler_info()["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1] * count


def test_an_error_in_a_worker_is_one_line(toy, tmp_path, capfd):
    said = refuse(capfd, toy, "--out", tmp_path, "--devices", "cpu")
    assert 'a planted error (block 0 of seed 0, config {"n":64}, on cpu)' in said


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("", "devices must name"),
        ("abacus,cpu", "devices must name"),
        ("cuda:0,cpu", "one kind"),
        ("cuda:99", "here"),
    ],
)
def test_bad_devices(toy, tmp_path, devices, words, capfd):
    assert words in refuse(capfd, toy, "--smoke", "--out", tmp_path, "--devices", devices)


def test_one_device_and_several_exclude_each_other(toy, capfd):
    with pytest.raises(SystemExit) as caught:
        cli.main(["sweep", toy, "--device", "cuda", "--devices", "cpu,cpu"])
    assert caught.value.code == 2 and "not allowed with" in capfd.readouterr().err
