"""The words of a secure sketch, their noise from one key, and their sums."""

from torchdp.kernels.secure_sketch.reference import SURE, VARIATION, rounded_normals, words
from torchdp.kernels.secure_sketch.rows import add_rows

__all__ = ["SURE", "VARIATION", "add_rows", "rounded_normals", "words"]
