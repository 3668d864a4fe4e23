"""What every randomizer of the ball promises: mean, covariance, two paths of one law, edges, refused input."""

import math

import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import GaussianVector, PrivUnit

ALPHA, RADIUS = 1e-6, 2.5
MAKE = {
    "PrivUnit": PrivUnit,
    "Gaussian": lambda dim, epsilon, radius=1.0: GaussianVector(dim, epsilon, radius, delta=1e-6),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())


def said(randomizer, x, noise):
    """The unbiased vectors of these users' messages."""
    return randomizer.randomize_unchecked(x, noise)


def at(norm, dim, radius=RADIUS):
    x = torch.arange(1, dim + 1, dtype=torch.float64) * torch.tensor([1.0, -1.0]).double().repeat(dim)[:dim]
    return x / x.norm() * norm * radius


def whitened(noise, covariance):
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), noise.mT, upper=False).mT


def moment_scores(z):
    """Largest |z-score| over means and second moments of samples that should be white, and how many there were."""
    n, d = z.shape
    pairs = torch.ones(d, d).triu().flatten() == 1
    products = (z[:, :, None] * z[:, None, :]).flatten(1)[:, pairs]
    wanted = torch.eye(d, dtype=z.dtype).flatten()[pairs]
    scores = torch.cat([z.mean(0) / z.std(0), (products.mean(0) - wanted) / products.std(0)]) * math.sqrt(n)
    return float(scores.abs().max()), scores.numel()


def plausible(scores):
    worst, number = scores
    return worst < stats.norm.isf(ALPHA / 2 / number)


def test_the_moments_are_a_covariance():
    x = torch.stack([at(0.3, 4), at(1.0, 4)])
    for make in MAKE.values():
        randomizer = make(4, 2.0, RADIUS)
        covariance = randomizer.moments.covariance(x)
        along = torch.einsum("bi,bij,bj->b", x, covariance, x) / x.square().sum(-1)
        m = randomizer.moments
        torch.testing.assert_close(along, m.variance + m.outer * x.square().sum(-1))
        for point, matrix in zip(x, covariance, strict=True):
            assert float(matrix.trace()) == pytest.approx(randomizer.squared_error(float(point.norm())), rel=1e-12)
        assert torch.linalg.eigvalsh(covariance).min() > 0


@every
@pytest.mark.parametrize("epsilon", [0.5, 20])
def test_mean_and_covariance(make, epsilon):
    randomizer = make(3, epsilon, RADIUS)
    for norm in (0.0, 0.6, 1.0):
        x = at(norm, 3)
        noise = said(randomizer, x.expand(60_000, 3), SeededNoise(1)) - x
        covariance = randomizer.moments.covariance(x)
        z = whitened(noise, covariance)
        assert plausible(moment_scores(z))
        if epsilon < 20:  # there a rare large deviation may carry the variance
            assert not plausible(moment_scores(whitened(noise, 1.06 * covariance)))
        if norm == 1:
            shifted = whitened(noise + 0.03 * math.sqrt(randomizer.moments.variance), covariance)
            assert not plausible(moment_scores(shifted))


@every
@pytest.mark.parametrize("epsilon", [0.5, 2.5])
def test_standardised_third_and_fourth_moment_along_the_point(make, epsilon):
    randomizer, x, n = make(4, epsilon, RADIUS), at(1.0, 4), 200_000
    m = randomizer.moments
    noise = (said(randomizer, x.expand(n, 4), SeededNoise(2)) - x) @ x / RADIUS
    z = noise / math.sqrt(m.variance + m.outer * RADIUS**2)
    for power, moment in ((3, m.third), (4, m.fourth)):
        error = float(z.pow(power).std()) / math.sqrt(n)
        assert abs(float(z.pow(power).mean()) - moment) < 5.2 * error
    assert abs(float(z.pow(4).mean()) - 1.1 * m.fourth) > 5.2 * error


@every
def test_float32_and_float64_have_one_law(make):
    x, randomizer = at(0.6, 3, 1.0), make(3, 2.5)
    single, double = (
        said(randomizer, x.to(dtype).expand(60_000, 3), SeededNoise(seed))
        for seed, dtype in ((4, torch.float32), (5, torch.float64))
    )
    assert double.dtype == torch.float64 and single.dtype == torch.float32
    deviation = math.sqrt(randomizer.moments.variance)
    for direction in torch.eye(3, dtype=torch.float64):
        pair = (single.double() @ direction).numpy(), (double @ direction).numpy()
        assert stats.ks_2samp(*pair).pvalue > ALPHA
        assert stats.ks_2samp(pair[0], pair[1] + 0.1 * deviation).pvalue < ALPHA


@every
def test_float32_sums_stay_close_to_float64_sums(make):
    messages = make(16, 1.0).randomize_unchecked(torch.zeros(20_000, 16), SeededNoise(6))
    sums = make(16, 1.0).tally(messages)["sum"], messages.double().sum(0)
    torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-3)  # what float32 messages lost, 2e4 times at random


COUNTS = torch.tensor([0, 1, 3, 17, 40])


def types(dim):
    """The centre, points inside, points on the sphere; nobody holds the first."""
    signs = torch.tensor([[1.0, 1], [1, 1], [1, -1], [-1, 1], [1, 1]], dtype=torch.float64).repeat(1, dim)[:, :dim]
    return torch.stack([at(norm, dim) for norm in (1.0, 0.0, 0.3, 0.8, 1.0)]) * signs


def projections(randomizer, sums, center):
    """Along the mean, across it, over all coordinates, squared distance: in deviations of one message."""
    along = center / center.norm()
    across = torch.linalg.svd(along[None])[2][-1]
    sums, center = (part / math.sqrt(randomizer.moments.variance) for part in (sums, center))
    found = [sums @ along, sums @ across, sums.sum(-1), (sums - center).square().sum(-1)]
    # on the line some laws are discrete: equal sums must be equal
    return [part.mul(1e8).round() for part in found]


@every
@pytest.mark.parametrize("epsilon", [0.5, 20])
@pytest.mark.parametrize("dim", [1, 2])
def test_sample_sum_has_the_law_of_summed_messages(make, dim, epsilon):
    randomizer, repeats, points = make(dim, epsilon, RADIUS), 2500, types(dim)
    users, center = points.repeat_interleave(COUNTS, 0), COUNTS.double() @ points
    slow = said(randomizer, users.expand(repeats, *users.shape), SeededNoise(7)).sum(-2)
    fast = randomizer.sample_tally(Crowd(points, COUNTS), generator=generator(8), sample_shape=(repeats,))["sum"]
    pairs = list(zip(projections(randomizer, slow, center), projections(randomizer, fast, center), strict=True))
    assert all(stats.ks_2samp(a.numpy(), b.numpy()).pvalue > ALPHA for a, b in pairs)
    if epsilon == 20 and make is PrivUnit:  # one user more is seen
        off = randomizer.sample_tally(
            Crowd(points, COUNTS + torch.tensor([0, 0, 0, 0, 1])), generator=generator(9), sample_shape=(repeats,)
        )["sum"]
        seen = [
            stats.ks_2samp(a.numpy(), b.numpy()).pvalue
            for a, b in zip(
                projections(randomizer, slow, center), projections(randomizer, off, center), strict=True
            )
        ]
        assert min(seen) < ALPHA
    wider = [projections(randomizer, center + 1.3 * (fast - center), center)[i] for i in (0, -1)]
    assert (
        min(stats.ks_2samp(pairs[i][0].numpy(), w.numpy()).pvalue for i, w in zip((0, -1), wider, strict=True))
        < ALPHA
    )


@pytest.mark.slow
@every
@pytest.mark.parametrize("epsilon", [0.01, 1, 4, 20])
@pytest.mark.parametrize("dim", [1, 2, 3, 17])
def test_sample_sum_has_the_law_of_summed_messages_in_many_draws(make, dim, epsilon):
    randomizer, points, slow = make(dim, epsilon, RADIUS), types(dim), []
    users, center = points.repeat_interleave(COUNTS, 0), COUNTS.double() @ points
    source, noise = generator(16), SeededNoise(16)
    for _ in range(10):
        slow.append(said(randomizer, users.expand(4000, *users.shape), noise).sum(-2))
    fast = randomizer.sample_tally(Crowd(points, COUNTS), generator=source, sample_shape=(40_000,))["sum"]
    for a, b in zip(
        projections(randomizer, torch.cat(slow), center), projections(randomizer, fast, center), strict=True
    ):
        assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > ALPHA
    wider = projections(randomizer, center + 1.08 * (fast - center), center)[-1]
    assert (
        stats.ks_2samp(projections(randomizer, torch.cat(slow), center)[-1].numpy(), wider.numpy()).pvalue < ALPHA
    )


@every
def test_sums_over_many_users_have_the_predicted_size(make):
    """||sum - n x||^2 over its mean, for more users than are drawn at once."""
    randomizer, dim, repeats = make(24, 1.0, RADIUS), 24, 30
    points, counts = torch.stack([at(1.0, dim), -at(0.5, dim)]), torch.tensor([20_000, 3])
    sums = randomizer.sample_tally(Crowd(points, counts), generator=generator(12), sample_shape=(repeats,))["sum"]
    covariance = torch.einsum("m,mij->ij", counts.double(), randomizer.moments.covariance(points))
    error = whitened(sums - counts.double() @ points, covariance).square().sum()
    assert stats.chi2.isf(1 - ALPHA / 2, dim * repeats) < float(error) < stats.chi2.isf(ALPHA / 2, dim * repeats)
    assert float(error) * 1.3**2 > stats.chi2.isf(ALPHA / 2, dim * repeats)


@every
def test_points_a_rounding_outside_are_taken_as_on_the_sphere(make):
    randomizer = make(50, 1.0)
    x = torch.nn.functional.normalize(torch.randn(500, 50, generator=generator(13)), dim=-1)
    assert (x.double().norm(dim=-1) > 1).any()
    near, same = (said(randomizer, points, SeededNoise(14)) for points in (x * (1 + 4e-7), x))
    torch.testing.assert_close(near, same, rtol=3e-3, atol=3e-3 + 2 * getattr(randomizer, "step", 0.0))
    ulp = torch.tensor([[1 + 2**-52], [1.0], [1 - 2**-53]], dtype=torch.float64)
    assert make(1, 1.0).randomize_unchecked(ulp, SeededNoise(15)).isfinite().all()
    for points in (1.0001 * x, 1.0001 * x.double()):
        with pytest.raises(ValueError, match="x holds points outside"):
            randomizer.randomize(points, noise=SeededNoise(14))
        with pytest.raises(ValueError, match=r"summary must hold values .* outside"):
            randomizer.sample_tally(Crowd(points, torch.ones(500)), generator=generator(14))


@every
def test_messages_carry_no_gradient_and_leave_their_input_alone(make):
    x = at(0.5, 4, 1.0).expand(10, 4).clone().requires_grad_()
    before = x.detach().clone()
    assert not make(4, 1.0).randomize_unchecked(x, SeededNoise(0)).requires_grad
    assert not make(4, 1.0).sample_tally(Crowd(x, torch.ones(10)), generator=generator())["sum"].requires_grad
    assert torch.equal(x.detach(), before)


@pytest.mark.gpu
@every
def test_laws_on_a_gpu(make):
    randomizer, x = make(3, 2.5, RADIUS), at(0.6, 3).cuda()
    noise = said(randomizer, x.expand(200_000, 3), SeededNoise(1, "cuda")) - x
    covariance = randomizer.moments.covariance(x).cpu()
    assert plausible(moment_scores(whitened(noise.cpu(), covariance)))
    counts = torch.tensor([5], device="cuda")
    sums = randomizer.sample_tally(
        Crowd(x[None], counts), generator=generator(2, "cuda"), sample_shape=(100_000,)
    )["sum"]
    assert plausible(moment_scores(whitened((sums - 5 * x).cpu(), 5 * covariance)))
    assert not plausible(moment_scores(whitened((sums - 5 * x).cpu(), 5.3 * covariance)))


@every
def test_predicted_mse_is_the_mean_of_the_users_covariances(make):
    randomizer = make(2, 1.0, 2.0)
    points = torch.tensor([[2.0, 0.0], [0.6, -1.0], [0.0, 0.0]], dtype=torch.float64)
    counts = torch.tensor([3, 1, 6])
    each = torch.stack([randomizer.moments.covariance(point).diagonal() for point in points])
    predicted = randomizer.predicted_mse(Crowd(points, counts))
    torch.testing.assert_close(predicted, counts.double() @ each / 10**2, rtol=1e-12, atol=0)
