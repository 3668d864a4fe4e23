"""Quantiles and trimmed means through channels: truth, errors, intervals."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from laws import generator, z_scores
from scipy.stats import trim_mean

from torchdp import queries
from torchdp.queries import Quantiles, bins_of
from torchdp.randomizers import RandomizedResponse

EDGES = torch.linspace(0, 8, 9)
COUNTS = torch.tensor([300, 40, 10, 170, 45, 45, 300, 90])


@pytest.mark.parametrize("trust", ["curator", "shuffle"])
def test_quantiles_err_as_predicted(trust):
    asked = Quantiles(EDGES, (0.2, 0.4, 0.6))
    best = queries.choose(asked, 1000, 2.0, 1e-5, trust=trust, search=False).best
    found = best.sample_estimate(COUNTS, generator=generator(), sample_shape=(2000,))
    truth = best.exact(COUNTS)
    squares = (found.value - truth).square()
    predicted = best.predicted_mse(COUNTS)
    # to first order in the noise: a tenth beside the luck of the draws
    assert (
        z_scores(squares, predicted).abs() < 5 + 0.1 * predicted / (squares.std(0) / 2000**0.5)
    ).all()
    # half of the noise is seen at once
    assert (z_scores(squares, predicted / 2).abs() > 6).all()
    assert found.standard_error.square().mean(0) == pytest.approx(predicted, rel=0.1)


def test_intervals_of_quantiles_cover_at_edges_of_bins():
    asked = Quantiles(EDGES, (0.3, 0.34, 0.91))
    protocol = queries.LocalOracle.of(asked, RandomizedResponse(8, 2.0))
    found = protocol.sample_estimate(COUNTS, generator=generator(), sample_shape=(1000,))
    truth = protocol.exact(COUNTS)
    for level, least in ((0.95, 0.945), (0.3, 0.3)):
        low, high = found.interval(level)
        assert (low <= found.value).all() and (found.value <= high).all()
        held = ((low <= truth) & (truth <= high)).double().mean(0)
        assert (held >= least - 0.02).all()
    low, high = found.together(0.9)
    assert ((low <= truth) & (truth <= high)).all(-1).double().mean() > 0.88
    assert (found.interval(0.95)[1] > found.interval(0.3)[1]).any()
    population = found.of_population()
    assert (population.standard_error > found.standard_error).all()
    assert (population.interval()[0] <= found.interval()[0]).all()


def test_the_mean_of_many_quantiles_is_scipys_trimmed_mean_and_errs_as_told():
    numbers = np.random.default_rng(0).normal(4, 1, 5000).clip(0, 7.999)
    edges = torch.linspace(0, 8, 129)
    counts = torch.bincount(bins_of(edges, pd.Series(numbers)), minlength=128)
    asked = Quantiles(edges, torch.linspace(0.1005, 0.8995, 800))
    best = queries.choose(asked, 5000, 1.0, 1e-6, trust="curator", search=False).best
    truth = best.exact(counts).mean()
    assert float(truth) == pytest.approx(trim_mean(numbers, 0.1), abs=0.003)
    found = best.sample_estimate(counts, generator=generator(), sample_shape=(300,))
    squares = (found.value.mean(-1) - truth).square()
    told = found.covariance().mean((-2, -1))
    assert abs(z_scores(squares, told.mean())) < 5


def test_bad_bins_are_refused():
    with pytest.raises(ValueError, match="edges must be three numbers"):
        Quantiles(torch.tensor([0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="shares"):
        Quantiles(EDGES, (50.0,))
    with pytest.raises(ValueError, match="x"):
        bins_of(EDGES, [1.0, math.nan])
    assert bins_of(EDGES, [-1, 0, 8, 9, 3.5]).tolist() == [0, 0, 7, 7, 3]
