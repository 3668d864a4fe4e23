"""The quantile and the tilted normal in Triton: SciPy's and the reference's, to a few units in the last place."""

import pytest
import torch
from scipy import special

from torchdp.kernels import privunitg

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from torchdp.kernels.privunitg import quantile  # noqa: E402

CLOSE = {"rtol": 2e-15, "atol": 2e-15}  # logarithms and fused products differ in their last places


def uniforms(size, device, seed=0):
    ends = [2.0**-53, 1 - 2.0**-53, 1e-9, 0.5]
    u = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).clamp_min(2.0**-53)
    u[: len(ends)] = torch.tensor(ends[:size], dtype=torch.float64)
    return u.to(device)


@triton.jit
def quantiles(p, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, quantile.ndtri(tl.load(p + index, mask=index < n, other=0.5)), mask=index < n)


@triton.jit
def tilted(branch, tail, numbers, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(branch + index, mask=index < n, other=0.5)
    t = tl.load(tail + index, mask=index < n, other=0.5)
    x = quantile.tilted(b, t, tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2))
    tl.store(out + index, x, mask=index < n)


def test_the_quantile_is_scipys_down_to_1e_300_and_finite_at_the_ends(device):
    low = 10.0 ** -torch.linspace(0.31, 300, 2000, dtype=torch.float64)
    p = torch.cat([low, torch.linspace(1e-6, 1 - 1e-6, 2001, dtype=torch.float64), 1 - low[low > 1e-15]])
    truth = torch.from_numpy(special.ndtri(p.numpy()))
    p, out = (
        torch.cat([p, torch.tensor([0.0, 1.0]).double()]).to(device),
        torch.empty(len(p) + 2).double().to(device),
    )
    quantiles[(triton.cdiv(len(p), 1024),)](p, out, len(p), BLOCK=1024)
    assert (out[:-2].cpu() - truth).abs().div(truth.abs().clamp_min(1e-9)).max() < 2e-15
    assert out[-2:].tolist() == pytest.approx([-37.519379, 37.519379])


@pytest.mark.parametrize("threshold", [0.0, 0.7, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("size", [1, 63, 1000])
def test_the_device_function_is_the_tilted_normal(device, size, threshold):
    branch, tail = uniforms(size, device, 1), uniforms(size, device, 2)
    tail[:1] = 1.0
    survival = float(special.ndtr(-threshold))
    numbers = torch.tensor([threshold, 0.6, survival], dtype=torch.float64, device=device)
    out = torch.full_like(tail, torch.nan)
    tilted[(triton.cdiv(size, 64),)](branch, tail, numbers, out, size, BLOCK=64)
    expected = privunitg.tilted_normal(branch, tail, threshold=threshold, upper=0.6, survival=survival)
    torch.testing.assert_close(out, expected, **CLOSE)
