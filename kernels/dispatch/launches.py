"""Every launch of a fused kernel under its form: all that chooses its machine code on one device."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

Form = tuple[Any, ...]
_local = threading.local()


@contextmanager
def watched(meet: Callable[[Form], object]) -> Iterator[None]:
    """In this thread ``meet`` is called with the form of each launch, before it; what it raises prevents the launch."""
    before = getattr(_local, "meet", None)
    _local.meet = meet
    try:
        yield
    finally:
        _local.meet = before


def about_to_launch(form: Form) -> None:
    """Calls what watches this thread."""
    meet = getattr(_local, "meet", None)
    if meet is not None:
        meet(form)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Its strides; 0 for an axis of length 1, which may have any: all of them run the same machine code."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return tuple(step if size > 1 else 0 for step, size in pairs)


class Launched:
    """A Triton kernel whose launches are watched. numbers: the arguments whose values choose no machine code."""

    def __init__(self, function: Callable[..., None], numbers: tuple[str, ...], fusion: bool) -> None:
        import triton
        import triton.language as tl

        # small ones too: else their size would choose it
        function.__annotations__ = dict.fromkeys(numbers, tl.int64) | function.__annotations__
        self.kernel, self.numbers, self.fusion = (
            triton.jit(function, do_not_specialize=list(numbers)),
            numbers,
            fusion,
        )
        self.name = f"{function.__module__}.{function.__name__}"
        kinds = {name: str(each.annotation) for name, each in inspect.signature(function).parameters.items()}
        self.names, self.long = tuple(kinds), {name for name, kind in kinds.items() if kind == "int64"}
        self.constants = {name for name, kind in kinds.items() if "constexpr" in kind}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            options.setdefault("enable_fp_fusion", self.fusion)  # its default depends on Triton's version
            about_to_launch(self.form(arguments, options))
            return self.kernel[grid](*map(_signed, arguments), **options)

        return launch

    def form(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Form:
        """Its name, what each argument tells the compiler, and the options."""
        given = zip(self.names, arguments, strict=False)
        told = ((name, self._told(name, value)) for name, value in given if name not in self.numbers)
        return (self.name, *told, *options.items())

    def _told(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.dtype, value.data_ptr() % 16 == 0
        if isinstance(value, float):
            return "float"
        if value is None or isinstance(value, bool) or name in self.constants:
            return value
        return name in self.long or -(2**31) <= value < 2**31, value == 1, value % 16 == 0


def launched(*numbers: str, fusion: bool = True) -> Callable[[Callable[..., None]], Launched]:
    """In place of ``triton.jit`` for what is launched. numbers: see ``Launched``; fusion: a b + c is rounded once."""
    return lambda function: Launched(function, numbers, fusion)


def _signed(value: Any) -> Any:
    """A key of 64 bits as a signed number of the same bits."""
    return value - 2**64 if type(value) is int and value >= 2**63 else value
