"""Philox 4x32-10: random words as a function of a key and a counter, the same integers on every device."""

from torchdp.kernels.philox.reference import draw_key, unit, words

__all__ = ["draw_key", "unit", "words"]
