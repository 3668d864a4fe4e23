"""Balls in bins: the sampler's law, the accountant against another's sampling of all outputs, and its confidence."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.factorization import BandedStrategy, BufferedStrategy
from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.training import BallsInBins, Iterates, SampledBatches, choose, standard_errors
from torchdp.training.binned import _drawn, _Tilted, divergence

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
    found, bound = divergence(gram, EPSILON, 200_000, 1e-6, keyed_generator(b"one"), added)
    expected, error = lost(added)
    assert abs(found - expected) < 6 * error and found < bound < 1.1 * found
    twice, _ = divergence(4 * gram, EPSILON, 200_000, 1e-6, keyed_generator(b"one"), added)
    assert abs(twice - expected) > 60 * error  # half the noise


@pytest.mark.parametrize("sigma", [0.5, 1.5, 4.0])
def test_one_bin_is_gaussian_noise(sigma):
    """Down to a chance of 1e-7, by as few samples."""
    gram = BallsInBins(1).gram(torch.eye(2).double(), 1 / sigma)
    truth = math.exp(gaussian_log_delta(sigma, 1.0, 2**0.5))
    for added in (False, True):
        found, bound = divergence(gram, 1.0, 300_000, 1e-6, keyed_generator(b"gauss"), added)
        assert abs(found / truth - 1) < 0.03 and truth < bound < 1.07 * truth


@pytest.mark.parametrize("added", [False, True])
def test_guarantee_no_output_passes_the_bound_that_needs_no_samples(added):
    """f / r_safe <= most wherever the outputs lie, also where an ascent leads; one bin attains it."""
    generator, reached = keyed_generator(b"most"), 0.0
    for case in range(8):
        bins = 1 + case % 4
        m = torch.rand(bins, 4, generator=generator, dtype=torch.float64) * (0.3 + case % 3)
        law = _Tilted.of(m @ m.mT, 0.2 + case % 5, added, _drawn(m, 100, generator))
        y = (4 * torch.randn(300, 4, generator=generator, dtype=torch.float64)).requires_grad_()
        optimizer = torch.optim.Adam([y], lr=0.1)
        for _ in range(60):
            part, weight = law.logs(y @ m.mT, law.safe)
            log = part - weight
            assert log.max() <= math.log(law.most) + 1e-9
            optimizer.zero_grad()
            (-log[log.isfinite()]).sum().backward()
            optimizer.step()
        reached = max(reached, float(log.detach().max().exp()) / law.most) if bins == 1 else reached
    assert reached > 0.99


@pytest.mark.parametrize("added", [False, True])
def test_guarantee_nor_where_noise_hides_nothing(added):
    """Users ten deviations apart: the bound is 1, under the law itself; under a tilted one f / r passes it."""
    gram, generator = torch.tensor([[100.0, 2.0], [2.0, 80.0]], dtype=torch.float64), keyed_generator(b"loud")
    law = _Tilted.of(gram, 1.0, added, _drawn(gram, 1000, generator))
    part, weight = law.logs(law.seen(_drawn(gram, 20_000, generator), law.safe), law.safe)
    assert law.most == 1.0 and (part - weight).max() <= 1e-9


def test_guarantee_a_wrong_range_costs_samples_and_not_truth():
    """A cap at a hundredth of the right one: what is beyond it is counted by the other law."""
    gram, generator = BallsInBins(2).gram(torch.from_numpy(C), 1 / SIGMA), keyed_generator(b"cap")
    expected, error = lost(False)
    law = _Tilted.of(gram, EPSILON, False, _drawn(gram, 1000, generator))
    draws, others = _drawn(gram, 300_000, generator), _drawn(gram, 300_000, generator)
    cap = law.cap(law.ratio(draws, law.aimed)) / 100
    below, beyond = law.ratio(draws, law.aimed).clamp_max(cap).mean(), law.excess(others, cap).mean()
    assert below < 0.9 * expected and abs(below + beyond - expected) < 6 * error


def test_guarantee_delta_is_above_the_truth_and_not_far():
    settings = {"doubt": 1e-6, "samples": 50_000, "generator": keyed_generator(b"two")}
    found = BallsInBins(2).likely_guarantee(torch.from_numpy(C), SIGMA, 1.0, EPSILON, **settings)
    truth = max(lost(False), lost(True))
    assert truth[0] - 5 * truth[1] < found.delta < 1.2 * truth[0] and "confidence" in found.source
    wider = BallsInBins(2).likely_guarantee(torch.from_numpy(C), SIGMA, 2.0, EPSILON, **settings)
    assert wider.delta > 2 * truth[0]


def test_guarantee_the_bound_is_wrong_as_seldom_as_it_says():
    """At a doubt of 40 %, over 200 runs of 500 samples of each law; the mean alone is wrong about every second time."""
    gram, generator = BallsInBins(2).gram(torch.from_numpy(C), 1 / SIGMA), keyed_generator(b"c")
    truth = divergence(gram, EPSILON, 1_000_000, 0.5, generator, False)[0]
    runs = [divergence(gram, EPSILON, 500, 0.4, generator, False) for _ in range(200)]
    mean, bound = (sum(each[i] < truth for each in runs) for i in (0, 1))
    assert 3 < bound <= stats.binom.ppf(0.9999, 200, 0.4) and mean > 80


@pytest.mark.parametrize("bands", [1, 3, 9])
@pytest.mark.parametrize("steps", [9, 20])
def test_guarantee_what_bins_have_in_common_is_no_less(steps, bands):
    """Of Toeplitz strategies and buffers without forming C, on a circle of bins; also where C is formed."""
    generator, ones = keyed_generator(b"met"), torch.ones(steps, dtype=torch.float64)
    poles, zeros = torch.tensor([0.8, 0.3]), torch.tensor([0.5, 0.1])
    rising = torch.rand(steps, generator=generator, dtype=torch.float64) + 0.5
    banded = BandedStrategy(
        torch.cat([ones[:1], torch.rand(bands - 1, generator=generator).double()])[None], steps
    )
    kinds = [
        banded,
        BufferedStrategy(poles, zeros, ones, ones),
        BufferedStrategy(poles, zeros, rising, 1 / rising),
    ]
    for C in kinds:
        for bins in (1, 2, 4, 9, 25):
            gram, place = BallsInBins(bins).gram(C, 1.0), torch.arange(bins)
            needed = torch.stack([gram[place, (place + d) % bins].max() for d in range(bins)])
            formed = BallsInBins(bins).met(C)
            known = C.met(bins) if C is not banded or bands == 1 or (C.coefficients.diff() <= 0).all() else formed
            assert (known >= needed * (1 - 1e-14)).all() and (formed >= needed * (1 - 1e-14)).all()
            assert formed == pytest.approx(torch.cat([needed.max()[None], needed[1:]]), rel=1e-9, abs=1e-9)


def test_guarantee_without_samples_is_above_the_truth_and_free_of_chance():
    truth = max(lost(False), lost(True))
    found = BallsInBins(2).guarantee(torch.from_numpy(C), SIGMA, 1.0, truth[0])
    assert EPSILON - 0.01 < found.epsilon < 1.4 * EPSILON and "confidence" not in found.source
    assert found == BallsInBins(2).guarantee(torch.from_numpy(C), SIGMA, 1.0, truth[0])
    wider = BallsInBins(2).guarantee(torch.from_numpy(C), SIGMA, 2.0, truth[0])
    assert wider.epsilon > 1.5 * found.epsilon


@pytest.mark.parametrize("bins", [4, 100])
def test_guarantee_sigma_is_enough_and_no_more_than_every_bin_needs(bins):
    """Also of more steps than a matrix is formed for; less than without the secret bins."""
    strategy = BandedStrategy(torch.tensor([[1.0, 0.5]], dtype=torch.float64), 4 * bins if bins < 9 else 10_000)
    sigma = BallsInBins(bins).sigma(strategy, 2.0, 1.0, 1e-5)
    alone = gaussian_sigma(1.0, 1e-5, 2 * float(BallsInBins(bins).met(strategy)[0]) ** 0.5)
    assert BallsInBins(bins).guarantee(strategy, sigma, 2.0, 1e-5).epsilon <= 1.0 and 0.1 * alone < sigma < alone


def test_next_to_no_noise_hides_nothing():
    settings = {"doubt": 1e-6, "samples": 1000, "generator": keyed_generator(b"none")}
    for epsilon in (0.0, 1.0, 50.0):
        assert BallsInBins(2).likely_guarantee(torch.eye(2), 1e-4, 1.0, epsilon, **settings).delta > 0.99


def test_users_draw_their_bins_independently():
    batches = SampledBatches(BallsInBins(5), 3000, 15, noise=SeededNoise(1))
    seen = [frozenset(batch) for batch in batches]
    assert seen[:5] == seen[5:10] == seen[10:] and sum(map(len, seen[:5])) == 3000
    sizes = torch.tensor([len(s) for s in seen[:5]])
    assert sizes.unique().numel() > 1 and stats.chisquare(sizes.numpy()).pvalue > 1e-3


def test_chosen_among_the_candidates():
    generator = keyed_generator(b"choose")
    choice = choose(Iterates(24), 80, 10, epsilon=2.0, delta=1e-3, bins=20_000, generator=generator)
    one = next(c for c in choice.candidates if c.name.startswith("balls in bins"))
    plan = one.protocol
    again = plan.sampling.likely_guarantee(
        plan.strategy, plan.sigma, 1.0, 2.0, doubt=1e-5, samples=200_000, generator=keyed_generator(b"again")
    )
    assert plan.guarantee.delta == 1e-3 and 0.3e-3 < again.delta < 1.2e-3
    run = plan.start(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss)
    for users in run:
        run.backward(torch.zeros(len(users), 1), torch.zeros(len(users), 1))
    assert run.step == 24 and run.spent == plan.guarantee


@pytest.mark.slow  # a dozen strategies, half a minute
def test_chosen_without_samples():
    """With bands and with buffers, and with a guarantee of no chance."""
    choice = choose(Iterates(12), 40, 10, epsilon=2.0, delta=1e-3, bins=True)
    plans = {c.name: c.protocol for c in choice.candidates if c.name.startswith("balls in bins")}
    assert {name.split()[-1] for name in plans} == {"bands", "buffers"} and len(plans) == 3
    for plan in plans.values():
        assert plan.guarantee.epsilon <= 2.0 and plan.guarantee.delta == 1e-3
        assert "confidence" not in plan.guarantee.source
        expected = plan.sigma * standard_errors(Iterates(12), plan.strategy)
        assert plan.standard_errors == pytest.approx(expected)


def test_smaller_steps_than_the_others_count():
    settings = {"bins": 2000, "generator": keyed_generator(b"fewer")}
    choice = choose(Iterates(3), 10, 6, epsilon=2.0, delta=0.05, **settings)  # 5 users a step
    one = next(c for c in choice.candidates if c.name.startswith("balls in bins"))
    assert one.error == pytest.approx(1.2 * float(one.protocol.standard_errors.square().mean().sqrt()))


def test_bad_input_is_named():
    settings = {"doubt": 1e-6, "samples": 1000, "generator": keyed_generator(b"bad")}
    with pytest.raises(ValueError, match="no negative entry"):
        BallsInBins(2).likely_guarantee(torch.tensor([[1.0, 0], [-0.1, 1]]), 1.0, 1.0, 1.0, **settings)
    with pytest.raises(ValueError, match="doubt must be below"):
        BallsInBins(2).likely_sigma(torch.eye(2), 1.0, 1.0, 1e-6, **settings)
    with pytest.raises(ValueError, match="bins"):
        BallsInBins(0)
    with pytest.raises(ValueError, match="without a generator"):
        choose(Iterates(4), 8, 2, epsilon=1.0, delta=1e-3, bins=1000)


def test_guarantee_bins_without_a_step_and_extremes_are_served():
    """Four steps of ten bins: most users are in none. Samples that can show nothing are refused by name."""
    sampling, generator = BallsInBins(10), keyed_generator(b"empty")
    _, bound = divergence(sampling.gram(torch.eye(4), 1.0), 1.0, 50_000, 1e-6, generator, False)
    y = np.random.default_rng(5).standard_normal((400_000, 4))
    bins = np.random.default_rng(6).integers(10, size=400_000)
    y[bins < 4, bins[bins < 4]] += 1
    part = np.maximum(0, 1 - math.e / ((6 + np.exp(y - 0.5).sum(1)) / 10))
    assert part.mean() - 4 * part.std() / len(y) ** 0.5 < bound < 1.5 * part.mean()
    settings = {"doubt": 1e-9, "samples": 2000, "generator": generator}
    assert sampling.likely_sigma(torch.eye(4), 1.0, 1e4, 1e-2, **settings) < 0.01
    with pytest.raises(ValueError, match="samples"):
        sampling.likely_sigma(torch.eye(4), 1.0, 1e-3, 1e-12, **(settings | {"doubt": 1e-14}))
