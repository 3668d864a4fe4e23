"""The sensitivity of a matrix mechanism, against every set of steps and every change that a user can make."""

import itertools
import math
from functools import partial

import laws
import pytest
import torch
from rules import permitted

from torchdp import factorization, workloads
from torchdp.training import ONCE, Epochs, Separated, causal_strategy, sensitivity

STEPS = 7
PATTERNS = [ONCE, Epochs(3), Epochs(1), Separated(2, 3), Separated(3, 2), Separated(1, 2), Separated(20, 9)]


normal = partial(laws.normal, name=b"participation")


def moved(C, chosen, signs):
    """||C U||_F for a user whose gradients are +-1 in the chosen steps."""
    return float((C[:, chosen] @ torch.tensor(signs, dtype=C.dtype)).norm())


def largest(C, pattern, signed=False):
    choices = (1.0, -1.0) if signed else (1.0,)
    return max(
        moved(C, chosen, signs)
        for chosen in permitted(pattern, C.shape[1])
        for signs in itertools.product(choices, repeat=len(chosen))
    )


def banded(bands):
    return normal(STEPS, STEPS).tril().triu(1 - bands)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_guarantee_one_user_moves_that_far_and_no_user_further(pattern):
    positive = normal(STEPS, STEPS).abs().tril()
    found = sensitivity(positive, pattern)
    assert found.exact
    assert math.isclose(found.value, largest(positive, pattern, signed=True), rel_tol=1e-11)
    assert found.value >= largest(positive, pattern)
    mixed = normal(STEPS, STEPS).tril()
    bound = sensitivity(mixed, pattern)
    attained = largest(mixed, pattern, signed=True)
    assert bound.value >= attained * (1 - 1e-15)
    if bound.exact:
        assert math.isclose(bound.value, attained, rel_tol=1e-11)
    for seed in range(2):  # vectors in place of signs
        for chosen in permitted(pattern, STEPS):
            U = torch.nn.functional.normalize(normal(len(chosen), 3, name=bytes([seed])), dim=1)
            assert float((mixed[:, chosen] @ U).norm()) <= bound.value


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_guarantee_banded_strategies_are_exact_whatever_their_signs(bands):
    C = banded(bands)
    for times in (1, 2, 3, 9):
        found = sensitivity(C, Separated(bands, times))
        assert found.exact
        assert math.isclose(found.value, largest(C, Separated(bands, times), signed=True), rel_tol=1e-11)


def test_a_wrong_pattern_is_seen():
    """A user who takes part more often, or in closer steps, moves further than the narrower rule allows."""
    C = causal_strategy(workloads.prefix(STEPS).dense(), factorization.square_root(STEPS))
    widening = [ONCE, Separated(4, 2), Epochs(3), Separated(2, 4), Epochs(1)]
    values = [sensitivity(C, pattern).value for pattern in widening]
    assert all(a < 0.95 * b for a, b in itertools.pairwise(values))
    assert largest(C, Epochs(3)) > 1.2 * sensitivity(C, Separated(4, 2)).value


def test_a_short_set_that_no_step_can_join_counts():
    C = torch.tensor([[1.0, 0, 0], [0, 100, 0], [1e-3, 0, 1]], dtype=torch.float64)
    found = sensitivity(C, Separated(2, 2))  # step 1 alone; steps 0 and 2 together move 1.4149
    assert found.exact and math.isclose(found.value, 100.0, rel_tol=1e-11)


@pytest.mark.parametrize(
    ("steps", "gap", "times", "p", "value"),
    [(41, 20, 3, torch.inf, 1.88494), (65, 16, 5, torch.inf, 2.55961), (102, 50, 3, 2.0, 6.01519)],
)
def test_epochs_strategies_under_separated_steps(steps, gap, times, p, value):
    """Their worst sets are shorter than ``times``: full sets alone give 1.748, 2.241 and 5.865."""
    W = workloads.prefix(steps).dense()
    C = causal_strategy(W, factorization.factorize_epochs(W, gap, p))
    found, gram = sensitivity(C, Separated(gap, times)), (C.mT @ C).abs()
    assert found.exact and math.isclose(found.value, value, rel_tol=2e-3)
    if times == 3:
        triples = torch.cartesian_prod(*[torch.arange(steps)] * 3)
        first, second, third = triples[(triples.diff(dim=1) >= gap).all(1)].unbind(1)
        own = gram.diagonal()
        pairs = own[:, None] + own + 2 * gram
        sums = own[first] + own[second] + own[third]
        sums = sums + 2 * (gram[first, second] + gram[first, third] + gram[second, third])
        truth = max(own.max(), pairs.triu(gap).max(), sums.max()).sqrt()
        assert math.isclose(found.value, truth, rel_tol=1e-9)


def test_any_number_of_steps_and_dense_strategies_are_exact_at_once():
    C = normal(60, 60).abs().tril()
    for rule, columns in ((Separated(1, 10**9), C), (Separated(2**53, 3), C[:, :1]), (Epochs(1), C)):
        found = sensitivity(C, rule)
        assert found.exact and found.value >= float(columns.sum(1).norm())
    assert math.isclose(sensitivity(C, Separated(1, 10**9)).value, float(C.sum(1).norm()), rel_tol=1e-11)


def test_signs_that_fit_are_found_and_signs_that_do_not_are_a_bound_that_says_so():
    C = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    found = sensitivity(C, Epochs(1))  # attained by (+1, -1)
    assert found.exact and math.isclose(found.value, math.sqrt(5), rel_tol=1e-11)
    angles = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64) * math.pi / 3
    # three columns, each against the others
    found = sensitivity(torch.stack([angles.cos(), angles.sin()]), Epochs(1))
    assert not found.exact and math.isclose(found.value, math.sqrt(6), rel_tol=1e-11)
    assert math.isclose(found.attained, 2.0, rel_tol=1e-11) and found.value > math.sqrt(4.5)  # sqrt 4.5 by vectors


def test_rounding_below_zero_leaves_it_exact():
    C = torch.eye(STEPS, dtype=torch.float64)
    C[0, 3], C[0, 1] = -1e-15, -0.5
    assert sensitivity(C, Epochs(3)).exact and sensitivity(C, Epochs(1)).exact


@pytest.mark.parametrize("scale", [1e-200, 1e150])
def test_units_do_not_overflow(scale):
    C = banded(2)
    found = sensitivity(scale * C, Separated(2, 3)).value
    assert math.isclose(found, scale * sensitivity(C, Separated(2, 3)).value, rel_tol=1e-9)


def test_packed_steps_are_the_worst_of_falling_strategies():
    """C = D1 T D2 with numbers that are positive and do not rise: a user in steps 0, gap, 2 gap, ... moves furthest."""
    for seed in range(500):
        draw = partial(laws.normal, name=b"packed %d" % seed)
        n, gap = 3 + seed % 9, 1 + seed % 4
        before, first, after = draw(3, n).abs().cumsum(1).flip(1)
        age = torch.arange(n)[:, None] - torch.arange(n)
        C = before[:, None] * torch.where(age >= 0, first[age.clamp_min(0)], 0.0) * after
        times = 1 + seed % 3
        packed = torch.arange(0, n, gap)[:times]
        found = sensitivity(C, Separated(gap, times))
        assert found.exact and math.isclose(found.value, float(C[:, packed].sum(1).norm()), rel_tol=1e-11)
    rising = torch.diag(torch.arange(1.0, 7.0)).double()  # where they rise it is not
    assert sensitivity(rising, Separated(2, 2)).value > 1.5 * float(rising[:, [0, 2]].sum(1).norm())
