"""Descent without ``torch.optim``: the first optimizer of a process loads torch's compiler, which
takes seconds.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

# lengths of the first step, and of the last; share of the slope
FIRST, SHORTEST, ARMIJO = 0.1, 1e-9, 1e-4
CURVED, TINY = 1e-12, 1e-300  # cosine of a move and a change of the gradient that say something


class Adam:
    """Steps of Adam on tensors that require gradients, as ``torch.optim.Adam`` takes them.

    m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2; x <- x - rate m / (1 - b1^t) /
    (sqrt(v / (1 - b2^t)) + 1e-8).
    Source: Kingma, Ba (2015), Algorithm 1.
    """

    def __init__(
        self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters, self.betas, self.count = list(parameters), betas, 0
        self.first = [torch.zeros_like(each) for each in self.parameters]
        self.second = [torch.zeros_like(each) for each in self.parameters]

    def step(self, loss: Tensor, rate: float) -> None:
        """One step down the gradient of ``loss``; a parameter that it does not depend on stays."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self.count += 1
        (b1, b2), t = self.betas, self.count
        with torch.no_grad():
            for x, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
                if g is not None:
                    m.lerp_(g, 1 - b1)
                    v.mul_(b2).addcmul_(g, g, value=1 - b2)
                    spread = v.sqrt().div_(math.sqrt(1 - b2**t)).add_(1e-8)
                    x.addcdiv_(m, spread, value=-rate / (1 - b1**t))


class LBFGS:
    """Steps of L-BFGS on a batch of problems, each with a curvature and a step length of its own.

    loss: (b, d) points to (b,) values, each of its own point. x: (b, d), where it starts. After
    :meth:`renew` the loss may be another, close to the last: what is known of the curvature is
    kept.
    Source: Nocedal (1980); a step that does not fall as Armijo asks is cut to a parabola's least.
    """

    def __init__(self, loss: Callable[[Tensor], Tensor], x: Tensor, memory: int = 40) -> None:
        self.loss, self.x, self.memory, self.count = loss, x, memory, 0
        # moves, changes of the gradient, 1 / their product
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.value, self.gradient = self._look(x)
        self.unit = FIRST / self.gradient.norm(dim=-1).clamp_min(TINY)
        self.length = torch.ones_like(self.value)

    def renew(self) -> None:
        """Value and gradient again, after the loss changed."""
        self.value, self.gradient = self._look(self.x)

    def step(self) -> Tensor:
        """One trial of each problem: by how much its value fell, (b,), infinity where a shorter
        step is due.
        """
        self.count += 1
        way = self._direction()
        slope = (way * self.gradient).sum(-1)
        uphill = ~(slope < 0)
        way = torch.where(uphill[:, None], -self.unit[:, None] * self.gradient, way)
        slope = torch.where(uphill, (way * self.gradient).sum(-1), slope)
        x = self.x + self.length[:, None] * way
        value, gradient = self._look(x)
        good = value <= self.value + ARMIJO * self.length * slope
        # of a parabola
        least = -slope * self.length.square() / (2 * (value - self.value - slope * self.length))
        cut = torch.clamp(
            torch.where(least.isfinite(), least, 0.0), 0.1 * self.length, 0.5 * self.length
        )
        stuck = ~good & (cut < SHORTEST)
        self.length = torch.where(good | stuck, 1.0, cut)
        x, gradient = (
            torch.where(good[:, None], *pair) for pair in ((x, self.x), (gradient, self.gradient))
        )
        self._remember(x - self.x, gradient - self.gradient)
        fell = torch.where(good, self.value - value, torch.where(stuck, 0.0, math.inf))
        self.x, self.value, self.gradient = x, torch.where(good, value, self.value), gradient
        return fell

    def _look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = self.loss(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient

    def _remember(self, move: Tensor, change: Tensor) -> None:
        product, square = (move * change).sum(-1), change.square().sum(-1)
        kept = product > CURVED * square.sqrt() * move.norm(dim=-1)
        self.unit = torch.where(kept, product / square, self.unit)
        self.pairs = [
            *self.pairs[1 - self.memory :],
            (move, change, torch.where(kept, 1 / product, 0.0)),
        ]

    def _direction(self) -> Tensor:
        rest, shares = self.gradient, []
        for move, change, inverse in reversed(self.pairs):
            shares.append(inverse * (move * rest).sum(-1))
            rest = rest - shares[-1][:, None] * change
        way = self.unit[:, None] * rest
        for (move, change, inverse), share in zip(self.pairs, reversed(shares), strict=True):
            way = way + (share - inverse * (change * way).sum(-1))[:, None] * move
        return -way


def quasi_newton(
    value: Callable[[Tensor], Tensor],
    x: np.ndarray,
    most: int,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    stop: float = 1e-9,
) -> np.ndarray:
    """x after at most ``most`` evaluations of a smooth function of a float64 tensor, by L-BFGS
    within ``bounds``.

    stop: relative fall of the value below which it ends. Source: Byrd, Lu, Nocedal, Zhu (1995), by
    scipy.
    """
    from scipy.optimize import minimize  # half a second to load

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x.copy()).requires_grad_()
        found = value(point)
        (slope,) = torch.autograd.grad(found, point)
        return float(found.detach()), slope.numpy()

    options = {"maxfun": most, "maxiter": most, "maxcor": 30, "ftol": stop}
    return np.asarray(
        minimize(loss, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    )
