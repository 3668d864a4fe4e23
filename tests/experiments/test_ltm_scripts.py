"""The scripts of secure sketching print what their docstrings promise."""

import re

PNG = b"\x89PNG"


def test_noise(smoke):
    printed = smoke("sketching/noise.py")
    ratio = {
        (float(epsilon), int(s)): float(ratio)
        for epsilon, s, ratio in re.findall(r"^ +(\S+) +\S+ +(\d+) +\S+ +(\S+) +\S+ +\S+$", printed, re.MULTILINE)
    }
    assert ratio[0.05, 1] == 13.6 and ratio[0.1, 1] == 12.4 and ratio[0.5, 1] == 10.1
    assert abs(ratio[0.05, 10] / 15542 - 1) < 0.01
    assert printed.count("more than it promises") == 2  # of the corollary at d = s = 1
    exact, planted = (re.findall(rf"noise x {scale}: .* z = (\S+)", printed) for scale in ("1", "0.9"))
    assert len(exact) == len(planted) == printed.count("FLAGGED") == 4
    assert all(abs(float(z)) < 4.5 for z in exact) and all(float(z) > 8 for z in planted)


def test_regression(smoke, tmp_path):
    printed = smoke("regression/ridge.py", "--out", tmp_path)
    row = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["0.5"])
    sketch, gram = float(row[3]), float(row[5])
    assert gram < 1.02 < sketch
    assert (tmp_path / "regression.png").read_bytes().startswith(PNG)


def test_low_rank(smoke, tmp_path):
    printed = smoke("regression/low_rank.py", "--out", tmp_path)
    measured, predicted = map(
        float, re.findall(r"^Gram +(\S+) \+- \S+ +predicted (\S+)", printed, re.MULTILINE)[-1]
    )
    assert 0.6 < measured / predicted < 1.4
    assert (tmp_path / "low_rank.png").read_bytes().startswith(PNG)


def test_moments(smoke):
    printed = smoke("regression/moments.py")
    rows = re.findall(r"^ +1\d* +(\d+\.\d+) +(\S+) +(\S+) +(\S+) +\S+$", printed, re.MULTILINE)
    assert len(rows) == 2
    for gaussian, measured, laplace, found in rows:
        assert abs(float(measured) / float(gaussian) - 1) < 0.1 and abs(float(found) / float(laplace) - 1) < 0.1
    assert float(re.search(r"^D = 4 .*true epsilon (\S+)", printed, re.MULTILINE).group(1)) > 1.6


def test_tables(smoke, tmp_path):
    printed = smoke("regression/tables.py", "--out", tmp_path)
    row = next(line for line in printed.splitlines() if line.startswith("diabetes, rows repeated")).split()
    gram = float(row[8])
    assert 1 <= gram < 1.01


def test_servers(smoke):
    assert "identical: True" in smoke("secure/servers.py")


def test_speed(smoke):
    printed = smoke("bench/sketching.py")
    rows = re.findall(r"^ +\d +\d+ +\d+ +\d +\S+ +\S+ +\S+ +(\S+) +\S+ +(\S+) +\S+$", printed, re.MULTILINE)
    assert len(rows) == 2 and all(ours == theirs for ours, theirs in rows)  # MB sent
    assert float(re.search(r"int64: \(signs, index_add_\) / transform (\S+)", printed).group(1)) > 0
    assert len(re.findall(r"variance / ideal 1\.000", printed)) == 2
