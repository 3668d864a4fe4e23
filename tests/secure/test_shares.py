"""Masks are uniform over all words; shares add up, and all but one of them say nothing."""

import pytest
import torch
from laws import byte_chi_square, generator
from scipy.stats import chi2

from torchdp.noise import Noise, SeededNoise
from torchdp.secure import reconstruct, share
from torchdp.secure.ring import masks


class Given(Noise):
    """Masks that somebody chose."""

    def __init__(self, words):
        super().__init__()
        self.given = words

    def fill(self, words):
        given = self.given.flatten()
        # two in one
        if given.dtype == torch.int32:
            odd = given.new_zeros(len(given) % 2)
            given = torch.cat([given, odd]).view(torch.int64)
        words.copy_(given)


LIMIT = float(chi2.isf(1e-7, 255))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_guarantee_every_byte_of_the_masks_is_uniform(dtype):
    for noise in (Noise(), SeededNoise(7)):
        assert byte_chi_square(masks((200_000,), dtype, noise)) < LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_masks_are_drawn_on_the_gpu_where_they_are_wanted(dtype):
    drawn = masks((200_000,), dtype, Noise("cuda"))
    assert drawn.is_cuda
    assert byte_chi_square(drawn.cpu()) < LIMIT


def test_the_byte_test_sees_63_bits():
    words = torch.empty(200_000, dtype=torch.int64)
    words.random_(generator=generator(7))
    assert (words >= 0).all()
    assert byte_chi_square(words) > 100 * LIMIT


def test_shapes_and_odd_sizes():
    for shape in ((0,), (1,), (3, 5), (2**15 + 1,), (2, 0, 4)):
        for dtype in (torch.int32, torch.int64):
            words = masks(shape, dtype, SeededNoise(1))
            assert words.shape == shape
            assert words.dtype == dtype


DTYPES = [torch.int32, torch.int64]


def words(dtype, *shape):
    info = torch.iinfo(dtype)
    drawn = torch.empty(shape, dtype=dtype)
    drawn.random_(info.min, None, generator=generator(1))
    drawn.view(-1)[:3] = torch.tensor([info.min, info.max, 0], dtype=dtype)
    return drawn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("servers", [2, 3, 7])
def test_shares_add_up_at_the_ends_of_the_ring_too(dtype, servers):
    secret = words(dtype, 4, 25)
    shares = share(secret, servers)
    assert shares.shape == (servers, 4, 25)
    assert shares.dtype == dtype
    assert torch.equal(reconstruct(shares), secret)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("servers", [2, 3, 4])
def test_guarantee_any_all_but_one_shares_are_a_bijection_of_the_masks_for_every_message(
    dtype, servers
):
    # what the coalition is to see
    wanted = words(dtype, servers - 1, 500)
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
            # the only value that fits
            all_shares[left_out] = secret - wanted.sum(0, dtype=dtype)
            shares = share(secret, servers, noise=Given(all_shares[:-1]))
            # these masks, and so no others, show the coalition ``wanted``
            assert torch.equal(shares, all_shares)


@pytest.mark.parametrize("dtype", DTYPES)
def test_guarantee_every_share_alone_is_uniform_whatever_the_message(dtype):
    constant = torch.full((100_000,), 5, dtype=dtype)
    for noise in (None, SeededNoise(11)):
        for one in share(constant, 3, noise=noise):
            assert byte_chi_square(one) < LIMIT
