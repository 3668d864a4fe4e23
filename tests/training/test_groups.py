"""Groups of parameters that are clipped by themselves: a user moves all of them together by the plan's bound."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from torchdp.randomness import keyed_generator
from torchdp.training import AdaptiveBound, Iterates, Separated, choose, clip_and_sum
from torchdp.training.sums import group_bounds

USERS, LIMIT, SIZES = 12, 0.7, (3, 2)
RAW = torch.randn(USERS, sum(SIZES), generator=keyed_generator(b"groups")).double()
SCALES = torch.logspace(-3, 3, USERS, dtype=torch.float64)[:, None]
# one part is short where the other is long; the last user's not
OTHERS = torch.cat([SCALES[:-1].flip(0), SCALES[-1:]])
X = torch.cat([RAW[:, :3] * SCALES, RAW[:, 3:] * OTHERS], 1)
ALL = list(range(USERS))
SHARES = {"body": 0.8, "head": 0.6}  # of which the squares add up to 1


class Two(nn.Module):
    """Whose gradients are the two parts of a user's x, whatever the weights are."""

    def __init__(self):
        super().__init__()
        self.body, self.head = (nn.Linear(size, 1, bias=False).double() for size in SIZES)

    def forward(self, x):
        body, head = x.split(SIZES, 1)
        return self.body(body) + self.head(head)


def linear(output, target):
    return (output - target).mean(1)


@pytest.fixture(scope="module")
def plans():
    asked = {"users": USERS, "batch": 3, "epsilon": 20.0, "delta": 1e-4, "bound": LIMIT}
    plan = choose(Iterates(4), participation=Separated(1, 4), **asked).best
    return {"fixed bound": plan, "adaptive bound": plan.adapted(AdaptiveBound(share=0.3))}


def by_backward(run, users):
    run.backward(X[users], X[users, :1])


def in_parts(run, users):
    for i in range(len(users)):
        run.backward(X[users[i : i + 1]], X[users[i : i + 1], :1], more=i < len(users) - 1)


def by_release(run, users):
    run.release([part[:, None] for part in X[users].split(SIZES, 1)])


WAYS = pytest.mark.parametrize("way", [by_backward, in_parts, by_release])


def row_sum(plan, users, way, groups, at=1.0):
    """What a run gives to the noise, which is none; at: its clipping bound, in the plan's."""
    net, options = Two(), {"groups": groups}
    secret = plan.start(net, linear, **options).secret_state()
    run = plan.resume(
        net, linear, secret, step={"step": 0, **({"bound": at * LIMIT} if plan.adaptive else {})}, **options
    )
    seen, spend = [], run.noise.forward
    run.noise.forward = lambda total: (spend(total), seen.append(total), total)[-1]
    run.admit(users)
    way(run, users)
    return seen[0]


@WAYS
@pytest.mark.parametrize("kind, at", [("fixed bound", 1.0), ("adaptive bound", 1e-3), ("adaptive bound", 30.0)])
@pytest.mark.parametrize("groups", [{"body": 4, "head": 3}, {"": 0.4, "head.weight": 0.3}])
def test_guarantee_a_user_moves_all_groups_together_by_the_plan_s_bound(plans, monkeypatch, kind, at, groups, way):
    """And by sqrt(2) times as much where each group has the whole bound."""

    def moved():
        whole = row_sum(plans[kind], ALL, way, groups, at)
        others = (row_sum(plans[kind], [u for u in ALL if u != one], way, groups, at) for one in (5, USERS - 1))
        return torch.stack([whole - other for other in others])

    found = moved()
    assert (found.norm(dim=1) <= LIMIT * (1 + 1e-11)).all()
    parts = [part.norm(dim=1).max() / LIMIT for part in found[:, : sum(SIZES)].split(SIZES, 1)]
    less = math.sqrt(1 - 0.3**2) if plans[kind].adaptive else 1.0
    for part, share in zip(parts, SHARES.values(), strict=True):
        assert float(part) == pytest.approx(less * share, rel=1e-6)

    def too_far(bound, names, groups=None):
        return [(bound, [name]) for name in names]

    monkeypatch.setattr("torchdp.training.clipping.group_bounds", too_far)
    assert moved().norm(dim=1).max() > LIMIT * 1.3


@WAYS
def test_parts_are_clipped_one_by_one_and_an_example_is_within_where_all_are(plans, way):
    for plan, at in ((plans["fixed bound"], 1.0), (plans["adaptive bound"], 10.0)):
        found = row_sum(plan, ALL, way, SHARES, at)
        bounds = [share * at * LIMIT for share in SHARES.values()]
        norms = [part.norm(dim=1) for part in X.split(SIZES, 1)]
        clipped = [
            (part * (bound / norm).clamp_max(1)[:, None]).sum(0)
            for part, norm, bound in zip(X.split(SIZES, 1), norms, bounds, strict=True)
        ]
        expected = torch.cat(clipped)
        if plan.adaptive:
            within = (norms[0] <= bounds[0]) & (norms[1] <= bounds[1])
            assert 0 < within.sum() < min((n <= b).sum() for n, b in zip(norms, bounds, strict=True))
            signs = LIMIT * 0.3 * (2 * within.double() - 1).sum()
            expected = torch.cat([expected * math.sqrt(1 - 0.3**2) / at, signs[None]])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_in_one_group_counts_in_the_other(plans):
    X[0, 0], before = math.nan, float(X[0, 0])
    try:
        found = row_sum(plans["fixed bound"], [0], by_release, SHARES)
        expected = 0.6 * LIMIT * nn.functional.normalize(X[0, 3:], dim=0)
        torch.testing.assert_close(found, torch.cat([torch.zeros(3).double(), expected]), rtol=1e-6, atol=0)
    finally:
        X[0, 0] = before


@pytest.mark.parametrize("routes", [["factors"], ["vmap"], ["loop"]])
@pytest.mark.parametrize("at_once", [4, 256])
def test_every_route_clips_the_groups_of_single_examples(routes, at_once):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(9, 6), nn.LayerNorm(6), nn.Flatten(), nn.Linear(30, 300), nn.Tanh(), nn.Linear(300, 4)
    )
    net[3].bias.requires_grad_(False)
    x, y = torch.randint(9, (11, 5)), torch.randint(4, (11,))
    groups, bound = {"": 1.0, "3": 0.5, "5": 2.0, "5.bias": 0.1}, 0.05
    found = clip_and_sum(
        net, nn.functional.cross_entropy, x, y, bound, groups=groups, routes=routes, at_once=at_once
    )
    parts = {"": ["0.weight", "1.weight", "1.bias"], "3": ["3.weight"], "5": ["5.weight"], "5.bias": ["5.bias"]}
    own = {name: p for name, p in net.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in own.items()}
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        g = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
        for name, members in parts.items():
            norm = torch.cat([g[one].flatten() for one in members]).norm()
            most = bound * groups[name] / math.sqrt(sum(w * w for w in groups.values()))
            for one in members:
                total[one] += g[one] * (most / norm).clamp_max(1)
    torch.testing.assert_close(found, torch.cat([each.flatten() for each in total.values()]), rtol=5e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_guarantee_the_bounds_squares_add_up_to_the_bound_s_at_most(seed):
    """In exact arithmetic; and to more for some of these weights where nothing is taken off for rounding."""
    g = keyed_generator(f"weights {seed}".encode())
    weights = (8 * torch.rand(5, generator=g, dtype=torch.float64) - 4).exp()
    bound = float(10 ** (4 * torch.rand((), generator=g, dtype=torch.float64) - 2))
    names = [f"layer.{i}" for i in range(5)]
    found = group_bounds(bound, names, dict(zip(names, weights.tolist(), strict=True)))
    total = sum(Fraction(each) ** 2 for each, _ in found) / Fraction(bound) ** 2
    assert 1 - Fraction(1, 2**47) < total <= 1
