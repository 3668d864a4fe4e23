"""What ``torchdp doctor`` measures: ceilings of a device, and each kernel's agreement, time and best tiles on it."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from torchdp.kernels.dispatch import Kernel, LostDevice
from torchdp.kernels.dispatch.cases import Work

ROUNDS = 3
LONG = 0.5  # seconds
GAIN = 0.97  # of the time: other tiles must be faster by more than noise


@dataclass(frozen=True)
class Ceilings:
    """What this device does in a second: bytes copied (read and written), flops of float32 products, normals drawn."""

    bytes: float
    flops: float
    normals: float

    def floor(self, work: Work) -> float:
        """Seconds that the work takes at least; a random word counts as a normal."""
        return max(work.bytes / self.bytes, work.flops / self.flops, work.words / self.normals)


@dataclass(frozen=True)
class Finding:
    """fault: why the fused form is not used; None: it is. seconds: of the form that is used, for n users, rows or
    numbers, None where it was not timed; share: of the ceilings' floor in it. tiles: those chosen. forms: verdicts."""

    kernel: str
    fault: str | None
    n: int = 0
    seconds: float | None = None
    share: float | None = None
    tiles: dict[str, int] = field(default_factory=dict)
    forms: dict[str, str | None] = field(default_factory=dict)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of a few rounds after one that does not count; on a CPU of this one, where it is long."""
    times = []
    for _ in range(ROUNDS + 1):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
        if device.type == "cpu" and times[0] > LONG:
            return times[0]
    return sorted(times[1:])[ROUNDS // 2]


def ceilings(device: torch.device) -> Ceilings:
    """Measured: a copy, a square product, standard normals; the sizes fill no cache of the device."""
    large = device.type == "cuda"
    size, side = 2**28 if large else 2**24, 8192 if large else 1024
    one, square = torch.zeros(size, device=device), torch.ones(side, side, device=device)
    other, product = torch.empty_like(one), torch.empty_like(square)
    generator = torch.Generator(device).manual_seed(0)
    return Ceilings(
        8 * size / seconds(lambda: other.copy_(one), device),
        2 * side**3 / seconds(lambda: torch.mm(square, square, out=product), device),
        size / 8 / seconds(lambda: one[: size // 8].normal_(generator=generator), device),
    )


def plain(kernel: Kernel, device: torch.device, most: Ceilings, fault: str) -> Finding:
    """The reference's time."""
    return _timed(kernel, kernel.plain, kernel.case.host, device, most, fault)


def fused(kernel: Kernel, device: torch.device, most: Ceilings, tune: bool) -> Finding:
    """On a GPU: agreement, then the fastest tiles, which stay set; or the reference's time. Raises LostDevice.

    tune: False where another kernel of the package has chosen its tiles.
    """
    try:
        fault = kernel.trial(device)
        if fault is not None:
            return replace(plain(kernel, device, most, fault), forms=kernel.verdicts(device))
        tiles = chosen_tiles(kernel, device) if tune else kernel.tiles(device)
        found = _timed(kernel, kernel.fused(device), kernel.case.large, device, most, None)
        return replace(found, tiles=tiles, forms=kernel.verdicts(device))
    except torch.OutOfMemoryError:
        return Finding(kernel.name, fault)


def chosen_tiles(kernel: Kernel, device: torch.device) -> dict[str, int]:
    """Of those that agree with the reference the fastest; those in force unless others gain enough."""
    start, arguments = kernel.tiles(device), kernel.case.arguments(device, kernel.case.large)

    def cost() -> float:
        return seconds(lambda: kernel.fused(device)(*arguments[0], **arguments[1]), device)

    if not start:
        return {}
    best, least = start, cost() * GAIN
    for tiles in products(kernel):
        kernel.set_tiles(device, tiles)
        try:
            if tiles != start and kernel.trial(device) is None and (taken := cost()) < least:
                best, least = tiles, taken
        except LostDevice:
            raise
        except Exception as error:  # more shared memory than there is, or memory: others may do
            kernel.failed(device, error)
    kernel.set_tiles(device, best)
    return best


def products(kernel: Kernel) -> Iterator[dict[str, int]]:
    names = list(kernel.case.tiles)
    for sizes in itertools.product(*kernel.case.tiles.values()):
        yield dict(zip(names, sizes, strict=True))


def _timed(
    kernel: Kernel, form: Callable[..., object], n: int, device: torch.device, most: Ceilings, fault: str | None
) -> Finding:
    arguments, options = kernel.case.arguments(device, n)
    taken = seconds(lambda: form(*arguments, **options), device)
    return Finding(kernel.name, fault, n, taken, most.floor(kernel.case.work(n)) / taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
