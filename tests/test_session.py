"""Sessions: what is asked is spent once for each answer, and nothing is answered beyond the budget."""

import copy
import threading

import numpy as np
import pandas as pd
import pytest
import torch

import torchdp
from torchdp import domains, mean, queries, workloads
from torchdp.noise import SeededNoise
from torchdp.privacy import Arithmetic, Budget, Model, compose
from torchdp.protocol import Protocol

HISTOGRAM = workloads.identity(3)


def table():
    towns = pd.Categorical(["Basel", "Bern", "Chur"] * 200)
    heights = np.linspace(1.5, 1.9, 600)
    return pd.DataFrame({"town": towns, "up": [True, False] * 300, "height": heights})


def height(epsilon, delta=1e-7):
    metres = domains.Box(torch.tensor([1.0]), torch.tensor([2.0]))
    return mean.GaussianMean.tuned(metres, epsilon=epsilon, delta=delta)


class Untouched:
    """Data that must not be read."""

    def __len__(self):
        return 600

    def __getattr__(self, name):
        raise AssertionError(f"data were read: {name}")


def test_a_question_is_answered_spent_and_said(capsys):
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6)
    found = session.ask(HISTOGRAM, "town", epsilon=0.5, noise=SeededNoise(0))
    protocol = session.asked[0].protocol
    # the curator's best, and its own answer
    best = queries.choose(HISTOGRAM, 600, 0.5, 5e-7, trust="curator", search=False).best
    assert type(protocol) is type(best)
    again = best.estimate(table()["town"], noise=SeededNoise(0))
    torch.testing.assert_close(found.value, again.value)
    assert session.budget.left.epsilon == 0.5
    said = capsys.readouterr().out
    assert "question 1, identity of 'town': CentralLaplace spends epsilon = 0.5" in said
    assert "left: epsilon = 0.5, delta = 1e-06" in said


def test_the_same_question_twice_spends_twice_and_says_so(capsys):
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6)
    for _ in range(2):
        session.ask(HISTOGRAM, "town", epsilon=0.25)
    session.ask(HISTOGRAM.dense(), "town", epsilon=0.25)
    session.ask(2 * HISTOGRAM.dense(), "town", epsilon=0.25)
    lines = capsys.readouterr().out.splitlines()
    assert ["asked before, as question 1" in line for line in lines] == [False, True, False, False]
    assert session.budget.left.epsilon == 0
    shown = str(session).splitlines()
    assert len(shown) == 6
    assert shown[1] == shown[2]
    assert shown[-1].startswith("left")


def test_what_is_left_is_asked_by_default():
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6, quiet=True)
    session.ask(height(0.25, 5e-7), "height")
    session.ask(HISTOGRAM, "town")
    assert session.budget.left.epsilon == pytest.approx(0.0, abs=1e-12)
    # deltas are in proportion: half of them was left for three quarters of epsilon
    assert session.budget.left.delta == pytest.approx(5e-7, rel=1e-6)


def test_several_columns_of_categories_are_one_type():
    session = torchdp.Session(table(), epsilon=100.0, delta=1e-6, quiet=True)
    found = session.ask(workloads.identity(6), ["town", "up"], epsilon=50.0)
    # (town, up), the first the slowest; up is every other row
    assert found.value == pytest.approx(torch.full((6,), 1 / 6).numpy(), abs=0.01)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, pd.Series])
def test_data_of_every_kind(kind):
    session = torchdp.Session(kind([0, 1, 2] * 100), epsilon=9.0, delta=1e-6, quiet=True)
    found = session.ask(HISTOGRAM, noise=SeededNoise(1))
    assert found.n == 300
    assert float((found.value - 1 / 3).abs().max()) < 0.02


@pytest.mark.parametrize("question", [HISTOGRAM, height(0.6), workloads.prefix(3).dense()], ids=str)
def test_guarantee_beyond_the_budget_nothing_is_read(question):
    session = torchdp.Session(Untouched(), epsilon=0.5, delta=1e-6, quiet=True)
    with pytest.raises(ValueError, match=r"left.*epsilon = 0\.5"):
        session.ask(question, epsilon=0.6)
    assert not session.asked
    assert session.budget.left.epsilon == 0.5


def test_guarantee_a_session_keeps_its_limit():
    """All that was answered, composed, is within it."""
    for limit in ({"epsilon": 1.0, "delta": 1e-6}, {"rho": 0.03}):
        session = torchdp.Session(table(), **limit, quiet=True)
        generator = torch.Generator().manual_seed(0)
        with pytest.raises(ValueError, match="left"):
            for _ in range(1000):
                epsilon = 0.05 + 0.3 * float(torch.rand((), generator=generator))
                session.ask(HISTOGRAM, "town", epsilon=epsilon)
        guarantees = [one.protocol.guarantee for one in session.asked]
        assert len(guarantees) > 3
        if "rho" in limit:
            assert sum(each.rho for each in guarantees) <= 0.03 * (1 + 1e-9)
        else:
            assert compose(guarantees).epsilon <= 1.0 + 1e-9
            assert sum(each.delta for each in guarantees) <= 1e-6 * (1 + 1e-9)


def test_squares_allow_more_of_many_small_questions():
    counts = {}
    for name, budget in {
        "sums": Budget.of(epsilon=1.0, delta=1e-6),
        "squares": Budget.of(epsilon=1.0, delta=1e-6, squares=True),
    }.items():
        session = torchdp.Session(table(), budget=budget, quiet=True)
        with pytest.raises(ValueError, match="left"):
            while True:
                session.ask(HISTOGRAM, "town", epsilon=0.1)
        counts[name] = len(session.asked)
    assert counts["sums"] == 10
    assert counts["squares"] > 70


def test_users_randomize_where_nobody_is_trusted():
    session = torchdp.Session(table(), epsilon=1.0, trust="local", quiet=True)
    session.ask(HISTOGRAM, "town", epsilon=0.5)
    guarantee = session.asked[0].protocol.guarantee
    assert (guarantee.model, guarantee.delta) == (Model.LOCAL, 0.0)
    assert session.budget.left.epsilon == 0.5


def test_data_that_do_not_fit_spend_nothing():
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6, quiet=True)
    for columns, question, words in (
        ("twon", HISTOGRAM, "lack 'twon'; did you mean 'town'"),
        ("age", HISTOGRAM, "lack 'age'; it has town, up, height"),
        (["town", "hieght"], HISTOGRAM, "did you mean 'height'"),
        ("town", workloads.identity(4), "the 4 types that users may hold, not for 3"),
        ("height", HISTOGRAM, "not fractions"),
        (None, height(0.1), "numbers"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            session.ask(question, columns, epsilon=0.1)
    assert session.budget.left.epsilon == 1.0
    with pytest.raises(ValueError, match="no DataFrame"):
        torchdp.Session([0, 1], epsilon=1.0, delta=1e-6).ask(HISTOGRAM, "town")


def test_what_a_session_is_made_of():
    mine = Budget.of(epsilon=1.0, delta=1e-6, model=Model.LOCAL)
    for wrong, words in (
        ({}, "epsilon or rho must be given"),
        ({"epsilon": 1.0, "budget": mine}, "budget must be given alone"),
        ({"budget": mine}, "'curator' must be that of the budget, local"),
        ({"epsilon": 1.0, "trust": "nobody"}, "trust must be one of local"),
    ):
        with pytest.raises(ValueError, match=words):
            torchdp.Session(table(), **wrong)
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match="can not be copied"):
        copy.deepcopy(session)
    assert session.budget.limit.arithmetic is Arithmetic.REAL
    assert isinstance(height(0.1), Protocol)


def test_guarantee_threads_ask_for_what_there_is_and_no_more():
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6, quiet=True)
    protocol = height(0.1, 1e-8)
    refused = []

    def asks():
        for _ in range(5):
            try:
                session.ask(protocol, "height")
            except ValueError as error:
                refused.append(error)

    threads = [threading.Thread(target=asks) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(session.asked) == 10
    assert len(refused) == 20
