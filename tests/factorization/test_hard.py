"""Lower bounds: exact against every channel of a small alphabet, the best lattice noise, and
mechanisms that exist.
"""

import itertools
import math
from functools import cache, partial

import laws
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, identity, vstack
from scipy.stats import binom
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import (
    additive_noise_bound,
    approximate,
    factorize,
    hard_instance,
    learner_samples,
)
from torchdp.factorization.hard import (
    HardInstance,
    _mean_inverse,
    least_noise_variance,
    sample_upper_bound,
)
from torchdp.factorization.norm import witness
from torchdp.privacy import gaussian_sigma
from torchdp.queries import ConceptClass, PrivateLearner
from torchdp.randomizers import PrivUnit

EPSILONS = (0.1, math.log(2), 1.0, 2.0, 5.0)
# one query, the mean of a bit: randomized response is optimal
COIN = torch.tensor([[1.0, -1.0]])


normal = partial(laws.normal, name=b"hard")


SMALL = {
    "coin": COIN.double(),
    "prefix": workloads.prefix(6).dense(),
    "histogram": torch.eye(7).double(),
    "ranges": workloads.all_ranges(5).dense(),
    "parities": workloads.parities(3, 2).dense(),
    "normal": normal(5, 8),
    "duplicates": normal(4, 3)[:, [0, 1, 1, 2, 0]][[0, 0, 1, 2, 3]],
    "with a zero row": torch.cat([normal(3, 6), torch.zeros(1, 6).double()]),
}


def most_information(instance: HardInstance, epsilon: float) -> float:
    """The largest sum_v c_v sum_y (M_v A(y))^2 / P A(y) over all epsilon-LDP channels A: an exact
    linear program.

    The ratio is convex and homogeneous in A(y|.), so the best messages are extreme rays of the cone
    of vectors whose entries differ by factors of at most e^epsilon: two-valued vectors, one for
    each subset of the types.
    """
    P = instance.type_weights.numpy()
    c = instance.query_weights.numpy()
    M = instance.directions.numpy()
    subsets = np.array(list(itertools.product((0.0, 1.0), repeat=len(P))))
    A = 1 + (math.exp(epsilon) - 1) * subsets
    signal = (A @ M.T) ** 2
    gain = (c * signal).sum(1) / (A @ P)
    return -linprog(-gain, A_eq=A.T, b_eq=np.ones(len(P)), method="highs").fun


@pytest.mark.parametrize("name", SMALL)
def test_guarantee_information_bounds_every_channel(name):
    instance = hard_instance(SMALL[name])
    for epsilon in EPSILONS:
        # the linear program's tolerance
        assert most_information(instance, epsilon) <= instance.information(epsilon) * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_guarantee_information_bounds_every_channel_for_any_witness(seed):
    W = normal(4, 7)
    direction = normal(4, 7, name=bytes([seed]))
    instance = hard_instance(W, direction + 0.3 * W)
    for epsilon in EPSILONS:
        assert most_information(instance, epsilon) <= instance.information(epsilon) * (1 + 1e-7)


def test_information_is_attained():
    """Randomized response attains tanh^2, and on 1 + e^epsilon types sinh^2: no smaller constant
    holds.
    """
    for epsilon in EPSILONS:
        coin = hard_instance(COIN)
        # a closed form
        assert math.isclose(coin.information(epsilon), math.tanh(epsilon / 2) ** 2, rel_tol=1e-9)
        # attained by randomized response
        assert most_information(coin, epsilon) > 0.9999 * coin.information(epsilon)
    for k in (3, 4, 6):
        epsilon = math.log(k - 1)
        histogram = hard_instance(torch.eye(k))
        more = math.exp(epsilon) - 1
        response = (torch.eye(k).double() * more + 1) / (math.exp(epsilon) + k - 1)
        signal = (histogram.directions @ response.T).square() / (response @ histogram.type_weights)
        weights = histogram.query_weights[:, None]
        attained = float((weights * signal).sum())
        # the histogram's solver stops at 1e-3
        assert math.isclose(attained, histogram.information(epsilon), rel_tol=1e-3)
        certificate = factorize(torch.eye(k), shift=True, tol=1e-6).certificate
        norm = float(certificate.upper)
        sinh = math.sinh(epsilon / 2) ** 2 / norm**2
        assert math.isclose(histogram.information(epsilon), sinh, rel_tol=1e-3)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("reach", [1e-3, 0.1, 0.7, 20.0])
def test_guarantee_directions_keep_distributions_and_move_the_query_at_rate_1(name, reach):
    W = SMALL[name]
    instance = hard_instance(SMALL[name])
    laws, half = instance.distributions(reach)
    used = instance.query_weights > 0
    ends = [laws + sign * half[:, None] * instance.directions for sign in (-1, 1)]
    for law in (laws, *ends):
        # distributions, up to rounding
        assert (law >= -1e-12).all()
        assert_close(law.sum(-1), torch.ones_like(half))
    moved = ((ends[1] - ends[0]) * W).sum(-1)
    assert_close(moved[used], 2 * half[used], rtol=1e-9, atol=0)
    assert used.any()
    assert ((ends[1] - ends[0])[~used] == 0).all()
    assert abs(float(instance.query_weights.sum()) - 1) < 1e-14
    assert instance.directions.sum(-1).abs().max() < 1e-12
    assert_close((W * instance.directions).sum(-1), used.double())


def bayes_risk(n: int, epsilon: float, half: float) -> tuple[float, float]:
    """Least mean squared and mean absolute error of the coin's mean from n randomized responses,
    under the prior.
    """
    cells = (np.arange(1000) + 0.5) / 1000
    t = cells * 2 - 1
    prior = np.cos(math.pi * t / 2) ** 2
    t = half * t
    prior = prior / prior.sum()
    ones = np.arange(n + 1)[:, None]
    chance = (1 + math.tanh(epsilon / 2) * t) / 2
    joint = prior * binom.pmf(ones, n, chance)
    posterior = joint / joint.sum(1, keepdims=True)
    mean = posterior @ t
    above = posterior.cumsum(1) >= 0.5
    median = t[above.argmax(1)]
    squares = (t - mean[:, None]) ** 2
    distances = abs(t - median[:, None])
    return (joint * squares).sum(), (joint * distances).sum()


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_guarantee_samples_hold_for_the_best_estimate_of_randomized_response(n, epsilon):
    """Exact enumeration of the Bayes risks under the proof's prior: no estimate of n responses
    beats the bound.
    """
    coin = hard_instance(COIN)
    slope = math.tanh(epsilon / 2)
    worst = np.zeros(2)
    for half in (0.3, 0.5, 0.7, 1.0):
        square, absolute = bayes_risk(n, epsilon, half)
        mean_inverse = float(_mean_inverse(torch.tensor(slope * half, dtype=torch.float64)))
        allowed = n * slope**2 * mean_inverse
        prior = (math.pi / half) ** 2
        # the prior is cut into a thousand cells
        assert 1 / square <= (allowed + prior) * (1 + 1e-6)
        assert math.pi / (2 * math.e) / absolute**2 <= (allowed + prior) * (1 + 1e-6)
        # negative control: wrong without the prior's share
        assert 1 / square > allowed + 0.3 * prior
        worst = np.maximum(worst, (math.sqrt(square), absolute))
    assert coin.samples(worst[0], epsilon) <= n
    assert coin.samples_absolute(worst[1], epsilon) <= n


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [0.05, 0.003])
def test_guarantee_samples_are_below_randomized_response(alpha, epsilon):
    """coth^2(epsilon/2) / alpha^2 responses suffice for a bit's mean: a constant 3 % larger
    contradicts them.
    """
    enough = 1 / (math.tanh(epsilon / 2) * alpha) ** 2
    needed = hard_instance(COIN).samples(alpha, epsilon)
    assert needed <= enough
    assert needed > (0.98 if alpha < 0.01 else 0.85) * enough


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_guarantee_samples_absolute_are_below_randomized_response(epsilon):
    """Its mean absolute error, exactly, at the worst mean: the bound for root mean squared error
    would be wrong.
    """
    n = 3000
    coin = hard_instance(COIN)
    slope = math.tanh(epsilon / 2)
    ones = np.arange(n + 1)
    worst = max(
        (binom.pmf(ones, n, (1 + slope * mean) / 2) * abs((2 * ones / n - 1) / slope - mean)).sum()
        for mean in np.linspace(0, 1, 21)
    )
    # within a fifth of the truth, so that the constant is right
    assert 0.8 * n < coin.samples_absolute(worst, epsilon) <= n
    # negative control
    assert coin.samples(worst, epsilon) > 1.3 * n


@cache
def solved(name):
    """W, its factorization, and instances: the best, of a bad witness, of a part of the queries."""
    W = workloads.prefix(24).dense() if name == "larger prefix" else SMALL[name]
    found = factorize(W, shift=True, tol=1e-4)
    other = hard_instance(W, normal(*W.shape) + W)
    return W, found, hard_instance(W), other, hard_instance(W[:2])


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *[(name, 0.5) for name in SMALL],
        ("larger prefix", 0.5),
        ("coin", 8.0),
        ("prefix", 8.0),
        ("normal", 8.0),
    ],
)
def test_guarantee_samples_are_below_the_local_factorization_mechanism(name, epsilon):
    W, found, instance, *others = solved(name)
    channel = PrivUnit(found.right.shape[0], epsilon)
    variance = channel.moments.variance
    spans = W.amax(1) - W.amin(1)
    spread = float(spans.max())
    for alpha in (spread, 0.02, 0.001):
        enough = sample_upper_bound(float(found.certificate.upper), variance, alpha, spread=spread)
        assert all(each.samples(alpha, epsilon) <= enough for each in (instance, *others))
    if epsilon <= 1 and name != "with a zero row":
        # within a factor of 2.6 of a mechanism that exists
        assert enough < 2.6 * instance.samples(0.001, epsilon)


def test_the_bound_tends_to_the_norm():
    """samples alpha^2 -> gamma_2^2 / sinh^2(epsilon/2), gamma_2 with the free shift, as
    alpha -> 0.
    """
    for W in (
        workloads.prefix(32).dense(),
        workloads.parities(6, 2).dense(),
        normal(20, 30),
    ):
        norm = float(factorize(W, shift=True, tol=1e-5).certificate.lower)
        for epsilon in (0.2, 1.0):
            limit = hard_instance(W).samples(1e-5, epsilon) * 1e-10
            # the limit is approached from below
            assert 0.98 < limit * (math.sinh(epsilon / 2) / norm) ** 2 <= 1 + 1e-6


def test_a_workload_with_its_negative_has_the_norm_without_shift():
    W = workloads.prefix(16).dense()
    both = torch.cat([W, -W], 1)
    unshifted = factorize(W, tol=1e-6)
    U = witness(W, unshifted.row_weights, unshifted.column_weights)
    symmetric = hard_instance(both, torch.cat([U, -U], 1) / 2)
    expected = float(unshifted.certificate.lower)
    # a closed form, up to the solver's tolerance
    assert math.isclose(symmetric.information(1.0), math.sinh(0.5) ** 2 / expected**2, rel_tol=1e-3)
    assert math.isclose(
        symmetric.information(1.0), hard_instance(both).information(1.0), rel_tol=1e-2
    )
    assert_close(symmetric.directions[:, :16], -symmetric.directions[:, 16:])
    assert symmetric.samples(0.01, 1.0) > hard_instance(W).samples(0.01, 1.0)
    # a witness of gamma_2(W; 0.1) proves less for small errors
    coarse = approximate(W, 0.1).witness
    both_ways = hard_instance(both, torch.cat([coarse, -coarse], 1))
    assert 0 < both_ways.samples(0.01, 1.0) <= symmetric.samples(0.01, 1.0)


SIGNS = {
    "coin": COIN.double(),
    "two": torch.tensor([[1.0, 1.0], [1.0, -1.0]]),
    "steps": 2 * SMALL["prefix"] - 1,
}


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("name", ["coin", "two"])
def test_guarantee_samples_to_test_bound_every_pair_of_messages(name, epsilon):
    """Every binary channel of extreme messages, n times: the best tests' errors, enumerated, need
    no fewer users.
    """
    D = SIGNS[name]
    instance = hard_instance(torch.cat([D, -D], 1))
    types = 2 * D.shape[1]
    tight = []
    for shift, n in itertools.product((0.1, 0.4), (1, 12)):
        laws, half = instance.distributions(1.2 * shift)
        moved = laws + shift * instance.directions
        assert (half > shift).all()
        assert (moved >= 0).all()
        for ones in itertools.product((0.0, 1.0), repeat=types):
            answers = torch.tensor(ones, dtype=torch.float64)
            A = (1 + math.expm1(epsilon) * answers) / (1 + math.exp(epsilon))
            counts = [
                binom.pmf(np.arange(n + 1), n, (each @ A).numpy()[:, None])
                for each in (laws, moved)
            ]
            overlap = np.minimum(*counts).sum(1)
            failure = overlap.max() / 2
            tight.append(instance.samples_to_test(shift, epsilon, failure) / n)
    # a bound ten times as large is wrong
    assert (0.4 if name == "coin" else 0.1) < max(tight) <= 1


def test_guarantee_learner_samples_are_below_a_learners():
    for name, D in SIGNS.items():
        concepts = ConceptClass(tuple(map(str, range(len(D)))), (D,))
        norm = float(factorize(D, tol=1e-6).certificate.upper)
        for epsilon, alpha in itertools.product((0.2, 1.0), (0.02, 0.2)):
            needed = learner_samples(D, alpha, epsilon, 0.1)
            learner = PrivateLearner.calibrated(concepts, epsilon=epsilon)
            assert 0 < needed <= learner.samples(alpha, 0.1)
            sinh = math.sinh(epsilon / 2)
            limit = 0.8 * math.log(9) * (norm / (4 * alpha * sinh)) ** 2
            assert name != "steps" or alpha > 0.1 or math.isclose(needed, limit, rel_tol=1e-2)
    # t > 1; a coin will do
    assert learner_samples(COIN, 0.3, 1.0) == learner_samples(COIN, 0.1, 1.0, 0.5) == 0


def test_nothing_to_learn_needs_no_users():
    for W in (
        torch.zeros(3, 4),
        torch.ones(1, 1),
        torch.arange(3.0)[:, None].expand(3, 5),
    ):
        assert hard_instance(W).samples(0.01, 1.0) == 0
    instance = hard_instance(SMALL["prefix"])
    # beyond 1/(2 pi) this bound is silent
    assert instance.samples(0.2, 1.0) == 0 < instance.samples(0.15, 1.0)
    backwards = hard_instance(SMALL["prefix"], -hard_instance(SMALL["prefix"]).directions)
    assert backwards.samples(0.01, 1.0) == 0


def test_guarantee_that_many_users_are_enough():
    """The mechanism's exact worst error over all laws on the types, from its exact covariance:
    attained to 1 %.
    """
    W = workloads.prefix(8).dense()
    epsilon = 1.0
    alpha = 0.05
    found = factorize(W, shift=True, tol=1e-6)
    variance = PrivUnit(8, epsilon).moments.variance
    n = sample_upper_bound(float(found.certificate.upper), variance, alpha, spread=1.0)
    rows = found.left.square().sum(-1)
    noise = rows * variance * found.sensitivity**2
    # two types, half of the users each
    spans = W.amax(1) - W.amin(1)
    sampling = spans.square() / 4
    squares = (noise + sampling).amax() / n
    worst = float(squares.sqrt())
    # the number of users is not too large either
    assert 0.99 * alpha < worst <= alpha


@pytest.mark.gpu
def test_hard_instance_on_a_gpu():
    W = workloads.prefix(16).dense()
    instance = hard_instance(W.cuda())
    assert instance.directions.device.type == "cuda"
    assert math.isclose(
        instance.samples(0.02, 1.0), hard_instance(W).samples(0.02, 1.0), rel_tol=1e-4
    )


def best_lattice_noise(epsilon: float, delta: float, cells: int) -> float:
    """Least second moment of noise on the multiples of width / cells that is (epsilon, delta)-DP
    for one width.
    """
    far = cells * (math.ceil(12 / epsilon) + 5)
    z = np.arange(-far, far + 1) / cells
    k = len(z)
    ones = csr_matrix(np.ones((1, len(z))))
    none = csr_matrix((k, k))
    zero = csr_matrix((1, k))
    shift = diags(
        [math.exp(epsilon)],
        [-cells],
        shape=(k, k),
    )
    # p(z) - e^epsilon p(z -+ 1) <= excess(z), and each excess adds up to at most delta
    rows = [[identity(k) - shift, -identity(k), none], [identity(k) - shift.T, none, -identity(k)]]
    rows += [[zero, ones, zero], [zero, zero, ones]]
    found = linprog(
        np.concatenate([z**2, np.zeros(2 * k)]),
        A_ub=vstack([hstack(row) for row in rows]),
        b_ub=np.concatenate([np.zeros(2 * k), [delta, delta]]),
        A_eq=hstack([ones, zero, zero]),
        b_eq=[1],
        method="highs",
    )
    return found.fun


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.2])
def test_guarantee_no_lattice_noise_has_a_smaller_variance(epsilon, delta):
    bound = least_noise_variance(epsilon, delta)
    for cells in (1, 2):
        least = best_lattice_noise(epsilon, delta, cells)
        # the linear program's tolerance
        assert bound <= least * (1 + 1e-6)
        # within 1 % of the truth where delta is small
        assert delta > 1e-3 or 1.01 * bound > least


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 3.0])
def test_guarantee_discrete_laplace_noise_attains_the_bound(epsilon):
    q = math.exp(-epsilon)
    j = np.arange(1, math.ceil(60 / epsilon) + 60)
    second = float((j**2.0 * q**j).sum())
    variance = 2 * second * (1 - q) / (1 + q)
    bound = least_noise_variance(epsilon)
    # a closed form, and attained
    assert math.isclose(bound, variance, rel_tol=1e-9)
    assert math.isclose(bound, 1 / (2 * math.sinh(epsilon / 2) ** 2), rel_tol=1e-9)
    # the Laplace mechanism's
    assert 0.9 * 2 / epsilon**2 < bound <= 2 / epsilon**2 or epsilon > 1


def test_delta_lowers_the_bound_and_vanishes_continuously():
    for epsilon in (0.05, 1.0, 6.0):
        values = [
            least_noise_variance(epsilon, d) for d in (0, 1e-14, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.999)
        ]
        assert values == sorted(values, reverse=True)
        assert values[-1] > 0
        # continuous at delta = 0
        assert math.isclose(values[0], values[1], rel_tol=1e-9)
    assert least_noise_variance(50.0, 1e-6) < 1e-20


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_guarantee_no_additive_mechanism_beats_the_bound(epsilon, delta):
    """Gaussian factorization mechanisms (delta > 0), and Laplace noise on each query of a histogram
    or a prefix sum.
    """
    for W in (
        torch.tensor([[0.0, 1.0]]),
        workloads.prefix(12).dense(),
        torch.eye(9),
        workloads.parities(4, 2).dense(),
    ):
        for p in (2.0, math.inf):
            found = factorize(W, p, shift=True)
            bound = additive_noise_bound(float(found.certificate.lower), epsilon, delta)
            size = len(W) ** (1 / p)
            diameter = float(torch.cdist(W.mT, W.mT, p=1).max())
            laplace = math.sqrt(2) * diameter / epsilon * size
            assert 0 < bound <= laplace
            if delta:
                right = found.right.double()
                left = found.left.double()
                distance = float(torch.cdist(right.mT, right.mT).max())
                sigma = gaussian_sigma(epsilon, delta, distance)
                error = sigma * float(torch.linalg.vector_norm(left.norm(dim=1), ord=p))
                assert bound <= error < 12 * bound
    # negative control: for one bit the bound is sqrt(2) below the best noise, and a factor of 1.5
    # is too much
    best = math.sqrt(least_noise_variance(epsilon))
    bit = additive_noise_bound(0.5, epsilon)
    assert bit <= best < 1.5 * bit
