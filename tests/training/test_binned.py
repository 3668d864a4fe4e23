"""Balls in bins: the sampler's law, the accountant against another's sampling of all outputs, and its confidence."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_log_delta
from torchdp.randomness import keyed_generator
from torchdp.training import BallsInBins, Iterates, SampledBatches, choose
from torchdp.training.binned import _highest, divergence

C = np.array([[1.0, 0, 0, 0], [0.6, 1, 0, 0], [0.3, 0.6, 1, 0], [0.2, 0.3, 0.6, 1]])
SIGMA, EPSILON = 1.5, 0.7


def lost(added, count=400_000):
    """The hockey-stick divergence of all four outputs, two bins: steps 0, 2 or 1, 3; and its standard error."""
    rng = np.random.default_rng(3)
    means = np.stack([C[:, 0] + C[:, 2], C[:, 1] + C[:, 3]])
    y = SIGMA * rng.standard_normal((count, 4))
    if not added:
        y += means[rng.integers(2, size=count)]
    ratio = np.mean([np.exp((y @ m - m @ m / 2) / SIGMA**2) for m in means], 0)
    part = np.maximum(0, 1 - math.exp(EPSILON) * (ratio if added else 1 / ratio))
    return part.mean(), part.std() / count**0.5


@pytest.mark.parametrize("added", [False, True])
def test_the_divergence_is_that_of_all_outputs(added):
    gram = BallsInBins(2).gram(torch.from_numpy(C), 1 / SIGMA)
    found, hits = divergence(gram, EPSILON, 400_000, keyed_generator(b"one"), added)
    expected, error = lost(added)
    assert abs(found - expected) < 6 * error and abs(hits / 400_000 - found) < 0.003
    twice, _ = divergence(4 * gram, EPSILON, 400_000, keyed_generator(b"one"), added)
    assert abs(twice - expected) > 60 * error  # half the noise


@pytest.mark.parametrize("sigma", [0.8, 1.5])
def test_one_bin_is_gaussian_noise(sigma):
    gram = BallsInBins(1).gram(torch.eye(2).double(), 1 / sigma)
    truth = math.exp(gaussian_log_delta(sigma, 1.0, 2**0.5))
    for added in (False, True):
        found, _ = divergence(gram, 1.0, 200_000, keyed_generator(b"gauss"), added)
        assert abs(found - truth) < 5 * math.sqrt(truth / 200_000)


def test_guarantee_delta_is_above_the_truth_and_not_far():
    settings = {"doubt": 1e-6, "samples": 200_000, "generator": keyed_generator(b"two")}
    found = BallsInBins(2).guarantee(torch.from_numpy(C), SIGMA, 1.0, EPSILON, **settings)
    truth = max(lost(False), lost(True))
    assert truth[0] - 5 * truth[1] < found.delta < truth[0] + 0.01 and "confidence" in found.source
    wider = BallsInBins(2).guarantee(torch.from_numpy(C), SIGMA, 2.0, EPSILON, **settings)
    assert wider.delta > 2 * truth[0]


def test_guarantee_the_bound_is_wrong_as_seldom_as_it_says():
    """At a doubt of 20 %, over 300 runs of 500 coins each."""
    gram = BallsInBins(2).gram(torch.from_numpy(C), 1 / SIGMA)
    truth, generator = (
        divergence(gram, EPSILON, 2_000_000, keyed_generator(b"truth"), False)[0],
        keyed_generator(b"c"),
    )
    below = 0
    for _ in range(300):
        hits = divergence(gram, EPSILON, 500, generator, False)[1]
        below += _highest(hits, 500, 0.2) < truth
    assert 20 < below <= stats.binom.ppf(0.9999, 300, 0.2)


def test_users_draw_their_bins_independently():
    batches = SampledBatches(BallsInBins(5), 3000, 15, noise=SeededNoise(1))
    seen = [frozenset(batch) for batch in batches]
    assert seen[:5] == seen[5:10] == seen[10:] and sum(map(len, seen[:5])) == 3000
    sizes = torch.tensor([len(s) for s in seen[:5]])
    assert sizes.unique().numel() > 1 and stats.chisquare(sizes.numpy()).pvalue > 1e-3


def test_chosen_among_the_candidates():
    generator = keyed_generator(b"choose")
    choice = choose(Iterates(24), 80, 10, epsilon=2.0, delta=1e-3, samples=100_000, generator=generator)
    one = next(c for c in choice.candidates if c.name.startswith("balls in bins"))
    plan = one.protocol
    again = plan.sampling.guarantee(
        plan.strategy, plan.sigma, 1.0, 2.0, doubt=1e-5, samples=200_000, generator=keyed_generator(b"again")
    )
    assert plan.guarantee.delta == 1e-3 and 0.3e-3 < again.delta < 1.2e-3
    run = plan.start(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss)
    for users in run:
        run.backward(torch.zeros(len(users), 1), torch.zeros(len(users), 1))
    assert run.step == 24 and run.spent == plan.guarantee


def test_bad_input_is_named():
    settings = {"doubt": 1e-6, "samples": 1000, "generator": keyed_generator(b"bad")}
    with pytest.raises(ValueError, match="no negative entry"):
        BallsInBins(2).guarantee(torch.tensor([[1.0, 0], [-0.1, 1]]), 1.0, 1.0, 1.0, **settings)
    with pytest.raises(ValueError, match="samples must be about"):
        BallsInBins(2).sigma(torch.eye(2), 1.0, 1.0, 1e-6, **settings)
    with pytest.raises(ValueError, match="bins"):
        BallsInBins(0)
    with pytest.raises(ValueError, match="without a generator"):
        choose(Iterates(4), 8, 2, epsilon=1.0, delta=1e-3, samples=1000)
