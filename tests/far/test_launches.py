"""Launches and synchronisations of calls over all rooms stay what they were counted to be, whatever the sizes."""

import csv
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "experiments" / "bench"
QUICK = "Response, |PrivUnit, e|OneMessage, e|TwoRound.tuned|LocalOracle|GramRelease|training|SecureSketch, c"
# Their law is drawn from messages for each repetition, and a subset's rounds go on until its size is right.
GROWS = ("SubsetSelection", "SubsetPairs")
MORE = 6  # rounds of a rejection, which differ with the numbers drawn


def table(name):
    with (BENCH / name).open(newline="") as file:
        return {(row["room"], row["call"]): row for row in csv.DictReader(file)}


def counted(child, *some):
    rows = json.loads(child(BENCH / "launches.py", "--json", *some))
    return {(row["room"], row["call"]): row for row in rows}


def judge(found):
    kept = table("launches.csv")
    for key, row in found.items():
        for field in ("launches", "launches_large", "synchronisations", "synchronisations_large"):
            if field in row:
                bound = int(kept[key][field])
                assert row[field] <= bound + MORE + bound // 10 * field.startswith("launches"), (key, field, row)
        if key[0] == "training":
            assert row["synchronisations"] == row["synchronisations_large"] == 0, row


def test_quick_calls_launch_and_wait_no_more_than_they_did(child):
    found = counted(child, "--only", QUICK)
    assert len(found) > 15
    judge(found)


@pytest.mark.slow
def test_no_call_launches_or_waits_more_than_it_did(child):
    found = counted(child)
    assert set(found) == set(table("launches.csv"))
    judge(found)


def test_synchronisations_do_not_grow_with_users_types_or_repetitions():
    for key, row in table("launches.csv").items():
        if row["synchronisations_large"] and not key[1].startswith(GROWS):
            assert int(row["synchronisations_large"]) <= int(row["synchronisations"]) + MORE, key


def test_the_table_of_old_says_what_was_mended():
    before, after = table("launches_before.csv"), table("launches.csv")
    assert len(after) >= 30 and set(before) == set(after)
    total = [sum(int(row["synchronisations"]) for row in each.values()) for each in (before, after)]
    assert total[1] < total[0] / 2
