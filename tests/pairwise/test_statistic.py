"""Statistics: their kernels are the workloads' matrices, their exact values those of a loop over
pairs.
"""

from itertools import product

import pytest
import torch
from sklearn.metrics import roc_auc_score

from pairwise.common import counted, random_types, sign
from torchdp import pairwise, workloads
from torchdp.factorization import factorize, free_constant
from torchdp.workloads import Workload

KERNELS = [
    (
        pairwise.absolute_difference(6, spacing=0.25),
        workloads.absolute_difference(6, spacing=0.25),
    ),
    (pairwise.absolute_difference(2), workloads.absolute_difference(2)),
    (pairwise.unequal(5), workloads.unequal(5)),
    (pairwise.kendall(3, 4), workloads.kendall(3, 4)),
    (pairwise.kendall(2, 2), workloads.kendall(2, 2)),
]


def by_pairs(types, f, *, distinct=True):
    pairs = [(i, j) for i, j in product(range(len(types)), repeat=2) if i != j or not distinct]
    return sum(f(types[i], types[j]) for i, j in pairs) / len(pairs)


@pytest.mark.parametrize("statistic, workload", KERNELS, ids=lambda each: each.name)
def test_kernel_is_the_workload(statistic, workload):
    torch.testing.assert_close(
        statistic.kernel(statistic.form),
        workload.dense(),
        rtol=1e-10,
        atol=1e-10,
    )
    torch.testing.assert_close(
        statistic.diagonal(statistic.form),
        workload.dense().diagonal(),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("k", [2, 3, 8])
def test_auc_numerator_and_denominator_are_kernels_of_the_pairs(k):
    statistic = pairwise.auc(k)
    types = list(product((0, 1), range(k)))
    f = [[(y - b) * sign(s - t) / 4 for b, t in types] for y, s in types]
    f = torch.tensor(f)
    g = [[float(y != b) / 2 for b, _ in types] for y, _ in types]
    g = torch.tensor(g)
    torch.testing.assert_close(statistic.kernel(statistic.form), f.double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(
        statistic.kernel(statistic.denominator),
        g.double(),
        rtol=0,
        atol=1e-10,
    )
    torch.testing.assert_close(f.double() * 2, workloads.auc(k).dense(), rtol=0, atol=1e-12)


def test_exact_kendall_by_counting():
    types = random_types(12, 16, "kendall")
    cells = [divmod(x, 4) for x in types.tolist()]
    want = by_pairs(cells, lambda x, y: sign(x[0] - y[0]) * sign(x[1] - y[1]))
    found = pairwise.kendall(3, 4).exact(counted(types, 12))
    assert float(found) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("k", [2, 5])
def test_exact_auc_is_that_of_scikit_learn(k):
    types = random_types(2 * k, 60, f"auc {k}")
    want = roc_auc_score((types >= k).numpy(), (types % k).numpy())
    found = pairwise.auc(k).exact(counted(types, 2 * k))
    assert float(found) == pytest.approx(want, abs=1e-10)


def test_from_kernel_reconstructs_within_the_norm_it_promises():
    x = torch.arange(6.0)
    for kernel in (
        torch.exp(-(x[:, None] - x)),
        torch.minimum(x[:, None], x),
    ):
        kernel = (kernel + kernel.mT).double() / 2
        statistic = pairwise.from_kernel(kernel, tol=1e-4)
        torch.testing.assert_close(
            statistic.kernel(statistic.form),
            kernel,
            rtol=1e-9,
            atol=1e-9,
        )
        # of gamma_2 over the constants that may be added
        least = free_constant(kernel, tol=1e-6)
        assert least.lower * (1 - 1e-9) <= statistic.radius**2 <= least.upper * (1 + 3e-4)
        # the constant pays
        assert statistic.radius**2 <= 0.8 * float(factorize(kernel).certificate.upper)


def test_from_kernel_works_in_float64_whatever_the_input():
    # in float32 the diagonal would be constant up to 1e-7 only, and be refused
    x = torch.arange(5, dtype=torch.float32)
    distance = (x[:, None] - x).abs()
    single = pairwise.from_kernel(torch.exp(-distance))
    assert single.points.dtype == torch.float64
    assert single.common_diagonal(single.form) == pytest.approx(1)
    unequal = workloads.unequal(5).dense().float()
    workload = pairwise.from_kernel(Workload("unequal", (unequal,)))
    assert workload.name == "unequal"
    assert abs(workload.common_diagonal(workload.form)) < 1e-12


@pytest.mark.parametrize("k", [2, 3, 16, 100])
def test_known_norms(k):
    difference = pairwise.absolute_difference(k, spacing=0.5)
    squares = torch.full((k,), (k - 1) / 4, dtype=torch.float64)
    torch.testing.assert_close(difference.points.square().sum(1), squares)
    assert difference.dim == k - 1
    simplex = pairwise.unequal(k)
    squares = torch.full((k,), 1 - 1 / k, dtype=torch.float64)
    torch.testing.assert_close(simplex.points.square().sum(1), squares)
    assert simplex.dim == k - 1


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e9])
def test_a_constant_beside_the_kernel_hides_no_diagonal(offset):
    x = torch.linspace(0, 1, 4, dtype=torch.float64)
    varied = pairwise.from_kernel(x[:, None] * x + offset)
    with pytest.raises(ValueError, match="depends on x"):
        varied.common_diagonal(varied.form)
    distance = (x[:, None] - x).abs()
    alike = pairwise.from_kernel(distance + offset)
    assert alike.common_diagonal(alike.form) == pytest.approx(offset, abs=1e-9 + 1e-14 * offset)
