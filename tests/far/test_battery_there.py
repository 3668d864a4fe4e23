"""Every entry of the battery on a device that is not there: it runs, mixes no devices, and finds the CPU's numbers.

And on the CPU, whatever torch's default device and dtype are.
"""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("battery.py")
ROOMS = "density mean pairwise queries randomizers regression secure shuffle".split()


def faults(found):
    return [f"{entry}, {part}:\n{trace}" for entry, wrong in found.items() for part, trace in wrong.items()]


def test_some_entries_run_there_and_defaults_of_torch_change_nothing(child):
    some = "regression.LocalRows", "mean.LocalVariance", "shuffle.Poisson"
    found = json.loads(child(SCRIPT, "--json", "--there", "--device", "--dtype", *some))
    assert len(found) == 9 and not faults(found), "\n".join(faults(found))


@pytest.mark.slow
@pytest.mark.parametrize("default", ["--device", "--dtype"])
@pytest.mark.parametrize("room", ROOMS)
def test_defaults_of_torch_change_nothing_anywhere(child, default, room):
    found = json.loads(child(SCRIPT, "--json", default, f"{room}."))
    assert found and not faults(found), "\n".join(faults(found))


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_every_entry_runs_there(child, room):
    found = json.loads(child(SCRIPT, "--json", f"{room}."))
    assert found and not faults(found), "\n".join(faults(found))
