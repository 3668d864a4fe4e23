"""Fused sums of messages against the reference's, from the same words."""

import pytest
import torch

from torchdp.kernels import privunit

triton = pytest.importorskip("triton")
from torchdp.kernels.privunit import fused as privunit_fused  # noqa: E402

CAP = {"radius": 2.0, "mean": 0.7}
CASES = [
    ([1], 1),
    ([1], 19),
    ([63], 6),
    ([0, 1, 3, 0, 9], 19),
    ([130, 0, 70], 2),
]


def setting(counts, dim, dtype, device, seed=0):
    """(points, counts, (g0, T, sqrt(1 - T^2)))."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(counts)
    points = torch.randn(
        len(counts),
        dim,
        dtype=torch.float64,
        generator=generator,
    )
    points *= (
        2
        * torch.rand(len(counts), 1, dtype=torch.float64, generator=generator)
        / points.norm(dim=1, keepdim=True)
    )
    n = int(counts.sum())
    lift = torch.randn(n, dtype=torch.float64, generator=generator)
    t = torch.rand(n, dtype=torch.float64, generator=generator)
    height = (1 - t * t).sqrt()
    draws = tuple(each.to(device) for each in (lift, t, height))
    return points.to(dtype).to(device), counts.to(device), draws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("counts", "dim"), CASES)
def test_sums_agree_to_rounding(device, counts, dim, dtype, monkeypatch):
    # so that few users pass the outer loop twice
    monkeypatch.setattr(privunit_fused, "STEPS", 1)
    points, counts, draws = setting(counts, dim, dtype, device)
    key = -(2**62) - 7
    first = 2**33 + 5
    # messages of a few units each
    bound = 200 * torch.finfo(dtype).eps * float(counts.sum())
    ours = privunit_fused.sums(
        points,
        counts,
        *draws,
        key,
        first,
        **CAP,
    )
    wanted = privunit.reference.sums(
        points,
        counts,
        *draws,
        key,
        first,
        **CAP,
    )
    assert ours.dtype == torch.float64
    # lengths across u may be short
    assert (ours - wanted).abs().max() < bound * 100
