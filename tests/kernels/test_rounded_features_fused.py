"""The fused counts are the reference's; a bit may differ only where rounding decides it, and those are few."""

import pytest
import torch

from torchdp.kernels.rounded_features import reference

triton = pytest.importorskip("triton")

from torchdp.kernels.rounded_features import fused  # noqa: E402

COSINE = 4e-7  # between two float32 cosines of one angle, each within 2e-7


def inputs(n, d, features, waves, device, seed, dyadic=False):
    """(x, frequencies, phases). dyadic: small multiples of powers of two, whose products add up without rounding."""
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


def own_bits(x, frequencies, phases, key=None, first=0, repeats=1):
    """Every user a class of their own: (repeats, n, I waves) bool, or (n, I waves) without a key."""
    labels = torch.arange(len(x), device=x.device)
    if key is None:
        return fused.positive_counts(x, frequencies, phases, labels, len(x)).bool()
    return fused.rounded_counts(x, frequencies, phases, labels, len(x), key, first, repeats).bool()


def turns_error(x, frequencies, waves):
    """Between two projections in any order, each with d + 8 roundings of 2^-22, as tf32x3 has."""
    size = x.double().abs() @ frequencies.double().abs()
    return (2 * (x.shape[1] + 8) * 2.0**-22 * size + 2.0**-23).repeat_interleave(waves, 1)


def margins(x, frequencies, phases, key, first, repeat):
    """|u - (1 + cos)/2| of each bit of the reference."""
    user = first + torch.arange(len(x), device=x.device)
    random = reference.integers(key, user, frequencies.shape[1], len(phases), repeat)
    return (random - reference.levels(reference.turns(x, frequencies, phases))).abs().double() / 2**32


SIZES = [(1, 1, 1, 1), (63, 5, 63, 2), (130, 40, 131, 1)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", [0, -1, 2**63 - 1])
def test_bits_differ_only_where_rounding_decides(device, size, key):
    x, frequencies, phases = inputs(*size, device, seed=size[0])
    found = own_bits(x, frequencies, phases, key, first=7, repeats=2)
    slack = 3.2 * turns_error(x, frequencies, size[3]) + COSINE / 2  # pi, as |d cos(2 pi t)/dt|/2 is at most
    differ = 0
    for repeat in range(2):
        expected = reference.rounded_bits(x, frequencies, phases, key, 7, repeat)
        wrong = found[repeat] != expected
        margin = margins(x, frequencies, phases, key, 7, repeat)
        assert (margin[wrong] <= slack[wrong]).all()
        differ += int(wrong.sum())
    assert differ <= 1  # about 1e-6 of the bits lie so close


@pytest.mark.parametrize("size", SIZES)
def test_signs_differ_only_where_the_cosine_vanishes(device, size):
    x, frequencies, phases = inputs(*size, device, seed=size[0])
    wrong = own_bits(x, frequencies, phases) != reference.positive_bits(x, frequencies, phases)
    near = (reference.turns(x, frequencies, phases).abs() - 0.25).abs()
    assert (near[wrong] <= turns_error(x, frequencies, size[3])[wrong]).all()
    assert wrong.sum() <= 1


@pytest.mark.parametrize("classes", [1, 16, 17, 40])
def test_counts_of_classes_from_strided_inputs(device, classes):
    x, frequencies, phases = inputs(150, 6, 9, 2, device, seed=classes, dyadic=True)
    labels = torch.arange(150, device=device) * 7 % classes
    wide = torch.full((150, 13), torch.nan, device=device)
    wide[:, ::2][:, :6] = x
    strided = wide[:, ::2][:, :6], frequencies.mT.contiguous().mT, phases.mT.contiguous().mT
    both = torch.stack([labels, labels - 99], 1)[:, 0]
    expected = reference.positive_counts(x, frequencies, phases, labels, classes)
    assert torch.equal(fused.positive_counts(*strided, both, classes), expected)
    bits = own_bits(x, frequencies, phases, 11).long()[0]
    rounded = torch.zeros_like(expected).index_add_(0, labels, bits)
    assert torch.equal(fused.rounded_counts(*strided, both, classes, 11, 0, 1)[0], rounded)
    single = torch.zeros((), dtype=torch.int64, device=device).expand(150)
    assert torch.equal(fused.positive_counts(*strided, single, 1)[0], expected.sum(0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_a_projection_that_overflows_counts_as_no_turn(device):
    """As in the reference, so that a frequency's waves stay those of one angle whatever a user holds."""
    x = torch.full((40, 2), 3e38, device=device)
    x[:20] *= -1
    frequencies = torch.tensor([[3.0, 3.0], [3.0, -3.0]], device=device)  # to infinity, and to no number
    phases = torch.tensor([[0.0, 0.5], [0.5, 0.0]], device=device)
    wanted = phases.mT.flatten() == 0
    assert (own_bits(x, frequencies, phases, 5)[0] == wanted).all()
    assert (reference.rounded_bits(x, frequencies, phases, 5, 0, 0) == wanted).all()
    assert (own_bits(x, frequencies, phases) == wanted).all()
