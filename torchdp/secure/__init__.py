"""Sums that servers compute from shares: nobody sees an input unless all servers collude."""

from torchdp.secure.frames import FrameError
from torchdp.secure.processes import run_processes, take_part
from torchdp.secure.protocol import SecureSketch
from torchdp.secure.ring import Ring
from torchdp.secure.servers import Links, Server, client_frames, reveal_frames
from torchdp.secure.shared_noise import SharedGaussian, SharedLaplace
from torchdp.secure.shares import reconstruct, share

__all__ = [
    "FrameError",
    "Links",
    "Ring",
    "SecureSketch",
    "Server",
    "SharedGaussian",
    "SharedLaplace",
    "client_frames",
    "reconstruct",
    "reveal_frames",
    "run_processes",
    "share",
    "take_part",
]
