"""The laws of the sketches: rows, signs, E S^T S = I, and how well they embed."""

import math

import numpy as np
import pytest
import torch
from laws import generator, normal
from scipy import stats
from torch.testing import assert_close

from torchdp.sketching import balanced_osnap, count_sketch, ones, osnap, rademacher

ALPHA = 1e-6


def dense_sketch(n, m, s, *, generator):
    return rademacher(n, m, generator=generator)


RANDOM = [osnap, balanced_osnap, dense_sketch]


@pytest.mark.parametrize("make", RANDOM)
def test_columns_have_unit_norm_and_the_product_is_the_identity_on_average(make):
    """Off the diagonal of S^T S the mean is 0; it is not for the sizes alone."""
    n = 6
    m = 4
    s = 2
    # means of 600 sketches: the signs' deviation is a 25th
    draws = 600
    total = torch.zeros(n, n).double()
    unsigned = torch.zeros(n, n).double()
    for seed in range(draws):
        S = make(n, m, s, generator=generator(seed)).dense()
        product = S.mT @ S
        assert_close(product.diagonal(), torch.ones(n).double())
        total += product
        unsigned += S.abs().mT @ S.abs()
    off = ~torch.eye(n, dtype=torch.bool)
    # normal deviations of the means, against the quantile at this level
    scale = math.sqrt(m / draws)
    quantile = stats.norm.isf(ALPHA)
    assert float(total[off].abs().max()) * scale < quantile
    assert float(unsigned[off].min()) * scale > quantile


def test_every_copy_is_uniform_whatever_the_others_are():
    """The rows of one copy are uniform over all, the set of a column's rows over all sets."""
    # about three thousand of each set of rows
    n = 60_000
    m = 6
    s = 3
    sketch = osnap(n, m, s, generator=generator(1))
    for rows in (*sketch.rows, *count_sketch(n, m, generator=generator(1)).rows):
        assert stats.chisquare(torch.bincount(rows, minlength=m)).pvalue > ALPHA
    # a set of rows as a number of m bits
    numbers = sum(2 ** sketch.rows[c] for c in range(s))
    sets = np.bincount(numbers.numpy())
    assert (sets > 0).sum() == math.comb(m, s)
    assert stats.chisquare(sets[sets > 0]).pvalue > ALPHA
    assert stats.binomtest(int((sketch.signs > 0).sum()), s * n).pvalue > ALPHA


@pytest.mark.parametrize(
    ("n", "m", "s"),
    [
        (1000, 10, 1),
        (1001, 12, 3),
        (7, 12, 3),
        (50, 50, 5),
        (1, 4, 2),
    ],
)
def test_balanced_rows_hold_equally_many_up_to_one(n, m, s):
    counts = balanced_osnap(n, m, s, generator=generator()).counts()
    assert int(counts.max() - counts.min()) <= 1
    assert int(counts.sum()) == s * n


def test_the_dense_sketch_is_a_latin_square_of_copies():
    sketch = rademacher(30, 5, generator=generator())
    assert sketch.copies == 5
    assert (sketch.counts() == 30).all()
    for c in range(5):
        assert (torch.bincount(sketch.rows[c]) == 6).all()
    sizes = sketch.dense().abs()
    # equal entries, up to rounding
    assert (sizes - 1 / math.sqrt(5)).abs().max() < 1e-15


def test_ones_is_the_plain_sum():
    A = normal(17, 3)
    assert_close(ones(17).apply(A), A.sum(0, keepdim=True))


def stretches(sketch, basis):
    """The smallest and the largest singular value of S U, U the orthonormal columns of the
    basis.
    """
    columns = torch.linalg.qr(basis.double()).Q
    values = torch.linalg.svdvals(sketch.apply(columns))
    return float(values[-1]), float(values[0])


@pytest.mark.parametrize(
    ("make", "s"),
    [
        (osnap, 4),
        (balanced_osnap, 4),
        (balanced_osnap, 1),
    ],
)
def test_an_embedding_of_the_height_of_theory_has_small_distortion(make, s):
    """m = 60 r rows for r = 5 columns: singular values as those of a Gaussian matrix, 1 -+
    sqrt(r/m), and 10 % more; the coordinates of a few clients, the hard case of sparse sketches,
    meet in few of several copies."""
    n = 4000
    r = 5
    m = 300
    basis = normal(n, r, seed=1)
    for seed in range(5):
        sketch = make(n, m, s, generator=generator(seed))
        low, high = stretches(sketch, basis)
        assert 1 - math.sqrt(r / m) - 0.1 < low < high < 1 + math.sqrt(r / m) + 0.1
        low, high = stretches(sketch, torch.eye(n, r))
        assert s == 1 or 0.5 < low <= high < 1.5
    low, high = stretches(make(n, 8, min(s, 4), generator=generator()), basis)
    assert high - low > 0.5
