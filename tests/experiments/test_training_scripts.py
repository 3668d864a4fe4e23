"""The scripts of private training print what their docstrings promise."""

import re


def test_prefix_noise(smoke):
    printed = smoke("training/prefix_noise.py")
    largest, rms = map(float, re.search(r"least possible: max (\S+), rms (\S+)", printed).groups())
    rows = {
        name: (float(worst), float(mean))
        for name, worst, mean in re.findall(
            r"^(\S.*?) {2,}(\d\S+) +(\d\S+) +\S+ +\S+ +\S+$", printed, re.MULTILINE
        )
    }
    assert len(rows) >= 7 and rows["independent"][0] == 4
    assert rows["torchdp, gamma_2"][0] == min(row[0] for row in rows.values()) < 1.001 * largest
    assert rows["torchdp, gamma_F"][1] == min(row[1] for row in rows.values()) < 1.001 * rms


def test_learned_factorization(smoke):
    printed = smoke("training/learned_factorization.py")
    least = float(re.search(r"root mean squared error: (\S+)", printed).group(1))
    rows = {
        name: [float(value) for value in values.split()]
        for name, values in re.findall(r"^(\S.*?) {2,}(\d\S+ +\d\S+ +\d\S+ +\d\S+)$", printed, re.MULTILINE)
    }
    assert rows["trained on the task"][0] == min(row[0] for row in rows.values())
    assert least < rows["trained on the squared error"][1] < least * (1 + 1e-3)
    assert all(row[3] < 1e-12 for row in rows.values())
