"""Adam for private gradients: the noise's public variance is taken out of the second moment."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdp import checks


class Noisy(Protocol):
    """What an optimizer needs to know of the source of gradients: a :class:`Run`, or a custom class."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each number of the gradient that ``.grad`` holds. Public."""


class PrivateAdam(torch.optim.Optimizer):
    """Adam, and with ``weight_decay`` AdamW, on gradients with noise of known variance.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  u <- b2 u + (1 - b2) tau^2
        x <- x - rate m' / (sqrt(max(v' - u', floor^2 u')) + eps)

    tau is ``run.deviation``, primes are the corrections by 1 - b^t, and x was first made smaller by rate weight_decay.
    Adam alone divides by the noise's own size: a correlated plan's steps, each with more noise than one of DP-SGD, get
    shorter there although the noise cancels later, and every coordinate gets the same rate.

    Args:
        params: parameters, or groups of them with options of their own, as of any optimizer.
        run: a :class:`Run`, or whatever else has its ``deviation``; read at each step.
        lr: the learning rate, at least 0.
        betas: in [0, 1).
        weight_decay: decoupled from the gradient, at least 0.
        floor: nothing is divided by less than so many of the noise's deviations, at least 0. With less than 1,
            as .3, smaller rates serve, and estimates of the second moment that noise alone made count.
        eps: added to what divides, at least 0.

    All of it is a function of ``.grad`` and of what is public, so that what is private stays so; the state dict holds
    each parameter's moments, in float32 at least, its u, and t, its own steps. Parameters without a gradient stay as
    they are. Raises TypeError, ValueError.
    Source: Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for the correction by a constant variance; ours is that of
    each step of a correlated plan, averaged as the squares are. Decay: Loshchilov, Hutter (2019).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        run: Noisy,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        floor: float = 1.0,
        eps: float = 1e-8,
    ) -> None:
        if not hasattr(run, "deviation"):
            raise TypeError(f"run must be a Run, whose deviation says what noise is in .grad, not {run!r}")
        self._run = run
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "floor": floor, "eps": eps}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group of parameters with options of its own. Raises TypeError, ValueError."""
        options = self.defaults | param_group
        for name in ("lr", "weight_decay", "floor", "eps"):
            checks.non_negative(name, options[name])
        if len(betas := checks.instance("betas", options["betas"], Sequence)) != 2:
            raise ValueError(f"betas must be two numbers, not {len(betas)}")
        for beta in betas:
            checks.below_one("betas", beta)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step by ``.grad``; closure: must be None, as a gradient is released once."""
        if closure is not None:
            raise ValueError("closure must be None: each private gradient is released once, by run.backward")
        for group in self.param_groups:
            alike: dict[tuple[int, float], list[Tensor]] = {}  # of equally many steps of their own
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        wide = torch.promote_types(p.dtype, torch.float32)
                        state |= {name: torch.zeros_like(p, dtype=wide) for name in ("m", "v")}
                        state |= {"steps": 0, "u": 0.0}
                    alike.setdefault((state["steps"], state["u"]), []).append(p)
            for (steps, u), moved in alike.items():
                self._step(group, steps + 1, u, moved)
        return None

    def _step(self, group: dict[str, Any], steps: int, u: float, moved: list[Tensor]) -> None:
        (first, second), rate = group["betas"], group["lr"]
        u = second * u + (1 - second) * self._run.deviation**2
        for p in moved:
            self.state[p] |= {"steps": steps, "u": u}
        m, v = ([self.state[p][name] for p in moved] for name in ("m", "v"))
        gradients = [p.grad.to(each.dtype) for p, each in zip(moved, m, strict=True) if p.grad is not None]
        seen = 1 - second**steps
        noise = u / seen
        torch._foreach_lerp_(m, gradients, 1 - first)
        torch._foreach_mul_(v, second)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - second)
        sizes = torch._foreach_div(v, seen)
        torch._foreach_sub_(sizes, noise)
        torch._foreach_clamp_min_(sizes, group["floor"] ** 2 * noise)
        torch._foreach_sqrt_(sizes)
        torch._foreach_add_(sizes, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(moved, 1 - rate * group["weight_decay"])
        moves = [part.to(p.dtype) for part, p in zip(torch._foreach_div(m, sizes), moved, strict=True)]
        torch._foreach_add_(moved, moves, alpha=-rate / (1 - first**steps))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of any optimizer; the moments keep their precision, which is float32 at least."""
        super().load_state_dict(state_dict)
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        places = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(numbers, places, strict=True):
            if kept := state_dict["state"].get(i):
                self.state[p] |= {name: kept[name].to(p.device, copy=True) for name in ("m", "v")}
