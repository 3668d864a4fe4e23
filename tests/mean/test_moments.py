"""Moment tensors and covariance: what one user moves, the noise, no bias, the biased projection."""

import math

import pytest
import torch
from laws import ball as in_ball
from laws import normal, sampled

from torchdp.domains import Ellipsoid, lp_ball, noise_shape
from torchdp.mean import (
    GaussianCovariance,
    GaussianMoments,
    project_second_moment,
)
from torchdp.privacy import gaussian_log_delta
from torchdp.protocol import Crowd, Objective
from torchdp.symmetric import symmetrised


def ellipsoid(d, seed=1):
    root = torch.eye(d, dtype=torch.float64) + 0.4 * normal(d, d, seed=seed)
    return Ellipsoid(root, torch.zeros(d, dtype=torch.float64))


def power(x, order):
    """x (x) ... (x) x, written out."""
    letters = "abcdef"[:order]
    factors = ",".join("n" + c for c in letters)
    return torch.einsum(f"{factors}->n{letters}", *[x] * order)


def moments(domain, order, epsilon=1.0):
    shape = noise_shape(domain, 2.0, shift=False)
    return GaussianMoments.calibrated(
        domain,
        shape,
        order=order,
        epsilon=epsilon,
        delta=1e-6,
    )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_guarantee_no_replacement_moves_the_tensor_further_than_the_noise_hides(order):
    mechanism = moments(lp_ball(3, 2.0), order)
    axes = torch.eye(3, dtype=torch.float64)
    x = torch.cat([in_ball(200, 3), axes, -axes])
    flat = power(x, order).flatten(1)
    apart = float(torch.cdist(flat, flat).max())
    # not more, and attained
    assert apart == pytest.approx(mechanism.sensitivity, rel=1e-9)
    assert mechanism.sensitivity == pytest.approx(2.0 if order % 2 else math.sqrt(2))
    assert gaussian_log_delta(mechanism.multiplier, mechanism.guarantee.epsilon) <= math.log(1e-6)
    assert mechanism.guarantee.epsilon <= 1.0 + 1e-12


def joint(x, weight):
    return torch.cat([power(x, 2).flatten(1), weight * x], 1)


@pytest.mark.parametrize("d", [2, 3, 30])
def test_guarantee_no_replacement_moves_the_joint_release_further_than_the_noise_hides(d):
    ball = lp_ball(d, 2.0)
    mechanism = GaussianCovariance.calibrated(
        ball,
        noise_shape(ball, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    t = mechanism.mean_weight
    first = torch.zeros(d, dtype=torch.float64)
    first[0] = 1
    # at the angle of the proof: <w, v> = -t^2/2
    worst = first.clone()
    worst[0] = -t * t / 2
    worst[1] = math.sqrt(1 - t**4 / 4)
    x = torch.cat([in_ball(300, d), first[None], worst[None], -first[None]])
    flat = joint(x, t)
    allowed = mechanism.moment_noise(1) / mechanism.multiplier
    assert float(torch.cdist(flat, flat).max()) == pytest.approx(allowed, rel=1e-5)
    assert mechanism.guarantee.epsilon <= 1.0 + 1e-12


def test_the_weight_of_the_mean_is_the_best_one():
    ball = lp_ball(4, 2.0)
    mechanism = GaussianCovariance.calibrated(
        ball,
        noise_shape(ball, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    trials = torch.linspace(0.05, math.sqrt(2), 400, dtype=torch.float64)
    # tr = 4, tr^2 = 4, largest 1
    costs = (1 + trials**2 / 2) ** 2 * (10 + 2 * 5 / trials**2)
    assert mechanism.mean_weight == pytest.approx(float(trials[costs.argmin()]), abs=0.004)


def test_covariances_far_from_the_origin_are_unbiased_only_with_their_correction():
    base = ellipsoid(3)
    domain = Ellipsoid(base.root, torch.full((3,), 7.0, dtype=torch.float64))
    protocol = GaussianCovariance.calibrated(
        domain, noise_shape(domain, 2.0), epsilon=2.0, delta=1e-6
    )
    x = in_ball(4, 3, seed=7) @ base.root.mT + 7
    summary = protocol.summary(x)
    drawn = protocol.analyse(protocol.sample_tally(summary, **sampled(10_000, 8)))
    exact = torch.cov(x.mT, correction=0)
    mean = drawn.mean.value
    bias = drawn.value.mean(0) - exact
    noise = drawn.value.std(0) / 100
    assert (bias.abs() / noise < 6).all()
    bias = mean.mean(0) - x.mean(0)
    assert (bias.abs() / (mean.std(0) / 100) < 6).all()
    spread = mean.std(0) / drawn.mean.standard_error[0]
    assert torch.allclose(spread, torch.ones(3).double(), atol=0.05)
    # control: without the correction, the square of the mean's noise would be a bias
    relative = protocol.moment_noise(4) / protocol.mean_weight
    nu = relative**2 * (protocol.root @ protocol.root.mT)
    assert ((bias - nu).abs() / noise).max() > 9
    at_end = protocol.summary(domain.extreme(normal(50, 3)))
    # data at one end of the domain are nearly the worst
    for values in at_end.values:
        mse = protocol.predicted_mse(Crowd(values[None], torch.tensor([4])))
        for objective in Objective:
            assert objective.of(mse) <= protocol.worst_mse(4, objective) * (1 + 1e-9)
    crowds = [Crowd(v[None], torch.tensor([4])) for v in at_end.values]
    ends = torch.stack([protocol.predicted_mse(crowd).mean() for crowd in crowds])
    assert ends.max() > 0.9 * protocol.worst_mse(4, Objective.MEAN)


def test_the_projection_is_the_nearest_second_moment():
    matrix = symmetrised(normal(5, 4, 4, seed=9), 2)
    for radius in (0.7, 3.0):
        near = project_second_moment(matrix, radius)
        values = torch.linalg.eigvalsh(near)
        assert (values > -1e-12).all()
        assert (values.sum(-1) <= radius**2 * (1 + 1e-12)).all()
        # the nearest point of a convex set: nothing of the set lies further along what was taken
        # away
        others = radius**2 * power(in_ball(500, 4, seed=10), 2)
        away = torch.einsum("bij,bnij->bn", matrix - near, others[None] - near[:, None])
        assert (away <= 1e-9).all()
    inside = power(in_ball(50, 4), 2).mean(0)
    assert torch.allclose(project_second_moment(inside), inside, atol=1e-12)


def test_the_projection_wins_for_few_users_and_is_biased():
    d = 20
    ball = lp_ball(d, 2.0)
    mechanism = GaussianMoments.calibrated(
        ball,
        noise_shape(ball, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    x = in_ball(100, d, seed=12)
    summary = mechanism.summary(x)
    drawn = mechanism.sample_estimate(summary, **sampled(400, 13)).value
    near = project_second_moment(drawn)
    exact = power(x, 2).mean(0)
    squares = (near - exact).square().sum((1, 2))
    assert float(squares.mean().sqrt()) < 0.5 * float(mechanism.deviations(100).norm())
    bias = (near.mean(0) - exact).diagonal()
    z = bias.abs() / (near.std(0).diagonal() / 20)
    # what it costs
    assert float(z.max()) > 6
