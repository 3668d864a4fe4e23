"""Lifted PrivUnitG messages from explicit random inputs. One path today: the reference, on every device."""

from torchdp.kernels.privunitg.reference import message, tilted_normal

__all__ = ["message", "tilted_normal"]
