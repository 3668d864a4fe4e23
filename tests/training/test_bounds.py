"""Clipping bounds of groups, and bounds that follow a quantile: rows keep the plan's bound, also
after a kill.
"""

import functools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn
from trained import brute, gradient

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import AdaptiveBound, Iterates, Plan, Separated, choose, clip_and_sum
from torchdp.training.sums import group_bounds

STEPS = 8
USERS = 60
SIZE = 3
LIMIT = 0.7
SHARE = 0.3
NORMS = torch.logspace(-3, 3, USERS, dtype=torch.float64)
DIRECTIONS = nn.functional.normalize(
    torch.randn(USERS, SIZE, generator=keyed_generator(b"rows")).double(), dim=1
)
X = DIRECTIONS * NORMS[:, None]
ALL = list(range(USERS))


@pytest.fixture(scope="module")
def plans():
    """Batches of one's own, of anybody, and a fixed order."""
    asked = {"users": USERS, "batch": 15, "epsilon": 20.0, "delta": 1e-4, "bound": LIMIT}
    own = choose(Iterates(STEPS), participation=Separated(1, STEPS), **asked).best
    chosen = choose(Iterates(STEPS), **asked)
    ordered = next(one.protocol for one in chosen.candidates if one.name == "fixed order")
    return {
        name: plan.adapted(AdaptiveBound(share=SHARE))
        for name, plan in (("own", own), ("fixed order", ordered))
    }


class Parts(nn.Module):
    """Whose gradients are the parts of a user's x, whatever the weights are."""

    def __init__(self, *sizes):
        super().__init__()
        self.sizes = sizes
        for name, size in zip(("body", "head"), sizes, strict=False):
            self.add_module(name, nn.Linear(size, 1, bias=False).double())

    def forward(self, x):
        return sum(
            layer(part) for layer, part in zip(self.children(), x.split(self.sizes, 1), strict=True)
        )


def model():
    return Parts(SIZE)


def linear(output, target):
    return (output - target).mean(1)


def at_bound(plan, bound, sizes=(SIZE,), **options):
    """A run whose next clipping bound is this one, and the rows' sums that it gives to the noise,
    which is none.
    """
    net = Parts(*sizes)
    secret = plan.start(net, linear, **options).secret_state()
    secret |= {"bound": bound} if plan.adaptive else {}
    run, seen = plan.resume(net, linear, secret, step=0, **options), []
    spend = run.noise.forward
    run.noise.forward = lambda total: (spend(total), seen.append(total), total)[-1]
    return run, seen


def by_backward(run, rows):
    run.backward(rows, rows[:, :1])


def in_parts(run, rows):
    """One row, then several at a time."""
    first, *rest = rows.split([1, *[10] * ((len(rows) - 1) // 10), (len(rows) - 1) % 10])
    run.backward(first, first[:, :1], more=True)
    for i, part in enumerate(rest, 1):
        run.backward(part, part[:, :1], more=i < len(rest))


def by_release(run, rows):
    run.release([part[:, None] for part in rows.split(run.module.sizes, 1)])


WAYS = pytest.mark.parametrize("way", [by_backward, in_parts, by_release])


def row_sum(plan, bound, x, users, way, *sizes, **options):
    run, seen = at_bound(plan, bound, sizes or (SIZE,), **options)
    run.admit(users)
    way(run, x[users])
    return seen[0], run


@WAYS
@pytest.mark.parametrize("bound", [1e-5, 0.7, 1e5])
def test_guarantee_a_user_moves_gradient_and_count_together_by_the_plans_bound(plans, bound, way):
    """Whatever the clipping bound is: the count's share is taken from the gradient's."""
    x = X
    plan = plans["own"]
    whole = row_sum(plan, bound, x, ALL, way)[0]
    for one in range(0, USERS, 12):
        other = row_sum(plan, bound, x, [u for u in ALL if u != one], way)[0]
        moved = float((whole - other).norm()) / plan.bound
        assert SHARE - 1e-9 <= moved <= 1 + 1e-11
        assert moved > 1 - 1e-6 or bound > NORMS[one]


@WAYS
@pytest.mark.parametrize("bound", [0.03, 0.7, 40.0])
def test_rows_are_clipped_gradients_and_signs_and_come_back_as_gradients(plans, bound, way):
    plan = plans["own"]
    total, run = row_sum(plan, bound, X, ALL, way)
    clipped = (DIRECTIONS * NORMS.clamp_max(bound)[:, None]).sum(0)
    signs = torch.where(NORMS <= bound, 1.0, -1.0).sum()
    expected = torch.cat([math.sqrt(1 - SHARE**2) / bound * clipped, (SHARE * signs)[None]])
    torch.testing.assert_close(total, LIMIT * expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(run) * plan.batch, clipped, rtol=1e-5, atol=1e-5 * bound)
    unit = bound / LIMIT / math.sqrt(1 - SHARE**2)
    assert run.deviation == pytest.approx(unit * float(plan.deviations()[0]))
    within = min(1.0, float((NORMS <= bound).sum() / plan.batch - USERS / plan.batch / 2 + 0.5))
    assert run.bound == pytest.approx(bound * math.exp(-0.2 * (max(0.0, within) - 0.5)))


def test_guarantee_rows_are_scaled_by_what_they_were_clipped_to(plans, monkeypatch):
    """Where another thread's step moves the bound meanwhile."""
    import torchdp.training.run as module

    run, seen = at_bound(plans["own"], 1e-3)
    clipped = module.clipped_rows

    def moving(gradients, bound):
        run._bound = 1e-4
        return clipped(gradients, bound)

    monkeypatch.setattr(module, "clipped_rows", moving)
    run.admit([USERS - 1])
    run.release([X[-1:, None]])
    assert seen[0].norm() <= LIMIT * (1 + 1e-11)


def test_after_a_kill_within_a_step_the_bound_is_that_step_s_own(plans, tmp_path):
    plan = plans["fixed order"]
    path = tmp_path / "ledger"
    run = plan.start(model(), linear, ledger=path)
    secret = run.secret_state()
    for users in run:
        if run.step == 3:
            break
        run.backward(X[users], X[users, :1])
    bound = run.bound

    def killed(total):
        raise KeyboardInterrupt

    run.noise.forward = killed
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], X[users, :1])
    assert run.bound == bound
    again = plan.resume(model(), linear, secret, ledger=path)
    assert (again.step, again.bound) == (4, bound)
    assert bound != LIMIT
    text = path.read_text()
    noted = [float(line.split()[1]) for line in text.splitlines() if line.count(" ") == 2]
    # cut short anywhere: an older bound, never a wrong one
    for cut in range(len(text) - 1, text.index("\n"), -1):
        path.write_text(text[:cut])
        assert plan.resume(model(), linear, secret, ledger=path).bound in (LIMIT, *noted)


def test_guarantee_only_an_adaptive_plan_takes_its_bound_from_a_state(plans, tmp_path):
    adaptive = plans["own"]
    plain = replace(adaptive, adaptive=None)
    secret = plain.start(model(), linear).secret_state()
    assert plain.resume(model(), linear, secret, step={"step": 0, "bound": 9.0}).bound == LIMIT
    with pytest.raises(ValueError, match="secret must be"):
        adaptive.resume(model(), linear, secret, step=0)
    with pytest.raises(ValueError, match="another plan"):
        replace(adaptive, adaptive=AdaptiveBound()).resume(
            model(), linear, adaptive.start(model(), linear).secret_state(), step=0
        )
    adaptive.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == adaptive.digest() != plain.digest()
    assert loaded.adaptive == adaptive.adaptive
    assert "clipped to 0.7 at first" in str(loaded)
    assert loaded.guarantee == plain.guarantee


@functools.cache
def _hundred_steps():
    return choose(Iterates(100), 2000, 500, epsilon=8.0, delta=1e-5).best


@pytest.mark.parametrize(
    ("quantile", "start"), [(0.25, 0.05), (0.75, 0.05), (0.25, 20.0), (0.5, 20.0)]
)
def test_the_bound_finds_the_quantile_of_norms(quantile, start):
    """From 20 times below or above the median of lognormal norms, within a tenth of its rank."""
    users = 2000
    norms = torch.randn(users, 1, 1, generator=keyed_generator(b"norms")).double().exp()
    plan = replace(_hundred_steps(), bound=start, sigma=start * _hundred_steps().sigma)
    net = nn.Linear(1, 1, bias=False).double()
    run = plan.adapted(AdaptiveBound(quantile)).start(net, linear, noise=SeededNoise(4))
    seen = []
    for batch in run:
        run.release([norms[batch]])
        seen.append(run.bound)
    rank = (norms <= torch.tensor(seen[-20:]).mean()).double().mean()
    assert abs(float(rank) - quantile) < 0.1


SIZES = (3, 2)
GROUP_USERS = 12
RAW = torch.randn(GROUP_USERS, sum(SIZES), generator=keyed_generator(b"groups")).double()
SCALES = torch.logspace(-3, 3, GROUP_USERS, dtype=torch.float64)[:, None]
# one part is short where the other is long; the last user's not
OTHERS = torch.cat([SCALES[:-1].flip(0), SCALES[-1:]])
GROUPED = torch.cat([RAW[:, :3] * SCALES, RAW[:, 3:] * OTHERS], 1)
EVERYBODY = list(range(GROUP_USERS))
# of which the squares add up to 1
SHARES = {"body": 0.8, "head": 0.6}


@pytest.fixture(scope="module")
def grouped():
    asked = {"users": GROUP_USERS, "batch": 3, "epsilon": 20.0, "delta": 1e-4, "bound": LIMIT}
    plan = choose(Iterates(4), participation=Separated(1, 4), **asked).best
    return {"fixed bound": plan, "adaptive bound": plan.adapted(AdaptiveBound(share=SHARE))}


def grouped_sum(plan, users, way, groups, at=1.0):
    """at: the clipping bound, in the plan's."""
    return row_sum(plan, at * LIMIT, GROUPED, users, way, *SIZES, groups=groups)[0]


@WAYS
@pytest.mark.parametrize(
    "kind, at", [("fixed bound", 1.0), ("adaptive bound", 1e-3), ("adaptive bound", 30.0)]
)
@pytest.mark.parametrize("groups", [{"body": 4, "head": 3}, {"": 0.4, "head.weight": 0.3}])
def test_guarantee_a_user_moves_all_groups_together_by_the_plan_s_bound(
    grouped, kind, at, groups, way
):
    whole = grouped_sum(grouped[kind], EVERYBODY, way, groups, at)
    others = [
        grouped_sum(grouped[kind], [u for u in EVERYBODY if u != one], way, groups, at)
        for one in (5, GROUP_USERS - 1)
    ]
    found = torch.stack([whole - other for other in others])
    assert (found.norm(dim=1) <= LIMIT * (1 + 1e-11)).all()
    parts = [part.norm(dim=1).max() / LIMIT for part in found[:, : sum(SIZES)].split(SIZES, 1)]
    less = math.sqrt(1 - 0.3**2) if grouped[kind].adaptive else 1.0
    for part, share in zip(parts, SHARES.values(), strict=True):
        assert float(part) == pytest.approx(less * share, rel=1e-6)


@WAYS
def test_parts_are_clipped_one_by_one_and_an_example_is_within_where_all_are(grouped, way):
    for plan, at in ((grouped["fixed bound"], 1.0), (grouped["adaptive bound"], 10.0)):
        found = grouped_sum(plan, EVERYBODY, way, SHARES, at)
        clipped = []
        within = []
        for part, share in zip(GROUPED.split(SIZES, 1), SHARES.values(), strict=True):
            shortened = share * at * LIMIT / part.norm(dim=1)
            clipped.append((part * shortened.clamp_max(1)[:, None]).sum(0))
            within.append(shortened >= 1)
        expected = torch.cat(clipped)
        if plan.adaptive:
            inside = within[0] & within[1]
            assert 0 < inside.sum() < min(each.sum() for each in within)
            signs = LIMIT * 0.3 * (2 * inside.double() - 1).sum()
            expected = torch.cat([expected * math.sqrt(1 - 0.3**2) / at, signs[None]])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_in_one_group_counts_in_the_other(grouped, monkeypatch):
    rows = GROUPED.clone()
    rows[0, 0] = math.nan
    monkeypatch.setitem(globals(), "GROUPED", rows)
    found = grouped_sum(grouped["fixed bound"], [0], by_release, SHARES)
    expected = 0.6 * LIMIT * nn.functional.normalize(rows[0, 3:], dim=0)
    torch.testing.assert_close(found, torch.cat([0 * rows[1, :3], expected]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("routes", [["factors"], ["vmap"], ["loop"]])
@pytest.mark.parametrize("at_once", [4, 256])
def test_every_route_clips_the_groups_of_single_examples(routes, at_once):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(9, 6),
        nn.LayerNorm(6),
        nn.Flatten(),
        nn.Linear(30, 300),
        nn.Tanh(),
        nn.Linear(300, 4),
    )
    net[3].bias.requires_grad_(False)
    x = torch.randint(9, (11, 5))
    y = torch.randint(4, (11,))
    groups, bound = {"": 1.0, "3": 0.5, "5": 2.0, "5.bias": 0.1}, 0.05
    found = clip_and_sum(
        net, nn.functional.cross_entropy, x, y, bound, groups=groups, routes=routes, at_once=at_once
    )
    parts = {
        "": ["0.weight", "1.weight", "1.bias"],
        "3": ["3.weight"],
        "5": ["5.weight"],
        "5.bias": ["5.bias"],
    }
    unit = bound / math.hypot(*groups.values())
    together = [(unit * groups[name], members) for name, members in parts.items()]
    expected = brute(net, nn.functional.cross_entropy, x, y, bound, together)
    torch.testing.assert_close(found.double(), expected, rtol=5e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_guarantee_the_bounds_squares_add_up_to_the_bound_s_at_most(seed):
    """In exact arithmetic; and to more for some of these weights where nothing is taken off for
    rounding.
    """
    g = keyed_generator(f"weights {seed}".encode())
    weights = (8 * torch.rand(5, generator=g, dtype=torch.float64) - 4).exp()
    bound = float(10 ** (4 * torch.rand((), generator=g, dtype=torch.float64) - 2))
    names = [f"layer.{i}" for i in range(5)]
    found = group_bounds(bound, names, dict(zip(names, weights.tolist(), strict=True)))
    total = sum(Fraction(each) ** 2 for each, _ in found) / Fraction(bound) ** 2
    assert 1 - Fraction(1, 2**47) < total <= 1
