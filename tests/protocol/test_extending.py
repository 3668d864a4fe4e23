"""What docs/extending.md adds, as its user would outside the package, and the battery of its
protocol.
"""

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from laws import generator

from torchdp.collection import Journal
from torchdp.noise import SeededNoise
from torchdp.protocol import Tally

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/extending.md"
DEFINED, USED, MEASURED, KEPT, BATTERY, *OTHERS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL
)
NAMES = {"__name__": __name__}
exec(compile(DEFINED + BATTERY, str(PAGE), "exec"), NAMES)
PrivateCDF = NAMES["PrivateCDF"]
TYPES = NAMES["TYPES"]
TestPrivateCDF = NAMES["TestPrivateCDF"]


def lines(block):
    return len([line for line in block.splitlines() if line.strip()])


def test_it_is_short_and_its_battery_shorter():
    assert lines(DEFINED) <= 70
    assert lines(BATTERY) <= 20


def test_what_the_page_does_with_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = dict(NAMES)
    exec(compile(USED + MEASURED + KEPT, str(PAGE), "exec"), names)
    assert "local differential privacy, epsilon = 1, over real numbers" in capsys.readouterr().out
    again = Journal("ages.db", names["protocol"]).collection
    protocol = names["protocol"]
    assert again.n == 8000
    assert list(again.batches) == ["day 0", "day 1", "day 2"]
    torch.testing.assert_close(again.estimate().value, names["journal"].estimate().value)
    assert again.tally["asked"].sum() == 8000
    with pytest.raises(ValueError, match=r"another protocol: protocol\.epsilon differs"):
        Journal("ages.db", dataclasses.replace(protocol, epsilon=2.0))


CHANNEL, QUESTION, *APART = OTHERS


@pytest.mark.parametrize(
    "block",
    # the question goes through the new channel
    [CHANNEL + QUESTION, *APART],
    ids=[
        "channel and question",
        "design",
        "two chances",
        "family",
        "workload",
        "domain",
    ],
)
def test_what_else_is_added_works(block, capsys):
    exec(
        compile(
            DEFINED + "from torch import Tensor\n" + block,
            str(PAGE),
            "exec",
        ),
        {"__name__": __name__},
    )
    printed = capsys.readouterr().out
    assert printed
    assert "False" not in printed


class TooSure(PrivateCDF):
    """Says epsilon and answers by a coin of 1.1 epsilon."""

    @property
    def truth(self):
        return 1 / (1 + math.exp(-1.1 * self.epsilon))


class WrongVariance(PrivateCDF):
    def predicted_mse(self, summary):
        return 1.15 * super().predicted_mse(summary)


class WrongHalf(PrivateCDF):
    def tally(self, messages):
        heard = super().tally(messages)
        return Tally(heard.n, {**heard.parts, "yes": heard["yes"] // 2})


class Biased(PrivateCDF):
    def analyse(self, tally):
        found = super().analyse(tally)
        return dataclasses.replace(found, value=found.value * 1.2)


class Same(PrivateCDF):
    """Every user's words are the first one's."""

    def randomize_unchecked(self, x, draws):
        one = super().randomize_unchecked(x[:1], draws)
        return one.expand(len(x)).clone()


class Lopsided(PrivateCDF):
    def sample_unchecked(self, summary, draws, shape):
        return super().sample_unchecked(summary.flip(0), draws, shape)


@pytest.mark.parametrize(
    ("fault", "seen_by"),
    [
        (TooSure, "test_guarantee_is_what_the_law_says"),
        (WrongVariance, "test_predicted_mse"),
        (WrongHalf, "test_predicted_mse"),
        (Biased, "test_predicted_mse"),
        (Same, "test_predicted_mse"),
        (Lopsided, "test_two_paths_one_law"),
    ],
)
def test_the_battery_sees_a_planted_fault(fault, seen_by):
    entry = TestPrivateCDF()
    entry.protocol = protocol = fault(6, 3.0)
    summary = protocol.summary(TYPES)
    each = [protocol.collect(TYPES, noise=SeededNoise(seed)) for seed in range(entry.runs)]
    parts = {name: torch.stack([t[name] for t in each]) for name in each[0].parts}
    given = {
        "test_guarantee_is_what_the_law_says": (),
        "test_predicted_mse": (summary,),
        "test_two_paths_one_law": (parts, summary),
    }
    with pytest.raises(AssertionError):
        getattr(entry, seen_by)(*given[seen_by])


def test_the_median_is_a_function_of_the_estimate():
    found = PrivateCDF(6, 4.0).sample_estimate(
        torch.tensor([0, 0, 900, 200, 0, 100]) * 100,
        generator=generator(),
    )
    assert int((found.value < 0.5).sum()) == 2
