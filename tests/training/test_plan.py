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
import trained
from trained import X, gradient, model, named, rebuilt, squares, started, use

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

INDEPENDENT = "Poisson, independent noise"
CHANCE = 0.3
SIGMA = 0.9


def banded():
    """C of two bands and columns of norm 1: of the factor of a positive definite matrix."""
    gram = 0.6 * np.eye(6) + 0.3 * (np.eye(6, k=1) + np.eye(6, k=-1)) + 0.1 * np.eye(6)
    C = np.linalg.cholesky(gram)[::-1, ::-1].T
    return C / np.linalg.norm(C, axis=0)


def losses(C, user, count=100_000):
    """Log likelihood ratios of the outputs C G + Z.

    A user of the first of two groups, worth 1 in each of the steps that take them, is there or not.
    """
    rng = np.random.default_rng(7)
    own = C[:, ::2]
    y = SIGMA * rng.standard_normal((count, len(C)))
    if user:
        y += (rng.random((count, own.shape[1])) < CHANCE) @ own.T
    total = np.zeros(count)
    for taken in itertools.product((0, 1), repeat=own.shape[1]):
        mean = own @ np.array(taken)
        weight = math.prod(CHANCE if t else 1 - CHANCE for t in taken)
        total += weight * np.exp((y @ mean - mean @ mean / 2) / SIGMA**2)
    return np.log(total)


def lost(epsilon, loss):
    """delta at this epsilon, and the standard error of its estimate."""
    part = -np.expm1(np.minimum(epsilon - loss, 0))
    return part.mean(), part.std() / len(part) ** 0.5


def test_guarantee_an_attack_on_all_steps_attains_it_and_no_more():
    C = banded()
    assert not np.triu(C, 1).any()
    assert not np.tril(C, -2).any()
    delta = 0.01
    sampling = CyclicPoisson(2, CHANCE)
    strategy = torch.from_numpy(C)
    found = sampling.guarantee(strategy, SIGMA, 1.0, delta)
    with_user = losses(C, True)
    removed = lost(found.epsilon, with_user)
    added = lost(found.epsilon, -losses(C, False))
    # Who is added and who is removed are told by other likelihoods.
    worst, error = max(removed, added)
    assert worst <= delta + 4 * error
    assert worst >= 0.97 * delta - 4 * error
    # The control: another's clipping promises too much.
    half = sampling.guarantee(strategy, SIGMA, 0.5, delta)
    assert lost(half.epsilon, with_user)[0] > 1.5 * delta


def test_sampled_batches_are_their_groups_independently_at_their_chance():
    batches = SampledBatches(CyclicPoisson(4, 0.25), 4000, 400, noise=SeededNoise(1))
    seen = torch.zeros(400, 4000)
    for step, batch in enumerate(batches):
        seen[step, batch] = 1
    groups = [seen[i::4].any(0).nonzero()[:, 0] for i in range(4)]
    assert [len(group) for group in groups] == [1000] * 4
    assert len(torch.cat(groups).unique()) == 4000
    # (4, 100, 1000)
    members = torch.stack([seen[i::4][:, group] for i, group in enumerate(groups)])
    assert abs(float(members.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 400_000)
    # A step tells nothing of the next one of the same group.
    pairs = members[:, 1:] * members[:, :-1]
    assert abs(float(pairs.mean()) - 0.0625) < 6 * math.sqrt(0.0625 / 396_000)
    # The variance of a binomial distribution.
    assert float(members.sum(2).var()) == pytest.approx(187.5, rel=0.35)
    with pytest.raises(RuntimeError, match="all 400"):
        next(iter(batches))
    everybody = next(iter(SampledBatches(CyclicPoisson(1, 1.0), 9, 2)))
    assert sorted(everybody) == list(range(9))


@pytest.mark.parametrize("chance", [1e-9, 0.1, 1 / 3, 1 - 2**-53])
def test_guarantee_a_chance_is_rounded_down_and_by_no_more_than_a_word(monkeypatch, chance):
    """floor(2^63 chance) of the 2^63 words take part: the last one that does, and the next."""
    words = math.floor(Fraction(chance) * 2**63)
    # Rounded up, the second user would take part.
    drawn = torch.tensor([words - 1, words])
    monkeypatch.setattr(SeededNoise, "integers", lambda draws, shape: drawn)
    assert next(iter(SampledBatches(CyclicPoisson(1, chance), 2, 1))) == [0]
    assert 0 <= chance - Fraction(words, 2**63) < Fraction(1, 2**63)


@pytest.mark.parametrize(
    ("epsilon", "p"), [(0.5, 2.0), pytest.param(8.0, math.inf, marks=pytest.mark.slow)]
)
def test_nothing_chosen_is_behind_independent_noise(epsilon, p):
    W = Iterates(24, momentum=0.5)
    choice = choose(W, 240, 20, epsilon=epsilon, delta=1e-5, p=p)
    errors = {one.name: one.error for one in choice.candidates}
    cyclic = {f"cyclic Poisson, {groups} bands" for groups in (2, 4, 8)}
    assert errors.keys() == {INDEPENDENT, "fixed order"} | cyclic
    assert choice.candidates[0].error <= errors[INDEPENDENT]
    for one in choice.candidates:
        plan = one.protocol
        assert 0.999 * epsilon < plan.guarantee.epsilon <= epsilon
        assert plan.guarantee.delta == 1e-5
        expected = plan.sigma * standard_errors(W.dense(), plan.strategy)
        torch.testing.assert_close(plan.standard_errors, expected)
        mean = expected.max() if p == math.inf else expected.square().mean().sqrt()
        assert one.error == pytest.approx(float(mean))
        sampling = plan.sampling
        if isinstance(sampling, CyclicPoisson):
            assert sampling.chance * 240 == 20 * sampling.groups
            again = sampling.guarantee(plan.strategy, plan.sigma, plan.bound, 1e-5)
            assert again.epsilon == plan.guarantee.epsilon
        else:
            assert sensitivity(plan.strategy, Epochs(12)).exact


def test_guarantee_first_steps_spend_no_more_than_all():
    """Where entries of C cancel, the sums of sizes of seven steps are larger than those of eight."""
    choice = choose(Iterates(8), 60, 30, epsilon=1.0, delta=1e-6, p=math.inf)
    plan = named(choice)["fixed order"]
    spent = [plan.spent(steps) for steps in range(9)]
    assert max(each.epsilon for each in spent) <= plan.guarantee.epsilon
    # Before anything is released nothing is spent.
    assert spent[0].epsilon == 0
    assert not spent[7].exact
    assert plan.guarantee.exact
    with pytest.raises(ValueError, match="steps"):
        plan.spent(9)


@pytest.mark.parametrize("rule", [None, Separated(4, 2)])
def test_guarantee_a_noise_multiplier_is_dp_sgd_s_and_no_other_plan_spends_more(rule):
    asked = {"users": 60, "batch": 15, "delta": 1e-3, "bound": 0.5, "participation": rule}
    plans = named(choose(Descent(8, 0.9), noise_multiplier=1.3, **asked))
    independent = plans["independent noise" if rule else INDEPENDENT]
    assert independent.sigma == 1.3 * 0.5
    assert independent.strategy.bands == 1
    epsilon = independent.guarantee.epsilon
    assert independent.computed(8).epsilon == epsilon
    for plan in plans.values():
        assert 0.999 * epsilon < plan.computed(8).epsilon
        assert plan.guarantee.epsilon <= epsilon * (1 + 1e-12)
    for wrong in ({}, {"epsilon": 1.0, "noise_multiplier": 1.0}):
        with pytest.raises(TypeError, match="one of epsilon= and noise_multiplier="):
            choose(Descent(8), **wrong, **asked)
    with pytest.raises(ValueError, match="noise_multiplier"):
        choose(Descent(8), noise_multiplier=0.0, **asked)


def test_memory_is_passed_on_to_clipping(plans, monkeypatch):
    seen = []
    clipping = sys.modules[clip_and_sum.__module__]
    pieces = clipping._pieces

    def recorded(*given):
        seen.append(given[3])
        return pieces(*given)

    monkeypatch.setattr(clipping, "_pieces", recorded)
    gradients = []
    for options in ({}, {"memory": 1}):
        run = started(plans["independent"], **options)
        use(run, next(iter(run)))
        gradients.append(gradient(run))
    torch.testing.assert_close(*gradients)
    # The sums agree whatever it is: only the call shows it.
    assert seen == [clipping.MEMORY, 1]
    with pytest.raises(ValueError, match="memory must be"):
        started(plans["independent"], memory=0)


def test_each_process_of_a_group_has_a_ledger_of_its_own(plans, monkeypatch, tmp_path):
    """A larger group goes on as well: a process that had no ledger makes one."""
    plan = plans["independent"]
    path = tmp_path / "steps"
    run = started(plan, ledger=path)
    secret = run.secret_state()
    monkeypatch.setattr(sys.modules[type(run).__module__].replicas, "place", lambda: (1, 2))
    for _ in range(2):
        plan.resume(model(), squares, secret, ledger=path)
    kept = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert kept.keys() == {"steps", "steps.1"}
    # Of one run: whichever is read, the step is known.
    assert kept["steps"] == kept["steps.1"]
    with pytest.raises(FileExistsError):
        started(plan, ledger=path)


def test_known_errors_of_120_steps():
    """50 of 1,500 users a step, epsilon = 2: correlation and sampling together beat either."""
    choice = choose(Iterates(120), 1500, 50, epsilon=2.0, delta=1e-5)
    errors = {one.name: one.error for one in choice.candidates}
    assert choice.candidates[0].name == "cyclic Poisson, 4 bands"
    assert errors["cyclic Poisson, 4 bands"] == pytest.approx(7.707, rel=1e-3)
    assert errors[INDEPENDENT] == pytest.approx(8.675, rel=1e-3)
    assert errors["fixed order"] == pytest.approx(9.510, rel=1e-3)


def test_a_banded_strategy_has_a_positive_diagonal():
    """Momentum .9 over 96 steps: the search ends at rows of the other sign, of one distribution."""
    W = Iterates(96, 0.9).dense()
    C = banded_strategy(W / W.abs().max(), 96, 1, 2.0, 100, 8)
    assert (C.diagonal() > 0).all()
    assert BandedStrategy.of(C.tril()).bands == 8


def test_long_runs_have_strategies_of_one_row(monkeypatch):
    module = sys.modules[choose.__module__]
    for name, most in {"DENSE": 100, "EVALUATIONS": 6}.items():
        monkeypatch.setattr(module, name, most)
    choice = choose(Iterates(120), 600, 120, epsilon=4.0, delta=1e-5)
    for one in choice.candidates:
        # The columns of a fixed order's are scaled.
        assert one.protocol.strategy.recurrence.even == (one.name != "fixed order")
    errors = {one.name: one.error for one in choice.candidates}
    least = min(errors.values())
    assert least < errors[INDEPENDENT]
    # A gain of less than one per cent changes no mechanism.
    if least * 1.01 > errors[INDEPENDENT]:
        assert choice.candidates[0].name == INDEPENDENT


@pytest.mark.parametrize("kind", ["independent", "ordered"])
def test_a_run_adds_the_plans_noise_to_what_is_clipped(plans, kind):
    plan = plans[kind]
    run = started(plan)
    assert str(plan).startswith("central differential privacy")
    assert len(run) == 8
    noise = []
    for users in run:
        total = clip_and_sum(run.module, squares, X[users], 2 * X[users], plan.bound)
        use(run, users)
        noise.append(gradient(run).double() * plan.batch - total)
    assert len(noise) == run.step == 8
    assert run.guarantee is plan.guarantee
    assert run.noise.sigma == plan.sigma
    # C C^{-1} Z: the mean of 16 squares of normals.
    white = plan.strategy.dense() @ torch.stack(noise) / plan.sigma
    assert 0.3 < float(white.square().mean()) < 3
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(X, X)


def test_guarantee_a_user_s_steps_are_rounded_up():
    sampling = CyclicPoisson(2, CHANCE)
    # Of who is in the first group.
    assert [sampling.times(steps) for steps in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    eye = torch.eye(5, dtype=torch.float64)
    found = sampling.guarantee(eye, 1.0, 1.0, 1e-3)
    three = CyclicPoisson(1, CHANCE).guarantee(eye[:3, :3], 1.0, 1.0, 1e-3)
    assert found.epsilon == pytest.approx(three.epsilon, rel=1e-9)


@pytest.mark.parametrize("kind", ["independent", "ordered"])
def test_a_run_says_what_noise_is_in_a_gradient_also_when_it_is_resumed(plans, kind):
    plan = plans[kind]
    run = started(plan)
    secret = run.secret_state()
    assert run.deviation == 0
    inverse = torch.linalg.inv(plan.strategy.dense())
    deviations = plan.sigma / plan.batch * inverse.norm(dim=1)
    torch.testing.assert_close(plan.deviations(), deviations)
    for step, expected in enumerate(deviations.tolist()):
        if step == 3:
            run = plan.resume(model(), squares, secret, step=step)
        use(run, next(iter(run)))
        assert run.deviation == pytest.approx(expected)


def test_curved_losses_are_weighed_as_they_are_written_down():
    """Descent on c x^2 / 2 at rate 1, by a loop over steps: what noise adds to it for every c."""
    choice = choose(Descent(6), 60, 10, epsilon=0.5, delta=1e-4)
    for one in choice.candidates:
        C = one.protocol.strategy
        noise = torch.linalg.inv(C.dense())
        added = torch.zeros(6, dtype=torch.float64)
        for c in (1.0, 0.5, 0.25):
            x = torch.zeros(6, dtype=torch.float64)
            for t in range(6):
                x = (1 - c) * x + noise[t]
                added[t] += c * x.square().sum()
        torch.testing.assert_close(standard_errors(Descent(6), C), added.sqrt())
        mean = (one.protocol.sigma**2 * added).mean()
        assert one.error == pytest.approx(float(mean.sqrt()))
    assert choice.best is choice.candidates[0].protocol


@pytest.mark.parametrize("epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_single_steps_are_noisiest_under_plans_that_a_flat_loss_prefers(epsilon):
    """Where a step's own noise counts, DP-SGD is first.

    That is what Adam is given, whose error a flat loss does not see.
    """
    asked = {"users": 1500, "batch": 100, "epsilon": epsilon, "delta": 1e-5}
    flat = choose(Iterates(20, 0.9), **asked)
    curved = choose(Descent(20), **asked)
    assert curved.candidates[0].name == INDEPENDENT
    assert flat.candidates[0].name != INDEPENDENT
    squared = [float(one.best.deviations().square().mean()) for one in (flat, curved)]
    assert squared[0] > 1.5**2 * squared[1]


@pytest.fixture(scope="module")
def stored_plans():
    falling = torch.linspace(2, 1, 8).double()
    buffers = BufferedStrategy(torch.tensor([0.9, 0.4]), torch.tensor([0.6, 0.1]), falling, falling)
    recalled = RecalledStrategy(buffers, 4, torch.full((1, 8), -0.2))
    ordered = trained.plans()["ordered"]
    return trained.plans() | {
        "buffers": rebuilt(ordered, strategy=buffers, sampling=Separated(4, 2)),
        "recalled": rebuilt(ordered, strategy=recalled),
        "tables": rebuilt(ordered, strategy=Tabulated(buffers.recurrence)),
    }


@pytest.mark.parametrize("kind", [*trained.NAMES, "buffers", "recalled", "tables"])
def test_a_plan_comes_back_from_its_file(stored_plans, kind, tmp_path):
    plan = stored_plans[kind]
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == plan.digest()
    assert loaded.guarantee == plan.guarantee
    assert str(loaded) == str(plan)
    assert type(loaded.strategy) is type(plan.strategy)
    assert loaded.sampling == plan.sampling
    assert torch.equal(loaded.standard_errors, plan.standard_errors)
    gradients = []
    for each in (plan, loaded):
        run = started(each)
        torch.save(run.secret_state(), tmp_path / "secret")
        use(run, next(iter(run)))
        gradients.append(gradient(run))
    assert torch.equal(*gradients)
    # By torch.load's default.
    secret = torch.load(tmp_path / "secret")
    assert loaded.resume(model(), squares, secret, step=0).step == 0


FILES = Path(__file__).parent / "files"


def test_files_hold_format_and_version_and_an_old_one_is_refused_with_both(plans, tmp_path):
    """The old file was written before files held either."""
    message = r"format is 'no format', version 'no version'.*reads 'torchdp plan', version 1"
    with pytest.raises(ValueError, match=message):
        Plan.load(FILES / "plan_without_version.pt")
    path = tmp_path / "plan"
    plans["independent"].save(path)
    content = torch.load(path)
    assert content["format"] == "torchdp plan"
    assert content["version"] == 1
    torch.save(content | {"version": 2}, path)
    with pytest.raises(ValueError, match=r"version 2, and this release reads"):
        Plan.load(path)


def test_a_file_of_version_1_is_read_as_it_was_written():
    """Written when version 1 was new, and kept: runs in the midst of training depend on it."""
    plan = Plan.load(FILES / "plan_version_1.pt")
    assert 1.9999 < plan.guarantee.epsilon <= 2.0
    assert (plan.users, plan.batch, plan.strategy.steps) == (60, 20, 6)
    assert plan.sampling == CyclicPoisson(groups=2, chance=2 / 3)
    assert "standard deviation 2.59209 over a strategy of 2 bands" in str(plan)


@pytest.mark.parametrize("kind", ["independent", "ordered"])
def test_guarantee_a_file_promises_what_its_noise_gives(plans, kind, tmp_path):
    plan = plans[kind]
    less = replace(plan.guarantee, epsilon=0.9 * plan.guarantee.epsilon)
    for change in ({"guarantee": less}, {"sigma": 0.9 * plan.sigma}, {"bound": 1.1}):
        replace(plan, **change).save(tmp_path / "plan")
        with pytest.raises(ValueError, match=r"promises .*, its noise "):
            Plan.load(tmp_path / "plan")


class Planted:
    ran = False

    def __reduce__(self):
        return (setattr, (Planted, "ran", True))


def changed(description, **values):
    """A description of an object of which some fields are others."""
    return description | {"of": description["of"] | values}


def test_guarantee_a_file_of_others_runs_nothing(plans, tmp_path):
    path = tmp_path / "plan"
    plans["ordered"].save(path)
    content = torch.load(path)
    none = torch.full((8,), math.nan)
    no_rows = described(none.expand(2, 8).mT)
    changes = [
        {"sigma": -1.0},
        {"sigma": math.nan},
        {"users": 0},
        {"batch": 61},
        {"more": 1},
        {"sampling": {"made": "torchdp.training:Plan", "of": {}}},
        {"strategy": {"made": "os:system", "of": {}}},
        {"strategy": {"made": "torchdp.__main__:main", "of": {}}},
        {"guarantee": changed(content["guarantee"], epsilon=math.nan)},
        {"strategy": changed(content["strategy"], coefficients=no_rows)},
        {"standard_errors": described(none)},
    ]
    wrong = [content | change for change in changes]
    wrong += [[1], {"sigma": Planted()}, {"sigma": content["sigma"]}]
    for each in wrong:
        torch.save(each, path)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    # By pickle alone a file could run anything.
    for octets in (pickle.dumps(Planted(), 2), b""):
        path.write_bytes(octets)
        with pytest.raises(ValueError, match=r"is not what Plan\.save writes"):
            Plan.load(path)
    assert not Planted.ran
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none")


class Own(StreamStrategy):
    steps = 8

    def tabulated(self):
        raise NotImplementedError


def test_a_strategy_of_ones_own_goes_into_no_file(plans, tmp_path):
    with pytest.raises(TypeError, match="can not hold a Own"):
        replace(plans["ordered"], strategy=Own()).save(tmp_path / "plan")
