"""A certified factorization as a file that another program can verify: arrays and nothing else."""

import math
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import certify
from torchdp.factorization.factorize import Factorization

FORMAT = "torchdp factorization 1"
ARRAYS = ("W", "left", "right", "row_weights", "column_weights")


def save(path: str | PathLike[str], W: Tensor, factorization: Factorization, *, p: float = math.inf) -> None:
    """Writes W, its factorization for the norm p and the bounds as an ``.npz`` of float64 arrays, judged again.

    Its arrays: W, left, right, row_weights, column_weights, shift where there is one, p, lower, upper, and ``format``.
    Another program verifies them with 40 lines of numpy: ``docs/relaxation.md``. Raises TypeError, ValueError.
    """
    found = checks.instance("factorization", factorization, Factorization)
    values = (W, found.left, found.right, found.row_weights, found.column_weights)
    judged = certify(*values, p=p, shift=found.shift)
    arrays = dict(zip(ARRAYS, values, strict=True)) | {"lower": judged.lower, "upper": judged.upper}
    arrays |= {} if found.shift is None else {"shift": found.shift}
    plain: dict[str, Any] = {name: array.detach().double().cpu().numpy() for name, array in arrays.items()}
    plain |= {"format": np.array(FORMAT), "p": np.array(float(p))}
    with open(checks.path("path", path), "wb") as file:
        np.savez(file, allow_pickle=False, **plain)


def load(path: str | PathLike[str]) -> tuple[Tensor, Factorization, float]:
    """(W, factorization, p) of a file by :func:`save`, in float64, its bounds proved again.

    Raises ValueError where an array is missing or the bounds that the file states are not what its arrays prove.
    """
    with np.load(checks.path("path", path), allow_pickle=False) as file:
        missing = {*ARRAYS, "format", "p", "lower", "upper"} - {*file.files}
        if missing or str(file["format"]) != FORMAT:
            raise ValueError(f"path must be a file by save, with format {FORMAT!r}; missing: {sorted(missing)}")
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "format"}
    p, shift = float(arrays["p"]), arrays.get("shift")
    W, left, right, c, P = (arrays[name] for name in ARRAYS)
    judged = certify(W, left, right, c, P, p=p, shift=shift)
    lower, upper = arrays["lower"], arrays["upper"]
    stated = (lower <= judged.lower + judged.rounding) & (upper >= judged.upper - judged.rounding)
    if not bool(stated.all()):
        raise ValueError("path states bounds that its factors and weights do not prove")
    return W, Factorization(left, right, shift, c, P, judged, 0), p
