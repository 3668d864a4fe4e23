"""Fused sums of messages against the reference's, from the same words."""

import math

import pytest
import torch

from torchdp.kernels import philox, privunit, privunitg
from torchdp.kernels.dispatch import Kernel
from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnit, PrivUnitG
from torchdp.randomizers.ball import ball

triton = pytest.importorskip("triton")
from torchdp.kernels.normals.pieces import pieces  # noqa: E402
from torchdp.kernels.privunit import fused as privunit_fused  # noqa: E402
from torchdp.kernels.privunitg import fused as privunitg_fused  # noqa: E402

TAU = PrivUnitG(1, 2.0).tau
LAW = {"radius": 2.0, "threshold": TAU.threshold, "upper": TAU.upper, "survival": TAU.survival}
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
    """Both sums for float32 points in float64."""
    users = points.double().repeat_interleave(counts, 0)
    index = torch.arange(first, first + len(users), device=points.device)
    g, lift = exact_normals(key, index, points.shape[1], 0), exact_normals(key, index, 1, 1)[:, 0]
    a, b, c, d = philox.words(key, index, 0, privunitg.reference.TAU)
    law = {name: LAW[name] for name in ("threshold", "upper", "survival")}
    tau = privunitg.tilted_normal(philox.unit(a, b), philox.unit(c, d), **law)
    one = privunitg.message(users, g, lift, tau, radius=2.0, threshold=LAW["threshold"])
    return one.sum(0), privunit.message(users, g, *draws, **CAP).sum(0)


@pytest.mark.parametrize(("counts", "dim"), CASES)
def test_float64_sums_agree_to_rounding(device, counts, dim, monkeypatch):
    monkeypatch.setattr(privunitg_fused, "STEPS", 1)  # so that few users pass the outer loop twice
    monkeypatch.setattr(privunit_fused, "STEPS", 1)
    points, counts, draws = setting(counts, dim, torch.float64, device)
    key, first = -(2**62) - 7, 2**33 + 5
    ours = privunitg_fused.sums(points, counts, key, first, **LAW)
    wanted = privunitg.reference.sums(points, counts, key, first, **LAW)
    bound = 1e-14 * float(counts.sum()) * 4  # messages of a few units each
    assert float((ours - wanted).abs().max()) < bound
    ours = privunit_fused.sums(points, counts, *draws, key, first, **CAP)
    wanted = privunit.reference.sums(points, counts, *draws, key, first, **CAP)
    assert float((ours - wanted).abs().max()) < bound * 100  # lengths across u may be short


@pytest.mark.parametrize(("counts", "dim"), CASES)
def test_float32_sums_are_within_twice_the_rounding_of_the_reference(device, counts, dim):
    points, counts, draws = setting(counts, dim, torch.float32, device)
    exact = exact_sums(points, counts, draws, 3, 11)
    slow = (
        privunitg.reference.sums(points, counts, 3, 11, **LAW),
        privunit.reference.sums(points, counts, *draws, 3, 11, **CAP),
    )
    fast = (
        privunitg_fused.sums(points, counts, 3, 11, **LAW),
        privunit_fused.sums(points, counts, *draws, 3, 11, **CAP),
    )
    for one, two, true in zip(slow, fast, exact, strict=True):
        assert two.dtype == torch.float64
        assert float((two - true).norm()) <= 2 * float((one - true).norm()) + 1e-7 * math.sqrt(dim)
        assert float((one - true).norm()) < 1e-5 * float(counts.sum())


def test_strided_points_and_draws_give_the_same_sums(device):
    points, counts, draws = setting([2, 9, 0], 5, torch.float64, device)
    wide = torch.stack([points, points + 1], -1)[..., 0]
    strided = [torch.stack([each, each + 1], -1)[..., 0] for each in draws]
    assert not wide.is_contiguous() and not strided[0].is_contiguous()
    assert torch.equal(
        privunitg_fused.sums(wide, counts, 3, 0, **LAW), privunitg_fused.sums(points, counts, 3, 0, **LAW)
    )
    assert torch.equal(
        privunit_fused.sums(wide, counts, *strided, 3, 0, **CAP),
        privunit_fused.sums(points, counts, *draws, 3, 0, **CAP),
    )


def test_parts_add_up_to_the_whole(device):
    points, counts, draws = setting([5, 0, 4], 3, torch.float64, device)
    first = torch.tensor([3, 0, 0], device=device)
    for sums, law, each in ((privunitg_fused.sums, LAW, ()), (privunit_fused.sums, CAP, draws)):
        parts = sums(points, first, *(x[:3] for x in each), 3, 10, **law)
        parts = parts + sums(points, counts - first, *(x[3:] for x in each), 3, 13, **law)
        torch.testing.assert_close(parts, sums(points, counts, *each, 3, 10, **law), rtol=1e-13, atol=1e-13)
    none = torch.zeros(3, dtype=torch.int64, device=device)
    assert (privunitg_fused.sums(points, none, 3, 0, **LAW) == 0).all()


def test_every_partial_sum_is_written_and_nothing_else(device):
    sums = torch.full((3, 6), torch.nan, dtype=torch.float64, device=device)
    starts, stops = torch.tensor([0, 70], device=device), torch.tensor([70, 71], device=device)
    kernel = privunitg_fused.normals_kernel
    kernel[(4,)](sums, starts, stops, 1, 6, 2, Q=1, U=32, STEPS=2, DOUBLE=True)
    wanted = privunitg.reference.normals(1, torch.arange(71, device=device), 6, torch.float64)
    torch.testing.assert_close(sums[:2], torch.stack([wanted[:70].sum(0), wanted[70]]), rtol=1e-12, atol=1e-12)
    assert sums[2].isnan().all()


@pytest.mark.slow
def test_vectors_of_millions_of_coordinates_stay_within_a_grid(device, monkeypatch):
    """A grid's second and third axis end at 65535; its first does not."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **__: launched.append(grid)

    for name in ("normals_kernel", "scalars_kernel"):
        monkeypatch.setattr(privunitg_fused, name, Kernel())
    points = torch.zeros(2, 2**21, device=device)
    privunitg_fused.sums(points, torch.tensor([10**6, 3], device=device), 3, 0, **LAW)
    assert launched and all(len(grid) == 1 and grid[0] < 2**31 for grid in launched)


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


@pytest.mark.parametrize("kind", [PrivUnit, PrivUnitG])
def test_collect_on_a_device_with_fused_kernels(device, kind, monkeypatch):
    """The dispatch, in Triton's interpreter where there is no GPU: mean within the noise, reproducible, by parts."""
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    monkeypatch.setattr(Kernel, "_trial", lambda *_: None)
    monkeypatch.setattr("torchdp.randomizers.ball.privunit.USERS_AT_ONCE", 60)
    monkeypatch.setattr(ball.BallRandomizer, "_total", None)  # not the plain path
    randomizer, counts = kind(3, 20.0), torch.tensor([0, 50, 70], device=device)
    points = torch.tensor([[9.0, 0, 0], [0.6, 0, 0.8], [0, 0.5, 0]], dtype=torch.float64, device=device) / 9
    one, again, other = (
        randomizer.collect_crowd(points, counts, SeededNoise(seed, device))["sum"] for seed in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    for total in (one, other):
        z = (total - counts.double() @ points) / math.sqrt(120 * randomizer.moments.variance)
        assert float(z.abs().max()) < 5
