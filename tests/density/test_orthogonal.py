"""Orthogonal frequencies: unbiased, each one normal, and less variable together than independent
ones.
"""

import math

import pytest
import torch
from laws import generator, normal
from scipy import stats

from torchdp.density import GaussianFourier, GaussianOrthogonal

D = 8


def points(cosine, d=D):
    x = torch.zeros(1, d, dtype=torch.float64)
    y = torch.zeros(1, d, dtype=torch.float64)
    x[0, 0] = 1
    y[0, 0] = cosine
    y[0, 1] = math.sqrt(1 - cosine**2)
    return x, y


def errors(family, repetitions, x, y, trials, seed=0):
    source = generator(seed)
    features = (family.draw(repetitions, generator=source) for _ in range(trials))
    products = [f.left(x) @ f.right(y).mT for f in features]
    means = torch.stack(products).squeeze() / repetitions
    return means - family.kernel(x, y).squeeze()


@pytest.mark.parametrize(("repetitions", "bandwidth"), [(3, 2.0), (D, 0.8), (3 * D - 1, 2.0)])
def test_the_mean_is_the_kernel(repetitions, bandwidth):
    x, y = points(0.3)
    off = errors(GaussianOrthogonal(D, bandwidth), repetitions, x, y, 2000)
    assert abs(float(off.mean())) < 4.5 * float(off.std()) / math.sqrt(2000)
    wrong = (
        off
        + GaussianOrthogonal(D, bandwidth).kernel(x, y)
        - GaussianOrthogonal(D, 1.1 * bandwidth).kernel(x, y)
    )
    assert abs(float(wrong.mean())) > 5 * float(wrong.std()) / math.sqrt(2000)


def test_frequencies_are_orthogonal_and_each_is_normal():
    family = GaussianOrthogonal(D, 1.5)
    drawn = [family.draw(2 * D, generator=generator(seed)).frequencies for seed in range(400)]
    gram = drawn[0].mT @ drawn[0]
    for block in (gram[:D, :D], gram[D:, D:]):
        torch.testing.assert_close(block, torch.diag(block.diagonal()), atol=1e-12, rtol=0)
    # of different matrices: not orthogonal
    assert gram[:D, D:].abs().min() > 0
    entries = torch.stack(drawn)[:, 2, 5] / (math.sqrt(2) / 1.5)
    assert stats.kstest(entries.numpy(), "norm").pvalue > 1e-4
    assert stats.kstest(1.3 * entries.numpy(), "norm").pvalue < 1e-3


def test_the_variance_is_below_that_of_independent_frequencies_at_equal_bits():
    for cosine, ratio in ((0.9, 0.25), (0.5, 0.6), (0.0, 0.95)):
        x, y = points(cosine, 32)
        ours = errors(GaussianOrthogonal(32), 32, x, y, 200)
        theirs = errors(GaussianFourier(32), 64, x, y, 200, seed=1)
        assert float(ours.square().mean() / theirs.square().mean()) < ratio


def test_points_half_a_wave_apart_have_the_whole_movement():
    family = GaussianOrthogonal(D, 0.7)
    wave = family.draw(1, generator=generator(2))
    x = normal(1, D, seed=1)
    square = wave.frequencies.square().sum()
    step = wave.frequencies.mT * math.pi / square
    apart = wave.left(x) - wave.left(x + step)
    assert float(apart.square().sum() / 4) == pytest.approx(wave.movement, rel=1e-12)
    assert wave.movement == family.movement


@pytest.mark.parametrize(
    ("d", "repetitions", "bandwidth"),
    [(1, 1, 3.0), (2, 2, 2.0), (2, 1, 1.5), (2, 6, 2.0), (3, 3, 2.5)],
)
def test_guarantee_users_of_a_ball_move_by_no_more_than_the_bound(d, repetitions, bandwidth):
    """Every difference on a fine grid of the ball: none beyond, and with up to d frequencies some
    come close.
    """
    features = GaussianOrthogonal(d, bandwidth, 1.0).draw(repetitions, generator=generator(3))
    line = torch.linspace(
        -2,
        2,
        {1: 4001, 2: 801, 3: 121}[d],
        dtype=torch.float64,
    )
    z = torch.cartesian_prod(*[line] * d).view(-1, d)
    # all points of the ball of radius 2, and those beyond put on its edge
    length = z.norm(dim=1, keepdim=True)
    z = torch.cat([z[length[:, 0] <= 2], 2 * z / length.clamp_min(1e-9)])
    apart = features.share(z / 2) - features.share(-z / 2)
    moved = apart.square().sum(1).max() / 4
    assert float(moved) <= features.movement <= repetitions
    if repetitions <= d:
        assert features.movement < 1.003 * float(moved)
    assert features.movement < 0.97 * repetitions


def test_users_of_a_ball_that_is_wide_may_move_as_all_may():
    features = GaussianOrthogonal(D, 0.7, 50.0).draw(11, generator=generator())
    assert features.movement == pytest.approx(11, rel=1e-6)
    assert features.movement <= 11
    x = torch.ones(2, D) / math.sqrt(D)
    near = GaussianOrthogonal(D, 0.7, 1.0)
    assert near.validate(x) is x
    assert near.draw(2, generator=generator()).share(x).dtype == torch.float64
    with pytest.raises(ValueError, match="x must hold vectors of norm at most 1"):
        near.validate(1.1 * x)
