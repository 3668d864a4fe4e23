"""Sums of many clients' rows that servers compute from shares: nobody sees a row unless all servers collude.

>>> import torch
>>> from torchdp import secure, sketching
>>> protocol = secure.SecureSketch(sketching.ones(100), 3, bound=1.0, epsilon=1.0, delta=1e-6, servers=3)
>>> found = protocol.estimate(torch.full((100, 3), 0.5))  # every role in this process
>>> found.value.shape, str(protocol.guarantee)
(torch.Size([1, 3]), 'linear-transform differential privacy, at most epsilon = 1, delta = 1e-06')

A client rounds its row to integers modulo 2^bits, adds its part of the noise (``randomize``) and splits the words into
one share for each server (``share``). Servers add, anyone adds up what they publish (``reconstruct``), ``analyse``
reads it. Who plays which role where: ``Server`` issues each client's keys, ``client_frames``, ``Server``,
``reveal_frames`` pass authenticated frames; ``take_part`` runs a server, the analyst or all clients in its own process,
``run_processes`` all of them on one machine.

| class | noise | words of a client, to each server |
|---|---|---|
| :class:`SecureSketch` | Gaussian, fresh in each of s copies | s d |
| :class:`PureSecureSketch` | discrete Laplace, delta = 0 | s d |

Theorems: noise, Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 4.4; on the grid, the proofs in
``torchdp.grid``; shares, Shamir (1979); frames, Nir, Langley (2018), RFC 8439.
"""

from torchdp.secure.frames import FrameError
from torchdp.secure.processes import run_processes, take_part
from torchdp.secure.protocol import SecureSketch
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.ring import reconstruct, share
from torchdp.secure.servers import Links, Server, client_frames, reveal_frames
from torchdp.secure.sums import Words

__all__ = [
    "FrameError",
    "Links",
    "PureSecureSketch",
    "SecureSketch",
    "Server",
    "Words",
    "client_frames",
    "reconstruct",
    "reveal_frames",
    "run_processes",
    "share",
    "take_part",
]
