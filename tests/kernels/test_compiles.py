"""What the launchers launch is compiled for GPUs that are not here, and held to experiments/bench/static_kernels.txt.

Triton's interpreter would let more pass: types that do not compile, spills, scattered stores.
"""

import ast
import itertools
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
import triton

from torchdp.kernels.dispatch import every

BENCH, KERNELS = Path(__file__).parents[2] / "experiments" / "bench", Path(__file__).parents[2] / "kernels"
FILES = sorted(KERNELS.glob("*/fused.py"))
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
disassembled = pytest.mark.skipif(not (TOOLS / "nvdisasm").exists(), reason="this Triton brings no disassembler")
# without an FP64 instruction: for others the table says how many
WITHOUT_FP64 = {"chacha.keystream_kernel"}
WITHOUT_FP64 |= {"response_counts.count_kernel", "unary_counts.others_kernel", "unary_counts.own_kernel"}
WITHOUT_FP64 |= {"rounded_features.rounded_kernel", "rounded_features.positive_kernel"}
# results stored where they are drawn: what a thread holds lies together
WIDE = {"chacha.keystream_kernel", "normals.draw_kernel"}


# names of triton.language in 3.4.0, 3.5.1, 3.6.0, 3.7.0, 3.8.0 and 3.9.0, of which pyproject.toml promises the first
EVERYWHERE = """abs arange atomic_add broadcast_to cast cdiv constexpr cumsum dot float16 float32 float64 floor full
    histogram int16 int32 int64 interleave join load log max maximum minimum num_programs permute program_id reshape
    split sqrt static_range store sum uint32 uint64 umulhi where zeros""".split()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_kernels_use_what_every_supported_triton_has_and_are_launched_by_their_forms(file):
    nodes = list(ast.walk(ast.parse(file.read_text())))
    owned = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    assert {node.attr for node in owned if node.value.id == "tl"} <= set(EVERYWHERE)
    jitted = {
        node.name: ast.unparse(node.decorator_list[0]) for node in nodes if getattr(node, "decorator_list", None)
    }
    assert all(how.startswith(("launched(", "triton.jit")) for how in jitted.values())
    calls = [node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]
    launched = {call.value.id for call in calls if isinstance(call.value, ast.Name)} - {"kernel"}
    assert launched <= {name for name, how in jitted.items() if how.startswith("launched(")}
    for loop in (
        node for node in nodes if isinstance(node, ast.For)
    ):  # 3.4 refuses a loop's variable of another type
        stored = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name)]
        own = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        assert not own & {node.id for node in stored if isinstance(node.ctx, ast.Store)}, loop.lineno


@pytest.fixture(scope="module")
def static():
    sys.path.insert(0, str(BENCH))
    try:
        import static_kernels
    finally:
        sys.path.remove(str(BENCH))
    return static_kernels


@pytest.fixture(scope="module")
def stated(static):
    """The committed rows by GPU, kernel and call, and the Triton that they were made with."""
    head, names, *lines = (BENCH / "static_kernels.txt").read_text().splitlines()
    assert names.split() == static.COLUMNS.split()
    rows = [dict(zip(names.split(), re.split("  +", line), strict=True)) for line in lines]
    return {(row["gpu"], row["kernel"], row["call"]): row for row in rows}, re.search(r"Triton (\S+) ", head)[1]


def judged(rows, stated):
    """No stack, no spill; registers and warps as stated, with room for another version of ptxas."""
    known, version = stated
    slack = 8 if triton.__version__ == version else 32
    for row in rows:
        where = f"{row['kernel']}, {row['call']}, {row['gpu']}"
        said = known[row["gpu"], row["kernel"], row["call"]]
        assert row["stack"] == 0 and "local" not in row["writes"], f"{where} spills: {row}"
        assert abs(row["registers"] - int(said["registers"])) <= slack, f"{where}: {row['registers']} registers"
        assert row["warps_per_sm"] >= int(said["warps_per_sm"]) - slack, f"{where}: {row['warps_per_sm']} warps"
        if row["kernel"] in WITHOUT_FP64:
            assert row["fp64"] == 0, where
        if row["kernel"] in WIDE and "63" not in row["call"] and "255" not in row["call"]:
            assert re.fullmatch(r"store 128 x\d+", row["writes"]), f"{where}: {row['writes']}"


@disassembled
def test_first_form_of_each_kernel_on_a_hopper_gpu(static, stated):
    rows = [static.row("90", found) for found in static.launched("cuda", "90", "first")]
    assert {row["kernel"] for row in rows} == {kernel for _, kernel, _ in stated[0]}
    judged(rows, stated)


@disassembled
@pytest.mark.slow
@pytest.mark.parametrize("target", ["90", "80"])
def test_every_launch(static, stated, target):
    rows = [static.row(target, found) for found in static.launched("cuda", target)]
    assert len(rows) == sum(gpu == f"sm_{target}" for gpu, _, _ in stated[0])
    judged(rows, stated)


@pytest.mark.slow
def test_every_launch_compiles_for_an_amd_gpu(static, stated):
    found = static.launched("hip", "gfx942")
    assert len(found) == sum(gpu == "sm_90" for gpu, _, _ in stated[0])
    assert all(each["bytes"] > 0 for each in found)


def test_occupancy_is_what_each_limit_leaves(static):
    hopper, ampere = static.GPUS["90"], static.GPUS["80"]
    assert static.occupancy(hopper, 4, 32, 0) == 64  # 2048 threads
    assert static.occupancy(hopper, 1, 32, 0) == 32  # 32 blocks
    # 65536 registers
    assert static.occupancy(hopper, 8, 128, 0) == 16 and static.occupancy(hopper, 8, 129, 0) == 8
    # shared
    assert static.occupancy(hopper, 4, 32, 99 * 1024) == 8 and static.occupancy(ampere, 4, 32, 99 * 1024) == 4


SASS = """
        /*0000*/                   IMAD.WIDE.U32 R2, R3, 0x4, R4 ;
.L_x_0:
        /*0010*/                   DFMA R4, R4, R4, R4 ;
.L_x_1:
        /*0020*/                   LOP3.LUT R1, R1, R2, RZ, 0x96, !PT ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/               @P1 BRA `(.L_x_0) ;
        /*0050*/              @!P2 BRA `(.L_x_2) ;
        /*0060*/                   STL.64 [R1], R2 ;
        /*0070*/                   FFMA R1, R1, R1, R1 ;
.L_x_2:
        /*0080*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0090*/                   EXIT ;
        $kernel$__internal_0_$__cuda_sm20_div_u64:
        /*00a0*/                   DADD R4, R4, R4 ;
"""


def test_a_program_s_instructions_are_counted_as_often_as_they_are_passed(static):
    code = static.Code.read(SASS)
    work = {"trips": [5, 3], "rare": False, "units": 2.0}
    turns = static.counted(code, work, 32)
    # outer loop 5 times, inner one 3 times each; what comes after the last exit is not counted
    assert (turns["imad"], turns["fp64"], turns["int"], turns["fp32"]) == (16, 5 * 16, 15 * 16, 16)
    assert turns["memory"] == (2 + 4) * 16 and turns["issue"] == 16 * (1 + 5 + 15 + 15 + 5 + 1 + 2 + 1 + 1)
    assert static.counted(code, {**work, "rare": True}, 32)["fp32"] == 0
    assert static.writes(code) == "local 64 x1, store 128 x1"
    with pytest.raises(RuntimeError, match="2 loops, not 1"):
        static.counted(code, {**work, "trips": [5]}, 32)


@pytest.mark.parametrize("name", ["static_versions.txt", "static_tiles.txt"])
def test_no_version_and_no_tile_that_may_be_chosen_spills(name):
    """The committed tables: none fails, none keeps a byte; the tiles are those of the doctor."""
    head, columns, *lines = (BENCH / name).read_text().splitlines()
    assert " 0 do not compile" in head
    names = re.split("  +", columns)
    held = [place for place, each in enumerate(names) if each.split()[0] in ("stack", "spilled")]
    rows = [re.split("  +", line) for line in lines]
    assert rows and held
    assert not [(*row[:3], names[p], row[p]) for row in rows for p in held if row[p] != "0"]
    kernels = {kernel for _, kernel, *_ in rows}
    stated = {line.split()[1] for line in (BENCH / "static_kernels.txt").read_text().splitlines()[2:]}
    assert kernels == stated
    if name == "static_tiles.txt":
        chosen = {(kernel.split(".")[0], *call.split("; ")[1:]) for _, kernel, call, *_ in rows}
        for kernel in every.KERNELS:
            package, names = kernel.package.rpartition(".")[2], list(kernel.case.tiles)
            sizes = itertools.product(*kernel.case.tiles.values())
            forms = {(package, *map(" ".join, zip(names, map(str, each), strict=True))) for each in sizes}
            assert len(forms - chosen) == 1, package  # the committed sizes, whose table is static_versions.txt


@disassembled
@pytest.mark.slow
@pytest.mark.parametrize("target", ["90", "80"])
def test_no_tile_that_may_be_chosen_spills_here(static, target):
    rows = [static.resources("here", target, found) for found in static.launched("cuda", target, "tiles")]
    assert not [row for row in rows if row["error"] or row["stack"] or row["spilled"]] and len(rows) > 80
