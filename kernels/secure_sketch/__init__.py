"""Sums of a secure sketch with noise and shares made where they are needed, from one key."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, contiguous, examples
from torchdp.kernels.secure_sketch import reference
from torchdp.kernels.secure_sketch.reference import SURE, VARIATION, rounded_normals, words
from torchdp.kernels.secure_sketch.rows import add_rows

__all__ = ["SURE", "VARIATION", "add", "add_rows", "rounded_normals", "words"]

ADD = Kernel(__name__, "add", reference.add, examples.secure_sketch)


def add(
    sums: Tensor,
    values: Tensor,
    rows: Tensor,
    signs: Tensor,
    units: Tensor,
    key: Tensor,
    *,
    first: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Add what clients first, first + 1, ... send to each server into its sums, in place, and return them.

    Client i's word in copy c is sign (trunc(value scale) + round(unit_j G)), j = rows[c, i]; server k of the first
    S - 1 gets a mask, the last one the word minus the masks, all modulo 2^bits. sums: (S, m, d), int32 or int64,
    contiguous. values: (k, d), real; scale: a power of two, |value scale| < 2^(bits - 1). rows, signs: (s, k), rows in
    [0, m), which is not checked. units: (m,) float64, standard deviations of the noise in units of the integers, at
    most 2^46. key: (8,) int32 (``chacha.system_key``), spent by one set of clients 0, 1, ...: their parts, each with
    its first, add up to the whole. Raises ValueError.
    """
    contiguous(sums=sums, units=units, key=key)
    ADD(values.device, sums, values, rows, signs, units, key, first, scale)
    return sums
