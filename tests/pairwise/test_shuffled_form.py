"""The shuffled quadratic form: certified privacy, exact prediction, both paths."""

import math

import pytest
import torch
from pairs import from_factors

from pairwise.common import mse
from torchdp import pairwise
from torchdp.pairwise import OneMessage, Pairs, ShuffledForm
from torchdp.privacy import Model, Neighbours
from torchdp.randomness import keyed_generator
from torchdp.shuffle import PoissonSum, delta_of

DIFFERENCE = pairwise.absolute_difference(4)  # corners: nothing is rounded
UNEQUAL = pairwise.unequal(4)
SMALL = from_factors(
    torch.tensor([[1.0, 0.2], [0.5, -0.3], [-1, 0.7]]),
    torch.tensor([[0.3, 1.0, -0.2], [0.6, 0.1, 0.4]]),
    pairs=Pairs.ALL,
)


def joint_delta(protocol, x, y, epsilon):
    """Hockey-stick divergence of all sums, one user of type x against y, by enumeration of bits and counts."""
    mean, top = protocol.noise, int(protocol.noise + 12 * math.sqrt(protocol.noise) + 12)
    counts = torch.arange(top, dtype=torch.float64)
    law = torch.exp(counts * math.log(mean) - mean - torch.lgamma(counts + 1))
    shifted = torch.cat([law.new_zeros(1), law[:-1]])
    P, Q = (torch.ones(1, dtype=torch.float64) for _ in range(2))
    for q, other in zip(protocol.probabilities[x].tolist(), protocol.probabilities[y].tolist(), strict=True):
        if q != other:  # equal laws lose nothing
            P = torch.outer(P, (1 - q) * law + q * shifted).flatten()
            Q = torch.outer(Q, (1 - other) * law + other * shifted).flatten()
    return float((P - math.exp(epsilon) * Q).clamp_min(0).sum())


def test_guarantee_shuffled_form_by_enumeration():
    statistic = from_factors(
        torch.tensor([[1.0], [-0.4], [0.1]]), torch.tensor([[0.5, 1.0, -0.6]]), pairs=Pairs.ALL
    )
    protocol = ShuffledForm.calibrated(statistic, 10, 2.0, 1e-2)
    promised = protocol.guarantee
    assert (promised.epsilon, promised.delta) == (2.0, 1e-2)
    assert (promised.model, promised.neighbours) == (Model.SHUFFLE, Neighbours.REPLACE_ONE)
    pairs = [(x, y) for x in range(3) for y in range(3) if x != y]
    worst = max(joint_delta(protocol, x, y, 2.0) for x, y in pairs)
    assert 1e-5 < worst <= 1e-2
    with pytest.raises(ValueError, match="not certified"):
        ShuffledForm(statistic, 2.0, 10, protocol.noise / 2, 1e-2)
    # the control: with an eighth of the noise the promise is broken
    object.__setattr__(protocol, "noise", protocol.noise / 8)
    assert max(joint_delta(protocol, x, y, 2.0) for x, y in pairs) > 1e-2


def test_guarantee_every_sum_that_differs_is_counted():
    protocol = ShuffledForm.calibrated(DIFFERENCE, 24, 1.0, 1e-6)
    q = protocol.probabilities
    assert q.shape == (4, 4) and set(q.flatten().tolist()) == {0.0, 1.0}
    assert not bool(q[:, -1].any())  # no rounding, so no correction
    assert int((q[0] != q[3]).sum()) == 3
    assert delta_of(PoissonSum(24, protocol.noise), 1.0, 3) <= 1e-6
    fewer = pairwise.absolute_difference(3)
    assert ShuffledForm.calibrated(fewer, 24, 1.0, 1e-6).noise < protocol.noise


@pytest.mark.parametrize(("statistic", "n"), [(DIFFERENCE, 30), (UNEQUAL, 5000), (SMALL, 30), (SMALL, 5000)])
def test_prediction_and_no_bias_by_monte_carlo(statistic, n):
    protocol, trials = ShuffledForm.calibrated(statistic, n, 2.0, 1e-4), 5_000
    counts = torch.full((statistic.types,), 2)
    counts[0] += n - counts.sum()
    found = protocol.sample_estimate(counts, generator=keyed_generator(b"mse"), sample_shape=(trials,))
    error = found.value - float(statistic.exact(counts))
    assert abs(float(error.mean() / error.std())) * trials**0.5 < 4.5
    square, predicted = error.square(), mse(protocol, counts, n)
    assert abs(float(square.mean()) - predicted) < 4.5 * float(square.std()) / trials**0.5
    assert 0.88 < float(found.standard_error.square().mean()) / predicted < 6


def test_error_falls_as_one_over_n_squared_where_nothing_is_rounded():
    values = []
    for n in (10**4, 10**6):
        counts = torch.full((4,), n // 4)
        values.append(mse(ShuffledForm.calibrated(DIFFERENCE, n, 1.0, 1e-6), counts, n))
        assert values[-1] < 1e-2 * mse(OneMessage(DIFFERENCE, 1.0), counts, n)
    assert values[0] / values[1] == pytest.approx(1e4, rel=0.02)
