"""Marginal tables in closed form: against the dense matrix, the fixed point, and a thousand bits."""

import math

import pytest
import torch
from laws import generator

from torchdp import workloads
from torchdp.factorization import MarginalFactorization, factorize


@pytest.mark.parametrize(("d", "order"), [(1, 1), (3, 1), (4, 2), (5, 3), (4, 4)])
@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("shift", [False, True])
def test_guarantee_marginal_factorization_is_the_norm_of_the_dense_matrix(d, order, p, shift):
    certificate = MarginalFactorization(d, order, shift).certificate(p)
    exact = factorize(workloads.marginal_tables(d, order), p, shift, tol=1e-9).certificate
    assert certificate.gap <= 1e-11
    assert float(exact.lower) * (1 - 1e-9) <= float(certificate.upper) <= float(exact.upper) * (1 + 1e-9)


@pytest.mark.parametrize("shift", [False, True])
def test_its_noise_is_that_of_a_factorization(shift):
    """The map from normals to noise, column by column, is L: with R = L^+ W it gives W and the sensitivity 1."""
    made = MarginalFactorization(5, 2, shift)
    sets = torch.combinations(torch.arange(5), 2)
    count = len(made.subsets(sets)[0])
    columns = [made.noise(sets, unit, 1.0).flatten() for unit in torch.eye(count, dtype=torch.float64)]
    L, W = torch.stack(columns, 1), workloads.marginal_tables(5, 2).dense()
    W = W - 0.25 if shift else W
    R = torch.linalg.pinv(L) @ W
    torch.testing.assert_close(L @ R, W)
    torch.testing.assert_close(R.norm(dim=0), torch.ones(32).double())
    torch.testing.assert_close(L.square().sum(1), torch.full((40,), made.variance(1.0)).double())


def test_three_way_marginals_of_a_thousand_bits():
    """1.3e9 cells: certified, and the noise of the tables asked for has the variance and correlations promised."""
    made = MarginalFactorization(1000, 3)
    assert made.cells == 1_329_336_000 and made.certificate().gap <= 1e-11
    random = torch.rand(20_000, 1000, generator=generator())[:, :40].argsort(1)[
        :, :3
    ]  # of 40 bits: sets share subsets
    sets = random.sort(1).values
    normals = torch.randn(len(made.subsets(sets)[0]), dtype=torch.float64, generator=generator())
    noise = made.noise(sets, normals, 2.0)
    apart = made.noise(torch.arange(999).view(333, 3), torch.randn(1 + 333 * 7, generator=generator()), 2.0)
    assert noise.shape == (20_000, 8)
    assert float(apart.square().mean() / made.variance(2.0)) == pytest.approx(1, abs=0.1)
    same = (sets == sets[0]).all(1)
    torch.testing.assert_close(noise[same], noise[:1].expand(int(same.sum()), 8))
    total = noise.view(-1, 2, 2, 2).sum((1, 2))  # bit 0 alone: tables that share it agree on its count
    first = total[sets[:, 0] == sets[0, 0]]
    torch.testing.assert_close(first, first[:1].expand_as(first))
