"""Every sensitivity against every set of steps and every sign, by code that shares nothing with the library's."""

import itertools
import math
from collections import Counter
from functools import cache

import pytest
import torch
from rules import permits

from torchdp.factorization.certificates import worst_sets
from torchdp.randomness import keyed_generator
from torchdp.training import ONCE, Epochs, Sensitivity, Separated, sensitivity

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


def pattern(n, width, g):
    kind, gap, times = torch.randint(0, 8, (3,), generator=g).tolist()
    if kind == 0:
        return ONCE
    if kind <= 2:
        return Epochs(1 + gap)
    return Separated(width if kind <= 4 else 1 + gap % 4, 1 + times % 5)


@cache
def users(pattern, n):
    """What a user may add to the steps: every permitted row of -1, 0 and 1, (rows, n)."""
    rows = torch.cartesian_prod(*[torch.tensor([0.0, 1.0, -1.0])] * n).double()
    steps = torch.arange(n)
    return rows[torch.tensor([permits(pattern, steps[row != 0].tolist()) for row in rows])]


def instances(count):
    g = keyed_generator(b"brute force")
    for i in range(count):
        n = 2 + i % 5
        C, width = strategy(KINDS[i % len(KINDS)], n, g)
        yield C, pattern(n, width, g)


def compare(count, claim):
    """What went wrong or right, by name, over ``count`` random strategies and patterns."""
    seen = Counter()
    for C, rule in instances(count):
        found, rows = claim(C, rule), users(rule, C.shape[1])
        truth = float((rows @ C.mT).norm(dim=1).max())
        seen["too small"] += found.value < truth
        seen["not attained"] += found.attained > truth * (1 + 1e-12)
        seen["exact"] += found.exact
        seen["exact and wrong"] += found.exact and not math.isclose(found.value, truth, rel_tol=1e-9)
        seen["not exact though attained"] += not found.exact and math.isclose(found.value, truth, rel_tol=1e-9)
    return seen


def test_guarantee_no_sensitivity_is_too_small_and_exact_ones_are_attained():
    seen = compare(1000, sensitivity)
    assert seen["too small"] == seen["not attained"] == seen["exact and wrong"] == 0
    assert seen["exact"] > 700 and seen["not exact though attained"] < 10


def test_guarantee_unit_vectors_move_no_further_than_signs_say():
    g = keyed_generator(b"vectors")
    for C, rule in itertools.islice(instances(150), 120):
        supports = (users(rule, C.shape[1]) > 0).double()[..., None]
        U = supports * torch.nn.functional.normalize(
            torch.randn(*supports.shape[:-1], 2, dtype=torch.float64, generator=g), dim=-1
        )
        assert float((C @ U).flatten(1).norm(dim=1).max()) <= sensitivity(C, rule).value


def full_sets_only(C, rule):
    """The fault: sets of exactly ``times`` steps."""
    if not isinstance(rule, Separated):
        return sensitivity(C, rule)
    rows = users(rule, C.shape[1])
    sizes = (rows != 0).sum(1)
    value = float((rows[sizes == sizes.max()] @ C.mT).norm(dim=1).max())
    return Sensitivity(value, value)


@pytest.mark.parametrize(
    "fault",
    [
        full_sets_only,
        lambda C, rule: Sensitivity(sensitivity(C, rule).value / 2, sensitivity(C, rule).attained / 2),
        lambda C, rule: Sensitivity(sensitivity(C, rule).value * 2, sensitivity(C, rule).value * 2),
    ],
)
def test_planted_faults_are_caught(fault):
    seen = compare(100, fault)
    assert seen["too small"] + seen["not attained"] + seen["exact and wrong"] > 0


def test_a_search_that_is_cut_short_is_a_bound_and_says_so(monkeypatch):
    monkeypatch.setattr(worst_sets, "NODES", 0)
    seen = compare(150, sensitivity)
    assert seen["too small"] == seen["not attained"] == seen["exact and wrong"] == 0
