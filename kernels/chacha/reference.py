"""The specification of ChaCha20's keystream in plain torch: 32-bit words, held in int32."""

import torch
from torch import Tensor

# "expand 32-byte k"
CONSTANTS = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574
DOUBLE_ROUNDS = 10
# stay in the cache
BLOCKS_AT_ONCE = 2**14


def block(key: Tensor, index: Tensor, group: int = 0, stream: int = 0) -> Tensor:
    """The 16 words of each block: index (...,) int64 -> (..., 16) int32, on the device of index.

    The state is 4 constants, the key's 8 words, index mod 2^32, index / 2^32, group, stream:
    Bernstein's layout, a counter of 64 bits and a nonce of 64. RFC 8439 has the first word of its
    nonce where the counter's upper half is here. key: (8,) int32. group, stream: in [0, 2^32).

    Source: Bernstein (2008), ChaCha, a variant of Salsa20; Nir, Langley (2018), RFC 8439, section
    2.3.
    """
    start = torch.empty(4, 4, *index.shape, dtype=torch.int32, device=index.device)
    constants = torch.tensor(CONSTANTS, dtype=torch.int64)
    nonce = torch.tensor([group, stream], dtype=torch.int64)
    words = [*constants, *key, index, index >> 32, *nonce]
    for place, word in zip(start.flatten(0, 1), words, strict=True):
        place.copy_(word)  # modulo 2^32
    a, b, c, d = start.clone()
    for _ in range(DOUBLE_ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)  # down the columns
        # along the diagonals
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b = b.roll(1, 0)
        c = c.roll(2, 0)
        d = d.roll(3, 0)
    return torch.stack([a, b, c, d]).add_(start).flatten(0, 1).movedim(0, -1)


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> Tensor:
    """Blocks first, ..., first + blocks - 1: (16 blocks,) int32, on the key's device."""
    out = torch.empty(blocks, 16, dtype=torch.int32, device=key.device)
    for start in range(0, blocks, BLOCKS_AT_ONCE):
        part = out[start : start + BLOCKS_AT_ONCE]
        index = first + start + torch.arange(len(part), device=key.device)
        part.copy_(block(key, index, group, stream))
    return out.view(-1)


def _quarter_rounds(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side: (4, ...) each."""
    for first, second in ((16, 12), (8, 7)):
        d = _rotated(d ^ a.add_(b), first)
        b = _rotated(b ^ c.add_(d), second)
    return a, b, c, d


def _rotated(words: Tensor, bits: int) -> Tensor:
    """To the left: what falls out, and 2^bits times the words."""
    carried = (words >> (32 - bits)).bitwise_and_((1 << bits) - 1)  # >> repeats the sign
    return carried.add_(words, alpha=1 << bits)
