"""No form of a fused kernel meets data before public numbers have passed its branches: faults planted in each branch.

The faults are those of experiments/bench/mutations.txt; the number that begins a fault's name is that of its call here.
"""

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

from torchdp.kernels import (
    chacha,
    correlated_noise,
    dispatch,
    normals,
    privunit,
    privunitg,
    response_counts,
    rounded_features,
    secure_sketch,
    unary_counts,
)
from torchdp.kernels.dispatch import Kernel, Untried, launches, trials

CPU, KEY, BITS = torch.device("cpu"), torch.arange(3, 11, dtype=torch.int32), torch.int64
ROOT = Path(__file__).parents[2]
INTERPRETED = ("response_counts", "normals", "rounded_features")  # in no time
SHORT, LONG = torch.float32, torch.float64
wave = trials.wave


def reports(k, dtype=BITS, key=5, first=0, step=1):
    x = (torch.arange(300) % k).to(dtype)[::step]
    return response_counts.COUNTS, (x, k, 2**63 // (k + 3), key, first)


def bits(k, lost=0.3, off=0.2, first=0):
    return unary_counts.TALLY, (torch.arange(40) % k, k, lost, off, -5, first)


def vectors(kernel, width, users, dtype=SHORT):
    points, counts, law = wave(CPU, len(users), width).to(dtype) / width, torch.tensor(users), {"radius": 1.0}
    if kernel is privunit.SUMS:
        return kernel, (points, counts, *wave(CPU, 3, sum(users)) / 2, 3, 2**40), law | {"mean": 0.5}
    return kernel, (points, counts, 3, 2**40), law | {"threshold": 0.7, "upper": 0.6, "survival": 0.242}


def features(kernel, d, count, classes, *drawn, users=40):
    x, frequencies = ((wave(CPU, *shape) * 8).floor().to(SHORT) for shape in ((users, d), (d, 70)))
    phases = wave(CPU, count, 70).to(SHORT)
    return kernel, (x, frequencies, phases, torch.arange(users) % classes, classes, *drawn)


def sketch(servers, columns, copies=2, ring=BITS, real=SHORT, clients=5, first=0):
    place = torch.arange(copies * clients).view(copies, clients)
    sums, values = torch.zeros(servers, 6, columns, dtype=ring), wave(CPU, clients, columns).to(real)
    call = sums, values, place % 6, (place % 2 * 2 - 1).to(torch.int8), torch.ones(6, dtype=LONG), KEY, first, 8.0
    return secure_sketch.ADD, call


def noise(running, kept=0, dtype=SHORT, draws=1, size=40, step=9, alias=False, slots=None):
    memory = running + kept
    total, state, rates = (wave(CPU, *shape).to(dtype) for shape in ((size,), (memory, size), (memory,)))
    numbers = torch.tensor([0.8, 1.7, -0.6, 0.3][: draws + 1], dtype=LONG)
    lags = torch.tensor([0, 2, 4][:draws], dtype=torch.int32)
    changed = total if alias else torch.zeros_like(total), state
    now = correlated_noise.Step(
        rates, rates[:running] / 3, numbers, lags, slots or (memory - 1 if kept else -1, -1)
    )
    return correlated_noise.ADD, (changed, total, now, KEY, step, 3)


CALLS = {
    "chacha": [(chacha.KEYSTREAM, (KEY, 2**40, 5, 2**31 + 1, 2))],
    "response_counts": [
        *(reports(2), reports(40, torch.uint8), reports(1024, torch.int32), reports(1500), reports(70_000)),
        *(reports(16, first=7), reports(1500, step=2), reports(1500, step=16), reports(300, torch.uint8)),
        reports(3, key=2**64 - 5, first=2**40),
    ],
    "unary_counts": [bits(2), bits(5, 0.0, 0.25, 9), bits(17), bits(100, 0.5)],
    "privunit": [
        *(
            vectors(privunit.SUMS, *each)
            for each in ((1, [3]), (3, [1, 1]), (4, [40]), (16, [3, 0, 2]), (17, [70]))
        ),
        *(vectors(privunit.SUMS, *each) for each in ((48, [9, 8]), (70, [40], LONG))),
    ],
    "privunitg": [
        *(
            vectors(privunitg.SUMS, *each)
            for each in ((1, [3]), (5, [1, 1]), (16, [70]), (48, [70]), (33, [9, 8]))
        ),
        vectors(privunitg.SUMS, 70, [70], LONG),
    ],
    "rounded_features": [
        features(rounded_features.ROUNDED, 5, 1, 2, 3, 0, 1),
        features(rounded_features.ROUNDED, 64, 2, 17, 3, 2**40, 3),
        features(rounded_features.ROUNDED, 1, 3, 1, 2**63 - 1, 7, 1),
        features(rounded_features.POSITIVE, 5, 1, 2),
        features(rounded_features.POSITIVE, 33, 3, 16, users=48),
    ],
    "secure_sketch": [
        *(sketch(2, 1, 1), sketch(3, 7), sketch(2, 16, 1, torch.int32, LONG, 16), sketch(2, 48, first=11)),
    ],
    "correlated_noise": [
        *(noise(0), noise(3, size=48), noise(2, alias=True, dtype=LONG)),
        *(noise(0, 4), noise(0, 1, step=2**31 + 5), noise(2, draws=3), noise(1, 4, slots=(2, 4))),
    ],
    "normals": [
        (normals.DRAWS, (3, 1, 5, width, dtype, 2, CPU))
        for width in (1, 3, 4, 16, 17, 64, 70, 128)
        for dtype in (SHORT, LONG)
    ],
}
PACES = [pytest.param(name, marks=() if name in INTERPRETED else pytest.mark.slow) for name in CALLS]


@pytest.fixture(autouse=True)
def automatic(device, monkeypatch):
    """As if the CPU were a device of fused kernels."""
    if device.type != "cpu":
        pytest.skip("faults are planted in Triton's interpreter")
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    monkeypatch.setattr(dispatch, "_wanted", lambda chosen, device: chosen != "reference")


def fresh(kernel):
    """The same kernel, of which nothing is known."""
    return Kernel(kernel.package, kernel.name.partition(".")[2], kernel.plain, kernel.case)


def answered(form, arguments, options):
    """What a form returns or has changed, of arguments that are copied."""
    each = [tuple(t.clone() for t in a) if isinstance(a, tuple) else a for a in arguments]
    each = [t.clone() if isinstance(t, torch.Tensor) and t.is_contiguous() else t for t in each]
    found = form(*each, **options)
    changed = torch.cat([t.flatten() for t in each[0]]) if isinstance(each[0], tuple) else each[0]
    return changed if found is None else found


def right(kernel, call):
    _, arguments, options = (*call, {})[:3]
    found = answered(lambda *some, **named: kernel(CPU, *some, **named), arguments, options)
    return kernel.case.agrees(found, answered(kernel.plain, arguments, options))


@pytest.mark.parametrize("package", PACES)
def test_every_form_has_a_trial_of_its_own_once(package, monkeypatch):
    """None falls back, each is tried at its first call alone."""
    made = {call[0]: fresh(call[0]) for call in CALLS[package]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(right(made[call[0]], call) for call in CALLS[package])
        monkeypatch.setattr(Kernel, "trial", None)
        assert all(right(made[call[0]], call) for call in CALLS[package])
    assert all(fault is None for kernel in made.values() for fault in kernel.verdicts(CPU).values())


def package_of(name):
    return importlib.import_module(f"torchdp.kernels.{name}.fused")


def refuse(form):
    raise Untried(form)


def test_a_form_holds_all_that_chooses_machine_code():
    x, form = torch.zeros(64, dtype=BITS), package_of("response_counts").count_kernel.form
    call, told = (x, x, 30, 3, 16, 2**58, 64, 5, 0, 1), {"PAIRS": 512, "BINS": 32, "num_warps": 4}
    others = [
        (x[1:], *call[1:]),
        (x.int(), *call[1:]),
        *((x, x, 30, stride, *call[4:]) for stride in (1, 16, 2**40)),
    ]
    forms = [form(each, told) for each in (call, *others)]
    forms += [form(call, told | {name: 64}) for name in told]
    forms += [form((*call, 512, bins), {}) for bins in (32, 64)]
    assert len(set(forms)) == len(forms)
    assert (
        form((x, x, 31, 5, 17, 2**61, 2**63, 2**64 - 1, 2**40, 16), told) == forms[0]
    )  # numbers that do not choose it
    for package, fused in (("response_counts", True), ("secure_sketch", False)):
        (kernel,) = (each for name, each in vars(package_of(package)).items() if name.endswith("_kernel"))
        with launches.watched(refuse), pytest.raises(Untried) as launch:
            kernel[(1,)](x)
        assert ("enable_fp_fusion", fused) in launch.value.args[0]


def planted():
    """Those of machine code in the list of mutations: (package, number of the call, name, text, what stands there)."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "experiments" / "bench" / "mutations.py")
    mutations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    for fault in mutations.read(mutations.FAULTS.read_text()):
        *_, package, file = fault.file.split("/")
        if file == "fused.py":
            number, _, what = fault.what.partition(": ")
            marks = () if package in INTERPRETED else pytest.mark.slow
            yield pytest.param(package, CALLS[package][int(number)], fault, marks=marks, id=f"{package}: {what}")


@pytest.mark.parametrize(("package", "call", "fault"), [*planted()])
def test_a_fault_in_a_branch_is_seen_before_data(package, call, fault, monkeypatch, tmp_path):
    path = tmp_path / f"{package}_with_a_fault.py"
    path.write_text(fault.code(ROOT))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = fresh(call[0])
    monkeypatch.setitem(dispatch._loaded, kernel.package, module)
    with pytest.warns(RuntimeWarning, match="does not agree|does not run") as seen:
        assert right(kernel, call)
    assert len(seen) == 1
