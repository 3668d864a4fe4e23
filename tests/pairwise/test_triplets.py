"""Statistics of triples: unbiased, with the stated variance, by enumeration, algebra and Monte Carlo."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstat

from torchdp.noise import SeededNoise
from torchdp.pairwise import (
    OneMessageTriples,
    TripleStatistic,
    third_central_moment,
    three_distinct,
    triples_from_factors,
)
from torchdp.privacy import Model
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments


def random(*shape, key=b"triples"):
    return torch.randn(*shape, dtype=torch.float64, generator=keyed_generator(key))


VARIED = TripleStatistic("varied", random(4, 2), random(3, 2), *(random(3, key=bytes([i])) for i in range(3)), 0.7)
FACTORS = [random(4, 2, key=letter) for letter in (b"a", b"b", b"c")]
STATISTICS = [VARIED, three_distinct(4), third_central_moment(4), triples_from_factors(*FACTORS)]


def by_definition(f, types):
    return sum(f(*some) for some in itertools.permutations(types, 3)) / math.perm(len(types), 3)


def kernel(statistic):
    z = statistic.points @ statistic.directions.mT

    def f(x, y, w):
        x, y, w = z[x], z[y], z[w]
        terms = statistic.cubic * x * y * w + statistic.square * (x * y + x * w + y * w) / 3
        return float((terms + statistic.linear * (x + y + w) / 3).sum()) + statistic.constant

    return f


@pytest.mark.parametrize("types", [[0, 1, 2], [3, 3, 3], [0, 0, 1, 3, 3], [1, 2, 0, 3, 1, 1]])
def test_exact_values_are_means_over_distinct_users(types):
    counts = torch.bincount(torch.tensor(types), minlength=4)
    wanted = [
        kernel(VARIED),
        lambda x, y, w: float(len({x, y, w}) == 3),
        lambda x, y, w: x**3 - 3 * x**2 * y + 2 * x * y * w,
        lambda x, y, w: float((FACTORS[0][x] * FACTORS[1][y] * FACTORS[2][w]).sum()),
    ]
    for statistic, f in zip(STATISTICS, wanted, strict=True):
        assert float(statistic.exact(counts)) == pytest.approx(by_definition(f, types), abs=1e-12)
    spaced = third_central_moment(4, spacing=0.5).exact(counts)
    assert float(spaced) == pytest.approx(kstat([0.5 * x for x in types], 3), abs=1e-12)


def cross(dim, variance):
    """The 2 dim points of a noise with covariance variance * I: all equally likely."""
    axes = torch.eye(dim, dtype=torch.float64) * math.sqrt(variance * dim)
    return torch.cat([axes, -axes])


@pytest.mark.parametrize("statistic", STATISTICS[:3], ids=lambda each: each.name)
@pytest.mark.parametrize("types", [[0, 1, 2], [2, 2, 2], [0, 3, 3, 1]])
def test_unbiased_with_the_stated_variance_by_enumeration(statistic, types):
    # any isotropic noise serves: one with finitely many values can be enumerated
    protocol, users = OneMessageTriples(statistic, 2.0), statistic.points[torch.tensor(types)]
    noise = cross(users.shape[1], protocol.randomizer.moments.variance)
    which = torch.tensor(list(itertools.product(range(len(noise)), repeat=len(types))))
    values = statistic.mean(protocol.tally(users + noise[which]), float(len(types)))
    counts = torch.bincount(torch.tensor(types), minlength=statistic.types)
    assert float(values.mean()) == pytest.approx(float(statistic.exact(counts)), rel=1e-9, abs=1e-9)
    assert float(values.var(correction=0)) == pytest.approx(float(protocol.variance(counts)), rel=1e-9)
    scaled = statistic.mean(protocol.tally(users + 1.01 * noise[which]), float(len(types)))
    assert float(scaled.var(correction=0)) != pytest.approx(float(protocol.variance(counts)), rel=1e-3)


@pytest.mark.parametrize("n, trials", [(3, 100_000), (40, 20_000)])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
def test_monte_carlo_with_the_real_noise(statistic, n, trials):
    protocol, generator = OneMessageTriples(statistic, 4.0), keyed_generator(b"monte carlo")
    types = torch.arange(n) * torch.arange(n) % 3 + (torch.arange(n) % 7 == 0)
    counts = torch.bincount(types, minlength=4)
    users = statistic.points[types].expand(trials, -1, -1)
    sums = protocol.tally(protocol.randomizer.sample(users, noise=SeededNoise.of(generator)))
    errors = protocol.analyse(sums, n).value - statistic.exact(counts)
    assert abs(Moments.of(errors).z_score(0.0)) < 5
    squared = Moments.of(errors.square())
    assert abs(squared.z_score(protocol.predicted_mse(counts, n))) < 5
    if n == 40:
        assert squared.standard_error < 0.05 * squared.mean
        assert abs(squared.z_score(1.3 * protocol.predicted_mse(counts, n))) > 5


@pytest.mark.parametrize("statistic", [three_distinct(4), third_central_moment(4)], ids=lambda each: each.name)
def test_intervals_cover_and_the_plug_in_variance_is_right(statistic):
    n, trials = 2_000, 1_500
    protocol, generator = OneMessageTriples(statistic, 4.0), keyed_generator(b"cover")
    types = torch.arange(n) * torch.arange(n) % 4
    truth = statistic.exact(torch.bincount(types, minlength=4))
    drawn = [
        protocol.tally(
            protocol.randomizer.sample(
                statistic.points[types].expand(100, -1, -1), noise=SeededNoise.of(generator)
            )
        )
        for _ in range(trials // 100)
    ]
    answer = protocol.analyse([torch.cat(each) for each in zip(*drawn, strict=True)], n)
    low, high = answer.interval()
    assert 0.93 < float(((low <= truth) & (truth <= high)).double().mean()) < 0.97
    predicted = protocol.predicted_mse(torch.bincount(types, minlength=4), n)
    assert float(answer.standard_error.square().mean()) == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
def test_guarantee_one_message_triples(statistic, epsilon):
    protocol = OneMessageTriples(statistic, epsilon)
    promised, tau = protocol.guarantee, protocol.randomizer.tau
    assert promised.epsilon == protocol.randomizer.epsilon == epsilon and promised.delta == 0
    assert promised.model is Model.LOCAL and not promised.exact
    assert protocol.bits_per_user == 64 * statistic.points.shape[1]
    # the randomizer's message for a point in its ball; its density against the normal takes two values
    assert float(statistic.points.norm(dim=1).max()) <= protocol.randomizer.radius * (1 + 1e-12)
    assert math.log(tau.high_density / tau.low_density) == pytest.approx(epsilon, rel=1e-12)
    types = torch.tensor([0, 3, 3, 1])
    sums = protocol.collect(types, noise=SeededNoise.of(keyed_generator(b"same")))
    messages = protocol.randomizer.sample(statistic.points[types], noise=SeededNoise.of(keyed_generator(b"same")))
    for one, two in zip(sums, protocol.tally(messages), strict=True):
        torch.testing.assert_close(one, two)
    wider = replace(statistic, points=statistic.points * 1.01)  # control: the radius follows the points
    assert OneMessageTriples(wider, epsilon).randomizer.radius > protocol.randomizer.radius


def test_users_in_parts_and_the_estimate(monkeypatch):
    protocol = OneMessageTriples(three_distinct(5), 50.0)
    types = torch.arange(3000) % 5
    whole = protocol.estimate(types, noise=SeededNoise.of(keyed_generator(b"parts")))
    monkeypatch.setattr("torchdp.pairwise.triplets.NUMBERS_AT_ONCE", 1000)
    part = protocol.estimate(types, noise=SeededNoise.of(keyed_generator(b"parts")))
    truth = protocol.statistic.exact(torch.bincount(types))
    for each in (whole, part):
        assert abs(float(each.value - truth)) < 5 * float(each.standard_error) < 0.05 and each.n == 3000


def test_bad_input():
    statistic = three_distinct(4)
    with pytest.raises(TypeError, match="statistic must be a TripleStatistic"):
        OneMessageTriples(torch.eye(3), 1.0)
    for epsilon in (0, -1, math.nan, "1", 1e9):
        with pytest.raises(ValueError, match="epsilon must"):
            OneMessageTriples(statistic, epsilon)
    protocol, generator = OneMessageTriples(statistic, 1.0), keyed_generator(b"bad")
    for types in (torch.tensor([0, 1]), torch.tensor([[0, 1, 2]]), torch.tensor([0, 1, 4])):
        with pytest.raises(ValueError, match="types must"):
            protocol.estimate(types, noise=SeededNoise.of(generator))
    for n in (2, 2.5, None):
        with pytest.raises(ValueError, match="n must be an integer >= 3"):
            protocol.predicted_mse(torch.ones(4), n)
    with pytest.raises(ValueError, match="histogram must be"):
        protocol.predicted_mse(torch.ones(3), 10)
    with pytest.raises(ValueError, match="cubic must have shape"):
        replace(statistic, cubic=torch.ones(3, dtype=torch.float64))
    with pytest.raises(TypeError, match="points must be float64"):
        replace(statistic, points=statistic.points.float())
    with pytest.raises(ValueError, match="directions"):
        replace(statistic, directions=torch.ones(4, 4, dtype=torch.float64))
    for k in (2, 1.5):
        with pytest.raises(ValueError, match="k must be an integer >= 3"):
            three_distinct(k)
    with pytest.raises(ValueError, match="must have one shape"):
        triples_from_factors(torch.ones(4, 2), torch.ones(4, 3), torch.ones(4, 2))
    with pytest.raises(ValueError, match="must not be 0"):
        triples_from_factors(torch.ones(4, 2), torch.zeros(4, 2), torch.ones(4, 2))
