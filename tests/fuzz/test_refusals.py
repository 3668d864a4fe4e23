"""Bad input is refused in words that name it: every row of ``refusals.txt``."""

import dataclasses
import importlib
import importlib.util
import itertools
import math
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("fuzz_verbs_of_refusals", HERE / "verbs.py")
sys.modules[spec.name] = verbs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verbs)

HEAD, *SECTIONS = (HERE / "refusals.txt").read_text().split("\n# ")


def names():
    tools = {"t": torch.tensor, "d": partial(torch.tensor, dtype=torch.float64), "nan": math.nan}
    rooms = {"of": lambda room: importlib.import_module(f"torchdp.{room}"), "replace": dataclasses.replace}
    return verbs.names() | tools | rooms


def calls(row, sets):
    """Each call of a row, one for each choice within <...; ...>."""
    row = re.sub(r"<([A-Z]+)(?=[;>])", lambda name: "<" + sets.get(name[1], name[1]), row)
    fixed, choices = re.split(r"<[^<>]*;[^<>]*>", row), re.findall(r"<([^<>]*;[^<>]*)>", row)
    for chosen in itertools.product(*(each.split("; ") for each in choices)):
        yield "".join(itertools.chain(*zip(fixed, (*chosen, ""), strict=True)))


def said(call, known):
    """The error of a call, or what it answers."""
    try:
        return f"an answer: {type(eval(call, known)).__name__}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("section", SECTIONS, ids=[each.split("\n")[0] for each in SECTIONS])
def test_refused(section):
    known, sets, found = names(), dict(re.findall(r"(?m)^([A-Z]+) = (.+)$", HEAD + section)), []
    for row in filter(None, section.split("\n")[1:]):
        name, kind, value = (
            re.match(r"(\w+) (:?=) (.+)", row).groups() if re.match(r"\w+ :?= ", row) else (row, "", "")
        )
        if kind == ":=":
            known[name] = eval(value, known)
        elif not kind:
            call, _, words = row.rpartition(" | ")
            found += [(one, told) for one in calls(call, sets) if not re.search(words, told := said(one, known))]
    assert not found, "\n".join(": ".join(each) for each in found)
