"""The fixed point by decompositions and by mirror symmetries: the same certified norms, true bounds."""

import math
from functools import partial

import laws
import pytest
import torch
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import certify, factorize
from torchdp.factorization.solvers import fixed_point
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import Decomposed, symmetry_of

normal = partial(laws.normal, name=b"spectrum")


def certified(W, p=math.inf, shift=False, **settings):
    found = solve(W, p=p, shift=shift, **settings)
    weights = found.row_weights, found.column_weights
    return certify(W, found.left, found.right, *weights, p=p, shift=found.shift), found


def turned(decades):
    scales = 10 ** -torch.linspace(0, decades, 24, dtype=torch.float64)
    return with_singular_values(scales)


def with_singular_values(values):
    n = len(values)
    U = torch.linalg.qr(normal(n, n, name=b"U")).Q
    V = torch.linalg.qr(normal(n, n, name=b"V")).Q
    return U * torch.as_tensor(values, dtype=torch.float64) @ V


WORKLOADS = {
    "prefix": workloads.prefix(48).dense(),
    "signs": normal(20, 20).sign(),
    "tall": normal(30, 8),
    "wide": normal(8, 30),
    "low rank": normal(30, 4) @ normal(4, 30, name=b"other"),
    "zero row and column": torch.nn.functional.pad(normal(20, 20), (0, 1, 1, 0)),
    "ill-conditioned": turned(9),
    "zero": torch.zeros(5, 4).double(),
    "large entries": 1e200 * normal(10, 10),
    "batch": torch.stack(
        [
            normal(12, 12),
            workloads.prefix(12).dense(),
            torch.zeros(12, 12).double(),
        ]
    ),
}


@pytest.mark.parametrize(
    ("name", "p", "shift"),
    [
        *[(name, math.inf, False) for name in WORKLOADS],
        *[(name, 2.0, True) for name in ("tall", "wide", "ill-conditioned", "zero", "batch")],
        *[(name, 4.0, False) for name in ("prefix", "low rank", "batch")],
    ],
)
def test_every_kind_of_matrix_is_closed(name, p, shift):
    W = WORKLOADS[name]
    size = W.abs().amax((-2, -1)).clamp_min(1e-300)
    found, _ = certified(W, p, shift, tol=1e-5, max_iterations=2000)
    assert (found.upper <= found.lower * (1 + 1.01e-5) + 1e-12 * size).all()
    assert (found.residual <= 1e-11 * size).all()


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
    "singular": torch.ones(5, 5).double(),
    "zero": torch.zeros(3, 3).double(),
    "batch": torch.stack(
        [
            workloads.prefix(6).dense(),
            1e-5 * torch.eye(6),
            torch.zeros(6, 6),
        ]
    ).double(),
    "nearly persymmetric": nearly(workloads.prefix(9).dense()),
    "nearly symmetric": nearly(normal(6, 6) + normal(6, 6).mT),
}


def plain(W, p, shift, tol):
    """By decompositions of the whole matrix: what was there before symmetries were used."""
    return certified(W, p, shift, tol=tol, spectrum=Decomposed())[0]


@pytest.mark.parametrize(
    ("name", "p", "shift"),
    [
        *[(name, math.inf, False) for name in MATRICES],
        # no symmetry is used there
        ("prefix", math.inf, True),
        ("symmetric", 2.0, False),
        ("batch", 4.0, True),
    ],
)
def test_the_certified_norm_is_that_of_the_whole_matrix(name, p, shift):
    W = MATRICES[name]
    found = factorize(W, p, shift, tol=1e-6)
    whole = plain(W, p, shift, 1e-6)
    certificate = found.certificate
    rounding = 1e-12 * W.abs().amax((-2, -1))
    assert (certificate.upper <= certificate.lower * (1 + 1e-6) + rounding).all()
    assert (certificate.lower <= whole.upper * (1 + 1e-12) + rounding).all()
    assert (whole.lower <= certificate.upper * (1 + 1e-12) + rounding).all()
    centred = W if found.shift is None else W - found.shift[..., None]
    missing = centred - found.left @ found.right
    assert (missing.abs().amax((-2, -1)) <= rounding).all()


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
    """The solver's weights are mirrored to the last bit, as those of the singular values are."""
    W = MATRICES[name]
    found = factorize(W, tol=1e-3)
    rows = found.row_weights.sqrt()[:, None]
    columns = found.column_weights.sqrt()
    exact = torch.linalg.svdvals(rows * W * columns).sum()
    monkeypatch.delattr(torch.linalg, "svdvals")
    again = certify(
        W,
        found.left,
        found.right,
        found.row_weights,
        found.column_weights,
    )
    assert_close(again.lower, exact, rtol=1e-13, atol=0)


def test_a_false_symmetry_would_be_charged(monkeypatch):
    """Negative control: W taken for symmetric. The certificate knows W, and its bounds stay
    true.
    """
    W = normal(8, 8)
    truth = plain(W, math.inf, False, 1e-6)
    monkeypatch.setattr(fixed_point, "symmetry_of", lambda *args: (True, False))
    with pytest.warns(RuntimeWarning, match="certified gap"):
        # what a wrong symmetry finds stays far from the optimum
        wrong = factorize(W, tol=1e-4, max_iterations=60).certificate
    assert wrong.gap > 1e-2
    assert laws.overlap(wrong, truth)
