"""The one command of the benches: what fails, what is forgiven, what is absent; the faults that are
planted.
"""

import importlib
import re

import pytest
from scripts import FOLDER, loaded

slow = pytest.mark.slow
ROOMS = (
    "privacy protocol collection factorization domains randomizers queries pairwise mean shuffle density sketching "
    "secure regression training simulate kernels"
).split()
BENCHES = ("oracles", "vectors", "features", "samplers", "secure")
# the others take seconds
QUICK = ("samplers",)


def test_faults_are_of_the_code_as_it_is():
    """Each statement is in its function once, another stands in its place, and the tests named for
    it are there.
    """
    with loaded("bench/mutations.py") as module:
        faults = module.read(module.FAULTS.read_text())
        lost = []
        for fault in faults:
            try:
                fault.code(module.ROOT)
            except (LookupError, OSError, SyntaxError, ValueError) as error:
                lost.append(f"{error}")
            for test in fault.tests:
                file, _, name = test.partition("[")[0].partition("::")
                text = (module.ROOT / "tests" / file).read_text()
                assert not name or re.search(rf"(def|class) {name}\b", text), fault
        assert not lost, "\n".join(lost)
        with pytest.raises(ValueError, match="a fault must have"):
            module.read("@ a file without tests\n- a\n+ b\n")
    assert len({(fault.file, fault.what) for fault in faults}) == len(faults)
    assert {fault.room for fault in faults} >= set(ROOMS)


SOUND = """
def first(x):
    return [x + 1, x + 2]  # a comment

class A:
    def second(self, x):
        if x:
            x += 1
            return (x +
                2)
        return 3
"""


@pytest.mark.parametrize(
    ("function", "right", "wrong", "expected"),
    [
        ("A.second", "x + 2", "x - 2", "return ((x - 2))"),
        ("A.second", "x += 1\nreturn x + 2", "return x", "            return x\n        return 3"),
        (
            "A.second",
            "x += 1",
            "if x > 2:\n    x += 1",
            "            if x > 2:\n                x += 1\n",
        ),
        ("first", "[x+1,x+2]", "[x]", "return ([x])  # a comment"),
    ],
)
def test_a_fault_is_found_whatever_the_form_of_its_lines(
    tmp_path, function, right, wrong, expected
):
    with loaded("bench/mutations.py") as module:
        (tmp_path / "code.py").write_text(SOUND)
        assert expected in module.Fault("code.py", function, "fault", (), right, wrong).code(
            tmp_path
        )


@pytest.mark.parametrize(
    ("function", "right", "message"),
    [
        ("A.first", "x + 2", r"code.py::A.first \(fault\): no such function"),
        ("first", "x + 3", "0 times, not once"),
        ("", "x + 2", "2 times, not once"),
    ],
)
def test_a_fault_that_is_gone_is_named(tmp_path, function, right, message):
    with loaded("bench/mutations.py") as module:
        (tmp_path / "code.py").write_text(SOUND)
        with pytest.raises(LookupError, match=message):
            module.Fault("code.py", function, "fault", (), right, "x").code(tmp_path)


@slow
def test_mutations(smoke, tmp_path):
    """Two faults are seen; what changes nothing is seen by nobody, and a copy is as it was
    afterwards.
    """
    rooms = smoke("bench/mutations.py").tables["rooms"]
    assert [(row["faults"], row["killed"]) for row in rooms] == [(2, 2)]
    with loaded("bench/mutations.py") as module:
        copy = module.Copy(tmp_path)
        fault = module.Fault(
            "torchdp/wire.py",
            "pack",
            "none",
            ("test_wire.py",),
            "rows[:, :size]",
            "rows[:, 0:size]",
        )
        with module.planted(fault, copy.root):
            assert copy.failed(fault.tests) == ""
        assert (copy.root / fault.file).read_text() == (module.ROOT / fault.file).read_text()
        with pytest.raises(RuntimeError, match="no_such_test"):
            copy.failed(("no_such_test.py",))
        copy.close()


@pytest.fixture
def benches():
    with loaded("bench/run.py") as module:
        yield module


@pytest.fixture
def harness(benches, monkeypatch):
    module = importlib.import_module("harness")
    monkeypatch.setattr(module, "grown", lambda make: None)  # forks
    monkeypatch.setattr(module, "LEAST", 0.0)
    return module


def row(
    times,
    against="a copy",
    bench="fake",
    case="slow",
):
    return {
        "bench": bench,
        "case": case,
        "against": against,
        "kind": "floor",
        "times": times,
    }


def test_a_ratio_that_fell_fails(benches):
    asked = []

    def again(bench, cases):
        asked.append((bench, cases))
        return [row(2.0)]

    lost = benches.fallen(
        [
            row(2.0),
            row(1.0, case="fine"),
            row(9.0, case="new"),
        ],
        [row(1.5), row(1.0, case="fine")],
        again,
    )
    assert [each["case"] for each in lost] == ["slow"]
    # measured three times in all, and nothing else is
    assert asked == [("fake", ["slow"])] * 2


@pytest.mark.parametrize(
    "bench",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in BENCHES],
)
def test_every_case_of_every_bench_runs(harness, bench):
    cases = list(harness.load(bench)(True))
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        found = list(harness.rows(case, 1))
        assert any(each["kind"] == "floor" for each in found), case.name
        assert all(each["kind"] == "absent" or each["times"] > 0 for each in found)


def test_every_bench_is_in_the_one_command(benches):
    there = {
        path.stem for path in (FOLDER / "bench").glob("*.py") if "\ndef cases(" in path.read_text()
    }
    assert there - {benches.GATE} == set(benches.BENCHES) == set(BENCHES)


def test_the_gate_of_each_commit_sees_a_call_half_as_slow_again(benches):
    """Above 1.5 times its row in six measurements; a busy machine's one slow measurement is
    forgiven.
    """
    committed = [row(1.0, bench=benches.GATE)]
    here = {"machine": "a processor", "versions": "torch 2"}
    limits = benches.gate_limit([{**committed[0], **here}], here), benches.GATE_REPEATS
    asked = []

    def always(bench, cases):
        asked.append(cases)
        return [row(1.6, bench=bench)]

    # above the limit each time
    assert benches.fallen([row(1.6, bench=benches.GATE)], committed, always, *limits)
    assert len(asked) == benches.GATE_REPEATS == 5
    # below the limit
    assert not benches.fallen([row(1.4, bench=benches.GATE)], committed, always, *limits)
    quiet = iter([4.0, 2.0, 1.2])
    assert not benches.fallen(
        [row(9.0, bench=benches.GATE)],
        committed,
        lambda *_: [row(next(quiet), bench=benches.GATE)],
        *limits,
    )


def test_every_call_of_the_gate_has_a_row(benches):
    """Read as text: a call without a row would never be held to one."""
    committed = benches.read_table(FOLDER / "bench" / "tables" / "calls.csv")
    calls = (FOLDER / "bench" / "calls.py").read_text()
    names = set(re.findall(r'^        "([^"]+)": \(', calls, re.M))
    assert names == {each["case"] for each in committed}
    assert len(names) >= 20
    assert all(each["times"] > 0 for each in committed)
