"""The safeguarded root: safe as evaluated and least to the tolerance, whatever the function; a
batch is its loop.
"""

import math
from itertools import pairwise

import pytest
import torch
from laws import generator

from torchdp.root import TOLERANCE, root

AT = torch.linspace(-90, 90, 181, dtype=torch.float64) + torch.rand(
    181, dtype=torch.float64, generator=generator(0)
)
HOSTILE = {
    "line": lambda x, at: at - x,
    "ninth power": lambda x, at: (
        (at - x) * (at - x) ** 2 * (at - x) ** 2 * (at - x) ** 2 * (at - x) ** 2
    ),
    "step": lambda x, at: torch.where(x < at, 1.0, -1.0).double(),
    "cliff": lambda x, at: torch.where(x < at, 1e300 * torch.ones_like(at), -1e-300),
    "slope of 1e-200": lambda x, at: 1e-200 * (at - x),
    "no number on the unsafe side": lambda x, at: torch.where(x < at, math.nan, at - x),
    "infinite": lambda x, at: torch.where(x < at, math.inf, -math.inf).double(),
    "noisy": lambda x, at: at - x + 1e-6 * (1e9 * x).sin(),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_guarantee_the_answer_is_safe_and_a_little_less_is_not(kind):
    evaluated = []

    def excess(x):
        evaluated.append((x, HOSTILE[kind](x, AT).nan_to_num(math.inf)))
        return HOSTILE[kind](x, AT)

    found = root(excess, torch.tensor(-1.0, dtype=torch.float64), 1.0)
    assert (HOSTILE[kind](found, AT) <= 0).all()
    assert len(evaluated) < 120
    # the last unsafe point below the answer that was tried
    nearest = torch.full_like(found, -math.inf)
    for x, value in evaluated:
        x = x.expand_as(found)
        nearest = torch.where((value > 0) & (x < found) & (x > nearest), x, nearest)
    relative = 2.0**-51 * found.abs()
    assert (found - nearest <= torch.maximum(torch.tensor(TOLERANCE), relative)).all()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_batch_is_its_loop_over_floats(kind):
    some = AT[::30]
    found = root(
        lambda x: HOSTILE[kind](x, some),
        torch.full_like(some, -1.0),
        1.0,
    )
    alone = []
    for at in some:

        def curve(x, at=at):
            return float(HOSTILE[kind](torch.tensor(x, dtype=at.dtype), at))

        alone.append(root(curve, -1.0, 1.0))
    assert found.tolist() == alone


def test_few_evaluations_of_what_is_smooth():
    tried = []
    found = root(lambda x: tried.append(x) or math.exp(-x) - 1e-6, 0.0, 1.0)
    assert found == pytest.approx(6 * math.log(10), abs=TOLERANCE * 2)
    assert len(tried) < 20
    # where rounding hides the root
    tried.clear()
    assert root(lambda x: tried.append(x) or float(round((20.3 - x) * 2.0**38)), 0.0, 1.0)
    assert len(tried) < 40


def test_ends_that_may_not_move_and_functions_without_a_root():
    # safe already
    assert root(lambda x: -1.0, 0.5, 1.0, grow=(False, True)) == 0.5
    assert math.isnan(root(lambda x: 1.0, 0.0, 1.0, grow=(True, False)))
    assert math.isnan(root(lambda x: math.nan, 0.0, 1.0))
    far = torch.tensor([0.5, 3.0], dtype=torch.float64)
    # float32 ends are widened
    found = root(
        lambda x: far - x,
        torch.zeros(2),
        1.0,
        grow=(True, False),
    )
    assert found[0] == 0.5
    assert math.isnan(found[1])


def test_steps_outward_are_no_longer_than_is_said():
    tried = []
    root(lambda x: tried.append(x) or 20.0 - x, 0.0, 0.1, longest=1.0)
    assert max(b - a for a, b in pairwise(tried)) <= 1.0 + 1e-12
    assert max(tried) <= 21
    coarse = root(lambda x: 20.0 - x, 0.0, 0.1, tolerance=1e-3)
    assert 20.0 <= coarse <= 20.001


def test_guarantee_a_good_guess_is_given_back_from_the_safe_side():
    assert root(lambda x: 0.3 - x, 0.3 - TOLERANCE / 2, 0.3 + TOLERANCE / 4) == 0.3 + TOLERANCE / 4
