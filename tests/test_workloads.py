"""Workloads against loops, and the pairwise kernels against counts of pairs."""

import itertools
import math

import pytest
import torch

from torchdp import workloads
from torchdp.workloads import Workload


def sgn(x):
    return (x > 0) - (x < 0)


def loop(m, n, entry):
    return torch.tensor(
        [[float(entry(i, j)) for j in range(n)] for i in range(m)], dtype=torch.float64
    )


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_dimensional_workloads(k):
    ranges = [(a, b) for a in range(k) for b in range(a, k)]
    expected = {
        "identity": (workloads.identity(k), loop(k, k, lambda i, j: i == j)),
        "prefix": (workloads.prefix(k), loop(k, k, lambda i, j: j <= i)),
        "sign": (workloads.sign(k), loop(k, k, lambda i, j: sgn(i - j))),
        "unequal": (workloads.unequal(k), loop(k, k, lambda i, j: i != j)),
        "absolute difference": (
            workloads.absolute_difference(k, spacing=0.5),
            loop(k, k, lambda i, j: abs(i - j) / 2),
        ),
        "all ranges": (
            workloads.all_ranges(k),
            loop(
                len(ranges),
                k,
                lambda r, j: ranges[r][0] <= j <= ranges[r][1],
            ),
        ),
    }
    for name, (workload, matrix) in expected.items():
        assert workload.name == name
        assert torch.equal(workload.dense(), matrix)
        assert workload.shape == matrix.shape


@pytest.mark.parametrize(
    "d, order",
    [
        (1, 0),
        (3, 1),
        (4, 2),
        (3, 3),
        (2, 9),
    ],
)
def test_parities(d, order):
    subsets = [s for s in range(2**d) if bin(s).count("1") <= order]

    def parity(i, x):
        return (-1) ** bin(subsets[i] & x).count("1")

    expected = loop(len(subsets), 2**d, parity)
    assert torch.equal(workloads.parities(d, order).dense(), expected)


@pytest.mark.parametrize(
    "d, order",
    [
        (1, 0),
        (1, 1),
        (3, 2),
        (4, 9),
        (5, 2),
    ],
)
def test_marginals(d, order):
    """Row by row from the definition: the product of the bits in a set of at most ``order``."""
    sets = [S for S in range(2**d) if S.bit_count() <= order]
    rows = [[float(x & S == S) for x in range(2**d)] for S in sets]
    expected = torch.tensor(rows).double()
    W = workloads.marginals(d, order)
    sets_of_bits = sum(math.comb(d, i) for i in range(min(d, order) + 1))
    assert W.shape == (sets_of_bits, 2**d)
    assert torch.equal(W.dense(), expected)


@pytest.mark.parametrize(
    "d, order",
    [
        (1, 1),
        (3, 1),
        (3, 2),
        (4, 3),
        (4, 4),
    ],
)
def test_marginal_tables(d, order):
    W = workloads.marginal_tables(d, order)
    assert W.shape == (math.comb(d, order) * 2**order, 2**d)
    rows = [
        [float(all(x >> j & 1 == y >> k & 1 for k, j in enumerate(S))) for x in range(2**d)]
        for S in itertools.combinations(range(d), order)
        for y in range(2**order)
    ]
    assert torch.equal(W.dense(), torch.tensor(rows).double())
    # each type lies in one cell of each table
    assert (W.dense().sum(0) == math.comb(d, order)).all()


def test_kendall_and_auc_entries():
    a = 3
    b = 4
    types = list(itertools.product(range(a), range(b)))

    def sign(i, j, coordinate):
        return sgn(types[i][coordinate] - types[j][coordinate])

    expected = loop(12, 12, lambda i, j: sign(i, j, 0) * sign(i, j, 1))
    assert torch.equal(workloads.kendall(a, b).dense(), expected)
    types = list(itertools.product(range(2), range(b)))
    expected = loop(8, 8, lambda i, j: (types[i][0] - types[j][0]) * sign(i, j, 1) / 2)
    assert torch.equal(workloads.auc(b).dense(), expected)


def test_kronecker_order_and_shape():
    A = torch.arange(6.0).reshape(2, 3)
    B = torch.arange(6.0).reshape(3, 2)
    C = torch.arange(6.0).reshape(1, 6)
    product = Workload("product", (A, B, C))
    assert product.shape == (6, 36)
    dense = product.dense()
    assert dense.shape == (6, 36)
    assert dense[1 * 3 + 2, (2 * 2 + 1) * 6 + 4] == A[1, 2] * B[2, 1] * C[0, 4]
