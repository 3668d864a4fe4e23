"""``torchdp estimate`` of ratios over pairs, and of tests: near the truth of the binned columns."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import energy_distance, kendalltau, mannwhitneyu, pearsonr, spearmanr

from torchdp.cli.statistics import KINDS
from torchdp.protocol import Protocol
from torchdp.randomness import keyed_generator

USERS = 600
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A score that goes against time, and an income that goes with it; the event of every third
    user is not seen.
    """
    generator = keyed_generator(b"pairs")
    time = 8 * torch.rand(USERS, generator=generator).double()

    def follows(sign):
        noise = torch.randn(USERS, generator=generator)
        return (sign * (time - 4) / 2 + 4 + noise).clamp(0, 7.99)

    income = follows(1)
    score = follows(-1)
    seen = (torch.rand(USERS, generator=generator) < 0.66).long()
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    columns = income.tolist(), time.tolist(), score.tolist(), seen.tolist()
    rows = list(zip(*columns, strict=True))
    lines = [",".join(map(str, row)) + "\n" for row in rows]
    path.write_text("income,time,score,seen\n" + "".join(lines))
    return str(path), rows


@pytest.fixture
def ask(estimate):
    def ask(path, statistic, columns, bins, trust="local"):
        bounds = [f"{name}=0:8" for name in columns.split() if name != "seen"]
        asked = f"--statistic {statistic} --columns {columns} --bins {bins} --bounds"
        how = f"--epsilon 8 --seed 1 --json --trust {trust}"
        return estimate("--csv", path, asked, *bounds, how)

    return ask


def sign(x):
    return (x > 0) - (x < 0)


def near(found, truth, most):
    assert abs(found["estimate"] - truth) < 5 * found["predicted_rmse"] < most, (found, truth)


TRUST = pytest.mark.parametrize("trust", ["local", "curator"])


@TRUST
def test_concordance(trust, table, ask):
    path, rows = table
    cells = [(int(time / 2), int(score / 2), seen) for _, time, score, seen in rows]
    good = 0.0
    comparable = 0
    for (t, s, d), (u, r, e) in itertools.permutations(cells, 2):
        if d and (t < u or (t == u and not e)):
            comparable = comparable + 1
            good = good + (sign(s - r) + 1) / 2
    near(ask(path, "concordance", "time seen score", 4, trust), good / comparable, 0.4)


@TRUST
def test_mann_whitney(trust, table, ask):
    path, rows = table
    groups = [[int(row[2]) for row in rows if row[3] == label] for label in (1, 0)]
    auc, u = ask(path, "mann-whitney", "score seen", 8, trust)["answers"]
    wanted, p = mannwhitneyu(*groups, method="asymptotic")
    near(u, wanted, 60_000)
    near(auc, wanted / len(groups[0]) / len(groups[1]), 0.5)
    # the event does not depend on the score
    assert auc["p_value"] == u["p_value"] > 0.05
    assert p > 0.05


@TRUST
@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("spearman", spearmanr),
        ("kendall-b", kendalltau),
        ("correlation", pearsonr),
    ],
)
def test_two_columns(name, truth, trust, table, ask):
    path, rows = table
    cells = [[int(row[column] / 2) for row in rows] for column in (0, 1)]
    near(ask(path, name, "income time", 4, trust), truth(*cells).statistic, 0.5)


@TRUST
def test_two_groups(trust, table, ask):
    path, rows = table
    cells = [(2 * int(row[0] / 2), row[3]) for row in rows]
    groups = [[cell for cell, seen in cells if seen == label] for label in (1, 0)]
    near(
        ask(path, "energy-distance", "income seen", 4, trust),
        energy_distance(*groups) ** 2,
        0.4,
    )
    found = ask(path, "mmd", "income seen", 4, trust)
    assert "standard deviation is 0.2 of their range" in found["discretisation"]
    middles = range(0, 8, 2)
    kernel = [[math.exp(-((a - b) ** 2) / 2 / 1.6**2) for b in middles] for a in middles]
    shares = [[group.count(value) / len(group) for value in middles] for group in groups]
    apart = np.subtract(*shares)
    want = apart @ np.array(kernel) @ apart
    near(found, want, 0.4)


ASKED = {
    "mean": "--columns income --bounds income=0:8",
    "histogram": "--columns income --bounds income=0:8 --bins 4",
    "quantiles": "--columns income --bounds income=0:8 --bins 4 --quantiles .5",
    "auc": "--columns income seen --bounds income=0:8 --bins 4 --trust local --protocol two-message",
    "gini-diversity": "--columns seen --categories 0,1 --trust local --protocol randomized-response",
    "kendall": "--columns income time --bounds income=0:8 time=0:8 --bins 3 --trust local --protocol one-message",
    "gini": "--columns income --bounds income=0:8 --bins 4",
    "mann-whitney": "--columns income seen --bounds income=0:8 --bins 2",
    "spearman": "--columns income time --bounds income=0:8 time=0:8 --bins 3",
    "energy-distance": "--columns income seen --bounds income=0:8 --bins 4",
    "covariance": "--columns income time score --bounds income=0:8 time=0:8 score=0:8",
}


BOTH = "income=0:8 time=0:8 --bins 3"
# of every statistic
COLUMNS = {
    "number": "--columns income --bounds income=0:8 --bins 4",
    "category": "--columns seen --categories 0,1",
    "number number": f"--columns income time --bounds {BOTH}",
    "number label": "--columns income seen --bounds income=0:8 --bins 4",
    "number label number": "--columns time seen income --bounds income=0:8 time=0:8 --bins 3",
}


def words_of(name):
    words = COLUMNS[" ".join(KINDS[name].roles)]
    if name == "quantiles":
        return f"{words} --quantiles .5"
    if name == "covariance":
        return words.replace(" --bins 3", "")
    if name == "gamma":
        # with 3 the search takes seconds
        return words.replace("--bins 3", "--bins 2")
    return words


# Mann and Whitney's test is of the AUC's estimate; its own numbers: test_mann_whitney.
@pytest.mark.parametrize("name", [name for name in KINDS if name != "mann-whitney"])
def test_a_curator_answers_every_statistic_with_less_error(name, table, estimate):
    """Near what a curator says without noise worth its name, and of less error than the local
    model.
    """
    asked = "--csv", table[0], "--statistic", name, words_of(name), "--seed 1 --json --epsilon"
    noiseless = estimate(*asked, 600)
    curator = estimate(*asked, 1)
    local = estimate(*asked, 1, "--trust local")
    assert "central" in curator["guarantee"]
    assert curator["delta"] == 1e-4
    assert local["delta"] is None
    rows = [found.get("answers", [found]) for found in (noiseless, curator, local)]
    for exact, one, other in zip(*rows, strict=True):
        predicted = one["predicted_rmse"]
        assert 0 < predicted < 0.5 * other["predicted_rmse"]
        # five deviations, and what bins lose
        allowed = 5 * predicted + 0.02 * abs(exact["estimate"])
        assert abs(one["estimate"] - exact["estimate"]) < allowed


@pytest.mark.parametrize("name", ["mean", "gini-diversity", "covariance"])
def test_a_shuffler_is_between_the_two(name, table, estimate):
    asked = "--csv", table[0], "--statistic", name, words_of(name), "--epsilon 1 --seed 1 --json"
    local = estimate(*asked, "--trust", "local")
    mixed = estimate(*asked, "--trust", "shuffle")
    curator = estimate(*asked, "--trust", "curator")

    def error_of(found):
        return found.get("answers", [found])[-1]["predicted_rmse"]

    first = error_of(local)
    second = error_of(mixed)
    third = error_of(curator)
    assert first > 2 * second
    # a shuffler comes close to a curator, but not below
    assert second > 0.99 * third
    assert "shuffle" in mixed["guarantee"]


def test_statistics_of_one_collection(table, estimate):
    """Under one epsilon: means of both columns and three statistics of pairs; intervals that hold
    all at once.
    """
    asked = "--csv", table[0], f"--columns income time --bounds {BOTH} --epsilon 8 --seed 1 --json"
    names = "mean", "median", "kendall", "spearman"
    for trust in ("local", "curator"):
        found = estimate(*asked, "--statistic", *names, "--trust", trust)
        assert found["epsilon"] <= 8
        assert "hold all answers" in found["discretisation"]
        told = {row["answer"]: row for row in found["answers"]}
        assert len(told) == 6
        assert {
            "mean of income: mean",
            "Spearman's rho of income and time",
        } <= set(told)
        cells = [[int(row[column] * 3 / 8) for row in table[1]] for column in (0, 1)]
        # three bins of a range of 8
        middles = (torch.tensor(cells[1], dtype=torch.float64) + 0.5) * 8 / 3
        near(told["mean of time: mean"], float(middles.mean()), 2.0)
        near(told["Spearman's rho of income and time"], spearmanr(*cells).statistic, 0.6)
        for row in told.values():
            low, high = row["interval"]
            # wider than the privacy noise alone
            assert "median" in row["answer"] or high - low > 2 * 2.2 * row["predicted_rmse"]


def test_groups_of_a_shuffler_are_crowds_of_their_own(table, estimate):
    words = words_of("gini-diversity").replace("seen", "seen --group half")
    path = Path(table[0]).with_name("halves.csv")
    lines = [f"{row[3]},{i % 3 == 0}\n" for i, row in enumerate(table[1])]
    path.write_text("seen,half\n" + "".join(lines))
    how = "--statistic gini-diversity --trust shuffle --epsilon 4 --seed 1 --json"
    found = estimate("--csv", path, how, words)["answers"]
    assert [row["users"] for row in found] == [400, 200]


@pytest.mark.parametrize("name", ASKED)
def test_what_is_printed_depends_on_the_messages_alone(
    name, table, tmp_path, monkeypatch, estimate
):
    """Two tables of as many users: where the second's messages are replaced by the first's, the
    same is printed.
    """
    path, rows = table
    other = tmp_path / "other.csv"
    # columns change places, and what was seen was not
    lines = [f"{s},{i},{t},{1 - e}\n" for i, t, s, e in rows]
    other.write_text("income,time,score,seen\n" + "".join(lines))
    collect = Protocol.collect
    heard = []

    def first(self, x, *, noise=None):
        heard.append(collect(self, x, noise=noise))
        return heard[0]

    monkeypatch.setattr(Protocol, "collect", first)
    words = "--statistic", name, ASKED[name], "--epsilon 4 --seed 1"
    assert estimate("--csv", path, *words) == estimate("--csv", other, *words)
    one, two = heard[:2]
    apart = [not torch.equal(part, two[key]) for key, part in one.parts.items()]
    # the users do differ
    assert any(apart)


def test_a_curator_takes_numbers_as_they_are(table, estimate):
    """Bins would tie a tenth of the pairs, which is far beyond the noise."""
    path, rows = table
    asked = "--csv", path, "--epsilon 8 --seed 1 --json --columns income time"
    bounds = "--bounds income=0:8 time=0:8"
    tau = estimate(*asked, "--statistic kendall", bounds)
    income, time, *_ = zip(*rows, strict=True)
    # No two numbers are equal but at the ends, where tau-a counts 0: a few pairs.
    near(tau, kendalltau(income, time).statistic, 0.02)
    assert tau["discretisation"] == "no bins: numbers as they are"
    gini = estimate(
        "--csv", path, "--epsilon 8 --seed 1 --json --statistic gini-mean-difference",
        "--columns income --bounds income=0:8",
    )  # fmt: skip
    x = np.array(income)
    truth = np.abs(x[:, None] - x).sum() / (USERS * (USERS - 1))
    near(gini, truth, 0.1)


@pytest.mark.parametrize(
    "how", ["--statistic kendall --population", "--statistic kendall gini-mean-difference"]
)
def test_samples_and_several_statistics_are_read_off_bins(table, estimate, how):
    path, _ = table
    found = estimate(
        "--csv", path, "--epsilon 8 --seed 1 --json --columns income time", how,
        "--bounds income=0:8 time=0:8",
    )  # fmt: skip
    assert "bins" in found["discretisation"]
    assert "the answers" not in found["protocol"]
