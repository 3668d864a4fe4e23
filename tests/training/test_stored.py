"""Plans in files: equal to the last digit, and files of others that are no plans, or promise too much."""

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from torchdp.description import described
from torchdp.factorization import BufferedStrategy, StreamStrategy
from torchdp.factorization.streams.buffered import RecalledStrategy
from torchdp.factorization.streams.strategy import Tabulated
from torchdp.noise import SeededNoise
from torchdp.training import Epochs, Iterates, Plan, Separated, choose
from torchdp.training.noise import noise_guarantee

X = torch.linspace(-1, 1, 60)[:, None]


@pytest.fixture(scope="module")
def plans():
    choice = choose(Iterates(8), 60, 15, epsilon=1.0, delta=1e-3)
    found = {one.name.split(",")[0]: one.protocol for one in choice.candidates}
    falling = torch.linspace(2, 1, 8).double()
    buffers = BufferedStrategy(torch.tensor([0.9, 0.4]), torch.tensor([0.6, 0.1]), falling, falling)
    of_rows = found["fixed order"]
    for name, C in {
        "buffers": buffers,
        "recalled": RecalledStrategy(buffers, 4, torch.full((1, 8), -0.2)),
        "tables": Tabulated(buffers.recurrence),
    }.items():
        sampling = Separated(4, 2) if name == "buffers" else Epochs(4)
        promised = noise_guarantee(C, of_rows.sigma, 1.0, 1e-3, sampling)
        found[name] = replace(of_rows, strategy=C, sampling=sampling, guarantee=promised)
    return found


KINDS = ["Poisson", "cyclic Poisson", "fixed order", "buffers", "recalled", "tables"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_comes_back_from_its_file(plans, kind, tmp_path):
    plan = plans[kind]
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == plan.digest() and loaded.guarantee == plan.guarantee and str(loaded) == str(plan)
    assert type(loaded.strategy) is type(plan.strategy) and loaded.sampling == plan.sampling
    assert torch.equal(loaded.standard_errors, plan.standard_errors)
    grads = []
    for each in (plan, loaded):
        torch.manual_seed(0)
        run = each.start(nn.Linear(1, 1), nn.functional.mse_loss, noise=SeededNoise(1))
        torch.save(run.secret_state(), tmp_path / "secret")
        users = next(iter(run))
        run.backward(X[users], X[users])
        grads.append(torch.cat([p.grad.flatten() for p in run.module.parameters()]))
    assert torch.equal(*grads)
    secret = torch.load(tmp_path / "secret")  # by torch.load's default
    assert loaded.resume(nn.Linear(1, 1), nn.functional.mse_loss, secret, step=0).step == 0


def test_files_hold_format_and_version_and_an_old_one_is_refused_with_both(plans, tmp_path):
    """The old file was written before files held either."""
    old = Path(__file__).parent / "files" / "plan_without_version.pt"
    with pytest.raises(
        ValueError, match=r"format is 'no format', version 'no version'.*reads 'torchdp plan', version 1"
    ):
        Plan.load(old)
    plans["Poisson"].save(tmp_path / "plan")
    content = torch.load(tmp_path / "plan")
    assert (content["format"], content["version"]) == ("torchdp plan", 1)
    torch.save(content | {"version": 2}, tmp_path / "plan")
    with pytest.raises(ValueError, match=r"version 2, and this release reads"):
        Plan.load(tmp_path / "plan")


class Planted:
    ran = False

    def __reduce__(self):
        return (setattr, (Planted, "ran", True))


class Own(StreamStrategy):
    steps = 8

    def tabulated(self):
        raise NotImplementedError


def test_guarantee_a_file_of_others_runs_nothing_and_promises_what_its_noise_gives(plans, tmp_path):
    path = tmp_path / "plan"
    for kind in ("Poisson", "fixed order"):
        plan = plans[kind]
        less = replace(plan, guarantee=replace(plan.guarantee, epsilon=0.9 * plan.guarantee.epsilon))
        for wrong in (less, replace(plan, sigma=0.9 * plan.sigma), replace(plan, bound=1.1)):
            wrong.save(path)
            with pytest.raises(ValueError, match=r"promises .*, its noise "):
                Plan.load(path)
    plan.save(path)
    fields = torch.load(path)
    C, promised, none = fields["strategy"], fields["guarantee"], torch.full((8,), math.nan)
    for change in (
        {"sigma": -1.0}, {"sigma": math.nan}, {"users": 0}, {"batch": 61}, {"batch": "15"}, {"strategy": None},
        {"sampling": None}, {"sampling": {"made": "torchdp.training:Plan", "of": {}}}, {"more": 1},
        {"strategy": {"made": "os:system", "of": {}}}, {"strategy": {"made": "torchdp.__main__:main", "of": {}}},
        {"guarantee": 1.0}, {"guarantee": promised | {"of": promised["of"] | {"epsilon": math.nan}}},
        {"strategy": C | {"of": C["of"] | {"coefficients": described(none.expand(2, 8).mT)}}},
        {"standard_errors": described(none)}, {"bound": [1.0]},
    ):  # fmt: skip
        torch.save(fields | change, path)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    for content in (
        [1],
        {},
        {"sigma": Planted()},
        {name: value for name, value in fields.items() if name != "sigma"},
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    for content in (pickle.dumps(Planted(), 2), b"", b"plan"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    assert not Planted.ran
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none")
    with pytest.raises(TypeError, match="can not hold a Own"):
        replace(plan, strategy=Own()).save(path)
