"""Gamma differences: the rejection against the density, laws by quadrature and samples, shares of Laplace noise."""

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from torchdp.kernels import gamma_difference, philox
from torchdp.kernels.gamma_difference import reference


def gammas(shape, size, key=1):
    """Gamma(shape), shape >= 1, for one column of ``size`` users."""
    index = torch.arange(size)
    return reference.gamma(shape, torch.ones(size, dtype=torch.float64), key, index, torch.zeros_like(index), 0)


@pytest.mark.parametrize("shape", [1.0, 1.0 + 1e-9, 1.5, 7.25, 1e4])
def test_the_accepted_normals_are_gamma_variables(shape):
    """normal density x acceptance = constant x gamma density at d (1 + c z)^3 x its derivative, for every z."""
    d, c = reference.constants(shape)
    z = torch.linspace(max(-0.999 / c, -9), 9, 4001, dtype=torch.float64)
    log_accepted = reference.log_acceptance(z, d, c)
    x = d * (1 + c * z) ** 3
    log_density = torch.from_numpy(stats.gamma(shape).logpdf(x.numpy())) + (3 * d * c * (1 + c * z) ** 2).log()
    ratio = log_accepted - 0.5 * z * z - log_density
    assert float(ratio.max() - ratio.min()) < 1e-11 * max(1, d)
    assert float(log_accepted.max()) < 1e-12 * max(1, d)
    wrong = reference.log_acceptance(z, d * 1.01, c) - 0.5 * z * z - log_density
    assert float(wrong.max() - wrong.min()) > 1e-3
    rate, _ = integrate.quad(
        lambda t: math.exp(
            float(reference.log_acceptance(torch.tensor(t, dtype=torch.float64), d, c)) - t * t / 2
        ),
        -1 / c,
        12,
    )
    assert rate / math.sqrt(2 * math.pi) > 0.95  # so 31 rounds all fail with probability below 0.05^31
    assert bool(reference.log_acceptance(torch.tensor([-1.000001 / c], dtype=torch.float64), d, c) == -math.inf)


@pytest.mark.parametrize("shape", [1.0, 2.5, 40.0])
def test_gamma_variables_pass_kolmogorov_and_smirnov(shape):
    x = gammas(shape, 20_000)
    assert stats.kstest(x.numpy(), stats.gamma(shape).cdf).pvalue > 1e-3
    assert stats.kstest((1.05 * x).numpy(), stats.gamma(shape).cdf).pvalue < 1e-3


@pytest.mark.parametrize("shape", [0.02, 0.5, 1.0, 3.0])
def test_differences_have_the_law_of_bessels_function(shape):
    """The density of G - G' is |x/2|^(a - 1/2) K_(a - 1/2)(|x|) / (Gamma(a) sqrt(pi))."""
    x = gamma_difference.draws(shape, 6, 100, 200).flatten()

    def density(t):
        return (t / 2) ** (shape - 0.5) * special.kv(shape - 0.5, t) / (special.gamma(shape) * math.sqrt(math.pi))

    edges = np.array([0.02, 0.1, 0.3, 1.0, 2.0, 4.0, 60.0])
    cells = np.array([2 * integrate.quad(density, a, b)[0] for a, b in pairwise(edges)])
    expected = np.array([1 - cells.sum(), *cells]) * len(x)
    observed = np.histogram(x.abs().numpy(), np.array([0, *edges[:-1], np.inf]))[0]
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert abs(int((x > 0).sum()) - int((x < 0).sum())) < 4 * math.sqrt(len(x))
    variance, kurtosis = 2 * shape, 3 + 3 / shape
    assert abs(float(x.var()) / variance - 1) < 4 * math.sqrt((kurtosis - 1) / len(x))


@pytest.mark.parametrize("users", [1, 3, 150])
def test_shares_of_users_add_up_to_a_laplace_variable(users):
    columns = 2_000
    x = gamma_difference.column_sums(1 / users, 3, users, columns)
    assert stats.kstest(x.numpy(), stats.laplace.cdf).pvalue > 1e-3
    assert stats.kstest((1.3 * x).numpy(), stats.laplace.cdf).pvalue < 1e-2


def test_exponentials_keep_their_digits_where_one_word_in_1e9_lies():
    """exp(-E/shape) with a tiny shape looks at E near 0 alone; uniforms of 24 bits have nothing there."""
    with localcontext() as context:
        context.prec = 60
        for word in (0, 2**20, int(1e-9 * 2**64), 2**63, 2**64 - 2**50, 2**64 - 1):
            high, low = torch.tensor([word >> 32]), torch.tensor([word & (2**32 - 1)])
            truth = -(1 - (Decimal(word) + Decimal("0.5")) / 2**64).ln()
            made = Decimal(float(reference.exponential(*reference.halves(high, low))))
            assert abs(made / truth - 1) < Decimal("5e-16")
    single = -torch.log1p(-torch.rand(1000, generator=torch.Generator().manual_seed(0)).float())
    assert float(single[single > 0].min()) > 1e-9


def test_rare_shares_of_a_tiny_shape_are_as_rare_as_they_should_be():
    """All that exceeds 1e-300 counts: of the two variables of a cell, each does with probability 7e-4."""
    shape, users, columns = 1e-6, 250, 2_000
    x = gamma_difference.draws(shape, 11, users, columns)
    expected = 2 * users * columns * float(special.gammaincc(shape, 1e-300))
    seen = int((x.abs() > 1e-300).sum())
    assert abs(seen - expected) < 4 * math.sqrt(expected)
    assert abs(seen - 1.2 * expected) > 4 * math.sqrt(expected)


def test_known_answers():
    assert gamma_difference.draws(2.5, 42, 2, 3, first=9).flatten().tolist() == pytest.approx(
        [
            -1.6825894381690967,
            3.7061144559533217,
            2.961304259371434,
            0.1403735600923215,
            -3.690560673454046,
            -5.0783689487804455,
        ],
        rel=1e-13,
    )
    assert gamma_difference.draws(0.1, 42, 2, 3).flatten().tolist() == pytest.approx(
        [
            -0.18507333038798696,
            9.57049671481343e-06,
            0.04128156146582801,
            -0.0002497009280134135,
            -1.2111299629421814e-05,
            0.002810898181649817,
        ],
        rel=1e-12,
    )


def test_a_draw_is_its_cells_own_however_work_is_split(monkeypatch):
    whole = gamma_difference.draws(0.3, 5, 63, 7, first=2)
    parts = [gamma_difference.draws(0.3, 5, size, 7, first=first) for size, first in ((20, 2), (0, 22), (43, 22))]
    assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setattr(reference, "CELLS_AT_ONCE", 200)
    assert torch.equal(gamma_difference.draws(0.3, 5, 63, 9, first=2)[:, :7], whole)
    torch.testing.assert_close(
        gamma_difference.column_sums(0.3, 5, 63, 7, first=2), whole.sum(0), rtol=1e-13, atol=1e-13
    )
    assert not torch.equal(gamma_difference.draws(0.3, 5, 63, 7, first=2, stream=2), whole)
    assert gamma_difference.column_sums(0.3, 5, 0, 3).tolist() == [0, 0, 0]
    assert gamma_difference.draws(0.3, 5, 4, 0).shape == (4, 0)


def test_both_variables_of_a_difference_use_words_of_their_own():
    index, column = torch.arange(2000), torch.zeros(2000, dtype=torch.int64)
    one = torch.ones(2000, dtype=torch.float64)
    g, h = (reference.gamma(2.0, one, 3, index, column, stream) for stream in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack([g, h]))[0, 1])) < 4 / math.sqrt(2000)
    assert torch.equal(gamma_difference.draws(2.0, 3, 2000, 1)[:, 0], g - h)
    assert len(set(philox.words(3, index, 32, 0)[0].tolist())) == 2000


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"shape": 0.0}, "shape"),
        ({"shape": math.inf}, "shape"),
        ({"users": -1}, "users"),
        ({"columns": 2**27 + 1}, "columns"),
        ({"stream": 2**30}, "stream"),
    ],
)
def test_arguments_out_of_range_are_named(change, name):
    with pytest.raises(ValueError, match=name):
        gamma_difference.draws(**{"shape": 1.0, "key": 0, "users": 1, "columns": 1, **change})
