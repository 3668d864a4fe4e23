"""The trusted curator, and no privacy at all."""

import numpy as np
import pytest
import torch
from laws import generator, hockey_stick
from scipy import stats

from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.shuffle import CentralGaussianSum


@pytest.mark.parametrize("sigma", [0.3, 2.0, 30.0])
def test_guarantee_the_curator_s_profile_is_the_gaussian_pair(sigma):
    (profile,) = CentralGaussianSum(10, sigma).profiles(absent=4)
    # fourteen deviations on either side
    y, width = np.linspace(-14 * sigma, 1 + 14 * sigma, 400_001, retstep=True)
    p = stats.norm.pdf(y, 1, sigma)
    q = stats.norm.pdf(y, 0, sigma)
    for epsilon in (-1.0, 0.0, 0.01, 0.5, 3.0):
        truth = hockey_stick(p, q, epsilon) * width
        assert profile(np.array([epsilon]))[0] == pytest.approx(truth, rel=1e-5, abs=1e-9)
        # control: a tenth more noise than is stated
        (louder,) = CentralGaussianSum(10, 1.1 * sigma).profiles()
        wrong = louder(np.array([epsilon]))[0]
        assert wrong < truth * 0.99 or truth < 1e-9 or epsilon < 0


def test_the_curator_adds_one_normal_number_to_each_sum():
    law = CentralGaussianSum(50, 3.0)
    ones = torch.arange(20_000) % 50
    for draws in (Simulated(generator(1)), SeededNoise(2)):
        error = (law.noised(ones, draws) - ones) / 3
        assert stats.kstest(error.numpy(), "norm").pvalue > 1e-6
