"""Which code made a number: what changes the digest, and what does not."""

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

import torchdp
from torchdp import pairwise
from torchdp.simulate.code import code_of, package

BASE = '''
import logging
import torch
from torchdp.simulate import Trial

FACTOR = 1
CONFIG = {"a": [1, 2.0], "b": {"x", "y"}}
logger = logging.getLogger("toy")

class Scale:
    by = 3
    def __call__(self, x):
        return x * self.by

def helper(x):
    logger.debug("here")
    return Scale()(x) * FACTOR * WEIGHTS[0]

WEIGHTS = torch.ones(2)

def make_trial(config, power=2):
    """What it does."""
    def sample(generator, size):
        return helper(torch.randn(size, generator=generator)) ** power * CONFIG["a"][0]
    return Trial(sample, {})

def draw(rows, folder):
    return []
'''


@pytest.fixture(autouse=True)
def unkept(monkeypatch):
    """No bytecode, which is taken for that of a file written anew in the same second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def made(folder, text):
    path = folder / "toy.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("experiment_toy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_trial


@pytest.mark.parametrize(("old", "new"), [
    ("FACTOR = 1", "FACTOR = 100"), ("FACTOR = 1", "FACTOR = 1.0"), ("by = 3", "by = 4"),
    ("x * self.by", "x + self.by"), ("[1, 2.0]", "[1, 2.5]"), ('{"x", "y"}', '{"x", "z"}'),
    ("torch.ones(2)", "torch.ones(3)"), ("torch.ones(2)", "torch.full((2,), 1 + 1e-7)"), ("power=2", "power=3"),
    ("torch.randn", "torch.rand"), ("helper(torch", "abs(torch"),
])  # fmt: skip
def test_what_a_trial_computes_with_counts(tmp_path, old, new):
    assert code_of(made(tmp_path, BASE.replace(old, new))) != code_of(made(tmp_path, BASE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What it does", "What it does not"),
        ("    return []", "    return [folder]"),
        ("def helper", "# a comment\n\n\ndef helper"),
        ("WEIGHTS = torch.ones(2)", "WEIGHTS = 2 * torch.ones(2) / 2"),
    ],
)
def test_comments_and_figures_do_not(tmp_path, old, new):
    assert BASE != BASE.replace(old, new)
    assert code_of(made(tmp_path, BASE.replace(old, new))) == code_of(made(tmp_path, BASE))


def test_it_is_the_same_in_another_process(tmp_path):
    here = code_of(made(tmp_path, BASE))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import toy\n"
    root = str(Path(torchdp.__file__).parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script + "from torchdp.simulate.code import code_of; print(code_of(toy.make_trial))"],
        capture_output=True, text=True, env=environment, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == here, done.stderr


def test_values_that_a_trial_is_made_with_count(tmp_path):
    trial = made(tmp_path, BASE)

    def closure(value):
        return lambda config: trial(config, value)

    values = [
        1,
        1.0,
        "1",
        None,
        torch.ones(1),
        torch.zeros(1),
        [1],
        (1,),
        {1: 2},
        {2: 1},
        Path("a"),
        threading.Lock(),
    ]
    values += [torch.float32, slice(1), Thing(1), Thing(2), partial(closure, 1), partial(closure, 2), Thing(1).act]
    for wrap in (closure, lambda value: partial(trial, power=value)):
        assert len({code_of(wrap(value)) for value in values}) == len(values)
    loop: list = []
    loop.append(loop)
    assert code_of(closure(loop)) == code_of(closure(loop))
    wrapped = closure(3)
    wrapped.__wrapped__ = trial
    assert code_of(wrapped) == code_of(trial)


class Thing:
    def __init__(self, value):
        self.value = value

    def act(self):
        return self.value


def test_what_a_value_has_computed_and_kept_does_not_count():
    statistic = pairwise.kendall(3, 3)

    def make_trial(config):
        return statistic

    before = code_of(make_trial)
    statistic.exact(torch.ones(9))
    pairwise.OneMessage(statistic, 1.0)
    assert code_of(make_trial) == before


def test_it_names_the_packages_and_their_versions(monkeypatch):
    said = code_of(test_it_names_the_packages_and_their_versions)
    assert f"torch {torch.__version__}" in said and package() in said and torchdp.__version__ in package()
    monkeypatch.setattr("torchdp.simulate.code.torch.__version__", "9.9")
    assert "torch 9.9" in code_of(print) != said


@pytest.mark.parametrize(("folder", "read"), [("site-packages", False), ("dist-packages", False), ("mine", True)])
def test_a_library_of_another_folder_is_not_read(folder, read, tmp_path, monkeypatch):
    """As with --user, --system-site-packages or PYTHONPATH."""
    (tmp_path / folder).mkdir()
    monkeypatch.syspath_prepend(tmp_path / folder)
    said = []
    for number in (1, 2):
        (tmp_path / folder / "somebody.py").write_text(f"def half(x):\n    return x / {number}\n")
        monkeypatch.delitem(sys.modules, "somebody", raising=False)
        somebody = importlib.import_module("somebody")
        said.append(code_of(somebody.half))
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / folder / "__pycache__", ignore_errors=True)
    assert (said[0] != said[1]) == read
