"""Consistency of pairwise estimates: the nearest mean vector of a histogram, never farther from the
truth.
"""

import torch
from laws import sampled, uniform

from pairwise.common import vectors
from torchdp import pairwise
from torchdp.queries import LocalOracle
from torchdp.randomizers import StrategyMatrix

GINI = pairwise.absolute_difference(5, spacing=1 / 4)
COUNTS = torch.tensor([150, 10, 0, 40, 100])


def drawn(protocol, counts=COUNTS, trials=200):
    return protocol.sample_tally(counts, **sampled(trials, b"consistent"))


def test_guarantee_nearer_to_the_users_mean_vector():
    protocol = vectors(GINI, 1.0)
    tally = drawn(protocol)
    found = pairwise.consistent(protocol, tally)
    z = protocol.channel.mean(tally)
    truth = COUNTS.double() @ GINI.points / 300
    assert bool((found.histogram >= 0).all())
    torch.testing.assert_close(found.histogram.sum(-1), torch.ones(200, dtype=torch.float64))
    near = found.histogram @ GINI.points
    before = (z - truth).norm(dim=1)
    after = (near - truth).norm(dim=1)
    assert bool((after <= before + 1e-4).all())
    assert float(before.mean()) > 1.2 * float(after.mean())
    others = uniform(100, 5, name=b"others")
    others = others / others.sum(1, keepdim=True) @ GINI.points
    # a projection's: no histogram is nearer
    slope = torch.einsum("ts,tos->to", near - z, others - near[:, None])
    assert float(slope.min()) > -1e-6
    # control: nine tenths of the nearest vector are not nearest
    wrong = torch.einsum("ts,tos->to", 0.9 * near - z, others - 0.9 * near[:, None])
    assert float(wrong.min()) < -1e-3
    torch.testing.assert_close(found.value, GINI.exact(found.histogram * 300))


def test_without_noise_it_is_the_statistic_itself():
    """Reports that hide next to nothing, of a mean and of a ratio."""
    for statistic in (GINI, pairwise.auc(3)):
        k = statistic.types
        Q = torch.full((k, k), 1e-9, dtype=torch.float64).fill_diagonal_(1 - 1e-9 * (k - 1))
        protocol = LocalOracle.of(statistic, StrategyMatrix(Q))
        counts = torch.arange(1, k + 1) * 50
        found = pairwise.consistent(protocol, drawn(protocol, counts, 3))
        torch.testing.assert_close(
            found.value,
            statistic.exact(counts).expand(3),
            rtol=0,
            atol=1e-3,
        )
