"""Amplified deltas of a few users against everything that a shuffler may show, enumerated in plain
numpy.

Every data set of the others, every pair of values, every histogram of messages: chances are written
out from the definitions, and nothing of the bound is used.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from laws import float64, hockey_stick

from torchdp import randomizers
from torchdp.privacy.blanket import Blanket
from torchdp.shuffle import Amplified
from torchdp.shuffle.amplified import blanket_delta

# of the local epsilon
SHARES = (0.0, 0.1, 0.3, 0.6)
# what only a third value makes likely
THIRD = np.array([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.05, 0.05, 0.9]])


def of_sets(sets, epsilon):
    """Each row's messages are e^epsilon times as likely on its set."""
    weights = np.where(np.array(sets), math.exp(epsilon), 1.0)
    return weights / weights.sum(1, keepdims=True)


def response(k, epsilon):
    return randomizers.RandomizedResponse(k, epsilon), of_sets(np.eye(k, dtype=bool), epsilon)


def subsets(k, epsilon):
    client = randomizers.SubsetSelection(k, epsilon)
    sets = [
        [x in each for each in itertools.combinations(range(k), client.subset)] for x in range(k)
    ]
    return client, of_sets(sets, epsilon)


def hadamard(k, epsilon):
    client = randomizers.HadamardResponse(k, epsilon)
    odd = [[((x + 1) & y).bit_count() % 2 for y in range(client.outputs)] for x in range(k)]
    return client, of_sets(np.array(odd) == 0, epsilon)


def of_word(chances, word):
    """The chance of these bits, each with its own chance of a one."""
    return math.prod(c if b else 1 - c for c, b in zip(chances, word, strict=True))


def bits(kind, on, off):
    def made(k, epsilon):
        words = list(itertools.product((0, 1), repeat=k))
        rows = []
        for x in range(k):
            chances = [on(epsilon) if v == x else off(epsilon) for v in range(k)]
            rows.append([of_word(chances, word) for word in words])
        return kind(k, epsilon), np.array(rows)

    return made


def share(e):
    return 1 / (math.exp(e) + 1)


optimized = bits(randomizers.OptimizedUnaryEncoding, lambda e: 0.5, share)
symmetric = bits(
    randomizers.SymmetricUnaryEncoding,
    lambda e: share(-e / 2),
    lambda e: share(e / 2),
)


def table(k, epsilon):
    """Any chances: random ones, of which most lie between the two levels."""
    rng = np.random.default_rng(k + round(1000 * epsilon))
    rows = np.exp(rng.uniform(0, 0.9 * epsilon, (k, 4)))
    rows = rows / rows.sum(1, keepdims=True)
    columns = torch.from_numpy(rows.T.copy())
    return randomizers.StrategyMatrix(columns), rows


def shifts(k, epsilon):
    """Two patterns of a circle of four."""
    patterns = np.array([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
    client = randomizers.ShiftStrategy(torch.tensor(patterns), float64([0.6, 0.4]), k, epsilon)
    places = np.arange(k)[:, None] - np.arange(4)
    turned = [pattern[places % 4] for pattern in patterns]
    parts = [share * of_sets(sets, epsilon) for share, sets in zip((0.6, 0.4), turned, strict=True)]
    return client, np.concatenate(parts, 1)


def histograms(rows, size):
    """The distribution of the histogram of a message from each row: an axis to each message but the
    last.
    """
    outputs = len(rows[0])
    law = np.zeros((size,) * (outputs - 1))
    law[(0,) * (outputs - 1)] = 1.0
    for row in rows:
        moved = row[-1] * law
        for y in range(outputs - 1):
            # the last count is never held before the last user
            moved += row[y] * np.roll(law, 1, axis=y)
        law = moved
    return law


def truths(laws, n, epsilons):
    """The largest divergence of any two neighbours, at each epsilon."""
    worst = np.zeros(len(epsilons))
    for others in itertools.combinations_with_replacement(range(len(laws)), n - 1):
        rest = [laws[x] for x in others]
        views = [histograms([*rest, law], n + 1) for law in laws]
        for one, two in itertools.permutations(views, 2):
            worst = np.maximum(
                worst,
                [hockey_stick(one, two, epsilon) for epsilon in epsilons],
            )
    return worst


KINDS = [
    *((response, k) for k in (2, 3, 4)),
    *((subsets, k) for k in (3, 4)),
    *((hadamard, k) for k in (2, 3)),
    *((each, 2) for each in (optimized, symmetric, shifts)),
    *((table, k) for k in (2, 3)),
    (shifts, 4),
]
# bound over truth; else 3
LOOSEST = {
    table: 8.0,
    hadamard: 6.0,
    shifts: 6.0,
    optimized: 6.0,
    symmetric: 6.0,
}


def compared(made, k, epsilon, users):
    """(certified, enumerated) deltas, (users, epsilons) each."""
    client, laws = made(k, epsilon)
    at = [share * epsilon for share in SHARES]
    certified = [[Amplified(client, n, 1e-6).delta_at(each) for each in at] for n in users]
    return np.array(certified), np.array([truths(laws, n, at) for n in users])


@pytest.mark.parametrize(
    ("made", "k"),
    KINDS,
    ids=lambda each: getattr(each, "__name__", each),
)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_guarantee_no_amplified_delta_is_below_the_enumerated_one(made, k, epsilon):
    certified, enumerated = compared(made, k, epsilon, (1, 2, 4))
    assert (certified >= enumerated * (1 - 1e-9)).all()
    assert (certified <= enumerated * LOOSEST.get(made, 3.0)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "k"),
    KINDS,
    ids=lambda each: getattr(each, "__name__", each),
)
def test_guarantee_no_amplified_delta_of_up_to_six_users_is_below_the_enumerated_one(made, k):
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0):
        outputs = len(made(k, epsilon)[1][0])
        few = 7 if outputs <= 4 else 5
        certified, enumerated = compared(made, k, epsilon, range(1, few))
        assert (certified >= enumerated * (1 - 1e-9)).all()


@pytest.mark.parametrize("made", [response, subsets, symmetric])
def test_a_wrong_constant_is_below_the_enumerated_truth(made):
    client, laws = made(3 if made is not symmetric else 2, 1.0)
    truth = truths(laws, 4, [0.3])[0]
    right = client.blanket
    # the blanket of clients with less epsilon than these have
    less = Blanket(0.8, right.member, right.both)
    assert blanket_delta(right, 0.3, 4) >= truth > blanket_delta(less, 0.3, 4)
    assert truth > blanket_delta(right, 0.3, 12)


@pytest.mark.parametrize("n", [3, 5])
def test_what_only_a_third_value_makes_likely_hides_nobody(n):
    """c is the least chance over all values: over the two that are told apart it would be too
    large.
    """
    epsilon = 0.2
    truth = truths(THIRD, n, [0.2])[0]
    two = Blanket.of_table(torch.from_numpy(THIRD[:2]), math.log(2))
    whole = Blanket.of_table(torch.from_numpy(THIRD), math.log(12))
    assert blanket_delta(two, epsilon, n) < truth <= blanket_delta(whole, epsilon, n)


def test_two_uses_together_are_no_worse_than_composed():
    """The same users twice, their messages mixed each time: all pairs of histograms."""
    client, laws = response(3, 1.5)
    protocol = Amplified(client, 3, 1e-6)
    loss = protocol.distribution(2).self_compose(2)
    for others in itertools.combinations_with_replacement(range(3), 2):
        rows = [[laws[x] for x in (*others, own)] for own in range(3)]
        views = [histograms(each, 4).ravel() for each in rows]
        for one, two in itertools.permutations(views, 2):
            for epsilon in (0.0, 0.3, 1.0, 2.0):
                truth = hockey_stick(np.outer(one, one), np.outer(two, two), epsilon)
                assert loss.get_delta_for_epsilon(epsilon) >= truth * (1 - 1e-9)


def variation_ratio(k, epsilon, n, at):
    """The published pair: (A + D1, C - A + D2), C ~ Binomial(n - 1, 2 q), A ~ Binomial(C, 1/2)."""
    q = 1 / (math.exp(epsilon) + k - 1)
    p = q * math.exp(epsilon)
    law = np.zeros((2, n + 1, n + 1))
    for a, b in itertools.product(range(n), range(n)):
        if a + b <= n - 1:
            choices = math.comb(n - 1, a) * math.comb(n - 1 - a, b)
            ways = choices * q ** (a + b) * (1 - 2 * q) ** (n - 1 - a - b)
            law[:, a, b] += ways * (1 - p - q)
            law[:, a + 1, b] += ways * np.array([p, q])
            law[:, a, b + 1] += ways * np.array([q, p])
    return hockey_stick(law[0], law[1], at)


def test_the_published_variation_ratio_pair_is_below_the_truth():
    """Four types, five users: why it is no fallback here (docs/corrections.md)."""
    client, laws = response(4, 1.0)
    truth = truths(laws, 5, [0.6])[0]
    assert round(variation_ratio(4, 1.0, 5, 0.6), 5) == 0.01805
    assert round(truth, 5) == 0.01868
    assert blanket_delta(client.blanket, 0.6, 5) >= truth


def test_random_tables_of_any_shape():
    """Ten tables of two to four values and two to four messages; ratios up to e^3."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        shape = (int(rng.integers(2, 5)), int(rng.integers(2, 5)))
        rows = np.exp(rng.uniform(0, 3, shape))
        rows /= rows.sum(1, keepdims=True)
        ratios = rows.max(0) / rows.min(0)
        blanket = Blanket.of_table(torch.from_numpy(rows), float(np.log(ratios).max()))
        found = [blanket_delta(blanket, epsilon, 3) for epsilon in (0.0, 0.3, 1.0)]
        assert (np.array(found) >= truths(rows, 3, (0.0, 0.3, 1.0)) * (1 - 1e-9)).all()
