"""Choosing a protocol by predicted error; one message by PrivUnit."""

import pytest
import torch
from laws import generator, sampled

from pairwise.common import mse, vectors
from torchdp import pairwise
from torchdp.pairwise import Pairs
from torchdp.queries import LocalOracle, choose
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments


def test_guarantee_choice_is_the_least_of_its_table_and_prints_it(brief):
    statistic = pairwise.unequal(3)
    h = torch.tensor([5.0, 1.0, 2.0])
    choice = choose(statistic, 1000, 1.0, prior=h)
    assert str(choice).splitlines()[1].startswith(choice.candidates[0].name)
    assert len(str(choice).splitlines()) == len(choice.candidates) + 2
    for candidate in choice.candidates:
        assert candidate.error == pytest.approx(mse(candidate.protocol, h, 1000) ** 0.5)
        assert candidate.error >= choice.candidates[0].error * (1 - 2e-3)
        assert candidate.protocol.guarantee.epsilon <= 1 + 1e-12
    assert choice.best is choice.candidates[0].protocol
    assert "optimised strategy" in [candidate.name for candidate in choice.candidates]


def test_choice_without_a_prior_holds_for_data_near_any_single_type(brief):
    """A strategy made for some of the types alone errs several times more on the others than it is
    judged to.
    """
    k = 5
    n = 100_000
    statistic = pairwise.unequal(k)
    # data of nearly one type: what a strategy for few types neglects
    near = 0.98 * torch.eye(k, dtype=torch.float64) + 0.02 / k
    choice = choose(statistic, n, 2.0)
    family = statistic.histograms
    assert max(mse(choice.best, h, n) for h in near) < 1.5 * choice.candidates[0].error ** 2
    assert len(pairwise.unequal(70).histograms) == 3 + 64
    # those families without the remaining single types
    some = family[[0, 1, 2, 3, 3 + k // 2, 2 + k]]
    fitted = LocalOracle.tuned(
        statistic,
        n,
        2.0,
        prior=some,
        generator=keyed_generator(b"choose"),
        steps=100,
    )
    assert max(mse(fitted, h, n) for h in near) > 3 * max(mse(fitted, h, n) for h in some)


NEGATIVES = torch.tensor([400, 300, 100, 50, 20, 10, 0, 3])
POSITIVES = torch.tensor([0, 10, 50, 150, 250, 300, 90, 1])


def auc_of(negatives, positives):
    # the share of pairs in order, ties one half
    less = torch.ones(8, 8).double().triu(1) + torch.eye(8) / 2
    negatives = negatives.double() / negatives.sum()
    positives = positives.double() / positives.sum()
    return float(negatives @ less @ positives)


def test_auc_of_known_sizes_is_the_auc():
    statistic = pairwise.auc_of_sizes(8, int(NEGATIVES.sum()), int(POSITIVES.sum()))
    counts = torch.cat([NEGATIVES, POSITIVES])
    assert float(statistic.exact(counts)) == pytest.approx(auc_of(NEGATIVES, POSITIVES), rel=1e-9)
    known = vectors(statistic, 1.0)
    n = int(counts.sum())
    unknown = vectors(pairwise.auc(8), 1.0)
    assert mse(known, counts, n) < mse(unknown, counts, n)
    answer = known.sample_estimate(counts, **sampled(20_000, b"sizes"))
    squared = Moments.of((answer.value - auc_of(NEGATIVES, POSITIVES)).square())
    assert abs(squared.z_score(mse(known, counts, n))) < 5


def test_a_second_round_is_chosen_where_it_is_worth_it():
    """Random signs of many users; measured as predicted. One round is the default."""
    bits = torch.randint(2, (16, 16), generator=generator())
    signs = bits.double() * 2 - 1
    statistic = pairwise.from_kernel(signs.triu() + signs.triu(1).mT, pairs=Pairs.ALL)
    two = pairwise.choose_rounds(statistic, 10**6, 1.0, search=False)
    one = choose(statistic, 10**6, 1.0, search=False)
    assert isinstance(two.best, pairwise.TwoRound)
    assert {each.name for each in two.candidates} - {each.name for each in one.candidates} == {
        "two rounds",
        "two rounds, projected",
    }
    assert two.candidates[0].error < 0.6 * one.candidates[0].error
    counts = torch.full((16,), 62_500)
    key = keyed_generator(b"second round")
    drawn = two.best.sample_estimate(counts, generator=key, sample_shape=(400,))
    error = drawn.value - statistic.exact(counts)
    moments = Moments.of(error.square())
    assert abs(moments.z_score(mse(two.best, counts, 10**6))) < 5
