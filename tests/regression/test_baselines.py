"""Local and central baselines: guarantees from explicit neighbours, two paths with one law, the papers' constants."""

import math

import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee, gaussian_log_delta
from torchdp.regression import (
    AdaSSP,
    LocalRows,
    ModSulq,
    SecondMoments,
    SufficientStatistics,
    mod_sulq,
    paper_adassp_scale,
    paper_mod_sulq,
    phi,
    second_moments,
)
from torchdp.regression.local import wishart

ALPHA, EPSILON, DELTA = 1e-6, 0.5, 1e-5
B, C = 1.5, 0.7


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sphere(n, d, radius, seed=0):
    A = torch.randn(n, d, dtype=torch.float64, generator=generator(seed))
    return radius * torch.nn.functional.normalize(A, dim=1)


def upper(x):
    i, j = torch.triu_indices(len(x), len(x))
    return torch.outer(x, x)[i, j]


@pytest.mark.parametrize("label_bound", [None, C])
def test_guarantee_local_rows_exactly_epsilon_delta_ldp(label_bound):
    local = LocalRows(3, B, EPSILON, DELTA, label_bound)
    x = torch.tensor([[B, 0.0, 0.0], [-B, 0.0, 0.0]], dtype=torch.float64)
    sent = (
        torch.cat([x, torch.zeros(2, 0)], 1)
        if label_bound is None
        else torch.cat([x, torch.tensor([[C], [-C]], dtype=torch.float64)], 1)
    )
    distance = float(torch.linalg.vector_norm(sent[0] - sent[1]))
    assert gaussian_log_delta(local.sigma, EPSILON, distance) == pytest.approx(math.log(DELTA), abs=1e-6)
    assert gaussian_log_delta(0.99 * local.sigma, EPSILON, distance) > math.log(DELTA) + 0.01
    far, labels = sphere(100, 3, 50.0), None if label_bound is None else 9 * sphere(100, 1, 1.0)[:, 0]
    sent = local.messages(far, labels, noise=SeededNoise(1)) - local.messages(
        torch.zeros_like(far), None if labels is None else torch.zeros(100), noise=SeededNoise(1)
    )
    assert float(torch.linalg.vector_norm(sent, dim=1).max()) <= distance / 2 * (1 + 1e-9)  # cut to the bounds
    guarantee = local.guarantee
    assert (guarantee.model, guarantee.exact, guarantee.epsilon) == (Model.LOCAL, True, EPSILON)
    assert guarantee.neighbours is Neighbours.REPLACE_ONE


@pytest.mark.parametrize("n", [1, 3, 30])
def test_local_messages_and_the_aggregate_have_one_law(n):
    local = LocalRows(2, 1.0, 20.0, 0.1, 0.5)
    A, labels = sphere(n, 2, 1.0), 0.5 * sphere(n, 1, 1.0, seed=1)[:, 0]
    source = SeededNoise(1)
    single = torch.stack([local.collect(A, labels, noise=source) for _ in range(700)])
    moments = second_moments(A, labels)
    together = local.release(moments, noise=SeededNoise(7), sample_shape=(10_000,))
    wrong = LocalRows(2, 1.0, 14.0, 0.1, 0.5).release(moments, noise=SeededNoise(7), sample_shape=(10_000,))
    views = [(0, 0), (0, 1), (1, 2), (2, 2)]
    values = [[r[:, i, j].numpy() for i, j in views] for r in (single, together, wrong)]
    for r in values:
        r.append((r[0] + r[1]) * r[3])
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(values[0], values[1], strict=True)) > ALPHA
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(values[0], values[2], strict=True)) < 1e-3


def test_local_release_debiased_is_unbiased_with_the_stated_levels():
    local, n = LocalRows(2, 1.0, 1.0, 1e-5, 0.5), 10**6
    moments = SecondMoments(n, torch.diag(torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)) * n)
    noisy = local.decode(local.release(moments, noise=SeededNoise(2), sample_shape=(20000,)), n)
    for found, exact in ((noisy.gram, moments.gram), (noisy.cross, moments.cross)):
        z = (found.mean(0) - exact) / (found.std(0) / math.sqrt(20000))
        assert float(z.abs().max()) < 5
    assert float(noisy.gram[:, 0, 1].std()) == pytest.approx(
        float(noisy.gram_sigma.mean()) / math.sqrt(2), rel=0.05
    )
    assert float(noisy.cross.std(0).mean()) == pytest.approx(float(noisy.cross_sigma.mean()), rel=0.05)


@pytest.mark.parametrize("degrees", [0, 1, 2, 3, 50])
def test_wishart_is_the_gram_of_normals(degrees):
    drawn = wishart(degrees, 3, (20000,), SeededNoise(1))
    normal = torch.randn(20000, degrees, 3, dtype=torch.float64, generator=generator(2))
    direct = normal.mT @ normal
    if degrees == 0:
        assert not drawn.any()
        return
    for view in (lambda w: w[:, 0, 0], lambda w: w[:, 0, 2], lambda w: w[:, 2, 2] + w[:, 1, 2], torch.linalg.det):
        if degrees < 3 and view is torch.linalg.det:
            continue
        assert stats.ks_2samp(view(drawn).numpy(), view(direct).numpy()).pvalue > ALPHA


@pytest.mark.parametrize("d", [1, 2, 6])
def test_guarantee_mod_sulq_exact_epsilon_of_its_sigma(d):
    mechanism = mod_sulq(d, B, EPSILON, DELTA)
    rows = sphere(60, d, B)
    rows[:2] = 0
    rows[0, 0] = B
    rows[1, -1] = B if d > 1 else 0.0
    triangles = torch.stack([upper(x) for x in rows])
    distance = float(torch.linalg.vector_norm(triangles[0] - triangles[1]))
    assert float(torch.pdist(triangles).max()) <= distance * (1 + 1e-12)
    assert gaussian_log_delta(mechanism.sigma, EPSILON, distance) == pytest.approx(math.log(DELTA), abs=1e-6)
    assert gaussian_log_delta(0.99 * mechanism.sigma, EPSILON, distance) > math.log(DELTA) + 0.01
    guarantee = mechanism.guarantee
    assert guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6) and guarantee.model is Model.CENTRAL
    assert ModSulq(d, B, mechanism.sigma / 2, DELTA).guarantee.epsilon > 1.5 * EPSILON


def test_published_mod_sulq_is_private_and_wastes_most_of_its_budget():
    ratios = {}
    for d in (2, 10, 50):
        published = paper_mod_sulq(10**5, d, 1.0, 0.1, 1e-6)
        assert published.guarantee.epsilon < 0.1
        ratios[d] = published.sigma / mod_sulq(d, 1.0, 0.1, 1e-6).sigma
    assert ratios[2] == pytest.approx(3.2, abs=0.1)
    assert ratios[10] == pytest.approx(12.5, abs=0.1)
    assert ratios[50] == pytest.approx(63, abs=1)


def test_mod_sulq_adds_the_noise_it_states():
    moments = SecondMoments(100, torch.eye(3, dtype=torch.float64))
    mechanism = mod_sulq(3, B, EPSILON, DELTA)
    noisy = mechanism.release(moments, noise=SeededNoise(3), sample_shape=(20000,))
    assert torch.equal(noisy.gram, noisy.gram.mT)
    assert noisy.gram_sigma.shape == (20000,)
    assert float(noisy.gram_sigma[0]) == pytest.approx(math.sqrt(2) * mechanism.sigma)
    z = ((noisy.gram - moments.matrix).var(0) / mechanism.sigma**2 - 1) * math.sqrt(10000)
    assert float(z.abs().max()) < 5


def test_guarantee_sufficient_statistics_epsilon_delta():
    ssp = SufficientStatistics(3, B, C, EPSILON, DELTA)
    for sigma, distance in ((ssp.gram_sigma, math.sqrt(2) * B**2), (ssp.cross_sigma, 2 * B * C)):
        assert gaussian_log_delta(sigma, EPSILON / 2, distance) == pytest.approx(math.log(DELTA / 2), abs=1e-6)
        assert gaussian_log_delta(0.99 * sigma, EPSILON / 2, distance) > math.log(DELTA / 2) + 0.01
    guarantee = ssp.guarantee
    assert guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6) and guarantee.delta == pytest.approx(DELTA)
    assert not guarantee.exact and guarantee.model is Model.CENTRAL


def test_guarantee_adassp_epsilon_delta():
    """The three releases of neighbours, each over its sigma, are one Gaussian pair at a distance of at most mu*."""
    ada = AdaSSP(2, B, C, EPSILON, DELTA)
    rest = sphere(5, 2, B, seed=1)

    def release(x, y):
        A, b = torch.cat([rest, x[None]]), torch.cat([torch.full((5,), C / 2), y[None]]).double()
        gram = A.mT @ A
        parts = torch.linalg.eigvalsh(gram)[:1], torch.cat([gram.diagonal(), math.sqrt(2) * gram[0, 1:]]), A.mT @ b
        return torch.cat([part / sigma for part, sigma in zip(parts, ada.sigmas, strict=True)])

    points = torch.cat([sphere(150, 2, B), torch.zeros(1, 2), sphere(20, 2, B / 2)])
    labels = C * torch.sign(torch.randn(171, dtype=torch.float64, generator=generator(5)))
    found = float(torch.pdist(torch.stack([release(x, y) for x, y in zip(points, labels, strict=True)])).max())
    limit = math.sqrt(sum((s / sigma) ** 2 for s, sigma in zip(ada.sensitivities, ada.sigmas, strict=True)))
    assert 0.5 * limit < found <= limit
    assert gaussian_log_delta(1.0, EPSILON, limit) == pytest.approx(math.log(DELTA), abs=1e-6)
    assert gaussian_log_delta(0.99, EPSILON, limit) > math.log(DELTA) + 0.01
    assert ada.guarantee.epsilon == pytest.approx(EPSILON, rel=1e-6) and not ada.guarantee.exact


def test_sensitivity_of_the_smallest_eigenvalue_is_reached():
    gram = torch.diag(torch.tensor([0.0, 100.0], dtype=torch.float64))
    x = torch.tensor([B, 0.0], dtype=torch.float64)
    gain = torch.linalg.eigvalsh(gram + torch.outer(x, x))[0] - torch.linalg.eigvalsh(gram)[0]
    assert float(gain) == pytest.approx(AdaSSP(2, B, C, EPSILON, DELTA).sensitivities[0])


def test_published_adassp_scale_fails_alone_and_wastes_together():
    scale = paper_adassp_scale(1.0, 1e-6)
    assert gaussian_log_delta(scale, 1 / 3) > math.log(1e-6 / 3)  # one release at a third of the budget
    assert gaussian_log_delta(scale, 1.0, math.sqrt(3)) < math.log(1e-10)  # all three at all of it
    together = gaussian_guarantee(scale, 1e-6, math.sqrt(3), Model.CENTRAL, Neighbours.ADD_REMOVE)
    assert together.epsilon < 0.7


def test_adassp_solves_and_shrinks_where_noise_rules():
    A = sphere(20000, 3, B)
    moments = second_moments(A, (A[:, 0] * 0.4).clamp(-C, C) + 0.1 * torch.sign(A[:, 1]))
    good = AdaSSP(3, B, C, 2.0, 1e-6).solve(moments, 1.0, noise=SeededNoise(1), sample_shape=(50,))
    assert float(phi(moments, good, 1.0).mean()) < 1.05
    poor = AdaSSP(3, B, C, 1e-4, 1e-6).solve(moments, 1.0, noise=SeededNoise(1), sample_shape=(50,))
    assert float(phi(moments, poor, 1.0).median()) < 3 * float(phi(moments, torch.zeros(3), 1.0))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="label_bound must"):
        LocalRows(2, 1.0, 1.0, DELTA, 0.0)
    with pytest.raises(ValueError, match="delta must"):
        AdaSSP(2, 1.0, 1.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="rho must"):
        AdaSSP(2, 1.0, 1.0, 1.0, DELTA, rho=1.0)
    with pytest.raises(ValueError, match="epsilon must"):
        SufficientStatistics(2, 1.0, 1.0, 0.0, DELTA)
    for epsilon, delta, name in ((True, DELTA, "epsilon"), (1.0, 1, "delta"), (1.0, 1.5, "delta")):
        for kind in (SufficientStatistics, AdaSSP):
            with pytest.raises(ValueError, match=f"{name} must"):
                kind(2, 1.0, 1.0, epsilon, delta)
    with pytest.raises(ValueError, match="longer than bound"):
        mod_sulq(2, 1.0, 1.0, DELTA).release(second_moments(3 * torch.eye(2)), noise=SeededNoise(0))
