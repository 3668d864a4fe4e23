"""What a server computes: sums of the words that it is sent, row by row of the sketch, modulo 2^bits.

Clients send words that already carry their public signs, so a server only adds, and keeps no word that is added.
"""

import itertools

from torch import Tensor

from torchdp import checks
from torchdp.kernels import secure_sketch


def add_rows(sums: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """sums[rows[c, i]] += words[..., c, i, :] in place: (*batch, m, d), (s, k), (*batch, s, k, d); returns ``sums``.

    On a CPU each word is read once and nothing of their size is stored. Raises ValueError, TypeError.
    """
    if checks.dense("sums", sums).ndim < 2 or checks.dense("words", words).ndim < 3:
        raise ValueError("sums must have shape (*batch, m, d), words (*batch, s, k, d)")
    places = checks.indices("rows", rows, sums.shape[-2]).flatten()
    shape = (*sums.shape[:-2], *rows.shape, sums.shape[-1])
    if words.shape != shape or words.dtype != sums.dtype:
        raise ValueError(
            f"words must have shape {tuple(shape)} and {sums.dtype}, as rows and sums have, "
            f"not {tuple(words.shape)}, {words.dtype}"
        )
    for batch in itertools.product(*map(range, sums.shape[:-2])):
        secure_sketch.add_rows(sums[batch], places, words[batch].flatten(0, 1))
    return sums
