"""Every kernel is compiled for a GPU that is not here, and keeps nothing in memory that registers
should hold.

Triton's interpreter would let more pass: types that do not compile, spills.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
import triton

from torchdp.kernels.dispatch.every import KERNELS

FOLDER = Path(__file__).parents[2] / "kernels"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

# Names of triton.language in 3.4.0, 3.5.1, 3.6.0, 3.7.0, 3.8.0 and 3.9.0, of which pyproject.toml
# promises the first.
EVERYWHERE = """abs arange atomic_add broadcast_to cast cdiv constexpr cumsum dot float16 float32 float64 floor full
    histogram int16 int32 int64 interleave join load log max maximum minimum num_programs permute program_id reshape
    split sqrt static_range store sum uint32 uint64 umulhi where zeros""".split()


@pytest.mark.parametrize(
    "file", sorted(FOLDER.glob("*/fused.py")), ids=lambda file: file.parent.name
)
def test_kernels_use_what_every_supported_triton_has_and_are_launched_alike(file):
    nodes = list(ast.walk(ast.parse(file.read_text())))
    owned = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    assert {node.attr for node in owned if node.value.id == "tl"} <= set(EVERYWHERE)
    jitted = {
        node.name: ast.unparse(node.decorator_list[0])
        for node in nodes
        if getattr(node, "decorator_list", None)
    }
    assert all(how.startswith(("launched(", "triton.jit")) for how in jitted.values())
    calls = [
        node.func
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    ]
    launched = {call.value.id for call in calls if isinstance(call.value, ast.Name)} - {"kernel"}
    assert launched <= {name for name, how in jitted.items() if how.startswith("launched(")}
    for loop in (
        node for node in nodes if isinstance(node, ast.For)
    ):  # 3.4 refuses a loop's variable of another type
        stored = [
            node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name)
        ]
        own = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        assert not own & {node.id for node in stored if isinstance(node.ctx, ast.Store)}, (
            loop.lineno
        )


# Compiles what the launchers launch on tensors of the CPU, with what Triton knows of their
# arguments; nothing is run.
COMPILED = """
import re, subprocess, sys, tempfile
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from torchdp.kernels.dispatch.every import KERNELS

backend, architecture, tool = sys.argv[1:]
launched = []

class Target:
    get_current_device = get_current_stream = lambda self, *_: 0
    def get_current_target(self):
        return GPUTarget(backend, int(architecture), 32) if backend == "cuda" else GPUTarget(backend, architecture, 64)

def record(self, grid):
    return lambda *some, **named: launched.append((self.__name__, self.run(*some, grid=grid, warmup=True, **named)))

driver.set_active(Target())
JITFunction.__getitem__ = record
if backend == "hip":
    torch.version.hip = "static"
for kernel in KERNELS:
    launched.clear()
    kernel.result(kernel.fused, torch.device("cpu"))
    for name, binary in launched:
        spilled = 0
        if backend == "cuda":
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(binary.asm["cubin"])
                file.flush()
                said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
            spilled = sum(int(number) for number in re.findall(r"(?:STACK|LOCAL):(\\d+)", said.stdout))
        else:
            assert binary.asm["hsaco"]
        print(kernel.name, name, spilled)
"""


@pytest.mark.parametrize(
    ("backend", "architecture"),
    [
        ("cuda", "90"),
        pytest.param("cuda", "80", marks=pytest.mark.slow),
        pytest.param("hip", "gfx942", marks=pytest.mark.slow),
    ],
)
def test_every_kernel_compiles_and_spills_nothing(backend, architecture):
    tool = TOOLS / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton brings no tools")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILED, backend, architecture, str(tool)]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in lines} == {kernel.name for kernel in KERNELS}
    assert not [line for line in lines if line[2] != "0"]
