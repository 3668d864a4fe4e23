"""PrivUnitG draws: the exact law in one dimension, mean and covariance at every kind of point, sums over users."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_ndtr, ndtr

from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnitG

ALPHA = 1e-6


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def moment_scores(samples, mean, variance, correlated=0.0):
    """Largest |z| over the means and over the covariance entries of samples (n, d), and how many z's were taken."""
    n, d = samples.shape
    z = (samples - mean) / math.sqrt(variance)
    products = (z[:, :, None] * z[:, None, :]).flatten(1)[:, torch.ones(d, d).triu().flatten() == 1]
    wanted = torch.eye(d, dtype=z.dtype, device=z.device).flatten()[torch.ones(d, d).triu().flatten() == 1]
    of_means = z.mean(0) * math.sqrt(n)
    of_products = (products.mean(0) - wanted) / (products.std(0) / math.sqrt(n))
    trace = (products @ wanted - d).mean() / ((products @ wanted).std() / math.sqrt(n))
    scores = torch.cat([of_means, of_products, trace[None]])
    return float(scores.abs().max()), scores.numel()


def plausible(scores):
    worst, number = scores
    return worst < stats.norm.isf(ALPHA / 2 / number)


def points_at(norm, dim, radius):
    x = torch.arange(1, dim + 1, dtype=torch.float64) * torch.tensor([1.0, -1.0]).double().repeat(dim)[:dim]
    return x / x.norm() * norm * radius


@pytest.mark.parametrize("epsilon", [0.5, 4, 20])
@pytest.mark.parametrize("norm", [0.0, 0.6, 1.0])
def test_mean_and_covariance_do_not_depend_on_the_point(epsilon, norm):
    randomizer = PrivUnitG(3, epsilon, 2.5)
    x = points_at(norm, 3, 2.5)
    samples = randomizer.sample(x.expand(200_000, 3), noise=SeededNoise(1))
    variance = randomizer.moments.variance
    assert plausible(moment_scores(samples, x, variance))
    assert not plausible(moment_scores(samples, x, variance * 1.01**2))  # radius 1 % off
    shifted = x + 0.02 * math.sqrt(variance)  # a mean off by 2 % of the noise
    assert not plausible(moment_scores(samples, shifted, variance))


@pytest.mark.parametrize("epsilon", [0.5, 8])
def test_standardised_moments_along_the_point(epsilon):
    randomizer = PrivUnitG(4, epsilon)
    x, n = points_at(1.0, 4, 1.0), 1_000_000
    z = (randomizer.sample(x.expand(n, 4), noise=SeededNoise(2)) - x) @ x / math.sqrt(randomizer.moments.variance)
    for power, moment in ((3, randomizer.moments.third), (4, randomizer.moments.fourth)):
        error = float(z.pow(power).std()) / math.sqrt(n)
        assert abs(float(z.pow(power).mean()) - moment) < 5.2 * error
        assert abs(float(z.pow(power).mean()) - 1.05 * moment) > 5.2 * error or abs(moment) < 1  # 5 % is seen


def distribution_function(randomizer, x):
    """Exact F of k Y/C in one dimension, on a fine grid: the integral of phi (c0 + (c1 - c0) Phi((x' y - k)/h))."""
    tau, height = randomizer.tau, math.sqrt(1 - x * x)
    k, c0, c1 = tau.threshold, tau.low_density, tau.high_density
    if height == 0:
        sign = math.copysign(1, x)

        def one_sided(y):
            t = sign * y
            low, high = c0 * ndtr(t), 1 - c1 * np.exp(log_ndtr(-t))
            below = np.where(t < k, low, high)
            return below if sign > 0 else 1 - below

        return one_sided
    y = np.linspace(-25, 25, 400_001)
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (c0 + (c1 - c0) * ndtr((x * y - k) / height))
    integral = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(y))])
    return lambda t: np.interp(t, y, integral)


@pytest.mark.parametrize("epsilon", [0.5, 4, 20])
@pytest.mark.parametrize("x", [0.0, -0.6, 1.0])
def test_law_in_one_dimension(epsilon, x):
    randomizer = PrivUnitG(1, epsilon, 2.0)
    points = torch.full((1_000_000, 1), 2.0 * x, dtype=torch.float64)
    y = randomizer.sample(points, noise=SeededNoise(3))[:, 0].numpy() * randomizer.tau.threshold / 2.0

    def chi_square(y):
        counts = np.histogram(distribution_function(randomizer, x)(y), 100, (0, 1))[0]
        return ((counts - 1e4) ** 2 / 1e4).sum()

    critical = stats.chi2.isf(ALPHA, 99)
    assert chi_square(y) < critical
    assert chi_square(1.01 * y) > critical


def test_float32_and_float64_have_one_law():
    x = points_at(0.6, 3, 1.0)
    single, double = (
        PrivUnitG(3, 4).sample(x.to(dtype).expand(200_000, 3), noise=SeededNoise(seed))
        for seed, dtype in ((4, torch.float32), (5, torch.float64))
    )
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    for direction in torch.eye(3, dtype=torch.float64):
        pair = (single.double() @ direction).numpy(), (double @ direction).numpy()
        assert stats.ks_2samp(*pair).pvalue > ALPHA
        assert stats.ks_2samp(pair[0], pair[1] + 0.05).pvalue < ALPHA


COUNTS = torch.tensor([0, 1, 3, 17, 40])


def types(norm=None):
    """Five points of the ball in three dimensions: the centre, inside, on the sphere."""
    x = torch.stack([points_at(n, 3, 1.5) for n in (1.0, 0.0, 0.3, 0.8, 1.0)])
    return x * torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, -1, 1], [-1, 1, 1], [1, 1, 1]], dtype=torch.float64)


@pytest.fixture(scope="module", params=[0.5, 4, 20])
def both_paths(request):
    """(epsilon, sums from every user's own message, sums drawn at once)."""
    randomizer, repeats = PrivUnitG(3, request.param, 1.5), 20_000
    users = types().repeat_interleave(COUNTS, 0)
    messages = randomizer.sample(users.expand(repeats, *users.shape), noise=SeededNoise(6))
    sums = randomizer.sample_sum(types(), COUNTS, generator=generator(7), sample_shape=(repeats,))
    return request.param, randomizer.decode_sum(messages), sums


def projections(sums):
    center = COUNTS.double() @ types()
    along = center / center.norm()
    across = torch.linalg.svd(along[None])[2][1]
    return [sums @ along, sums @ across, (sums - center).square().sum(-1)]


def test_sample_sum_has_the_law_of_summed_messages(both_paths):
    epsilon, slow, fast = both_paths
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(projections(slow), projections(fast), strict=True)]
    assert all(stats.ks_2samp(*pair).pvalue > ALPHA for pair in pairs)
    if epsilon >= 4:  # one user more on the sphere
        one_more = COUNTS + torch.tensor([0, 0, 0, 0, 1])
        off = PrivUnitG(3, epsilon, 1.5).sample_sum(
            types(), one_more, generator=generator(8), sample_shape=(40_000,)
        )
        assert stats.ks_2samp(pairs[0][0], projections(off)[0].numpy()).pvalue < ALPHA


def test_sample_sum_has_mean_sum_of_x_and_covariance_n_v(both_paths):
    epsilon, slow, fast = both_paths
    variance = 61 * PrivUnitG(3, epsilon, 1.5).moments.variance
    for sums in (slow, fast):
        assert plausible(moment_scores(sums, COUNTS.double() @ types(), variance))
        assert not plausible(moment_scores(sums, COUNTS.double() @ types(), variance * 1.05))
    wrong = (COUNTS + torch.tensor([0, 0, 0, 0, 1])).double() @ types()
    if epsilon >= 4:
        assert not plausible(moment_scores(fast, wrong, variance))


@pytest.mark.parametrize("epsilon", [1, 8])
def test_sums_of_single_users_keep_the_law_of_the_message(epsilon):
    """Counts of 1 at a point of the sphere: the sum is one message, skewness and all."""
    randomizer, x = PrivUnitG(1, epsilon), torch.tensor([[-1.0]], dtype=torch.float64)
    sums = randomizer.sample_sum(x, torch.tensor([1]), generator=generator(9), sample_shape=(1_000_000,))
    uniform = distribution_function(randomizer, -1.0)(sums[:, 0].numpy() * randomizer.tau.threshold)
    critical = stats.chi2.isf(ALPHA, 99)
    assert stats.chisquare(np.histogram(uniform, 100, (0, 1))[0]).statistic < critical
    off = distribution_function(randomizer, -1.0)(1.01 * sums[:, 0].numpy() * randomizer.tau.threshold)
    assert stats.chisquare(np.histogram(off, 100, (0, 1))[0]).statistic > critical


@pytest.mark.parametrize("users", [10**9, 10**12, 8 * 10**13])
@pytest.mark.parametrize("epsilon", [0.5, 20])
def test_sums_over_very_many_users(epsilon, users):
    """||sum - n x||^2/(n v) is chi-square with dim degrees of freedom, at a cost that n does not touch."""
    randomizer, dim, repeats = PrivUnitG(32, epsilon, 2.0), 32, 5000
    x = torch.stack([points_at(1.0, dim, 2.0), -points_at(0.5, dim, 2.0)])
    counts = torch.tensor([users, users // 7])
    sums = randomizer.sample_sum(x, counts, generator=generator(10), sample_shape=(repeats,))
    error = (sums - counts.double() @ x) / math.sqrt(float(counts.sum()) * randomizer.moments.variance)
    total = float(error.square().sum())
    tails = stats.chi2.isf(1 - ALPHA / 2, dim * repeats), stats.chi2.isf(ALPHA / 2, dim * repeats)
    assert tails[0] < total < tails[1]
    assert not tails[0] < total * 1.01**2 < tails[1]  # scale 1 % off
    assert stats.kstest(error.square().sum(-1).numpy(), stats.chi2(dim).cdf).pvalue > ALPHA
    assert (error.mean(0).abs() * math.sqrt(repeats) < 5.5).all()


def test_decode_sum_adds_in_float64():
    messages = torch.ones(2, 3_000_000, 1, dtype=torch.float32) / 3
    assert torch.equal(PrivUnitG(1, 1).decode_sum(messages), messages.double().sum(-2))


def test_a_point_rounded_out_of_the_ball_is_taken_as_on_the_sphere():
    """float32 points of norm 1 + a few roundings: accepted, and private because they are projected."""
    x = torch.nn.functional.normalize(torch.randn(1000, 50, generator=generator(11)), dim=-1)
    assert (x.double().norm(dim=-1) > 1).any()
    randomizer = PrivUnitG(50, 1.0)
    out = x * (1 + 4e-7)
    near, same = (randomizer.sample(points, noise=SeededNoise(12)) for points in (out, x))
    torch.testing.assert_close(near, same, rtol=1e-3, atol=1e-3)
    for points in (1.0001 * x, 1.0001 * x.double()):
        with pytest.raises(ValueError, match="x holds points outside"):
            randomizer.sample(points, noise=SeededNoise(12))


@pytest.mark.parametrize("dim", [1, 4])
def test_edges(dim):
    randomizer = PrivUnitG(dim, 1.0)
    none = torch.zeros(0, dim)
    assert randomizer.sample(none, noise=SeededNoise(0)).shape == (0, dim)
    assert (randomizer.decode_sum(none) == 0).all()
    assert randomizer.sample(torch.zeros(dim), noise=SeededNoise(0)).shape == (dim,)
    assert randomizer.sample(torch.zeros(2, 3, dim), noise=SeededNoise(0)).shape == (2, 3, dim)
    x, zero = torch.zeros(5, dim), torch.zeros(5, dtype=torch.int64)
    assert (randomizer.sample_sum(x, zero, generator=generator()) == 0).all()
    for shape in ((), (0,), (2, 0), (1,), (2, 3)):
        assert randomizer.sample_sum(x, zero + 2, generator=generator(), sample_shape=shape).shape == (*shape, dim)
    assert randomizer.sample_sum(x, zero.double() + 2.0, generator=generator()).dtype == torch.float64
    assert (randomizer.sample_sum(x[:0], zero[:0], generator=generator()) == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("epsilon", [0.5, 8])
def test_law_on_a_gpu(epsilon):
    randomizer, x = PrivUnitG(3, epsilon), points_at(0.6, 3, 1.0).cuda()
    samples = randomizer.sample(x.expand(400_000, 3), noise=SeededNoise(1, "cuda"))
    assert plausible(moment_scores(samples.cpu(), x.cpu(), randomizer.moments.variance))
    counts = torch.tensor([3], device="cuda")
    sums = randomizer.sample_sum(x[None], counts, generator=generator(2, "cuda"), sample_shape=(400_000,))
    assert plausible(moment_scores(sums.cpu(), 3 * x.cpu(), 3 * randomizer.moments.variance))
    assert not plausible(moment_scores(sums.cpu(), 3 * x.cpu(), 3 * 1.02 * randomizer.moments.variance))
