"""The default routes to a mean: least error, projected answers, pure differential privacy, and a box that is found."""

import itertools
import math
import sys

import pytest
import torch
from gaussians import Probe
from laws import generator, uniform

from torchdp.domains import (
    Box,
    FiniteSet,
    Polytope,
    Product,
    Zonotope,
    difference_shape,
    least_error_shape,
    lp_ball,
    minkowski_sum,
    noise_shape,
    round_shape,
)
from torchdp.domains.encoding import differences, encoding
from torchdp.mean import AdaptiveMean, Block, GaussianMean, LocalMean, PureMean, pure_lower_bound
from torchdp.mean.adaptive import CELLS, LAST, LEAST, LOOK, LOOKS, MOST_RINGS, RATIO, _histogram, _rings
from torchdp.noise import SeededNoise
from torchdp.privacy import Arithmetic

SIMPLEX = FiniteSet(torch.eye(4, dtype=torch.float64))
BOX = Box(torch.zeros(3), torch.tensor([1.0, 4.0, 16.0]))
PARTS = Product((FiniteSet(torch.eye(3, dtype=torch.float64)), BOX))
BOTH = Product((FiniteSet(torch.eye(3, dtype=torch.float64)), lp_ball(2, 2.0, 3.0)))
TRIANGLE = Polytope(torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0, 2.0, 0], [0, 0, 1.0]], dtype=torch.float64))
SUM = minkowski_sum([TRIANGLE, Zonotope(uniform(3, 2, seed=1), torch.zeros(3))])
ROUND = minkowski_sum([TRIANGLE, lp_ball(3, 2.0, 0.5)])
DOMAINS = {
    "simplex": SIMPLEX,
    "box": BOX,
    "simplex x box": PARTS,
    "simplex x ball": BOTH,
    "sum": SUM,
    "with ball": ROUND,
}


def points_of(domain, count=400):
    directions = torch.randn(count, domain.dimension, dtype=torch.float64, generator=generator(3))
    return domain.extreme(directions)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_guarantee_no_two_points_are_further_apart_than_the_diameter_and_it_is_near(domain):
    for make in (noise_shape, difference_shape):
        own = encoding(domain, make(domain, 2.0))
        u = own(points_of(domain))
        apart = float(torch.cdist(u, u).max())
        assert apart <= own.diameter * (1 + 1e-12)
        assert apart >= 0.8 * own.diameter  # of a sum the oracle knows a bound
        assert own.diameter <= 2 * own.radius


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_differences_are_of_two_points(domain):
    apart = differences(domain)
    assert apart.symmetric
    g = torch.randn(50, domain.dimension, dtype=torch.float64, generator=generator(4))
    widths = ((domain.extreme(g) - domain.extreme(-g)) * g).sum(1)
    torch.testing.assert_close((apart.extreme(g) * g).sum(1), widths)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_the_default_route_errs_least_of_all_shapes(domain, p):
    best = GaussianMean.tuned(domain, p, rho=0.5, delta=1e-6).error(10, p).root_mean_square
    for make in (noise_shape, difference_shape, round_shape):
        other = GaussianMean.calibrated(domain, make(domain, p), rho=0.5, delta=1e-6).error(10, p).root_mean_square
        assert best.value <= other.value * (1 + 1e-3) + 3 * (best.standard_error + other.standard_error)


def test_a_product_without_symmetry_is_charged_its_own_diameter():
    ours = GaussianMean.tuned(PARTS, rho=0.5, delta=1e-6).error(1).floor
    around = noise_shape(PARTS, 2.0)
    charged = 2 * encoding(PARTS, around).radius * float(around.root.norm())
    assert ours < 0.99 * charged


def test_local_means_are_tuned_by_the_radius():
    protocol = LocalMean.tuned(BOX, math.inf, epsilon=1.0)
    shaped = LocalMean.calibrated(BOX, noise_shape(BOX, math.inf), epsilon=1.0)
    assert protocol.error(10, math.inf).root_mean_square.value < shaped.error(10, math.inf).root_mean_square.value
    assert (
        least_error_shape(SIMPLEX, 2.0, local=True).certificate.upper
        == noise_shape(SIMPLEX, 2.0).certificate.upper
    )


@pytest.mark.parametrize("name", ["simplex", "box", "simplex x ball"])
@pytest.mark.parametrize("n", [3, 30, 3000])
def test_guarantee_projected_answers_err_by_no_more_than_the_bound(name, n):
    domain = DOMAINS[name]
    protocol = GaussianMean.tuned(domain, rho=0.5, delta=1e-6)
    x = domain.spanning()[torch.arange(n) % len(domain.spanning())]
    found = protocol.sample_estimate(protocol.summary(x), generator=generator(5), sample_shape=(300,))
    z, mean = protocol.projected(found), x.mean(0)
    assert bool(domain.hull.contains(z).all())
    errors = (z - mean).norm(dim=1)
    assert bool((errors <= (found.value - mean).norm(dim=1) * (1 + 1e-6) + 1e-9).all())  # one by one
    bound = protocol.projected_error(n)
    squares = errors.square()
    assert (
        float(squares.mean() - 3 * squares.std() / len(squares) ** 0.5)
        <= (bound.value + 3 * bound.standard_error) ** 2
    )
    assert bound.value <= protocol.error(n, 2.0).floor


def test_projection_pays_on_a_simplex_of_few_users():
    simplex = FiniteSet(torch.eye(50, dtype=torch.float64))
    protocol = GaussianMean.tuned(simplex, rho=0.05, delta=1e-6)
    assert protocol.projected_error(50).value < 0.75 * protocol.error(50, 2.0).floor


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_noise_of_each_ball_has_the_density_it_should(order):
    """E ||z||_q = k and E ||z||_q^2 = k (k + 1) where the density falls like exp(-||z||_q), and no direction leads."""
    block = Block(3, order, 1.0)
    box = Box(torch.zeros(3), torch.ones(3))
    protocol = PureMean(box, difference_shape(box, 2.0), 1.0, (block,))
    zero = protocol.exact(protocol.summary(box.low[None]))
    drawn = protocol.sample_estimate(
        protocol.summary(box.low[None]), generator=generator(6), sample_shape=(40_000,)
    )
    z = (drawn.value - zero) @ torch.linalg.pinv(protocol.shape.root).mT / protocol.diameters[0]
    norm = torch.linalg.vector_norm(z, ord=order, dim=1)
    for power, truth in ((1, 3.0), (2, 12.0), (3, 60.0)):
        moment = norm**power
        assert abs(float(moment.mean()) - truth) < 5 * float(moment.std()) / 200
    # uniform in direction: the share of the ball within half the radius along one axis, from its volume
    inside = (z[:, 0].abs() < norm / 2).double()
    share = {1.0: 1 - 0.25, 2.0: 0.5, math.inf: 1 / 3}[order]  # of the sphere's cone measure
    assert abs(float(inside.mean()) - share) < 5 * 0.5 / 200


def test_a_box_that_is_hidden_whole_errs_less_than_coordinates_apart():
    d = 8
    cube = Box(torch.zeros(d), torch.ones(d))
    ours = PureMean.tuned(cube, epsilon=1.0)
    assert [block.size for block in ours.blocks] == [d]
    laplace = 2 * d**2  # of each coordinate, epsilon / d for each
    whole = d * laplace * (d + 1) * (d + 2) / (6 * d**2)
    assert float(ours.noise_root(1).square().sum()) == pytest.approx(whole, rel=1e-3)
    skewed = PureMean.tuned(Box(torch.zeros(d), 4.0 ** torch.arange(d)), epsilon=1.0)
    assert len(skewed.blocks) > 2


def test_guarantee_shares_that_round_above_one_cost_no_epsilon():
    shape = noise_shape(BOX, 2.0)
    spent = []
    for more in (0.0, 2e-10):
        blocks = tuple(Block(1, 2.0, 1 / 3 + more) for _ in range(3))
        protocol = PureMean(BOX, shape, 1.0, blocks)
        spent.append(sum(most / scale for most, scale in zip(protocol.diameters, protocol.scales, strict=True)))
    assert all(abs(each - 1) < 1e-15 for each in spent)


def test_blocks_of_like_widths_are_the_best_of_all_splits():
    box = Box(torch.zeros(4), torch.tensor([8.0, 1.0, 3.0, 2.5]))
    ours = PureMean.tuned(box, epsilon=1.0)
    w = sorted((8.0, 1.0, 3.0, 2.5), reverse=True)

    def cost(ends):
        parts = [w[a:b] for a, b in itertools.pairwise((0, *ends, 4))]
        return sum(((len(p) + 1) * (len(p) + 2) / 3 * sum(x * x for x in p)) ** (1 / 3) for p in parts) ** 3

    best = min(cost(ends) for k in range(4) for ends in itertools.combinations((1, 2, 3), k))
    assert float(ours.noise_root(1).square().sum()) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("name", ["simplex", "box", "simplex x box"])
def test_pure_means_stay_above_the_lower_bound(name):
    domain = DOMAINS[name]
    shape = difference_shape(domain, 2.0)
    between = float(shape.certificate.lower) * (1 if domain.middle is None else 2)
    protocol = PureMean.tuned(domain, epsilon=1.0)
    assert pure_lower_bound(between, 7, 1.0) < protocol.error(7, 2.0).floor
    assert protocol.guarantee.delta == 0 and protocol.guarantee.epsilon == 1.0


def test_a_set_of_one_point_is_known():
    one = FiniteSet(torch.tensor([[3.0, 4.0]]))
    assert PureMean.tuned(one, epsilon=1.0).estimate(one.points).value.tolist() == [3.0, 4.0]


def crowd(n=20_000, d=5, seed=7):
    return 3 + torch.randn(n, d, dtype=torch.float64, generator=generator(seed))


def wide(d=5, size=1000.0):
    return Box(torch.full((d,), -size), torch.full((d,), size))


@pytest.mark.parametrize("size", [30.0, 3e3, 3e6])
def test_an_adaptive_mean_errs_at_most_twice_what_its_last_domain_needs(size):
    x, errors, needed = crowd(), [], []
    for seed in range(5):
        found = AdaptiveMean(wide(size=size), 0.05, 1e-6).estimate(x, noise=SeededNoise(seed))
        errors.append(float((found.value - x.mean(0)).square().sum()))
        needed.append(GaussianMean.tuned(found.domain, rho=0.05, delta=1e-6).error(len(x)).floor ** 2)
        assert float(found.domain.root.norm(dim=1).max()) < 20
    assert sum(errors) < 4 * sum(needed)


def test_an_adaptive_mean_of_few_users_with_long_tails_too():
    """569 users in 30 dimensions: those whom no cell shows are not forgotten."""
    from sklearn.datasets import load_breast_cancer

    x = torch.from_numpy(load_breast_cancer().data).double()
    reach, errors, needed = 1e3 * float(x.std(0).max()), [], []
    box = Box(x.mean(0) - reach, x.mean(0) + 0.9 * reach)
    for seed in range(12):
        found = AdaptiveMean(box, 0.5, 1e-6).estimate(x, noise=SeededNoise(seed))
        errors.append(float((found.value - x.mean(0)).square().sum()))
        needed.append(GaussianMean.tuned(found.domain, rho=0.5, delta=1e-6).error(len(x)).floor ** 2)
    assert sum(errors) < 4 * sum(needed)


def test_an_adaptive_mean_cuts_a_tail_whose_sides_cancel_and_keeps_one_that_does_not():
    """Two crowds of one law of distances: symmetric t_3, and its absolute values."""
    x = torch.randn(20_000, 5, dtype=torch.float64, generator=generator(8))
    x = x / torch.randn(20_000, 5, 3, dtype=torch.float64, generator=generator(9)).square().mean(2).sqrt()
    box, size = wide(), []
    for users in (x, x.abs()):
        found = [AdaptiveMean(box, 0.5, 1e-6).estimate(users, noise=SeededNoise(seed)) for seed in range(4)]
        size.append(sum(float(each.domain.root.diagonal().mean()) for each in found) / 4)
        errors = sum(float((each.value - users.mean(0)).square().sum()) for each in found) / 4
        assert errors**0.5 < 0.013
    assert size[1] > 1.2 * size[0]


def test_guarantee_an_adaptive_mean_spends_at_most_its_rho():
    assert LOOKS * LOOK + LAST <= 0.4 + 1e-12
    protocol = AdaptiveMean(wide(), 0.05, 1e-6)
    exact = GaussianMean.tuned(wide(), rho=0.05, delta=1e-6).guarantee
    assert protocol.guarantee.epsilon == pytest.approx(exact.epsilon)
    assert protocol.guarantee.arithmetic is Arithmetic.ROUNDED
    # a histogram: the two of neighbours' mean counts are sqrt(2 rho) deviations apart at most
    x, d, rho = crowd(50), 5, 0.02
    edges = torch.linspace(-10, 10, CELLS + 1, dtype=torch.float64).expand(d, -1)
    y = x.clone()
    y[3] = -8.0
    one, deviation = _histogram(x, edges, rho, Probe())
    other, _ = _histogram(y, edges, rho, Probe())
    apart = float((one - other).norm()) / deviation
    assert apart == pytest.approx(math.sqrt(2 * rho)) and apart / 0.9 > math.sqrt(2 * rho)


@pytest.mark.parametrize("rho", [0.02, 1e-12])
def test_guarantee_directions_in_rings_move_by_what_noise_hides(rho):
    """Any user to any other, floats that underflow and overflow too; to the other side of one ring, and to another."""
    edges = torch.cat([torch.zeros(1), 1.3 ** torch.arange(40)]).double()
    rows = torch.cat(
        [crowd(20, 3) - 3, torch.full((1, 3), 1e-180, dtype=torch.float64), torch.zeros(1, 3).double()]
    )
    rows = torch.cat(
        [rows, -rows, 1e4 * rows, torch.full((1, 3), 1e300, dtype=torch.float64), 1e-155 * rows * 1e-155]
    )
    seen = []
    for row in rows:
        counts, sums, deviation = _rings(row[None], edges, rho, Probe())
        seen.append(torch.cat([counts[:, None], sums], 1).flatten())
    apart = max(float((one - other).norm()) for one, other in itertools.combinations(seen, 2)) / deviation
    assert apart <= math.sqrt(2 * rho) * (1 + 1e-9)  # the Probe's noise is the same for all
    assert apart > 0.9 * math.sqrt(2 * rho)


def test_an_adaptive_mean_counts_as_many_rings_as_floats_allow():
    across = math.log(sys.float_info.max) - math.log(5e-324)
    assert MOST_RINGS >= 2 + across / math.log(RATIO)


def test_an_adaptive_mean_draws_the_least_noise():
    for d in (1, 5, 200):  # down to the least, both ends of the noise are drawn
        found = AdaptiveMean(wide(d), d * LEAST, 1e-6).estimate(crowd(3, d), noise=SeededNoise(0))
        assert bool(found.value.isfinite().all())
    assert AdaptiveMean(wide(), 1e-13, 1e-6).estimate(crowd(3), noise=SeededNoise(0)).n == 3


def test_every_round_of_an_adaptive_mean_is_asked_within_what_is_left(monkeypatch):
    from torchdp.mean import adaptive

    asked, tuned = [], GaussianMean.tuned

    def listening(ask):
        def listen(x, edges, rho, draws):
            asked.append(rho)
            return ask(x, edges, rho, draws)

        return listen

    def last(*args, rho, **rest):
        asked.append(rho)
        return tuned(*args, rho=rho, **rest)

    for name in ("_histogram", "_rings"):
        monkeypatch.setattr(adaptive, name, listening(getattr(adaptive, name)))
    monkeypatch.setattr(adaptive.GaussianMean, "tuned", last)
    for size in (10.0, 1e9):
        asked.clear()
        AdaptiveMean(wide(size=size), 0.05, 1e-6).estimate(crowd(), noise=SeededNoise(0))
        assert sum(asked) == pytest.approx(0.05) and asked[-1] >= 0.03 - 1e-12 and len(asked) >= 3
    # looks of users who are many against the noise take little, and a flat side asks for none
    asked.clear()
    box = Box(torch.full((6,), -1e6), torch.cat([torch.full((5,), 1e6), torch.full((1,), -1e6)]))
    x = torch.cat([crowd(), torch.full((20_000, 1), -1e6, dtype=torch.float64)], 1)
    AdaptiveMean(box, 0.5, 1e-6).estimate(x, noise=SeededNoise(0))
    assert sum(asked) == pytest.approx(0.5) and asked[-1] > 0.83 * 0.5 and len(asked) < 2 + LOOKS


def test_an_adaptive_mean_of_few_users_or_one_value_ends():
    for x in (crowd(3), torch.zeros(500, 5, dtype=torch.float64), torch.full((5, 5), 1000.0, dtype=torch.float64)):
        found = AdaptiveMean(wide(), 1.0, 1e-6).estimate(x, noise=SeededNoise(1))
        assert bool(found.value.isfinite().all()) and bool(found.domain.root.isfinite().all())
    flat = Box(torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert AdaptiveMean(flat, 1.0, 1e-6).estimate(torch.zeros(9, 2), noise=SeededNoise(1)).value[0] == 0


@pytest.mark.parametrize("value", [1.0, 1 / 3, 0.0])
def test_an_adaptive_mean_of_one_value_anywhere_in_the_box(value):
    x = torch.full((1000, 1), value, dtype=torch.float64)
    box = Box(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    for seed in range(3):
        found = AdaptiveMean(box, 1.0, 1e-6).estimate(x, noise=SeededNoise(seed))
        assert float(found.value) == pytest.approx(value, abs=6 * float(found.standard_error) + 1e-16)
        assert float(found.standard_error) < 1e-9


def test_an_adaptive_mean_is_as_good_far_from_the_origin():
    x, found = crowd(d=1), []
    for shift in (0.0, 1.7e9):  # seconds of an epoch
        box = Box(
            torch.tensor([shift - 1e5], dtype=torch.float64), torch.tensor([shift + 1e5], dtype=torch.float64)
        )
        found.append(AdaptiveMean(box, 0.05, 1e-6).estimate(shift + x, noise=SeededNoise(0)))
    near, far = found
    assert float(far.domain.root) == pytest.approx(float(near.domain.root), rel=1e-3)
    assert float(far.value) - 1.7e9 == pytest.approx(float(near.value), abs=1e-5)
    thin = Box(torch.ones(1, dtype=torch.float64), torch.full((1,), 1 + 1e-12, dtype=torch.float64))
    assert float(AdaptiveMean(thin, 1.0, 1e-6).estimate(thin.low[None].expand(99, 1)).value) == pytest.approx(1.0)


def test_an_adaptive_mean_takes_the_numbers_of_float32_in_its_box():
    box = Box(torch.tensor([0.1, 0.0], dtype=torch.float64), torch.tensor([0.1, 0.7], dtype=torch.float64))
    x = torch.stack([torch.full((5000,), 0.1), torch.full((5000,), 0.7)], 1)  # both a little above
    found = AdaptiveMean(box, 1.0, 1e-6).estimate(x, noise=SeededNoise(0))
    assert found.value.tolist() == pytest.approx([0.1, 0.7], abs=1e-6)


@pytest.mark.parametrize("thin", [1e-6, 1e-9, 1e-12])
def test_a_side_that_is_far_thinner_than_another_costs_pure_noise_next_to_nothing(thin):
    box = Box(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, thin], dtype=torch.float64))
    found = PureMean.tuned(box, epsilon=1.0)
    laplace = math.sqrt(2) * (1 + 1e-2)  # of the wide side alone
    assert float(found.noise_root(1)[0].norm()) < laplace
