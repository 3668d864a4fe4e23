"""What the noise promises: against the two laws written out, and every coalition."""

import itertools
import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import special
from torch.testing import assert_close

from torchdp.privacy import Model, Neighbours, gaussian_log_delta, gaussian_sigma
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    LaplaceNoise,
    balanced_osnap,
    count_sketch,
    entry_variance,
    ones,
    osnap,
    rademacher,
)
from torchdp.sketching.coalition import EVERYBODY

EPSILON = 0.7
DELTA = 1e-5
BOUND = 1.3
MU = 1 / gaussian_sigma(EPSILON, DELTA)


def rows(
    sketch,
    bound=BOUND,
    coalition=EVERYBODY,
    delta=DELTA,
    epsilon=EPSILON,
):
    return GaussianNoise.calibrated(
        sketch, bound, epsilon=epsilon, delta=delta, coalition=coalition
    )


def written_out_mu(noise, sketch, corrupt=(), bound=BOUND):
    """Largest distance of the two Gaussians over the honest clients."""
    return float(written_out_mus(noise, sketch, corrupt, bound).max())


def written_out_mus(noise, sketch, corrupt=(), bound=BOUND):
    """For each honest client, from the map of every honest number drawn to the entries of one
    column of the release: the root of difference^T covariance^-1 difference."""
    n = sketch.clients
    s = sketch.copies
    m = sketch.height
    honest = [i for i in range(n) if i not in corrupt]
    source = torch.zeros(m, s, n).double()
    for c, i in itertools.product(range(s), honest):
        sigma = float(noise._rows(sketch)[sketch.rows[c, i]])
        source[sketch.rows[c, i], c, i] = float(sketch.signs[c, i]) * sigma / math.sqrt(s)
    source = source.flatten(1)
    used = sketch.counts() > 0
    covariance = (source @ source.mT)[used][:, used]
    S = sketch.dense()[used]
    difference = 2 * bound * S[:, honest]
    solved = torch.linalg.solve(covariance, difference)
    return (difference * solved).sum(0).sqrt()


SKETCHES = [
    osnap(40, 6, 3, generator=generator(1)),
    balanced_osnap(40, 6, 2, generator=generator(2)),
    balanced_osnap(41, 8, 1, generator=generator(3)),
    count_sketch(40, 5, generator=generator(4)),
    rademacher(40, 4, generator=generator(5)),
    ones(17),
]


@pytest.mark.parametrize("sketch", SKETCHES)
def test_guarantee_of_gaussian_noise_is_exact_where_everybody_is_honest(sketch):
    noise = rows(sketch)
    mu = written_out_mu(noise, sketch)
    # mu is calibrated exactly where all are honest
    assert mu == pytest.approx(MU, rel=1e-8)
    promise = noise.guarantee(sketch, BOUND, delta=DELTA)
    assert promise.exact
    assert promise.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert promise.delta == DELTA
    assert (promise.model, promise.neighbours) == (Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE)
    assert math.exp(gaussian_log_delta(1 / mu, promise.epsilon)) == pytest.approx(DELTA, rel=1e-5)
    less = type(noise)(0.9 * noise.sigma)
    # negative control: less noise breaks the promise
    assert math.exp(gaussian_log_delta(1 / written_out_mu(less, sketch), EPSILON)) > 1.5 * DELTA
    assert less.guarantee(sketch, BOUND, delta=DELTA).epsilon > 1.05 * EPSILON


@pytest.mark.parametrize("make", [count_sketch, osnap, balanced_osnap])
def test_guarantee_holds_against_every_adaptive_coalition(make):
    """All pairs of clients; with one copy the worst of them attains the bound."""
    sizes = (14, 3) if make is count_sketch else (14, 4, 2)
    sketch = make(*sizes, generator=generator(6))
    coalition = AdaptiveCoalition(2)
    noise = rows(sketch, coalition=coalition)
    mus = [written_out_mu(noise, sketch, pair) for pair in itertools.combinations(range(14), 2)]
    # no pair of clients does better than is said
    assert max(mus) <= MU * (1 + 1e-9)
    promise = noise.guarantee(
        sketch,
        BOUND,
        delta=DELTA,
        coalition=coalition,
    )
    assert promise.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert promise.exact == (make is count_sketch) == coalition.exact(sketch)
    if promise.exact:
        # attained by the worst pair
        assert max(mus) == pytest.approx(MU, rel=1e-9)
    careless = rows(sketch)
    pairs = itertools.combinations(range(14), 2)
    # negative control: calibrated without a coalition
    assert max(written_out_mu(careless, sketch, pair) for pair in pairs) > 1.05 * MU


@pytest.mark.parametrize("sketch", SKETCHES)
def test_noise_for_each_row_has_the_least_variance(sketch):
    least = entry_variance(BOUND, epsilon=EPSILON, delta=DELTA)
    assert least == pytest.approx((2 * BOUND / MU) ** 2)
    expected = torch.full((sketch.height,), least)
    assert_close(rows(sketch).variance(sketch), expected.double())


def test_a_sketch_without_honest_clients_in_some_row_is_refused():
    sketch = count_sketch(40, 5, generator=generator(4))
    smallest = int(sketch.counts().min())
    rows(sketch, coalition=AdaptiveCoalition(smallest - 1))
    with pytest.raises(ValueError, match="some used row of the sketch may have no honest client"):
        rows(sketch, coalition=AdaptiveCoalition(smallest))


def test_rows_that_hold_nobody_need_no_honest_client():
    sketch = osnap(3, 50, 1, generator=generator(7))
    noise = rows(sketch)
    assert noise.guarantee(sketch, BOUND, delta=DELTA).epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert written_out_mu(noise, sketch) == pytest.approx(MU)


def laplace_sum_density(x, shares, scale):
    """Of Gamma(r, b) - Gamma(r, b): the variance-gamma density."""
    z = np.abs(x) / scale
    order = shares - 0.5
    bessel = special.kve(order, z) * np.exp(-z)
    unit = 2**order * math.sqrt(math.pi) * special.gamma(shares) * scale
    return z**order * bessel / unit


@pytest.mark.parametrize(
    ("corrupt", "copies"),
    [
        (0, 1),
        (4, 1),
        (0, 2),
        (0, 4),
    ],
)
def test_guarantee_of_laplace_noise_is_pure_and_exact(corrupt, copies):
    """Densities of the row's honest noise, shifted: every share from the fewest honest clients to
    all.
    """
    sketch = balanced_osnap(48, 4, copies, generator=generator(8))
    coalition = AdaptiveCoalition(corrupt)
    noise = LaplaceNoise.calibrated(
        sketch,
        BOUND,
        epsilon=EPSILON,
        coalition=coalition,
    )
    promise = noise.guarantee(sketch, BOUND, coalition=coalition)
    assert promise.exact
    assert promise.delta == 0
    assert promise.epsilon == pytest.approx(EPSILON)
    x = np.linspace(-60, 60, 4801) * noise.scale + 1e-9
    honest = int(sketch.counts()[0]) - corrupt
    worst = []
    for held in range(honest, int(sketch.counts()[0]) + 1):
        shares = held / float(noise.parts[0])
        here = laplace_sum_density(x - BOUND, shares, noise.scale)
        there = laplace_sum_density(x - -BOUND, shares, noise.scale)
        ratio = here / there
        worst.append(copies * float(np.log(ratio).max()))
    # pure: the worst log ratio of all shares
    assert max(worst) <= EPSILON * (1 + 1e-9)
    # attained by the fewest honest clients
    assert worst[0] == pytest.approx(EPSILON, rel=1e-6)
    fewer = laplace_sum_density(x - BOUND, 0.5, noise.scale) / laplace_sum_density(
        x + BOUND, 0.5, noise.scale
    )
    # half a Laplace promises nothing of the kind
    assert copies * float(np.log(fewer).max()) > 1.5 * EPSILON
    smaller = LaplaceNoise(0.9 * noise.scale, noise.parts)
    assert smaller.guarantee(sketch, BOUND, coalition=coalition).epsilon == pytest.approx(
        EPSILON / 0.9
    )


def test_pure_noise_refuses_rows_with_fewer_honest_clients_than_parts():
    sketch = balanced_osnap(48, 4, 1, generator=generator(8))
    with pytest.raises(ValueError, match="no whole Laplace"):
        LaplaceNoise.calibrated(sketch, 1, epsilon=1.0).guarantee(
            sketch, 1, coalition=AdaptiveCoalition(1)
        )
