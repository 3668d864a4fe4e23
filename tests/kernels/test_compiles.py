"""Every fused kernel compiles for a Hopper GPU, which needs no GPU; Triton's interpreter would let more pass."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

# module under torchdp.kernels, kernel, types of its arguments, values of its compile-time arguments
SIGNATURES: list[tuple[str, str, dict[str, str], dict[str, object]]] = [
    (
        "chacha.fused",
        "keystream_kernel",
        {"out": "*i32", "key": "*i32", "first": "i64", "blocks": "i32", "group": "i32", "stream": "i64"},
        {"COUNT": 256},
    ),
    *(
        (
            "secure_sketch.fused",
            "add_kernel",
            {
                "sums": f"*i{bits}",
                "values": values,
                "rows": "*i64",
                "signs": "*i8",
                "units": "*fp64",
                "key": "*i32",
                "first": "i64",
                "clients": "i32",
                "copies": "i32",
                "columns": "i32",
                "size": "i32",
                **dict.fromkeys(
                    ("value_step", "value_column", "row_copy", "row_step", "sign_copy", "sign_step"), "i64"
                ),
                "scale": "fp32",
            },
            {"SERVERS": 3, "BITS": bits, "ENTRIES": 1024},
        )
        for bits, values in ((32, "*fp32"), (64, "*fp64"))
    ),
    *(
        (
            "rounded_features.fused",
            name,
            {
                **{"out": "*i64", "x": "*fp32", "frequencies": "*fp32", "phases": "*fp32", "labels": "*i64"},
                **drawn,
                **dict.fromkeys(
                    ("waves", "n", "d", "features", "classes", "x_row", "wave_row", "label_step"), "i32"
                ),
            },
            {"BLOCK_N": 32, "BLOCK_I": 64, "BLOCK_D": 32},
        )
        for name, drawn in (
            ("rounded_kernel", {"key": "i64", "first": "i64", "repeats": "i32"}),
            ("positive_kernel", {}),
        )
    ),
    *(
        (
            "response_counts.fused",
            "count_kernel",
            {
                "x": values,
                "counts": "*i64",
                "n": "i64",
                "stride": "i64",
                "k": "i32",
                "step": "i64",
                "magic": "i64",
                "key": "i64",
                "first": "i64",
                "copies": "i32",
            },
            {"PAIRS": 1024, "BINS": bins},
        )
        for values, bins in (("*i64", 0), ("*u8", 1024))
    ),
    (
        "unary_counts.fused",
        "others_kernel",
        {
            "tally": "*i64",
            "n": "i64",
            "k": "i32",
            "numerator": "i64",
            "digits": "i32",
            "key": "i64",
            "first": "i64",
        },
        {"GROUPS": 2, "COLUMNS": 32},
    ),
    (
        "unary_counts.fused",
        "own_kernel",
        {
            "x": "*i16",
            "tally": "*i64",
            "n": "i64",
            "stride": "i64",
            "k": "i32",
            "lost": "i64",
            "lost_digits": "i32",
            "off": "i64",
            "off_digits": "i32",
            "key": "i64",
            "first": "i64",
            "copies": "i32",
        },
        {"USERS": 128},
    ),
    *(
        (
            "inversion.fused",
            name,
            {
                **{"out": "*i64", "table": "*i32", **base, "key": "i64", "first": "i64", "stream": "i32"},
                **{"users": "i64", "columns": "i32", "across": "i32", **rounds},
            },
            {"STEPS": 2, "HEIGHT": 4, "WIDTH": 64},
        )
        for name, base, rounds in (("draws_kernel", {"base": "i64"}, {}), ("sums_kernel", {}, {"rounds": "i32"}))
    ),
    (
        "truncated_normal.fused",
        "above_kernel",
        {"tail": "*fp64", "out": "*fp64", "line": "*fp64", "n": "i64"},
        {"BLOCK": 256},
    ),
    (
        "truncated_normal.fused",
        "draws_kernel",
        {"out": "*fp64", "line": "*fp64", "key": "i64", "first": "i64", "stream": "i32", "n": "i64"},
        {"BLOCK": 256},
    ),
    *(
        signature
        for real, double in (("*fp32", False), ("*fp64", True))
        for signature in (
            (
                "normals.fused",
                "draw_kernel",
                {
                    "out": real,
                    "key": "i64",
                    "first": "i64",
                    **dict.fromkeys(("stream", "size", "width", "groups"), "i32"),
                },
                {"BLOCK": 256, "DOUBLE": double, "WHOLE": True},
            ),
            (
                "privunitg.fused",
                "normals_kernel",
                {
                    **{"sums": "*fp64", "starts": "*i64", "stops": "*i64"},
                    **{"key": "i64", "width": "i32", "across": "i32"},
                },
                {"Q": 4, "U": 64, "STEPS": 16, "DOUBLE": double},
            ),
            (
                "privunitg.fused",
                "scalars_kernel",
                {
                    "lifts": "*fp64",
                    "taus": "*fp64",
                    "starts": "*i64",
                    "stops": "*i64",
                    "law": "*fp64",
                    "key": "i64",
                },
                {"U": 64, "DOUBLE": double},
            ),
            (
                "privunit.fused",
                "sum_kernel",
                {
                    **{"sums": "*fp64", "reaches": "*fp64", "axes": real, "heights": real},
                    **dict.fromkeys(("lifts", "alongs", "acrosses"), "*fp64"),
                    **dict.fromkeys(("kinds", "starts", "stops"), "*i64"),
                    **{"key": "i64", "first": "i64", "width": "i32", "tiny": real},
                },
                {"Q": 16, "U": 16, "STEPS": 16, "DOUBLE": double},
            ),
        )
    ),
]

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


KERNELS = {(module, name): (module, name, *rest) for module, name, *rest in SIGNATURES}  # the last form of each


@pytest.mark.parametrize("chosen", [KERNELS.values(), pytest.param(SIGNATURES, marks=pytest.mark.slow)])
def test_every_kernel_compiles_for_a_hopper_gpu(chosen):
    """One form of each kernel; every form, 32 and 64 bits, shared and global counters, is a slow test."""
    pytest.importorskip("triton")
    chosen = list(chosen)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", COMPILE],
        input=json.dumps(chosen),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    lines = child.stdout.split("\n")[:-1]
    assert lines == [f"{module} {name} True" for module, name, _, _ in chosen]
