"""ChaCha20 against the published vectors, and the package cryptography's words against the
reference's.
"""

import os

import pytest
import torch

from torchdp.kernels import chacha
from torchdp.kernels.chacha import reference

COUNTING = bytes(range(32))
# RFC 8439: key, counter, nonce (12 bytes), first bytes of the block
KNOWN = {
    "2.3.2": (COUNTING, 1, "000000090000004a00000000", (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e")),
    "A.1 1": (bytes(32), 0, "00" * 12, (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586")),
    "A.1 2": (bytes(32), 1, "00" * 12, (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f")),
    "A.1 3": (bytes(31) + b"\x01", 1, "00" * 12, (
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0")),
    "A.1 4": (b"\x00\xff" + bytes(30), 2, "00" * 12, (
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096")),
    "A.1 5": (bytes(32), 0, "00" * 11 + "02", (
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d")),
}  # fmt: skip


def as_key(octets):
    return torch.frombuffer(bytearray(octets), dtype=torch.int32)


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers_of_rfc_8439(name):
    octets, counter, nonce, expected = KNOWN[name]
    # three little-endian words of 32 bits
    words = [bytes.fromhex(nonce)[k : k + 4] for k in (0, 4, 8)]
    first, group, stream = [int.from_bytes(word, "little") for word in words]
    key = as_key(octets)
    index = torch.tensor([0, counter | first << 32])
    words = chacha.block(key, index, group, stream)
    assert words.shape == (2, 16)
    assert words[1].numpy().tobytes() == bytes.fromhex(expected)
    stream_words = chacha.keystream(key, int(index[1]), 1, group, stream)
    assert stream_words.numpy().tobytes() == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("first", "blocks"),
    [
        (0, 1),
        (7, 63),
        (2**32 - 3, 5),
        (2**62, 3),
        (5, 0),
        (1, 4099),
    ],
)
@pytest.mark.parametrize(
    "nonce",
    [
        (0, 0),
        (1, 2**32 - 1),
        (2**31, 9),
    ],
)
def test_every_path_on_a_cpu_gives_the_same_words(first, blocks, nonce):
    pytest.importorskip("cryptography")
    from torchdp.kernels.chacha import library

    key = as_key(COUNTING)
    expected = reference.keystream(key, first, blocks, *nonce)
    assert expected.shape == (16 * blocks,)
    assert torch.equal(library.keystream(key, first, blocks, *nonce), expected)


def test_another_index_group_stream_or_bit_of_the_key_is_another_block():
    key = as_key(COUNTING)
    index = torch.arange(50)
    blocks = [chacha.block(key, index + 2**32 * high, group, stream) for high, group, stream in
              ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]  # fmt: skip
    for bit in range(256):
        other = key.clone()
        other[bit // 32] ^= -(2**31) if bit % 32 == 31 else 1 << bit % 32
        blocks.append(chacha.block(other, index[:1]))
    words = torch.cat([words.reshape(-1, 2) for words in blocks])
    # 64 bits each: none meets another by chance
    assert len(words.unique(dim=0)) == len(words)


def test_keys_of_the_system_do_not_repeat():
    drawn = torch.stack([chacha.system_key() for _ in range(200)])
    assert len(drawn.unique(dim=0)) == 200
    for bit in range(32):
        # six standard deviations
        assert (((drawn >> bit) & 1).sum(0) - 100).abs().max() < 43


def test_the_systems_key_is_the_systems_bytes(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: COUNTING[:size])
    assert chacha.system_key().numpy().tobytes() == COUNTING
