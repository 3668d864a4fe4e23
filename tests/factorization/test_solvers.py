"""The fixed point by products, by mirror symmetries and by polar factors: the same certified norms,
true bounds.
"""

import math
from functools import partial

import laws
import pytest
import torch
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import certify, factorize, polar
from torchdp.factorization.certificates import certificate
from torchdp.factorization.solvers import fixed_point, spectrum
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import Decomposed, Iterated, symmetry_of

normal = partial(laws.normal, name=b"spectrum")
proved_trace_norm = certificate.proved_trace_norm


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
def test_both_paths_certify_the_same_norm(name, p, shift):
    W = WORKLOADS[name]
    largest = W.abs().amax((-2, -1))
    size = largest.clamp_min(1e-300)
    limits = {"tol": 1e-5, "max_iterations": 2000}
    exact, one = certified(
        W,
        p,
        shift,
        spectrum=Decomposed(),
        **limits,
    )
    found, other = certified(
        W,
        p,
        shift,
        spectrum=Iterated(),
        **limits,
    )
    rounding = 1e-12 * size
    assert (found.upper <= found.lower * (1 + 1.01e-5) + rounding).all()
    assert (found.lower <= exact.upper * (1 + 1e-12) + rounding).all()
    assert (exact.lower <= found.upper * (1 + 1e-12) + rounding).all()
    assert (found.residual <= 1e-11 * size).all()
    assert other.iterations <= 1.5 * one.iterations + 8


def test_where_cholesky_fails_precision_goes_up_and_then_the_decompositions_take_over(monkeypatch):
    W, tried = WORKLOADS["prefix"], []

    def wrong(M, loss, dtype):
        tried.append(dtype)
        return -torch.ones_like(M)

    monkeypatch.setattr(spectrum, "polar", wrong)
    path = Iterated()
    found, _ = certified(W, tol=1e-4, spectrum=path)
    assert isinstance(path.decomposed, Decomposed)
    assert found.gap <= 1.01e-4
    assert tried == [torch.float32, torch.float64]


def test_a_cpu_takes_decompositions():
    thin = torch.ones(2000, 1).double()
    assert isinstance(spectrum.choose(thin.expand(2000, 2000)), Decomposed)


@pytest.mark.gpu
def test_a_gpu_takes_products_for_large_matrices_and_certifies_the_same_norm():
    W = workloads.prefix(1024, device="cuda").dense()
    assert isinstance(spectrum.choose(W), Iterated)
    assert isinstance(spectrum.choose(W[:64, :64]), Decomposed)
    found, _ = certified(W, tol=1e-4)
    assert found.gap <= 1.01e-4
    assert found.lower <= 2.9614806
    assert found.upper >= 2.9614648


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


POLAR = {
    "prefix": workloads.prefix(96).dense(),
    "signs": normal(64, 64).sign(),
    "tall": normal(70, 20),
    "wide": normal(20, 70),
    "row": normal(1, 9),
    "rank 3": normal(40, 3) @ normal(3, 40, name=b"other"),
    "duplicates": normal(30, 10).repeat(1, 3),
    "zero row and column": torch.nn.functional.pad(normal(20, 20), (0, 3, 2, 0)),
    "twelve decades": with_singular_values(10 ** -torch.linspace(0, 12, 30).double()),
    "orthogonal": with_singular_values(torch.ones(16)),
    "huge": 1e300 * normal(8, 8),
    "tiny": 1e-300 * normal(8, 8),
    "batch": torch.stack([normal(12, 8), 1e-9 * normal(12, 8), torch.zeros(12, 8)])
    .reshape(3, 1, 12, 8)
    .double(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [0.5, 1e-5, 1e-10])
@pytest.mark.parametrize("name", POLAR)
def test_guarantee_polar_is_a_contraction_that_loses_no_more_than_asked(name, loss, dtype):
    M = POLAR[name]
    Q = polar.polar(M, loss, dtype)
    assert Q.shape == M.shape
    assert Q.dtype == torch.float64
    assert torch.linalg.matrix_norm(Q, 2).max() <= 1 + 1e-13
    size = M.abs().amax((-2, -1))
    size = torch.where(size > 0, size, 1.0)
    M = M / size[..., None, None]
    trace = torch.linalg.svdvals(M).sum(-1)
    rounding = 2e-6 if dtype == torch.float32 else 1e-13
    assert ((M * Q).sum((-2, -1)) >= (1 - loss - rounding) * trace).all()


@pytest.mark.parametrize("loss", [2e-5, 1e-8])
def test_without_the_cushion_rounding_carries_the_largest_singular_value_past_zero(
    loss, monkeypatch
):
    """The steps of the best cubic alone send 1 to l: below the rounding of float32 that is a coin's
    toss.
    """
    low = 1e-7 * torch.ones(24).double()
    low[0] = 1
    M = with_singular_values(low)

    def lost():
        Q = polar.polar(M, loss, torch.float32)
        return 1 - float((M * Q).sum() / low.sum())

    assert lost() <= 1e-5
    monkeypatch.setattr(polar, "CUSHION", 1e-12)
    assert lost() > 1e-3


@pytest.mark.parametrize("name", POLAR)
def test_guarantee_proved_trace_norm_is_below_the_trace_norm_for_any_witness(name):
    M = POLAR[name]
    used = torch.where(M != 0, M.abs(), 0.0)
    M = M / used.amax().clamp_min(1e-300)
    trace = torch.linalg.svdvals(M).sum(-1)
    best = polar.polar(M, 1e-11)
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    noise = normal(*M.shape, name=b"noise")
    witnesses = {
        "best": best,
        "the SVD's": U @ Vh,
        "stopped early": polar.polar(M, 0.9),
        "inflated a little": (1 + 1e-7) * best,
        "inflated a lot": 1e6 * best,
        "inflated past what its Gram matrix can hold": 1e160 * best,
        "one direction inflated": best + 10 * U[..., :1] @ Vh[..., :1, :],
        "noisy": best + 1e-3 * noise,
        "noise": noise,
        "M itself": M,
        "turned round": -best,
        "nothing": 0 * best,
        "float32": best.float().double(),
    }
    for witness in witnesses.values():
        proved = proved_trace_norm(M, witness)
        assert (proved <= trace * (1 + 1e-13) + 1e-15).all()
        assert (proved >= 0).all()
    assert (proved_trace_norm(M, best) >= (1 - 1e-8) * trace - 1e-15).all()
