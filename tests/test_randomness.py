"""Generators: the whole state is used, and nothing is shared with the global one."""

import pytest
import torch

from torchdp import randomness


def draw(generator):
    return torch.randint(2**62, (4,), generator=generator).tolist()


def test_manual_seed_keeps_32_bits_and_keyed_generators_do_not():
    short = [draw(torch.Generator().manual_seed(seed)) for seed in (1, 1 + 2**32)]
    assert short[0] == short[1]  # why this module exists
    keys = [b"", b"\x00", b"\x00\x00", (1).to_bytes(8, "big"), (1 + 2**32).to_bytes(8, "big")]
    assert len({tuple(draw(randomness.keyed_generator(key))) for key in keys}) == len(keys)


def test_every_state_word_comes_from_the_key():
    import hashlib

    state = randomness.keyed_generator(b"key").get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64)
    material = hashlib.shake_256(b"key").digest(4 * 624)
    assert words.tolist() == [int.from_bytes(material[4 * i : 4 * i + 4], "little") for i in range(624)]


def test_keyed_generators_repeat():
    assert draw(randomness.keyed_generator(b"a")) == draw(randomness.keyed_generator(b"a"))


def test_global_generator_is_untouched():
    before = torch.random.get_rng_state()
    draw(randomness.keyed_generator(b"a"))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_draws_are_uniform():
    values = torch.rand(200_000, dtype=torch.float64, generator=randomness.keyed_generator(b"uniform"))
    counts = torch.histc(values, 100, 0, 1)
    assert float(((counts - 2000).square() / 2000).sum()) < 99 + 6 * 198**0.5


@pytest.mark.gpu
def test_keyed_generators_on_a_gpu_take_64_bits():
    first, second = (randomness.keyed_generator(key, "cuda") for key in (b"a", b"b"))
    assert first.initial_seed() != second.initial_seed()
