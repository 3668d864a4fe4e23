"""The pure protocol: every output enumerated for a few users."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from laws import shifted
from scipy import stats
from scipy.signal import convolve2d

from torchdp.kernels.inversion import cut_geometric
from torchdp.noise import SeededNoise
from torchdp.shuffle import PureSum

SIZE = 36  # outputs with up to so many messages of each kind; their probabilities need no others
SETTINGS = [(1.0, 0.3, 0.05), (0.3, 0.5, 0.3), (2.0, 0.2, 0.01), (1.0, 0.9, 0.02)]


def flood_law(protocol):
    """Pr[F = 0], ..., Pr[F = s]."""
    weights = np.exp(protocol.share * protocol.epsilon * np.arange(-protocol.flood, 1))
    return weights / weights.sum()


def user_law(protocol, bit, flood):
    """Pr[(u, v)] of one user's numbers of "+1" and "-1", from the definition."""
    noise = stats.nbinom(1 / protocol.users, 1 - protocol.ratio).pmf(np.arange(SIZE))
    silent = np.outer(noise, noise)
    law = protocol.drop * silent
    for f, chance in enumerate(flood[:SIZE]):
        if bit + f < SIZE:
            law = law + (1 - protocol.drop) * chance * shifted(silent, bit + f, f)
    return law


def views(protocol, present, flood=None):
    """[(law if the user holds 0, law if 1)] for all bits of the others present."""
    flood = flood_law(protocol) if flood is None else flood
    one = [user_law(protocol, bit, flood) for bit in (0, 1)]
    pairs = []
    for others in range(present):  # so many of the others hold a one
        both = one
        for other in [1] * others + [0] * (present - 1 - others):
            both = [convolve2d(law, one[other])[:SIZE, :SIZE] for law in both]
        pairs.append(both)
    return pairs


def worst_log_ratio(pairs):
    return max(float(np.abs(np.log(one) - np.log(zero)).max()) for zero, one in pairs)


@pytest.mark.parametrize("users", [1, 2, 3])
@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_pure_differential_privacy_by_enumeration(users, setting):
    protocol = PureSum(users, *setting)
    worst = worst_log_ratio(views(protocol, users))
    assert worst <= protocol.epsilon + 1e-9
    assert worst > 0.75 * protocol.epsilon  # and epsilon is not far above the truth
    # one copy less breaks it: alone, the empty view has ratio 1 + (1 - drop) Pr[F = 0]/drop
    if users == 1:
        fewer = flood_law(protocol)[:-1]
        assert worst_log_ratio(views(protocol, 1, fewer / fewer.sum())) > protocol.epsilon


@pytest.mark.parametrize(("users", "absent"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_absent_users_cost_the_logarithm_of_their_share(users, absent, setting):
    protocol = PureSum(users, *setting)
    worst = worst_log_ratio(views(protocol, users - absent))
    assert worst <= protocol.epsilon + math.log(users / (users - absent)) + 1e-9
    assert worst > protocol.epsilon  # they do cost something


@pytest.mark.parametrize(
    ("users", "epsilon", "slack"),
    list(itertools.product([1, 100, 10**6], [0.006, 1.0, 4.0], [0.02, 0.3])),
)
def test_tuning_meets_its_slack_with_few_messages(users, epsilon, slack):
    protocol = PureSum.tuned(users, epsilon, slack)
    budget = (1 + slack) * math.sqrt(2 * math.exp(-epsilon)) / -math.expm1(-epsilon)
    assert protocol.epsilon == epsilon
    assert protocol.rmse == pytest.approx(budget, rel=1e-6)
    for share in np.geomspace(1e-3, 0.9, 25):
        for drop in np.geomspace(1e-12, 0.9, 30):
            other = PureSum(users, epsilon, share, drop)
            if other.rmse <= budget:
                assert protocol.messages_per_user <= other.messages_per_user * 1.02


@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.3), (0.02, 0.01)])
def test_the_flood_has_its_law_in_whole_numbers_and_beyond_tables(epsilon, share):
    protocol = PureSum(7, epsilon, share, 1e-9 if epsilon < 0.1 else 0.05)
    law, n = flood_law(protocol), 100_000
    found = protocol.flood - protocol._missing(n, SeededNoise(3)).numpy()
    assert (protocol.flood >= 2**15) == (epsilon < 0.1) == (protocol.variation is None)
    assert found.min() >= 0 and found.max() <= protocol.flood
    cells = np.searchsorted(np.cumsum(law), np.linspace(0, 1, 12)[1:-1])
    counts = np.diff([0, *(np.sum(found <= cell) for cell in cells), n])
    expected = np.diff([0, *np.cumsum(law)[cells], 1]) * n
    kept = expected > 10
    assert (
        stats.chisquare(
            counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()
        ).pvalue
        > 1e-4
    )


def test_thresholds_of_cut_geometric_numbers():
    """Against fractions: tails to the nearest multiple of 2^-128."""
    for ratio, last in ((0.5, 5), (0.9, 40), (0.75, 0)):
        table = cut_geometric(ratio, last)
        masses = [Fraction(ratio) ** k for k in range(last + 1)]
        every = [a << 96 | b << 64 | c << 32 | d for a, b, c, d in table.words.T.tolist()][
            : table.length
        ]
        assert table.first == 0 and len(every) == last
        for j, threshold in enumerate(every, 1):
            assert abs(sum(masses[j:]) / sum(masses) * 2**128 - threshold) <= Fraction(501, 1000)


@pytest.mark.parametrize(("users", "absent"), [(1, 0), (2, 0), (2, 1)])
def test_guarantee_the_profile_lies_above_every_pair(users, absent):
    protocol = PureSum(users, 1.0, 0.3, 0.05)
    (profile,) = protocol.profiles(absent)
    epsilons = np.linspace(-2, 2, 81)
    bound = profile(epsilons)
    assert (
        bound[epsilons > protocol.epsilon + math.log(users / (users - absent)) + 0.01].max() < 1e-12
    )
    for zero, one in views(protocol, users - absent):
        for p, q in ((zero, one), (one, zero)):
            curve = [np.maximum(0, p - math.exp(e) * q).sum() for e in epsilons]
            assert (np.array(curve) <= bound + 1e-12).all()
