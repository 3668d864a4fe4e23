"""Which code made a number: what changes the digest, and what does not."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import torchdp
from torchdp.simulate.code import code_of, package

SCRIPT = '''
FACTOR = 1

def make_trial(config, power=2):
    """What it does."""
    return lambda generator, size: FACTOR * torch.randn(size, generator=generator) ** power

class Made:
    def __init__(self, power):
        self.power = power

    def __call__(self, config):
        return make_trial(config, self.power)

    def method(self, config):
        return self(config)
'''


def script(folder, text=SCRIPT):
    path = folder / "toy.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("experiment_toy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("new", ["FACTOR = 100", "FACTOR = 1  # a comment"])
def test_every_word_of_the_script_counts(tmp_path, new):
    before = [code_of(made) for made in (script(tmp_path).make_trial, script(tmp_path).Made(1))]
    assert before == [code_of(made) for made in (script(tmp_path).make_trial, script(tmp_path).Made(1))]
    toy = script(tmp_path, SCRIPT.replace("FACTOR = 1", new))
    assert not {code_of(toy.make_trial), code_of(toy.Made(1))} & set(before)


def test_values_that_a_trial_is_bound_to_count(tmp_path):
    toy = script(tmp_path)

    def closure(value):
        return lambda config: toy.make_trial(config, value)

    values = [1, 1.0, "1", None, torch.ones(1), torch.zeros(1), [1], (1,), {1: 2}, {2: 1}, Path("a")]
    power = lambda value: partial(toy.make_trial, power=value)  # noqa: E731
    for wrap in (
        closure,
        power,
        toy.Made,
        lambda value: toy.Made(value).method,
        lambda value: partial(closure(value)),
    ):
        made = {code_of(wrap(value)) for value in values}
        assert len(made) == len(values)
        assert made == {code_of(wrap(value)) for value in values}
    wrapped = closure(3)
    wrapped.__wrapped__ = toy.make_trial
    assert code_of(wrapped) == code_of(toy.make_trial)


def test_functions_of_no_file_are_told_apart():
    made = [eval(f"lambda config: lambda generator, size: {power}") for power in (1, 2, 1)]
    assert code_of(made[0]) == code_of(made[2]) != code_of(made[1])


def test_it_is_the_same_in_another_process(tmp_path):
    here = code_of(partial(script(tmp_path).make_trial, power=3))
    root = str(Path(torchdp.__file__).parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([root, str(tmp_path)])}
    asked = (
        "import functools, toy; from torchdp.simulate.code import code_of; "
        "print(code_of(functools.partial(toy.make_trial, power=3)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.stdout.strip() == here, done.stderr


def test_it_names_the_packages_and_their_versions(monkeypatch):
    said = code_of(test_it_names_the_packages_and_their_versions)
    assert f"torch {torch.__version__}" in said and package() in said and torchdp.__version__ in package()
    monkeypatch.setattr("torchdp.simulate.code.torch.__version__", "9.9")
    assert "torch 9.9" in code_of(test_it_names_the_packages_and_their_versions) != said
