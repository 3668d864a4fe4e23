"""The scripts of general Gaussian means print what their docstrings promise."""

import re

PNG = b"\x89PNG"


def test_errors(smoke, tmp_path):
    printed = smoke("mean/errors.py", "--out", tmp_path)
    pairs = re.findall(r"round / shaped (\S+), theory (\S+)", printed)
    assert len(pairs) >= 2 and all(float(found) == float(theory) for found, theory in pairs)
    rows = re.findall(r"(\d\S*) +(\d\S*) \+-(\d\S*) +\d\S* +\d\S* +(\d\S*)$", printed, re.MULTILINE)
    assert len(rows) > 20
    for predicted, measured, error, ratio in (map(float, row) for row in rows):
        assert abs(measured - predicted) < 5 * error + 0.01 * predicted
        assert ratio > 1  # above the lower bound
    assert (tmp_path / "errors.png").read_bytes().startswith(PNG)


def test_covariance(smoke, tmp_path):
    printed = smoke("mean/covariance.py", "--out", tmp_path)
    joint = re.findall(r"joint release, unbiased +(\S+) +(\S+)", printed)
    bounds = [float(bound) for bound in re.findall(r"lower bound, .* (\d\S*) +nan +nan$", printed, re.MULTILINE)]
    assert len(joint) == len(bounds) == 2
    for (predicted, measured), bound in zip(joint, bounds, strict=True):
        assert abs(float(measured) / float(predicted) - 1) < 0.06 and bound < float(measured)
    assert (tmp_path / "covariance.png").read_bytes().startswith(PNG)


def test_local_central(smoke, tmp_path):
    printed = smoke("mean/local_central.py", "--out", tmp_path)
    predicted = {
        (model, shape, n): float(value)
        for model, shape, n, value in re.findall(
            r"^(local|central), (shaped|round)(?:, PrivUnitG)? +(\d+) +(\S+)", printed, re.MULTILINE
        )
    }
    bound = {
        (model, n): float(value)
        for model, n, value in re.findall(
            r"^(local|central) lower bound, .*? (\d+) +(\S+)$", printed, re.MULTILINE
        )
    }
    assert len(predicted) == 8 and len(bound) == 4
    for (model, shape, n), value in predicted.items():
        assert value > bound[model, n]
        assert shape == "round" or value < predicted[model, "round", n]
    assert (tmp_path / "local_central.png").read_bytes().startswith(PNG)


def test_shapes(smoke):
    printed = smoke("mean/shapes.py")
    assert float(re.search(r"worst distance or gap (\S+)", printed).group(1)) < 1e-4
    assert float(re.search(r"worst distance from the program (\S+)", printed).group(1)) < 1e-5
    rows = re.findall(
        r"^.{34} +(?:\d|inf) +(\S+) +(\S+) +(\S+) +\S+  theory: gap <= (\S+)$", printed, re.MULTILINE
    )
    assert len(rows) >= 4
    for lower, upper, gap, theory in (map(float, row) for row in rows):
        assert lower <= upper and gap <= theory
