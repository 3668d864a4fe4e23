"""Public tables of UCI: the four of the linear-transformation model's paper as distributed, others as numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdp import checks


@dataclass(frozen=True)
class Schema:
    """How a file is laid out, and what has to be in it.

    separator: between fields, None for white space; header: lines to skip; fields: on each line; features, label:
    which of them, from 0; rows: complete lines, None for any number; missing: mark of a line to leave out. zero_phi:
    phi of x = 0 that the paper's table 8 shows in its column "Local", at ridge 10, after its unstated scaling; rank:
    of its table 6.
    """

    name: str
    separator: str | None
    header: int
    fields: int
    features: tuple[int, ...]
    label: int
    rows: int | None
    missing: str | None
    rank: int
    zero_phi: float


POWER = Schema("Power (UCI 235)", ";", 1, 9, tuple(range(2, 8)), 8, 2_049_280, "?", 3, 2.364)
ELEVATION = Schema("Elevation (UCI 246)", ",", 0, 4, (1, 2), 3, 434_874, None, 1, 1.939)
ETHYLENE = Schema("Ethylene (UCI 322)", None, 1, 19, tuple(range(18)), 18, 4_178_504, None, 5, 3.125)
SONGS = Schema("Songs (UCI 203)", ",", 0, 91, tuple(range(1, 91)), 0, 515_345, None, 15, 20.64)


def load_csv(path: str | Path, schema: Schema) -> tuple[Tensor, Tensor]:
    """Features (n, d) and labels (n,) of a file, float64, unscaled; refuses one that is not as the schema says.

    The paper states 89 features for Songs, the file has 90, and this reads 90. Raises ValueError, FileNotFoundError.
    """
    path = Path(path)
    try:
        with path.open() as file:
            wanted = (*schema.features, schema.label)
            table = np.loadtxt(_lines(file, schema), delimiter=schema.separator, usecols=wanted, ndmin=2)
    except (ValueError, IndexError):  # numpy's message would quote the data
        raise ValueError(
            f"{path} is not laid out as {schema.name}: {schema.fields} fields a line, numbers"
        ) from None
    if schema.rows is not None and len(table) != schema.rows:
        raise ValueError(f"{path} must hold {schema.rows} complete lines for {schema.name}, not {len(table)}")
    values = checks.floating("path", torch.as_tensor(table))
    return values[:, :-1].contiguous(), values[:, -1].contiguous()


def load_numbers(path: str | Path) -> tuple[Tensor, Tensor]:
    """Features (n, d) and labels (n,), the last column, of a file of comma-separated numbers without a header.

    Such are the files of the repository treforevans/uci_datasets, packed or not. Raises ValueError, FileNotFoundError.
    """
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError:  # numpy's message would quote the data
        raise ValueError(f"{path} must hold rows of comma-separated numbers, the label last") from None
    if table.shape[1] < 2:
        raise ValueError(
            f"{path} must have a column of labels after those of features, not {table.shape[1]} column"
        )
    values = checks.floating("path", torch.as_tensor(table))
    return values[:, :-1].contiguous(), values[:, -1].contiguous()


def scaled_columns(A: Tensor) -> Tensor:
    """Each column over its largest absolute value. That value is read from the data: for experiments, not private."""
    largest = A.abs().amax(-2, keepdim=True)
    return A / torch.where(largest > 0, largest, 1.0)


def _lines(file: Iterator[str], schema: Schema) -> Iterator[str]:
    for number, line in enumerate(file):
        if number < schema.header or not line.strip() or (schema.missing is not None and schema.missing in line):
            continue
        if len(line.split(schema.separator)) != schema.fields:
            raise ValueError
        yield line


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/regression/tables.py")
