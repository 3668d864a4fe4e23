"""Scripts' smoke runs on the device that is not there: none mixes devices, or copies more than it did."""

import json

import pytest
from far import smokes

QUICK = ("density/bitsums.py",)
MORE = 1.1  # times as many: rounds of a search, which differ in the last bits of its numbers
ROOMS = sorted({name.split("/")[0] for name in smokes.every()})


def judge(child, *names):
    found = [json.loads(line) for line in child(smokes.__file__, *names).splitlines()]
    assert found
    kept = smokes.table()
    for row in found:
        assert not row["wrong"], row
        assert row["copies"] <= MORE * kept.get(row["script"], float("inf")), row


@pytest.mark.slow
def test_quick_scripts_run_there(child):
    judge(child, *QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_every_script_runs_there(child, room):
    judge(child, room)


def test_the_table_is_of_scripts():
    assert set(QUICK) <= set(smokes.table()) <= set(smokes.every())
