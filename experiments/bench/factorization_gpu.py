"""The fixed point by decompositions and by matrix products: one iteration, whole runs, batches, and the ceiling.

What: eigenvectors are serial on a GPU, products of matrices are what it is built for. Reported are the seconds of one
    iteration of both paths on prefix sums with equal weights, the number of products in the second, and as ceiling the
    share of its time that these products alone would take (1: nothing else counts); then whole runs to a certified
    gap, with the number of n x n float64 matrices held at the highest, W's own among them. A batch is one call.
Command:  OMP_NUM_THREADS=1 python experiments/bench/factorization_gpu.py
    on a GPU: python experiments/bench/factorization_gpu.py --device cuda --sizes 1024 4096 16384
Expected: on a CPU products take 3 to 10 times as long as decompositions, which are what it uses; the certified brackets
    of both paths overlap. On a GPU not yet measured; the goal is prefix sums of 4096 to 1e-3 in less than 10 s.
Output: results/bench/factorization_gpu/*.csv.
Artifact: - | speed
Status: on a CPU; on a GPU not yet measured
Time: 3 minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from clock import peak_bytes, seconds

from torchdp import workloads
from torchdp.factorization import certify
from torchdp.factorization.polar import scalings
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import LIGHT, SHARE, SINGLE, Decomposed, Iterated
from torchdp.simulate import Experiment, Report

LARGEST_DECOMPOSED = 4096  # on a GPU; beyond, its eigenvectors take minutes
SMALLEST_MEASURED = 512  # below, memory is the libraries' own
Path = type[Decomposed] | type[Iterated]
CHILD = """
import torch
from torchdp import workloads
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import Decomposed, Iterated
W = workloads.prefix({n}).dense()
solve(workloads.prefix(64).dense(), spectrum={path}())
"""


def products(n: int, loss: float) -> int:
    """Products of n x n matrices in one polar factor of prefix sums with equal weights."""
    M = workloads.prefix(n).dense() / n
    share = float(M.square().sum() / torch.linalg.matrix_norm(M.mT @ M))
    return 2 * len(scalings(loss * share / (2 * n), loss / 2)) + 1


def one_iteration(batch: int, n: int, device: str, least: float, report: Report) -> None:
    W = workloads.prefix(n, device=device).dense().expand(batch, n, n).contiguous()
    weights = W.new_full((batch, n), 1 / n)
    multiply = {kind: multiplication(W.to(kind), least) for kind in (torch.float32, torch.float64)}
    name = f"{batch} x {n}" if batch > 1 else f"{n}"
    spent = math.nan

    def row(
        path: str, time: float, gap: float | None = None, kind: object = "", count: int | None = None, ceiling=None
    ) -> None:
        cells = {"gap": gap, "type": str(kind)[6:], "products": count, "seconds": time}
        report.row("iteration", shape=name, path=path, **cells, ratio=time / spent, ceiling=ceiling)

    if device == "cpu" or n <= LARGEST_DECOMPOSED:
        spent = seconds(lambda: Decomposed().step(W, weights, weights, math.inf), least)
        row("Decomposed", spent)
    for gap in (0.1, 1e-3, 1e-6):
        path = Iterated()
        path.hear(path.step(W, weights, weights, gap).notes.tolist(), gap)  # its precision is that of this gap
        time = seconds(lambda path=path, gap=gap: path.step(W, weights, weights, gap), least)
        kind = torch.float32 if gap >= SINGLE else torch.float64
        count = products(n, min(SHARE * gap, LIGHT))
        ideal = ((count - 2) * multiply[kind] + 2 * multiply[torch.float64]) / time
        row("Iterated", time, gap, kind, count, ideal)


def multiplication(A: torch.Tensor, least: float) -> float:
    return seconds(lambda: A @ A, least)


def whole(n: int, path: Path, tol: float, device: str, report: Report) -> None:
    W = workloads.prefix(n, device=device).dense()
    times = [synchronised(device)]
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    found = solve(W, tol=tol, spectrum=path())
    times.append(synchronised(device))
    certificate = certify(W, found.left, found.right, found.row_weights, found.column_weights)
    times.append(synchronised(device))
    report.row(
        "runs",
        prefix=n,
        path=path.__name__,
        iterations=found.iterations,
        solve_s=times[1] - times[0],
        certify_s=times[2] - times[1],
        gap=certificate.gap,
        matrices=matrices(n, path, tol, device),
        lower=certificate.lower,
        upper=certificate.upper,
    )


def matrices(n: int, path: Path, tol: float, device: str) -> float | None:
    """n x n float64 matrices held at the highest, W's own among them."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / (8 * n * n)
    if n < SMALLEST_MEASURED:
        return None
    held = peak_bytes(CHILD.format(n=n, path=path.__name__), f"solve(W, tol={tol}, spectrum={path.__name__}())")
    return 1 + held / (8 * n * n)


def synchronised(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return perf_counter()


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (256, 512, 1024)
    batches: tuple[str, ...] = ("64,64", "16,256")  # how many, of which size
    tol: float = 1e-3
    device: str = "cpu"
    least: float = 1.0  # seconds of runs


FULL = Config()
SMOKE = Config((64,), ("4,32",), least=0.01)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    batches = [tuple(map(int, each.split(","))) for each in config.batches]
    for batch, n in [*((1, n) for n in config.sizes), *batches]:
        one_iteration(batch, n, config.device, config.least, report)
    report.say()
    for n in config.sizes:
        if config.device == "cpu" or n <= LARGEST_DECOMPOSED:
            whole(n, Decomposed, config.tol, config.device, report)
        whole(n, Iterated, config.tol, config.device, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
