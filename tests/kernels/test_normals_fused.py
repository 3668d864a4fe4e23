"""Fused normals against the reference's, from the same words."""

import pytest
import torch

from torchdp.kernels import normals

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from torchdp.kernels.normals import fused  # noqa: E402

SIZE = 64


@triton.jit(do_not_specialize=["key", "first"])
def four_kernel(out, key, first, stream, SIZE: tl.constexpr, GROUPS: tl.constexpr, DOUBLE: tl.constexpr):
    index = first.to(tl.int64) + tl.arange(0, SIZE)
    for group in tl.static_range(GROUPS):
        a, b, c, d = fused.four(key, index, tl.full([SIZE], group, tl.int32), stream, DOUBLE)
        place = out + tl.arange(0, SIZE) * (4 * GROUPS) + 4 * group
        tl.store(place, a)
        tl.store(place + 1, b)
        tl.store(place + 2, c)
        tl.store(place + 3, d)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("key", "first"), [(0, 0), (-1, 2**40 + 3), (2**62 + 5, 7)])
def test_both_paths_give_the_same_normals(device, dtype, key, first):
    ours = torch.full((SIZE, 12), torch.nan, dtype=dtype, device=device)
    four_kernel[(1,)](ours, key, first, 3, SIZE=SIZE, GROUPS=3, DOUBLE=dtype == torch.float64)
    index = torch.arange(first, first + SIZE, device=device)
    wanted = normals.normals(key, index, 12, dtype, stream=3)
    # a logarithm, a root, a polynomial: a few roundings of numbers below 9
    assert float((ours - wanted).abs().max()) < 8 * torch.finfo(dtype).eps
