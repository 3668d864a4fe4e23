"""Buffers and noise that is drawn again: what few numbers of memory lack where users come back, and what closes it.

Paper: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), buffered strategies. Root mean square error of the
    prefix sums where a user is in steps i, i + period, ... (one fixed order). The best strategies have columns that are
    orthogonal a pass apart, which C = D1 T D2 with T of four buffers cannot have. Here C = A^{-1} D1 T D2, A[t, s]
    other than 0 only at t = s and t - s = period, 2 period, ...: noise C^{-1} z = D2^{-1} T^{-1} D1^{-1} A z needs the
    buffers and the z of earlier passes, which a keyed generator draws again: no memory, up to passes - 1 normals more
    a number. A's diagonals are piecewise linear in logit((i + 1/2) / period), at ``knots`` places, in each pair of
    passes.
Command:  OMP_NUM_THREADS=1 python experiments/training/recalled.py
Expected: with four buffers within 0.7 % of a bound for every strategy, where four buffers alone are 6 to 10 % above it.
    ``off``, the largest deviation of noise made step by step so from C^{-1} z, is rounding. Users who only keep apart
    move such a strategy further than buffers alone: it is for a fixed order.
Output: results/training/recalled/recalled.csv.
Artifact: Dvijotham et al. (2024) | few buffers, many passes
Status: extends
Time: 2 minutes on one core; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from torchdp.factorization import BufferedStrategy, factorize_epochs
from torchdp.factorization.structure.buffered import KNOTS, hats, parts, residues
from torchdp.factorization.structure.passes import APART, LEVELS, buffered_passes
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import Epochs, Iterates, Separated, sensitivity, standard_errors
from torchdp.workloads import RunningSums

SMOOTH = (0.1, 0.02, 0.003)  # of absolute values, relative: their sum over a class is what a user moves


@dataclass(frozen=True)
class Config:
    cells: tuple[str, ...] = ("128,32", "512,64")  # steps, steps of a pass that divide them
    buffers: int = 4
    knots: tuple[int, ...] = (1, 3)
    evaluations: int = 80
    searched: int = 128  # steps up to which users who only keep apart are searched for


FULL = Config()
SMOKE = Config(("24,8",), 2, (1,), 30)


def earlier(values: Tensor, n: int, period: int) -> Tensor:
    """A from its diagonals, (pairs of passes, period)."""
    later, before = torch.tril_indices(n // period, n // period, -1)
    place = torch.arange(period)
    where = (later[:, None] * period + place).flatten(), (before[:, None] * period + place).flatten()
    return torch.eye(n, dtype=values.dtype).index_put(where, values.flatten())


def recalled(n: int, period: int, config: Config, knots: int) -> tuple[Tensor, Tensor, BufferedStrategy]:
    """C, A, and D1 T D2, by L-BFGS over poles, zeros, D1, D2 and A; no user of one order moves C by more than 1."""
    passes, buffers = n // period, config.buffers
    shapes, levels = hats(n, KNOTS), hats(period, LEVELS)
    bumps = hats(period, knots) if knots > 1 else torch.ones(period, 1, dtype=torch.float64)
    head, tail = 2 * buffers + KNOTS, 2 * buffers + KNOTS + LEVELS * passes
    neighbours = (torch.tril_indices(passes, passes, -1).diff(dim=0)[0] == -1).double()
    span, W, age = math.log(4 * period), Iterates(n).dense(), torch.arange(n)
    start = [[span], np.full(2 * buffers - 1, (span + 2) / (2 * buffers)), np.zeros(KNOTS + LEVELS * passes)]
    x = np.concatenate([*start, (0.3 * neighbours).repeat_interleave(knots).numpy()])
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * (len(x) - 2 * buffers)

    def toeplitz(poles: Tensor, zeros: Tensor) -> Tensor:
        first = torch.where(age > 0, residues(poles, zeros) @ poles[:, None] ** (age - 1).clamp_min(0), 1.0)
        return first[(age[:, None] - age).clamp_min(0)].tril()

    def made(x: Tensor, smooth: float) -> tuple[Tensor, ...]:
        poles, zeros, before = parts(x[:head], shapes, buffers)
        after = (x[head:tail].unflatten(0, (-1, LEVELS)) @ levels.mT).exp().flatten()
        A = earlier(x[tail:].view(-1, knots) @ bumps.mT, n, period)
        C = torch.linalg.solve_triangular(A, before[:, None] * toeplitz(poles, zeros) * after, upper=False)
        columns = C.view(n, passes, period).permute(2, 0, 1)
        gram = columns.mT @ columns
        sizes = gram.diagonal(dim1=1, dim2=2)
        sums = (gram.square() + smooth**2 * sizes[:, :, None] * sizes[:, None]).sqrt().sum((1, 2))
        scale = sums.rsqrt().repeat(passes)
        rows = ((W / (after * scale)) @ toeplitz(zeros, poles) / before) @ A
        return rows.square().sum(1).mean(), C * scale, A, poles, zeros, before, after * scale

    for smooth in SMOOTH:

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.from_numpy(x.copy()).requires_grad_()
            value = made(point, smooth)[0].log()  # noqa: B023
            (slope,) = torch.autograd.grad(value, point)
            return float(value.detach()), slope.numpy()

        options = {"maxfun": config.evaluations, "maxiter": config.evaluations, "maxcor": 30, "ftol": 1e-9}
        x = minimize(loss, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    with torch.no_grad():
        _, C, A, *found = made(torch.from_numpy(x), 1e-12)
    return C, A, BufferedStrategy(*found)


def streamed(C: BufferedStrategy, z: Tensor) -> Tensor:
    """C^{-1} z for D1 T D2, step by step from the buffers."""
    state, found = torch.zeros_like(C.poles), []
    for value, before, after in zip(z, C.before, C.after, strict=True):
        u = value / before
        found.append((u + C.gains @ state) / after)
        state = C.zeros * state + u
    return torch.stack(found)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for n, period in (map(int, cell.split(",")) for cell in config.cells):
        W, cell, unit = Iterates(n), {"steps": n, "period": period}, math.sqrt(n)
        least = float(factorize_epochs(W.dense(), period, 2.0, 1e-4).certificate.lower) / unit
        report.row(
            "recalled", **cell, strategy="at least", error=least, above=None, apart=None, off=None, cpu_s=None
        )
        z = torch.randn(n, generator=keyed_generator(b"recalled"), dtype=torch.float64)
        few = f"{config.buffers} buffers"
        for name, knots in [(few, 0)] + [
            (f"{few}, noise drawn again, {each} knots", each) for each in config.knots
        ]:
            start = time.process_time()
            if knots:
                C, A, inner = recalled(n, period, config, knots)
            else:
                inner, _ = buffered_passes(RunningSums(n), period, config.buffers, 2.0)
                C, A = inner.dense(), torch.eye(n, dtype=torch.float64)
            spent = time.process_time() - start
            error = sensitivity(C, Epochs(period)).value * float(standard_errors(W, C.tril()).norm()) / unit
            far = sensitivity(C, Separated(period, n)).value if n <= config.searched else math.nan
            off = (streamed(inner, A @ z) - torch.linalg.solve(C, z)).abs().max()
            row = {"error": error, "above": error / least - 1, "apart": far, "off": off, "cpu_s": spent}
            report.row("recalled", **cell, strategy=name, **row)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
