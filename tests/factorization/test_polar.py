"""The polar factor by matrix products: as accurate as asked, never of norm above 1; and what a contraction proves."""

from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import polar
from torchdp.factorization.certificates import certificate

proved_trace_norm = certificate.proved_trace_norm


normal = partial(laws.normal, name=b"polar")


def with_singular_values(values):
    n = len(values)
    U, V = (torch.linalg.qr(normal(n, n, name=name)).Q for name in (b"U", b"V"))
    return U * torch.as_tensor(values, dtype=torch.float64) @ V


MATRICES = {
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
    "batch": torch.stack([normal(12, 8), 1e-9 * normal(12, 8), torch.zeros(12, 8)]).reshape(3, 1, 12, 8).double(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [0.5, 1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("halley", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_guarantee_polar_is_a_contraction_that_loses_no_more_than_asked(name, halley, loss, dtype, monkeypatch):
    monkeypatch.setattr(polar, "LARGE", 1 if halley else 10**9)
    M = MATRICES[name]
    Q = polar.polar(M, loss, dtype)
    assert Q.shape == M.shape and Q.dtype == torch.float64
    assert torch.linalg.matrix_norm(Q, 2).max() <= 1 + 1e-13
    size = M.abs().amax((-2, -1))
    size = torch.where(size > 0, size, 1.0)
    M = M / size[..., None, None]
    trace = torch.linalg.svdvals(M).sum(-1)
    rounding = 2e-6 if dtype == torch.float32 else 1e-13
    assert ((M * Q).sum((-2, -1)) >= (1 - loss - rounding) * trace).all()


@pytest.mark.parametrize("loss", [2e-5, 1e-8])
def test_without_the_cushion_rounding_carries_the_largest_singular_value_past_zero(loss, monkeypatch):
    """The steps of the best cubic alone send 1 to l: below the rounding of float32 that is a coin's toss."""
    low = 1e-7 * torch.ones(24, dtype=torch.float64)
    low[0] = 1
    M = with_singular_values(low)

    def lost():
        return 1 - float((M * polar.polar(M, loss, torch.float32)).sum() / low.sum())

    assert lost() <= 1e-5
    monkeypatch.setattr(polar, "CUSHION", 1e-12)
    assert lost() > 1e-3


@pytest.mark.parametrize("name", MATRICES)
def test_guarantee_proved_trace_norm_is_below_the_trace_norm_for_any_witness(name):
    M = MATRICES[name]
    M = M / torch.where(M != 0, M.abs(), 0.0).amax().clamp_min(1e-300)
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
        assert (proved <= trace * (1 + 1e-13) + 1e-15).all() and (proved >= 0).all()
    assert (proved_trace_norm(M, best) >= (1 - 1e-8) * trace - 1e-15).all()
