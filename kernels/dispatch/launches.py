"""What launches a fused kernel, the same in every version of Triton."""

from collections.abc import Callable
from typing import Any


class Launched:
    """A Triton kernel.

    Args:
        function: its code.
        numbers: the arguments whose values choose no machine code.
    """

    def __init__(self, function: Callable[..., None], numbers: tuple[str, ...]) -> None:
        import triton
        import triton.language as tl

        # Small numbers too are of 64 bits: else their size would choose machine code.
        function.__annotations__ = dict.fromkeys(numbers, tl.int64) | function.__annotations__
        self.kernel = triton.jit(function, do_not_specialize=list(numbers))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            # The default of fusion depends on Triton's version.
            return self.kernel[grid](*map(_signed, arguments), enable_fp_fusion=True, **options)

        return launch


def launched(*numbers: str) -> Callable[[Callable[..., None]], Launched]:
    """In place of ``triton.jit`` for what is launched. numbers: see ``Launched``."""
    return lambda function: Launched(function, numbers)


def _signed(value: Any) -> Any:
    """A key of 64 bits as a signed number of the same bits."""
    return value - 2**64 if type(value) is int and value >= 2**63 else value
