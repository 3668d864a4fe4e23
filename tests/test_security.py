"""The page on security: tests that a page names exist and attack what users can call; what is not covered is not."""

import ast
import functools
import importlib
import math
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.shuffle import CentralGaussianSum

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/security.md").read_text()
NAMING = [path for path in sorted((ROOT / "docs").glob("*.md")) if "tests/" in path.read_text()]


@functools.cache
def defined(path):
    """Names of the functions and classes of a file."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def missing(text):
    """Tests that a page names and that are not there."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)
    return [f"{path}::{name}" for path, name in named if name not in defined(path)], len(named)


def test_every_threat_has_a_test_that_exists():
    assert missing(PAGE)[0] == []
    rows = PAGE.split("## Threats")[1].split("## ")[0].strip().splitlines()[2:]
    assert all(re.search(r"`tests/[\w/]+\.py::\w+` \|$", row) or missing(row)[1] for row in rows)
    assert rows
    assert missing("tests/test_security.py::test_of_nothing")[0]


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    assert not missing(page.read_text())[0]


def offered(module):
    """Whether users import from a module: torchdp, what lies in it, and its kernels."""
    depth = module.count(".")
    return depth < 2 or (depth == 2 and module.startswith("torchdp.kernels."))


def hidden(name):
    """Whether a dotted name of torchdp passes through something that users are not offered."""
    thing = importlib.import_module("torchdp")
    for part in name.split(".")[1:]:
        if not isinstance(thing, ModuleType):
            return part.startswith("_")
        if part in getattr(thing, "__all__", [part] if hasattr(thing, part) else []):
            thing = getattr(thing, part)
        else:
            try:
                thing = importlib.import_module(f"{thing.__name__}.{part}")
            except ModuleNotFoundError:
                return True
        if part.startswith("_") or (isinstance(thing, ModuleType) and not offered(thing.__name__)):
            return True
    return False


def dotted(node):
    """The dotted name that a node is, or "" where it is none."""
    if isinstance(node, ast.Attribute):
        return dotted(node.value) and f"{dotted(node.value)}.{node.attr}"
    return getattr(node, "id", getattr(node, "arg", "")) if isinstance(node, ast.Name | ast.arg) else ""


@functools.cache
def parsed(path):
    """A file's tree, what its names are imported from, and where it binds others."""
    tree, imported, bound = ast.parse((ROOT / path).read_text()), {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            for a in node.names:  # ``import a.b`` binds a
                imported[a.asname or a.name.split(".")[0]] = a.name if a.asname else a.name.split(".")[0]
    for node in tree.body:
        stored = [
            each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
        bound |= dict.fromkeys([node.name] if hasattr(node, "name") else stored, node)
    return tree, imported, bound


@functools.cache
def private(path, name):
    """The parts that users are not offered of what a test calls, in its module and in helpers of tests/."""
    (tree, imported, bound), found = parsed(path), set()
    left, done = [node for node in ast.walk(tree) if getattr(node, "name", None) == name], set()
    while left:
        done.add(at := left.pop())
        for node in ast.walk(at):
            first, _, rest = dotted(node).partition(".")
            full = imported.get(first, "") + (rest and f".{rest}")
            helper = Path("tests", *full.split(".")[:-1]).with_suffix(".py")
            if first in bound and bound[first] not in done:
                left.append(bound[first])
            elif full.startswith("torchdp.") and hidden(full):
                found.add(full)
            elif full and (ROOT / helper).is_file():
                found |= private(helper, full.split(".")[-1])
            # an attribute's name, or a string for getattr
            text = getattr(node, "attr", getattr(node, "value", ""))
            if isinstance(text, str) and re.fullmatch(r"_[a-z]\w*|torchdp\..*\._\w+", text) and text != "_exit":
                found.add(text)
    return found


NAMED = list(dict.fromkeys(re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: part.split("/")[-1])
def test_a_promise_is_tested_through_what_users_can_call(path, name):
    assert private(path, name) == set()


PLANTED = """
import torchdp.secure.servers
from channels import others
from torchdp import secure
from torchdp.secure import Server, share
from torchdp.secure.frames import seal as forge
from torchdp.kernels.chacha import keystream
LIMIT = secure.frames.HEADER_BYTES
def helper(server): return forge(b"", b"", 0, 0, 1)
def test_one(server): helper(server)
def test_two(server): server._words.zero_()
def test_three(server): return LIMIT
def test_four(server): return getattr(server, "_words"), torchdp.secure.servers.roll_header
def test_five(server, monkeypatch): monkeypatch.setattr("torchdp.secure.ring._masks", 1)
def test_six(server, monkeypatch): return Server, share(keystream, 2), others, secure.reconstruct, server.seen
"""


def test_what_is_not_offered_is_seen(tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    found = [private(tmp_path / "planted.py", f"test_{each}") for each in "one two three four five six".split()]
    assert found == [
        {"torchdp.secure.frames.seal"},
        {"_words"},
        {"torchdp.secure.frames", "torchdp.secure.frames.HEADER_BYTES"},
        {"_words", "torchdp.secure.servers", "torchdp.secure.servers.roll_header"},
        {"torchdp.secure.ring._masks"},
        set(),
    ]


def coarse(numbers):
    """How many numbers lie near 0, and how many of them are multiples of 2^-54."""
    near = numbers[numbers.abs() < 2**-6]
    return len(near), int((near * 2**54 == (near * 2**54).round()).sum())


def test_outside_the_promise_low_order_bits_of_floats_tell():
    """1 + noise near 0 keeps to the grid of 1; noise alone is finer (Mironov 2012)."""
    n, law, chance, kind = 600_000, CentralGaussianSum(1, 4.0), {}, (Model.CENTRAL, Neighbours.REPLACE_ONE)
    promise = gaussian_guarantee(law.sigma, 1e-9, 1.0, *kind)
    assert "over real numbers" in str(promise)
    for bit in (False, True):
        released = law.noised(torch.full((n,), float(bit)).double(), SeededNoise(1))
        near, grid = coarse(released)
        assert near > 100
        chance[bit] = grid / n
    assert chance[True] > 10 * (math.exp(promise.epsilon) * chance[False] + promise.delta)
