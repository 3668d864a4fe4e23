"""The local baseline: its guarantee from explicit neighbours, its battery."""

import math
from typing import ClassVar

import pytest
import torch
from contract import LocalContract
from laws import float64, generator, one_law, sampled
from products import gaussian_delta, products, rows, sphere
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_log_delta
from torchdp.protocol import Tally
from torchdp.regression import LocalRows
from torchdp.regression.local import wishart

# level of each statistical test
ALPHA = 1e-6
EPSILON = 0.5
DELTA = 1e-5
# bounds of features and labels: not 1, so that a missing factor is seen
B = 1.5
C = 0.7
LABELLED = torch.cat([rows(40, 2, bound=B), rows(40, 1, seed=1, bound=C)], 1)


class TestLocalRows(LocalContract):
    repeats = 4000
    protocol = LocalRows(2, B, 4.0, 0.1, C)
    x = LABELLED
    bad: ClassVar = [LABELLED[:, :2], LABELLED[0], LABELLED * math.nan]

    def loss(self, protocol):
        return gaussian_delta(
            2 * math.hypot(B, C) / protocol.client.sigma,
            self.protocol.epsilon,
        )

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return products(self.x[:, :2], self.x[:, 2])

    def test_sums_of_squares_that_no_rows_have_are_refused(self):
        gram = self.protocol.collect(self.x, noise=SeededNoise(1))["gram"]
        # an own diagonal, with what no rows have beside it
        own = gram.diagonal().diag()
        for wrong in (
            gram.triu(),
            own - gram,
            own + (own[0, 0] * own[1, 1]).sqrt() * 1.01 * (1 - torch.eye(3)),
        ):
            with pytest.raises(ValueError, match="gram holds no products of rows"):
                self.protocol.analyse(Tally(len(self.x), {"gram": wrong}))


@pytest.mark.parametrize("label_bound", [None, C])
def test_guarantee_local_rows_exactly_epsilon_delta_ldp(label_bound):
    local = LocalRows(3, B, EPSILON, DELTA, label_bound)
    # the two rows that are farthest apart
    x = float64([[B, 0.0, 0.0], [-B, 0.0, 0.0]])
    more = torch.zeros(2, 0) if label_bound is None else float64([[C], [-C]])
    sent = torch.cat([x, more], 1)
    distance = float(torch.linalg.vector_norm(sent[0] - sent[1]))
    assert gaussian_log_delta(local.client.sigma, EPSILON, distance) == pytest.approx(
        math.log(DELTA), abs=1e-6
    )
    # control: a hundredth less noise
    assert gaussian_log_delta(0.99 * local.sigma, EPSILON, distance) > math.log(DELTA) + 0.01
    # rows far outside of the bounds are cut to them
    far = torch.cat([sphere(100, 3, 50.0), 9 * sphere(100, 1, 1.0)], 1)[
        :, : 3 + (label_bound is not None)
    ]
    sent = local.randomize(far, noise=SeededNoise(1)) - local.randomize(
        0 * far, noise=SeededNoise(1)
    )
    # cut to the bounds, and rounded
    allowed = distance / 2 * (1 + 1e-9) + 2 * local.client.step
    assert float(torch.linalg.vector_norm(sent, dim=1).max()) <= allowed
    guarantee = local.guarantee
    assert guarantee.model == Model.LOCAL
    assert guarantee.exact is False
    assert guarantee.epsilon == EPSILON
    assert guarantee.neighbours is Neighbours.REPLACE_ONE


@pytest.mark.parametrize("n", [1, 3])
def test_fewer_clients_than_columns_have_one_law_too(n):
    local = LocalRows(2, 1.0, 20.0, 0.1, 0.5)
    x = 0.5 * rows(n, 3, bound=1.0)
    tallies = [local.collect(x, noise=SeededNoise(seed)) for seed in range(300)]
    single = torch.stack([tally["gram"] for tally in tallies])
    together = local.sample_tally(local.summary(x), **sampled(5000, 7))["gram"]
    # control: half the epsilon
    other = LocalRows(2, 1.0, 10.0, 0.1, 0.5)
    assert one_law(single, together)
    assert not one_law(
        single,
        other.sample_tally(local.summary(x), **sampled(5000, 7))["gram"],
    )


@pytest.mark.parametrize("degrees", [0, 1, 2, 3, 50])
def test_wishart_is_the_gram_of_normals(degrees):
    drawn = wishart(torch.tensor(degrees), 3, (20000,), SeededNoise(1))
    normal = torch.randn(20000, degrees, 3, dtype=torch.float64, generator=generator(2))
    direct = normal.mT @ normal
    if degrees == 0:
        assert not drawn.any()
        return
    for view in (
        lambda w: w[:, 0, 0],
        lambda w: w[:, 0, 2],
        lambda w: w[:, 2, 2] + w[:, 1, 2],
        torch.linalg.det,
    ):
        # 0, where there are fewer rows than columns
        if degrees < 3 and view is torch.linalg.det:
            continue
        assert stats.ks_2samp(view(drawn).numpy(), view(direct).numpy()).pvalue > ALPHA
