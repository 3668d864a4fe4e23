"""Unary encodings counted in Triton give the reference's integers."""

import math

import pytest
import torch

from torchdp.kernels.unary_counts import reference

triton = pytest.importorskip("triton")

from torchdp.kernels.unary_counts import fused  # noqa: E402

OUE = (0.5, 1 / (math.e + 1))
SUE = (0.3, 0.3)
SURE = (1.0, 1 / (math.exp(350) + 1))


@pytest.mark.parametrize("n", [1, 63])
@pytest.mark.parametrize("first", [0, 2**33 + 45])
@pytest.mark.parametrize(
    ("k", "key", "chances"),
    [
        (2, 0, OUE),
        (3, 2**63 - 1, SURE),
        (33, -(2**63), SUE),
    ],
)
def test_both_paths_give_the_same_tally(device, k, key, chances, first, n):
    x = (torch.arange(n) ** 2 % k).to(device)
    wanted = reference.tally(x, k, *chances, key, first)
    assert torch.equal(fused.tally(x, k, *chances, key, first), wanted)
    assert int(wanted[-1]) == n


@pytest.fixture
def wide(monkeypatch):
    """Blocks of the size that suits the interpreter."""
    monkeypatch.setattr(fused, "WORDS", 2048)
    monkeypatch.setattr(fused, "USERS", 1024)


@pytest.mark.parametrize("first", [1, 2**33 + 45])
@pytest.mark.parametrize(
    ("k", "key", "chances"),
    [
        (16, 9, SUE),
        (70, -1, OUE),
        (65, 3, SURE),
    ],
)
def test_both_paths_give_the_same_tally_of_many_users(device, wide, k, key, chances, first):
    x = (torch.arange(300) ** 2 % k).to(device)
    wanted = reference.tally(x, k, *chances, key, first)
    assert torch.equal(fused.tally(x, k, *chances, key, first), wanted)


def test_integers_of_any_width_and_any_stride_are_read(device, wide):
    x = (torch.arange(70) % 40).to(device)
    rest = (65, 0.5, 0.25, 9)
    wanted = reference.tally(x, *rest)
    for dtype in (torch.int32, torch.int16, torch.uint8, torch.int8):
        assert torch.equal(fused.tally(x.to(dtype), *rest), wanted)
        assert torch.equal(reference.tally(x.to(dtype), *rest), wanted)
    assert torch.equal(fused.tally(x[::3], *rest), reference.tally(x[::3], *rest))
    columns = torch.stack([x, x + 1], 1)
    assert torch.equal(fused.tally(columns[:, 0], *rest), wanted)


def test_users_without_a_value_touch_no_memory_and_are_not_counted(device):
    x = torch.tensor([0, 5, -1, 3, 2**40, -(2**63), 4], device=device)
    for lost, off in ((0.0, 0.0), (0.5, 0.3)):
        wanted = reference.tally(x, 5, lost, off, 1)
        assert torch.equal(fused.tally(x, 5, lost, off, 1), wanted)
        assert int(wanted[-1]) == 3
    assert not fused.tally(x[:0], 5, 0.5, 0.3, 1).any()


def test_programs_that_take_many_steps_and_share_counters_count_the_same(device, monkeypatch):
    x = (torch.arange(70) % 20).to(device)
    wanted = reference.tally(
        x,
        20,
        0.5,
        0.3,
        5,
        3,
    )
    # a group of users a block: three blocks
    monkeypatch.setattr(fused, "WORDS", 32)
    monkeypatch.setattr(fused, "USERS", 32)
    for programs, cells in (
        (1, 1),
        (3, 42),
        (7, 2**16),
    ):
        monkeypatch.setattr(fused, "PROGRAMS", programs)
        monkeypatch.setattr(fused, "CELLS", cells)
        assert torch.equal(fused.tally(x, 20, 0.5, 0.3, 5, 3), wanted)
