"""Servers, clients and analyst as processes: the same bits, and nothing on the wire but shares and sums."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chi2

from torchdp.noise import SeededNoise
from torchdp.secure import SecureSketch, processes, run_processes, take_part
from torchdp.secure.frames import HEADER_BYTES, TAG_BYTES, Kind, header_of
from torchdp.secure.servers import Links
from torchdp.sketching import balanced_osnap

KEY = bytes(range(32))
SEED = int.from_bytes(bytes.fromhex("9f3c1e77ab5d02466d8e9910fe3271c55a0bd4e8167f29833cc1705f4eb2d8a6"), "little")


def protocol(n=600, servers=2):
    sketch = balanced_osnap(n, 6, 2, generator=torch.Generator().manual_seed(0))
    return SecureSketch(sketch, 3, 1.0, 1.0, 1e-5, servers=servers)


def words_of(frame):
    body = frame[HEADER_BYTES:-TAG_BYTES]
    return torch.frombuffer(bytearray(body), dtype=torch.int64)


@pytest.mark.slow
def test_processes_give_the_same_bits_and_the_wire_carries_only_shares_and_sums(tmp_path):
    p, A = protocol(), torch.full((600, 3), 0.5)
    found = run_processes(p, A, seed=SEED, record=tmp_path)
    assert torch.equal(found.value, p.estimate(A, noise=SeededNoise(SEED)).value) and found.n == 600

    sent = {path.stem: torch.load(path) for path in tmp_path.iterdir()}
    assert set(sent) == {"server 0", "server 1", "clients", "analyst"}
    frames = [(sender, to, frame) for sender, out in sent.items() for to, frame in out]
    kinds = {(sender.split()[0], to.split()[0]): header_of(frame).kind for sender, to, frame in frames}
    assert kinds == {
        ("clients", "server"): Kind.MESSAGE, ("server", "server"): Kind.ROLL, ("server", "analyst"): Kind.SUM,
    }  # fmt: skip
    for_analyst = [frame for _, to, frame in frames if to == "analyst"]
    assert [len(words_of(frame)) for frame in for_analyst] == [
        6 * 3
    ] * 2  # m d words from each server, nothing else
    payload = sum(8 * len(words_of(f)) for _, _, f in frames if header_of(f).kind is not Kind.ROLL)
    assert payload == p.payload_bytes
    for k in range(2):
        seen = torch.cat(
            [words_of(f) for _, to, f in frames if to == f"server {k}" and header_of(f).kind is Kind.MESSAGE]
        )
        assert len(seen) == 2 * 600 * 3
        counts = torch.bincount(
            seen.view(torch.uint8).long(), minlength=256
        ).double()  # uniform, though all rows are alike
        assert float((counts - counts.mean()).square().sum() / counts.mean()) < chi2.isf(1e-6, 255)


def test_each_process_is_handed_its_own_secrets_alone(monkeypatch):
    given, interfaces, row = {}, [], torch.tensor([0.1234567, 0.2345678, 0.3456789], dtype=torch.float64)
    p, A = protocol(), torch.zeros(600, 3, dtype=torch.float64)
    A[123] = row

    def start(target, arguments, **settings):
        assert settings["nprocs"] == 1
        given[arguments[2]] = pickle.dumps(arguments)
        if len(given) == 4:
            raise KeyboardInterrupt
        return SimpleNamespace(processes=[SimpleNamespace(kill=lambda: None)])

    monkeypatch.setattr(processes.mp, "start_processes", start)
    with pytest.raises(KeyboardInterrupt):
        run_processes(p, A, seed=SEED)

    def holders(secret):
        return {rank for rank, arguments in given.items() if secret in arguments}

    assert holders(row.numpy().tobytes()) == holders(SEED.to_bytes(32, "little")) == {2}
    keys = [{name: links[name] for name in links.names} for links in (pickle.loads(given[k])[3] for k in range(4))]
    names = processes.parties(p)
    for rank, own in enumerate(keys):
        for (
            other,
            key,
        ) in own.items():  # nobody else has what a server issues clients' keys from, or what it issued
            assert holders(key) == ({rank} if "clients" in (names[rank], other) else {rank, names.index(other)})
    monkeypatch.setattr(
        processes, "take_part", lambda *given, **more: interfaces.append(os.environ["GLOO_SOCKET_IFNAME"])
    )
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    processes._process(0, p, KEY, 0, None, None, None, 1.0, None, "folder")
    assert interfaces == ["lo"] or sys.platform != "linux"
    assert holders(p.sketch.signs.numpy().tobytes()) == {0, 1, 2, 3}  # what is public is everywhere


def test_processes_that_do_not_meet_say_so(tmp_path):
    with pytest.raises(ConnectionError, match="4 processes did not meet"):
        take_part(
            protocol(), KEY, 0, Links.derived(KEY, "server 0", 2), init_method=f"file://{tmp_path}/r", timeout=0.2
        )


PARTY = """
import os, sys, torch
from pathlib import Path
from torchdp.secure import FrameError, SecureSketch, processes
from torchdp.sketching import balanced_osnap

rank, key, fault = int(sys.argv[1]), bytes(range(32)), sys.argv[3]
p = SecureSketch(balanced_osnap(600, 6, 2, generator=torch.Generator().manual_seed(0)), 3, 1.0, 1.0, 1e-5, servers=2)
if rank == 1 and fault == "dies":  # the second server, as soon as all have met
    processes._serve = lambda *arguments: os._exit(9)
frames = processes.client_frames
if fault == "length":  # the clients send the second server frames that are too long
    processes.client_frames = lambda *arguments: [f + bytes(9 * k) for k, f in enumerate(frames(*arguments))]
links = processes.links_of_all(p, key, key)[processes.parties(p)[rank]]
try:
    processes.take_part(
        p, key, rank, links, init_method="file://" + sys.argv[2], timeout=20.0,
        x=torch.zeros(600, 3) if rank == 2 else None,
    )
    print("released")
except (ConnectionError, FrameError) as error:
    print(type(error).__name__, error)
"""


def parties(folder, fault):
    """What the four parties said, and how they ended."""
    commands = [[sys.executable, "-c", PARTY, str(rank), str(folder / "r"), fault] for rank in range(4)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return [process.communicate(timeout=120)[0] for process in running], [p.returncode for p in running]


@pytest.mark.slow
def test_frames_of_the_wrong_length_are_refused_and_end_no_process(tmp_path):
    said, ended = parties(tmp_path, "length")
    assert ended == [0, 0, 0, 0] and all("FrameError 600 of 600 clients" in said[k] for k in (0, 1))
    assert all("released" not in said[k].split() for k in (0, 1, 3))


@pytest.mark.slow
def test_when_a_server_dies_in_the_middle_the_others_say_so_and_release_nothing(tmp_path):
    said, ended = parties(tmp_path, "dies")
    assert ended == [0, 9, 0, 0]
    assert all("is gone, or silent" in said[rank] and "nothing is released" in said[rank] for rank in (0, 2, 3))
    assert "server 1" in said[0]


@pytest.mark.slow
def test_a_party_killed_at_the_start_is_named():
    before = children()

    def kill():
        while len(mine := sorted(children() - before)) < 4:
            time.sleep(0.05)
        os.kill(mine[-3], signal.SIGKILL)  # the second server, in the order in which they were started

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RuntimeError, match=r"server 1 ended by SIGKILL"):
        run_processes(protocol(), torch.zeros(600, 3), timeout=20)
    killer.join()


def children():
    """Process numbers of this process's children that run spawned code."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as command:
                if stat.read().rsplit(")", 1)[1].split()[1] == str(os.getpid()) and "spawn_main" in command.read():
                    found.add(int(name))
        except OSError:
            continue
    return found
