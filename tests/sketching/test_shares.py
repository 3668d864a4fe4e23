"""Masks are uniform over all words, in deployment unpredictable; shares add up, and all but one of them say nothing."""

import os

import pytest
import torch
from scipy.stats import chi2

from torchdp.sketching import generator_masks, masks, reconstruct, share, system_masks

CPU = torch.device("cpu")


def byte_chi_square(words):
    """The largest of the chi-square statistics of the words' byte positions, 255 degrees of freedom each."""
    octets = words.flatten()[:, None].view(torch.uint8)
    expected = len(octets) / 256
    counts = torch.stack([torch.bincount(column.long(), minlength=256) for column in octets.T])
    return float(((counts - expected) ** 2 / expected).sum(1).max())


LIMIT = float(chi2.isf(1e-7, 255))


def sources():
    yield "system", system_masks
    yield "generator", generator_masks(torch.Generator().manual_seed(7))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_guarantee_every_byte_of_the_masks_is_uniform(dtype, monkeypatch):
    for _, source in sources():
        assert byte_chi_square(source((200_000,), dtype, CPU)) < LIMIT
    monkeypatch.setattr(masks, "find_spec", lambda name: None)  # without the package cryptography
    assert byte_chi_square(system_masks((200_000,), dtype, CPU)) < LIMIT
    monkeypatch.setattr(masks, "fuses", lambda device: True)  # what a GPU draws, here on the CPU
    for shape in ((200_000,), (3, 5), (0,), (2, 0, 4)):
        drawn = system_masks(shape, dtype, CPU)
        assert drawn.shape == shape and drawn.dtype == dtype
        assert drawn.numel() < 1000 or byte_chi_square(drawn) < LIMIT
    assert not torch.equal(system_masks((50,), dtype, CPU), system_masks((50,), dtype, CPU))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_masks_are_drawn_on_the_gpu_where_they_are_wanted(dtype):
    drawn = system_masks((200_000,), dtype, torch.device("cuda"))
    assert drawn.is_cuda and byte_chi_square(drawn.cpu()) < LIMIT


def test_the_byte_test_sees_63_bits():
    words = torch.empty(200_000, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(7))
    assert (words >= 0).all() and byte_chi_square(words) > 100 * LIMIT


def test_shapes_and_odd_sizes():
    for shape in ((0,), (1,), (3, 5), (2**15 + 1,), (2, 0, 4)):
        for _, source in sources():
            words = source(shape, torch.int32, CPU)
            assert words.shape == shape and words.dtype == torch.int32


def test_generators_repeat_and_the_system_does_not():
    draw = [generator_masks(torch.Generator().manual_seed(3))((50,), torch.int64, CPU) for _ in range(2)]
    assert torch.equal(*draw)
    assert not torch.equal(system_masks((50,), torch.int64, CPU), system_masks((50,), torch.int64, CPU))


def test_no_part_of_a_long_draw_repeats():
    words = system_masks((3 * 2**15 + 7,), torch.int64, CPU)
    assert len(words.unique()) == len(words)


def test_aes_in_counter_mode_with_the_published_answer(monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.setattr(os, "urandom", bytes)  # the zero key
    words = system_masks((2**16,), torch.int64, CPU)
    assert (
        words.numpy().tobytes()[:16].hex() == "dc95c078a2408989ad48a21492842087"
    )  # NIST AESAVS, zero key and text
    assert len(words.unique()) == len(words)  # one counter throughout


def test_bad_mask_arguments_are_refused():
    for source in (system_masks, generator_masks(torch.Generator())):
        with pytest.raises(ValueError, match="dtype must be"):
            source((3,), torch.int16, CPU)
    with pytest.raises(TypeError, match="generator must be"):
        generator_masks(0)


DTYPES = [torch.int32, torch.int64]


def words(dtype, *shape):
    info = torch.iinfo(dtype)
    drawn = torch.empty(shape, dtype=dtype).random_(info.min, None, generator=torch.Generator().manual_seed(1))
    drawn.view(-1)[:3] = torch.tensor([info.min, info.max, 0], dtype=dtype)
    return drawn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("servers", [2, 3, 7])
def test_shares_add_up_at_the_ends_of_the_ring_too(dtype, servers):
    secret = words(dtype, 4, 25)
    shares = share(secret, servers, masks=system_masks)
    assert shares.shape == (servers, 4, 25) and shares.dtype == dtype
    assert torch.equal(reconstruct(shares), secret)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("servers", [2, 3, 4])
def test_guarantee_any_all_but_one_shares_are_a_bijection_of_the_masks_for_every_message(dtype, servers):
    wanted = words(dtype, servers - 1, 500)  # what the coalition is to see
    info = torch.iinfo(dtype)
    for left_out in range(servers):
        seen = [k for k in range(servers) if k != left_out]
        for secret in (
            torch.zeros(500, dtype=dtype),
            words(dtype, 500),
            torch.full((500,), info.min, dtype=dtype),
        ):
            all_shares = torch.empty(servers, 500, dtype=dtype)
            all_shares[seen] = wanted
            all_shares[left_out] = secret - wanted.sum(0, dtype=dtype)  # the only value that fits
            shares = share(secret, servers, masks=lambda shape, dtype, device, m=all_shares: m[:-1])
            assert torch.equal(shares, all_shares)  # these masks, and so no others, show the coalition ``wanted``


@pytest.mark.parametrize("dtype", DTYPES)
def test_guarantee_every_share_alone_is_uniform_whatever_the_message(dtype):
    constant = torch.full((100_000,), 5, dtype=dtype)
    for source in (system_masks, generator_masks(torch.Generator().manual_seed(11))):
        for one in share(constant, 3, masks=source):
            assert byte_chi_square(one) < LIMIT


def test_a_share_of_half_the_range_would_be_seen():
    def positive(shape, dtype, device):
        return torch.empty(shape, dtype=dtype).random_(generator=torch.Generator().manual_seed(0))

    shares = share(torch.zeros(100_000, dtype=torch.int64), 2, masks=positive)
    assert min(byte_chi_square(one) for one in shares) > LIMIT


def test_bad_share_arguments_are_refused():
    secret = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="servers must be"):
        share(secret, 1, masks=system_masks)
    with pytest.raises(TypeError, match=r"Ring\.encode"):
        share(secret.double(), 2, masks=system_masks)
    with pytest.raises(TypeError, match="shares must be"):
        reconstruct(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="2 servers"):
        reconstruct(secret[None])
    for wrong in (None, torch.Generator()):
        with pytest.raises(TypeError, match="masks must draw words, as system_masks does"):
            share(secret, 2, masks=wrong)
