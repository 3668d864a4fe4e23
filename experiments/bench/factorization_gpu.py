"""The fixed point by decompositions and by matrix products: one iteration, whole runs, batches, and the ceiling.

What: eigenvectors are serial on a GPU, products of matrices are what it is built for. Printed are the seconds of one
    iteration of both paths on prefix sums with equal weights, the number of products in the second, and as ceiling the
    share of its time that these products alone would take (1: nothing else counts); then whole runs to a certified
    gap, with the number of n x n float64 matrices held at the highest, W's own among them. A batch is one call.
Command:  OMP_NUM_THREADS=1 python experiments/bench/factorization_gpu.py
    on a GPU: python experiments/bench/factorization_gpu.py --device cuda --sizes 1024 4096 16384
Expected: on a CPU products take 3 to 10 times as long as decompositions, which are what it uses; the certified brackets
    of both paths overlap. On a GPU not yet measured; the goal is prefix sums of 4096 to 1e-3 in less than 10 s.
Time: 3 minutes on one core; --smoke in seconds.
"""

import argparse
import math
from time import perf_counter

import torch
from measure import peak_bytes, seconds

from torchdp import workloads
from torchdp.factorization import certify
from torchdp.factorization.polar import scalings
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.factorization.solvers.spectrum import LIGHT, SHARE, SINGLE, Decomposed, Iterated

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


def one_iteration(batch: int, n: int, device: str, least: float) -> None:
    W = workloads.prefix(n, device=device).dense().expand(batch, n, n).contiguous()
    weights = W.new_full((batch, n), 1 / n)
    multiply = {kind: multiplication(W.to(kind), least) for kind in (torch.float32, torch.float64)}
    name = f"{batch} x {n}" if batch > 1 else f"{n}"
    spent = math.nan
    if device == "cpu" or n <= LARGEST_DECOMPOSED:
        spent = seconds(lambda: Decomposed().step(W, weights, weights, math.inf), least)
        print(f"{name:<12}{'Decomposed':<12}{'':>26}{spent:>11.5f}{1:>7.2f}", flush=True)
    for gap in (0.1, 1e-3, 1e-6):
        path = Iterated()
        path.step(W, weights, weights, gap)  # so that its precision is that of this gap
        time = seconds(lambda path=path, gap=gap: step(path, W, weights, gap), least)
        kind = torch.float32 if gap >= SINGLE else torch.float64
        count = products(n, min(SHARE * gap, LIGHT))
        ideal = ((count - 2) * multiply[kind] + 2 * multiply[torch.float64]) / time
        row = f"{name:<12}{'Iterated':<12}{gap:>8.0e}{str(kind)[6:]:>9}{count:>9}"
        print(f"{row}{time:>11.5f}{time / spent:>7.2f}{ideal:>9.2f}", flush=True)


def multiplication(A: torch.Tensor, least: float) -> float:
    return seconds(lambda: A @ A, least)


def step(path: Iterated, W: torch.Tensor, weights: torch.Tensor, gap: float) -> None:
    path.gap = math.inf  # the same gap again would count as a gap that does not fall
    path.step(W, weights, weights, gap)


def whole(n: int, path: Path, tol: float, device: str) -> None:
    W = workloads.prefix(n, device=device).dense()
    times = [synchronised(device)]
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    found = solve(W, tol=tol, spectrum=path())
    times.append(synchronised(device))
    certificate = certify(W, found.left, found.right, found.row_weights, found.column_weights)
    times.append(synchronised(device))
    bounds = f"[{float(certificate.lower):.7f}, {float(certificate.upper):.7f}]"
    row = f"{n:<8}{path.__name__:<12}{found.iterations:>6}{times[1] - times[0]:>9.2f}{times[2] - times[1]:>11.2f}"
    print(f"{row}{float(certificate.gap):>10.1e}{matrices(n, path, tol, device):>10}  {bounds}", flush=True)


def matrices(n: int, path: Path, tol: float, device: str) -> str:
    """n x n float64 matrices held at the highest, W's own among them."""
    if device != "cpu":
        return f"{torch.cuda.max_memory_allocated() / (8 * n * n):.1f}"
    if n < SMALLEST_MEASURED:
        return "-"
    held = peak_bytes(CHILD.format(n=n, path=path.__name__), f"solve(W, tol={tol}, spectrum={path.__name__}())")
    return f"{1 + held / (8 * n * n):.1f}"


def synchronised(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return perf_counter()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    arguments.add_argument("--tol", type=float, default=1e-3)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    shapes = [(1, 64), (4, 32)] if options.smoke else [(1, n) for n in options.sizes] + [(64, 64), (16, 256)]
    head = f"{'iteration':<12}{'path':<12}{'gap':>8}{'type':>9}{'products':>9}"
    print(f"{head}{'seconds':>11}{'ratio':>7}{'ceiling':>9}")
    for batch, n in shapes:
        one_iteration(batch, n, options.device, 0.01 if options.smoke else 1.0)
    head = f"{'prefix':<8}{'path':<12}{'iter.':>6}{'solve s':>9}{'certify s':>11}{'gap':>10}{'matrices':>10}"
    print(f"\n{head}  certified bounds")
    for n in [64] if options.smoke else options.sizes:
        if options.device == "cpu" or n <= LARGEST_DECOMPOSED:
            whole(n, Decomposed, options.tol, options.device)
        whole(n, Iterated, options.tol, options.device)


if __name__ == "__main__":
    main()
