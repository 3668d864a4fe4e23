"""Delta averaged over a coalition that was fixed before the sketch: its pieces, and what it saves."""

import itertools
import math

import numpy as np
import pytest
import torch
from laws import generator

from torchdp.privacy import gaussian_sigma
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    StaticCoalition,
    balanced_count_sketch,
    balanced_osnap,
    entry_variance,
    ones,
    osnap,
)
from torchdp.sketching.losses import convex_delta, copy_losses, gaussian_delta


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_the_majorant_is_convex_above_delta_and_equal_to_it_up_to_the_inflection(epsilon):
    turn = 2 * math.sqrt(1 + epsilon**2) - 2
    x = np.linspace(0.02, 6, 3000) * turn
    at = torch.from_numpy(x), torch.tensor(epsilon, dtype=torch.float64)
    f, g = gaussian_delta(*at).numpy(), convex_delta(*at).numpy()
    assert (np.diff(g, 2) > -1e-13 * g.max()).all() and not (np.diff(f, 2) > -1e-13 * f.max()).all()
    assert (g >= f * (1 - 1e-9)).all()
    np.testing.assert_allclose(g[x < turn], f[x < turn], rtol=1e-9)
    bent = np.diff(f[x < 0.99 * turn], 2), np.diff(f[x > 1.01 * turn], 2)
    assert (bent[0] > 0).all() and (bent[1] < 0).all()  # the inflection is where it is said to be


def test_guarantee_of_losses_counts_honest_pairs_as_they_fall():
    """Every choice of a client and of two corrupt others, in a sketch with several kinds of rows."""
    sketch = osnap(9, 4, 2, generator=generator(3))
    found = copy_losses(
        sketch, 2, torch.arange(4), lambda honest, row: honest + 100 * row
    )  # a key to what was counted
    assert float(found.probability.sum()) == pytest.approx(1) and found.convex and not found.exact
    counted = {}
    for i in range(9):
        for a, b in itertools.combinations([k for k in range(9) if k != i], 2):
            honest = sketch.part(torch.tensor([k for k in range(9) if k not in (a, b)])).counts()
            for row in sketch.rows[:, i].tolist():
                key = 2 * (int(honest[row]) + 100 * row)  # s x_c
                counted[key] = counted.get(key, 0) + 1
    total = sum(counted.values())
    for key in set(counted) | set(found.squares.tolist()):
        law = float(found.probability[found.squares == key].sum())
        assert law == pytest.approx(counted.get(key, 0) / total, abs=1e-12)


@pytest.mark.parametrize(("n", "corrupt"), [(100_000, 1000), (100_000, 10_000), (20_000, 0)])
@pytest.mark.parametrize("copies", [1, 4])
def test_a_static_coalition_costs_its_own_noise_and_nothing_else_to_speak_of(n, corrupt, copies):
    """Variance over the least: n/(n - t') within .2 %; bounds on the counts of all rows would cost 3 to 8 % more."""
    sketch, coalition = balanced_osnap(n, 100, copies, generator=generator()), StaticCoalition(corrupt)
    least = entry_variance(1.0, epsilon=0.1, delta=1e-6)
    for rows in (True, False):
        noise = GaussianNoise.calibrated(sketch, 1.0, epsilon=0.1, delta=1e-6, coalition=coalition, rows=rows)
        overhead = float(noise.variance(sketch).mean()) / least
        assert 1 - 1e-7 <= overhead * (n - corrupt) / n < 1.002
    if corrupt:
        counted = n * copies / 100 / float(coalition.honest(sketch, 1e-6).min())
        assert counted * (n - corrupt) / n > 1.01


def test_with_nobody_corrupt_the_two_kinds_of_coalition_agree():
    sketch = balanced_count_sketch(600, 20, generator=generator())
    pair = [
        float(
            GaussianNoise.calibrated(sketch, 1.0, epsilon=0.5, delta=1e-6, coalition=coalition, rows=False).sigma
        )
        for coalition in (AdaptiveCoalition(), StaticCoalition(0))
    ]
    assert pair[0] == pytest.approx(pair[1], rel=1e-8) and pair[0] <= pair[1]


def test_in_the_plain_sum_exactly_the_corrupt_are_missing():
    found = GaussianNoise.calibrated(ones(500), 1.0, epsilon=0.5, delta=1e-6, coalition=StaticCoalition(100))
    assert float(found.sigma) == pytest.approx(gaussian_sigma(0.5, 1e-6, 2.0) / 20, rel=1e-8)
