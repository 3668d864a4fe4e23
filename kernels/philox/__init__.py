"""Philox 4x32-10: random words of a key and a counter, the same integers on every device."""

from torchdp.kernels.philox.reference import unit, words

__all__ = ["unit", "words"]
