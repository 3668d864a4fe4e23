"""What the launchers of all fused kernels compile, without a GPU: prints a JSON line for each launch.

``python experiments/bench/compiled.py cuda 90 [first | tiles]`` (``cuda 80``, ``hip gfx942``) calls every launcher on
tensors of the CPU, compiles what it would launch, with its own tile, its own warps and what Triton knows of its
arguments, for that target, and disassembles it; with ``first``, one form of each kernel; with ``tiles``, every form
with each other size of tiles among which ``torchdp doctor`` chooses. Nothing is run. Needs Triton, whose package brings
NVIDIA's tools. What does not compile is a line with its error.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdp.randomness import keyed_generator


@dataclass(frozen=True)
class Work:
    """What one program of a kernel does.

    unit, units: what is counted, and how many of them. trips: how often each loop of the compiled code is passed, in
    the order of their first instructions; an inner loop, each time that the outer one is. bytes: to and from memory
    for a unit, at least. products: multiply-adds of tensor cores for a unit. rare: the longest branch is hardly ever
    taken, and not counted.
    """

    unit: str
    units: float
    trips: tuple[float, ...] = ()
    bytes: float = 0
    products: float = 0
    rare: bool = False


@dataclass(frozen=True)
class Launch:
    """One call of a launcher, the work of each kernel it launches, in their order, and the units of the whole call."""

    name: str
    call: Callable[[], object]
    works: tuple[Work, ...]
    totals: tuple[float, ...]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers on a GPU, where they are timed; zeros on a CPU."""
    if torch.get_default_device().type == "cpu":
        return torch.zeros(shape, dtype=dtype)
    return torch.empty(shape, dtype=dtype).uniform_(generator=keyed_generator(b"launches"))


def counters(bits: int) -> float:
    """Expected Philox counters until so many bits are decided: kernels/unary_counts/README.md."""
    return sum(1 - (1 - 2.0 ** (-4 * j)) ** bits for j in range(14))


def count(base: int, many: float) -> int:
    return max(1, int(base * many))


def words(many: float) -> Iterator[Launch]:
    from torchdp.kernels.chacha import fused as chacha
    from torchdp.kernels.normals import fused as normals

    key, device, n = torch.zeros(8, dtype=torch.int32), torch.get_default_device(), count(10**6, many)
    rows = count(10**5, many)
    work = Work("word", 16 * chacha.BLOCKS, (10,), 4)
    yield Launch("key stream", lambda: chacha.keystream(key, 0, n), (work,), (16 * n,))
    for width, dtype in ((64, torch.float32), (64, torch.float64), (63, torch.float32), (63, torch.float64)):
        work = Work("normal", 4 * normals.BLOCK, bytes=dtype.itemsize)
        yield Launch(
            f"width {width}, {bits_of(dtype)}",
            lambda w=width, t=dtype: normals.draws(1, 0, rows, w, t, 0, device),
            (work,),
            (rows * width,),
        )


def reports(many: float) -> Iterator[Launch]:
    from torchdp.kernels.response_counts import fused as response
    from torchdp.kernels.unary_counts import fused as unary

    n = count(10**6, many)
    for k, dtype in ((16, torch.int64), (1024, torch.int64), (100_000, torch.int64), (256, torch.uint8)):
        x = (torch.arange(n) % k).to(dtype)
        work = Work("user", 100 * 2 * response.PAIRS, (100,), x.itemsize)
        yield Launch(
            f"k = {k}, {bits_of(dtype)}",
            lambda x=x, k=k: response.counts(x, k, 2**63 // (k + 1), 1),
            (work,),
            (n,),
        )
    x = torch.arange(n) % 1024
    word = Work("bit", 100 * 32 * unary.WORDS, (100, counters(32 * unary.WORDS)))
    own = Work("user", 100 * unary.USERS, (100, counters(unary.USERS), counters(unary.USERS)), 8)
    yield Launch("k = 1024, int64", lambda: unary.tally(x, 1024, 0.5, 0.25, 1), (word, own), (1024 * n, n))


def vectors(many: float) -> Iterator[Launch]:
    from torchdp.kernels.privunit import fused as privunit

    users, each = 1024, count(1024, many)  # of a program; of each point
    counts, n = torch.full((64,), each), 64 * each
    draws = values(n)
    for dtype, width in ((torch.float32, 64), (torch.float64, 64), (torch.float32, 1024), (torch.float32, 63)):
        points, tiles = values(64, width, dtype=dtype) / width, users * -(-width // 4) / privunit.TILE
        work = Work("normal", users * width, (tiles / privunit.STEPS, privunit.STEPS), 24 / width)
        yield Launch(
            f"d = {width}, {bits_of(dtype)}",
            lambda p=points: privunit.sums(p, counts, draws, draws, draws, 1, 0, radius=1.0, mean=0.5),
            (work,),
            (width * n,),
        )


def bits_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def features(many: float) -> Iterator[Launch]:
    from torchdp.kernels.rounded_features import fused as features
    from torchdp.kernels.secure_sketch import fused as sketch

    for width, waves, classes in ((768, 1, 10), (77, 2, 100)):
        n = count(4096, many)
        x, w, phases = values(n, width), values(width, 768), values(waves, 768)
        labels, tile = torch.arange(n) % classes, features.BLOCK_N * features.BLOCK_I
        depth, kinds = -(-width // features.BLOCK_D), -(-classes // 16)
        loops = (depth, kinds) if waves == 1 else (depth, waves, kinds)
        work = Work("feature", tile, loops, 4 * width / 768, 3 * width)
        yield Launch(
            f"d = {width}, {waves} waves",
            lambda a=(x, w, phases, labels, classes): features.rounded_counts(*a, 1, 0, 1),
            (work,),
            (768 * n,),
        )
        yield Launch(
            f"d = {width}, {waves} waves",
            lambda a=(x, w, phases, labels, classes): features.positive_counts(*a),
            (work,),
            (768 * n,),
        )
    n = count(10**4, many)
    rows, signs = torch.arange(2 * n).view(2, n) * 37 % 1000, torch.ones(2, n, dtype=torch.int8)
    units, key = torch.ones(1000, dtype=torch.float64), torch.zeros(8, dtype=torch.int32)
    for ring, real, servers in (
        (torch.int32, torch.float32, 3),
        (torch.int64, torch.float64, 3),
        (torch.int64, torch.float32, 2),
    ):
        sums, held = torch.zeros(servers, 1000, 128, dtype=ring), values(n, 128, dtype=real)
        work = Work("entry", sketch.ENTRIES, (10,) * servers, held.itemsize / 2 + 9 / 128)
        yield Launch(
            f"{servers} servers, {bits_of(ring)}, {bits_of(real)}",
            lambda a=(sums, held): sketch.add(*a, rows, signs, units, key, 0, 1024.0),
            (work,),
            (256 * n,),
        )


def steps(many: float) -> Iterator[Launch]:
    from torchdp.kernels.correlated_noise import Step
    from torchdp.kernels.correlated_noise import fused as correlated

    key, numbers, n = torch.zeros(8, dtype=torch.int32), torch.ones(5, dtype=torch.float64), count(10**6, many)
    for running, kept, dtype, earlier in (
        (0, 0, torch.float32, 0),
        (4, 0, torch.float32, 0),
        (4, 0, torch.float64, 0),
        (0, 31, torch.float32, 0),
        (4, 0, torch.float32, 3),
    ):
        total, state = values(n, dtype=dtype), values(running + kept, n, dtype=dtype)
        gains, lags = values(running + kept, dtype=dtype) / 2, torch.zeros(1 + earlier, dtype=torch.int32)
        now = Step(gains, gains[:running], numbers[: earlier + 2], lags, (5 if kept else -1, -1))
        moved = dtype.itemsize * (2 + 2 * running + (kept + 1 if kept else 0))
        loop = (earlier, 10, 0) if earlier else (kept // 4, kept % 4) if kept else ()
        work = Work("number", correlated.NUMBERS, (10, 0, *loop), moved, rare=not earlier)
        name = f"{kept + 1} bands" if kept else f"{running} buffers" if running else "independent"
        name += f", {earlier} passes" if earlier else ""
        yield Launch(
            f"{name}, {bits_of(dtype)}",
            lambda a=((total, state), total, now, key): correlated.add(*a, 3, 0),
            (work,),
            (n,),
        )


def integers(many: float) -> Iterator[Launch]:
    from torchdp.kernels.dispatch import trials
    from torchdp.kernels.guided_draws import fused as guided

    n = count(10**6, many)
    for dtype, chosen, times in ((torch.int16, 16, 0), (torch.int16, 16, 3), (torch.int32, 20, 0)):
        parts, cells = trials.guide(torch.empty(n, dtype=dtype), 2)[0], torch.arange(2**chosen).to(torch.int16)
        out, bits = torch.zeros(n, dtype=torch.int64), 8 * dtype.itemsize
        works = (Work("draw", guided.DRAWS, (), each) for each in (bits / 8, bits / 8 + (16 if times else 8)))
        yield Launch(
            f"{bits} bits{', added' if times else ''}",
            lambda a=(out, parts, cells, times): guided.fill(*a),
            tuple(works),
            (n, n),
        )


def launches(many: float = 1) -> Iterator[Launch]:
    """On torch's default device; many: times the number of users, rows and numbers."""
    for room in (words, reports, vectors, features, steps, integers):
        yield from room(many)


class Target:
    """Stands for Triton's driver: a device of this kind, which nothing is run on."""

    def __init__(self, backend: str, architecture: str) -> None:
        from triton.backends.compiler import GPUTarget

        cuda = backend == "cuda"
        self.target = GPUTarget(backend, int(architecture) if cuda else architecture, 32 if cuda else 64)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def settings(tiles: bool) -> Iterator[tuple[str, Mapping[str, int]]]:
    """A package and the sizes of its tiles: the committed ones of all packages (""), or each other choice."""
    if not tiles:
        yield "", {}
        return
    from torchdp.cli.examine import products
    from torchdp.kernels.dispatch.every import KERNELS

    for kernel in {each.package: each for each in reversed(KERNELS)}.values():
        committed = kernel.tiles(torch.device("cpu"))
        for sizes in products(kernel):
            if sizes != committed:
                kernel.set_tiles(torch.device("cpu"), sizes)
                yield kernel.package, sizes
        kernel.set_tiles(torch.device("cpu"), committed)


def compiled(target: Target, which: str = "") -> Iterator[tuple[Work, dict[str, Any], Any]]:
    """Every launch of every call: the kernel's work, what the launcher asked for, the compiled kernel or an error.

    which: "first", the first form of each kernel alone; "tiles", sizes of tiles that are not the committed ones.
    """
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    made: list[tuple[Any, dict[str, Any], Any]] = []
    seen: set[str] = set()
    only = ""  # this package alone

    def record(self: Any, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            package = self.fn.__module__.removesuffix(".fused")
            name = f"{package.rpartition('.')[2]}.{self.fn.__name__}"
            skip = (which == "first" and name in seen) or only not in ("", package)
            seen.add(name)
            binary = None
            if not skip:
                try:
                    binary = self.run(*arguments, grid=grid, warmup=True, **options)
                except Exception as error:
                    binary = error
            made.append((name, options, binary))

        return launch

    driver.set_active(target)  # type: ignore[arg-type]
    JITFunction.__getitem__ = record  # type: ignore[method-assign,assignment]
    for package, sizes in settings(which == "tiles"):
        only = package
        chosen = "".join(f"; {name} {size}" for name, size in sizes.items())
        for launch in launches():
            made.clear()
            launch.call()
            if len(made) != len(launch.works):
                raise RuntimeError(f"{launch.name} launches {len(made)} kernels, not {len(launch.works)}")
            for work, (name, options, binary) in zip(launch.works, made, strict=True):
                if binary is not None:
                    yield work, {"kernel": name, "call": launch.name + chosen, "options": options}, binary


def tool(name: str, path: str) -> str:
    import triton

    command = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    arguments = {"cuobjdump": ["-res-usage"], "nvdisasm": ["-c"]}[name]
    return subprocess.run([command, *arguments, path], capture_output=True, text=True, check=True).stdout


def usage(binary: Any) -> dict[str, Any]:
    """Registers of a thread, bytes of its stack, bytes of shared memory, and the instructions."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        Path(path).write_bytes(binary.asm["cubin"])
        found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", tool("cuobjdump", path)))
        return {**{name: int(number) for name, number in found.items()}, "sass": tool("nvdisasm", path)}


def main(backend: str, architecture: str, which: str = "") -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    if backend == "hip":
        torch.version.hip = "static"  # type: ignore[assignment]
    for work, asked, binary in compiled(Target(backend, architecture), which):
        found = {**asked, "work": asdict(work)}
        if isinstance(binary, Exception):
            found["error"] = f"{type(binary).__name__}: {binary}"[-500:]
        else:
            found |= {"warps": binary.metadata.num_warps, "shared": binary.metadata.shared}
            found |= usage(binary) if backend == "cuda" else {"bytes": len(binary.asm["hsaco"])}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
