"""Sessions: what is asked is spent once for each answer, and nothing is answered beyond the budget."""

import numpy as np
import pandas as pd
import pytest
import torch

import torchdp
from torchdp import domains, mean, queries, workloads
from torchdp.noise import SeededNoise
from torchdp.privacy import compose

HISTOGRAM = workloads.identity(3)


def table():
    towns = pd.Categorical(["Basel", "Bern", "Chur"] * 200)
    heights = np.linspace(1.5, 1.9, 600)
    return pd.DataFrame({"town": towns, "height": heights})


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
    # the curator's best, and its own answer
    best = queries.choose(HISTOGRAM, 600, 0.5, 5e-7, trust="curator", search=False).best
    again = best.estimate(table()["town"], noise=SeededNoise(0))
    torch.testing.assert_close(found.value, again.value)
    session.ask(HISTOGRAM, "town", epsilon=0.25)
    # all that is left, of another question
    session.ask(HISTOGRAM, ["town"])
    assert session.budget.left.epsilon == pytest.approx(0.0, abs=1e-12)
    said = capsys.readouterr().out.splitlines()
    assert "identity of 'town': CentralLaplace spends epsilon = 0.5" in said[0]
    assert ["asked before" in line for line in said] == [False, True, False]
    assert str(session).count("identity of 'town'") == 2


@pytest.mark.parametrize("question", [HISTOGRAM, height(0.6)], ids=str)
def test_guarantee_beyond_the_budget_nothing_is_read(question):
    session = torchdp.Session(Untouched(), epsilon=0.5, delta=1e-6, quiet=True)
    with pytest.raises(ValueError, match=r"left.*epsilon = 0\.5"):
        session.ask(question, epsilon=0.6)
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


def test_data_that_do_not_fit_spend_nothing():
    session = torchdp.Session(table(), epsilon=1.0, delta=1e-6, quiet=True)
    for columns, question, words in (
        ("twon", HISTOGRAM, "lack 'twon'; there is town"),
        (["town", "age"], HISTOGRAM, "lack 'age'; there is town, height"),
        ("town", workloads.identity(4), "the 4 types that users may hold, not for 3"),
        ("height", HISTOGRAM, "not fractions"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            session.ask(question, columns, epsilon=0.1)
    assert session.budget.left.epsilon == 1.0
