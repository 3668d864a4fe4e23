"""Curators of second moments: guarantees from explicit neighbours, beside what the library
releases.
"""

import math

import pytest
import torch
from laws import generator, normal
from products import sphere
from scripts import loaded

from torchdp.privacy import Model, gaussian_log_delta
from torchdp.regression import SecondMoments

with loaded("regression/baselines.py") as module:
    AdaSSP = module.AdaSSP
    ModSulq = module.ModSulq
    SufficientStatistics = module.SufficientStatistics

EPSILON = 0.5
DELTA = 1e-5
B = 1.5
C = 0.7


def upper(x):
    i, j = torch.triu_indices(len(x), len(x))
    return torch.outer(x, x)[i, j]


@pytest.mark.parametrize("d", [1, 2, 6])
def test_guarantee_mod_sulq_exact_epsilon_of_its_sigma(d):
    mechanism = ModSulq.calibrated(d, B, EPSILON, DELTA)
    rows = sphere(60, d, B)
    rows[:2] = 0
    rows[0, 0] = B
    rows[1, -1] = B if d > 1 else 0.0
    triangles = torch.stack([upper(x) for x in rows])
    distance = float(torch.linalg.vector_norm(triangles[0] - triangles[1]))
    # the distance is the largest of all pairs, up to rounding
    assert torch.pdist(triangles).max() <= distance * (1 + 1e-12)
    assert gaussian_log_delta(mechanism.sigma, EPSILON, distance) == pytest.approx(
        math.log(DELTA), abs=1e-6
    )
    # one per cent less noise is seen
    assert gaussian_log_delta(0.99 * mechanism.sigma, EPSILON, distance) > math.log(DELTA) + 0.01
    guarantee = mechanism.guarantee
    assert guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert guarantee.model is Model.CENTRAL
    # half the noise costs half as much epsilon again
    assert ModSulq(d, B, mechanism.sigma / 2, DELTA).guarantee.epsilon > 1.5 * EPSILON


def test_mod_sulq_adds_one_sigma_to_every_entry_of_the_upper_triangle():
    mechanism = ModSulq.calibrated(3, B, EPSILON, DELTA)
    moments = SecondMoments(100, torch.eye(3).double())
    noisy = mechanism.sample_estimate(moments, generator=generator(3), sample_shape=(10_000,))
    variance = (noisy.gram - moments.matrix).var(0)
    # ten thousand normals: the variance is known to sqrt(2 / 10,000)
    z = (variance / mechanism.sigma**2 - 1) * math.sqrt(5000)
    assert z.abs().max() < 5


def test_guarantee_sufficient_statistics_epsilon_delta():
    ssp = SufficientStatistics(3, B, C, EPSILON, DELTA)
    for sigma, distance in ((ssp.gram_sigma, math.sqrt(2) * B**2), (ssp.cross_sigma, 2 * B * C)):
        assert gaussian_log_delta(sigma, EPSILON / 2, distance) == pytest.approx(
            math.log(DELTA / 2), abs=1e-6
        )
        # one per cent less noise is seen
        assert gaussian_log_delta(0.99 * sigma, EPSILON / 2, distance) > math.log(DELTA / 2) + 0.01
    guarantee = ssp.guarantee
    assert guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert guarantee.delta == pytest.approx(DELTA)
    assert not guarantee.exact
    assert guarantee.model is Model.CENTRAL


def test_guarantee_adassp_epsilon_delta():
    """The three releases of neighbours, each over its sigma, are one Gaussian pair at a distance of
    at most mu*.
    """
    ada = AdaSSP(2, B, C, EPSILON, DELTA)
    rest = sphere(5, 2, B, seed=1)

    def release(x, y):
        A = torch.cat([rest, x[None]])
        b = torch.full((6,), C / 2).double()
        b[-1] = y
        gram = A.mT @ A
        least = torch.linalg.eigvalsh(gram)[:1]
        triangle = torch.cat([gram.diagonal(), math.sqrt(2) * gram[0, 1:]])
        parts = least, triangle, A.mT @ b
        return torch.cat([part / sigma for part, sigma in zip(parts, ada.sigmas, strict=True)])

    points = torch.cat(
        [
            sphere(150, 2, B),
            torch.zeros(1, 2),
            sphere(20, 2, B / 2),
        ]
    )
    labels = C * normal(171, seed=5).sign()
    releases = [release(x, y) for x, y in zip(points, labels, strict=True)]
    found = float(torch.pdist(torch.stack(releases)).max())
    ratios = [s / sigma for s, sigma in zip(ada.sensitivities, ada.sigmas, strict=True)]
    limit = math.hypot(*ratios)
    # the bound holds, and neighbours exist that come within half of it
    assert 0.5 * limit < found <= limit
    assert gaussian_log_delta(1.0, EPSILON, limit) == pytest.approx(math.log(DELTA), abs=1e-6)
    # one per cent less noise is seen
    assert gaussian_log_delta(0.99, EPSILON, limit) > math.log(DELTA) + 0.01
    assert ada.guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert not ada.guarantee.exact
