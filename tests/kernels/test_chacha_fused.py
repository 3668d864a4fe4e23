"""ChaCha20 in Triton gives the reference's words, bit for bit."""

import pytest
import torch

from torchdp.kernels.chacha import reference
from torchdp.noise import SeededNoise

triton = pytest.importorskip("triton")

from torchdp.kernels.chacha import fused  # noqa: E402


@pytest.mark.parametrize(
    ("first", "blocks"),
    [
        (0, 1),
        (2**32 - 20, 63),
        (2**62, 130),
        (3, 0),
        (5, 2 * fused.BLOCKS + 3),
    ],
)
@pytest.mark.parametrize("nonce", [(0, 0), (2**32 - 1, 7)])
def test_both_paths_give_the_same_words(device, first, blocks, nonce):
    noise = SeededNoise(first % 7)
    key = noise.words((4,)).view(torch.int32).to(device)
    expected = reference.keystream(key, first, blocks, *nonce)
    assert torch.equal(fused.keystream(key, first, blocks, *nonce), expected)
