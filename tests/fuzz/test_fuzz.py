"""Bad input gets a clear error: every public way in, each argument in turn."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from torchdp.protocol import Protocol

HERE = Path(__file__).parent


def load(name):
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", HERE / f"{name}.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


harness, recipes, verbs = load("harness"), load("recipes"), load("verbs")
slow = pytest.mark.slow
CALLS = [(room, recipe) for room, lines in recipes.ALL.items() for recipe in lines]


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(recipe, marks=slow if "fresh.alone" in recipe else ()) for _, recipe in CALLS],
    ids=[f"{r}-{i}" for i, (r, _) in enumerate(CALLS)],
)
def test_bad_input_gets_a_clear_error(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "x" is a file's name
    found, made = harness.faults(recipe, recipes.names)
    assert made or "()" in recipe
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in verbs.FAST else slow) for n in verbs.PROTOCOLS])
def test_every_verb_of_every_protocol(name):
    found = [fault for recipe in verbs.verbs(name) for fault in harness.faults(recipe, verbs.names)[0]]
    assert not found, "\n".join(found)


@slow
@pytest.mark.parametrize("recipe", verbs.OTHERS)
def test_calls_of_parts(recipe):
    found, made = harness.faults(recipe, verbs.names)
    assert made and not found, "\n".join(found)


OPTIMIZED = """
import sys
sys.path.insert(0, sys.argv[1])
import harness, recipes
found, calls = [], 0
for lines in recipes.ALL.values():
    some = 0
    for line in lines:
        more, made = harness.faults(line, recipes.names)
        found, calls, some = found + more, calls + made, some + made
        if some >= 30:
            break
print(__debug__, calls, *found, sep="\\n")
"""


@slow
def test_two_hundred_calls_where_assertions_vanish(tmp_path):
    command = [sys.executable, "-O", "-c", OPTIMIZED, str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    debug, calls, *found = done.stdout.splitlines()
    assert debug == "False" and int(calls) >= 200 and not found


def test_no_protocol_is_left_out():
    """Every class whose users or curators draw; classes that relay others' reports and messages are among them."""
    kinds, left = set(), [Protocol]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("torchdp") and not inspect.isabstract(kind):
            kinds.add(kind)
    assert kinds <= {type(verbs.known()["at"][name].protocol) for name in verbs.PROTOCOLS}


def test_raw_errors_and_silent_nans_are_seen():
    raw = {"first": lambda x: x.shape[0] + 1, "root": lambda x: x.sqrt(), "W": recipes.names()["W"]}
    assert len(harness.faults("first(W)", lambda: raw)[0]) >= 5
    assert any("NaN" in fault for fault in harness.faults("root(W.abs())", lambda: raw)[0])
