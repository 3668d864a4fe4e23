"""Philox against the published vectors, and its conversions at their ends."""

import pytest
import torch

from torchdp.kernels import philox

# Random123's known answers: counter, key, output, each from the first word on
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    index = torch.tensor(counter[0]) | torch.tensor(counter[1]) << 32
    words = philox.words(
        key[1] << 32 | key[0],
        index,
        counter[2],
        counter[3],
    )
    assert tuple(int(word) for word in words) == expected


def test_unit_keeps_inside_the_interval_and_is_symmetric():
    top = torch.tensor(2**32 - 1)
    low = philox.unit(torch.tensor(0), torch.tensor(0))
    high = philox.unit(top, top)
    assert float(low) == 2.0**-53
    assert float(high) == 1 - 2.0**-53
