"""Statistics: their kernels are the workloads' matrices, their exact values those of a loop over pairs."""

from itertools import product

import pytest
import torch
from sklearn.metrics import roc_auc_score

from pairwise.common import counted, random_types, sign
from torchdp import pairwise, workloads
from torchdp.factorization import factorize, free_constant
from torchdp.pairwise import Form, Pairs, PairwiseStatistic
from torchdp.randomness import keyed_generator
from torchdp.workloads import Workload

KERNELS = [
    (pairwise.absolute_difference(6, spacing=0.25), workloads.absolute_difference(6, spacing=0.25)),
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
    torch.testing.assert_close(statistic.kernel(statistic.form), workload.dense(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        statistic.diagonal(statistic.form), workload.dense().diagonal(), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("k", [2, 3, 8])
def test_auc_numerator_and_denominator_are_kernels_of_the_pairs(k):
    statistic = pairwise.auc(k)
    types = list(product((0, 1), range(k)))
    f = torch.tensor([[(y - b) * sign(s - t) / 4 for b, t in types] for y, s in types])
    g = torch.tensor([[float(y != b) / 2 for b, _ in types] for y, _ in types])
    torch.testing.assert_close(statistic.kernel(statistic.form), f.double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(statistic.kernel(statistic.denominator), g.double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(f.double() * 2, workloads.auc(k).dense(), rtol=0, atol=1e-12)


def test_kernel_of_a_batch_of_weights():
    statistic = pairwise.absolute_difference(4)
    weights = torch.randn(2, 3, statistic.dim, dtype=torch.float64, generator=keyed_generator(b"batch"))
    got = statistic.kernel(Form(weights))
    assert got.shape == (2, 3, 4, 4)
    torch.testing.assert_close(got[1, 2], statistic.kernel(Form(weights[1, 2])))


@pytest.mark.parametrize("distinct", [True, False])
def test_exact_mean_difference_by_counting(distinct):
    types = random_types(5, 14, "gini")
    statistic = PairwiseStatistic(
        "gini",
        (base := pairwise.absolute_difference(5, spacing=0.5)).points,
        base.form,
        pairs=Pairs.DISTINCT if distinct else Pairs.ALL,
    )
    want = by_pairs(types.tolist(), lambda x, y: 0.5 * abs(x - y), distinct=distinct)
    assert float(statistic.exact(counted(types, 5))) == pytest.approx(want, rel=1e-12)


def test_exact_diversity_by_counting():
    types = random_types(4, 15, "diversity")
    want = by_pairs(types.tolist(), lambda x, y: float(x != y))
    assert float(pairwise.unequal(4).exact(counted(types, 4))) == pytest.approx(want, rel=1e-12)


def test_exact_kendall_by_counting():
    types = random_types(12, 16, "kendall")
    want = by_pairs([divmod(x, 4) for x in types.tolist()], lambda x, y: sign(x[0] - y[0]) * sign(x[1] - y[1]))
    assert float(pairwise.kendall(3, 4).exact(counted(types, 12))) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("k", [2, 5])
def test_exact_auc_is_that_of_scikit_learn(k):
    types = random_types(2 * k, 60, f"auc {k}")
    want = roc_auc_score((types >= k).numpy(), (types % k).numpy())
    assert float(pairwise.auc(k).exact(counted(types, 2 * k))) == pytest.approx(want, abs=1e-10)


def test_exact_of_a_batch_of_counts():
    counts = torch.randint(1, 9, (2, 3, 6), generator=keyed_generator(b"counts"))
    for statistic in (pairwise.auc(3), pairwise.absolute_difference(6), pairwise.kendall(2, 3)):
        values = statistic.exact(counts)
        assert values.shape == (2, 3)
        torch.testing.assert_close(values[1, 2], statistic.exact(counts[1, 2]))


def test_from_kernel_reconstructs_within_the_norm_it_promises():
    x = torch.arange(6.0)
    for kernel in (torch.exp(-(x[:, None] - x)), torch.minimum(x[:, None], x)):
        kernel = (kernel + kernel.mT).double() / 2
        statistic = pairwise.from_kernel(kernel, tol=1e-4)
        torch.testing.assert_close(statistic.kernel(statistic.form), kernel, rtol=1e-9, atol=1e-9)
        least = free_constant(kernel, tol=1e-6)  # of gamma_2 over the constants that may be added
        assert least.lower * (1 - 1e-9) <= statistic.radius**2 <= least.upper * (1 + 3e-4)
        assert statistic.radius**2 <= 0.8 * float(factorize(kernel).certificate.upper)  # the constant pays


def test_from_kernel_works_in_float64_whatever_the_input():
    # in float32 the diagonal would be constant up to 1e-7 only, and be refused
    x = torch.arange(5, dtype=torch.float32)
    single = pairwise.from_kernel(torch.exp(-(x[:, None] - x).abs()))
    assert single.points.dtype == torch.float64 and single.common_diagonal(single.form) == pytest.approx(1)
    workload = pairwise.from_kernel(Workload("unequal", (workloads.unequal(5).dense().float(),)))
    assert workload.name == "unequal" and abs(workload.common_diagonal(workload.form)) < 1e-12


@pytest.mark.parametrize("k", [2, 3, 16, 100])
def test_known_norms(k):
    difference = pairwise.absolute_difference(k, spacing=0.5)
    torch.testing.assert_close(
        difference.points.square().sum(1), torch.full((k,), 0.5 * (k - 1) / 2, dtype=torch.float64)
    )
    assert difference.dim == k - 1
    simplex = pairwise.unequal(k)
    torch.testing.assert_close(simplex.points.square().sum(1), torch.full((k,), 1 - 1 / k, dtype=torch.float64))
    assert simplex.dim == k - 1


@pytest.mark.parametrize("a, b", [(2, 3), (4, 4)])
def test_kendall_norm_is_the_product(a, b):
    one, two = (factorize(workloads.sign(k), tol=1e-5).certificate for k in (a, b))
    square = pairwise.kendall(a, b).radius ** 2
    assert float(one.lower * two.lower) * (1 - 1e-9) <= square <= float(one.upper * two.upper) * (1 + 1e-3)


def test_label_coordinate_of_auc_costs_its_share():
    base = pairwise.from_kernel(workloads.auc(4))
    for weight in (0.1, 0.5):
        statistic = pairwise.auc(4, label_weight=weight)
        assert statistic.radius**2 == pytest.approx(base.radius**2 * (1 + weight), rel=1e-12)


@pytest.mark.parametrize("make", [pairwise.absolute_difference, pairwise.unequal])
def test_no_other_constant_is_better(make):
    k = 8
    statistic = make(k)
    W, best = getattr(workloads, make.__name__)(k).dense(), statistic.form.constant
    assert W.max() > best > 0
    grid = sorted({*torch.linspace(0, float(W.max()), 9).tolist(), best - 0.01, best, best + 0.01})
    lower = {c: float(factorize(W - c, tol=1e-5).certificate.lower) for c in grid}
    assert lower[best] == pytest.approx(statistic.radius**2, rel=2e-5)
    assert min(lower.values()) == pytest.approx(statistic.radius**2, rel=2e-5)
    assert lower[0] > 1.1 * statistic.radius**2  # the constant is worth something


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e9])
def test_a_constant_beside_the_kernel_hides_no_diagonal(offset):
    x = torch.linspace(0, 1, 4, dtype=torch.float64)
    varied = pairwise.from_kernel(x[:, None] * x + offset)
    with pytest.raises(ValueError, match="depends on x"):
        varied.common_diagonal(varied.form)
    alike = pairwise.from_kernel((x[:, None] - x).abs() + offset)
    assert alike.common_diagonal(alike.form) == pytest.approx(offset, abs=1e-9 + 1e-14 * offset)
