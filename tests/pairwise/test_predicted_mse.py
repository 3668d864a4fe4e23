"""predicted_mse is exact: against sums over all outcomes, and Monte Carlo where these can not be
done.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import float64, normal, uniform
from pairs import from_factors
from responses import channel as messages
from scipy import stats
from scipy.integrate import quad

from pairwise.common import mse, random_types, twice, vectors
from torchdp import pairwise
from torchdp.pairwise import Form, Pairs, PairwiseStatistic
from torchdp.privacy import Model
from torchdp.protocol import Tally
from torchdp.queries import (
    CentralLaplace,
    FactoredQueries,
    Linear,
    LocalOracle,
    Several,
    ShuffledQueries,
)
from torchdp.queries.pair_variance import pairs_variance
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator
from torchdp.shuffle import (
    BoundedSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
)
from torchdp.simulate import Moments

# its diagonal f(x, x) is 1, 4, -2
VARIED = from_factors(
    torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, -3.0]]),
    torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]]),
)
PAIR = from_factors(torch.tensor([[1.0], [-0.4]]), torch.tensor([[0.5, 1.0]]))
LINEAR = Linear(torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, -1.0]]))
SEVERAL = Several((VARIED, LINEAR))
QUESTIONS = {
    "differences": pairwise.absolute_difference(3, spacing=0.5),
    "varied": VARIED,
    "of all pairs": replace(VARIED, pairs=Pairs.ALL),
    "of two types": PAIR,
    "of all pairs of two types": replace(PAIR, pairs=Pairs.ALL),
    "several": SEVERAL,
}
SETS = [SubsetSelection, OptimizedUnaryEncoding, SymmetricUnaryEncoding]


def uneven(k, epsilon):
    """A strategy of 2k outputs without any symmetry."""
    # no two rows or columns alike
    logits = uniform(2 * k, k, name=b"uneven")
    matrix = (logits * epsilon / 2).exp()
    return StrategyMatrix(matrix / matrix.sum(0), torch.arange(1.0, k + 1).double())


def enumerated(question, oracle, counts):
    """Estimates of all that the users may send, with their chances."""
    law = float64([[float(chance) for chance in row] for row in messages(oracle)])
    k = oracle.k
    if isinstance(oracle, SubsetSelection):
        sets = itertools.combinations(range(k), oracle.subset)
        types = torch.eye(k, dtype=torch.int64)
        rows = torch.stack([types[list(each)].sum(0) for each in sets])
    elif isinstance(oracle, OptimizedUnaryEncoding | SymmetricUnaryEncoding):
        rows = torch.tensor(list(itertools.product((0, 1), repeat=k)))
    else:
        rows = torch.eye(law.shape[1], dtype=torch.int64)
    users = torch.arange(k).repeat_interleave(counts)
    sent = torch.tensor(list(itertools.product(range(len(rows)), repeat=len(users))))
    chance = law[users, sent].prod(1)
    tally = Tally(len(users), {"reports": rows[sent].sum(1)})
    found = LocalOracle.of(question, oracle).analyse(tally)
    return found.value, chance


def moments_of(value, chance):
    chance = chance / chance.sum()
    mean = torch.einsum("b,b...->...", chance, value)
    return mean, torch.einsum("b,b...->...", chance, (value - mean).square())


@pytest.mark.parametrize("counts", [[1, 1, 0], [0, 3, 0], [1, 1, 1], [2, 0, 2]])
@pytest.mark.parametrize("kind", [RandomizedResponse, uneven, HadamardResponse])
@pytest.mark.parametrize("name", QUESTIONS)
def test_reports_by_enumeration_of_all_messages(name, kind, counts):
    """Both kinds of pairs, diagonals that vary, a linear part: the mean and the variance of the
    estimate.
    """
    question = QUESTIONS[name]
    counts = torch.tensor(counts[: question.types])
    counts[0] += 2 * int(counts.sum() < 2)
    for epsilon in (0.5, 3.0):
        protocol = LocalOracle.of(question, kind(question.types, epsilon))
        mean, variance = moments_of(*enumerated(question, protocol.channel.client, counts))
        torch.testing.assert_close(mean, protocol.exact(counts), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            variance,
            protocol.predicted_mse(counts),
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.parametrize("counts", [[1, 1, 0], [0, 2, 1], [1, 1, 2]])
@pytest.mark.parametrize("kind", SETS)
def test_sets_by_enumeration_of_all_messages(kind, counts):
    """Unbiased, exactly; the variance lacks what the squares add, which are put at their mean: a
    fraction 1/n.
    """
    counts = torch.tensor(counts)
    n = int(counts.sum())
    for pairs in Pairs:
        question = replace(VARIED, pairs=pairs)
        protocol = LocalOracle.of(question, kind(3, 1.5))
        mean, variance = moments_of(*enumerated(question, protocol.channel.client, counts))
        torch.testing.assert_close(mean, protocol.exact(counts), rtol=1e-9, atol=1e-9)
        assert abs(float(variance / protocol.predicted_mse(counts)) - 1) < 1 / n


@pytest.mark.parametrize("kind", [RandomizedResponse, *SETS])
def test_symmetric_variance_is_the_general_one(kind):
    linear = normal(2, 6, name=b"linear")
    for statistic in (
        pairwise.absolute_difference(2),
        pairwise.absolute_difference(5),
        VARIED,
    ):
        k, r = statistic.points.shape
        channel = LocalOracle.of(statistic, kind(k, 2.0)).channel
        side = (torch.eye(k, dtype=torch.float64) - 1 / k) @ channel.points
        covariances = [side.mT @ channel.client.covariance(x) @ side for x in range(k)]
        covariances = torch.stack(covariances)
        counts = torch.arange(k).double() + 1.5
        form = statistic.form.weights
        for part in (linear[0, :r], 0 * form):
            want = pairs_variance(
                channel.points,
                covariances,
                counts,
                form,
                part,
            )
            torch.testing.assert_close(
                channel.form_variance(counts, form, part),
                want,
                rtol=1e-10,
                atol=0,
            )


def central_moments_on_the_circle(cap, a):
    """Variance, third and fourth central moment of cos(A) over the threshold, by quadrature over
    the angle A.

    The favoured arc lies around the angle arccos(a).
    """
    middle = math.acos(a)
    half = math.acos(cap.threshold)
    # the favoured arc, and the rest of the circle
    arcs = [(middle - half, middle + half, cap.high_density)]
    arcs.append((middle + half, middle - half + 2 * math.pi, cap.low_density))

    def moment(order, mean):
        def f(angle):
            value = math.cos(angle) / cap.threshold
            return (value - mean) ** order / (2 * math.pi)

        return sum(density * quad(f, start, stop)[0] for start, stop, density in arcs)

    assert moment(1, 0.0) == pytest.approx(a, abs=1e-9)
    return moment(2, a), moment(3, a), moment(4, a)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(
    "counts",
    [[1, 1, 0], [2, 0, 0], [0, 1, 1], [1, 1, 1], [0, 3, 0], [0, 1, 2]],
)
def test_one_vectors_variance_from_the_moments_of_the_sum(counts, epsilon):
    # one coordinate: S = sum Y, and the variance of w S^2 / n^2 + l S / n by adding up cumulants
    points = float64([[1.5], [-0.6], [0.0]])
    weight = -0.7
    linear = 0.4
    form = Form(torch.tensor([weight]).double(), 0.3)
    statistic = PairwiseStatistic("square", points, form, pairs=Pairs.ALL)
    protocol = vectors(statistic, epsilon)
    counts = torch.tensor(counts)
    client = protocol.channel.client
    s = 0.0
    cumulants = [0.0, 0.0, 0.0]
    for x in points[:, 0].repeat_interleave(counts).tolist():
        second, third, fourth = central_moments_on_the_circle(client.cap, x / statistic.radius)
        # rounded
        second += (client.step / statistic.radius) ** 2 / 6
        for i, value in enumerate((second, third, fourth - 3 * second**2)):
            cumulants[i] += statistic.radius ** (i + 2) * value
        s += x
    two, three, four = cumulants
    n = int(counts.sum())
    # the variance of S^2, S of mean s, by its cumulants
    squares = 4 * s**2 * two + 4 * s * three + four + 2 * two**2
    shared = (three + 2 * s * two) / n**3
    expected = weight**2 * squares / n**4
    # of the fourth moment, rounding's part
    near = {"rel": 1e-5}
    assert float(protocol.predicted_mse(counts)) == pytest.approx(expected, **near)
    along = float64([linear])
    got = protocol.channel.form_variance(counts.double(), form.weights, along)
    assert float(got) == pytest.approx(
        expected + 2 * weight * linear * shared + linear**2 * two / n**2,
        **near,
    )


# ---- noise of sums: chances of whole numbers, written out


def geometric_difference(ratio, size=400):
    z = np.arange(-size, size + 1)
    return z, (1 - ratio) / (1 + ratio) * ratio ** np.abs(z)


def of_bounded(law):
    """Sums of the users' shares, each uniform on either of two ranges."""
    c = law.half_width
    q = law.share
    one = np.full(2 * c + 3, q / (2 * c + 3))
    one[1:-1] += (1 - q) / (2 * c + 1)
    chances = np.ones(1)
    for _ in range(law.users):
        chances = np.convolve(chances, one)
    return np.arange(len(chances)), chances


def of_flips(law, ones):
    """The estimate's chances: how many say 1, of those who hold 1 and of those who hold 0."""
    held = stats.binom(ones, 1 - law.flip).pmf(np.arange(ones + 1))
    others = stats.binom(law.users - ones, law.flip).pmf(np.arange(law.users - ones + 1))
    chances = np.convolve(held, others)
    return np.arange(len(chances)) / (1 - 2 * law.flip), chances


COUNTS = np.arange(400)
NOISE = {
    "Poisson": (
        PoissonSum(5, 3.0),
        lambda law: (COUNTS, stats.poisson(3.0).pmf(COUNTS)),
    ),
    "bounded": (BoundedSum(5, 2.3), of_bounded),
    "correlated": (
        CorrelatedSum(5, 0.6, 3.0, 0.5),
        lambda law: geometric_difference(0.6),
    ),
    "responses": (
        RandomizedResponseSum(7, 0.2),
        lambda law: of_flips(law, 2),
    ),
}


def cumulants(values, chances):
    away = values - values @ chances
    second = away**2 @ chances
    third = away**3 @ chances
    fourth = away**4 @ chances
    return second, third, fourth - 3 * second**2


@pytest.mark.parametrize("name", NOISE)
def test_cumulants_of_noise_by_enumeration(name):
    law, chances = NOISE[name]
    second, third, fourth = cumulants(*chances(law))
    ones = torch.tensor([2.0])
    found = [law.variance(ones.long()), *law.cumulants(ones)]
    for each, expected in zip(found, (second, third, fourth), strict=True):
        assert float(each) == pytest.approx(expected, rel=1e-9, abs=1e-9 * second)


@pytest.mark.parametrize("name", ["Poisson", "bounded", "correlated", "laplace"])
def test_forms_of_one_sum_by_enumeration(name):
    """w z^2 + l z of the share z of a bit, with skewed and with heavy noise."""
    bits = FactoredQueries.spanned(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 1.0]]))
    counts = float64([3.0, 2.0])
    if name == "laplace":
        channel = CentralLaplace(bits, 0.8)
        values, chances = geometric_difference(math.exp(-0.8))
    else:
        law, of = NOISE[name]
        channel = ShuffledQueries(bits, law, 0.999)
        values, chances = of(law)
    # centred, as estimates are
    noise = values - values @ chances
    z = 2 * (2 + noise) / 5
    weights = float64([0.7])
    linear = float64([-0.3])
    exact = 0.7 * z**2 - 0.3 * z
    variance = (exact - exact @ chances) ** 2 @ chances
    found = channel.form_variance(counts, weights, linear)
    assert float(found) == pytest.approx(variance, rel=1e-9)
    worst = channel.worst_form(5.0, weights, linear)
    assert float(worst) >= float(found) * (1 - 1e-12)


# ---- by Monte Carlo: few users, so that third and fourth moments count


@pytest.mark.parametrize(
    "statistic",
    [pairwise.unequal(4), VARIED],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("kind", [twice, vectors])
def test_monte_carlo_finds_the_predicted_error(kind, statistic):
    protocol = kind(statistic, 1.0)
    trials = 50_000
    counts = torch.bincount(
        random_types(statistic.types, 8, "few"),
        minlength=statistic.types,
    )
    key = keyed_generator(statistic.name.encode())
    error = protocol.sample_estimate(
        counts, generator=key, sample_shape=(trials,)
    ).value - protocol.exact(counts)
    squared = Moments.of(error.square())
    predicted = mse(protocol, counts, 8)
    assert abs(squared.z_score(predicted)) < 5
    assert squared.standard_error < 0.023 * predicted
    assert abs(Moments.of(error).z_score(0.0)) < 5


# ---- sums of bits


def test_guarantee_every_sum_that_differs_is_counted():
    """Types 0 and 3 differ in all three thresholds, and in two of four sums of one type each."""
    thresholds = torch.arange(4) > torch.arange(3)[:, None]
    gini = pairwise.absolute_difference(4)
    many = ShuffledQueries.of(
        gini,
        PoissonSum,
        24,
        1.0,
        1e-6,
        bits=thresholds.double(),
    )
    few = ShuffledQueries.of(gini, PoissonSum, 24, 1.0, 1e-6)
    assert many.channel.sensitivity.flips == 3
    assert few.channel.sensitivity.flips == 2
    assert many.channel.law.mean > few.channel.law.mean
    promised = many.guarantee
    assert promised.model == Model.SHUFFLE
    assert promised.epsilon == 1.0
    assert promised.delta <= 1e-6
