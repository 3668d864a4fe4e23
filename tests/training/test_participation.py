"""The sensitivity of a matrix mechanism, against every set of steps and every change that a user can make."""

import itertools
import math

import pytest
import torch

from torchdp import factorization, workloads
from torchdp.randomness import keyed_generator
from torchdp.training import Epochs, Once, Separated, causal_strategy, participation, sensitivity

STEPS = 7
PATTERNS = [Once(), Epochs(3), Epochs(1), Separated(2, 3), Separated(3, 2), Separated(1, 2), Separated(20, 9)]


def normal(*shape, name=b"participation"):
    return torch.randn(*shape, dtype=torch.float64, generator=keyed_generator(name))


def permitted(pattern, steps):
    """Every set of steps that the rule allows, from its words."""
    for size in range(1, steps + 1):
        for chosen in itertools.combinations(range(steps), size):
            if isinstance(pattern, Once):
                fits = size == 1
            elif isinstance(pattern, Epochs):
                fits = len({step % pattern.period for step in chosen}) == 1
            else:
                apart = all(b - a >= pattern.gap for a, b in itertools.pairwise(chosen))
                fits = size <= pattern.times and apart
            if fits:
                yield list(chosen)


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
    for seed in range(20):  # vectors in place of signs
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
    widening = [Once(), Separated(4, 2), Epochs(3), Separated(2, 4), Epochs(1)]
    values = [sensitivity(C, pattern).value for pattern in widening]
    assert all(a < 0.95 * b for a, b in itertools.pairwise(values))
    assert largest(C, Epochs(3)) > 1.2 * sensitivity(C, Separated(4, 2)).value


def test_too_many_sets_give_an_upper_bound_and_say_so(monkeypatch):
    C = normal(STEPS, STEPS).abs().tril()
    exact = sensitivity(C, Separated(2, 3))
    monkeypatch.setattr(participation, "PATTERNS", 5)
    bound = sensitivity(C, Separated(2, 3))
    assert not bound.exact and exact.value <= bound.value <= 1.3 * exact.value


def test_signs_that_cancel_are_an_upper_bound_and_say_so():
    C = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    found = sensitivity(C, Epochs(1))
    assert found.exact is False and math.isclose(found.value, math.sqrt(5), rel_tol=1e-11)  # attained by (+1, -1)
    assert sensitivity(C, Once()).exact


def test_rounding_below_zero_where_it_counts_and_signs_where_they_do_not_leave_it_exact():
    C = torch.eye(STEPS, dtype=torch.float64)
    C[0, 3], C[0, 1] = -1e-15, -0.5  # steps 0 and 3 share a user, steps 0 and 1 do not
    assert sensitivity(C, Epochs(3)).exact and not sensitivity(C, Epochs(1)).exact


@pytest.mark.parametrize("scale", [1e-200, 1e150])
def test_units_do_not_overflow(scale):
    C = banded(2)
    found = sensitivity(scale * C, Separated(2, 3)).value
    assert math.isclose(found, scale * sensitivity(C, Separated(2, 3)).value, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sensitivity(torch.eye(2), "once"), TypeError, "participation must be"),
        (lambda: sensitivity(torch.eye(2), Once), TypeError, "participation must be"),
        (lambda: sensitivity(torch.ones(2), Once()), ValueError, "strategy must be"),
        (lambda: sensitivity(torch.full((2, 2), math.nan), Once()), ValueError, "strategy holds NaN"),
        (lambda: sensitivity(torch.ones(2, 3, 3), Once()), ValueError, "strategy must be one"),
        (lambda: Epochs(0), ValueError, "period must be"),
        (lambda: Separated(0, 1), ValueError, "gap must be"),
        (lambda: Separated(1, 0), ValueError, "times must be"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
