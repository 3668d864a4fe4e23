"""Parts of a plan as dicts of numbers and tensors, which ``torch.load`` reads by default, without running anything."""

from dataclasses import fields
from enum import Enum
from typing import Any

from torch import Tensor

from torchdp.factorization import BandedStrategy, BufferedStrategy, Recurrence
from torchdp.factorization.streams.recalled import RecalledStrategy
from torchdp.factorization.streams.strategy import Tabulated
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.privacy.guarantee import Arithmetic
from torchdp.training.adaptive import AdaptiveBound
from torchdp.training.binned import BallsInBins
from torchdp.training.participation import Epochs, Once, OwnBatches, Separated
from torchdp.training.sampled import CyclicPoisson

STRATEGIES = (BandedStrategy, BufferedStrategy, RecalledStrategy, Tabulated, Recurrence)
REST = (Once, Epochs, Separated, OwnBatches, CyclicPoisson, BallsInBins, Guarantee, Model, Neighbours, Arithmetic)
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (*STRATEGIES, *REST, AdaptiveBound)
}  # what a file may make, and nothing else


def packed(made: Any) -> Any:
    """Of a number, a text, a tensor, or one of KINDS. Raises TypeError."""
    if made is None or type(made) in (bool, int, float, str):
        return made
    if isinstance(made, Tensor):
        return made.detach().cpu().clone()
    if type(made) is tuple:
        return [packed(part) for part in made]
    if KINDS.get(type(made).__name__) is not type(made):
        raise TypeError(
            f"a file can not hold a {type(made).__name__}, whose code is one's own; make the plan again from what made "
            "it, or take Tabulated(strategy.recurrence) for its strategy"
        )
    if isinstance(made, Enum):
        return {"kind": type(made).__name__, "name": made.name}
    return {"kind": type(made).__name__} | {each.name: packed(getattr(made, each.name)) for each in fields(made)}


def unpacked(value: Any) -> Any:
    """What ``packed`` made a value of, with the checks of its class. Raises."""
    if isinstance(value, list):
        return tuple(unpacked(part) for part in value)
    if not isinstance(value, dict):
        return value
    kind = KINDS[value["kind"]]
    parts = {name: unpacked(part) for name, part in value.items() if name != "kind"}
    return kind[parts["name"]] if issubclass(kind, Enum) else kind(**parts)
