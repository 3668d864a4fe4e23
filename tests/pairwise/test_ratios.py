"""Ratios of two means over pairs: exact values by loops and by scipy, errors, intervals and tests
by sampling.
"""

import itertools
import math

import pytest
import torch
from laws import float64
from scipy.stats import mannwhitneyu

from pairwise.common import counted, random_types, responses, sign
from torchdp import pairwise
from torchdp.collection import Collection, Journal
from torchdp.queries import choose
from torchdp.randomness import keyed_generator


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.5, 10.0), (0.0, 1e6)])
def test_gini_is_the_mean_difference_over_twice_the_mean(low, high):
    types = random_types(7, 40, "gini")
    x = [low + (high - low) * i / 6 for i in types.tolist()]
    pairs = [abs(a - b) for a, b in itertools.permutations(x, 2)]
    want = math.fsum(pairs) / len(pairs) / (2 * math.fsum(x) / len(x))
    statistic = pairwise.gini(7, low=low, high=high)
    assert float(statistic.exact(counted(types, 7))) == pytest.approx(want, rel=1e-10)
    # the Lorenz curve's area, of all pairs
    ordered = sorted(x)
    below = sum((2 * i + 1 - 40) * value for i, value in enumerate(ordered))
    area = below / (40 * sum(ordered))
    assert want * 39 / 40 == pytest.approx(area, rel=1e-12)


def test_gamma_counts_concordant_and_discordant_pairs():
    types = random_types(12, 50, "gamma")
    cells = [divmod(each, 4) for each in types.tolist()]
    signs = [sign(y - b) * sign(z - c) for (y, z), (b, c) in itertools.combinations(cells, 2)]
    want = sum(signs) / sum(map(abs, signs))
    found = pairwise.gamma(3, 4).exact(counted(types, 12))
    assert float(found) == pytest.approx(want, rel=1e-9)


def test_concordance_of_censored_times():
    """Harrell's counting: of two, the earlier event; where times tie, the event before who was only
    last seen.
    """
    types = random_types(2 * 4 * 3, 60, "concordance")
    good = 0.0
    comparable = 0
    rows = [(each // 12, each // 3 % 4, each % 3) for each in types.tolist()]
    for (d, t, s), (e, u, r) in itertools.permutations(rows, 2):
        if d == 1 and (t < u or (t == u and e == 0)):
            comparable += 1
            good += 1.0 if s > r else 0.5 if s == r else 0.0
    got = float(pairwise.concordance(4, 3).exact(counted(types, 24)))
    assert got == pytest.approx(good / comparable, rel=1e-9)


def test_concordance_without_censoring_is_kendall_with_ties_one_half():
    # all events are seen
    types = 24 + random_types(24, 40, "seen")
    cells = [divmod(each - 24, 4) for each in types.tolist()]
    apart = [(t - u, s - r) for (t, s), (u, r) in itertools.combinations(cells, 2) if t != u]
    concordant = sum(t * s < 0 for t, s in apart)
    tied = sum(s == 0 for _, s in apart)
    want = (concordant + tied / 2) / len(apart)
    assert float(pairwise.concordance(6, 4).exact(counted(types, 48))) == pytest.approx(
        want, rel=1e-9
    )


def test_types_are_not_merged_where_the_denominator_would_change():
    # so many types that means over pairs would be answered from bins
    choice = choose(pairwise.gini(80), 1_000, 1.0)
    assert not any("bins" in each.name for each in choice.candidates)


def collected(protocol, counts, key):
    tally = protocol.sample_tally(counts, generator=keyed_generator(key))
    return Collection.of(protocol).add("all", tally)


def test_mann_whitney_is_that_of_scipy_where_there_is_no_noise(tmp_path):
    labels = random_types(2, 60, "labels")
    scores = torch.randperm(64, generator=keyed_generator(b"scores"))[:60]
    protocol = responses(pairwise.auc(64), 30.0)
    found = pairwise.mann_whitney(collected(protocol, counted(labels * 64 + scores, 128), b"none"))
    kept = Journal(tmp_path / "kept.db", protocol)
    kept.merge(collected(protocol, counted(labels * 64 + scores, 128), b"none"))
    assert float(pairwise.mann_whitney(kept).p_value) == float(found.p_value)
    u, p = mannwhitneyu(
        scores[labels == 1],
        scores[labels == 0],
        method="asymptotic",
        use_continuity=False,
    )
    assert float(found.u.value) == pytest.approx(u, rel=1e-3)
    assert float(found.p_value) == pytest.approx(p, rel=1e-3)
    assert float(found.auc.value) == pytest.approx(
        u / int(labels.sum()) / (60 - int(labels.sum())), rel=1e-3
    )


def test_mann_whitney_keeps_its_level_and_sees_a_difference():
    """Users drawn anew each time, from one distribution or from two."""
    protocol = responses(pairwise.auc(4), 2.0)
    generator = keyed_generator(b"level")
    p_values = {}
    for name, runs, shift in (
        ("one law", 80, [1, 1, 1, 1]),
        ("two laws", 15, [1, 2, 3, 4]),
    ):
        law = torch.tensor([2.0, 2, 2, 2, *shift])
        p_values[name] = []
        for _ in range(runs):
            users = torch.multinomial(
                law,
                12_000,
                replacement=True,
                generator=generator,
            )
            counts = users.bincount(minlength=8)
            tally = protocol.sample_tally(counts, generator=generator)
            found = pairwise.mann_whitney(Collection.of(protocol).add("all", tally))
            p_values[name].append(float(found.p_value))
    level = torch.tensor(p_values["one law"]).double()
    assert 0.005 < float((level < 0.05).double().mean()) < 0.1
    assert 0.4 < float(level.median()) < 0.62
    shifted = torch.tensor(p_values["two laws"])
    power = float((shifted < 0.05).double().mean())
    assert power > 0.9


def test_the_sum_of_ranks_has_its_predicted_error():
    statistic = pairwise.auc(3)
    counts = torch.tensor([900, 500, 200, 200, 300, 500])
    protocol = responses(statistic, 3.0)
    generator = keyed_generator(b"u")
    tallies = [protocol.sample_tally(counts, generator=generator) for _ in range(60)]
    collections = [Collection.of(protocol).add("all", tally) for tally in tallies]
    found = [pairwise.mann_whitney(collection).u for collection in collections]
    negatives = counts[:3].tolist()
    positives = counts[3:].tolist()
    pairs = itertools.product(enumerate(negatives), enumerate(positives))
    truth = sum(a * b * (sign(j - i) + 1) / 2 for (i, a), (j, b) in pairs)
    z = [(float(each.value) - truth) / float(each.standard_error) for each in found]
    z = float64(z)
    assert abs(float(z.mean())) < 0.25
    assert 0.85 < float(z.std()) < 1.15
