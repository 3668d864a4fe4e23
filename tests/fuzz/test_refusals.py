"""Bad input is refused in words that name it: every row of ``refusals.txt``."""

import dataclasses
import importlib
import itertools
import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from fuzz import harness, verbs

HERE = Path(__file__).parent
HEAD, *SECTIONS = (HERE / "refusals.txt").read_text().split("\n# ")


def names():
    tools = {
        "t": torch.tensor,
        "d": partial(torch.tensor, dtype=torch.float64),
        "nan": math.nan,
    }
    rooms = {
        "of": lambda room: importlib.import_module(f"torchdp.{room}"),
        "replace": dataclasses.replace,
    }
    return verbs.names() | tools | rooms


def calls(row, sets):
    """Each call of a row, one for each choice within <...; ...>."""
    row = re.sub(r"<([A-Z]+)(?=[;>])", lambda name: "<" + sets.get(name[1], name[1]), row)
    fixed = re.split(r"<[^<>]*;[^<>]*>", row)
    choices = re.findall(r"<([^<>]*;[^<>]*)>", row)
    for chosen in itertools.product(*(each.split("; ") for each in choices)):
        yield "".join(itertools.chain(*zip(fixed, (*chosen, ""), strict=True)))


def said(call, known):
    """The error of a call, "raw" where the library did not raise it; nothing where there is an
    answer.
    """
    try:
        eval(call, known)
    except Exception as error:
        return f"{'' if harness.own(error) else 'raw '}{type(error).__name__}: {error}"
    return ""


def refused(words, told):
    return bool(re.search(words, told)) and told.startswith("raw ") == words.startswith("raw ")


@pytest.mark.parametrize("section", SECTIONS, ids=[each.split("\n")[0] for each in SECTIONS])
def test_refused(section):
    known = names()
    sets = dict(re.findall(r"(?m)^([A-Z]+) = (.+)$", HEAD + section))
    found = []
    for row in filter(None, section.split("\n")[1:]):
        if re.match(r"[A-Z]+ = ", row):
            continue
        named = re.match(r"(\w+) := (.+)", row)
        if named:
            known[named[1]] = eval(named[2], known)
            continue
        call, _, words = row.rpartition(" | ")
        assert call and words, row
        told = [(one, said(one, known)) for one in calls(call, sets)]
        found += [each for each in told if not refused(words, each[1])]
    assert not found, "\n".join(": ".join(each) for each in found)


def test_answers_and_raw_errors_are_no_refusals():
    known = names()
    assert said("1 + 1", known) == ""
    assert not refused("no_name", said("W.no_name", known))
    assert refused("epsilon", said("privacy.gaussian_sigma(-1.0, 1e-5, 1.0)", known))
