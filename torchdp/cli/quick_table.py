"""Reading a large table in parts, by pyarrow where it is installed. What is unusual is left to ``table``."""

import codecs
import csv
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from torchdp.cli.table import opened, places

ROWS, BYTES = 2**9, 2**20  # at a time: fewer rows than make the garbage collector look at them
LONG = 2**16  # ``csv`` refuses a cell of twice as many characters: in its bytes are so many from a multiple on
Found = dict[str, Tensor]
Labels = Mapping[str, Sequence[str]]
Way = Callable[[str, Sequence[str], Labels], Found]


def quick_columns(path: str, numeric: Sequence[str], labels: Labels) -> Found | None:
    """The numbers (float64) of some columns and the places of others' cells in their ``labels`` (int64).

    The same as ``read_columns`` with ``numbers`` and ``to_categories`` in less time and memory; None where these may
    refuse anything, so that they say what.
    """
    for way in WAYS:
        try:
            found = way(path, numeric, labels)
        except (ImportError, OSError, ValueError, KeyError, NotImplementedError, csv.Error):
            continue
        usual = all(bool(torch.isfinite(found[name]).all()) for name in numeric)
        return found if usual and all(len(column) for column in found.values()) else None
    return None


def _by_rows(path: str, numeric: Sequence[str], labels: Labels) -> Found:
    index = {name: {label: i for i, label in enumerate(texts)} for name, texts in labels.items()}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*numeric, *labels)}
    with opened(path) as file:
        reader = csv.reader(file, strict=True)
        where, width = places(path, next(reader, None), list(parts))
        while rows := list(islice(reader, ROWS)):
            if set(map(len, rows)) != {width}:
                raise ValueError("a row has another number of cells than the header")
            for name, place in zip(parts, where, strict=True):
                cells = list(map(itemgetter(place), rows))
                if name in index:
                    found = map(index[name].__getitem__, map(str.strip, cells))
                    parts[name].append(np.fromiter(found, np.int64, len(rows)))
                elif (text := "".join(cells)).isascii() and "_" not in text:
                    parts[name].append(np.fromiter(map(float, cells), np.float64, len(rows)))
                else:
                    raise ValueError("a number in other digits, or with underscores")
    return {name: torch.from_numpy(np.concatenate(part)) for name, part in parts.items()}


def _by_arrow(path: str, numeric: Sequence[str], labels: Labels) -> Found:
    import pyarrow as pa
    from pyarrow import csv as arrow

    header = _plain(path)
    names = [*numeric, *labels]
    where, width = places(path, next(csv.reader([header])), names)
    coded = pa.dictionary(pa.int32(), pa.string())
    kinds = {str(i): pa.float64() if name in numeric else coded for name, i in zip(names, where, strict=True)}
    table = arrow.read_csv(
        path,
        arrow.ReadOptions(skip_rows=1, column_names=[str(i) for i in range(width)]),
        arrow.ParseOptions(quote_char=False, ignore_empty_lines=False),
        arrow.ConvertOptions(include_columns=list(kinds), column_types=kinds, null_values=[]),
    )
    found = {}
    for name, i in zip(names, where, strict=True):
        column = table.column(str(i))
        if name in numeric:
            found[name] = torch.from_numpy(np.array(column.to_numpy()))
            continue
        index = {label: k for k, label in enumerate(labels[name])}
        parts = [
            np.array([index[text.strip()] for text in chunk.dictionary.to_pylist()], np.int64)[
                chunk.indices.to_numpy(zero_copy_only=False)
            ]
            for chunk in column.chunks
            if len(chunk)
        ]
        found[name] = torch.from_numpy(np.concatenate(parts))
    return found


def _plain(path: str) -> str:
    """The header of a UTF-8 text without quotes, zeros, lone carriage returns, long lines; else ValueError."""
    decoder, header, ends = codecs.getincrementaldecoder("utf-8-sig")(), "", False
    with open(path, "rb") as file:
        while block := file.read(BYTES):
            block += file.read(1) if block.endswith(b"\r") else b""
            text = decoder.decode(block)
            header = header if ends else header + text.partition("\n")[0]
            ends = ends or "\n" in text
            if b'"' in block or b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
                raise ValueError("not a plain text")
            if any(b"\n" not in block[i : i + LONG] for i in range(0, len(block) - LONG + 1, LONG)):
                raise ValueError("a long line")
    decoder.decode(b"", True)
    return header


WAYS: tuple[Way, ...] = (_by_arrow, _by_rows)
