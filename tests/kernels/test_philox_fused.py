"""Philox in Triton gives the reference's words, bit for bit."""

import pytest
import torch

from torchdp.kernels import philox

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from torchdp.kernels.philox import fused  # noqa: E402


@triton.jit
def kernel(out, reals, long, key, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = fused.words(key, index.to(tl.int64) * 4294967297, index % 7, 5)
    inside = index < n
    tl.store(out + index * 4, a.to(tl.int64), mask=inside)
    tl.store(out + index * 4 + 1, b.to(tl.int64), mask=inside)
    tl.store(out + index * 4 + 2, c.to(tl.int64), mask=inside)
    tl.store(out + index * 4 + 3, d.to(tl.int64), mask=inside)
    tl.store(reals + index, fused.unit(a, b), mask=inside)
    tl.store(long + index, fused.word64(c, d), mask=inside)


@pytest.mark.parametrize("size", [1, 63, 1000])
@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_both_paths_give_the_same_words_and_numbers(device, key, size):
    out = torch.full((size, 4), -1, dtype=torch.int64, device=device)
    reals = torch.full((size,), torch.nan, dtype=torch.float64, device=device)
    long = torch.zeros(size, dtype=torch.int64, device=device)
    kernel[(triton.cdiv(size, 64),)](out, reals, long, key, size, BLOCK=64)
    index = torch.arange(size, device=device)
    words = philox.words(key, index * (2**32 + 1), index % 7, 5)
    assert torch.equal(out, torch.stack(words, -1))
    assert torch.equal(reals, philox.unit(words[0], words[1]))
    assert torch.equal(long, words[2] << 32 | words[3])
