"""Errors of quadratic forms: tails by inversion of the characteristic function, roots, edges and
coverage.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from laws import generator, normal
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import chi2

from torchdp.protocol import quadratic
from torchdp.protocol.interval import ErrorParts, RatioError, deviate_and_saddlepoint, part_sums
from torchdp.protocol.quadratic import QuadraticError

Z = 1.959964


def error_of(curved, linear):
    curved = torch.as_tensor(curved, dtype=torch.float64)
    linear = torch.as_tensor(linear, dtype=torch.float64)
    none = torch.zeros(np.broadcast_shapes(curved.shape, linear.shape)[:-1], dtype=torch.float64)
    shape = (*none.shape, linear.shape[-1])
    return QuadraticError(
        curved.expand(shape),
        linear.expand(shape),
        linear[..., :0].expand(*none.shape, 0),
        none,
        none,
    )


def deviate(x, w, squares):
    """Of the one part whose coordinates these are."""
    row = torch.zeros(len(w), dtype=torch.int64)
    return float(deviate_and_saddlepoint(w.new_tensor([x]), w, squares, row)[0])


def inverted(x, w, ell):
    """P[sum w (e^2 - 1) + 2 l e > x]: Gil-Pelaez's inversion, as Imhof (1961) has it."""

    def integrand(t):
        one = 1 - 2j * w * t
        return (
            np.exp((-np.log(one) / 2 - 1j * w * t - 2 * ell**2 * t**2 / one).sum() - 1j * t * x)
        ).imag / t

    scale = np.sqrt((2 * w**2 + 4 * ell**2).sum())
    ends = np.array([1e-12, 1, 5, 20, 100, 400]) / scale
    parts = (quad(integrand, low, high, limit=2000)[0] for low, high in pairwise(ends))
    return 0.5 + sum(parts) / np.pi


@pytest.mark.parametrize(
    ("w", "ell"),
    [
        ((1, -1, 0.5, -0.5), (0.5, 0.5, 0, 0.2)),
        ((1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 0, 0)),
        ((1, 0.1, -0.3, 0.2), (1, 0.5, -0.6, 0)),
        ((1, -0.24, 0), (1.29, -0.627, 0.4)),
        ((-2, 0.3, 0.3, 0.3), (0.1, 1, 1, 1)),
    ],
)
def test_tails_are_those_of_the_inverted_characteristic_function(w, ell):
    w = np.array(w, dtype=float)
    ell = np.array(ell, dtype=float)
    scale = np.sqrt((2 * w**2 + 4 * ell**2).sum())
    for x in scale * np.array([-2.0, -1.0, 0.5, 2.0, 3.0]):
        found = ndtr(-deviate(x, torch.tensor(w), torch.tensor(ell**2)))
        truth = inverted(x, w, ell)
        assert found == pytest.approx(truth, abs=0.004 if min(truth, 1 - truth) < 0.06 else 0.02)


@pytest.mark.parametrize("z", [5.0, 8.0, 20.0, 35.0])
def test_far_tails_go_on_beyond_forty_deviations_of_a_square(z):
    """The logarithm of the tail of e^2 - 1 at z^2 - 1, up to 900 deviations, is chi^2's."""
    one = torch.ones(1, dtype=torch.float64)
    found = deviate(z**2 - 1, one, torch.zeros_like(one))
    assert log_ndtr(-found) == pytest.approx(chi2.logsf(z**2, 1), abs=0.15)


def test_a_distance_is_the_level_whose_interval_ends_at_0():
    error = error_of([1.0, 0.2, 0.2, -0.5], [30.0, 3.0, 1.0, 2.0])
    for value in (-300.0, -100.0, 40.0, 200.0, 400.0):
        value = torch.tensor(value, dtype=torch.float64)
        z = error.distance(value)
        below, above = error.margins(z)
        assert float(below if value > 0 else above) == pytest.approx(abs(float(value)), rel=1e-5)


def test_a_form_without_noise_has_no_margins_and_nan_has_none_but_nan():
    flat = error_of(torch.zeros(3), torch.zeros(3))
    assert [float(each) for each in flat.margins(Z)] == pytest.approx([0, 0], abs=1e-200)
    lost = error_of([[1.0, 2.0], [1.0, 2.0]], [[float("nan"), 1.0], [0.5, 1.0]])
    for ends in lost.margins(Z):
        assert ends.isnan().tolist() == [True, False]


def test_a_value_below_all_that_the_form_can_be_lies_outside_of_its_interval_which_ends_at_the_least():
    """T = sum (z^2 - 1) for z near 0 is near -2, and no sum of squares is below 0."""
    below, above = error_of([1.0, 1.0], [0.01, 0.01]).margins(Z)
    assert float(-below) == pytest.approx(2, abs=1e-3) and float(above) == pytest.approx(
        2, abs=1e-3
    )


UNEQUAL = [
    ((1, -0.24), (1.29, -0.627)),
    ((0.356, 0.133, -0.0743, 1, -0.174), (0.0677, 0.0683, -0.146, 1.22, -0.462)),
    ((-0.0585, -0.038, -0.0768, -0.0688, 1), (-0.107, -0.004, 0, -0.196, 0.869)),
    ((1, 0.1, -0.3, 0.2), (1, 0.5, -0.6, 0)),
    ((-0.286, -0.861, -0.2, 0.38, -1), (-0.112, 0, -0.322, 1.01, -1.54)),
]


def covered(curved, linear, trials):
    """Share of the intervals at normal noise that hold sum 2 l e + w (e^2 - 1)."""
    curved = torch.tensor(curved, dtype=torch.float64)
    linear = torch.tensor(linear, dtype=torch.float64)
    e = torch.randn(trials, len(curved), generator=generator(5), dtype=torch.float64)
    below, above = error_of(curved, linear + curved * e).margins(Z)
    off = (2 * linear * e + curved * (e.square() - 1)).sum(-1)
    return float(((off <= below + 1e-6) & (-off <= above + 1e-6)).double().mean())


@pytest.mark.parametrize(("curved", "linear"), UNEQUAL)
def test_intervals_hold_where_one_large_curvature_lies_beside_small_ones(curved, linear):
    assert covered(curved, linear, 2_000) > 0.94


def beside(small, mean, many, first=1.3):
    """w and l of one large coordinate, of this mean in deviations, and of many small ones."""
    return [1.0] + [small] * many, [first] + [small * mean] * many


@pytest.mark.parametrize(
    ("small", "mean", "many"), [(0.047, 0.0, 60), (0.1, 0.0, 30), (0.2, 0.0, 22)]
)
def test_small_coordinates_do_not_hide_where_a_large_one_may_be(monkeypatch, small, mean, many):
    """experiments/pairwise/random_kernels.py searches for worse ones."""
    curved, linear = beside(small, mean, many)
    found = covered(curved, linear, 1_500)
    assert found > 0.935
    monkeypatch.setattr(quadratic, "OCTAVES", 0)  # control: coordinates of all sizes are one part
    assert covered(curved, linear, 1_500) < found - 0.02


def test_the_gradient_is_as_long_as_without_noise_on_average():
    """Off the gradient noise adds w^2 to each square, which is taken off; along it, it is not."""
    curved, linear = (torch.tensor(x).double() for x in beside(0.654, 0.0, 20, first=4.0))
    e = torch.randn(4_000, len(curved), generator=generator(6), dtype=torch.float64)
    path, place = error_of(curved, linear + curved * e)._parts((4_000,))
    assert len(place) == 4_000  # one part each
    _, squares = path.at(torch.zeros(4_000, dtype=torch.float64))
    length = (path.scale.square() * part_sums(squares, path.row, 4_000)).mean()
    assert float(length) == pytest.approx(16 + 1, abs=0.5)


def test_a_part_whose_truth_is_at_the_end_of_its_range_keeps_its_share():
    """e^2 - 1, which exceeds 4.02 in one of 40 cases, beside the normal error 2 e."""
    below, _ = error_of([1.0, 0.0], [0.05, 1.0]).margins(Z)
    assert float(below) == pytest.approx(np.hypot(4.02, 2 * Z), rel=0.02)


def test_a_known_offset_moves_the_range_with_the_estimate():
    """A form of one sign is at least 0: the lower end is never below, wherever the estimate is."""
    point = torch.tensor([[0.3, -0.2]]).double()
    one = torch.ones(1, 2, dtype=torch.float64)
    offset = torch.tensor([0.05]).double()
    # that of a product of two copies whose mean is the point
    error = QuadraticError(one, point, -one, offset, torch.zeros(1))
    value = point.square().sum(-1) - 2 - offset
    below, above = error.margins(Z)
    assert float(value - below) == pytest.approx(0, abs=1e-4)
    assert float(value + above) > 1


def test_what_rounding_leaves_has_no_range_and_a_small_error_beside_widens_both_ends():
    """z is nearer to the vertex than its noise: T lies below all that the form may be."""
    curved = torch.tensor([0.0, 2.4e-3]).double()
    linear = torch.tensor([1.6e-10, 4e-5]).double()
    slack = torch.tensor(1e-4).double()
    error = replace(error_of(curved, linear), slack=slack)
    least = float(curved[1] - linear[1].square() / curved[1])
    below, above = (float(end) for end in error.margins(Z))
    assert -below == pytest.approx(least - Z * 1e-4, abs=1e-8)
    assert above == pytest.approx(least + Z * 1e-4, abs=1e-8)


def fieller(variance, slope, curvature):
    """(Fieller's parts, the ratio's error whose parts at each t are normal ones of these
    variances).
    """
    variance, slope, curvature = (
        torch.as_tensor(x, dtype=torch.float64) for x in (variance, slope, curvature)
    )
    parts = ErrorParts(
        *(x.expand(variance.shape)[..., None] for x in (variance, slope, curvature, 0 * variance))
    )

    def at(u):
        return ErrorParts.normal(variance + slope * u + curvature * u.square())

    return parts, RatioError(parts, at(torch.zeros_like(variance)), at)


def test_a_ratio_ends_where_its_own_margin_does_which_is_fiellers_end_for_normal_errors():
    variance = torch.tensor([0.04, 0.04, 1.0, 0.04])
    z = torch.tensor([1.0, Z, Z, 3.0]).double()
    parts, ratio = fieller(
        variance, torch.tensor([0.1, -0.1, 0.0, 0.05]), torch.tensor([0.01, 0.1, 0.2, 0.05])
    )
    for end, exact, at_the_value in zip(
        ratio.margins(z), parts.margins(z), ratio.second.margins(z), strict=True
    ):
        torch.testing.assert_close(end, exact, rtol=1e-3, atol=0)
        assert (end / at_the_value - 1).abs().min() > 0.02  # control


def test_a_ratio_whose_denominator_may_be_0_is_left_to_fieller_and_joined_with_others_to_the_wider():
    parts, ratio = fieller(torch.tensor([0.04]), -0.28, 0.5)
    assert all(bool(end.isinf()) for end in ratio.margins(Z))
    assert [float(end) for end in ratio.gap(Z)] == pytest.approx(
        [float(end) for end in parts.gap(Z)]
    )
    normal_error = ErrorParts.normal(torch.tensor([0.3]).double())
    parts, ratio = fieller(torch.tensor([0.04]), 0.05, 0.1)
    wider = [torch.maximum(*both) for both in zip(
        parts.joined(normal_error).margins(Z), ratio.second.joined(normal_error).margins(Z), strict=True
    )]  # fmt: skip
    for end, wide in zip(ratio.joined(normal_error).margins(Z), wider, strict=True):
        torch.testing.assert_close(end, wide)


def test_along_the_path_the_truth_rises_and_the_deviate_falls_so_that_each_end_is_one_root():
    for index in range(60):
        r = 1 + index % 6
        curved = normal(r, seed=index) * 10.0 ** torch.arange(r).double().neg().div(2)
        linear = 10.0 ** (index % 4 - 1) * normal(r, seed=100 + index)
        grid = torch.linspace(-20, 20, 800, dtype=torch.float64)
        path, place = error_of(curved, linear)._parts((800,))
        truth = path.truth(grid[place]).view(800, -1)
        deviate = path.deviate(grid[place])[0].view(800, -1)
        scale = path.scale.view(800, -1)[0]
        assert (truth.diff(dim=0) >= -1e-7 * scale).all()
        near = (deviate.abs() < 4)[1:] & (deviate.abs() < 4)[:-1]  # further out tails are rough
        assert near.sum() > 20 and (deviate.diff(dim=0)[near] <= 1e-3).all()
