"""Each example's own gradients: as rows, or as the factors of a large weight's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from torchdp import checks
from torchdp.training.ghost import SMALL, Differs, Factors, Found, Taps, eager, find

FLAT = ("_flat_weights", "_flat_weight_refs")  # what a recurrent layer holds beside its parameters
Inputs = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Gradients:
    """Those of n examples: for each parameter (n, *shape) in ``rows``, or its ``factors``. sizes: of the parameters."""

    rows: dict[str, Tensor]
    factors: dict[str, Factors]
    sizes: dict[str, int]
    empty: Tensor  # (n, 0)


class PerExample:
    """Gradients of loss(module(x_i), y_i) in ``parameters``, x_i a batch of one: no example sees another.

    parameters, frozen: by name, in place of the module's own; others are as they are there.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: dict[str, Tensor],
        frozen: dict[str, Tensor],
        randomness: str,
    ) -> None:
        self.module, self.loss, self.parameters, self.randomness = module, loss, parameters, randomness
        self.frozen = frozen
        self.sizes = {name: p.numel() for name, p in parameters.items()}
        self.recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
        self.large = (
            {} if self.recurrent else {k: p for k, p in parameters.items() if p.numel() >= SMALL and p.ndim > 1}
        )
        self.found: dict[str, Found] = {}
        own = {id(p): name for name, p in module.named_parameters()}
        self._places = {  # one for each module: torch would not put back a module's weight that has two
            f"{path}.{name}".lstrip("."): own[id(p)]
            for path, part in module.named_modules()
            for name, p in part.named_parameters(recurse=False, remove_duplicate=False)
        }

    def look(self, x: Inputs, y: Tensor) -> None:
        """Finds by one example, (1, ...), the ``large`` weights whose gradients are smaller as factors."""

        def forward(large: Mapping[str, Tensor]) -> Tensor:
            one = vmap(lambda x, y: self._loss({**self.parameters, **large}, x, y), randomness=self.randomness)
            return one(x, y).sum()

        self.found = find(forward, self.large)

    def __call__(self, x: Inputs, y: Tensor) -> Gradients:
        """Of examples (n, ...), n >= 1."""
        try:
            rows, factors = self._one_by_one(x, y) if self.recurrent else self._with_factors(x, y)
        except Differs:
            self.found = {}
            rows, factors = self._with_factors(x, y)
        return Gradients(rows, factors, self.sizes, y.new_empty(len(y), 0, dtype=torch.float32))

    def _loss(self, parameters: Mapping[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        named = {} if isinstance(x, Tensor) else {name: value[None] for name, value in x.items()}
        known = {**self.frozen, **parameters}
        swapped = {place: known[name] for place, name in self._places.items() if name in known}
        args = (x[None],) if isinstance(x, Tensor) else ()
        output = functional_call(self.module, swapped, args, named, tie_weights=False)
        return checks.instance("what loss returns", self.loss(output, y[None]), Tensor).sum()

    def _with_factors(self, x: Inputs, y: Tensor) -> tuple[dict[str, Tensor], dict[str, Factors]]:
        fixed = {name: self.parameters[name] for name in self.found}
        rest = {name: p for name, p in self.parameters.items() if name not in fixed}
        taps = {name: each.taps for name, each in self.found.items()}

        def one(rest: dict[str, Tensor], taps: dict[str, list[Tensor]], x: Inputs, y: Tensor) -> Any:
            if not fixed:
                return self._loss(rest, x, y), {}
            with eager(), Taps(fixed, 2, taps) as mode:
                total = self._loss({**rest, **fixed}, x, y)
            if any(mode.uses[name] != each.uses or mode.changed(name) for name, each in self.found.items()):
                raise Differs
            return total, mode.inputs

        each = vmap(grad(one, argnums=(0, 1), has_aux=True), (None, None, 0, 0), randomness=self.randomness)
        (rows, outputs), inputs = each(rest, taps, x, y)
        return rows, {name: Factors(self.found[name].uses, inputs[name], outputs[name]) for name in fixed}

    def _one_by_one(self, x: Inputs, y: Tensor) -> tuple[dict[str, Tensor], dict[str, Factors]]:
        """In a loop; vmap has no rule for recurrent layers, which get their own weights back: torch leaves others.

        Each under a vmap over nothing, which refuses random numbers where they are to be refused.
        """
        layers = [part for part in self.module.modules() if isinstance(part, nn.RNNBase)]
        lists = [value for part in layers for name, value in vars(part).items() if name in FLAT]
        attributes = [(part, {name: vars(part)[name] for name in FLAT if name in vars(part)}) for part in layers]
        held = [list(value) for value in lists]

        def one(i: int) -> dict[str, Tensor]:
            def own(nothing: Tensor) -> dict[str, Tensor]:
                return grad(self._loss)(self.parameters, _pick(x, i), y[i])

            if self.randomness != "error":
                return own(y)
            return {name: g[0] for name, g in vmap(own, randomness="error")(torch.zeros(1)).items()}

        try:
            found = [one(i) for i in range(len(y))]
        finally:
            for value, old in zip(lists, held, strict=True):
                value[:] = old
            for part, own in attributes:
                vars(part).update(own)
        return {name: torch.stack([g[name] for g in found]) for name in self.parameters}, {}


def _pick(x: Inputs, i: int) -> Inputs:
    return x[i] if isinstance(x, Tensor) else {name: value[i] for name, value in x.items()}
