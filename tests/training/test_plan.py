"""Plans: sampled steps against an attack on all of them, deviations of the noise, curved losses,
files, and runs.
"""

import itertools
import math
import pickle
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from trained import squares

from torchdp.description import described
from torchdp.factorization import BandedStrategy, BufferedStrategy, StreamStrategy
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.streams.buffered import RecalledStrategy
from torchdp.factorization.streams.strategy import Tabulated
from torchdp.noise import SeededNoise
from torchdp.training import (
    CyclicPoisson,
    Descent,
    Epochs,
    Iterates,
    Plan,
    SampledBatches,
    Separated,
    choose,
    clip_and_sum,
    sensitivity,
    standard_errors,
)

X = torch.linspace(-1, 1, 60)[:, None]


def losses(C, chances, sigma, groups, user, count=100_000):
    """Likelihood ratios of the outputs C G + Z of a user of group 0, worth 1 in each of the steps
    that take them.
    """
    rng = np.random.default_rng(7)
    n = len(C)
    steps = np.arange(0, n, groups)
    y = sigma * rng.standard_normal((count, n))
    if user:
        y += (rng.random((count, len(steps))) < chances) @ C[:, steps].T
    total = np.zeros(count)
    for taken in itertools.product((0, 1), repeat=len(steps)):
        mean = C[:, steps] @ np.array(taken)
        weight = math.prod(chances if t else 1 - chances for t in taken)
        total += weight * np.exp((y @ mean - mean @ mean / 2) / sigma**2)
    return np.log(total)


def lost(epsilon, loss):
    part = -np.expm1(np.minimum(epsilon - loss, 0))
    return part.mean(), part.std() / len(part) ** 0.5


BANDED = np.linalg.cholesky(
    0.6 * np.eye(6) + 0.3 * (np.eye(6, k=1) + np.eye(6, k=-1)) + 0.1 * np.eye(6)
)
BANDED = BANDED[::-1, ::-1].T / np.linalg.norm(BANDED[::-1, ::-1].T, axis=0)


def test_guarantee_an_attack_on_all_steps_attains_it_and_no_more():
    assert not np.triu(BANDED, 1).any()
    assert not np.tril(BANDED, -2).any()
    sampling = CyclicPoisson(2, 0.3)
    sigma = 0.9
    delta = 0.01
    found = sampling.guarantee(torch.from_numpy(BANDED.copy()), sigma, 1.0, delta)
    with_user = losses(BANDED, 0.3, sigma, 2, True)
    removed = lost(found.epsilon, with_user)
    added = lost(found.epsilon, -losses(BANDED, 0.3, sigma, 2, False))
    worst = max(removed, added)
    assert worst[0] <= delta + 4 * worst[1]
    assert worst[0] >= 0.97 * delta - 4 * worst[1]
    # another's clipping
    half = CyclicPoisson(2, 0.3).guarantee(torch.from_numpy(BANDED.copy()), sigma, 0.5, delta)
    assert lost(half.epsilon, with_user)[0] > 1.5 * delta


def test_sampled_batches_are_their_groups_independently_at_their_chance():
    batches = SampledBatches(CyclicPoisson(4, 0.25), 4000, 400, noise=SeededNoise(1))
    seen = torch.zeros(400, 4000)
    for step, batch in enumerate(batches):
        seen[step, batch] = 1
    groups = [set(seen[i::4].sum(0).nonzero()[:, 0].tolist()) for i in range(4)]
    assert sorted(map(len, groups)) == [1000] * 4
    assert len(set.union(*groups)) == 4000
    # (4, 100, 1000)
    members = torch.stack([seen[i::4][:, sorted(groups[i])] for i in range(4)])
    assert abs(float(members.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 400_000)
    # a step tells nothing of the next
    pairs = members[:, 1:] * members[:, :-1]
    assert abs(float(pairs.mean()) - 0.0625) < 6 * math.sqrt(0.0625 / 396_000)
    assert float(members.sum(2).var()) == pytest.approx(187.5, rel=0.35)
    with pytest.raises(RuntimeError, match="all 400"):
        iter(batches).__next__()
    assert sorted(next(iter(SampledBatches(CyclicPoisson(1, 1.0), 9, 2)))) == list(range(9))


@pytest.mark.parametrize("chance", [1e-9, 0.1, 1 / 3, 1 - 2**-53])
def test_guarantee_a_chance_is_rounded_down_and_by_no_more_than_a_word(monkeypatch, chance):
    """floor(2^63 chance) of the 2^63 words take part: the last that does, and the first that does
    not.
    """
    batches = SampledBatches(CyclicPoisson(1, chance), 2, 1)
    words = math.floor(Fraction(chance) * 2**63)
    monkeypatch.setattr(
        SeededNoise, "integers", lambda draws, shape: torch.tensor([words - 1, words])
    )
    assert next(iter(batches)) == [0]
    assert 0 <= chance - Fraction(words, 2**63) < Fraction(1, 2**63)


@pytest.mark.parametrize(
    ("epsilon", "p"), [(0.5, 2.0), pytest.param(8.0, math.inf, marks=pytest.mark.slow)]
)
def test_nothing_chosen_is_behind_independent_noise(epsilon, p):
    choice = choose(Iterates(24, momentum=0.5), 240, 20, epsilon=epsilon, delta=1e-5, p=p)
    named = {one.name: one for one in choice.candidates}
    assert set(named) == {
        "Poisson, independent noise", *(f"cyclic Poisson, {g} bands" for g in (2, 4, 8)), "fixed order",
    }  # fmt: skip
    assert choice.candidates[0].error <= named["Poisson, independent noise"].error
    for one in choice.candidates:
        plan = one.protocol
        W = Iterates(24, momentum=0.5).dense()
        assert 0.999 * epsilon < plan.guarantee.epsilon <= epsilon
        assert plan.guarantee.delta == 1e-5
        errors = plan.sigma * standard_errors(W, plan.strategy)
        torch.testing.assert_close(plan.standard_errors, errors)
        assert one.error == pytest.approx(
            float(errors.max() if p == math.inf else errors.square().mean().sqrt())
        )
        if isinstance(plan.sampling, CyclicPoisson):
            assert plan.sampling.chance * 240 == 20 * plan.sampling.groups
            again = plan.sampling.guarantee(plan.strategy, plan.sigma, plan.bound, 1e-5)
            assert again.epsilon == plan.guarantee.epsilon
        else:
            assert sensitivity(plan.strategy, Epochs(12)).exact


def test_guarantee_first_steps_spend_no_more_than_all():
    """Where entries of C cancel, the sums of sizes of seven steps are larger than those of
    eight.
    """
    choice = choose(Iterates(8), 60, 30, epsilon=8.0, delta=1e-6, p=math.inf)
    plan = next(one.protocol for one in choice.candidates if one.name == "fixed order")
    spent = [plan.spent(steps).epsilon for steps in range(9)]
    assert max(spent) <= plan.guarantee.epsilon
    assert spent[0] == 0
    assert not plan.spent(7).exact
    assert plan.guarantee.exact
    with pytest.raises(ValueError, match="steps"):
        plan.spent(9)


@pytest.mark.parametrize("rule", [None, Separated(4, 2)])
def test_guarantee_a_noise_multiplier_is_dp_sgd_s_and_no_other_plan_spends_more(rule):
    ask = {"users": 60, "batch": 15, "delta": 1e-3, "bound": 0.5, "participation": rule}
    choice = choose(Descent(8, 0.9), noise_multiplier=1.3, **ask)
    named = {one.name.removeprefix("Poisson, "): one.protocol for one in choice.candidates}
    plan = named["independent noise"]
    assert plan.sigma == 0.65
    assert plan.strategy.bands == 1
    assert plan.computed(8).epsilon == plan.guarantee.epsilon
    for other in named.values():
        assert 0.999 * plan.guarantee.epsilon < other.computed(8).epsilon
        assert other.guarantee.epsilon <= plan.guarantee.epsilon * (1 + 1e-12)
    for wrong in ({}, {"epsilon": 1.0, "noise_multiplier": 1.0}):
        with pytest.raises(TypeError, match="one of epsilon= and noise_multiplier="):
            choose(Descent(8), **wrong, **ask)
    with pytest.raises(ValueError, match="noise_multiplier"):
        choose(Descent(8), noise_multiplier=0.0, **ask)


def test_memory_is_passed_on_to_clipping(plans, monkeypatch):
    seen = []
    clipping = sys.modules[clip_and_sum.__module__]
    pieces = clipping._pieces
    monkeypatch.setattr(clipping, "_pieces", lambda *given: seen.append(given[3]) or pieces(*given))
    grads = []
    for options in ({}, {"memory": 1}):
        torch.manual_seed(0)
        run = plans["Poisson"].start(nn.Linear(1, 1), squares, noise=SeededNoise(1), **options)
        users = next(iter(run))
        run.backward(X[users], X[users])
        grads.append(torch.cat([p.grad.flatten() for p in run.module.parameters()]))
    torch.testing.assert_close(*grads)
    assert seen == [clipping.MEMORY, 1]
    with pytest.raises(ValueError, match="memory must be"):
        plans["Poisson"].start(nn.Linear(1, 1), squares, memory=0)


def test_each_process_of_a_group_has_a_ledger_of_its_own(plans, monkeypatch, tmp_path):
    """A larger group goes on as well: a process that had no ledger makes one."""
    plan = plans["Poisson"]
    run = plan.start(nn.Linear(1, 1), squares, ledger=tmp_path / "steps")
    secret = run.secret_state()
    monkeypatch.setattr(sys.modules[type(run).__module__].replicas, "place", lambda: (1, 2))
    plan.resume(nn.Linear(1, 1), squares, secret, ledger=tmp_path / "steps")
    plan.resume(nn.Linear(1, 1), squares, secret, ledger=tmp_path / "steps")
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept.keys() == {"steps", "steps.1"}
    assert kept["steps"] == kept["steps.1"]
    with pytest.raises(FileExistsError):
        plan.start(nn.Linear(1, 1), squares, ledger=tmp_path / "steps")


def test_known_errors_of_120_steps():
    """50 of 1,500 users a step, epsilon = 2: correlation and sampling together beat either."""
    choice = choose(Iterates(120), 1500, 50, epsilon=2.0, delta=1e-5)
    errors = {one.name: one.error for one in choice.candidates}
    assert choice.candidates[0].name == "cyclic Poisson, 4 bands"
    assert errors["cyclic Poisson, 4 bands"] == pytest.approx(7.707, rel=1e-3)
    assert errors["Poisson, independent noise"] == pytest.approx(8.675, rel=1e-3)
    assert errors["fixed order"] == pytest.approx(9.510, rel=1e-3)


def test_a_banded_strategy_has_a_positive_diagonal():
    """Momentum .9 over 96 steps: the search ends at rows of the other sign.

    These have the same distribution.
    """
    W = Iterates(96, 0.9).dense()
    C = banded_strategy(W / W.abs().max(), 96, 1, 2.0, 100, 8)
    assert (C.diagonal() > 0).all()
    assert BandedStrategy.of(C.tril()).bands == 8


def test_long_runs_have_strategies_of_one_row(monkeypatch):
    monkeypatch.setattr(sys.modules[choose.__module__], "EVALUATIONS", 6)
    choice = choose(Iterates(600), 6000, 600, epsilon=4.0, delta=1e-5)
    for one in choice.candidates:
        # whose columns are scaled
        assert one.protocol.strategy.recurrence.even == (one.name != "fixed order")
    errors = {c.name: c.error for c in choice.candidates}
    independent = errors["Poisson, independent noise"]
    assert min(errors.values()) < independent
    # a gain of less than one per cent changes no mechanism
    if min(errors.values()) * 1.01 > independent:
        assert choice.candidates[0].name == "Poisson, independent noise"


@pytest.mark.parametrize("place", [0, -1])
def test_a_run_adds_the_plans_noise_to_what_is_clipped(place):
    model = nn.Linear(1, 1)
    x = X
    y = 2 * X
    choice = choose(Iterates(6), 60, 20, epsilon=1.0, delta=1e-4)
    plan = sorted(choice.candidates, key=lambda one: one.name)[place].protocol
    run, steps, changes = plan.start(model, squares, noise=SeededNoise(3)), 0, []
    assert str(plan).startswith("central differential privacy")
    assert len(run) == 6
    for users in run:
        total = clip_and_sum(model, squares, x[users], y[users], plan.bound)
        run.backward(x[users], y[users])
        private = torch.cat([p.grad.flatten() for p in model.parameters()])
        changes.append(private * plan.batch - total)
        steps += 1
    noise = torch.stack(changes).double()
    assert steps == run.step == 6
    assert run.guarantee is plan.guarantee
    assert run.noise.sigma == plan.sigma
    # C C^{-1} Z
    white = plan.strategy.dense() @ noise / plan.sigma
    # 12 numbers
    assert 0.3 < float(white.square().mean()) < 3
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(x, y)


def test_guarantee_a_user_s_steps_are_rounded_up():
    sampling = CyclicPoisson(2, 0.3)
    eye = torch.eye(5, dtype=torch.float64)
    # of who is in the first group
    assert [sampling.times(steps) for steps in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    found = sampling.guarantee(eye, 1.0, 1.0, 1e-3).epsilon
    assert found == pytest.approx(
        CyclicPoisson(1, 0.3).guarantee(eye[:3, :3], 1.0, 1.0, 1e-3).epsilon, rel=1e-9
    )


@pytest.mark.parametrize("place", [0, -1])
def test_a_run_says_what_noise_is_in_a_gradient_also_when_it_is_resumed(place):
    choice = choose(Iterates(8, 0.5), 60, 15, epsilon=1.0, delta=1e-4)
    plan = sorted(choice.candidates, key=lambda one: one.name)[place].protocol
    net = nn.Linear(1, 1)
    loss = nn.functional.mse_loss
    run = plan.start(net, loss, noise=SeededNoise(1))
    secret = run.secret_state()
    assert run.deviation == 0
    inverse = torch.linalg.inv(plan.strategy.dense())
    deviations = plan.sigma / plan.batch * inverse.norm(dim=1)
    torch.testing.assert_close(plan.deviations(), deviations)
    for step, expected in enumerate(deviations.tolist()):
        if step == 3:
            run = plan.resume(net, loss, secret, step=step)
        users = next(iter(run))
        run.backward(X[users], 2 * X[users])
        assert run.deviation == pytest.approx(expected)


def test_curved_losses_are_weighed_as_they_are_written_down():
    """Descent on c x^2 / 2 at rate 1, by a loop over steps; what noise adds to it, for every c
    alike.
    """
    choice = choose(Descent(6), 60, 10, epsilon=4.0, delta=1e-5)
    for one in choice.candidates:
        C = one.protocol.strategy
        noise = torch.linalg.inv(C.dense())
        total = torch.zeros(6, dtype=torch.float64)
        for c in (1.0, 0.5, 0.25):
            x = torch.zeros(6, dtype=torch.float64)
            for t in range(6):
                x = (1 - c) * x + noise[t]
                total[t] += c * x.square().sum()
        torch.testing.assert_close(standard_errors(Descent(6), C), total.sqrt())
        assert one.error == pytest.approx(float((one.protocol.sigma**2 * total).mean().sqrt()))
    assert choice.best is choice.candidates[0].protocol


@pytest.mark.parametrize("epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_single_steps_are_noisiest_under_plans_that_a_flat_loss_prefers(epsilon):
    """Where a step's own noise counts, DP-SGD is first: what Adam is given, whose error a flat loss
    does not see.
    """
    ask = {"users": 1500, "batch": 100, "epsilon": epsilon, "delta": 1e-5}
    flat = choose(Iterates(20, 0.9), **ask)
    curved = choose(Descent(20), **ask)
    assert curved.candidates[0].name == "Poisson, independent noise" != flat.candidates[0].name
    own = [float(one.best.deviations().square().mean().sqrt()) for one in (flat, curved)]
    assert own[0] > 1.5 * own[1]


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
        plan = replace(of_rows, strategy=C, sampling=sampling)
        found[name] = replace(plan, guarantee=plan.computed(8))
    return found


KINDS = ["Poisson", "cyclic Poisson", "fixed order", "buffers", "recalled", "tables"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_comes_back_from_its_file(plans, kind, tmp_path):
    plan = plans[kind]
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == plan.digest()
    assert loaded.guarantee == plan.guarantee
    assert str(loaded) == str(plan)
    assert type(loaded.strategy) is type(plan.strategy)
    assert loaded.sampling == plan.sampling
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
    # by torch.load's default
    secret = torch.load(tmp_path / "secret")
    assert loaded.resume(nn.Linear(1, 1), nn.functional.mse_loss, secret, step=0).step == 0


def test_files_hold_format_and_version_and_an_old_one_is_refused_with_both(plans, tmp_path):
    """The old file was written before files held either."""
    old = Path(__file__).parent / "files" / "plan_without_version.pt"
    with pytest.raises(
        ValueError,
        match=r"format is 'no format', version 'no version'.*reads 'torchdp plan', version 1",
    ):
        Plan.load(old)
    plans["Poisson"].save(tmp_path / "plan")
    content = torch.load(tmp_path / "plan")
    assert (content["format"], content["version"]) == ("torchdp plan", 1)
    torch.save(content | {"version": 2}, tmp_path / "plan")
    with pytest.raises(ValueError, match=r"version 2, and this release reads"):
        Plan.load(tmp_path / "plan")


def test_a_file_of_version_1_is_read_as_it_was_written():
    """Written when version 1 was new, and kept: runs in the midst of training depend on it."""
    plan = Plan.load(Path(__file__).parent / "files" / "plan_version_1.pt")
    assert 1.9999 < plan.guarantee.epsilon <= 2.0
    assert (plan.users, plan.batch, plan.strategy.steps) == (60, 20, 6)
    assert plan.sampling == CyclicPoisson(groups=2, chance=2 / 3)
    assert "standard deviation 2.59209 over a strategy of 2 bands" in str(plan)


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
        less = replace(
            plan, guarantee=replace(plan.guarantee, epsilon=0.9 * plan.guarantee.epsilon)
        )
        for wrong in (less, replace(plan, sigma=0.9 * plan.sigma), replace(plan, bound=1.1)):
            wrong.save(path)
            with pytest.raises(ValueError, match=r"promises .*, its noise "):
                Plan.load(path)
    plan.save(path)
    fields = torch.load(path)
    C = fields["strategy"]
    promised = fields["guarantee"]
    none = torch.full((8,), math.nan)
    for change in (
        {"sigma": -1.0}, {"sigma": math.nan}, {"users": 0}, {"batch": 61}, {"more": 1},
        {"sampling": {"made": "torchdp.training:Plan", "of": {}}},
        {"strategy": {"made": "os:system", "of": {}}}, {"strategy": {"made": "torchdp.__main__:main", "of": {}}},
        {"guarantee": promised | {"of": promised["of"] | {"epsilon": math.nan}}},
        {"strategy": C | {"of": C["of"] | {"coefficients": described(none.expand(2, 8).mT)}}},
        {"standard_errors": described(none)},
    ):  # fmt: skip
        torch.save(fields | change, path)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    for content in ([1], {"sigma": Planted()}, {name: fields[name] for name in [*fields][1:]}):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    for content in (pickle.dumps(Planted(), 2), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    assert not Planted.ran
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none")
    with pytest.raises(TypeError, match="can not hold a Own"):
        replace(plan, strategy=Own()).save(path)
