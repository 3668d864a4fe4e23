"""Features rounded to several steps: two paths, the predicted error, less noise at one
guarantee.
"""

import math

import pytest
import torch
from laws import float64, generator, normal, sampled, z_scores

from torchdp.density import (
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProductRotated,
    Projected,
    ShuffledClasses,
    ShuffledKDE,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.shuffle import BoundedSum, PoissonSum

D = 4
DELTA = 1e-4
FAMILIES = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    InnerProductRotated(D, 1.5),
    Projected(D, GaussianFourier(3, 1.3)),
]
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
LAWS = [
    (PoissonSum(9, 900.0), 3),
    (BoundedSum(9, 30.0), 4.0),
    (PoissonSum(9, 900.0), 0.4),
]
UNEQUAL = float64([0.3, 0.7, 1.0, 2.6, 4.0, 5.5])


def ball(n, seed=1):
    x = normal(n, D, seed=seed)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1)


def made(family, law, steps, repetitions=3):
    return ShuffledKDE(
        family.draw(repetitions, generator=generator(2)),
        law,
        DELTA,
        steps=steps,
    )


@pytest.mark.parametrize(
    ("family", "law", "steps"),
    [
        *((FAMILIES[2], *law) for law in LAWS[1:]),
        *((family, LAWS[0][0], UNEQUAL[:3]) for family in (FAMILIES[0], FAMILIES[1], FAMILIES[3])),
        (GaussianOrthogonal(D, 1.3), LAWS[1][0], UNEQUAL),
    ],
)
def test_predicted_error_is_the_measured_one(family, law, steps):
    x = ball(9)
    y = ball(3, seed=5)
    kde = made(family, law, steps)
    crowd = kde.summary(x)
    predicted = kde.density_mse(crowd, y)
    density = kde.sample_estimate(crowd, **sampled(4000, 3))
    # what the estimate misses of the kernel means, features drawn anew
    off = density.evaluate(y) - kernel_means(family, x, y)
    assert z_scores(off.square(), predicted.total).abs().max() < 4.5
    assert kde.worst_mse(9) * (1 + 1e-9) >= kde.predicted_mse(crowd).max()


@EACH
def test_messages_and_sums_have_one_law(family):
    kde = made(family, BoundedSum(9, 30.0), 4, 2)
    x = ball(9)
    tallies = [kde.collect(x, noise=SeededNoise(i)) for i in range(250)]
    heard = torch.stack([kde.analyse(tally).value for tally in tallies])
    drawn = kde.sample_estimate(kde.summary(x), **sampled(4000, 4)).value
    # of each number that is released
    spread = kde.predicted_mse(kde.summary(x)).sqrt()
    assert (
        (heard.mean(0) - drawn.mean(0)).abs() < 5 * spread * math.sqrt(1 / 250 + 1 / 4000)
    ).all()
    assert (heard.var(0) / spread**2 - 1).abs().max() < 6 * math.sqrt(2 / 250)
    # some users hold one vector: a binomial number of them rounds up
    held = Crowd(x[:2], torch.tensor([4, 5]))
    members = Crowd(
        torch.repeat_interleave(x[:2], held.counts, dim=0),
        torch.ones(9, dtype=torch.int64),
    )
    torch.testing.assert_close(kde.exact(held), kde.exact(members))
    one = kde.sample_estimate(held, **sampled(4000, 6)).value
    other = kde.sample_estimate(members, **sampled(4000, 6)).value
    apart = one.mean(0) - other.mean(0)
    assert (apart.abs() < 5 * spread * math.sqrt(2 / 4000)).all()
    assert (one.var(0) / other.var(0) - 1).abs().max() < 0.25


def test_more_steps_err_less_at_one_guarantee():
    features = InnerProductRotated(8, 2.0).draw(1, generator=generator(2))
    epsilon = 4.5
    errors = []
    x = torch.nn.functional.normalize(torch.randn(60, 8, generator=generator(3)), dim=1)
    for levels in (1, 4):
        kde = ShuffledKDE.calibrated(
            features,
            BoundedSum,
            60,
            epsilon,
            1e-5,
            steps=levels,
        )
        assert kde.guarantee.epsilon == epsilon
        assert (kde.steps is None) == (levels == 1)
        predicted = kde.predicted_mse(kde.summary(x))
        errors.append(float(predicted[0]))
    assert errors[0] > 1.05 * errors[1]
    with pytest.raises(ValueError, match="not certified"):
        ShuffledKDE(features, kde.law.resized(60, 0.8), 1e-5, epsilon, steps=4)


def test_classes_and_messages_in_bytes():
    family = InnerProductRotated(D, 1.5)
    labels = torch.arange(18) % 2
    features = family.draw(2, generator=generator(2))
    kdes = tuple(ShuffledKDE(features, BoundedSum(9, 30.0), DELTA, steps=4) for _ in range(2))
    found = ShuffledClasses(kdes).sample_estimate((ball(18), labels), generator=generator(1))
    assert found.value.shape == (2, features.instances)
    bag = kdes[0].randomize(ball(3), noise=SeededNoise(1))
    again = kdes[0].decode(kdes[0].encode(bag))
    assert torch.equal(again.instance, bag.instance)
    assert again.n == 3
    noise = features.instances * kdes[0].law.noise_mean / 9
    rounded = kdes[0].messages_per_user - noise
    assert 2 * features.instances < rounded <= 4 * features.instances
