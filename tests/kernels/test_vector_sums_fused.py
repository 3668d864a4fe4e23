"""Fused sums of messages against the reference's, from the same words."""

import math

import pytest
import torch

from torchdp.kernels import philox, privunit
from torchdp.kernels.dispatch import Kernel
from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball import ball

triton = pytest.importorskip("triton")
from torchdp.kernels.normals.pieces import pieces  # noqa: E402
from torchdp.kernels.privunit import fused as privunit_fused  # noqa: E402

CAP = {"radius": 2.0, "mean": 0.7}
CASES = [([1], 1), ([1], 19), ([63], 6), ([0, 1, 3, 0, 9], 19), ([130, 0, 70], 2)]


def setting(counts, dim, dtype, device, seed=0):
    """(points, counts, (g0, T, sqrt(1 - T^2)))."""
    generator, counts = torch.Generator().manual_seed(seed), torch.tensor(counts)
    points = torch.randn(len(counts), dim, dtype=torch.float64, generator=generator)
    points *= (
        2 * torch.rand(len(counts), 1, dtype=torch.float64, generator=generator) / points.norm(dim=1, keepdim=True)
    )
    n = int(counts.sum())
    lift = torch.randn(n, dtype=torch.float64, generator=generator)
    t = torch.rand(n, dtype=torch.float64, generator=generator)
    draws = tuple(each.to(device) for each in (lift, t, (1 - t * t).sqrt()))
    return points.to(dtype).to(device), counts.to(device), draws


def exact_normals(key, index, width, stream):
    """What float32 normals are rounded from, in float64."""
    a, b, c, d = philox.words(key, index[:, None], torch.arange(-(-width // 4), device=index.device), stream)
    made = []
    for word, other in ((a, b), (c, d)):
        radius, angle = (-2 * ((word.double() + 0.5) / 2**32).log()).sqrt(), other.double() * (2 * math.pi / 2**32)
        made += [radius * angle.cos(), radius * angle.sin()]
    return torch.stack(made, -1).flatten(1)[:, :width]


def exact_sums(points, counts, draws, key, first):
    """The sum for float32 points in float64."""
    users = points.double().repeat_interleave(counts, 0)
    index = torch.arange(first, first + len(users), device=points.device)
    g = exact_normals(key, index, points.shape[1], 0)
    return privunit.message(users, g, *draws, **CAP).sum(0)


@pytest.mark.parametrize(("counts", "dim"), CASES)
def test_float64_sums_agree_to_rounding(device, counts, dim, monkeypatch):
    monkeypatch.setattr(privunit_fused, "STEPS", 1)  # so that few users pass the outer loop twice
    points, counts, draws = setting(counts, dim, torch.float64, device)
    key, first = -(2**62) - 7, 2**33 + 5
    bound = 1e-14 * float(counts.sum()) * 4  # messages of a few units each
    ours = privunit_fused.sums(points, counts, *draws, key, first, **CAP)
    wanted = privunit.reference.sums(points, counts, *draws, key, first, **CAP)
    assert float((ours - wanted).abs().max()) < bound * 100  # lengths across u may be short


@pytest.mark.parametrize(("counts", "dim"), CASES)
def test_float32_sums_are_within_twice_the_rounding_of_the_reference(device, counts, dim):
    points, counts, draws = setting(counts, dim, torch.float32, device)
    exact = exact_sums(points, counts, draws, 3, 11)
    slow = privunit.reference.sums(points, counts, *draws, 3, 11, **CAP)
    fast = privunit_fused.sums(points, counts, *draws, 3, 11, **CAP)
    assert fast.dtype == torch.float64
    assert float((fast - exact).norm()) <= 2 * float((slow - exact).norm()) + 1e-7 * math.sqrt(dim)
    assert float((slow - exact).norm()) < 1e-5 * float(counts.sum())


def test_strided_points_and_draws_give_the_same_sums(device):
    points, counts, draws = setting([2, 9, 0], 5, torch.float64, device)
    wide = torch.stack([points, points + 1], -1)[..., 0]
    strided = [torch.stack([each, each + 1], -1)[..., 0] for each in draws]
    assert not wide.is_contiguous() and not strided[0].is_contiguous()
    assert torch.equal(
        privunit_fused.sums(wide, counts, *strided, 3, 0, **CAP),
        privunit_fused.sums(points, counts, *draws, 3, 0, **CAP),
    )


def test_parts_add_up_to_the_whole(device):
    points, counts, draws = setting([5, 0, 4], 3, torch.float64, device)
    first = torch.tensor([3, 0, 0], device=device)
    parts = privunit_fused.sums(points, first, *(x[:3] for x in draws), 3, 10, **CAP)
    parts = parts + privunit_fused.sums(points, counts - first, *(x[3:] for x in draws), 3, 13, **CAP)
    whole = privunit_fused.sums(points, counts, *draws, 3, 10, **CAP)
    torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-13)
    none = torch.zeros(3, dtype=torch.int64, device=device)
    assert (privunit_fused.sums(points, none, *(x[:0] for x in draws), 3, 0, **CAP) == 0).all()


@pytest.mark.parametrize("counts", [[0], [], [1], [5, 0, 3000, 1], [2**40, 7], [1] * 50])
def test_pieces_cover_every_user_once(counts):
    counts = torch.tensor(counts, dtype=torch.int64)
    found = pieces(counts, 10, 64, 1024)
    lengths = found.stop - found.start
    assert int(lengths.sum()) == int(counts.sum()) and (lengths > 0).all()
    assert torch.equal(found.start[1:], found.stop[:-1])
    by_type = torch.zeros_like(counts).index_add_(0, found.type, lengths)
    assert torch.equal(by_type, counts)
    held = int((counts > 0).sum())
    assert len(found.type) <= held + 2**13
    assert held == 0 or found.rows <= 2 * max(1, int(counts.sum()) // held + 1)


def test_collect_on_a_device_with_fused_kernels(device, monkeypatch):
    """The dispatch, in Triton's interpreter where there is no GPU: mean within the noise, reproducible, by parts."""
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    monkeypatch.setattr(Kernel, "_trial", lambda *_: None)
    monkeypatch.setattr("torchdp.randomizers.ball.privunit.USERS_AT_ONCE", 60)
    monkeypatch.setattr(ball.BallRandomizer, "_total", None)  # not the plain path
    randomizer, counts = PrivUnit(3, 20.0), torch.tensor([0, 50, 70], device=device)
    points = torch.tensor([[9.0, 0, 0], [0.6, 0, 0.8], [0, 0.5, 0]], dtype=torch.float64, device=device) / 9
    one, again, other = (
        randomizer.collect_crowd(points, counts, SeededNoise(seed, device))["sum"] for seed in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    for total in (one, other):
        z = (total - counts.double() @ points) / math.sqrt(120 * randomizer.moments.variance)
        assert float(z.abs().max()) < 5
