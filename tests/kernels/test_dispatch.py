"""Which form of a kernel runs, and what happens where the fused one can not: never another law, a word used twice,
a crash that hides its cause."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from torchdp.cli.examine import products
from torchdp.kernels import dispatch, privunit, response_counts, rounded_features, secure_sketch
from torchdp.kernels.dispatch import Kernel, cases, launches
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnit, RandomizedResponse

CPU = torch.device("cpu")
X = torch.arange(3000) % 16
CALL = (X, 16, 2**58 + 3, 7)


def kernel(fused, monkeypatch, plain=response_counts.reference.counts):
    """A kernel of its own record whose fused form is ``fused``, and that thinks that it may be used here."""
    made = Kernel("torchdp.kernels.response_counts", "counts", plain, cases.RESPONSE_COUNTS)
    monkeypatch.setattr(made, "fused", lambda device: launching(fused))
    monkeypatch.setitem(dispatch._loaded, made.package, SimpleNamespace(PROGRAMS=1))
    monkeypatch.setattr(dispatch, "_interpreted", lambda: True)
    return made


def launching(fused, form=("a form",)):
    """What launches a kernel of this form first, as a fused form does."""

    def launched(*arguments, **options):
        launches.about_to_launch(form)
        return fused(*arguments, **options)

    return launched


@pytest.fixture
def auto(monkeypatch):
    """As if the CPU were a device of fused kernels."""
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    monkeypatch.setattr(dispatch, "_wanted", lambda chosen, device: chosen != "reference")


@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_a_number_too_many_does_not_agree(each):
    """Negative control of the trial: one bit more than may slip, or a number off by a hundredth."""
    wanted = each.result(each.plain, CPU)
    assert each.case.agrees(wanted, wanted.clone())
    assert not each.case.agrees(torch.full_like(wanted, 77), wanted)
    wrong = wanted.clone()
    wrong.view(-1)[-1] += wanted.max() / 100 if wanted.is_floating_point() else each.case.slips + 1
    assert not each.case.agrees(wrong, wanted)
    if wanted.is_floating_point():
        assert not each.case.agrees(torch.full_like(wanted, torch.nan), wanted)
    elif wanted.dtype == torch.int64 and wanted.numel() > 1:
        wrong.view(-1)[:2] = wanted.view(-1)[:2] + 2**63 - 1  # a sum of such differences wraps around to -2
        assert not each.case.agrees(wrong, wanted)


@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_tiles_are_constants_of_the_package_and_hold_what_it_is_written_with(device, each):
    module = pytest.importorskip(each.package + ".fused")
    for name, sizes in each.case.tiles.items():
        assert getattr(module, name) in sizes


@pytest.mark.slow
@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_every_size_that_may_be_chosen_gives_the_same_result(device, each):
    start = each.tiles(device)
    try:
        for tiles in products(each):
            each.set_tiles(device, tiles)
            assert each.trial(device) is None, tiles
    finally:
        each.set_tiles(device, start)


def test_a_value_of_the_variable_that_is_none(monkeypatch):
    monkeypatch.setenv("TORCHDP_KERNELS", "Fused")
    with pytest.raises(ValueError, match="TORCHDP_KERNELS must be one of auto, fused, reference, not 'Fused'"):
        response_counts.counts(*CALL)


def test_the_reference_is_used_on_a_cpu_and_where_it_is_asked_for(monkeypatch):
    def forbidden(*_):
        raise AssertionError

    made = kernel(forbidden, monkeypatch)
    wanted = response_counts.reference.counts(*CALL)
    assert torch.equal(made(CPU, *CALL), wanted)
    monkeypatch.setenv("TORCHDP_KERNELS", "reference")
    monkeypatch.setattr(dispatch, "_placed", lambda device: torch.device("cuda:0"))
    assert torch.equal(made("cuda", *CALL), wanted)


def broken(*_, **__):
    raise ImportError("libcuda.so.1 is missing\nand no more")


def off_by_one(*arguments):
    counts = response_counts.reference.counts(*arguments)
    counts[0] += 1
    return counts


def writes_nothing(x, k, *_):
    return torch.empty(k, dtype=torch.int64)


@pytest.mark.parametrize(
    ("fused", "fault"),
    [
        (broken, "does not run: ImportError: and no more"),
        (off_by_one, "does not agree with its reference"),
        (writes_nothing, "does not agree with its reference"),
    ],
)
def test_a_form_that_fails_its_trial_is_switched_off_with_one_warning(auto, monkeypatch, fused, fault):
    made = kernel(fused, monkeypatch)
    wanted = response_counts.reference.counts(*CALL)
    with pytest.warns(
        RuntimeWarning, match=f"response_counts.counts {fault}; its reference is used on cpu"
    ) as seen:
        assert torch.equal(made(CPU, *CALL), wanted)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(made(CPU, *CALL), wanted)
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    with pytest.raises(RuntimeError, match=f"fused response_counts.counts can not run on cpu: it {fault}"):
        made(CPU, *CALL)


def test_a_module_that_does_not_import(auto, monkeypatch):
    made = Kernel("torchdp.kernels.absent", "counts", response_counts.reference.counts, cases.RESPONSE_COUNTS)
    monkeypatch.setattr(dispatch, "_interpreted", lambda: True)
    with pytest.warns(RuntimeWarning, match="does not import: ModuleNotFoundError"):
        assert torch.equal(made(CPU, *CALL), response_counts.reference.counts(*CALL))


def test_fused_asked_for_on_a_cpu_without_the_interpreter(monkeypatch):
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    made = kernel(broken, monkeypatch)
    monkeypatch.setattr(dispatch, "_interpreted", lambda: False)
    with pytest.raises(RuntimeError, match="can not run on cpu: it needs a CUDA device"):
        made(CPU, *CALL)


def late(*arguments):
    """Passes the trial and fails on more users, when it has drawn and counted."""
    counts = response_counts.reference.counts(*arguments)
    if len(arguments[0]) > 3000:
        raise RuntimeError("out of resource: shared memory")
    return counts


def test_a_fall_back_amid_a_call_uses_no_word_twice_and_gives_the_same_integers(auto, monkeypatch):
    """The reports that failed are forgotten; those that leave are made of the same words, under a key used once."""
    module = "torchdp.randomizers.alphabet.randomized_response"
    monkeypatch.setattr(f"{module}.keyed", lambda device: True)
    oracle, x, found = RandomizedResponse(16, 1.0), torch.arange(4000) % 16, []
    for fused, faults in ((late, 1), (response_counts.reference.counts, 0)):
        monkeypatch.setattr(response_counts, "COUNTS", kernel(fused, monkeypatch))
        noise = SeededNoise(5)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found.append([*(oracle.collect(x, noise=noise)["reports"] for _ in range(3)), noise.words((1,))])
        assert len(seen) == faults
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    assert not torch.equal(found[0][0], found[0][1])  # the next call has a key of its own


def test_the_result_of_a_trial_lies_in_memory_that_held_something_else(auto, monkeypatch):
    """A form that writes nothing must not find the reference's own numbers where they were freed."""
    seen, full_like = [], torch.full_like

    def watched(tensor, value):
        seen.append((tensor.shape, value))
        return full_like(tensor, value)

    def fused(*arguments):
        assert ((9,), 77) in seen
        return response_counts.reference.counts(*arguments)

    monkeypatch.setattr(torch, "full_like", watched)
    assert kernel(fused, monkeypatch).trial(CPU) is None


def test_fused_asked_for_does_not_fall_back_amid_a_call(monkeypatch):
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    made = kernel(late, monkeypatch)
    assert torch.equal(made(CPU, *CALL), response_counts.reference.counts(*CALL))
    with pytest.raises(RuntimeError, match="it does not run: RuntimeError: out of resource: shared memory"):
        made(CPU, X.repeat(2), *CALL[1:])


def test_sums_are_drawn_from_a_key_on_cuda_and_where_fused_is_asked_for(monkeypatch):
    for chosen, here in (("auto", False), ("reference", False), ("fused", True)):
        monkeypatch.setenv("TORCHDP_KERNELS", chosen)
        assert dispatch.keyed("cuda:1") and dispatch.keyed(CPU) == here


def test_threads_that_come_at_once_try_a_kernel_once(auto, monkeypatch):
    made, tried = kernel(response_counts.reference.counts, monkeypatch), []

    def trial(device, call, form):
        tried.append(form)
        time.sleep(0.05)
        return "does not agree with its reference"

    monkeypatch.setattr(made, "trial", trial)
    wanted = response_counts.reference.counts(*CALL)
    with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        found = list(pool.map(lambda _: made(CPU, *CALL), range(16)))
    assert len(tried) == len(seen) == 1 and all(torch.equal(each, wanted) for each in found)


def test_a_mistake_of_the_caller_switches_nothing_off(auto, monkeypatch):
    def fused(x, *rest):
        return response_counts.reference.counts(x, *rest)

    made = kernel(fused, monkeypatch)
    with pytest.raises(TypeError):
        made(CPU, X, "16", 2**58 + 3, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made.runs(CPU)


def test_a_form_that_its_trial_does_not_meet_is_refused(auto, monkeypatch):
    """The trial's calls differ from the caller's in a way that nobody thought of."""
    made = kernel(response_counts.reference.counts, monkeypatch)
    counts = lambda x, *rest: launching(response_counts.reference.counts, ("a form", len(x) == 3000))(x, *rest)  # noqa: E731
    monkeypatch.setattr(made, "fused", lambda device: counts)
    with pytest.warns(RuntimeWarning, match=r"has no trial of the form \('a form', False\)"):
        assert torch.equal(made(CPU, X[:50], *CALL[1:]), response_counts.reference.counts(X[:50], *CALL[1:]))


def test_memory_that_ran_out_is_said_and_switches_nothing_off(auto, monkeypatch):
    def full(x, *rest):
        if len(x) > 3000:
            raise torch.OutOfMemoryError("no memory")
        return response_counts.reference.counts(x, *rest)

    made = kernel(full, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        made(CPU, X.repeat(2), *CALL[1:])
    assert made.runs(CPU)


def test_a_dead_context_is_not_hidden(monkeypatch):
    """After an illegal access every later call on the device fails, and what it returned before is in doubt."""

    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made = kernel(broken, monkeypatch)
    with pytest.raises(RuntimeError, match=r"killed the CUDA context of cuda:0 .*TORCHDP_KERNELS=reference"):
        made.failed(torch.device("cuda:0"), RuntimeError("launch"))


def test_nothing_is_tried_or_called_dead_while_a_graph_is_captured(auto, monkeypatch):
    """To wait for the device is an error then, which says nothing of it."""
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "no such GPU")
    made = kernel(response_counts.reference.counts, monkeypatch)
    with pytest.raises(
        dispatch.Captured, match=r"counts failed: RuntimeError: launch; make the same call once before"
    ):
        made.failed(gpu, RuntimeError("launch"))
    with pytest.raises(dispatch.Captured, match="has not been tried in the form of this call; make the same"):
        made(gpu, *CALL)


def test_an_operation_in_place_that_can_not_be_launched_has_written_nothing(device, auto, monkeypatch):
    """Then the reference adds to sums that are whole: no share is counted twice."""
    module = pytest.importorskip("torchdp.kernels.secure_sketch.fused")
    launches = []

    class Unlaunched:
        def __getitem__(self, grid):
            launches.append(grid)
            return broken

    monkeypatch.setattr(module, "add_kernel", Unlaunched())
    monkeypatch.setattr(secure_sketch.ADD, "_faults", {(CPU, None): None})
    arguments, _ = cases.SECURE_SKETCH.arguments(CPU, 10)
    sums = arguments[0]
    sums += 5
    wanted = sums.clone()
    secure_sketch.reference.add(wanted, *arguments[1:])
    monkeypatch.setattr(secure_sketch.ADD, "fused", lambda device: module.add)
    with pytest.warns(RuntimeWarning, match="does not run"):
        secure_sketch.add(sums, *arguments[1:6], first=arguments[6], scale=arguments[7])
    assert torch.equal(sums, wanted) and len(launches) == 1


@pytest.mark.parametrize(
    ("module", "form", "specification", "case", "limit", "width"),
    [
        (privunit.reference, "sums", "messages", cases.PRIVUNIT, "NUMBERS_AT_ONCE", 64),
        (rounded_features.reference, "rounded_counts", "counted", cases.ROUNDED, "BITS_AT_ONCE", 256),
        (rounded_features.reference, "positive_counts", "counted", cases.POSITIVE, "BITS_AT_ONCE", 256),
    ],
)
def test_the_reference_of_a_large_crowd_takes_its_users_in_parts(
    monkeypatch, module, form, specification, case, limit, width
):
    """What stands in for a kernel on a GPU must not hold all messages or bits at once."""
    arguments, options = case.arguments(CPU, 30)
    inner, sizes = getattr(module, specification), []

    def watched(*some, **named):
        made = inner(*some, **named)
        sizes.append(len(made) if specification == "messages" else len(some[0]))
        return made

    monkeypatch.setattr(module, specification, watched)
    whole = getattr(module, form)(*arguments, **options)
    assert sizes == [30]
    monkeypatch.setattr(module, limit, 7 * width)
    parts = getattr(module, form)(*arguments, **options)
    assert sizes[1:] == [7, 7, 7, 7, 2]
    assert float((parts - whole).abs().max()) <= 1e-5 * float(whole.abs().max()) * whole.is_floating_point()


def test_a_callers_autocast_does_not_spoil_the_trial():
    """Sixteen bits of the reference's product would be taken for a mistake of the kernel's."""
    kernel = rounded_features.ROUNDED
    ((arguments, _),) = kernel.public(CPU)
    wanted = kernel.plain(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(kernel.plain(*arguments), wanted)
        assert torch.equal(kernel.result(kernel.plain, CPU), wanted)


def test_collect_by_either_form_gives_the_same_sum(device, monkeypatch):
    monkeypatch.setattr(Kernel, "trial", lambda *_: None)
    randomizer, points = PrivUnit(3, 2.0), torch.eye(3, dtype=torch.float64)[:2].to(device) / 2
    counts, found = torch.tensor([5, 8], device=device), []
    for chosen in ("fused", "reference"):
        monkeypatch.setenv("TORCHDP_KERNELS", chosen)
        monkeypatch.setattr("torchdp.randomizers.ball.privunit.keyed", lambda device: True)
        found.append(randomizer.collect_crowd(points, counts, SeededNoise(1, device))["sum"])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
