"""Who takes part when: sensitivities by brute force that shares no code, batches by the rule,
others refused.
"""

import itertools
import math
from collections import Counter
from functools import cache, partial

import laws
import pytest
import torch
from laws import float64
from rules import permits
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from torchdp.factorization.certificates import worst_sets
from torchdp.randomness import keyed_generator
from torchdp.training import ONCE, Batches, Epochs, ParticipationLog, Separated, sensitivity

STEPS = 7
normal = partial(laws.normal, name=b"participation")
RULES = [ONCE, Epochs(1), Epochs(3), Epochs(4), Separated(1, 3), Separated(2, 2), Separated(3, 9)]


@pytest.mark.parametrize("rule", [Separated(1, 10**9), Separated(2**53, 3), Epochs(1)])
def test_any_number_of_steps_and_dense_strategies_are_exact_at_once(rule):
    """Of one step, or of all."""
    C = normal(60, 60).abs().tril()
    moved = C.norm(dim=0).max() if rule.most(60) == 1 else C.sum(1).norm()
    found = sensitivity(C, rule)
    assert found.exact
    assert math.isclose(found.value, moved, rel_tol=1e-11)


def test_signs_that_fit_are_found():
    # Attained by (+1, -1).
    found = sensitivity(float64([[1.0, 0.0], [-1.0, 1.0]]), Epochs(1))
    assert found.exact
    assert math.isclose(found.value, math.sqrt(5), rel_tol=1e-11)


def test_signs_that_do_not_fit_are_a_bound_that_says_so():
    angles = float64([0.0, 2.0, 4.0]) * math.pi / 3
    # Three columns, each against the others.
    found = sensitivity(torch.stack([angles.cos(), angles.sin()]), Epochs(1))
    assert not found.exact
    assert math.isclose(found.value, math.sqrt(6), rel_tol=1e-11)
    # Vectors attain sqrt(4.5).
    assert math.isclose(found.attained, 2.0, rel_tol=1e-11)


def test_rounding_below_zero_leaves_it_exact():
    C = torch.eye(STEPS, dtype=torch.float64)
    # As a computed strategy has them above its bands.
    C[0, 3] = -1e-15
    C[0, 1] = -0.5
    assert sensitivity(C, Epochs(3)).exact
    assert sensitivity(C, Epochs(1)).exact


@pytest.mark.parametrize("scale", [1e-200, 1e150])
def test_units_do_not_overflow(scale):
    C = normal(STEPS, STEPS).tril().triu(-1)
    found = sensitivity(scale * C, Separated(2, 3)).value
    assert math.isclose(found, scale * sensitivity(C, Separated(2, 3)).value, rel_tol=1e-9)


KINDS = ["positive", "mixed", "banded", "twice banded", "sparse", "spiked", "equal columns", "tall"]


def strategy(kind, n, g):
    C = torch.randn(n, n, dtype=torch.float64, generator=g).tril()
    width = int(torch.randint(1, 4, (), generator=g))
    if kind == "positive":
        C = C.abs()
    elif kind == "banded":
        C = C.triu(1 - width)
    elif kind == "twice banded":
        C = C.triu(1 - 2 * width)
    elif kind == "sparse":
        C = C * (torch.rand(n, n, generator=g) < 0.5)
    elif kind == "spiked":  # one step that is alone worth more than a full set
        C = C.abs() * torch.where(torch.rand(n, generator=g) < 0.2, 30.0, 1.0)
    elif kind == "equal columns":
        C = C / C.norm(dim=0).clamp_min(1e-3)
    elif kind == "tall":
        C = torch.randn(n + 2, n, dtype=torch.float64, generator=g).abs()
    return C, width


def pattern(width, g):
    kind, gap, times = torch.randint(0, 8, (3,), generator=g).tolist()
    if kind == 0:
        return ONCE
    if kind <= 2:
        return Epochs(1 + gap)
    return Separated(width if kind <= 4 else 1 + gap % 4, 1 + times % 5)


@cache
def users(rule, n):
    """What a user may add to the steps: every permitted row of -1, 0 and 1, (rows, n)."""
    rows = torch.cartesian_prod(*[float64([0.0, 1.0, -1.0])] * n)
    allowed = [permits(rule, row.nonzero()[:, 0].tolist()) for row in rows]
    return rows[torch.tensor(allowed)]


def instances(count):
    g = keyed_generator(b"brute force")
    for i in range(count):
        n = 2 + i % 5
        C, width = strategy(KINDS[i % len(KINDS)], n, g)
        yield C, pattern(width, g)


def compared(count):
    """How many sensitivities are exact, and how many are attained and not said to be."""
    seen = Counter()
    for C, rule in instances(count):
        found = sensitivity(C, rule)
        moved = users(rule, C.shape[1]) @ C.mT
        truth = float(moved.norm(dim=1).max())
        attained = math.isclose(found.value, truth, rel_tol=1e-9)
        # Too small, and a user moves the sum further than the noise is made for.
        assert found.value >= truth
        assert found.attained <= truth * (1 + 1e-12)
        assert attained or not found.exact
        seen["exact"] += found.exact
        seen["unsaid"] += attained and not found.exact
    return seen


def test_guarantee_no_sensitivity_is_too_small_and_exact_ones_are_attained():
    seen = compared(1000)
    assert seen["exact"] > 700
    assert seen["unsaid"] < 10


def test_guarantee_unit_vectors_move_no_further_than_signs_say():
    g = keyed_generator(b"vectors")
    for C, rule in itertools.islice(instances(150), 120):
        supports = users(rule, C.shape[1]) > 0
        drawn = torch.randn(*supports.shape, 2, dtype=torch.float64, generator=g)
        U = supports[..., None] * normalize(drawn, dim=-1)
        moved = (C @ U).flatten(1).norm(dim=1)
        assert float(moved.max()) <= sensitivity(C, rule).value


def test_a_search_that_is_cut_short_is_a_bound_and_says_so(monkeypatch):
    # A search that ends early and claims to be exact would be too small.
    monkeypatch.setattr(worst_sets, "NODES", 0)
    assert compared(150)["exact"] < 150


@pytest.mark.parametrize("rule", RULES)
def test_guarantee_accepted_batches_keep_the_rule_and_refused_ones_break_it(rule):
    """Batches at random: exactly those are refused after which some user's steps break the rule."""
    g = keyed_generator(b"attendance")
    refused = 0
    for _ in range(30):
        log = ParticipationLog(rule, 6)
        steps = {user: [] for user in range(6)}
        for step in range(9):
            size = int(torch.randint(0, 4, (), generator=g))
            batch = torch.randperm(6, generator=g)[:size]
            kept = all(permits(rule, [*steps[user], step]) for user in batch.tolist())
            if kept:
                assert torch.equal(log.check(batch), batch)
                for user in batch.tolist():
                    steps[user].append(step)
                continue
            with pytest.raises(ValueError, match="may not participate again under"):
                log.check(batch)
            refused += 1
            log.check([])
    assert refused == 0 if rule == Epochs(1) else refused > 20


@pytest.mark.parametrize("rule", RULES)
def test_guarantee_batches_keep_the_rule_or_are_refused(rule):
    make = partial(Batches, rule, generator=keyed_generator(b"order"))
    made = 0
    for users, size, steps in itertools.product((6, 7, 12), (1, 2, 3), (1, 4, 12)):
        period = users // size
        # The steps of the users who begin at each place of the order.
        places = [list(range(place, steps, period)) for place in range(period)]
        if all(permits(rule, place) for place in places):
            log = ParticipationLog(rule, users)
            sizes = [len(log.check(batch)) for batch in make(users, size, steps)]
            assert sizes == [size] * steps
            made += 1
        else:
            with pytest.raises(ValueError, match="does not allow"):
                make(users, size, steps)
    assert made > 3


def test_a_loader_goes_on_with_the_order_and_a_shuffled_one_is_refused():
    data = TensorDataset(torch.arange(150))
    log = ParticipationLog(Epochs(30), 150)
    order = Batches(Epochs(30), 150, 5, 60, generator=keyed_generator(b"kept"))
    loader = DataLoader(data, batch_sampler=order)
    for (batch,) in loader:
        log.check(batch)
        if log.step == 30:
            break
    shuffled = DataLoader(data, batch_size=5, shuffle=True, generator=keyed_generator(b"shuffled"))
    with pytest.raises(ValueError, match=r"the batch of step 30 .* Epochs\(period=30\)"):
        log.check(next(iter(shuffled))[0])
    for (batch,) in loader:
        log.check(batch)
    assert log.step == 60
    with pytest.raises(RuntimeError, match="all 60 batches were handed out"):
        next(iter(loader))


def test_batches_go_on_after_a_restart():
    def batches(first):
        return Batches(Separated(4, 2), 9, 2, 8, generator=keyed_generator(b"restart"), first=first)

    assert list(batches(0))[3:] == list(batches(3))
    assert len(batches(3)) == 5
    assert len({user for batch in batches(0) for user in batch}) == 8
