"""One step of correlated noise: its normals against their words, what it writes, parts of a whole;
both forms agree.
"""

import math

import mpmath
import pytest
import torch
from laws import generator
from scipy.stats import kstest
from torch.testing import assert_close

from torchdp.kernels import chacha
from torchdp.kernels.correlated_noise import Step, reference

KEY = chacha.key_of(bytes(range(32)))


def word(index, step, stream):
    """Of 64 bits, from its own block."""
    block, place = divmod(index, 8)
    words = chacha.block(KEY, torch.tensor(block), step, stream)
    return int.from_bytes(words.numpy().tobytes()[8 * place :][:8], "little")


def step(
    state,
    first=0,
    size=None,
    slots=(-1, -1),
    *,
    at=3,
    dtype=torch.float64,
    device="cpu",
    form=reference.add,
    draws=1,
):
    """(private sums, state) of one step over a state that is copied; w and u have rings of two
    rows, where any.
    """
    size = state.shape[1] if size is None else size
    running = len(state) - sum(2 for slot in slots if slot >= 0)
    gains = torch.linspace(
        -0.5,
        0.3,
        len(state),
        dtype=dtype,
        device=device,
    )
    total = torch.arange(size, dtype=dtype, device=device)
    numbers = torch.tensor([0.8, 1.7, -0.6, 0.3][: draws + 1], dtype=torch.float64, device=device)
    lags = torch.tensor([0, 2, 5][:draws], dtype=torch.int32, device=device)
    kept = state.to(device=device, dtype=dtype, copy=True)
    out = torch.empty_like(total)
    now = Step(
        gains,
        gains[:running] / 3,
        numbers,
        lags,
        slots,
    )
    form(
        (out, kept),
        total,
        now,
        KEY.to(device),
        at,
        first,
    )
    return out, kept


def test_normals_are_those_of_their_words():
    found = reference.normals(KEY, 7, 5, 40).tolist()
    for place, number in enumerate(found, 5):
        chance = (mpmath.mpf(word(place // 2, 7, 0) % 2**63) + 0.5) / 2**63
        radius = mpmath.sqrt(-2 * mpmath.log(chance))
        angle = 2 * mpmath.pi * mpmath.mpf(word(place // 2, 7, 1)) / 2**64
        turned = mpmath.sin(angle) if place % 2 else mpmath.cos(angle)
        # float64 against 60 digits, or nearly
        assert abs(number - radius * turned) < 1e-14
    many = reference.normals(KEY, 8, 0, 40_000)
    assert kstest(many.numpy(), "norm").pvalue > 1e-4
    # 20,000 products of independent normals: 4.5 deviations
    assert abs(many[::2] @ many[1::2]) < 4.5 * math.sqrt(20_000)


def words(monkeypatch, given):
    """The streams RADIUS, ANGLE and FURTHER hold these words alone."""
    monkeypatch.setattr(
        reference,
        "integers",
        lambda key, first, count, dtype, *nonce: torch.full((count,), given[nonce[1]]),
    )


def test_guarantee_the_tail_has_126_bits(monkeypatch):
    words(monkeypatch, (0, 0, 0))
    longest = math.sqrt(-2 * (math.log(0.5) - 126 * math.log(2)))
    assert reference.normals(KEY, 0, 0, 4).tolist() == pytest.approx(
        [longest, 0, longest, 0], abs=1e-12
    )
    words(monkeypatch, (2**63 - 1, 2**62, 0))
    assert reference.normals(KEY, 0, 0, 2).abs().max() == 0
    words(monkeypatch, (reference.COARSE - 1, 0, 2**63 - 1))
    below = reference.normals(KEY, 0, 0, 1)
    words(monkeypatch, (reference.COARSE, 0, 0))
    assert torch.allclose(below, reference.normals(KEY, 0, 0, 1), rtol=1e-11)
    assert below > 0


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize(
    "slots",
    [
        (-1, -1),
        (3, -1),
        (-1, 2),
        (3, 4),
    ],
)
def test_what_is_written(slots, draws):
    state = torch.arange(24).view(6, 4).double()
    out, kept = step(state, slots=slots, draws=draws)
    gains = torch.linspace(-0.5, 0.3, 6, dtype=torch.float64)
    u = 1.7 * reference.normals(KEY, 3, 0, 4)
    if draws > 1:
        u -= 0.6 * reference.normals(KEY, 1, 0, 4)
    w = (u + (gains[:, None] * state).sum(0)) / 0.8
    expected = state.clone()
    running = 6 - sum(2 for slot in slots if slot >= 0)
    expected[:running] += (gains[:running, None] / 3) * state[:running] + u
    for slot, row in zip(slots, (w, u), strict=True):
        if slot >= 0:
            expected[slot] = row
    assert torch.allclose(out, torch.arange(4) + w)
    assert torch.allclose(kept, expected)
    assert not torch.equal(step(state, at=4)[0], out)
    assert torch.equal(step(state, slots=slots, draws=draws)[0], out)


@pytest.mark.parametrize("cut", [1, 16, 23])
def test_parts_hold_the_numbers_of_the_whole(cut):
    drawn = torch.randn(2, 40, generator=generator(1))
    past = drawn.double()
    whole = step(past, 9)[1]
    last = step(past[:, cut:], 9 + cut)[1]
    parts = step(past[:, :cut], 9)[1], last
    # sums in another order
    assert torch.allclose(torch.cat(parts, 1), whole, rtol=1e-13)


# memory, size, first, slots, dtype
CASES = [
    (0, 1, 0, (-1, -1), torch.float32),
    (0, 700, 2**33 + 3, (-1, -1), torch.float64),
    (4, 1100, 5, (-1, -1), torch.float32),
    (3, 37, 1, (2, -1), torch.float32),
    (3, 1024, 16, (-1, 1), torch.float64),
    (7, 1100, 9, (4, 6), torch.float64),
    (2, 0, 0, (-1, -1), torch.float32),
]


@pytest.mark.parametrize(("memory", "size", "first", "slots", "dtype"), CASES)
@pytest.mark.parametrize("draws", [1, 3])
def test_both_forms_agree(
    device,
    memory,
    size,
    first,
    slots,
    dtype,
    draws,
):
    fused = pytest.importorskip("torchdp.kernels.correlated_noise.fused")
    # a part of a wider state: not contiguous
    wide = torch.randn(memory, 2 * size, generator=generator(size))
    state = wide[:, size:].double()
    given = {"at": 9, "dtype": dtype, "draws": draws}
    wanted = step(state, first, size, slots, **given)
    found = step(
        state,
        first,
        size,
        slots,
        device=device,
        form=fused.add,
        **given,
    )
    close = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close(ours.cpu(), theirs, **close)


def test_both_forms_take_further_bits(device, monkeypatch):
    """Integers of 8 bits, all of them small."""
    fused = pytest.importorskip("torchdp.kernels.correlated_noise.fused")
    if device.type == "cuda":
        pytest.skip("a compiled kernel keeps its constants")
    past = torch.zeros(1, 50).double()
    usual = step(past)[0]
    for name, value in (("COARSE", 2**62), ("MOST", 255)):
        monkeypatch.setattr(reference, name, value)
    for name, value in (("SMALL", 2**62), ("MASK", 255)):
        monkeypatch.setattr(fused, name, fused.tl.constexpr(value))
    wanted = step(past)[0]
    found = step(past, device=device, form=fused.add)[0]
    assert_close(found.cpu(), wanted, rtol=1e-11, atol=1e-11)
    monkeypatch.setattr(reference, "COARSE", 0)
    assert not torch.allclose(step(past)[0], wanted, rtol=1e-6)
    assert not torch.allclose(usual, wanted)
