"""predicted_mse is exact: against Monte Carlo, and against sums over all outcomes where these can be done."""

import math
from itertools import product

import pytest
import torch
from pairs import from_factors
from scipy.integrate import quad

from pairwise.common import mse, responses
from torchdp import pairwise
from torchdp.pairwise import (
    Form,
    OneMessage,
    Pairs,
    PairwiseStatistic,
    TwoMessage,
)
from torchdp.protocol import Tally
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

KINDS = [TwoMessage, OneMessage, responses]
STATISTICS = [pairwise.absolute_difference(5), pairwise.unequal(4), pairwise.kendall(2, 3)]
VARIED = from_factors(  # its diagonal f(x, x) is 1, 4, -2
    torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, -3.0]]), torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
)
STEP = 100_000  # trials at once


def counts_of(statistic, n):
    """Uneven counts of n users, some of them 0 for small n."""
    weights = 1 / torch.arange(1, statistic.types + 1, dtype=torch.float64)
    counts = (weights / weights.sum() * n).floor().long()
    counts[-1] += n - counts.sum()
    return counts


def errors(protocol, counts, trials):
    key = f"{protocol.statistic.name} {type(protocol).__name__} {protocol.epsilon} {counts}"
    generator = keyed_generator(key.encode())
    sizes = [STEP] * (trials // STEP) + [trials % STEP] * (trials % STEP > 0)
    drawn = [protocol.sample_estimate(counts, generator=generator, sample_shape=(size,)).value for size in sizes]
    return torch.cat(drawn) - protocol.statistic.exact(counts)


def agrees(moments, predicted):
    """Whether Monte Carlo and the prediction agree: within 5 standard errors, and these small enough to tell."""
    return abs(moments.z_score(predicted)) < 5 and abs(moments.mean / predicted - 1) < 0.05


def check(protocol, counts, trials):
    error = errors(protocol, counts, trials)
    squared = Moments.of(error.square())
    predicted = mse(protocol, counts, int(counts.sum()))
    assert agrees(squared, predicted), (squared.mean / predicted, squared.z_score(predicted))
    assert squared.standard_error < 0.023 * predicted
    assert abs(Moments.of(error).z_score(0.0)) < 5


@pytest.mark.parametrize("n, trials, epsilon", [(8, 50_000, 1.0), (60, 15_000, 4.0)])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_monte_carlo_finds_the_predicted_error(kind, statistic, epsilon, n, trials):
    check(kind(statistic, epsilon), counts_of(statistic, n), trials)


def central_moments_on_the_circle(cap, a):
    """Variance, third and fourth central moment of cos(A) over the threshold, by quadrature over the angle A.

    The favoured arc lies around the angle arccos(a).
    """
    middle, half = math.acos(a), math.acos(cap.threshold)
    arcs = [(middle - half, middle + half, cap.high_density)]
    arcs.append((middle + half, middle - half + 2 * math.pi, cap.low_density))

    def moment(order, mean):
        def f(angle):
            return (math.cos(angle) / cap.threshold - mean) ** order / (2 * math.pi)

        return sum(density * quad(f, start, stop)[0] for start, stop, density in arcs)

    assert moment(1, 0.0) == pytest.approx(a, abs=1e-9)
    return moment(2, a), moment(3, a), moment(4, a)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("counts", [[1, 1, 0], [2, 0, 0], [0, 1, 1], [1, 1, 1], [0, 3, 0], [0, 1, 2]])
def test_one_message_variance_from_the_moments_of_the_sum(counts, epsilon):
    # one coordinate: S = sum Y, and Var(w S^2 / n^2) = w^2 (E S^4 - (E S^2)^2) / n^4 by adding up cumulants
    points = torch.tensor([[1.5], [-0.6], [0.0]], dtype=torch.float64)
    weight = -0.7
    statistic = PairwiseStatistic("square", points, Form(torch.tensor([weight]).double(), 0.3), pairs=Pairs.ALL)
    protocol, counts = OneMessage(statistic, epsilon), torch.tensor(counts)
    client, s, cumulants = protocol.client, 0.0, [0.0, 0.0, 0.0]
    for x in points[:, 0].repeat_interleave(counts).tolist():
        second, third, fourth = central_moments_on_the_circle(client.cap, x / statistic.radius)
        second += (client.step / statistic.radius) ** 2 / 6  # rounded
        for i, value in enumerate((second, third, fourth - 3 * second**2)):
            cumulants[i] += statistic.radius ** (i + 2) * value
        s += x
    two, three, four = cumulants
    variance = s**4 + 6 * s**2 * two + 4 * s * three + four + 3 * two**2 - (s * s + two) ** 2
    n = int(counts.sum())
    got = protocol.mean_variance(counts.double(), statistic.form)
    assert float(got) == pytest.approx(
        weight**2 * variance / n**4, rel=1e-5
    )  # of the fourth moment, rounding's part


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 0, 0], [0, 2, 1], [0, 1, 1]])
@pytest.mark.parametrize(
    "statistic", [pairwise.absolute_difference(3, spacing=0.5), VARIED], ids=lambda each: each.name
)
def test_randomized_response_by_enumeration_of_all_reports(statistic, counts, epsilon):
    protocol, counts = responses(statistic, epsilon), torch.tensor(counts)
    client, n = protocol.client, int(counts.sum())
    users = [x for x in range(3) for _ in range(int(counts[x]))]
    reports = torch.tensor(list(product(range(3), repeat=n)))
    p, q = (torch.tensor(value, dtype=torch.float64) for value in (client.p, client.q))
    chance = torch.where(reports == torch.tensor(users), p, q).prod(1)
    assert float(chance.sum()) == pytest.approx(1, rel=1e-12)
    sums = torch.nn.functional.one_hot(reports, 3).sum(1)
    values = protocol.mean(Tally(n, {"reports": sums}), statistic.form)
    mean = chance @ values
    assert float(mean) == pytest.approx(float(statistic.mean(counts, statistic.form)), rel=1e-10, abs=1e-10)
    variance = chance @ (values - mean).square()
    got = protocol.mean_variance(counts.double(), statistic.form)
    assert float(got) == pytest.approx(float(variance), rel=1e-10)
