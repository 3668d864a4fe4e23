"""The fixed point by matrix products: the same certified norms as by decompositions, and bounds that stay true."""

import math
from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import certify
from torchdp.factorization.solvers import spectrum
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import Decomposed, Iterated

normal = partial(laws.normal, name=b"spectrum")


def certified(W, p=math.inf, shift=False, **settings):
    found = solve(W, p=p, shift=shift, **settings)
    weights = found.row_weights, found.column_weights
    return certify(W, found.left, found.right, *weights, p=p, shift=found.shift), found


def turned(decades):
    U, V = (torch.linalg.qr(normal(24, 24, name=name)).Q for name in (b"U", b"V"))
    return U * 10 ** -torch.linspace(0, decades, 24, dtype=torch.float64) @ V


WORKLOADS = {
    "prefix": workloads.prefix(48).dense(),
    "signs": normal(20, 20).sign(),
    "tall": normal(30, 8),
    "wide": normal(8, 30),
    "low rank": normal(30, 4) @ normal(4, 30, name=b"other"),
    "zero row and column": torch.nn.functional.pad(normal(20, 20), (0, 1, 1, 0)),
    "ill-conditioned": turned(9),
    "zero": torch.zeros(5, 4, dtype=torch.float64),
    "large entries": 1e200 * normal(10, 10),
    "batch": torch.stack([normal(12, 12), workloads.prefix(12).dense(), torch.zeros(12, 12).double()]),
}


@pytest.mark.parametrize(("p", "shift"), [(math.inf, False), (4.0, False), (2.0, True)])
@pytest.mark.parametrize("name", WORKLOADS)
def test_both_paths_certify_the_same_norm(name, p, shift):
    W = WORKLOADS[name]
    size = W.abs().amax((-2, -1)).clamp_min(1e-300)
    exact, one = certified(W, p, shift, tol=1e-5, max_iterations=2000, spectrum=Decomposed())
    found, other = certified(W, p, shift, tol=1e-5, max_iterations=2000, spectrum=Iterated())
    rounding = 1e-12 * size
    assert (found.upper <= found.lower * (1 + 1.01e-5) + rounding).all()
    assert (found.lower <= exact.upper * (1 + 1e-12) + rounding).all()
    assert (exact.lower <= found.upper * (1 + 1e-12) + rounding).all()
    assert (found.residual <= 1e-11 * size).all()
    assert other.iterations <= 1.5 * one.iterations + 8


def test_where_cholesky_fails_precision_goes_up_and_then_the_decompositions_take_over(monkeypatch):
    W, tried = WORKLOADS["prefix"], []

    def wrong(M, steps, dtype):
        tried.append(dtype)
        return -torch.ones_like(M), M.new_ones(())

    monkeypatch.setattr(spectrum, "contraction", wrong)
    path = Iterated()
    found, _ = certified(W, tol=1e-4, spectrum=path)
    assert isinstance(path.decomposed, Decomposed) and found.gap <= 1.01e-4
    assert tried == [torch.float32, torch.float64]


def test_a_cpu_takes_decompositions():
    assert isinstance(spectrum.choose(torch.ones(2000, 1, dtype=torch.float64).expand(2000, 2000)), Decomposed)


@pytest.mark.gpu
def test_a_gpu_takes_products_for_large_matrices_and_certifies_the_same_norm():
    W = workloads.prefix(1024, device="cuda").dense()
    assert isinstance(spectrum.choose(W), Iterated) and isinstance(spectrum.choose(W[:64, :64]), Decomposed)
    found, _ = certified(W, tol=1e-4)
    assert found.gap <= 1.01e-4 and found.lower <= 2.9614806 and found.upper >= 2.9614648
