"""Means over tuples of different users: by loops, by enumeration of all messages, and errors by
sampling.
"""

import itertools
import math

import pytest
import torch
from laws import coverage, float64, normal, uniform
from scipy import stats

from torchdp import pairwise, queries, shuffle
from torchdp.noise import SeededNoise
from torchdp.protocol import Tally
from torchdp.queries import (
    CentralFactorization,
    CentralLaplace,
    LocalFactorization,
    LocalOracle,
    ShuffledQueries,
    Twice,
)
from torchdp.queries.pair_variance import noise_moments
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

pytestmark = [
    pytest.mark.usefixtures("brief"),
    pytest.mark.filterwarnings("ignore:the value lies outside"),
]
SHARES = float64([0.4, 0.3, 0.2, 0.1])
# messages of several bits, whose joint chances enter
BITS = (SubsetSelection, OptimizedUnaryEncoding, SymmetricUnaryEncoding)


def kernel(k, m):
    return normal((k,) * m, name=b"kernel")


def strategy(k, epsilon):
    """One that treats types differently."""
    rows = RandomizedResponse(k, epsilon / 2).laws(torch.arange(k)).mT
    # uneven, so that no symmetry hides a mistake
    weights = torch.arange(1, k + 1).double()
    rows = rows * weights[:, None]
    return StrategyMatrix(rows / rows.sum(0))


def by_loops(f, types):
    """The mean of f over all tuples of different places of a list."""
    m = f.ndim
    values = [float(f[each]) for each in itertools.permutations(types, m)]
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5])
def test_exact_is_the_mean_over_tuples_of_different_users(m):
    f = kernel(3, m)
    statistic = pairwise.statistic_of_degree(f, m)
    protocol = LocalOracle.of(statistic, RandomizedResponse(3, 1.0))
    counts = torch.tensor([[3, 2, 1], [0, 5, 0], [1, 2, 3]])
    types = torch.arange(3)
    users = [types.repeat_interleave(row).tolist() for row in counts]
    want = [by_loops(f, each) for each in users]
    assert protocol.exact(counts).tolist() == pytest.approx(want, rel=1e-9)
    same = pairwise.statistic_of_degree(lambda *types: f[types], m, types=3)
    assert torch.equal(same.kernel, statistic.kernel)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_slopes_are_the_derivatives(m):
    statistic = pairwise.statistic_of_degree(kernel(4, m), m)
    n = torch.full((1, 1), 7.0, dtype=torch.float64)

    def value(h):
        return statistic.of_users(h[None], n)[0]

    first, second = statistic.derivatives(SHARES[None], n)
    torch.testing.assert_close(first[0], torch.func.grad(value)(SHARES))
    hessian = torch.func.hessian(value)
    torch.testing.assert_close(second[0], hessian(SHARES))
    torch.testing.assert_close(
        statistic.derivative(3, SHARES[None], n)[0],
        torch.func.jacfwd(hessian)(SHARES),
    )


def all_messages(client):
    """What a message adds to a tally, and its chances for each type (k, messages)."""
    k = client.k
    if client.entry_variance is None:
        return torch.eye(client.outputs, dtype=torch.int64), client.laws(torch.arange(k))
    sets = torch.tensor(list(itertools.product((0, 1), repeat=k)))
    if isinstance(client, SubsetSelection):
        w = client.subset
        sets = sets[sets.sum(1) == w]
        # one set of size w, for a type that is not in it
        without = client.lost / math.comb(k - 1, w)
        own = client.on / math.comb(k - 1, w - 1)
        return sets, without + (own - without) * sets.mT.double()
    own = torch.eye(k, dtype=torch.float64)[:, None]
    on = client.off + client.gap * own
    return sets, torch.where(sets == 1, on, 1 - on).prod(-1)


def summed(messages, indices):
    """Tallies of users whose messages have these indices, (outcomes, users)."""
    return Tally(indices.shape[1], {"reports": messages[indices].sum(1)})


LISTED = [(kind, m) for kind in (RandomizedResponse, HadamardResponse, strategy) for m in (2, 3, 4)]


@pytest.mark.parametrize(
    ("kind", "m"),
    [*LISTED, *((kind, m) for kind in BITS for m in (2, 3))],
)
@pytest.mark.parametrize("k", [2, 3])
def test_guarantee_no_bias_whatever_the_types(kind, m, k):
    """Over all messages of all users, weighted with their chances."""
    client = kind(k, 1.0)
    protocol = LocalOracle.of(pairwise.statistic_of_degree(kernel(k, m), m), client)
    messages, chances = all_messages(client)
    # at least as many users as the kernel has arguments
    n = max(m, 3)
    indices = torch.tensor(list(itertools.product(range(len(messages)), repeat=n)))
    value = protocol.analyse(summed(messages, indices)).value
    for types in itertools.combinations_with_replacement(range(k), n):
        types = torch.tensor(types)
        weight = chances[types, indices].prod(1)
        counts = torch.bincount(types, minlength=k)
        assert float(weight @ value) == pytest.approx(float(protocol.exact(counts)), abs=1e-9)


def test_chances_of_bits_that_are_set_together():
    client = SubsetSelection(6, 0.1)
    assert client.subset == 3
    sets, chances = all_messages(client)
    sets = sets.double()
    together = ([0, 1], [0, 1, 2], [1, 2], [1, 2, 3])
    held = [float(chances[0] @ sets[:, at].prod(1)) for at in together]
    assert client.together == pytest.approx(held, rel=1e-9)


def test_second_order_alone_has_a_bias():
    """The same polynomial as any function of shares is answered: what the exact value is for."""

    class Plain(pairwise.DegreeStatistic):
        def analyst(self, channel):
            return queries.function.FunctionAnalyst(self, channel)

    client = RandomizedResponse(2, 1.0)
    protocol = LocalOracle.of(Plain(kernel(2, 3)), client)
    messages, chances = all_messages(client)
    indices = torch.tensor(list(itertools.product(range(2), repeat=10)))
    value = protocol.analyse(summed(messages, indices)).value
    counts = torch.tensor([7, 3])
    types = torch.arange(2).repeat_interleave(counts)
    weight = chances[types, indices].prod(1)
    assert abs(float(weight @ value - protocol.exact(counts))) > 0.01


def test_third_moment_of_a_ball_message():
    client = PrivUnit(4, 1.0, 1.2)
    T = pairwise.statistic_of_degree(kernel(4, 3), 3).kernel
    point = float64([[0.7, 0.1, -0.3, 0.5]])
    messages = client.randomize(point.expand(200_000, 4), noise=SeededNoise(3, "cpu"))
    z = messages - point
    cubes = torch.einsum("abc,na,nb,nc->n", T, z, z, z)
    identity = torch.eye(4).double()
    unit = point / client.radius
    predicted = float(noise_moments(client).third_of(unit, identity, T))
    assert abs(Moments.of(cubes).z_score(predicted)) < 4
    # it is seen
    assert abs(Moments.of(cubes).z_score(0.0)) > 10


CHANNELS = {
    "responses": lambda asked, n: LocalOracle.of(asked, RandomizedResponse(4, 1.0)),
    "subsets": lambda asked, n: LocalOracle.of(asked, SubsetSelection(4, 1.0)),
    "bits": lambda asked, n: LocalOracle.of(asked, OptimizedUnaryEncoding(4, 1.0)),
    "vectors": lambda asked, n: LocalFactorization.of(asked, 1.0),
    "twice": lambda asked, n: Twice.of(asked, 2.0),
    "shuffled": lambda asked, n: ShuffledQueries.of(asked, shuffle.PoissonSum, n, 1.0, 1e-6),
    "gaussian": lambda asked, n: CentralFactorization.of(asked, 1.0, 1e-6),
    "laplace": lambda asked, n: CentralLaplace.of(asked, 1.0),
}


def errors(protocol, n, trials, key):
    counts = (SHARES * n).round().long()
    found = protocol.sample_estimate(
        counts,
        generator=keyed_generator(key.encode()),
        sample_shape=(trials,),
    )
    return counts, found, found.value - protocol.exact(counts)


@pytest.mark.parametrize("name", CHANNELS)
def test_no_bias_of_few_users(name):
    asked = pairwise.statistic_of_degree(kernel(4, 3), 3)
    protocol = CHANNELS[name](asked, 50)
    counts, _, error = errors(protocol, 50, 20_000, name)
    assert abs(Moments.of(error).z_score(0.0)) < 4
    predicted = float(protocol.predicted_mse(counts))
    # exact for normal noise
    if name == "gaussian":
        assert abs(Moments.of(error.square()).z_score(predicted)) < 4
    # cubes of Laplace noise have heavy tails: 5 % above, and 2 % by chance
    tolerance = 0.15 if name == "laplace" else 0.1
    assert float(error.square().mean()) == pytest.approx(predicted, rel=tolerance)


@pytest.mark.parametrize("m", [3, 4])
@pytest.mark.parametrize("name", CHANNELS)
def test_errors_are_the_predicted_ones_and_intervals_cover(name, m):
    asked = pairwise.statistic_of_degree(kernel(4, m), m)
    protocol = CHANNELS[name](asked, 3_000)
    counts, found, error = errors(protocol, 3_000, 800, name)
    predicted = float(protocol.predicted_mse(counts))
    assert abs(Moments.of(error.square()).z_score(predicted)) < 4
    assert abs(Moments.of(error).z_score(0.0)) < 4
    truth = protocol.exact(counts)
    assert 0.92 < coverage(found.interval(), truth) < 0.975
    stated = found.standard_error.square()
    assert float(stated.mean()) == pytest.approx(predicted, rel=0.1)
    # the users' own sampling is added
    wider = found.of_population()
    torch.testing.assert_close(wider.value, found.value)
    assert float(wider.standard_error.mean()) > float(found.standard_error.mean())


def test_third_central_moment_is_scipys_k_statistic():
    types = torch.randint(6, (40,), generator=keyed_generator(b"moment"))
    statistic = pairwise.third_central_moment(6, spacing=0.5)
    counts = torch.bincount(types, minlength=6)
    found = LocalOracle.of(statistic, RandomizedResponse(6, 1.0)).exact(counts)
    assert float(found) == pytest.approx(stats.kstat(types.numpy() / 2, 3), rel=1e-9)


@pytest.mark.parametrize("both", [False, True])
def test_triplets_by_loops(both):
    # in whole steps, so that there are ties
    d = uniform(5, 5, name=b"d").mul(4).round()
    e = uniform(5, 5, name=b"e")
    types = [0, 1, 1, 2, 3, 4, 4]
    triplets = list(itertools.permutations(types, 3))
    held = [bool(d[i, j] < d[i, ell]) for i, j, ell in triplets]
    if both:
        also = [bool(e[i, j] < e[i, ell]) for i, j, ell in triplets]
        held = [a and b for a, b in zip(held, also, strict=True)]
    statistic = pairwise.triplet_comparisons(d, e if both else None)
    found = LocalOracle.of(statistic, RandomizedResponse(5, 1.0)).exact(
        torch.tensor([1, 2, 1, 1, 2])
    )
    assert float(found) == pytest.approx(sum(held) / len(held), rel=1e-12)


def test_volume_by_loops():
    """Ties broken at random: each order of equal scores alike."""
    k = 4
    types = torch.randint(3 * k, (30,), generator=keyed_generator(b"volume"))
    listed = types.tolist()
    classes = [[t % k for t in listed if t // k == each] for each in range(3)]
    chance = {
        (True, True, False, False): 1.0,
        (False, True, True, False): 0.5,
        (True, False, False, True): 0.5,
    }
    total = 0.0
    for x, y, z in itertools.product(*classes):
        total += 1 / 6 if x == y == z else chance.get((x < y, y < z, x == y, y == z), 0.0)
    want = total / math.prod(len(each) for each in classes)
    statistic = pairwise.volume_under_surface(k)
    counts = torch.bincount(types, minlength=3 * k).double()
    assert float(statistic(counts / 30)) == pytest.approx(want, rel=1e-12)
    alike = statistic.histograms[0]
    assert float(statistic(alike)) == pytest.approx(1 / 6, rel=1e-12)


def test_the_bound_is_below_every_oracle_and_near_the_best():
    statistic = pairwise.third_central_moment(4)
    n = 10_000
    for h in statistic.histograms:
        bound = statistic.bound(n, 1.0, h)
        first = 3 * torch.einsum("abc,b,c->a", statistic.kernel, h, h)
        assert bound == pytest.approx(queries.lower_bound(first[None], n, 1.0, prior=h), rel=1e-9)
        choice = queries.choose(statistic, n, 1.0, prior=h, search=False)
        assert 0 < bound < choice.candidates[0].error
    flat = statistic.histograms[0]
    assert queries.choose(statistic, n, 1.0, prior=flat).candidates[0].error < 2 * statistic.bound(
        n, 1.0, flat
    )


@pytest.mark.parametrize("trust", ["local", "shuffle", "curator"])
def test_it_is_chosen_for_whoever_is_trusted(trust):
    delta = None if trust == "local" else 1e-6
    choice = queries.choose(
        pairwise.third_central_moment(4),
        3_000,
        1.0,
        delta,
        trust=trust,
        search=False,
    )
    counts, _, error = errors(choice.best, 3_000, 2_000, trust)
    predicted = float(choice.best.predicted_mse(counts))
    assert abs(Moments.of(error.square()).z_score(predicted)) < 4


def test_several_questions_have_a_joint_covariance():
    asked = queries.Several(
        (
            pairwise.absolute_difference(4),
            pairwise.third_central_moment(4),
        )
    )
    protocol = LocalOracle.of(asked, SubsetSelection(4, 1.0))
    _, found, error = errors(protocol, 20_000, 400, "several")
    said = found.covariance().mean(0)
    product = (error - error.mean(0)).prod(1)
    assert abs(Moments.of(product).z_score(float(said[0, 1]))) < 4
    low, high = found.together(0.95)
    counts = (SHARES * 20_000).round().long()
    truth = protocol.exact(counts)
    inside = ((low <= truth) & (truth <= high)).all(-1)
    assert 0.92 < float(inside.double().mean()) < 0.985


def test_refusals():
    with pytest.raises(ValueError, match=r"kernel must be of shape \(k,\) \* m, k >= 2"):
        pairwise.statistic_of_degree(torch.ones(3, 3, 2), 3)
    with pytest.raises(
        ValueError,
        match=r"kernel must be of shape \(k,\) \* 3, not \(2, 2\)",
    ):
        pairwise.statistic_of_degree(torch.ones(2, 2), 3)
    with pytest.raises(ValueError, match="kernel"):
        pairwise.statistic_of_degree(torch.full((2, 2, 2), torch.nan), 3)
    with pytest.raises(ValueError, match="types must be given"):
        pairwise.statistic_of_degree(lambda x, y, z: x + y + z, 3)
    with pytest.raises(ValueError, match="m must be an integer of at most 6"):
        pairwise.statistic_of_degree(torch.ones(2, 2), 7)
    with pytest.raises(ValueError, match="other must be of shape"):
        pairwise.triplet_comparisons(torch.eye(3), torch.eye(4))
    protocol = LocalOracle.of(pairwise.third_central_moment(3), RandomizedResponse(3, 1.0))
    with pytest.raises(ValueError, match="at least 3 users"):
        protocol.exact(torch.tensor([1, 1, 0]))
    with pytest.raises(ValueError, match=">= 3"):
        protocol.estimate(torch.tensor([0, 1]))
