"""The fused counts are the reference's; a bit may differ only where rounding decides it, and those
are few.
"""

import pytest
import torch

from torchdp.kernels.rounded_features import reference

triton = pytest.importorskip("triton")

from torchdp.kernels.rounded_features import fused  # noqa: E402

# between two float32 cosines of one angle, each within 2e-7
COSINE = 4e-7


def inputs(
    n,
    d,
    features,
    waves,
    device,
    seed,
    dyadic=False,
):
    """(x, frequencies, phases). dyadic: small multiples of powers of two, whose products add up
    without rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    if dyadic:
        x = torch.randint(-8, 9, (n, d), generator=generator) / 8
        frequencies = torch.randint(-8, 9, (d, features), generator=generator) / 64
        phases = torch.randint(0, 256, (waves, features), generator=generator) / 256
    else:
        x = torch.randn(n, d, generator=generator)
        frequencies = torch.randn(d, features, generator=generator) / d**0.5
        phases = torch.rand(waves, features, generator=generator)
    return x.to(device), frequencies.to(device), phases.to(device)


def turns_error(x, frequencies, waves):
    """Between two projections in any order, each with d + 8 roundings of 2^-22, as tf32x3 has."""
    size = x.double().abs() @ frequencies.double().abs()
    roundings = 2 * (x.shape[1] + 8) * 2.0**-22
    return (roundings * size + 2.0**-23).repeat_interleave(waves, 1)


def margins(x, frequencies, phases, key, first, repeat):
    """|u - (1 + cos)/2| of each bit of the reference."""
    user = first + torch.arange(len(x), device=x.device)
    random = reference.integers(
        key,
        user,
        frequencies.shape[1],
        len(phases),
        repeat,
    )
    levels = reference.levels(reference.turns(x, frequencies, phases))
    return (random - levels).abs().double() / 2**32


SIZES = [
    (1, 1, 1, 1),
    (63, 5, 63, 2),
    (130, 40, 131, 1),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", [0, -1, 2**63 - 1])
def test_bits_differ_only_where_rounding_decides(device, size, key):
    x, frequencies, phases = inputs(*size, device, seed=size[0])
    found = fused.rounded_counts(
        x,
        frequencies,
        phases,
        key,
        7,
        2,
    )
    # pi, as |d cos(2 pi t)/dt|/2 is at most
    slack = 3.2 * turns_error(x, frequencies, size[3]) + COSINE / 2
    differ = 0
    for repeat in range(2):
        expected = reference.rounded_bits(x, frequencies, phases, key, 7, repeat).sum(0)
        close = margins(x, frequencies, phases, key, 7, repeat) <= slack
        wrong = (found[repeat] - expected).abs()
        assert (wrong <= close.sum(0)).all()
        differ += int(wrong.sum())
    # about 1e-6 of the bits lie so close
    assert differ <= 1


@pytest.mark.parametrize("size", SIZES)
def test_signs_differ_only_where_the_cosine_vanishes(device, size):
    x, frequencies, phases = inputs(*size, device, seed=size[0])
    expected = reference.positive_bits(x, frequencies, phases).sum(0)
    wrong = (fused.positive_counts(x, frequencies, phases) - expected).abs()
    turns = reference.turns(x, frequencies, phases)
    near = (turns.abs() - 0.25).abs()
    assert (wrong <= (near <= turns_error(x, frequencies, size[3])).sum(0)).all()
    assert wrong.sum() <= 1


def test_counts_from_strided_inputs(device):
    x, frequencies, phases = inputs(
        150,
        6,
        9,
        2,
        device,
        seed=1,
        dyadic=True,
    )
    wide = torch.full((150, 13), torch.nan, device=device)
    wide[:, ::2][:, :6] = x
    strided = wide[:, ::2][:, :6], frequencies.mT.contiguous().mT, phases.mT.contiguous().mT
    assert torch.equal(
        fused.positive_counts(*strided), reference.positive_counts(x, frequencies, phases)
    )
    rounded = fused.rounded_counts(
        x,
        frequencies,
        phases,
        11,
        0,
        1,
    )
    assert torch.equal(fused.rounded_counts(*strided, 11, 0, 1), rounded)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_a_projection_that_overflows_counts_as_no_turn(device):
    """As in the reference, so that a frequency's waves stay those of one angle whatever a user
    holds.
    """
    x = torch.full((40, 2), 3e38, device=device)
    x[:20] *= -1
    # to infinity, and to no number
    frequencies = torch.tensor([[3.0, 3.0], [3.0, -3.0]], device=device)
    phases = torch.tensor([[0.0, 0.5], [0.5, 0.0]], device=device)
    wanted = phases.mT.flatten() == 0
    counts = fused.rounded_counts(x, frequencies, phases, 5, 0, 1)
    assert (counts[0] == 40 * wanted).all()
    assert (reference.rounded_bits(x, frequencies, phases, 5, 0, 0) == wanted).all()
    assert (fused.positive_counts(x, frequencies, phases) == 40 * wanted).all()
