"""Axes of length 1 and strides: a trial has the form of the launch, and pointers are of contiguous tensors."""

import itertools

import pytest
import torch

from torchdp import secure, sketching, training
from torchdp.kernels import correlated_noise, dispatch, guided_draws, secure_sketch
from torchdp.kernels.correlated_noise import Step
from torchdp.kernels.dispatch import Kernel, launches, trials
from torchdp.kernels.dispatch.cases import Case
from torchdp.noise import SeededNoise

CPU = torch.device("cpu")
STEPS = (0, 1, 2, 7, 16, 48, 2**20)


def kinds(tensor):
    return [trials.told(step) for step in launches.strides(tensor)]


def laid(shape, order, gaps):
    """A tensor of this shape, its axes in this order in memory, with gaps; axes of length 1 have any stride."""
    steps, extent = [0] * len(shape), 1
    for axis in order:
        steps[axis] = extent * gaps[axis] if shape[axis] > 1 else STEPS[(axis + gaps[axis]) % len(STEPS)]
        extent = max(extent, steps[axis] * shape[axis])
    return torch.zeros(extent + 1, dtype=torch.float32).as_strided(shape, steps)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_public_tensor_has_the_form_of_any_layout_and_its_own_numbers(ndim):
    public = torch.arange(5.0 * 3 ** (ndim - 1)).view(5, *[3] * (ndim - 1))
    for shape in itertools.product((1, 2, 16), repeat=ndim):
        for order in itertools.permutations(range(ndim)):
            for gaps in itertools.product((1, 2, 16), repeat=ndim):
                given = laid(shape, order, gaps)
                found = trials.alike(public, given)
                assert torch.equal(found, public), (shape, given.stride())
                assert kinds(found) == kinds(given), (shape, given.stride(), found.stride())


@pytest.mark.parametrize("stride", [*STEPS, 31])
def test_the_stride_of_one_row_is_no_part_of_a_form(stride):
    one = torch.zeros(2**21).as_strided((1, 4), (stride, 1))
    assert launches.strides(one) == (0, 1)
    assert launches.strides(torch.zeros(2**21)[:: max(stride, 1)][:3]) == (max(stride, 1),)  # of three it is


def test_a_trial_that_can_not_be_made_condemns_its_form_alone(monkeypatch):
    """Public numbers of float32 can not be laid out; calls of other forms go on being fused."""
    monkeypatch.setattr(dispatch, "_wanted", lambda chosen, device: chosen != "reference")
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    launched = []

    def fused(x):
        launches.about_to_launch(("kernel", x.dtype))
        launched.append(x.dtype)
        return x + 1

    def public(x):
        if x.dtype == torch.float32:
            raise RuntimeError("storage out of bounds")
        return [((torch.zeros(3, dtype=x.dtype),), {})]

    case = Case(lambda device, n: ((torch.zeros(3),), {}), lambda n: None, 3, 3, public)
    kernel = Kernel("torchdp.kernels.of_nobody", "add", lambda x: x + 1, case)
    monkeypatch.setattr(kernel, "fused", lambda device: fused)
    monkeypatch.setattr(kernel, "unfit", lambda device: None)
    monkeypatch.setitem(dispatch._loaded, kernel.package, torch)
    with pytest.warns(RuntimeWarning, match="storage out of bounds"):
        assert torch.equal(kernel(CPU, torch.zeros(2)), torch.ones(2))
    assert not launched
    assert torch.equal(kernel(CPU, torch.zeros(2).double()), torch.ones(2).double())
    assert launched[-1] == torch.float64 and kernel.verdicts(CPU)[""] is None


def one_and_many(count):
    sketch = sketching.osnap(count, 8, 2, generator=torch.Generator().manual_seed(1))
    x = torch.full((count, 4), 0.1, dtype=torch.float64)
    made = secure.SecureSketch(sketch, 4, 1.0, 1.0, 1e-5)
    return lambda: made.collect(x, noise=SeededNoise(0, CPU))["words"]


def counter(size):
    C = torch.eye(6, dtype=torch.float64)
    for band in (1, 2):
        C += 0.5**band * torch.eye(6, dtype=torch.float64).roll(band, 0).tril(-band)

    def run():
        noise = training.CorrelatedNoise(C, size, 1.0, noise=SeededNoise(0, CPU))
        return torch.stack([noise(torch.zeros(size)) for _ in range(3)])

    return run


@pytest.mark.parametrize("call", [one_and_many(1), one_and_many(3), counter(1), counter(5)])
def test_a_call_of_one_runs_fused_and_agrees(device, monkeypatch, call):
    if device.type != "cpu":
        pytest.skip("planned for Triton's interpreter")
    monkeypatch.setenv("TORCHDP_KERNELS", "reference")
    wanted = call()
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")  # which raises where the reference would take over
    found = call()
    if wanted.is_floating_point():
        torch.testing.assert_close(found, wanted)
    else:
        assert int((found - wanted).abs().max()) <= 1  # a half within the error of floats


def test_strided_tensors_are_refused_where_only_their_address_is_passed():
    parts, cells = torch.zeros(64, dtype=torch.int16), torch.zeros(256, dtype=torch.int16)
    with pytest.raises(ValueError, match="out must be contiguous"):
        guided_draws.fill(torch.zeros(128, dtype=torch.int64)[::2], parts, cells)
    with pytest.raises(ValueError, match="cells must be contiguous"):
        guided_draws.fill(torch.zeros(64, dtype=torch.int64), parts, cells.repeat(2)[::2])
    key, rows = torch.zeros(8, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int64)
    sums = torch.zeros(1, 4, 2, dtype=torch.int64)[..., ::2]
    with pytest.raises(ValueError, match="sums must be contiguous"):
        secure_sketch.add(sums, torch.zeros(3, 1), rows, rows + 1, torch.ones(4).double(), key)
    one = torch.ones(1, dtype=torch.float64)
    lags = torch.zeros(1, dtype=torch.int32)
    now = Step(one, one, torch.ones(2, dtype=torch.float64), lags)
    wide, state = torch.zeros(16, dtype=torch.float64), torch.zeros(1, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="total must be contiguous"):
        correlated_noise.add((wide[:8], state), wide[::2], now, key, 0, 0)
    with pytest.raises(ValueError, match="state must be contiguous"):
        correlated_noise.add((wide[:8], wide.view(1, 16)[:, ::2]), wide[:8], now, key, 0, 0)
