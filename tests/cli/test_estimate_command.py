"""``torchdp estimate`` on tables whose answers are known."""

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from torchdp import cli, queries
from torchdp.cli import questions
from torchdp.cli.table import Bins
from torchdp.randomness import keyed_generator

USERS = 3_000
QUESTIONS = {
    "auc": "--columns score label --bounds score=-4:4 --bins 8",
    "kendall": "--columns score dose --bounds score=-4:4 dose=0:12 --bins 4",
    "gini-mean-difference": "--columns dose --bounds dose=0:12 --bins 16",
    "gini-diversity": "--columns town --categories Aachen,Bern,Como",
}


pytestmark = pytest.mark.usefixtures("quick")


def columns(key):
    generator = keyed_generator(key)
    label = (torch.rand(USERS, generator=generator) < 0.4).long()
    normals = torch.randn(USERS, generator=generator).double()
    score = (normals + label).clamp(-4, 4)
    dose = ((score + 4) * torch.rand(USERS, generator=generator)).clamp(0, 12)
    town = torch.multinomial(
        torch.tensor([0.6, 0.3, 0.1]), USERS, replacement=True, generator=generator
    )
    return {
        "score": score.tolist(),
        "label": label.tolist(),
        "dose": dose.tolist(),
        "town": [["Aachen", "Bern", "Como"][i] for i in town.tolist()],
    }


def write(path, table):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return str(path)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    table = columns(b"users")
    return write(tmp_path_factory.mktemp("tables") / "users.csv", table), table


def binned(values, low, high, bins):
    width = (high - low) / bins
    places = (np.array(values) - low) / width
    return np.minimum(places.astype(int), bins - 1)


def truth(name, table):
    """The statistic of the binned columns, by counting all pairs."""
    if name == "auc":
        return roc_auc_score(table["label"], binned(table["score"], -4, 4, 8))
    pairs = USERS * (USERS - 1)
    if name == "kendall":
        y = binned(table["score"], -4, 4, 4)
        z = binned(table["dose"], 0, 12, 4)
        concordant = np.sign(y[:, None] - y) * np.sign(z[:, None] - z)
        return concordant.sum() / pairs
    if name == "gini-mean-difference":
        x = binned(table["dose"], 0, 12, 16) * 0.75
        distances = np.abs(x[:, None] - x)
        return distances.sum() / pairs
    town = np.array(table["town"])
    return (town[:, None] != town).sum() / pairs


@pytest.fixture
def ask(estimate):
    def ask(path, name, *more):
        return estimate(
            "--csv", path, "--statistic", name, QUESTIONS[name], "--trust local --json", *more
        )

    return ask


@pytest.mark.parametrize(
    ("name", "protocol"),
    [*((name, "auto") for name in QUESTIONS), *(("auc", name) for name in cli.PROTOCOLS)],
)
def test_estimate_is_near_the_truth(name, protocol, users, ask):
    path, table = users
    got = ask(path, name, "--epsilon", 8, "--seed", 1, "--protocol", protocol)
    assert (
        abs(got["estimate"] - truth(name, table))
        < 5 * got["predicted_rmse"]
        < 0.5 * truth(name, table) + 0.5
    )
    assert got["users"] == USERS
    assert got["epsilon"] == 8
    assert got["level"] == 0.95
    low, high = got["interval"]
    # the normal quantile of 95 %; Student's is wider by less than half a per cent
    assert high - low == pytest.approx(2 * 1.959964 * got["predicted_rmse"], rel=5e-3)
    # variances differ at the ends
    assert (low + high) / 2 == pytest.approx(got["estimate"], rel=5e-3)
    assert "local" in got["guarantee"]
    assert "epsilon = 8" in got["guarantee"]
    assert "replace one" in got["guarantee"]
    assert got["protocol"] == protocol or protocol == "auto"
    assert got["bits_per_user"] > 0
    assert got["source"]


def test_best_searches_too(users, monkeypatch, ask):
    path, asked, quick = users[0], [], queries.choose
    monkeypatch.setattr(
        queries, "choose", lambda *one, search, **more: asked.append(search) or quick(*one, **more)
    )
    for protocol in ("auto", "best"):
        ask(path, "gini-mean-difference", "--epsilon", 4, "--protocol", protocol)
        ask(path, "gini-mean-difference", "--epsilon", 4, "--protocol", protocol, "--bins", 65)
    assert asked == [True, False, True, True]


def test_seed_repeats_and_no_seed_does_not(users, ask):
    path, _ = users

    def asked(*seed):
        return ask(path, "gini-diversity", "--epsilon", 1, *seed)

    seeded = asked("--seed", 7)
    assert asked("--seed", 7) == seeded
    assert asked("--seed", 8)["estimate"] != seeded["estimate"]
    free = [asked()["estimate"] for _ in range(2)]
    assert free[0] != free[1]


def test_text_says_the_same_as_json(users, estimate):
    path, _ = users
    arguments = ["--csv", path, "--statistic auc --epsilon 2 --seed 3", QUESTIONS["auc"]]
    data = estimate(*arguments, "--json")
    captured = estimate(*arguments)
    text = captured.out
    assert f"{data['estimate']:.6g}" in text
    assert f"[{data['interval'][0]:.6g}, {data['interval'][1]:.6g}]" in text
    assert "3000 users" in text
    assert data["guarantee"] in text
    assert "95 % interval" in text
    assert (
        captured.err
        == "torchdp estimate: noise from a stated seed can be removed: for trying out only\n"
    )


@pytest.mark.parametrize(
    ("stated", "said"),
    [(2.0, "exactly epsilon = 2 (neigh"), (2.5, ", epsilon = 2.5 (spent: 2) (neigh")],
)
def test_a_protocol_that_spends_less_than_was_stated_says_both(
    users, monkeypatch, estimate, stated, said
):
    response = questions.PROTOCOLS["randomized-response"]
    monkeypatch.setitem(
        questions.PROTOCOLS, "randomized-response", lambda each, epsilon: response(each, 2.0)
    )
    how = f"--statistic auc --epsilon {stated} --trust local --protocol randomized-response"
    words = "--csv", users[0], how, QUESTIONS["auc"]
    assert said in estimate(*words).out
    assert estimate(*words, "--json")["epsilon"] == 2


def test_bounds_from_data_say_that_they_are_not_private(users, estimate):
    path, table = users
    arguments = (
        "--csv",
        path,
        "--statistic gini-mean-difference --columns dose --bins 32 --epsilon 8",
    )
    found = estimate(*arguments, "--bounds-from-data", "--json")
    assert estimate.said.err.count("\n") == 1
    assert "NOT PRIVATE" in estimate.said.err
    width = (max(table["dose"]) - min(table["dose"])) / 32
    assert f"width {width:g}" in found["discretisation"]
    assert estimate(*arguments, "--bounds", "dose=0:12").err == ""


def test_choice_of_the_protocol_does_not_see_the_data(users, tmp_path, ask):
    constant = {"town": ["Como"] * USERS}
    other = write(tmp_path / "constant.csv", constant)
    for epsilon in (0.5, 3, 8):
        chosen = {
            ask(path, "gini-diversity", "--epsilon", epsilon)["protocol"]
            for path in (users[0], other)
        }
        assert len(chosen) == 1


def test_values_on_the_bounds_and_at_the_edges_of_bins():
    values = torch.tensor([0.0, 0.9999, 1.0, 2.5, 3.9999, 4.0], dtype=torch.float64)
    assert Bins(0.0, 4.0, 4).place(values).tolist() == [0, 0, 1, 2, 3, 3]
    for uniform, wanted in (
        (0.0, [0, 1, 1, 3, 4, 4]),
        (0.5, [0, 1, 1, 2, 4, 4]),
        (1 - 2**-53, [0, 0, 1, 2, 3, 4]),
    ):
        drawn = torch.full_like(values, uniform)
        assert Bins(0.0, 4.0, 4).rounded(values, drawn).tolist() == wanted
