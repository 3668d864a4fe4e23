"""Gamma differences in Triton: the reference's variables up to rounding, the same rejections."""

import pytest
import torch

from torchdp.kernels.gamma_difference import reference

triton = pytest.importorskip("triton")

from torchdp.kernels.gamma_difference import fused  # noqa: E402


def close(made, expected, shape):
    """A last place of E is E/shape of them in exp(-E/shape), which is 0 beyond 745; differences cancel."""
    digits = 2.0**-52 * (2000 if shape < 1 else 50)
    torch.testing.assert_close(made, expected, rtol=digits, atol=2e-13)
    assert torch.equal(made == 0, expected == 0)


@pytest.mark.parametrize("shape", [1e-6, 1e-2, 0.999, 1.0, 30.0])
@pytest.mark.parametrize(
    ("users", "columns", "key", "first"), [(1, 1, 0, 0), (63, 3, -1, 2**32 - 7), (7, 70, 2**63 - 1, 2**60)]
)
def test_both_paths_draw_the_same_variables(device, shape, users, columns, key, first):
    options = {"first": first, "stream": 4, "device": device}
    expected = reference.draws(shape, key, users, columns, **options)
    close(fused.draws(shape, key, users, columns, **options), expected, shape)
    sums = fused.column_sums(shape, key, users, columns, **options)
    torch.testing.assert_close(sums, expected.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("users", "columns"), [(0, 3), (3, 0)])
def test_no_users_or_columns(device, users, columns):
    options = {"first": 0, "stream": 0, "device": device}
    assert fused.draws(0.5, 1, users, columns, **options).shape == (users, columns)
    assert fused.column_sums(0.5, 1, users, columns, **options).tolist() == [0.0] * columns


def test_sums_over_more_users_than_one_program_takes(device, monkeypatch):
    monkeypatch.setattr(fused, "PROGRAMS", 4)
    options = {"first": 0, "stream": 0, "device": device}
    sums = fused.column_sums(2.0, 4, 10, 65, **options)
    torch.testing.assert_close(sums, reference.column_sums(2.0, 4, 10, 65, **options), rtol=1e-12, atol=1e-12)
    assert torch.equal(sums, fused.column_sums(2.0, 4, 10, 65, **options))


@pytest.mark.parametrize(("users", "columns"), [(10**12, 64), (10**9, 1000), (10**6, 1), (3, 10**6)])
def test_partial_sums_do_not_grow_with_the_users(device, users, columns, monkeypatch):
    """What is launched for very many users, without doing it."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda out, *arguments, HEIGHT, WIDTH, **_: launched.append(
                (out, grid, arguments, HEIGHT, WIDTH)
            )

    monkeypatch.setattr(fused, "sums_kernel", Kernel())
    monkeypatch.setattr(torch, "empty", torch.zeros)
    fused.column_sums(0.5, 0, users, columns, first=0, stream=0, device=device)
    ((out, (programs,), arguments, height, width),) = launched
    across, rounds = arguments[-2:]
    assert out.numel() <= max(columns, 2**13 * 64) and out.shape[1] == columns
    assert programs == len(out) * across and across * width >= columns
    assert (len(out) - 1) * height * rounds < users <= len(out) * height * rounds


def test_nothing_is_written_beside_the_draws_and_sums(device):
    numbers = fused._numbers(2.0, device)
    for kernel, extra in ((fused.draws_kernel, ()), (fused.sums_kernel, (1,))):
        out = torch.full((4, 4), torch.nan, dtype=torch.float64, device=device)  # a row more, at least, than drawn
        kernel[(1,)](out, numbers, 5, 0, 0, 3, 4, 1, *extra, SMALL=False, HEIGHT=8, WIDTH=4)
        expected = reference.draws(2.0, 5, 3, 4, first=0, stream=0, device=device)
        rows = expected if kernel is fused.draws_kernel else expected.sum(0, keepdim=True)
        close(out[: len(rows)], rows, 2.0)
        assert out[len(rows) :].isnan().all()
