"""A table of two columns of numbers and one of labels, from the file to tensors, beside one pass over its bytes."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import Case, Work

from torchdp.cli import quick_table
from torchdp.cli.table import numbers, read_columns, to_categories

LABELS = ["0", "1"]


def cells(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cell by cell."""
    found = read_columns(path, ["height", "label"])
    return numbers("height", found["height"]), to_categories("label", found["label"], LABELS)


def polars(path: str) -> object:
    import polars

    return lambda: polars.read_csv(path, columns=["height", "label"])


def table(rows: int, way: quick_table.Way) -> Work:
    folder = tempfile.TemporaryDirectory()
    path = str(Path(folder.name) / "table.csv")
    rng = np.random.default_rng(0)
    columns = rng.normal(170, 10, rows), rng.random(rows), rng.integers(2, size=rows)
    with open(path, "w") as file:
        file.write("height,dose,label\n")
        file.writelines(f"{h:.3f},{d:.4f},{k}\n" for h, d, k in zip(*columns, strict=True))

    def read() -> object:
        assert Path(folder.name).exists()  # it lives as long as this does
        return way(path, ["height"], {"label": LABELS})

    peers = {"cell by cell": lambda: partial(cells, path), "polars": lambda: polars(path)}
    return Work(read, rows, {"its bytes": lambda: Path(path).read_bytes().count(b"\n")}, peers)


def cases(small: bool) -> Iterator[Case]:
    rows = 500 if small else 200_000
    for name, way in (("pyarrow", quick_table._by_arrow), ("without pyarrow", quick_table._by_rows)):
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            if name == "pyarrow":
                continue
        yield Case(f"columns of a CSV file, {name}", partial(table, rows, way))
