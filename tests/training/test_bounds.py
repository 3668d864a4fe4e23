"""Clipping bounds of groups, and bounds that follow a quantile: rows keep the plan's bound, also
after a kill.
"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import trained
from laws import normal
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from trained import STEPS, brute, gradient, rebuilt

import torchdp.training.run as run_module
from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import AdaptiveBound, CyclicPoisson, Plan, Separated, clip_and_sum
from torchdp.training.clipping import ROUTES
from torchdp.training.participation import OwnBatches
from torchdp.training.sums import group_bounds

USERS = 60
LIMIT = 0.7
SHARE = 0.3
# Of a row, what is left for the gradient.
REST = math.sqrt(1 - SHARE**2)
NORMS = torch.logspace(-3, 3, USERS, dtype=torch.float64)
DIRECTIONS = normalize(normal(USERS, 3, name=b"rows"), dim=1)
X = DIRECTIONS * NORMS[:, None]


def own_batches():
    """The plan of a fixed order, for batches of anybody."""
    sampling = OwnBatches(Separated(1, STEPS))
    return rebuilt(trained.plans()["ordered"], bound=LIMIT, sampling=sampling)


def adaptive():
    return own_batches().adapted(AdaptiveBound(share=SHARE))


class Parts(nn.Module):
    """Whose gradients are the parts of a user's x, whatever the weights are."""

    def __init__(self, *sizes):
        super().__init__()
        self.sizes = sizes
        for name, size in zip(("body", "head"), sizes, strict=False):
            self.add_module(name, nn.Linear(size, 1, bias=False).double())

    def forward(self, x):
        parts = x.split(self.sizes, 1)
        return sum(layer(part) for layer, part in zip(self.children(), parts, strict=True))


def model():
    return Parts(3)


def linear(output, target):
    return (output - target).mean(1)


def by_backward(run, rows):
    run.backward(rows, rows[:, :1])


def in_parts(run, rows):
    """One row, then several at a time."""
    parts = [rows[:1], *rows[1:].split(10)] if len(rows) > 1 else [rows]
    for part in parts:
        run.backward(part, part[:, :1], more=part is not parts[-1])


def by_release(run, rows):
    parts = rows.split(run.module.sizes, 1)
    run.release([part[:, None] for part in parts])


WAYS = pytest.mark.parametrize("way", [by_backward, in_parts, by_release])


def at_bound(plan, bound, net, groups=None):
    """A run whose next clipping bound is this one, and what it gives to the noise, which is none."""
    secret = plan.start(net, linear, groups=groups).secret_state()
    if plan.adaptive:
        secret["bound"] = bound
    run = plan.resume(net, linear, secret, step=0, groups=groups)
    spend = run.noise.forward
    seen = []

    def forward(total):
        spend(total)
        seen.append(total)
        return total

    run.noise.forward = forward
    return run, seen


def row_sum(plan, bound, rows, way, net=None, groups=None):
    """The sum of the rows of everybody in a batch, and the run."""
    run, seen = at_bound(plan, bound, net or model(), groups)
    run.admit(range(len(rows)))
    way(run, rows)
    return seen[0], run


def without(rows, user):
    return torch.cat([rows[:user], rows[user + 1 :]])


@WAYS
@pytest.mark.parametrize("bound", [1e-5, 0.7, 1e5])
def test_guarantee_a_user_moves_gradient_and_count_together_by_the_plans_bound(bound, way):
    """Whatever the clipping bound is: the count's share is taken from the gradient's."""
    plan = adaptive()
    whole, _ = row_sum(plan, bound, X, way)
    for user in range(0, USERS, 12):
        other, _ = row_sum(plan, bound, without(X, user), way)
        moved = float((whole - other).norm()) / LIMIT
        # The count alone moves by its share.
        assert SHARE - 1e-9 <= moved <= 1 + 1e-11
        # Who is clipped moves the sum as far as is promised.
        assert moved > 1 - 1e-6 or bound > NORMS[user]


@WAYS
@pytest.mark.parametrize("bound", [0.03, 0.7, 40.0])
def test_rows_are_clipped_gradients_and_signs_and_come_back_as_gradients(bound, way):
    plan = adaptive()
    total, run = row_sum(plan, bound, X, way)
    clipped = (DIRECTIONS * NORMS.clamp_max(bound)[:, None]).sum(0)
    inside = int((NORMS <= bound).sum())
    count = SHARE * (2 * inside - USERS)
    expected = torch.cat([REST / bound * clipped, torch.tensor([count])])
    torch.testing.assert_close(total, LIMIT * expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(run) * plan.batch, clipped, rtol=1e-5, atol=1e-5 * bound)
    unit = bound / LIMIT / REST
    assert run.deviation == pytest.approx(unit * float(plan.deviations()[0]))
    # The batch is larger than the plan's, so that the share of it may be no share.
    share = 0.5 + (inside - USERS / 2) / plan.batch
    share = min(1.0, max(0.0, share))
    assert run.bound == pytest.approx(bound * math.exp(-0.2 * (share - 0.5)))


def test_guarantee_rows_are_scaled_by_what_they_were_clipped_to(monkeypatch):
    """Where another thread's step moves the bound meanwhile."""
    run, seen = at_bound(adaptive(), 1e-3, model())
    clipped = run_module.clipped_rows

    def moving(gradients, bound):
        run._bound = 1e-4
        return clipped(gradients, bound)

    # Scaled by the new bound, the row would be ten times too long.
    monkeypatch.setattr(run_module, "clipped_rows", moving)
    run.admit([USERS - 1])
    run.release([X[-1:, None]])
    assert seen[0].norm() <= LIMIT * (1 + 1e-11)


def test_after_a_kill_within_a_step_the_bound_is_that_step_s_own(tmp_path):
    plan = replace(trained.plans()["ordered"], bound=LIMIT).adapted(AdaptiveBound(share=SHARE))
    path = tmp_path / "ledger"
    run = plan.start(model(), linear, ledger=path)
    secret = run.secret_state()
    for users in run:
        if run.step == 3:
            break
        run.backward(X[users], X[users, :1])
    bound = run.bound
    assert bound != LIMIT

    def killed(total):
        raise KeyboardInterrupt

    # The step is noted, and its noise not drawn.
    run.noise.forward = killed
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], X[users, :1])
    assert run.bound == bound
    again = plan.resume(model(), linear, secret, ledger=path)
    assert again.step == 4
    assert again.bound == bound
    # A ledger that is cut short anywhere tells an older bound, never a wrong one.
    text = path.read_text()
    noted = [float(line.split()[1]) for line in text.splitlines() if line.count(" ") == 2]
    for cut in range(text.index("\n") + 1, len(text)):
        path.write_text(text[:cut])
        assert plan.resume(model(), linear, secret, ledger=path).bound in (LIMIT, *noted)


def test_guarantee_only_an_adaptive_plan_takes_its_bound_from_a_state(tmp_path):
    plan = adaptive()
    plain = own_batches()
    secret = plain.start(model(), linear).secret_state()
    assert plain.resume(model(), linear, secret, step={"step": 0, "bound": 9.0}).bound == LIMIT
    with pytest.raises(ValueError, match="secret must be"):
        plan.resume(model(), linear, secret, step=0)
    # Of another share and quantile the same noise would hide other rows.
    secret = plan.start(model(), linear).secret_state()
    with pytest.raises(ValueError, match="another plan"):
        plain.adapted(AdaptiveBound()).resume(model(), linear, secret, step=0)
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == plan.digest() != plain.digest()
    assert loaded.adaptive == plan.adaptive
    assert "clipped to 0.7 at first" in str(loaded)
    assert loaded.guarantee == plain.guarantee


@pytest.mark.parametrize(
    ("quantile", "start"),
    [
        (0.25, 0.05),
        (0.75, 0.05),
        (0.25, 20.0),
        (0.5, 20.0),
    ],
)
def test_the_bound_finds_the_quantile_of_norms(quantile, start):
    """From 20 times below or above the median of lognormal norms, within a tenth of its rank."""
    users = 2000
    norms = normal(users, 1, 1, name=b"norms").exp()
    plan = rebuilt(
        trained.plans()["independent"],
        strategy=BandedStrategy(torch.ones(1, 1), 100),
        sampling=CyclicPoisson(1, 0.25),
        users=users,
        batch=500,
        bound=start,
        sigma=start,
    )
    net = nn.Linear(1, 1, bias=False).double()
    run = plan.adapted(AdaptiveBound(quantile)).start(net, linear, noise=SeededNoise(4))
    bounds = []
    # The noise of the count is a hundredth of the batch.
    for batch in run:
        run.release([norms[batch]])
        bounds.append(run.bound)
    last = torch.tensor(bounds[-20:]).mean()
    rank = (norms <= last).double().mean()
    assert abs(float(rank) - quantile) < 0.1


SIZES = (3, 2)
SCALES = torch.logspace(-3, 3, 12, dtype=torch.float64)[:, None]
# One part is short where the other is long; the last user's are not.
OTHERS = torch.cat([SCALES[:-1].flip(0), SCALES[-1:]])
GROUPED = normal(12, 5, name=b"groups") * torch.cat([SCALES.expand(-1, 3), OTHERS.expand(-1, 2)], 1)
# Of which the squares add up to 1.
SHARES = {"body": 0.8, "head": 0.6}


def grouped_sum(plan, rows, way, groups=SHARES, at=1.0):
    """at: the clipping bound, in the plan's."""
    return row_sum(plan, at * LIMIT, rows, way, Parts(*SIZES), groups)[0]


@WAYS
@pytest.mark.parametrize(
    ("make", "at"),
    [
        (own_batches, 1.0),
        (adaptive, 1e-3),
        (adaptive, 30.0),
    ],
)
@pytest.mark.parametrize("groups", [{"body": 4, "head": 3}, {"": 0.4, "head.weight": 0.3}])
def test_guarantee_a_user_moves_all_groups_together_by_the_plan_s_bound(make, at, groups, way):
    plan = make()
    # One whose parts are long and short, and one all of whose parts are long.
    whole = grouped_sum(plan, GROUPED, way, groups, at)
    others = [grouped_sum(plan, without(GROUPED, user), way, groups, at) for user in (5, 11)]
    moved = (whole - torch.stack(others)) / LIMIT
    assert (moved.norm(dim=1) <= 1 + 1e-11).all()
    # Each part is one user's at its own bound.
    rest = REST if plan.adaptive else 1.0
    for part, share in zip(moved[:, :5].split(SIZES, 1), SHARES.values(), strict=True):
        assert float(part.norm(dim=1).max()) == pytest.approx(rest * share, rel=1e-6)


@WAYS
@pytest.mark.parametrize(("make", "at"), [(own_batches, 1.0), (adaptive, 10.0)])
def test_parts_are_clipped_one_by_one_and_an_example_is_within_where_all_are(make, at, way):
    plan = make()
    clipped = []
    within = []
    for part, share in zip(GROUPED.split(SIZES, 1), SHARES.values(), strict=True):
        scales = share * at * LIMIT / part.norm(dim=1)
        clipped.append((part * scales.clamp_max(1)[:, None]).sum(0))
        within.append(scales >= 1)
    expected = torch.cat(clipped)
    if plan.adaptive:
        inside = within[0] & within[1]
        # By one part alone more would be inside.
        assert 0 < inside.sum() < min(each.sum() for each in within)
        count = LIMIT * SHARE * (2 * inside.double() - 1).sum()
        expected = torch.cat([expected * REST / at, count[None]])
    found = grouped_sum(plan, GROUPED, way, at=at)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_in_one_group_counts_in_the_other():
    row = GROUPED[:1].clone()
    row[0, 0] = math.nan
    # As one vector the user would count as nothing.
    found = grouped_sum(own_batches(), row, by_release)
    expected = 0.6 * LIMIT * normalize(row[0, 3:], dim=0)
    torch.testing.assert_close(found[3:], expected, rtol=1e-6, atol=0)
    assert not found[:3].any()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("at_once", [4, 256])
def test_every_route_clips_the_groups_of_single_examples(route, at_once):
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Flatten())
    net = nn.Sequential(*words, nn.Linear(30, 300), nn.Tanh(), nn.Linear(300, 4))
    net[3].bias.requires_grad_(False)
    x = torch.randint(9, (11, 5))
    y = torch.randint(4, (11,))
    bound = 0.05
    groups = {"": 1.0, "3": 0.5, "5": 2.0, "5.bias": 0.1}
    found = clip_and_sum(
        net, cross_entropy, x, y, bound, groups=groups, routes=(route,), at_once=at_once
    )
    members = {
        "": ["0.weight", "1.weight", "1.bias"],
        "3": ["3.weight"],
        "5": ["5.weight"],
        "5.bias": ["5.bias"],
    }
    unit = bound / math.hypot(*groups.values())
    # The longest name counts: a bias has a bound beside its layer's.
    together = [(unit * groups[name], own) for name, own in members.items()]
    expected = brute(net, cross_entropy, x, y, bound, together)
    torch.testing.assert_close(found.double(), expected, rtol=5e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_guarantee_the_bounds_squares_add_up_to_the_bound_s_at_most(seed):
    """In exact arithmetic; and to more for some of these weights where nothing is taken off for
    rounding.
    """
    g = keyed_generator(f"weights {seed}".encode())
    weights = (8 * torch.rand(5, generator=g, dtype=torch.float64) - 4).exp()
    bound = 10 ** float(4 * torch.rand((), generator=g, dtype=torch.float64) - 2)
    groups = {f"layer.{i}": float(weight) for i, weight in enumerate(weights)}
    found = group_bounds(bound, list(groups), groups)
    total = sum(Fraction(each) ** 2 for each, _ in found) / Fraction(bound) ** 2
    assert 1 - Fraction(1, 2**47) < total <= 1
