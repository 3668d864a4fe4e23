"""The scripts of private training print what their docstrings promise."""

import re


def test_prefix_noise(command):
    printed = command("training/prefix_noise.py")
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


def test_learned_factorization(command):
    printed = command("training/learned_factorization.py")
    least = float(re.search(r"root mean squared error: (\S+)", printed).group(1))
    rows = {
        name: [float(value) for value in values.split()]
        for name, values in re.findall(r"^(\S.*?) {2,}(\d\S+ +\d\S+ +\d\S+ +\d\S+)$", printed, re.MULTILINE)
    }
    assert rows["trained on the task"][0] == min(row[0] for row in rows.values())
    assert least < rows["trained on the squared error"][1] < least * (1 + 1e-3)
    assert all(row[3] < 1e-12 for row in rows.values())


def test_epochs(command):
    rows = re.findall(r"^(\s*\S.*?) {2,}(\d\S+) +(\d\S+)", command("training/epochs.py"), re.MULTILINE)
    cells = [index for index, row in enumerate(rows) if row[0].endswith("at least")]
    assert len(cells) == 2
    for start, end in zip(cells, [*cells[1:], len(rows)], strict=True):
        (_, least, mean), *strategies = rows[start:end]
        found = {name.strip(): (float(worst), float(rms)) for name, worst, rms in strategies}
        assert found["torchdp, largest error"][0] == min(row[0] for row in found.values()) < 1.001 * float(least)
        assert found["torchdp, root mean square"][1] == min(row[1] for row in found.values()) < 1.001 * float(mean)


def test_quickstart(command):
    printed = command("training/quickstart.py")
    assert "central differential privacy" in printed and "epsilon = 2, delta = 1e-05" in printed
    assert float(printed.split()[-1]) > 0.6
