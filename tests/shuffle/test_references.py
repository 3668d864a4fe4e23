"""The trusted curator, and no privacy at all."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.shuffle import CentralGaussianSum, ExactSum


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def bits():
    return torch.rand(50, 7, generator=generator()) < 0.4


@pytest.mark.parametrize("sigma", [0.3, 2.0, 30.0])
def test_guarantee_the_curator_s_profile_is_the_gaussian_pair(sigma):
    (profile,) = CentralGaussianSum(10, sigma).profiles(absent=4)
    y, width = np.linspace(-14 * sigma, 1 + 14 * sigma, 400_001, retstep=True)
    p, q = stats.norm.pdf(y, 1, sigma), stats.norm.pdf(y, 0, sigma)
    for epsilon in (-1.0, 0.0, 0.01, 0.5, 3.0):
        truth = np.maximum(0, p - math.exp(epsilon) * q).sum() * width
        assert profile(np.array([epsilon]))[0] == pytest.approx(truth, rel=1e-5, abs=1e-9)
        wrong = CentralGaussianSum(10, 1.1 * sigma).profiles()[0](np.array([epsilon]))[0]
        assert wrong < truth * 0.99 or truth < 1e-9 or epsilon < 0


def test_the_curator_adds_one_normal_number_to_each_sum():
    protocol = CentralGaussianSum(50, 3.0)
    error = protocol.sample_sum(torch.tensor([0, 20]), generator=generator(1), sample_shape=(20_000,))
    error = (error - torch.tensor([0, 20])).flatten() / 3
    assert stats.kstest(error.numpy(), "norm").pvalue > 1e-6
    spread = protocol.collect(bits().repeat(1, 3000), noise=SeededNoise(2)) - bits().sum(0).repeat(3000)
    assert stats.kstest(spread.numpy() / 3, "norm").pvalue > 1e-6


def test_the_exact_sum_is_the_sum_and_has_no_profile():
    protocol = ExactSum(50)
    assert torch.equal(protocol.collect(bits(), noise=SeededNoise(0)), bits().sum(0).double())
    assert protocol.rmse == 0
    with pytest.raises(ValueError, match="not private"):
        protocol.profiles()


def test_users_hand_over_one_bit_in_each_instance():
    for protocol in (ExactSum(5), CentralGaussianSum(5, 1.0)):
        assert protocol.messages_per_user == 1
        assert [protocol.bits_per_message(i) for i in (1, 2, 768)] == [1, 2, 11]
