"""Scripts' smoke runs on the device that is not there: none mixes devices."""

import json

import pytest
from far import smokes

QUICK = ("density/bitsums.py",)
ROOMS = sorted({name.split("/")[0] for name in smokes.every()})


def judge(child, *names):
    found = [json.loads(line) for line in child(smokes.__file__, *names).splitlines()]
    assert found
    assert not [row for row in found if row["wrong"]]


@pytest.mark.slow
def test_quick_scripts_run_there(child):
    judge(child, *QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_every_script_runs_there(child, room):
    judge(child, room)
