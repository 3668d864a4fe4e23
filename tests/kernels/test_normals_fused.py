"""Fused normals against the reference's, from the same words."""

import pytest
import torch

from torchdp.kernels import normals

triton = pytest.importorskip("triton")
from torchdp.kernels.normals import fused  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "width"), [(1, 1), (63, 5), (1000, 2), (250, 4), (300, 12), (200, 11), (3, 1030)]
)
@pytest.mark.parametrize(("key", "first"), [(0, 0), (-1, 2**40 + 3)])
def test_both_paths_give_the_same_normals(device, dtype, size, width, key, first):
    ours = fused.draws(key, first, size, width, dtype, 3, device)
    index = torch.arange(first, first + size, device=device)
    wanted = normals.normals(key, index, width, dtype, stream=3)
    assert ours.dtype == dtype and ours.shape == (size, width)
    # a logarithm, a root, a polynomial: a few roundings of numbers below 9
    assert float((ours - wanted).abs().max()) < 8 * torch.finfo(dtype).eps
    assert fused.draws(key, first, 0, width, dtype, 3, device).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_written_beyond_and_everything_within(device, dtype):
    out = torch.full((40, 3), torch.nan, dtype=dtype, device=device)
    double = dtype == torch.float64
    fused.draw_kernel[(1,)](out, 5, 0, 0, 37, 3, 1, BLOCK=64, DOUBLE=double, WHOLE=False)
    assert torch.isfinite(out[:37]).all() and out[37:].isnan().all()
