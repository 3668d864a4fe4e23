"""Standard normals of a key and a number: those of one user can be made again, on any device."""

from torchdp.kernels.normals.reference import normals

__all__ = ["normals"]
