"""Descent without ``torch.optim``: the first optimizer of a process loads torch's compiler, which takes seconds."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


class Adam:
    """Steps of Adam on tensors that require gradients, as ``torch.optim.Adam`` takes them.

    m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2; x <- x - rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + 1e-8).
    Source: Kingma, Ba (2015), Algorithm 1.
    """

    def __init__(self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.999)) -> None:
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


def cosine(rate: float, step: int, steps: int) -> float:
    """A rate that falls from ``rate`` at step 0 to zero at step ``steps``: half a cosine."""
    return rate * (1 + math.cos(math.pi * step / max(1, steps))) / 2


def quasi_newton(
    value: Callable[[Tensor], Tensor],
    x: np.ndarray,
    most: int,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    stop: float = 1e-9,
) -> np.ndarray:
    """x after at most ``most`` evaluations of a smooth function of a float64 tensor, by L-BFGS within ``bounds``.

    stop: relative fall of the value below which it ends. Source: Byrd, Lu, Nocedal, Zhu (1995), by scipy.
    """
    from scipy.optimize import minimize  # half a second to load

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x.copy()).requires_grad_()
        found = value(point)
        (slope,) = torch.autograd.grad(found, point)
        return float(found.detach()), slope.numpy()

    options = {"maxfun": most, "maxiter": most, "maxcor": 30, "ftol": stop}
    return np.asarray(minimize(loss, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
