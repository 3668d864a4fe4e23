"""Every fused kernel compiles for a Hopper GPU, which needs no GPU; Triton's interpreter would let more pass."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

# module under torchdp.kernels, kernel, types of its arguments, values of its compile-time arguments
SIGNATURES: list[tuple[str, str, dict[str, str], dict[str, object]]] = []

COMPILE = textwrap.dedent("""
    import importlib, json, sys, triton
    from triton.backends.compiler import GPUTarget

    for module, name, types, constants in json.load(sys.stdin):
        kernel = getattr(importlib.import_module("torchdp.kernels." + module), name)
        types = {**types, **dict.fromkeys(constants, "constexpr")}
        source = triton.compiler.ASTSource(kernel, types, constants)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        print(module, name, "cubin" in made.asm, flush=True)
""")


def test_every_kernel_compiles_for_a_hopper_gpu():
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", COMPILE],
        input=json.dumps(SIGNATURES),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    lines = child.stdout.split("\n")[:-1]
    assert lines == [f"{module} {name} True" for module, name, _, _ in SIGNATURES]
