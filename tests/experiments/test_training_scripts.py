"""The scripts of private training find what their docstrings promise."""

import pytest
import torch
from scripts import loaded


def test_prefix_noise(smoke):
    rows = {row["noise"]: row for row in smoke("training/prefix_noise.py").tables["prefix_noise"]}
    assert len(rows) >= 7 and rows["independent"]["max"] == pytest.approx(4)
    for name, column in (("torchdp, gamma_2", "max"), ("torchdp, gamma_F", "rms")):
        found, least = rows[name][column], rows[name][f"least_{column}"]
        assert found == min(row[column] for row in rows.values()) < 1.001 * least


def test_learned_factorization(smoke):
    rows = {row["factors"]: row for row in smoke("training/learned_factorization.py").tables["factors"]}
    assert rows["trained on the task"]["failing"] == min(row["failing"] for row in rows.values())
    trained = rows["trained on the squared error"]
    assert 1 < trained["root_mean_square"] / trained["certified_least"] < 1 + 1e-3
    assert all(row["residual"] < 1e-12 for row in rows.values())


def test_epochs(smoke):
    rows = smoke("training/epochs.py").tables["epochs"]
    for steps in (16, 24):
        found = {row["strategy"]: row for row in rows if row["steps"] == steps}
        least = found.pop("at least")
        for name, column in (("torchdp, largest error", "largest"), ("torchdp, root mean square", "rms")):
            assert found[name][column] == min(row[column] for row in found.values()) < 1.001 * least[column]


def test_quickstart(smoke):
    found = smoke("training/quickstart.py")
    assert "central differential privacy" in found.printed and "epsilon = 2, delta = 1e-05" in found.printed
    assert found.tables["quickstart"][0]["accuracy"] > 0.6


def test_separated(smoke):
    rows = smoke("training/separated.py").tables["separated"]
    assert len(rows) == 20
    for case in range(0, 20, 5):
        least, ours, *others = rows[case : case + 5]
        assert least["error"] <= ours["error"] < 1.005 * least["error"] or least["gap"] < 3
        assert ours["error"] == min(row["error"] for row in (ours, *others)) < 1.031 * least["error"]


def test_choose(smoke):
    tables = smoke("training/choose.py").tables
    errors = {row["plan"]: row["error"] for row in tables["errors"]}
    assert min(errors.values()) < errors["Poisson, independent noise"]
    assert all(row["accuracy"] > 0.8 for row in tables["accuracy"]) and len(tables["accuracy"]) in (2, 3, 4)


@pytest.mark.parametrize("model", ["linear", "MLP", "CNN", "attention"])
def test_lanes_clip_as_single_examples_do(model):
    with loaded("training/optimizers.py") as script:
        x, y, _ = script.data("digits", None)
        lanes = script.Lanes(script.shapes(model, 64, 10), 2, 2)
        index, kept = torch.arange(6).view(2, 3), torch.tensor([[1.0, 1, 1], [1, 0, 1]])
        for W in lanes.whole.values():
            W.mul_(1 + torch.arange(4.0).view(2, 2, 1, 1))
        sums, one = lanes.clipped(script.FORWARD[model], x[index], y[index], kept), script.Lanes({}, 1, 1)
        expected = {name: torch.zeros_like(W) for name, W in lanes.whole.items()}
        for rate, seed, i in torch.cartesian_prod(*map(torch.arange, (2, 2, 3))).tolist():
            one.whole = {k: W[rate, seed, None, None].clone().requires_grad_() for k, W in lanes.whole.items()}
            row = index[seed, i]
            loss = torch.nn.functional.cross_entropy(
                script.FORWARD[model](one, x[row, None, None])[0], y[row, None]
            )
            own = torch.autograd.grad(loss, list(one.whole.values()))
            norm = torch.cat([g.flatten() for g in own]).norm()
            for total, g in zip(expected.values(), own, strict=True):
                total[rate, seed] += kept[seed, i] * g[0, 0] / norm.clamp_min(1)
        torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)


def test_private_adam_moves_each_number_as_written_down():
    with loaded("training/optimizers.py") as script:
        p, x, m, v, u = torch.ones(4, dtype=torch.float64), 1.0, 0.0, 0.0, 0.0
        adam = script.PrivateAdam([{"params": [p], "lr": 0.1}], weight_decay=0.4)
        deviations = [0.9, 0.2, 0.0, 1.4]
        for t, (g, adam.deviation) in enumerate(zip([0.3, -2.0, 1.1, 0.5], deviations, strict=True), 1):
            p.grad = torch.full_like(p, g)
            adam.step()
            m, v, u = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2, 0.999 * u + 0.001 * adam.deviation**2
            noise = u / (1 - 0.999**t)
            size = max(v / (1 - 0.999**t) - noise, noise) ** 0.5 + 1e-8
            x = x * (1 - 0.1 * 0.4) - 0.1 * m / (1 - 0.9**t) / size
            torch.testing.assert_close(p, torch.full_like(p, x), rtol=1e-12, atol=0)


@pytest.mark.slow  # trains in 20 seconds
def test_optimizers(smoke):
    rows = smoke("training/optimizers.py").tables["accuracy"]
    assert {row["side"] for row in rows} > {"DP-SGD"} and all(row["accuracy"] > 0.1 for row in rows)


def test_streaming(smoke):
    rows = {row["noise"]: row for row in smoke("training/streaming.py").tables["streaming"]}
    assert [rows[name]["state_bytes"] for name in ("independent", "4 bands", "4 buffers")] == [0, 12, 16]
    assert all(row["ns"] > 0 for row in rows.values())


def test_accounting(smoke):
    rows = smoke("training/accounting.py").tables["epsilons"]
    assert len(rows) >= 3
    for row in rows:
        assert 0.85 * row["torchdp"] < row["attack"] < row["torchdp"]
        assert row["dp_accounting"] is None or row["torchdp"] < 1.01 * row["dp_accounting"]


@pytest.mark.slow
def test_clipping(smoke):
    rows = smoke("training/clipping.py").tables["clipping"]
    assert {row["model"] for row in rows if row["way"] == "torchdp"} == {"linear", "cnn"} and len(rows) >= 4
    assert all(row["differs"] is None or row["differs"] < 1e-4 for row in rows)


@pytest.mark.slow
def test_accepted(smoke):
    rows = smoke("training/accepted.py").tables["accepted"]
    assert len(rows) == 4 and all(row["torchdp"] == "equal" for row in rows)


@pytest.mark.slow
def test_recalled(smoke):
    least, buffers, again = smoke("training/recalled.py").tables["recalled"]
    assert least["error"] < again["error"] < 0.98 * buffers["error"]
    assert buffers["apart"] < again["apart"] and max(buffers["off"], again["off"]) < 1e-9
