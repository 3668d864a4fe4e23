"""The best strategy of few buffers and noise that is drawn again, for passes in one order, by L-BFGS."""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.factorization.structure.buffered import KNOTS, BufferedStrategy, hats, parts
from torchdp.factorization.structure.passes import APART, LEAST_PERIOD, LEVELS
from torchdp.factorization.structure.recalled import RecalledStrategy, folded, recalled_squares, shared

PLACES = 3  # of A's logit((i + 1/2) / period), for each pair of passes
SMOOTH = (0.1, 0.01, 0.001)  # of absolute values, relative: their sum over a class is what a user moves
SHARP = (30.0, 300.0, 3000.0)  # powers that stand for the largest squared row norm, as long
WHOLE = 2048  # steps of a problem that is solved from the start
MOST, FINISH = 100, 40  # evaluations of each smoothness, and those that a larger problem adds
MOST_RECALLED = 16  # passes


def recalled_passes(
    n: int, period: int, buffers: int, p: float, reach: int = MOST_RECALLED
) -> tuple[RecalledStrategy, Tensor]:
    """A strategy that no user moves by more than 1 (up to rounding), and the row norms of W C^{-1}, W prefix sums.

    Their l_p norm is made small over poles, zeros, D1's and D2's logarithms and, for each pair of passes at most
    ``reach`` apart, A's diagonal, all piecewise linear in logits; D2 is scaled so that each class moves C by 1 at most.
    n: steps; period: from LEAST_PERIOD, below n, at most MOST_RECALLED passes.
    """
    passes = n / period
    whole, coarse = math.ceil(passes), max(int(WHOLE / passes), LEAST_PERIOD)
    sizes = [(n, period)]
    if n > WHOLE and coarse < period:
        sizes = [(min(round(passes * coarse), whole * coarse), coarse), *sizes]
    pairs = [pair for pair in zip(*np.tril_indices(whole, -1), strict=True) if pair[0] - pair[1] <= reach]
    later, sooner = torch.tensor(pairs, dtype=torch.int64).mT
    span = [math.log(4 * each) for _, each in sizes]
    head = 2 * buffers + KNOTS
    x = np.concatenate(
        [
            [span[0]],
            np.full(2 * buffers - 1, (span[0] + 2) / (2 * buffers)),
            np.zeros(KNOTS + LEVELS * whole),
            np.repeat(np.where((later - sooner) == 1, 0.3, 0.0), PLACES),
        ]
    )
    bounds = [(None, 25.0)] + [APART] * (2 * buffers - 1) + [(None, None)] * (len(x) - 2 * buffers)
    for stage, (steps, each) in enumerate(sizes):
        if stage:
            x[: 2 * buffers] *= span[1] / span[0]
        shapes, levels, places = hats(steps, KNOTS), hats(each, LEVELS), hats(each, PLACES)
        there = folded(torch.ones(steps, dtype=torch.float64), each)

        def made(x: Tensor, smooth: float) -> tuple[Tensor, ...]:
            poles, zeros, before = parts(x[:head], shapes, buffers)  # noqa: B023
            heights, diagonals = x[head:].tensor_split([LEVELS * whole])
            after = (heights.view(-1, LEVELS) @ levels.mT).exp().flatten()[: len(before)]  # noqa: B023
            values = there[:, later] * (places @ diagonals.view(-1, PLACES).mT)  # noqa: B023
            period = torch.arange(len(values))[:, None]
            A = (
                torch.eye(whole, dtype=x.dtype)
                .repeat(len(values), 1, 1)
                .index_put((period, later, sooner), values)
            )
            D2 = folded(after, len(values))
            X = shared(poles, zeros, before, A) * D2[:, :, None] * D2[:, None, :]
            own = X.diagonal(dim1=1, dim2=2)
            sums = (X.square() + smooth**2 * own[:, :, None] * own[:, None]).clamp_min(1e-300).sqrt().sum((1, 2))
            return poles, zeros, before, after * sums.rsqrt().repeat(whole)[: len(after)], A

        for smooth, power in list(zip(SMOOTH, SHARP if p == math.inf else [p / 2] * 3, strict=True))[2 * stage :]:

            def value(point: Tensor) -> Tensor:
                rows = recalled_squares(*made(point, smooth))  # noqa: B023
                return (power * rows.log()).logsumexp(0) / power  # noqa: B023

            x = quasi_newton(value, x, FINISH if stage else MOST, bounds)
    with torch.no_grad():
        found = made(torch.from_numpy(x), 0.0)
        A, rows = found[-1], recalled_squares(*found)
    reach = min(reach, whole - 1)
    earlier = [torch.nn.functional.pad(A.diagonal(-m, 1, 2), (m, 0)).mT.flatten()[:n] for m in range(1, reach + 1)]
    return RecalledStrategy(BufferedStrategy(*found[:4]), period, torch.stack(earlier)), rows.sqrt()
