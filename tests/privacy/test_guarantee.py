"""Guarantee: validation, text; basic composition against the exact privacy of composed
mechanisms.
"""

import math

import numpy as np
import pytest
from laws import hockey_stick, worst_pair

from torchdp.privacy import Guarantee, Model, Neighbours, compose


def guarantee(
    epsilon=1.0, delta=0.0, model=Model.LOCAL, neighbours=Neighbours.REPLACE_ONE, exact=True
):
    return Guarantee(epsilon, delta, model, neighbours, exact, "source")


@pytest.mark.parametrize(
    ("epsilons", "deltas"), [((0.5, 1.0), (1e-5, 1e-4)), ((2.0, 0.1), (0.0, 0.0))]
)
def test_guarantee_compose_adds_epsilons_and_deltas(epsilons, deltas):
    total = compose([guarantee(e, d) for e, d in zip(epsilons, deltas, strict=True)])
    assert (total.epsilon, total.delta) == (math.fsum(epsilons), math.fsum(deltas))
    assert (total.model, total.neighbours, total.exact) == (
        Model.LOCAL,
        Neighbours.REPLACE_ONE,
        False,
    )
    pairs = [worst_pair(*kind) for kind in zip(epsilons, deltas, strict=True)]
    (p, q), (r, s) = pairs
    # Adaptive: after outputs 1 and 2 the second mechanism is a different one with the same promise.
    second = np.stack([r, r, r[[2, 1, 0, 3]], r]), np.stack([s, s, s[[2, 1, 0, 3]], s])
    for left, right in [(np.stack([r] * 4), np.stack([s] * 4)), second]:
        joint = p[:, None] * left, q[:, None] * right
        assert hockey_stick(*joint, total.epsilon) <= total.delta + 1e-15
        # 1 % less would be wrong
        assert hockey_stick(*joint, 0.99 * total.epsilon) > total.delta + 1e-4


def test_one_guarantee_composes_to_itself():
    alone = guarantee(0.3, 1e-6)
    assert compose([alone]) is alone


def test_nothing_shown_is_an_epsilon_of_0():
    nothing = guarantee(0.0)
    assert compose([nothing, nothing]).epsilon == 0
    assert compose([nothing, guarantee(0.3)]).epsilon == 0.3
    assert str(nothing) == "local differential privacy, epsilon = 0, over real numbers"


def test_guarantee_rounding_is_paid_on_both_data_sets():
    """P(A) <= e^epsilon P'(A) + delta, of laws that are each within v of such a pair:
    (1 + e^epsilon) v more.
    """
    real = guarantee(3.0, 1e-6, exact=False)
    v = 1e-8
    least = 1e-6 + (1 + math.exp(3.0)) * v
    assert real.rounded(v, least * (1 + 1e-6)).variation == v
    with pytest.raises(ValueError, match=r"leaves .* which needs"):
        real.rounded(v, least * (1 - 1e-6))
    assert real.rounded(v, 1e-5).rounded(2 * v, 1e-4).variation == 3 * v
