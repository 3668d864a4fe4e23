"""``torchdp doctor`` tells what works here, and users are collected whatever it finds."""

import json
import os
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchdp import cli
from torchdp.cli import doctor, examine
from torchdp.cli.examine import Ceilings, Finding
from torchdp.kernels import dispatch, response_counts
from torchdp.kernels.dispatch import Kernel, LostDevice, cases, verdicts
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
CEILINGS = Ceilings(1e10, 1e11, 1e8)
NAMES = ["response_counts.counts", "normals.draws"]


@pytest.fixture
def interpreter(device, monkeypatch):
    """Fresh records, in Triton's interpreter."""
    if device.type != "cpu":
        pytest.skip("Triton's interpreter is for machines without a GPU")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "_faults", {})
    return pytest.importorskip("torchdp.kernels.response_counts.fused")


def told(capsys, *arguments):
    """The exit code, and what was printed."""
    code = cli.main(["doctor", *arguments])
    return code, capsys.readouterr().out


def collected(monkeypatch, warned):
    """The reports of a crowd where fused kernels would be used: those of the reference, with as many warnings."""
    monkeypatch.setattr(dispatch, "_wanted", lambda chosen, device: chosen != "reference")
    monkeypatch.setattr("torchdp.randomizers.alphabet.randomized_response.keyed", lambda device: True)
    oracle, x, reports = RandomizedResponse(16, 1.0), torch.arange(2000) % 16, []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for chosen in ("auto", "reference"):
            monkeypatch.setenv("TORCHDP_KERNELS", chosen)
            reports.append(oracle.collect(x, noise=SeededNoise(3))["reports"])
    assert torch.equal(*reports) and len(seen) == warned


@pytest.fixture
def quick(monkeypatch):
    """No second is spent on times."""
    monkeypatch.setattr(examine, "ceilings", lambda device: CEILINGS)
    monkeypatch.setattr(examine, "seconds", lambda call, device: call() is None or 0.01)


def test_on_a_cpu_the_references_are_timed_and_used(quick, capsys, monkeypatch):
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    code, page = told(capsys, "--device", "cpu", "--only", *NAMES)
    assert code == 0 and "collect on cpu: works" in page and f"torch {torch.__version__}" in page
    assert "[1] fused kernels need a CUDA device" in page
    assert page.count("reference [1]") == 2 and page.count("10 ") >= 2


def test_the_report_as_json(quick, capsys):
    code, page = told(capsys, "--device", "cpu", "--json", "--only", NAMES[0])
    report = json.loads(page)
    assert code == 0 and report["collect"] is None and report["device"] == "cpu"
    assert report["ceilings"] == {"bytes": 1e10, "flops": 1e11, "normals": 1e8}
    (found,) = report["kernels"]
    users = cases.RESPONSE_COUNTS.host
    assert found["kernel"] == NAMES[0] and found["n"] == users and found["seconds"] == 0.01
    assert found["share"] == pytest.approx(max(8 * users / 1e10, 2 * users / 1e8) / 0.01)


def test_in_the_interpreter_kernels_agree(interpreter, capsys, monkeypatch):
    code, page = told(capsys, "--interpret", "--only", *NAMES)
    assert code == 0 and page.count("agrees") == 2 and "in Triton's interpreter" in page
    collected(monkeypatch, 0)


@pytest.mark.parametrize("missing", ["triton", "torchdp.kernels.response_counts.fused"])
def test_triton_that_does_not_import(interpreter, capsys, monkeypatch, missing):
    monkeypatch.setattr(dispatch, "_loaded", {})
    monkeypatch.delitem(sys.modules, "torchdp.kernels.response_counts.fused")
    monkeypatch.setitem(sys.modules, missing, None)
    code, page = told(capsys, "--interpret", "--only", *NAMES[:1])
    assert code == 1 and "[1] does not import: ModuleNotFoundError: import of" in page and "works" in page
    assert ("which does not import" in page) == (missing == "triton")
    collected(monkeypatch, 1)


def test_triton_that_does_not_compile(interpreter, capsys, monkeypatch):
    class Uncompiled:
        def __getitem__(self, grid):
            def launch(*_, **__):
                raise RuntimeError("Internal Triton PTX codegen error\nptxas: Unsupported .version 9.9")

            return launch

    monkeypatch.setattr(interpreter, "count_kernel", Uncompiled())
    code, page = told(capsys, "--interpret", "--only", *NAMES)
    assert code == 1 and page.count("agrees") == 1 and "works" in page
    assert "[1] does not run: RuntimeError: ptxas: Unsupported .version 9.9" in page
    collected(monkeypatch, 1)


def test_triton_that_does_not_agree(interpreter, capsys, monkeypatch):
    """Numbers that are those of another key."""
    whole = interpreter.counts
    monkeypatch.setattr(interpreter, "counts", lambda x, k, step, key, first=0: whole(x, k, step, key + 1, first))
    code, page = told(capsys, "--interpret", "--only", *NAMES)
    assert code == 1 and page.count("agrees") == 1 and "works" in page
    assert "[1] does not agree with its reference" in page
    collected(monkeypatch, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "chacha"], "--only: chacha is no kernel; there are chacha.keystream, normals.draws"),
        (["--device", "tpu"], "--device must be a device of this machine"),
        (["--device", "cuda:99"], "--device must be a device of this machine"),
        (["--interpret", "--device", "cuda"], "--interpret runs on the CPU"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    assert cli.main(["doctor", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("torchdp doctor: ") and message in said and said.count("\n") == 1


def test_a_bad_variable_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("TORCHDP_KERNELS", "yes")
    assert cli.main(["doctor"]) == 2
    assert "TORCHDP_KERNELS must be one of auto, fused, reference, not 'yes'" in capsys.readouterr().err


@pytest.fixture
def tiled(interpreter, monkeypatch):
    """A kernel on a device where it runs, and the time that each of its tiles is said to take."""
    monkeypatch.setattr(interpreter, "PAIRS", 1024)
    costs = {512: 1.0, 1024: 2.0}

    def seconds(call, device):
        call()
        return costs[interpreter.PAIRS]

    monkeypatch.setattr(examine, "seconds", seconds)
    kernel = Kernel(response_counts.__name__, "counts", response_counts.reference.counts, CASE)
    return kernel, interpreter, costs


CASE = replace(cases.RESPONSE_COUNTS, large=3000, host=100)


def test_the_fastest_tiles_are_chosen_and_stay(tiled):
    kernel, module, _ = tiled
    found = examine.fused(kernel, CPU, CEILINGS, tune=True)
    assert found.fault is None and found.tiles == {"PAIRS": 512} and module.PAIRS == 512
    assert found.seconds == 1.0 and found.share == pytest.approx(max(8 * 3000 / 1e10, 2 * 3000 / 1e8))


def test_a_gain_within_noise_changes_nothing(tiled):
    kernel, module, costs = tiled
    costs[512] = 1.99
    assert examine.fused(kernel, CPU, CEILINGS, tune=True).tiles == {"PAIRS": 1024} == {"PAIRS": module.PAIRS}


@pytest.mark.parametrize("how", ["disagrees", "fails"])
def test_tiles_that_fail_or_disagree_are_passed_over(tiled, monkeypatch, how):
    kernel, module, _ = tiled
    whole = module.counts

    def counts(x, k, step, key, first=0):
        if module.PAIRS == 512 and how == "fails":
            raise RuntimeError("out of resource: shared memory")
        return whole(x, k, step, key, first) + (module.PAIRS == 512)

    monkeypatch.setattr(module, "counts", counts)
    found = examine.fused(kernel, CPU, CEILINGS, tune=True)
    assert found.fault is None and found.tiles == {"PAIRS": 1024} == {"PAIRS": module.PAIRS}


def test_a_kernel_that_kills_its_context_is_named_and_the_rest_tried_elsewhere(monkeypatch):
    asked = []

    def fused(kernel, device, most, tune):
        if kernel is KERNELS[2]:
            raise LostDevice
        return Finding(kernel.name, None, tiles={"BLOCK": 256} if tune else {})

    monkeypatch.setattr(examine, "fused", fused)
    monkeypatch.setattr(doctor, "kept", lambda device, findings: asked.append(findings[-1]))
    monkeypatch.setattr(doctor, "elsewhere", lambda names, device: asked.extend(names) or [])
    found = doctor.examined(list(KERNELS), GPU, CEILINGS)
    assert [each.fault for each in found] == [None, None, doctor.LOST]
    assert asked == [found[2], *(kernel.name for kernel in KERNELS[3:])]  # kept before another process starts


def test_the_later_kernels_of_a_package_keep_the_tiles_of_the_first(monkeypatch):
    tuned = []
    monkeypatch.setattr(examine, "fused", lambda kernel, device, most, tune: tuned.append((kernel, tune)))
    doctor.examined(list(KERNELS), GPU, CEILINGS)
    assert len({kernel.package for kernel, _ in tuned}) == sum(tune for _, tune in tuned) == 10


def test_verdicts_are_kept_beside_those_of_other_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "no such GPU")
    verdicts._read.cache_clear()
    first = Finding("chacha.keystream", None, tiles={"BLOCKS": 128}, forms={"a": None})
    doctor.kept(GPU, [first, Finding("normals.draws", "no", forms={"a": "no", "b": "no"})])
    doctor.kept(GPU, [Finding("normals.draws", None, forms={"a": None})])
    faults = {"chacha.keystream": {"a": None}, "normals.draws": {"a": None, "b": "no"}}
    assert verdicts.read(GPU) == verdicts.Verdicts(faults, {"torchdp.kernels.chacha": {"BLOCKS": 128}})
    verdicts._read.cache_clear()


def test_a_child_that_ends_early_leaves_its_kernels_untried(monkeypatch):
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false" if os.path.exists("/bin/false") else sys.executable)
    (found,) = doctor.elsewhere(["no.kernel"], CPU)
    assert found == Finding("no.kernel", "could not be tried: its process ended early")
    assert doctor.elsewhere([], CPU) == []


@pytest.mark.slow
def test_a_child_process_says_what_it_finds():
    (found,) = doctor.elsewhere([NAMES[1]], CPU)
    assert found.kernel == NAMES[1] and found.fault == doctor.ON_CPU and 0 < found.share


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["", "raise ImportError('libtriton.so: cannot open shared object file')"])
def test_the_command_in_a_process_of_its_own(tmp_path, planted):
    """All kernels in the interpreter; and a Triton that raises where it is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("TRITON_INTERPRET", "TORCHDP_KERNELS"):
        environment.pop(name, None)
    if planted:
        (tmp_path / "triton.py").write_text(planted)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])]
        )
    command = [sys.executable, "-m", "torchdp", "doctor", "--interpret", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == bool(planted) and report["collect"] is None
    assert len(report["kernels"]) == len(KERNELS)
    faults = {found["fault"] for found in report["kernels"]}
    wanted = "does not import: ImportError: libtriton.so: cannot open shared object file"
    assert faults == ({wanted} if planted else {None})


@pytest.mark.parametrize("fault", [None, "does not agree with its reference", doctor.LOST])
def test_the_report_of_a_gpu(tmp_path, monkeypatch, capsys, fault):
    """All but the measuring itself, which needs one."""
    facts = types.SimpleNamespace(name="no such GPU", total_memory=80 * 2**30, major=9, minor=0)
    for name, value in (("is_available", True), ("device_count", 1), ("get_device_name", facts.name)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdicts._read.cache_clear()
    found = Finding(NAMES[0], fault, 1000, 0.002, 0.5, {} if fault else {"PAIRS": 2048}, {"a form": fault})
    monkeypatch.setattr(examine, "ceilings", lambda device: CEILINGS)
    monkeypatch.setattr(examine, "fused", lambda kernel, device, most, tune: found)
    monkeypatch.setattr(doctor, "collects", lambda device: None)
    monkeypatch.setattr(doctor.checks, "device_or_best", lambda name, value: torch.device("cuda:0"))
    code, page = told(capsys, "--only", NAMES[0])
    assert code == (fault is not None) and "cuda:0     no such GPU, 80 GiB, sm_90" in page
    row = next(line for line in page.splitlines() if line.startswith(NAMES[0])).split()
    assert row[1:] == (["reference", "[1]"] if fault else ["agrees"]) + ["1,000", "2", "50", "%"] + (
        [] if fault else ["PAIRS", "2048"]
    )
    assert f"collect on cuda:0: {'FAILS: not tried' if fault == doctor.LOST else 'works'}" in page
    (file,) = (tmp_path / "torchdp").iterdir()
    assert f"kept in {file}" in page and verdicts.read(GPU).faults == {NAMES[0]: {"a form": fault}}
    verdicts._read.cache_clear()


def test_a_gpu_whose_memory_is_taken_is_one_line(monkeypatch, capsys):
    def full(device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(examine, "ceilings", full)
    assert cli.main(["doctor", "--device", "cpu"]) == 2
    assert "free memory" in capsys.readouterr().err


COMPILED = """
import sys
import torch
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
sys.path.insert(0, sys.argv[1])
import compiled
from torchdp.cli.examine import products
from torchdp.kernels.dispatch.every import KERNELS

cpu, made = torch.device("cpu"), []

def waves(x, frequencies, phases, labels, classes, *drawn):  # 77 dimensions, two waves, a hundred classes
    x, frequencies, phases = x[:, :1].repeat(1, 77), frequencies[:1].repeat(77, 1), phases[:1].repeat(2, 1)
    return (x, frequencies, phases, labels, 100, *drawn), {}

def record(self, grid):
    return lambda *arguments, **options: made.append(self.run(*arguments, grid=grid, warmup=True, **options))

driver.set_active(compiled.Target("cuda", "90"))
JITFunction.__getitem__ = record
for kernel in KERNELS:
    for tiles in products(kernel):
        made.clear()
        kernel.set_tiles(cpu, tiles)
        for call in [None] if "rounded" not in kernel.name else [None, waves(*kernel.public(cpu)[0][0])]:
            kernel.result(kernel.fused(cpu), cpu, call)
        used = [compiled.usage(binary) for binary in made]
        print(kernel.name, *tiles.values(), len(used), sum(int(each["STACK"]) + int(each["LOCAL"]) for each in used))
"""


@pytest.mark.slow
def test_every_case_and_size_compiles_for_a_hopper_gpu_and_spills_nothing():
    """What the doctor launches there to choose among tiles; minutes of compiling."""
    pytest.importorskip("triton")
    bench = Path(__file__).resolve().parents[2] / "experiments" / "bench"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILED, str(bench)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in lines} == {kernel.name for kernel in KERNELS}
    assert all(int(launches) >= 1 and int(spilled) == 0 for *_, launches, spilled in lines), done.stdout
