"""Randomized response counted in Triton gives the reference's integers."""

import pytest
import torch

from torchdp.kernels.response_counts import reference

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from torchdp.kernels.response_counts import fused  # noqa: E402


@triton.jit(do_not_specialize=["k", "step", "magic"])
def report_kernel(
    numbers,
    x,
    out,
    n,
    k,
    step,
    magic,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(numbers + place, mask=place < n, other=0).to(tl.uint64, bitcast=True)
    held = tl.load(x + place, mask=place < n, other=0)
    tl.store(
        out + place,
        fused.report(number, held, k, step, magic),
        mask=place < n,
    )


def reported(numbers, x, k, step, magic=None):
    magic = (2**64 - 1) // step if magic is None else magic
    out = torch.full_like(numbers, -7)
    magic -= (magic >> 63) << 64
    report_kernel[(triton.cdiv(len(numbers), 64),)](
        numbers, x, out, len(numbers), k, step, magic, BLOCK=64
    )
    return out


STEPS = [
    (2, 2**62),
    (2, 2**62 + 4096),
    (3, 2**62),
    (7, 1),
    (7, 2),
    (7, 3),
    (1000, 2**53 - 1),
    (1000, 2**53 + 1),
]
STEPS += [
    (2**20, 2**43),
    (2**20, 2**42 + 12345),
    (5, 2**63 // 5 + 1),
    (2**31, 2**31 + 7),
]


@pytest.mark.parametrize(("k", "step"), STEPS)
def test_division_without_a_divide_is_exact_at_every_edge(device, k, step):
    """The remainder's jumps at multiples of step, where a quotient that is one too small or too
    large would show.
    """
    multiples = {
        0,
        1,
        2,
        k // 3,
        k // 2,
        k - 2,
        k - 1,
        k,
        k + 1,
        2**63 // step - 1,
        2**63 // step,
    }
    numbers = {m * step + shift for m in multiples for shift in (-2, -1, 0, 1, step // 2)} | {
        2**63 - 1
    }
    numbers = torch.tensor(sorted(u for u in numbers if 0 <= u < 2**63), device=device)
    for x in (0, k - 1):
        held = torch.full_like(numbers, x)
        assert torch.equal(
            reported(numbers, held, k, step), reference.report(numbers, held, k, step)
        )


@pytest.mark.parametrize("n", [1, 63, 1100])
@pytest.mark.parametrize("first", [0, 2**33 + 5])
@pytest.mark.parametrize(
    ("k", "step"),
    [
        (2, 2**61),
        (16, 2**58 + 3),
        (255, 2**54),
        (1025, 2**52 + 1),
    ],
)
def test_both_paths_count_the_same_reports(device, k, step, first, n):
    x = (torch.arange(n) ** 2 % k).to(device)
    for key in (-(2**63), 12345678901234567):
        wanted = reference.counts(x, k, step, key, first)
        assert torch.equal(fused.counts(x, k, step, key, first), wanted)
        assert int(wanted.sum()) == n


@pytest.mark.parametrize("k", [100, 3000])
def test_integers_of_any_width_and_any_stride_are_read(device, k):
    x = (torch.arange(2001) % 100).to(device)
    wanted = reference.counts(x, k, 2**54, 9)
    for dtype in (torch.int32, torch.int16, torch.uint8, torch.int8):
        assert torch.equal(fused.counts(x.to(dtype), k, 2**54, 9), wanted)
        assert torch.equal(reference.counts(x.to(dtype), k, 2**54, 9), wanted)
    assert torch.equal(fused.counts(x[::3], k, 2**54, 9), reference.counts(x[::3], k, 2**54, 9))
    column = torch.stack([x, x + 1], 1)[:, 0]
    assert torch.equal(fused.counts(column, k, 2**54, 9), wanted)


@pytest.mark.parametrize("k", [5, 3000])
@pytest.mark.parametrize("step", [1, 2**54])
def test_users_without_a_value_touch_no_memory_and_are_not_counted(device, k, step):
    x = torch.tensor([0, k, -1, 3, 2**40, -(2**63), 4], device=device)
    wanted = reference.counts(x, k, step, 1)
    assert torch.equal(fused.counts(x, k, step, 1), wanted)
    assert int(wanted.sum()) == 3
    assert torch.equal(
        fused.counts(x[:0], k, step, 1), torch.zeros(k, dtype=torch.int64, device=device)
    )


@pytest.mark.parametrize("k", [4, 3000])
def test_programs_that_take_many_steps_and_share_counters_count_the_same(device, k, monkeypatch):
    x = (torch.arange(230) % k).to(device)
    wanted = reference.counts(
        x,
        k,
        2**54,
        5,
        3,
    )
    monkeypatch.setattr(fused, "PAIRS", 16)
    for programs, cells in (
        (1, 1),
        (3, 2 * k),
        (7, 2**16),
    ):
        monkeypatch.setattr(fused, "PROGRAMS", programs)
        monkeypatch.setattr(fused, "CELLS", cells)
        assert torch.equal(fused.counts(x, k, 2**54, 5, 3), wanted)
