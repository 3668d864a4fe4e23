"""Calls of torch's functions, as a mode sees them."""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")

# Of functions whose signature Python does not know.
ARGUMENTS: dict[Any, tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    F.conv1d: CONVOLUTION,
    F.conv2d: CONVOLUTION,
    F.conv3d: CONVOLUTION,
    F.scaled_dot_product_attention: (
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    ),
    F.one_hot: ("classes", "num_classes"),
    torch.cat: ("tensors", "dim"),
}  # fmt: skip


class Untaken(BaseException):
    """Why a route does not serve: no Exception, since no module's ``except`` is to catch it."""


class Call(NamedTuple):
    """A call of one of torch's functions."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", str(self.func))

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def named(self) -> dict[str, Any]:
        """The arguments that the call gives, by name."""
        return dict(zip(_arguments(self.func), self.args, strict=False)) | self.kwargs


@functools.cache
def _arguments(func: Any) -> tuple[str, ...]:
    return ARGUMENTS.get(func) or tuple(inspect.signature(func).parameters)


def tensors(value: Any) -> Iterator[Tensor]:
    """Those that lists, tuples and dicts hold, to any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


class Watching(TorchFunctionMode, ABC):
    """Sees the calls of torch's functions."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.called(Call(func, args, kwargs or {}))

    @abstractmethod
    def called(self, call: Call) -> Any:
        """What the call returns."""
