"""The battery for what users of a bounded domain send, and for what a curator releases of them."""

import math
from typing import ClassVar

import numpy as np
import torch
from contract import Contract, RelayContract, Unbiased
from gaussians import collected, furthest, neighbours, true_epsilon
from laws import uniform
from torch.testing import assert_close

from torchdp.domains import Box, lp_ball, noise_shape
from torchdp.mean import (
    GaussianCovariance,
    GaussianMean,
    GaussianMoments,
    LocalCovariance,
    LocalMean,
)
from torchdp.protocol import Crowd

BOX = Box(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 15.0]))
CORNERS = torch.cartesian_prod(*torch.stack([BOX.low, BOX.high], 1))
LOW = BOX.low + uniform(10, 2, seed=1) * (BOX.high - BOX.low) / 4
BALL = lp_ball(2, 2.0, 3.0)
ANGLES = torch.arange(24, dtype=torch.float64) * math.tau / 24
CIRCLE = 3 * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)
IN_BALL = torch.cat([CIRCLE[:8], CIRCLE[3:9] / 2])
SHAPE = noise_shape(BALL, 2.0)
BAD = [
    torch.full((2, 2), 99.0),
    torch.zeros(2),
    torch.zeros(2, 3),
    torch.tensor([[math.nan, 0.0]]),
]


class Curator(Unbiased, Contract):
    weaker: ClassVar = {"multiplier": 0.9}
    bad = BAD

    def loss(self, protocol):
        return true_epsilon(
            furthest(collected(protocol), neighbours(self.far)),
            protocol.delta,
        )


class TestGaussianMean(Curator):
    protocol = GaussianMean.calibrated(
        BOX,
        noise_shape(BOX, 2.0),
        epsilon=1.0,
        delta=1e-6,
    )
    x = LOW
    far = CORNERS

    def truth(self):
        return self.x.mean(0)


class TestGaussianMoments(Curator):
    protocol = GaussianMoments.calibrated(
        BALL,
        SHAPE,
        order=3,
        epsilon=1.0,
        delta=1e-6,
    )
    x = IN_BALL
    far = CIRCLE

    def truth(self):
        return torch.einsum("na,nb,nc->abc", self.x, self.x, self.x) / len(self.x)


class TestGaussianCovariance(Curator):
    protocol = GaussianCovariance.calibrated(
        BALL,
        SHAPE,
        epsilon=2.0,
        delta=1e-6,
    )
    x = IN_BALL
    far = CIRCLE
    honest = (0.7, 1.8)

    def truth(self):
        covariance = np.cov(self.x.numpy().T, bias=True)
        return torch.from_numpy(covariance)


class TestCovarianceOfABox(TestGaussianCovariance):
    protocol = GaussianCovariance.tuned(BOX, epsilon=2.0, delta=1e-6)
    x = LOW
    far = CORNERS

    def test_noise_is_in_proportion_to_the_widths(self):
        middle = Crowd.of((BOX.low + BOX.high)[None] / 2)
        # of variances, whose errors are in squared units
        errors = self.protocol.predicted_mse(middle).diagonal() ** 0.25
        widths = BOX.high - BOX.low
        assert_close(errors / errors[0], (widths / widths[0]).double(), rtol=1e-6, atol=0)


class TestLocalMean(Unbiased, RelayContract):
    protocol = LocalMean.calibrated(BOX, noise_shape(BOX, 2.0), epsilon=2.0)
    x = torch.cat([CORNERS, LOW])
    bad = BAD

    def truth(self):
        return self.x.mean(0)


class TestLocalCovariance(Unbiased, RelayContract):
    units = 64.0
    stacked = False
    protocol = LocalCovariance.calibrated(BOX, epsilon=4.0)
    x = LOW.repeat(5, 1)
    bad = BAD
    repeats = 2_500

    def truth(self):
        covariance = np.cov(self.x.numpy().T, bias=True)
        return torch.from_numpy(covariance)


class TestLocalVariance(TestLocalCovariance):
    protocol = LocalCovariance.calibrated(
        Box(torch.tensor([-3.0]), torch.tensor([5.0])), epsilon=1.0
    )
    x = torch.linspace(-3, 5, 50).double()
    x = x[:, None] ** 2 / 5

    def truth(self):
        covariance = np.cov(self.x.numpy().T, bias=True)
        return torch.from_numpy(covariance).reshape(1, 1)
