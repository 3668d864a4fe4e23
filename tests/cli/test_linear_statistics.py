"""``torchdp estimate`` of means, shares and quantiles; groups, plans, missing cells and numbers
beyond their bounds.
"""

import csv
import itertools
import math
import statistics

import pandas as pd
import pytest
import torch

from torchdp import cli
from torchdp.cli.questions import Terms, _rmse, each_answer
from torchdp.cli.statistics import KINDS, asking
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate
from torchdp.randomness import keyed_generator

USERS = 2_000
MEAN = "--statistic mean --columns dose --bounds dose=0:8 --bins 4"
SHARES = "--statistic histogram --columns dose --bounds dose=0:8 --bins 4"
TOWNS = "--statistic histogram --columns town --categories Aachen,Bern,Como"
QUANTILES = "--statistic quantiles --columns dose --bounds dose=0:8 --bins 8 --quantiles .25 .5 .75"


def people():
    generator = keyed_generator(b"people")
    uniforms = torch.rand(USERS, generator=generator).double()
    # more small doses than large ones
    dose = (8 * uniforms.square()).tolist()
    town = torch.multinomial(
        torch.tensor([0.6, 0.3, 0.1]), USERS, replacement=True, generator=generator
    )
    return dose, [["Aachen", "Bern", "Como"][i] for i in town.tolist()]


DOSE, TOWN = people()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "people.csv"
    rows = "".join(f"{dose!r},{town}\n" for dose, town in zip(DOSE, TOWN, strict=True))
    path.write_text("dose,town\n" + rows)
    return str(path)


@pytest.fixture
def ask(estimate, quick):
    return lambda table, words, *more: estimate(
        "--csv", table, words, "--epsilon", 8, "--seed", 1, "--trust local", *more, "--json"
    )


def near(row, truth):
    assert abs(row["estimate"] - truth) < 5 * row["predicted_rmse"]
    assert row["interval"][0] <= row["estimate"] <= row["interval"][1]


def test_dates_are_asked_for_in_days(tmp_path, ask):
    """Written by pandas, packed, with quotes and another delimiter: half a year in the mean."""
    dates = pd.Series(pd.date_range("2024-01-01", "2024-12-31", 2000))
    days = dates.dt.strftime("%Y-%m-%dT%H:%M")
    path = tmp_path / "joined.csv.gz"
    days.to_frame("joined").to_csv(path, index=False, quoting=csv.QUOTE_ALL, sep=";")
    words = "--statistic mean --columns joined --bounds joined=2024-01-01:2024-12-31 --delimiter ;"
    found = ask(str(path), words)
    near(found, 182.5)
    assert found["discretisation"].endswith("; joined in days since 2024-01-01")


def test_the_table_of_statistics_is_the_command_line():
    assert set(KINDS) == set(cli.STATISTICS)


def test_mean_and_shares_are_near_the_truth(table, ask):
    got = ask(table, MEAN)
    near(got, statistics.mean(DOSE))
    assert got["users"] == USERS
    assert got["predicted_rmse"] < 0.2
    shares = ask(table, SHARES)["answers"]
    assert [row["answer"] for row in shares] == ["0 to 2", "2 to 4", "4 to 6", "6 to 8"]
    for row, low in zip(shares, (0, 2, 4, 6), strict=True):
        held = sum(low <= dose < low + 2 for dose in DOSE)
        near(row, held / USERS)
    for row in ask(table, TOWNS)["answers"]:
        near(row, TOWN.count(row["answer"]) / USERS)


def test_covariances_are_near_the_truth(tmp_path, ask, estimate):
    path = tmp_path / "two.csv"
    rows = [(dose, (dose + i % 5) / 2, i % 3) for i, dose in enumerate(DOSE)]
    lines = [f"{x},{y},{z}\n" for x, y, z in rows]
    path.write_text("x,y,z\n" + "".join(lines))
    words = "--statistic covariance --columns x y z --bounds x=0:8 y=0:6 z=-1:3"
    answers = ask(path, words)["answers"]
    assert [each["answer"] for each in answers] == ["x, x", "x, y", "x, z", "y, y", "y, z", "z, z"]
    numbers = torch.tensor(rows, dtype=torch.float64)
    truth = numbers.mT.cov(correction=0)
    pairs = itertools.combinations_with_replacement(range(3), 2)
    for each, (i, j) in zip(answers, pairs, strict=True):
        near(each, float(truth[i, j]))
        assert each["predicted_rmse"] < 0.8
    error = estimate("--csv", path, words, "--epsilon", 8, "--bins", 4, code=2)
    assert "takes no --bins" in error
    lone = "--statistic covariance --columns x --bounds x=0:8 --epsilon 1"
    assert "takes 2 --columns, not 1" in estimate("--csv", path, lone, code=2)


def test_quantiles_and_their_order(table, ask):
    rows = ask(table, QUANTILES)["answers"]
    truth = statistics.quantiles(DOSE, n=4)
    assert [row["answer"] for row in rows] == ["quantile 0.25", "quantile 0.5", "quantile 0.75"]
    for row, quantile in zip(rows, truth, strict=True):
        low, high = row["interval"]
        assert low <= quantile <= high
        assert high - low <= 3
        # within a bin of the truth
        assert abs(row["estimate"] - quantile) < 0.7
        assert low <= row["estimate"] <= high
        assert 0 < row["predicted_rmse"] < 0.05
    assert all(one["estimate"] < two["estimate"] for one, two in itertools.pairwise(rows))


def test_what_an_approximation_may_add_counts_in_the_predicted_error():
    off = Estimate(
        torch.tensor([0.5, 0.8]), torch.tensor([0.03, 0.04]), 9, bias=torch.tensor([0.04, 0.03])
    )
    told = off.value, _rmse(off), *off.interval(0.95)
    assert [one.error for one in each_answer(["a", "b"], (0, 1))(*told)] == pytest.approx(
        [0.05, 0.05]
    )


def test_a_terminal_obeys_no_cell(tmp_path, quick, estimate):
    path = tmp_path / "people.csv"
    path.write_text("dose,town\n" + '1,"\x1b[31mA\nB: 9 users"\n2,\u202eC\n' * 40)
    said = estimate("--csv", path, MEAN, "--epsilon", 1, "--group", "town").out.splitlines()
    assert r"\x1b[31mA\nB: 9 users: 40 users" in said
    assert r"\u202eC: 40 users" in said
    assert all(line.isprintable() for line in said)


def test_groups_have_answers_of_their_own(table, ask, estimate):
    rows = ask(table, MEAN, "--group", "town")["answers"]
    assert [row["group"] for row in rows] == ["Aachen", "Bern", "Como"]
    for row in rows:
        doses = [dose for dose, town in zip(DOSE, TOWN, strict=True) if town == row["group"]]
        assert row["users"] == len(doses)
        near(row, statistics.mean(doses))
    text = estimate("--csv", table, MEAN, "--epsilon", 8, "--group", "town").out
    assert f"Como: {TOWN.count('Como')} users\n  mean" in text
    assert text.count("guarantee") == 1


def test_rounding_at_random_adds_no_bias_and_its_noise_is_counted(quick):
    options = cli.parser().parse_args(
        ["estimate", *MEAN.split(), "--epsilon", "8", "--trust", "local"]
    )
    # middles: most is added
    dose = torch.tensor([1.0, 1.0, 3.0, 5.0, 7.0], dtype=torch.float64).repeat(100)
    asked = asking(options)
    users = pd.DataFrame({"dose": dose})
    axes = asked.axes()
    question = asked.question(axes)
    _, protocol = question.choose(500, Terms("local", 8.0))
    errors, predicted = [], []
    for seed in range(400):
        _, types = asked.coded(
            users,
            axes,
            SeededNoise(seed),
            [],
        )
        (answer,) = question.answers(
            protocol, protocol.collect(types, noise=SeededNoise(seed + 1000)), 0.95
        )
        errors.append(answer.value - 3.4)
        predicted.append(answer.error**2)
    mse = statistics.mean(error**2 for error in errors)
    assert abs(statistics.mean(errors)) < 4 * math.sqrt(mse / 400)
    # as many runs tell a mean square to a quarter
    assert 0.75 * statistics.mean(predicted) < mse < 1.25 * statistics.mean(predicted)
    exact = float(protocol.predicted_mse(torch.bincount(types, minlength=5)))
    # without what rounding adds it would be too low
    assert exact < 0.75 * statistics.mean(predicted)


def test_intervals_of_a_population_are_wider_by_its_sampling(table, ask, estimate):
    words = (
        MEAN,
        TOWNS,
        QUANTILES,
        "--statistic gini-diversity --columns town --categories Aachen,Bern,Como",
    )
    for each in words:
        own = ask(table, each)
        wide = ask(table, each, "--population")
        assert own["error_of"] == "privacy noise"
        assert "sampling from a population" in wide["error_of"]
        rows = zip(own.get("answers", [own]), wide.get("answers", [wide]), strict=True)
        for one, two in rows:
            assert one["estimate"] == two["estimate"]
            assert one["predicted_rmse"] < two["predicted_rmse"]
            assert (
                two["interval"][0] <= one["interval"][0] < one["interval"][1] <= two["interval"][1]
            )
    share = ask(table, TOWNS, "--population")["answers"][0]
    noise = ask(table, TOWNS)["answers"][0]
    sampling = share["estimate"] * (1 - share["estimate"]) / USERS
    assert share["predicted_rmse"] ** 2 == pytest.approx(
        noise["predicted_rmse"] ** 2 + sampling, rel=1e-9
    )
    covariance = (
        "--statistic covariance --columns dose dose2 --bounds dose=0:8 dose2=0:8 --epsilon 1"
    )
    error = estimate("--csv", table, covariance, "--population", code=2)
    assert "--population is not for --statistic covariance" in error


def test_a_plan_is_the_least_number_of_users(quick, estimate):
    for words, error in ((MEAN, 0.1), (QUANTILES, 0.1)):
        got = estimate(words, "--epsilon 1 --trust local --error", error, "--json", command="plan")
        options = cli.parser().parse_args(
            ["plan", *words.split(), "--epsilon", "1", "--trust", "local"]
        )
        asked = asking(options)
        question = asked.question(asked.axes())
        _, protocol = question.choose(got["users"], Terms("local", 1.0))
        assert (
            question.error(protocol, got["users"])
            <= error
            < question.error(protocol, got["users"] - 1)
        )
        assert got["predicted_rmse"] <= error
    words = "--statistic gini-diversity --columns town --categories a,b,c --epsilon 1"
    few = estimate(words, "--json --error .05", command="plan")["plans"]
    assert [each["trust"] for each in few] == list(cli.TRUST)
    assert all(each["predicted_rmse"] <= 0.05 for each in few)
    assert few[0]["users"] > 3 * few[1]["users"] >= 3 * few[2]["users"]
    for one, power in ((few[0], 2), (few[2], 1)):
        many = estimate(words, "--json --error .005 --trust", one["trust"], command="plan")
        # by the square where each user adds noise, in proportion for a curator
        assert 10**power / 2 < many["users"] / one["users"] < 2 * 10**power
    assert few[0]["delta"] is None
    assert few[2]["delta"] == float(f"1e-{len(str(10 * few[2]['users'] - 1))}")
    told = estimate(words, "--users 900", command="plan").out
    assert told.count("predicted RMSE  ") == 3
    assert "--trust shuffle" in told
    words = words.replace("gini-diversity", "gini-diversity histogram")
    both = estimate(words, "--users 900 --json --trust curator", command="plan")
    assert set(both["predicted_rmse"]) == {"Gini's diversity index of town", "shares of town"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "--csv FILE is needed"),
        ("--csv x.csv --level 95", "did you mean 0.95?"),
        ("--csv x.csv --quantiles .5", "--statistic mean takes no --quantiles"),
        ("--csv x.csv --bins 4096", "--bins must be at most 4095"),
        ("--csv x.csv --statistic kendall", "--statistic mean kendall takes 2 --columns, not 1"),
        ("--csv x.csv --statistic mean", "names a statistic twice"),
        (
            "--csv x.csv --statistic auc kendall --columns dose town",
            "kendall is of other columns than mean auc",
        ),
        (
            "--csv x.csv --statistic covariance --columns dose town",
            "--statistic covariance uses numbers as they are",
        ),
        (
            "--csv x.csv --protocol one-message",
            "--protocol one-message is of the local model: add --trust local",
        ),
        ("--csv x.csv --trust local --delta 1e-6", "--delta is for --trust shuffle or curator"),
        ("--csv x.csv --delta 1", "--delta must lie strictly between 0 and 1"),
        ("--csv x.csv --group dose", "--group dose is one of --columns"),
        ("--csv x.csv --encoding klingon", "--encoding 'klingon' is not known"),
    ],
)
def test_options_are_refused(arguments, words, quick, estimate):
    error = estimate(MEAN, "--epsilon", 1, arguments, code=2)
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--error 1 --statistic median", "--error is of one statistic; of several give --users N"),
        (f"--error 1 {TOWNS}", "must be below 0.5, such as 0.02, not 1"),
        ("--error 1e-30 --trust curator", "takes more than 2^50 users; take a larger error"),
        ("--error 1 --users 9", "one of both"),
        ("", "--error ERROR or --users N is needed"),
        ("--users 0", "--users must be"),
        ("--error 1 --protocol one-message", "add --trust local"),
    ],
)
def test_plans_are_refused(arguments, words, quick, estimate):
    mean = [] if TOWNS in arguments else [MEAN]
    assert words in estimate(*mean, "--epsilon 1", arguments, code=2, command="plan")


def test_policies_say_who_was_left_out(tmp_path, quick, estimate):
    path = tmp_path / "odd.csv"
    path.write_text("dose,town\n" + "1,A\n3,B\n" * 50 + "NA,A\n9,B\n,B\n2,\n-1,A\n")
    words = ["--csv", path, MEAN, "--epsilon", 8, "--seed", 1]
    assert "row 101: the cell is missing (2 such rows); --missing drop" in estimate(*words, code=2)
    drop = [*words, "--missing", "drop"]
    error = estimate(*drop, code=2)
    assert "row 102: outside the stated bounds 0:8 (2 such rows)" in error
    assert "--out-of-bounds clip or drop" in error
    left = estimate(*drop, "--out-of-bounds", "drop")
    assert (
        "2 of 105 users are left out, because a cell is missing; how many take part is not protected"
        in left.err
    )
    assert "2 of 103 users are left out, dose is beyond the stated bounds 0:8" in left.err
    assert "101 users" in left.out
    clipped = estimate(*drop, "--out-of-bounds", "clip")
    # that would be told
    assert "is moved to the nearer bound" in clipped.err
    assert "2 of 103" not in clipped.err
    assert "103 users" in clipped.out
    grouped = estimate(*drop, "--out-of-bounds", "clip", "--group", "town")
    assert "3 of 105 users" in grouped.err
    assert "A: 51 users" in grouped.out
    assert "B: 51 users" in grouped.out


def test_other_cells_count_as_one_more_category(tmp_path, quick, estimate):
    path = tmp_path / "towns.csv"
    path.write_text("town\n" + "Aachen\nBern\nBerne\nDelft\n" * 50)
    asked = ["--csv", path, "--statistic histogram --columns town --epsilon 30 --categories"]
    refused = estimate(*asked, "Aachen,Bern", code=2)
    assert "row 3: none of the stated values Aachen, Bern, the nearest is 'Bern' (100" in refused
    found = estimate(*asked, "Aachen,Bern --other else --json")["answers"]
    assert [row["estimate"] for row in found] == pytest.approx([0.25, 0.25, 0.5], abs=0.02)
    # missing cells are no other category
    path.write_text("town\nAachen\nNA\nDelft\n")
    assert "row 2: the cell is missing" in estimate(*asked, "Aachen,Bern --other else", code=2)
    error = estimate("--csv", path, MEAN, "--epsilon 1 --other else", code=2)
    assert "takes no --other" in error
