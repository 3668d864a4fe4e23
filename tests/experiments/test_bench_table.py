"""The one command of the benches: what fails, what is forgiven, what is absent; every bench at its smallest size."""

import importlib
import json
import re
import runpy
import sys

import pytest
from scripts import FOLDER, loaded

BENCHES = ("oracles", "vectors", "features", "samplers", "secure", "rooms")
QUICK = ("samplers",)  # the others take seconds


@pytest.fixture
def run():
    with loaded("bench/run.py") as module:
        yield module


@pytest.fixture
def harness(run, monkeypatch):
    module = importlib.import_module("harness")
    monkeypatch.setattr(module, "grown", lambda make: None)  # forks
    monkeypatch.setattr(module, "LEAST", 0.0)
    return module


def row(times, against="a copy", bench="fake", case="slow"):
    return {"bench": bench, "case": case, "against": against, "kind": "floor", "times": times}


def test_a_ratio_that_fell_fails(run):
    asked = []

    def again(bench, cases):
        asked.append((bench, cases))
        return [row(2.0)]

    lost = run.fallen(
        [row(2.0), row(1.0, case="fine"), row(9.0, case="new")], [row(1.5), row(1.0, case="fine")], again
    )
    assert [each["case"] for each in lost] == ["slow"]
    assert asked == [("fake", ["slow"])] * 2  # measured three times in all, and nothing else is


def test_noise_that_a_repetition_clears_passes(run):
    found = [row(8.0)]
    assert not run.fallen(found, [row(1.0)], lambda *_: [row(1.1)])
    assert found[0]["times"] == 1.1  # the table says what the repetition found


def test_a_case_that_raises_fails(run):
    broken = {"bench": "fake", "case": "broken", "kind": "failed", "against": "TypeError()"}
    assert run.fallen([broken], [], again=None) == [broken]


FAKE = """
from harness import Case, Part, Work

def broken():
    raise TypeError("no such call in this checkout")

def cases(small):
    yield Case("broken", broken)
    yield Case("fake", lambda: Work(lambda: sum(range(900)), 9, {"copy": Part(lambda: sum(range(100)), 1)}))
"""


def test_a_bench_is_measured_by_its_own_process(harness, tmp_path, monkeypatch, capsys):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(sys, "argv", ["harness.py", str(tmp_path / "fake.py"), "--small", "--rounds", "1"])
    runpy.run_path(str(FOLDER / "bench" / "harness.py"), run_name="__main__")
    broken, fake = map(json.loads, capsys.readouterr().out.splitlines())
    assert (broken["case"], broken["kind"]) == ("broken", "failed")
    assert (fake["case"], fake["kind"], fake["against"]) == ("fake", "floor", "copy")


@pytest.mark.parametrize(
    "bench", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in BENCHES]
)
def test_every_case_of_every_bench_runs(harness, bench):
    cases = list(harness.load(bench)(True))
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        found = list(harness.rows(case, 1))
        assert any(each["kind"] == "floor" for each in found), case.name
        assert all(each["kind"] == "absent" or each["times"] > 0 for each in found)


def test_every_bench_is_in_the_one_command(run):
    there = {path.stem for path in (FOLDER / "bench").glob("*.py") if "\ndef cases(" in path.read_text()}
    assert there - {run.GATE} == set(run.BENCHES) == set(BENCHES)


def test_the_gate_of_each_commit_sees_a_call_half_as_slow_again(run):
    """Above 1.5 times its row in six measurements; a busy machine's one slow measurement is forgiven."""
    committed = [row(1.0, bench=run.GATE)]
    here = {"machine": "a processor", "versions": "torch 2"}
    limits = run.gate_limit([{**committed[0], **here}], here), run.GATE_REPEATS
    asked = []

    def always(bench, cases):
        asked.append(cases)
        return [row(1.6, bench=bench)]

    assert run.fallen([row(1.6, bench=run.GATE)], committed, always, *limits)
    assert len(asked) == run.GATE_REPEATS == 5
    assert not run.fallen([row(1.4, bench=run.GATE)], committed, always, *limits)
    quiet = iter([4.0, 2.0, 1.2])
    assert not run.fallen(
        [row(9.0, bench=run.GATE)], committed, lambda *_: [row(next(quiet), bench=run.GATE)], *limits
    )


def test_every_call_of_the_gate_has_a_row(run):
    """Read as text: a call without a row would never be held to one."""
    committed = run.read_table(FOLDER / "bench" / "tables" / "calls.csv")
    calls = (FOLDER / "bench" / "calls.py").read_text()
    names = set(re.findall(r'^        "([^"]+)": \(', calls, re.M))
    assert names == {each["case"] for each in committed} and len(names) >= 20
    assert all(each["times"] > 0 for each in committed)
