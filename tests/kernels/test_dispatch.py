"""Which form of a kernel runs, and what happens where the fused one can not: never another law, a
word used twice, a crash that hides its cause. Faults planted in fused kernels
(experiments/bench/mutations.txt) are seen before data."""

import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from laws import executed
from torch.testing import assert_close

from torchdp.kernels import correlated_noise, dispatch, privunit, response_counts, rounded_features
from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnit, RandomizedResponse

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
ROOT = Path(__file__).parents[2]
X = torch.arange(3000) % 16
CALL = (X, 16, 2**58 + 3, 7)
counts = response_counts.reference.counts


def kernel(monkeypatch, fused):
    """A kernel of its own record whose fused form is ``fused``."""
    monkeypatch.setattr(Kernel, "fused", property(lambda self: fused))
    return Kernel("torchdp.kernels.response_counts", "counts", counts, examples.response_counts)


@pytest.fixture
def auto(monkeypatch):
    """As if the CPU were a device of fused kernels."""
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    monkeypatch.setattr(dispatch, "_wanted", lambda chosen, device: chosen != "reference")


@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_a_number_too_many_does_not_agree(each):
    """Negative control of the trial: one bit more than may slip, or a number off by a hundredth."""
    wanted = each.result(each.plain, CPU)[-1]
    assert each.agrees(wanted, wanted.clone())
    assert not each.agrees(torch.full_like(wanted, 77), wanted)
    wrong = wanted.clone()
    wrong.view(-1)[-1] += wanted.max() / 100 if wanted.is_floating_point() else each.slips + 1
    assert not each.agrees(wrong, wanted)
    if wanted.is_floating_point():
        assert not each.agrees(torch.full_like(wanted, torch.nan), wanted)
    elif wanted.dtype == torch.int64:
        # a sum of such differences wraps around to -2
        wrong.view(-1)[:2] = wanted.view(-1)[:2] + 2**63 - 1
        assert not each.agrees(wrong, wanted)


def test_the_reference_is_used_on_a_cpu_and_where_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    made = kernel(monkeypatch, None)
    assert torch.equal(made(CPU, *CALL), counts(*CALL))
    monkeypatch.setenv("TORCHDP_KERNELS", "reference")
    assert torch.equal(made(GPU, *CALL), counts(*CALL))


def broken(*_, **__):
    raise ImportError("libcuda.so.1 is missing\nand no more")


def off_by_one(*arguments):
    wrong = counts(*arguments)
    wrong[0] += 1
    return wrong


def writes_nothing(x, k, *_):
    return torch.empty(k, dtype=torch.int64)


FAULTS = {
    broken: "does not run: ImportError: and no more",
    off_by_one: "does not agree with its reference",
    writes_nothing: "does not agree with its reference",
}


@pytest.mark.parametrize(("fused", "fault"), FAULTS.items())
def test_a_form_that_fails_its_trial_is_switched_off_with_one_warning(
    auto, monkeypatch, fused, fault
):
    made = kernel(monkeypatch, fused)
    message = f"response_counts.counts {fault}; its reference is used on cpu"
    with pytest.warns(RuntimeWarning, match=message) as seen:
        assert torch.equal(made(CPU, *CALL), counts(*CALL))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(made(CPU, *CALL), counts(*CALL))
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    with pytest.raises(
        RuntimeError,
        match=f"fused response_counts.counts can not run on cpu: it {fault}.*INTERPRET",
    ):
        made(CPU, *CALL)


def test_a_module_that_does_not_import(auto):
    made = Kernel("torchdp.kernels.absent", "counts", counts, examples.response_counts)
    with pytest.warns(RuntimeWarning, match="does not run: ModuleNotFoundError"):
        assert torch.equal(made(CPU, *CALL), counts(*CALL))


def late(*arguments):
    """Passes the trial and fails on more users, when it has drawn and counted."""
    found = counts(*arguments)
    if len(arguments[0]) > 3000:
        raise RuntimeError("out of resource: shared memory")
    return found


def test_a_fall_back_amid_a_call_uses_no_word_twice_and_gives_the_same_integers(auto, monkeypatch):
    """The reports that failed are forgotten; those that leave are made of the same words, under a
    key used once.
    """
    monkeypatch.setattr(
        "torchdp.randomizers.alphabet.randomized_response.keyed", lambda device: True
    )
    oracle = RandomizedResponse(16, 1.0)
    x = torch.arange(4000) % 16
    found = []
    for fused, faults in ((late, 1), (counts, 0)):
        monkeypatch.setattr(response_counts, "COUNTS", kernel(monkeypatch, fused))
        noise = SeededNoise(5)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            reports = [oracle.collect(x, noise=noise)["reports"] for _ in range(3)]
            found.append([*reports, noise.words((1,))])
        assert len(seen) == faults
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    # the next call has a key of its own
    assert not torch.equal(found[0][0], found[0][1])


def test_fused_asked_for_does_not_fall_back_amid_a_call(monkeypatch):
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    made = kernel(monkeypatch, late)
    assert torch.equal(made(CPU, *CALL), counts(*CALL))
    with pytest.raises(
        RuntimeError, match="it does not run: RuntimeError: out of resource: shared memory"
    ):
        made(CPU, X.repeat(2), *CALL[1:])


def test_the_result_of_a_trial_lies_in_memory_that_held_something_else(auto, monkeypatch):
    """A form that writes nothing must not find the reference's own numbers where they were
    freed.
    """
    seen, full_like = [], torch.full_like

    def watched(tensor, value):
        seen.append((tensor.shape, value))
        return full_like(tensor, value)

    def fused(*arguments):
        assert ((9,), 77) in seen
        return counts(*arguments)

    monkeypatch.setattr(torch, "full_like", watched)
    assert kernel(monkeypatch, fused).fault(CPU) is None


def test_sums_are_drawn_from_a_key_on_cuda_and_where_fused_is_asked_for(monkeypatch):
    for chosen, here in (
        ("auto", False),
        ("reference", False),
        ("fused", True),
    ):
        monkeypatch.setenv("TORCHDP_KERNELS", chosen)
        assert dispatch.keyed("cuda:1")
        assert dispatch.keyed(CPU) == here


def test_threads_that_come_at_once_try_a_kernel_once(auto, monkeypatch):
    made = kernel(monkeypatch, counts)
    tried = []

    def trial(device):
        tried.append(device)
        time.sleep(0.05)
        return "does not agree with its reference"

    monkeypatch.setattr(made, "_trial", trial)
    with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        found = list(pool.map(lambda _: made(CPU, *CALL), range(16)))
    assert len(tried) == len(seen) == 1
    assert all(torch.equal(each, counts(*CALL)) for each in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_is_forked_amid_another_threads_trial_tries_for_itself(auto, monkeypatch):
    begun = threading.Event()
    ended = threading.Event()

    def waits(*_):
        begun.set()
        ended.wait()

    made = kernel(monkeypatch, counts)
    monkeypatch.setattr(made, "_trial", waits)
    thread = threading.Thread(target=made.fault, args=(CPU,))
    thread.start()
    begun.wait()
    with warnings.catch_warnings():
        # of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        monkeypatch.setattr(made, "_trial", lambda device: None)
        # where the lock is still held, never
        os._exit(made.fault(CPU) is not None)
    end = time.monotonic() + 30
    status = (0, 0)
    while status == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
        status = os.waitpid(child, os.WNOHANG)
    if status == (0, 0):
        os.kill(child, 9)
    ended.set()
    thread.join()
    assert status == (child, 0)


def test_a_mistake_of_the_caller_switches_nothing_off(auto, monkeypatch):
    made = kernel(monkeypatch, counts)
    with pytest.raises(TypeError):
        made(CPU, X, "16", 2**58 + 3, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made.runs(CPU)


def test_memory_that_ran_out_is_said_and_switches_nothing_off(auto, monkeypatch):
    def full(x, *rest):
        if len(x) > 3000:
            raise torch.OutOfMemoryError("no memory")
        return counts(x, *rest)

    made = kernel(monkeypatch, full)
    with pytest.raises(torch.OutOfMemoryError):
        made(CPU, X.repeat(2), *CALL[1:])
    assert made.runs(CPU)


def test_a_dead_context_is_not_hidden(monkeypatch):
    """After an illegal access every later call on the device fails, and what it returned before is
    in doubt.
    """

    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made = kernel(monkeypatch, broken)
    made._faults[GPU] = None
    with pytest.raises(
        RuntimeError, match=r"killed the CUDA context of cuda:0 .*TORCHDP_KERNELS=reference"
    ):
        made(GPU, *CALL)


def test_nothing_is_tried_or_called_dead_while_a_graph_is_captured(monkeypatch):
    """To wait for the device is an error then, which says nothing of it."""
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made = kernel(monkeypatch, broken)
    with pytest.raises(
        RuntimeError, match="has not been tried on cuda:0; make the same call once before"
    ):
        made(GPU, *CALL)
    made._faults[GPU] = None
    with pytest.raises(
        RuntimeError,
        match="counts failed: ImportError: and no more; make the same call once before",
    ):
        made(GPU, *CALL)


def test_an_operation_in_place_that_can_not_be_launched_has_written_nothing(
    device, auto, monkeypatch
):
    """Then the reference adds to a state that is whole: no step is counted twice."""
    module = pytest.importorskip("torchdp.kernels.correlated_noise.fused")
    launches = []

    class Unlaunched:
        def __getitem__(self, grid):
            launches.append(grid)
            return broken

    monkeypatch.setattr(module, "add_kernel", Unlaunched())
    monkeypatch.setattr(correlated_noise.ADD, "_faults", {CPU: None})
    monkeypatch.setattr(correlated_noise.ADD, "_told", set())
    (changed, *rest), _ = examples.correlated_noise(CPU, 10)
    wanted = [each.clone() for each in changed]
    correlated_noise.reference.add(wanted, *rest)
    with pytest.warns(RuntimeWarning, match="does not run"):
        correlated_noise.add(changed, *rest)
    assert all(map(torch.equal, changed, wanted))
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("module", "form", "specification", "example", "limit", "width"),
    [
        (
            privunit.reference,
            "sums",
            "messages",
            examples.privunit,
            "NUMBERS_AT_ONCE",
            examples.DIM,
        ),
        (
            rounded_features.reference,
            "rounded_counts",
            "turns",
            examples.rounded,
            "BITS_AT_ONCE",
            280,
        ),
        (
            rounded_features.reference,
            "positive_counts",
            "turns",
            examples.positive,
            "BITS_AT_ONCE",
            280,
        ),
    ],
)
def test_the_reference_of_a_large_crowd_takes_its_users_in_parts(
    monkeypatch, module, form, specification, example, limit, width
):
    """What stands in for a kernel on a GPU must not hold all messages or bits at once."""
    arguments, options = example(CPU, 30)
    inner = getattr(module, specification)
    sizes = []

    def watched(*some, **named):
        made = inner(*some, **named)
        sizes.append(len(made) if specification == "messages" else len(some[0]))
        return made

    monkeypatch.setattr(module, specification, watched)
    whole = getattr(module, form)(*arguments, **options)
    assert set(sizes) == {30}
    sizes.clear()
    monkeypatch.setattr(module, limit, 7 * width)
    parts = getattr(module, form)(*arguments, **options)
    assert set(sizes) == {7, 2}
    size = float(whole.abs().max())
    # counts agree exactly, sums of floats up to their order
    assert (parts - whole).abs().max() <= 1e-5 * size * whole.is_floating_point()


def test_a_callers_autocast_does_not_spoil_the_trial(auto, monkeypatch):
    """Sixteen bits of the reference's product would be taken for a mistake of the kernel's."""
    plain = rounded_features.reference.rounded_counts
    arguments, _ = examples.rounded(CPU)
    wanted = plain(*arguments)
    monkeypatch.setattr(Kernel, "fused", property(lambda self: lambda *_: wanted))
    made = Kernel(rounded_features.__name__, "rounded_counts", plain, examples.rounded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(plain(*arguments), wanted)
        assert made.fault(CPU) is None


def test_collect_by_either_form_gives_the_same_sum(device, monkeypatch):
    monkeypatch.setattr(Kernel, "_trial", lambda *_: None)
    randomizer = PrivUnit(3, 2.0)
    points = torch.eye(3).double()[:2].to(device) / 2
    counts = torch.tensor([5, 8], device=device)
    found = []
    for chosen in ("fused", "reference"):
        monkeypatch.setenv("TORCHDP_KERNELS", chosen)
        monkeypatch.setattr("torchdp.randomizers.ball.privunit.keyed", lambda device: True)
        found.append(randomizer.collect_crowd(points, counts, SeededNoise(1, device))["sum"])
    assert_close(*found, rtol=1e-12, atol=1e-12)


# In no time; the others are slow in Triton's interpreter.
QUICK = ("response_counts", "rounded_features", "guided_draws")
# Faults of branches that an example does not take, which the kernels' own tests see: another dtype,
# another size.
BEYOND = """raw values are counted in memory, copies of the counters overlap, a program counts its last block alone,
chances of 0 and 1 are the same, sums of float64 begin anew, sums of tiles replace one another,
bands have no noise of their own"""


def planted():
    """The faults of fused kernels in the list of mutations."""
    path = ROOT / "experiments" / "bench" / "mutations.py"
    mutations = executed(path, registered=True)
    for fault in mutations.read(mutations.FAULTS.read_text()):
        *_, folder, file = fault.file.split("/")
        seen = fault.what not in BEYOND.replace("\n", " ").split(", ")
        package = f"torchdp.kernels.{folder}"
        if file == "fused.py" and seen and any(each.package == package for each in KERNELS):
            marks = () if folder in QUICK else pytest.mark.slow
            yield pytest.param(package, fault, marks=marks, id=f"{folder}: {fault.what}")


@pytest.mark.parametrize(("package", "fault"), [*planted()])
def test_a_fault_in_a_branch_is_seen_before_data(device, package, fault, monkeypatch, tmp_path):
    if device.type != "cpu":
        pytest.skip("faults are planted in Triton's interpreter")
    path = tmp_path / f"{package.rpartition('.')[2]}_with_a_fault.py"
    path.write_text(fault.code(ROOT))
    monkeypatch.setitem(sys.modules, f"{package}.fused", executed(path))
    tried = [
        Kernel(each.package, each.operation, each.plain, each.example, each.tolerance, each.slips)
        for each in KERNELS
        if each.package == package
    ]
    assert any(each.fault(device) for each in tried)


def test_keys_are_signed(monkeypatch):
    """A key has all 64 bits."""
    module = pytest.importorskip("torchdp.kernels.correlated_noise.fused")
    seen = []

    class Recorded:
        def __getitem__(self, grid):
            return lambda *arguments, **options: seen.append((arguments, options))

    monkeypatch.setattr(module.add_kernel, "kernel", Recorded())
    module.add_kernel[(1,)](2**64 - 5, 2.0, num_warps=4)
    assert seen == [((-5, 2.0), {"num_warps": 4, "enable_fp_fusion": True})]


@pytest.mark.slow
@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_every_kernel_agrees_with_its_reference(device, each):
    assert each.fault(device) is None
