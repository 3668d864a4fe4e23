"""Text of others: numbers are read as they are written, and no terminal obeys it."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# 128 + SIGPIPE: what a shell calls a command whose reader has left
CLOSED = 141


def number(text: str) -> float:
    """``text`` as a float, without underscores and digits of other scripts, which ``float`` takes.

    Raises ValueError.
    """
    return float(_plain(text))


def integer(text: str) -> int:
    """``text`` as an int, as strictly. Raises ValueError."""
    return int(_plain(text))


def shown(text: object) -> str:
    """``text`` on one line: escape codes, line breaks, marks of direction and the like escaped."""
    # A terminal obeys control codes: a name in a file could hide or forge what it shows.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(*lines: object, error: bool = False) -> None:
    """Prints each as one line, to stderr if it is an error: all that the command line prints."""
    for line in lines:
        print(shown(line), file=sys.stderr if error else sys.stdout)


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A line for each row, its texts in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextmanager
def until_closed() -> Iterator[None]:
    """Ends quietly, with code 141, where the reader of stdout leaves early, as ``head`` does."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        try:
            print(flush=True)
        except BrokenPipeError:
            # else the exit would write once more
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            raise SystemExit(CLOSED) from None
        raise  # stdout holds: another pipe broke


def _plain(text: str) -> str:
    if not text.isascii() or "_" in text:
        raise ValueError("not a number of plain digits")
    return text
