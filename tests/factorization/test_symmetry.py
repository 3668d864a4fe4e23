"""Mirror symmetries: the norm, factors and bounds of W whether they are used or not; launches of an iteration."""

import math
from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import certify, factorize
from torchdp.factorization.solvers import fixed_point, spectrum
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import Decomposed, symmetry_of

normal = partial(laws.normal, name=b"symmetry")


def around(W):
    return W.flip(-2, -1)


def nearly(W):
    W = W.clone()
    W[..., 0, 1] += 1e-9
    return W


MATRICES = {
    "prefix": workloads.prefix(13).dense(),
    "Toeplitz": torch.stack([normal(23)[11 - i : 23 - i] for i in range(12)]),
    "persymmetric, odd": normal(7, 7) + around(normal(7, 7)).mT,
    "symmetric": normal(8, 8) + normal(8, 8).mT,
    "singular": torch.ones(5, 5, dtype=torch.float64),
    "zero": torch.zeros(3, 3, dtype=torch.float64),
    "batch": torch.stack([workloads.prefix(6).dense(), 1e-5 * torch.eye(6), torch.zeros(6, 6)]).double(),
    "nearly persymmetric": nearly(workloads.prefix(9).dense()),
    "nearly symmetric": nearly(normal(6, 6) + normal(6, 6).mT),
}


def plain(W, p, shift, tol):
    """By decompositions of the whole matrix: what was there before symmetries were used."""
    found = solve(W, p=p, shift=shift, tol=tol, spectrum=Decomposed())
    weights = found.row_weights, found.column_weights
    return certify(W, found.left, found.right, *weights, p=p, shift=found.shift)


@pytest.mark.parametrize(("p", "shift"), [(math.inf, False), (math.inf, True), (2.0, False), (4.0, True)])
@pytest.mark.parametrize("name", MATRICES)
def test_the_certified_norm_is_that_of_the_whole_matrix(name, p, shift):
    W = MATRICES[name]
    found, whole = factorize(W, p, shift, tol=1e-6), plain(W, p, shift, 1e-6)
    certificate, rounding = found.certificate, 1e-12 * W.abs().amax((-2, -1))
    assert (certificate.upper <= certificate.lower * (1 + 1e-6) + rounding).all()
    assert (certificate.lower <= whole.upper * (1 + 1e-12) + rounding).all()
    assert (whole.lower <= certificate.upper * (1 + 1e-12) + rounding).all()
    centred = W if found.shift is None else W - found.shift[..., None]
    assert ((centred - found.left @ found.right).abs().amax((-2, -1)) <= rounding).all()


@pytest.mark.parametrize(
    ("name", "turned", "mirrored"),
    [
        ("prefix", True, True),
        ("Toeplitz", True, True),
        ("symmetric", False, True),
        ("nearly persymmetric", False, False),
        ("nearly symmetric", False, False),
    ],
)
def test_a_symmetry_is_seen_where_it_is_exact(name, turned, mirrored):
    W = MATRICES[name]
    assert symmetry_of(W, math.inf, False) == (mirrored, turned)
    assert symmetry_of(W, 2.0, False) == symmetry_of(W, math.inf, True) == (False, False)


@pytest.mark.parametrize("name", ["prefix", "Toeplitz", "persymmetric, odd", "symmetric"])
def test_the_certificate_of_a_mirrored_matrix_takes_eigenvalues(name, monkeypatch):
    """A fifth of the singular values' time; the solver's weights are mirrored to the last bit."""
    W = MATRICES[name]
    found = factorize(W, tol=1e-3)
    exact = torch.linalg.svdvals(found.row_weights.sqrt()[:, None] * W * found.column_weights.sqrt()).sum()
    monkeypatch.delattr(torch.linalg, "svdvals")
    again = certify(W, found.left, found.right, found.row_weights, found.column_weights)
    torch.testing.assert_close(again.lower, exact, rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [37, 64])
@pytest.mark.parametrize("kind", ["prefix", "decay", "cut"])
def test_weights_from_a_coarser_matrix_save_iterations_and_no_more(kind, size, monkeypatch):
    W = workloads.prefix(size).dense()
    if kind == "decay":
        W = W * 0.99 ** (torch.arange(size)[:, None] - torch.arange(size)).abs().double()
    if kind == "cut":  # smooth, and nothing of it is left in every second row and column
        W = torch.eye(size, dtype=torch.float64).flip(0)
        W[1 - size % 2 :: 2, 1 - size % 2 :: 2] = 0
        W = W + 1e-9
    exact = plain(W, math.inf, False, 1e-6)
    monkeypatch.setattr(fixed_point, "LARGE_ROUGH", 16)
    even = factorize(W, tol=1e-3)
    for name, value in (("LARGE", 16), ("COARSEST", 8), ("SMOOTH", math.inf)):
        monkeypatch.setattr(fixed_point, name, value)
    found = factorize(W, tol=1e-3)
    assert found.certificate.gap <= 1e-3 and found.iterations <= even.iterations + (4 if kind == "cut" else -1)
    assert laws.overlap(found.certificate, exact)


def test_a_false_symmetry_would_be_charged(monkeypatch):
    """Negative control: W taken for symmetric. The certificate knows W, and its bounds stay true."""
    W = normal(8, 8)
    truth = plain(W, math.inf, False, 1e-6)
    from torchdp.factorization.solvers import fixed_point

    monkeypatch.setattr(fixed_point, "symmetry_of", lambda *args: (True, False))
    with pytest.warns(RuntimeWarning, match="certified gap"):
        wrong = factorize(W, tol=1e-4, max_iterations=60).certificate
    assert wrong.gap > 1e-2
    assert laws.overlap(wrong, truth)


def test_wrong_first_weights_only_cost_iterations(monkeypatch):
    """Negative control: the beginning in float32 ends anywhere. Bounds and gap are those of float64."""
    W = normal(20, 6, 6)
    W, honest = W + W.mT, factorize(W + W.mT, tol=1e-5)

    class Wrong(spectrum.Mirrored):
        def step(self, X, c, P, gap):
            step = super().step(X, c, P, gap)
            return step._replace(a=step.a.flip(-1), trace=3 * step.trace)

    monkeypatch.setattr(fixed_point, "LARGE_ROUGH", 4)
    monkeypatch.setattr(fixed_point, "Mirrored", Wrong)
    found = factorize(W, tol=1e-5)
    assert found.certificate.gap.max() <= 1e-5
    assert (found.certificate.lower <= honest.certificate.upper * (1 + 1e-12)).all()
