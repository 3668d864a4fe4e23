"""The default routes to a mean: least error, projected answers, pure differential privacy, and a box that is found."""

import itertools
import math

import pytest
import torch
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
from torchdp.domains.shapes import differences, encoding
from torchdp.mean import Block, GaussianMean, LocalMean, PureMean, pure_lower_bound

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


@pytest.mark.parametrize(
    ("name", "p"),
    [*((name, 2.0) for name in DOMAINS), *((name, math.inf) for name in ("simplex", "box", "simplex x ball"))],
)
def test_the_default_route_errs_least_of_all_shapes(name, p):
    domain = DOMAINS[name]
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


@pytest.mark.parametrize("thin", [1e-6, 1e-9, 1e-12])
def test_a_side_that_is_far_thinner_than_another_costs_pure_noise_next_to_nothing(thin):
    box = Box(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, thin], dtype=torch.float64))
    found = PureMean.tuned(box, epsilon=1.0)
    laplace = math.sqrt(2) * (1 + 1e-2)  # of the wide side alone
    assert float(found.noise_root(1)[0].norm()) < laplace
