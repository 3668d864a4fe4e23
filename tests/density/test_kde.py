"""The shuffled density: predicted error, its two ways of being drawn, what is saved, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from torchdp.density import (
    Density,
    Exponential,
    GaussianFourier,
    GaussianSquareWave,
    InnerProduct,
    InnerProductRotated,
    InnerProductSigns,
    LaplacianBuckets,
    LaplacianSigns,
    Projected,
    ShuffledKDE,
    expected_mse,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    ExactSum,
    NegativeBinomialSum,
    PoissonSum,
    RandomizedResponseSum,
    join,
    pure_sum,
    shuffle,
)

ALPHA = 1e-6
D, DELTA = 5, 1e-6
FAMILIES = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    InnerProduct(D),
    InnerProductSigns(D),
    InnerProductRotated(D, 1.5),
    LaplacianSigns(D, 2.0),
    LaplacianBuckets(D, 2.0, 4),
    Exponential(D, 0.7, 1.0),
    Projected(D, GaussianSquareWave(3, 1.3)),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ball(n, d=D, seed=1):
    points = torch.randn(n, d, dtype=torch.float64, generator=generator(seed))
    radii = torch.rand(n, 1, dtype=torch.float64, generator=generator(seed + 1))
    return points / points.norm(dim=1, keepdim=True) * radii


def protocols(n):
    return [
        RandomizedResponseSum(n, 0.2),
        PoissonSum(n, 30.0),
        NegativeBinomialSum(n, 60.0, 0.5),
        CorrelatedSum(n, 0.5, 60.0, 0.5),
        pure_sum(n, 1.0),
        CentralGaussianSum(n, 2.0),
        ExactSum(n),
    ]


def z_of_mean(samples, predicted):
    return (samples.mean(0) - predicted) / (samples.std(0) / math.sqrt(len(samples)) + 1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_predicted_error_of_given_features_is_the_measured_one(family):
    x, y = ball(7), ball(4, seed=5)
    features = family.draw(3, generator=generator(2))
    kde = ShuffledKDE(features, RandomizedResponseSum(7, 0.2), DELTA)
    predicted = kde.predicted_mse(x, y)
    density = kde.sample(x, generator=generator(3), sample_shape=(20_000,))
    truth = kernel_means(family, x, y)
    off = density.evaluate(y) - truth
    measured = off.square()
    assert z_of_mean(measured, predicted.total).abs().max() < 4.5
    assert ((off.mean(0).abs() - predicted.feature.sqrt()).abs() < 4.5 * off.std(0) / math.sqrt(20_000)).all()
    for part in ("rounding", "privacy"):
        less = predicted.total - getattr(predicted, part)
        assert float(getattr(predicted, part).max()) == 0 or z_of_mean(measured, less).max() > 6
    assert (density.standard_error(y)[0] >= (predicted.rounding + predicted.privacy).sqrt() * (1 - 1e-12)).all()


@pytest.mark.parametrize("which", range(7))
def test_predicted_error_under_every_protocol_is_the_measured_one(which):
    x, y = ball(6), ball(3, seed=5)
    protocol = protocols(6)[which]
    kde = ShuffledKDE(GaussianFourier(D).draw(4, generator=generator(2)), protocol, DELTA)
    predicted = kde.predicted_mse(x, y).total
    density = kde.sample(x, generator=generator(3), sample_shape=(20_000,))
    squared = (density.evaluate(y) - kernel_means(kde.features.family, x, y)).square()
    assert z_of_mean(squared, predicted).abs().max() < 4.5
    assert isinstance(protocol, ExactSum) or z_of_mean(squared, 1.1 * predicted).abs().max() > 4.5


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if hasattr(family, "cross_moment")],
    ids=lambda family: type(family).__name__,
)
def test_expected_error_over_the_features_too_is_the_measured_one(family):
    x, y, repetitions, trials = ball(5), ball(3, seed=5), 4, 500
    protocol = RandomizedResponseSum(5, 0.2)
    predicted = expected_mse(family, repetitions, protocol, x, y)
    truth = kernel_means(family, x, y)
    squared = torch.empty(trials, 3, dtype=torch.float64)
    given = torch.zeros(3, dtype=torch.float64)
    for trial in range(trials):
        features = family.draw(repetitions, generator=generator(trial))
        kde = ShuffledKDE(features, protocol, DELTA)
        squared[trial] = (kde.sample(x, generator=generator(trial + trials)).evaluate(y) - truth).square()
        given += kde.predicted_mse(x, y).total / trials if trial < 100 else 0
    assert z_of_mean(squared, predicted.total + 1e-4).abs().max() < 4.5
    assert z_of_mean(squared, 1.9 * predicted.total).abs().max() > 4.5
    torch.testing.assert_close(given * trials / 100, predicted.total, rtol=0.2, atol=0.02)


def test_privacy_error_does_not_grow_with_the_repetitions_once_noise_is_calibrated_to_them():
    x, y = ball(4), ball(3, seed=5)
    errors = []
    for repetitions in (100, 400):
        sigma = 5 * math.sqrt(repetitions)  # what composition asks for, to first order
        protocol = CentralGaussianSum(4, sigma)
        errors.append(expected_mse(GaussianSquareWave(D), repetitions, protocol, x, y).privacy)
    torch.testing.assert_close(errors[0], errors[1])


@pytest.mark.parametrize("n", [1, 2, 3, 40])
@pytest.mark.parametrize("which", range(5))
def test_messages_and_aggregate_have_one_law(n, which):
    x, times, trials = ball(n), 10, 25  # a release rounds each coordinate so many times
    protocol = protocols(n)[which]
    kde = ShuffledKDE(InnerProduct(D).draw(times, generator=generator(2)), protocol, DELTA)
    noise = SeededNoise(10 * n + which)
    collected = torch.cat([kde.collect(x, noise=noise).sums.view(times, D) for _ in range(trials)])
    source = generator(10 * n + which)
    sampled = kde.sample(x, generator=source, sample_shape=(4 * trials,)).sums.view(-1, D)
    for coordinate in range(2):
        a, b = (sums[:, coordinate].mul(1e6).round().numpy() for sums in (collected, sampled))
        assert stats.ks_2samp(a, b).pvalue > ALPHA
        assert stats.ks_2samp(a + 2e6 * max(1.0, protocol.rmse), b).pvalue < 1e-6


@pytest.mark.parametrize("which", range(5))
def test_estimates_of_parts_of_the_users_add_up_to_that_of_all(which, monkeypatch):
    protocol = protocols(9)[which]
    noise = SeededNoise(4)
    bits = torch.rand(9, 3, generator=generator(4)) < 0.5
    parts = [protocol.randomize(some, noise=noise) for some in bits.split(4)]
    whole = protocol.analyse(shuffle(join(parts)), 3)
    absent = [9 - len(some) for some in bits.split(4)]
    added = sum(protocol.analyse(shuffle(part), 3, absent=gone) for part, gone in zip(parts, absent, strict=True))
    torch.testing.assert_close(added, whole)
    monkeypatch.setattr("torchdp.density.family.NUMBERS_AT_ONCE", 8)
    kde = ShuffledKDE(LaplacianSigns(D).draw(3, generator=generator()), protocol, DELTA)
    assert torch.isfinite(kde.collect(ball(9), noise=noise).sums).all()


def test_memory_does_not_grow_with_the_users():
    features = GaussianSquareWave(D).draw(512, generator=generator())
    largest = max(len(part) for part in features.parts(torch.zeros(100_000, D)))
    assert largest * features.instances <= 2**20


def test_the_noise_of_a_curator_is_added_once():
    n, sigma = 50, 3.0
    kde = ShuffledKDE(LaplacianSigns(D).draw(4000, generator=generator()), CentralGaussianSum(n, sigma), DELTA)
    exact = ShuffledKDE(kde.features, ExactSum(n), DELTA).collect(ball(n), noise=SeededNoise(0))
    noise = kde.collect(ball(n), noise=SeededNoise(1)).sums - exact.sums
    assert float(noise.std()) == pytest.approx(2 * sigma, rel=0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_guarantee_a_saved_release_answers_the_same_and_holds_nothing_else(family, tmp_path):
    x, y = ball(8), ball(4, seed=5)
    kde = ShuffledKDE(family.draw(3, generator=generator()), PoissonSum(8, 30.0), DELTA)
    density = kde.sample(x, generator=generator(1), sample_shape=(2,))
    density.save(tmp_path / "density.pt")
    loaded = Density.load(tmp_path / "density.pt")
    torch.testing.assert_close(loaded.evaluate(y), density.evaluate(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loaded.standard_error(y), density.standard_error(y), rtol=1e-12, atol=0)
    assert loaded.guarantee == density.guarantee and loaded.features.family == family
    assert set(vars(loaded)) == {"features", "sums", "users", "variance", "guarantee"}
    # nothing but the sums depends on the data
    other = kde.sample(ball(8, seed=77), generator=generator(1))
    assert other.variance == density.variance[0] and other.users == density.users[0]


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "other.pt"
    torch.save({"sums": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    torch.save(Planted(), path)
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    with pytest.raises(OSError):
        Density.load(tmp_path / "absent.pt")


class Planted:
    def __reduce__(self):
        return exit, (3,)


def test_single_precision_gives_the_same_answers():
    x, y = ball(200), ball(4, seed=5)
    for family in FAMILIES:
        kde = ShuffledKDE(family.draw(50, generator=generator()), ExactSum(200), DELTA)
        wide = kde.predicted_mse(x, y).total
        narrow = kde.predicted_mse(x.float(), y.float()).total
        torch.testing.assert_close(narrow, wide, rtol=2e-3, atol=1e-4)
        assert kde.sample(x.float(), generator=generator()).evaluate(y.float()).dtype == torch.float64


class Silent(SeededNoise):
    """Nothing may be drawn from it."""

    def fill(self, words):
        raise AssertionError("drawn")


@pytest.mark.parametrize("path", ["collect", "sample"])
def test_what_is_wrong_is_refused_before_anything_is_drawn(path):
    kde = ShuffledKDE(InnerProductRotated(D).draw(3, generator=generator()), PoissonSum(8, 30.0), DELTA)
    x, source = ball(8), generator(1)
    before = source.get_state()
    drawing = {"generator": source} if path == "sample" else {"noise": Silent(1)}
    nan = x.clone()
    nan[3, 2] = math.nan
    for wrong, kind, match in [
        (x[:7], ValueError, "8 rows, one for each user .* not 7"),
        (x[:, :4], ValueError, r"shape \(..., n, 5\)"),
        (x[0], ValueError, "shape"),
        (x[None], ValueError, "shape"),
        (nan, ValueError, "NaN"),
        (3 * x, ValueError, "norm at most 1"),
        (x.half(), TypeError, "float32 or float64"),
        (x.numpy(), TypeError, "torch.Tensor"),
        (x + 0j, TypeError, "real"),
    ]:
        with pytest.raises(kind, match=match):
            getattr(kde, path)(wrong, **drawing)
    assert torch.equal(source.get_state(), before)
    for name in drawing:
        for wrong in (0, source if path == "collect" else SeededNoise(1)):
            with pytest.raises(TypeError, match=f"{name} must be"):
                getattr(kde, path)(x, **{name: wrong})
    drawing = {"generator": source} if path == "sample" else {}
    getattr(kde, path)(x * (1 + 1e-7) / x.norm(dim=1, keepdim=True), **drawing)  # unit up to rounding


def test_queries_and_parameters_are_checked_too():
    kde = ShuffledKDE(Exponential(D).draw(3, generator=generator()), PoissonSum(8, 30.0), DELTA)
    density = kde.sample(ball(8), generator=generator())
    for call in (density.evaluate, density.standard_error, lambda y: kde.predicted_mse(ball(8), y)):
        with pytest.raises(ValueError, match="ball of radius 1"):
            call(5 * ball(4) + 1)
        with pytest.raises(ValueError, match="NaN"):
            call(ball(4) * math.nan)
    with pytest.raises(ValueError, match="ball of radius 1"):
        kde.sample(ball(8) + 1, generator=generator())
    for wrong in (0.0, 1.0, -1):
        with pytest.raises(ValueError, match="delta"):
            ShuffledKDE(kde.features, kde.protocol, wrong)
    with pytest.raises(TypeError, match="features must be a Features"):
        ShuffledKDE(Exponential(D), kde.protocol, DELTA)
    with pytest.raises(TypeError, match="protocol must be a BitSum"):
        ShuffledKDE(kde.features, 3, DELTA)
    with pytest.raises(ValueError, match="sums must have shape"):
        replace(density, sums=density.sums[:2])
    for make in (lambda: GaussianFourier(0), lambda: GaussianFourier(3, 0.0), lambda: LaplacianBuckets(3, 1.0, 6)):
        with pytest.raises(ValueError):
            make()
    for make in (lambda: Projected(3, GaussianFourier(4)), lambda: Exponential(3, radius=-1.0)):
        with pytest.raises(ValueError):
            make()
    with pytest.raises(TypeError, match="Gaussian"):
        Projected(8, InnerProduct(3))
    for family in FAMILIES:
        with pytest.raises(ValueError, match="repetitions"):
            family.draw(0, generator=generator())
        with pytest.raises(TypeError, match=r"torch.Generator"):
            family.draw(2, generator=3)


def test_a_release_that_is_not_certified_is_refused_when_it_is_made():
    features = GaussianSquareWave(D).draw(2, generator=generator())
    with pytest.raises(ValueError, match="not reached at any epsilon"):
        ShuffledKDE(features, PoissonSum(8, 0.5), DELTA)
    with pytest.raises(ValueError, match="not certified"):
        ShuffledKDE(features, PoissonSum(8, 30.0), DELTA, epsilon=0.1)


def test_one_user_and_no_queries():
    kde = ShuffledKDE(GaussianSquareWave(D).draw(2, generator=generator()), RandomizedResponseSum(1, 0.3), DELTA)
    density = kde.collect(ball(1), noise=SeededNoise(0))
    assert density.evaluate(ball(3, seed=3)).shape == (3,)
    assert density.evaluate(ball(1)[:0]).shape == (0,)
    assert kde.messages_per_user == 2 and kde.bits_per_user == 2 * 2
