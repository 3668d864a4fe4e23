"""Features rounded to several steps: two paths, the predicted error, less noise at one guarantee."""

import math

import pytest
import torch
from laws import generator, z_scores

from torchdp.density import (
    GaussianFourier,
    GaussianSquareWave,
    InnerProductRotated,
    LaplacianSigns,
    Projected,
    ShuffledClasses,
    ShuffledKDE,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.shuffle import BoundedSum, NegativeBinomialSum, PoissonSum, RandomizedResponseSum

D, DELTA = 4, 1e-4
FAMILIES = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    InnerProductRotated(D, 1.5),
    Projected(D, GaussianFourier(3, 1.3)),
]
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
LAWS = [
    PoissonSum(9, 900.0, levels=3),
    BoundedSum(9, 30.0, levels=4),
    NegativeBinomialSum(9, 400.0, 0.5, levels=2),
]


def ball(n, seed=1):
    x = torch.randn(n, D, dtype=torch.float64, generator=generator(seed))
    return x / x.norm(dim=1, keepdim=True).clamp_min(1)


def made(family, law, repetitions=3):
    return ShuffledKDE(family.draw(repetitions, generator=generator(2)), law, DELTA)


@pytest.mark.parametrize(
    ("family", "law"), [*((family, LAWS[0]) for family in FAMILIES), *((FAMILIES[2], law) for law in LAWS[1:])]
)
def test_predicted_error_is_the_measured_one(family, law):
    x, y = ball(9), ball(3, seed=5)
    kde = made(family, law)
    crowd = kde.summary(x)
    predicted = kde.density_mse(crowd, y)
    density = kde.sample_estimate(crowd, generator=generator(3), sample_shape=(4000,))
    off = density.evaluate(y) - kernel_means(family, x, y)
    assert z_scores(off.square(), predicted.total).abs().max() < 4.5
    assert kde.worst_mse(9) * (1 + 1e-9) >= kde.predicted_mse(crowd).max()


@EACH
def test_messages_and_sums_have_one_law(family):
    kde, x = made(family, BoundedSum(9, 30.0, levels=4), 2), ball(9)
    heard = torch.stack([kde.analyse(kde.collect(x, noise=SeededNoise(i))).value for i in range(250)])
    drawn = kde.sample_estimate(kde.summary(x), generator=generator(4), sample_shape=(4000,)).value
    spread = kde.predicted_mse(kde.summary(x)).sqrt()
    assert ((heard.mean(0) - drawn.mean(0)).abs() < 5 * spread * math.sqrt(1 / 250 + 1 / 4000)).all()
    assert (heard.var(0) / spread**2 - 1).abs().max() < 6 * math.sqrt(2 / 250)
    held = Crowd(x[:2], torch.tensor([4, 5]))  # some users hold one vector: a binomial number of them rounds up
    members = Crowd(torch.repeat_interleave(x[:2], held.counts, dim=0), torch.ones(9, dtype=torch.int64))
    torch.testing.assert_close(kde.exact(held), kde.exact(members))
    one, other = (
        kde.sample_estimate(c, generator=generator(6), sample_shape=(4000,)).value for c in (held, members)
    )
    assert ((one.mean(0) - other.mean(0)).abs() < 5 * spread * math.sqrt(2 / 4000)).all()
    assert (one.var(0) / other.var(0) - 1).abs().max() < 0.25


@pytest.mark.parametrize("kind", [PoissonSum, BoundedSum])
def test_more_steps_err_less_at_one_guarantee(kind):
    features, epsilon, errors = InnerProductRotated(8, 2.0).draw(1, generator=generator(2)), 4.5, []
    for levels in (1, 2, 4):
        kde = ShuffledKDE.calibrated(features, kind, 60, epsilon, 1e-5, levels=levels)
        assert kde.guarantee.epsilon == epsilon and kde.law.levels == levels
        errors.append(float(kde.predicted_mse(kde.summary(torch.nn.functional.normalize(
            torch.randn(60, 8, generator=generator(3)), dim=1)))[0]))  # fmt: skip
    assert errors[0] > 1.05 * errors[1] and errors[1] > errors[2]
    law = type(kde.law)(60, 0.8 * getattr(kde.law, "mean", kde.law.rmse * 4), levels=4)
    with pytest.raises(ValueError, match="not certified"):
        ShuffledKDE(features, law, 1e-5, epsilon)


def test_classes_and_messages_in_bytes():
    family, labels = InnerProductRotated(D, 1.5), torch.arange(18) % 2
    features = family.draw(2, generator=generator(2))
    kdes = tuple(ShuffledKDE(features, BoundedSum(9, 30.0, levels=4), DELTA) for _ in range(2))
    found = ShuffledClasses(kdes).sample_estimate((ball(18), labels), generator=generator(1))
    assert found.value.shape == (2, 8 if features.instances == 8 else features.instances)
    bag = kdes[0].randomize(ball(3), noise=SeededNoise(1))
    again = kdes[0].decode(kdes[0].encode(bag))
    assert torch.equal(again.instance, bag.instance) and again.n == 3
    assert kdes[0].messages_per_user == features.instances * (4 + kdes[0].law.noise_mean / 9)


@pytest.mark.parametrize(("epsilon", "best"), [(0.05, RandomizedResponseSum), (20.0, BoundedSum)])
def test_fewer_messages_are_preferred_where_errors_are_alike(epsilon, best, monkeypatch):
    monkeypatch.setattr("torchdp.density.kde.TRIED", ((BoundedSum, 1), (RandomizedResponseSum, 1)))
    features = LaplacianSigns(D, 1.0).draw(8, generator=generator(2))
    choice = ShuffledKDE.tuned(features, 400, epsilon, 1e-5)
    (least,) = (one for one in choice.candidates if isinstance(one.protocol.law, BoundedSum))
    (one_message,) = (one for one in choice.candidates if isinstance(one.protocol.law, RandomizedResponseSum))
    assert least.error < one_message.error and isinstance(choice.best.law, best)
    assert (one_message.error <= 1.01 * least.error) == (best is RandomizedResponseSum)
    assert f"{features.instances} messages of a user, {4 * features.instances} bits" in one_message.note


@pytest.mark.slow
def test_tuned_laws_err_least_for_their_messages():
    features = InnerProductRotated(D, 1.5).draw(2, generator=generator(2))
    choice = ShuffledKDE.tuned(features, 30, 2.0, 1e-5)
    assert len(choice.candidates) == 8
    errors = [one.error for one in choice.candidates]
    near = sum(error <= 1.01 * min(errors) for error in errors)
    assert near >= 2 and errors[near:] == sorted(errors[near:]) and min(errors[near:]) > max(errors[:near])
    sent = [one.protocol.messages_per_user for one in choice.candidates[:near]]
    assert sent == sorted(sent) and choice.best.law.levels > 1
    assert all(one.protocol.guarantee.epsilon == 2.0 for one in choice.candidates)
    messages = {one.name: one.protocol.law.messages_per_user * one.protocol.instances for one in choice.candidates}
    few = ShuffledKDE.tuned(features, 30, 2.0, 1e-5, most_messages=messages["BoundedSum, bits"])
    assert {one.name for one in few.candidates} == {
        k for k, v in messages.items() if v <= messages["BoundedSum, bits"]
    }
    assert isinstance(
        ShuffledKDE.tuned(features, 30, 2.0, 1e-5, most_messages=features.instances).best.law,
        RandomizedResponseSum,
    )
    much = ShuffledKDE.tuned(InnerProductRotated(4).draw(1, generator=generator(2)), 30, 0.01, 1e-5)
    assert "BoundedSum, 8 steps" not in {one.name for one in much.candidates}  # so much noise is not followed
