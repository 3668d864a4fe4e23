"""The benches of kernels print every row that their docstrings promise; no time is judged."""

import re

import pytest

pytestmark = pytest.mark.slow  # two minutes on a busy machine, most of it in fresh processes


def rows(printed):
    """Name of each row -> its numbers, from the lines that end in some."""
    found = {}
    for line in printed.splitlines():
        match = re.match(r"\s*(\S.*?)\s{2,}((?:[\d.e+-]+\s*)+)$", line)
        if match:
            found.setdefault(match[1], []).append([float(value) for value in match[2].split()])
    return found


def test_samplers(command):
    found = rows(command("bench/samplers.py"))
    laws = [name for name in found if re.match(r"Poisson|NB|Gamma|normal", name)]
    assert len(laws) == 8 and all(value > 0 for name in laws for value in found[name][0])
    assert len(found["inversion, NB(1e-3, 0.9)"][0]) == 2 and "torch, gammas at once" in found


def test_vector_sums(command):
    found = rows(command("bench/vector_sums.py"))
    for name in ("PrivUnitG collect", "PrivUnit collect"):
        memory, speed = found[name]
        assert memory[0] == speed[0] == 64 and memory[-1] < 50 and min(speed) > 0


def test_secure_sketch(command):
    found = rows(command("bench/secure_sketch.py"))
    assert found["collect"][0][0] < 40  # MiB beside A
    assert all(len(found[name]) == 3 and min(map(min, found[name])) > 0 for name in ("collect", "release"))
    assert sum("torch generator" in name or "system" in name or "ChaCha20" in name for name in found) == 5


def test_rounded_features(command):
    printed = command("bench/rounded_features.py")
    assert "growth of memory" in printed
    line = next(line for line in printed.splitlines() if "560,000 users" in line)
    assert "torchdp, Fourier" in line


def test_report_sums(command):
    lines = [line.split() for line in command("bench/report_sums.py").splitlines()]
    found = {line[0]: [float(value) for value in line[1:6]] for line in lines if "_" in line[0]}
    assert set(found) == {
        f"{kind}_{path}" for kind in ("response", "unary") for path in ("collect", "plain", "numpy")
    }
    assert all(min(row[:4]) > 0 and row[4] >= 0 for row in found.values())


def test_sweep_devices(command):
    printed = command("bench/sweep_devices.py")
    assert "the rows are the same bits" in printed
    assert printed.count(", ratio ") == 2
    assert sum("a block costs" in line for line in printed.splitlines()) == 2


def test_journal(command):
    """Threads of forked processes by two paths, and kills; the script fails where a batch is lost or counted twice."""
    printed = command("bench/journal.py")
    assert "3 kills" in printed and "of 40 batches, all in the file, none twice (40 batches" in printed
