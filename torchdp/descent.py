"""Descent without ``torch.optim``, whose first use in a process loads a compiler for seconds."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

# length of the first step, as nothing is known of the curvature
FIRST = 0.1
# of a step; a shorter one is given up
SHORTEST = 1e-9
# share of the slope by which a step must fall
ARMIJO = 1e-4
# cosine of a move and a change of the gradient that say something
CURVED = 1e-12
# A gradient of 0 has this length where it is divided by.
TINY = 1e-300


class Adam:
    """Steps of Adam on tensors that require gradients, as ``torch.optim.Adam`` takes them.

    m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2; x <- x - rate m / (1 - b1^t) /
    (sqrt(v / (1 - b2^t)) + 1e-8).
    Source: Kingma, Ba (2015), Algorithm 1.
    """

    def __init__(
        self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters = list(parameters)
        self.betas = betas
        self.count = 0
        self.first = [torch.zeros_like(x) for x in self.parameters]
        self.second = [torch.zeros_like(x) for x in self.parameters]

    def step(self, loss: Tensor, rate: float) -> None:
        """One step down the gradient of ``loss``; a parameter that it does not depend on stays."""
        self.move(torch.autograd.grad(loss, self.parameters, allow_unused=True), rate)

    def move(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        """One step down these gradients; a parameter that has none stays."""
        self.count += 1
        b1, b2 = self.betas
        # Both moments start at 0: what that takes off their means is divided out.
        mean_scale = rate / (1 - b1**self.count)
        deviation_scale = math.sqrt(1 - b2**self.count)
        with torch.no_grad():
            for x, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
                if g is not None:
                    m.lerp_(g, 1 - b1)
                    v.mul_(b2).addcmul_(g, g, value=1 - b2)
                    deviation = v.sqrt().div_(deviation_scale).add_(1e-8)
                    x.addcdiv_(m, deviation, value=-mean_scale)


class LBFGS:
    """Steps of L-BFGS on a batch of problems, each with a curvature and a step length of its own.

    Args:
        loss: (b, d) points to (b,) values, each of its own point.
        x: (b, d), where it starts.
        memory: moves that are kept.

    After :meth:`renew` the loss may be another, close to the last: what is known of the curvature
    is kept.
    Source: Nocedal (1980); a step that does not fall as by Armijo is cut to a parabola's least.
    """

    def __init__(self, loss: Callable[[Tensor], Tensor], x: Tensor, memory: int = 40) -> None:
        self.loss = loss
        self.x = x
        self.memory = memory
        self.count = 0
        # moves, changes of the gradient, 1 / their product
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.value, self.gradient = self._look(x)
        self.unit = FIRST / self.gradient.norm(dim=-1).clamp_min(TINY)
        self.length = torch.ones_like(self.value)

    def renew(self) -> None:
        """Value and gradient again, after the loss changed."""
        self.value, self.gradient = self._look(self.x)

    def step(self) -> Tensor:
        """One trial of each problem: how much its value fell, (b,); inf before a shorter one."""
        self.count += 1
        way = self._direction()
        slope = (way * self.gradient).sum(-1)
        # where the curvature misleads, or is no number, straight down
        uphill = ~(slope < 0)
        way = torch.where(uphill[:, None], -self.unit[:, None] * self.gradient, way)
        slope = torch.where(uphill, (way * self.gradient).sum(-1), slope)
        x = self.x + self.length[:, None] * way
        value, gradient = self._look(x)
        good = value <= self.value + ARMIJO * self.length * slope
        cut = self._shortened(value, slope)
        stuck = ~good & (cut < SHORTEST)  # at a minimum to rounding: it starts anew from 1
        self.length = torch.where(good | stuck, 1.0, cut)
        x = torch.where(good[:, None], x, self.x)
        gradient = torch.where(good[:, None], gradient, self.gradient)
        self._remember(x - self.x, gradient - self.gradient)
        # inf: whoever stops when values no longer fall must wait for the shorter step.
        fell = torch.where(good, self.value - value, torch.where(stuck, 0.0, math.inf))
        self.x = x
        self.value = torch.where(good, value, self.value)
        self.gradient = gradient
        return fell

    def _shortened(self, value: Tensor, slope: Tensor) -> Tensor:
        """A shorter step: to the least of the parabola through value, slope and the new value."""
        # The parabola's second coefficient times the length's square.
        bend = value - self.value - slope * self.length
        least = -slope * self.length.square() / (2 * bend)
        # A value that is no number says nothing of the curvature: cut by most.
        least = torch.where(least.isfinite(), least, 0.0)
        return torch.clamp(least, 0.1 * self.length, 0.5 * self.length)

    def _look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = self.loss(x)
        # Each value is of its own point, so the sum's gradient holds everybody's.
        (gradient,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), gradient

    def _remember(self, move: Tensor, change: Tensor) -> None:
        product = (move * change).sum(-1)
        square = change.square().sum(-1)
        # Without positive curvature the inverse Hessian would not stay positive definite.
        kept = product > CURVED * square.sqrt() * move.norm(dim=-1)
        self.unit = torch.where(kept, product / square, self.unit)  # the inverse curvature
        # At 0 a pair has no effect in the recursion, while the batch keeps one list.
        inverse = torch.where(kept, 1 / product, 0.0)
        self.pairs = [*self.pairs[1 - self.memory :], (move, change, inverse)]

    def _direction(self) -> Tensor:
        """The two-loop recursion."""
        q = self.gradient
        alphas = []
        for move, change, inverse in reversed(self.pairs):
            alpha = inverse * (move * q).sum(-1)
            q = q - alpha[:, None] * change
            alphas.append(alpha)
        way = self.unit[:, None] * q
        for (move, change, inverse), alpha in zip(self.pairs, reversed(alphas), strict=True):
            beta = inverse * (change * way).sum(-1)
            way = way + (alpha - beta)[:, None] * move
        return -way


def quasi_newton(
    value: Callable[[Tensor], Tensor],
    x: np.ndarray,
    most: int,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    stop: float = 1e-9,
) -> np.ndarray:
    """x after L-BFGS within ``bounds`` on a smooth function.

    Args:
        value: the function, of a float64 tensor.
        x: where it starts.
        most: evaluations.
        bounds: of each coordinate, None for none.
        stop: relative fall of the value below which it ends.

    Source: Byrd, Lu, Nocedal, Zhu (1995), by scipy.
    """
    from scipy.optimize import minimize  # half a second to load

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x.copy()).requires_grad_()
        at_point = value(point)
        (slope,) = torch.autograd.grad(at_point, point)
        return float(at_point.detach()), slope.numpy()

    options = {"maxfun": most, "maxiter": most, "maxcor": 30, "ftol": stop}
    solution = minimize(loss, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(solution.x)
