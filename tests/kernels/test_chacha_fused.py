"""ChaCha20 in Triton gives the reference's words, bit for bit."""

import pytest
import torch

from torchdp.kernels.chacha import generator_key, reference

triton = pytest.importorskip("triton")

from torchdp.kernels.chacha import fused  # noqa: E402


@pytest.mark.parametrize(("first", "blocks"), [(0, 1), (2**32 - 20, 63), (2**62, 300), (3, 0)])
@pytest.mark.parametrize("nonce", [(0, 0), (2**32 - 1, 7)])
def test_both_paths_give_the_same_words(device, first, blocks, nonce):
    key = generator_key(torch.Generator().manual_seed(first % 7)).to(device)
    expected = reference.keystream(key, first, blocks, *nonce)
    assert torch.equal(fused.keystream(key, first, blocks, *nonce), expected)
