"""Messages as bytes and back."""

import pytest
import torch
from laws import generator, normal

from torchdp import wire


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 31, 32, 33, 63])
def test_whole_numbers_travel(bits):
    random = torch.randint(
        0,
        2**bits - 1,
        (50,),
        generator=generator(bits),
    )
    values = torch.cat([torch.tensor([0, 2**bits - 1]), random])
    data = wire.pack(values, bits)
    assert len(data) == 52 * -(-bits // 8)
    assert wire.unpack(data, bits).tolist() == values.tolist()
    assert wire.pack(values[1:2], bits) == (2**bits - 1).to_bytes(-(-bits // 8), "little")


@pytest.mark.parametrize("bits", [65, 127, 128, 130])
def test_rows_of_words_travel(bits):
    places = -(-bits // 64)
    words = torch.tensor([[-1, 5, 0], [7, -1, 1], [-(2**63), 0, 3]])[:, :places]
    words[:, -1] &= (1 << bits % 64) - 1 if bits % 64 else -1
    data = wire.pack(words, bits)
    assert len(data) == 3 * -(-bits // 8)
    assert torch.equal(wire.unpack(data, bits, words.shape[1]), words)
    assert bits % 8 == 0 or data[-1] >> bits % 8 == 0
    assert wire.unpack(wire.pack(words[:0], bits), bits, 3).shape == (0, 3)


def test_vectors_travel_bit_by_bit():
    values = normal(5, 3)
    assert torch.equal(wire.unpack_vectors(wire.pack_vectors(values, 3), 3), values)
    assert wire.unpack_vectors(b"", 3).shape == (0, 3)
    assert wire.unpack(b"", 9).shape == (0,)
