"""The words of a secure sketch, their noise from one key, and their sums."""

from torchdp.kernels.secure_sketch.reference import (
    SURE,
    VARIATION,
    add_rows,
    rounded_normals,
    words,
)

__all__ = ["SURE", "VARIATION", "add_rows", "rounded_normals", "words"]
