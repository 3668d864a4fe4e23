"""Lifted PrivUnit messages from explicit random inputs. One path today: the reference, on every device."""

from torchdp.kernels.privunit.reference import message

__all__ = ["message"]
