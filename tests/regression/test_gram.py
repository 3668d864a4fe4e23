"""The Gram route: its guarantee from explicit neighbours, its two paths, and the central mechanism it equals in
law."""

import math
import time

import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_log_delta
from torchdp.regression import GramRelease, SecondMoments, second_moments

ALPHA = 1e-6
EPSILON, DELTA = 0.5, 1e-5


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def rows(n, d, seed=0, bound=1.5):
    A = torch.randn(n, d, dtype=torch.float64, generator=generator(seed))
    return A * (bound / torch.linalg.vector_norm(A, dim=1, keepdim=True)).clamp_max(1)


def neighbours(release):
    """Two clients at the largest distance, and many others."""
    d, B, C = release.columns, release.bound, release.label_bound
    A = B * torch.nn.functional.normalize(torch.randn(400, d, dtype=torch.float64, generator=generator(1)), dim=1)
    A[::3] *= torch.rand(134, 1, dtype=torch.float64, generator=generator(2))
    A[:2] = 0
    A[0, 0] = B
    if C is None:
        A[1, -1] = B if d > 1 else 0
        return A, None
    labels = C * (2 * torch.rand(400, dtype=torch.float64, generator=generator(3)) - 1)
    cosine = 0.5 if d > 1 else 1.0
    A[1, 0], A[1, -1] = B * cosine, B * (math.sqrt(0.75) if d > 1 else 1.0)
    labels[:2] = torch.tensor([C, -C])
    return A, labels


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("label_bound", [None, 0.2, 9.0])
@pytest.mark.parametrize("corrupt", [0, 60])
def test_guarantee_gram_release_exactly_epsilon_delta(d, label_bound, corrupt):
    release = GramRelease(100, d, 1.5, EPSILON, DELTA, label_bound=label_bound, corrupt=corrupt)
    encoded = release.encode(*neighbours(release))
    distance = float(torch.linalg.vector_norm(encoded[0] - encoded[1]))
    everything = float(torch.pdist(encoded).max())
    assert everything <= distance * (1 + 1e-12)  # never exceeded
    share = release.noise.sigma / math.sqrt(100 - corrupt)  # of each client's noise
    left = share * math.sqrt(100 - corrupt)  # standard deviation of what honest clients add
    assert gaussian_log_delta(left, EPSILON, distance) == pytest.approx(math.log(DELTA), abs=1e-6)  # reached
    assert gaussian_log_delta(left * 0.99, EPSILON, distance) > math.log(DELTA) + 0.01  # less noise fails
    assert left < share * math.sqrt(100) or corrupt == 0
    guarantee = release.guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.exact) == (EPSILON, DELTA, True)
    assert (guarantee.model, guarantee.neighbours) == (Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("label_bound", [None, 2.0])
def test_each_client_adds_its_share_and_the_sum_has_the_level(label_bound):
    release = GramRelease(50, 3, 1.5, EPSILON, DELTA, label_bound=label_bound, corrupt=10)
    A = rows(50, 3)
    labels = None if label_bound is None else A[:, 0]
    source = SeededNoise(1)
    sent = torch.stack([release.messages(A, labels, noise=source) for _ in range(400)])
    noise = sent - release.encode(A, labels)
    z = (noise.var() / (release.noise.sigma**2 / 40) - 1) * math.sqrt(noise.numel() / 2)
    assert abs(float(z)) < 5
    assert float(noise.sum(1).var()) == pytest.approx(release.gram_sigma**2, rel=0.15)
    assert release.gram_sigma == pytest.approx(release.noise.sigma * math.sqrt(50 / 40))


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("labelled", [True, False])
def test_summed_messages_and_the_aggregate_release_have_one_law(n, labelled):
    bound = 0.4  # data and noise of one size
    release = GramRelease(n, 2, bound, 20.0, 0.1, label_bound=3.0 if labelled else None, corrupt=n // 3)
    A = rows(n, 2, bound=bound)
    labels = 3 * A[:, 1] if labelled else None
    source = SeededNoise(1)
    single = [release.collect(A, labels, noise=source) for _ in range(700)]
    together = release.release(second_moments(A, labels), noise=SeededNoise(9), sample_shape=(10_000,))
    wrong = GramRelease(n, 2, bound, 10.0, 0.1, label_bound=3.0 if labelled else None, corrupt=n // 3).release(
        second_moments(A, labels), noise=SeededNoise(8), sample_shape=(10_000,)
    )
    views = {
        "diagonal": lambda r: r.gram[..., 0, 0],
        "off": lambda r: r.gram[..., 0, 1],
        "trace": lambda r: r.gram.diagonal(dim1=-2, dim2=-1).sum(-1),
    }
    if labelled:
        views["cross"] = lambda r: r.cross @ torch.tensor([1.0, -2.0], dtype=torch.float64)
        views["both"] = lambda r: r.cross[..., 0] + r.gram[..., 1, 1]
    rejected = 0
    for view in views.values():
        first = torch.stack([view(r) for r in single]).numpy()
        assert stats.ks_2samp(first, view(together).numpy()).pvalue > ALPHA
        rejected += stats.ks_2samp(first, view(wrong).numpy()).pvalue < 1e-3
    assert rejected  # half of epsilon is noticed


def test_release_equals_the_central_gaussian_mechanism_draw_by_draw():
    moments = second_moments(rows(30, 4), rows(30, 4)[:, 1])
    both = [
        GramRelease(30, 4, 1.5, 1.0, DELTA, label_bound=1.5, model=model).release(moments, noise=SeededNoise(3))
        for model in (Model.LINEAR_TRANSFORM, Model.CENTRAL)
    ]
    assert torch.equal(both[0].gram, both[1].gram) and torch.equal(both[0].cross, both[1].cross)
    central = GramRelease(30, 4, 1.5, 1.0, DELTA, label_bound=1.5, model=Model.CENTRAL)
    assert central.guarantee.model is Model.CENTRAL


def test_noise_is_isotropic_on_symmetric_matrices_and_cross_has_its_own_unit():
    moments = second_moments(rows(30, 3), 5 * rows(30, 3)[:, 1])
    release = GramRelease(30, 3, 1.5, 1.0, DELTA, label_bound=7.5)
    noisy = release.release(moments, noise=SeededNoise(4), sample_shape=(40000,))
    noise = noisy.gram - moments.gram
    assert torch.equal(noise, noise.mT)
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator(5))).Q
    for turned in (noise, rotation @ noise @ rotation.mT):
        variance = turned.var(0) / release.gram_sigma**2
        expected = (torch.ones(3, 3) + torch.eye(3)).double() / 2
        assert float(((variance / expected - 1) * math.sqrt(40000 / 2)).abs().max()) < 5
    z = ((noisy.cross - moments.cross).var(0) / release.cross_sigma**2 - 1) * math.sqrt(40000 / 2)
    assert float(z.abs().max()) < 5
    assert release.cross_sigma == pytest.approx(release.gram_sigma * 5)


def test_units_of_the_label_do_not_matter():
    moments = second_moments(rows(30, 3), rows(30, 3)[:, 1])
    scaled = second_moments(rows(30, 3), 1000 * rows(30, 3)[:, 1])
    one = GramRelease(30, 3, 1.5, 1.0, DELTA, label_bound=1.5).release(moments, noise=SeededNoise(1))
    other = GramRelease(30, 3, 1.5, 1.0, DELTA, label_bound=1500).release(scaled, noise=SeededNoise(1))
    torch.testing.assert_close(other.cross, 1000 * one.cross, rtol=1e-12, atol=0)
    torch.testing.assert_close(other.gram, one.gram, rtol=1e-12, atol=0)


def test_rows_and_labels_are_cut_to_their_bounds():
    release = GramRelease(2, 2, 1.0, 1.0, DELTA, label_bound=1.0)
    inside = release.encode(torch.tensor([[0.6, 0.8], [0.0, 0.5]]), torch.tensor([1.0, 0.5]))
    outside = release.encode(torch.tensor([[6.0, 8.0], [0.0, 0.5]]), torch.tensor([70.0, 0.5]))
    torch.testing.assert_close(inside, outside)


def test_forty_million_clients_take_milliseconds():
    n, d = 40_000_000, 10
    release = GramRelease(n, d, math.sqrt(d), 0.1, 1e-6, label_bound=1.0)
    moments = SecondMoments(n, torch.eye(d + 1, dtype=torch.float64) * n * 0.3)
    start = time.perf_counter()
    noisy = release.release(moments, noise=SeededNoise(0), sample_shape=(100,))
    assert time.perf_counter() - start < 1 and noisy.gram.shape == (100, d, d)
    assert release.words == 65


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="must be less than the 5"):
        GramRelease(5, 2, 1.0, 1.0, DELTA, corrupt=5)
    with pytest.raises(ValueError, match="model must be"):
        GramRelease(5, 2, 1.0, 1.0, DELTA, model=Model.LOCAL)
    with pytest.raises(ValueError, match="model must be"):
        GramRelease(5, 2, 1.0, 1.0, DELTA, corrupt=1, model=Model.CENTRAL)
    with pytest.raises(ValueError, match="delta must"):
        GramRelease(5, 2, 1.0, 1.0, 0.0)
    release = GramRelease(5, 2, 1.0, 1.0, DELTA)
    with pytest.raises(ValueError, match="longer than bound"):
        release.release(second_moments(torch.ones(5, 2)), noise=SeededNoise(0))
    with pytest.raises(ValueError, match="5 rows of 2 columns"):
        release.release(second_moments(torch.zeros(4, 2)), noise=SeededNoise(0))
    with pytest.raises(ValueError, match="each of the 5 clients"):
        release.collect(torch.zeros(4, 2), noise=SeededNoise(0))
    with pytest.raises(ValueError, match="label_bound"):
        release.encode(torch.zeros(5, 2), torch.zeros(5))
    with pytest.raises(ValueError, match="NaN"):
        release.encode(torch.full((5, 2), math.nan))
    with pytest.raises(TypeError, match=r"torch\.Generator"):
        release.messages(torch.zeros(5, 2), noise=3)


@pytest.mark.gpu
def test_gram_release_on_a_gpu():
    release = GramRelease(1000, 3, 1.5, 1.0, DELTA, label_bound=1.5)
    A = rows(1000, 3).cuda()
    both = [
        release.collect(A, A[:, 0], noise=SeededNoise(1, "cuda")),
        release.release(second_moments(A, A[:, 0]), noise=SeededNoise(2, "cuda")),
    ]
    for noisy in both:
        assert noisy.gram.is_cuda and noisy.cross.is_cuda
        assert float((noisy.gram - A.mT @ A).abs().max()) < 6 * release.gram_sigma
