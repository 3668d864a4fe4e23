"""No form of a fused kernel meets data before public numbers have passed its branches: faults planted in each branch.

The faults are those of experiments/bench/mutations.txt; the number that begins a fault's name is that of its call here.
"""

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

from torchdp.kernels import dispatch
from torchdp.kernels.dispatch import Kernel, Untried, launches
from torchdp.kernels.dispatch.every import KERNELS

CPU, BITS = torch.device("cpu"), torch.int64
ROOT = Path(__file__).parents[2]
INTERPRETED = ("response_counts", "normals", "rounded_features", "guided_draws")  # in no time


def script(name):
    """One under experiments/bench, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "experiments" / "bench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORMS = script("forms")
CALLS = FORMS.every()
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


def right(kernel, call):
    _, *given = call
    found = FORMS.answered(kernel, lambda *some, **named: kernel(CPU, *some, **named), *given)
    return kernel.case.agrees(found, FORMS.answered(kernel, kernel.plain, *given))


def test_every_kernel_has_forms():
    assert {kernel for calls in CALLS.values() for kernel, *_ in calls} == set(KERNELS)


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
    # numbers that do not choose it
    assert form((x, x, 31, 5, 17, 2**61, 2**63, 2**64 - 1, 2**40, 16), told) == forms[0]
    for package, fused in (("response_counts", True), ("secure_sketch", False)):
        (kernel,) = (each for name, each in vars(package_of(package)).items() if name.endswith("_kernel"))
        with launches.watched(refuse), pytest.raises(Untried) as launch:
            kernel[(1,)](x)
        assert ("enable_fp_fusion", fused) in launch.value.args[0]


def planted():
    """Those of machine code in the list of mutations: (package, number of the call, name, text, what stands there)."""
    mutations = script("mutations")
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
