"""Sums of clients' rows from secret shares: no row is revealed unless all servers collude.

>>> import torch
>>> from torchdp import secure, sketching
>>> plain_sum = sketching.ones(100)
>>> protocol = secure.SecureSketch(plain_sum, 3, bound=1.0, epsilon=1.0, delta=1e-6, servers=3)
>>> found = protocol.estimate(torch.full((100, 3), 0.5))  # every role in this process
>>> found.value.shape, str(protocol.guarantee)
(torch.Size([1, 3]), 'linear-transform differential privacy, at most epsilon = 1, delta = 1e-06')

A client rounds its row to integers modulo 2^bits, adds its part of the noise (``randomize``) and
splits the words into one share for each server (``share``). Servers add, anyone adds up what they
publish (``reconstruct``), ``analyse`` reads it. Who plays which role where: ``client_frames``,
``Server``, ``reveal_frames`` pass authenticated frames in one process. Organisations, servers and
analyst that are processes of their own agree on a ``Session``, each with the key of its
``KeyFile``, which ``join``s it, and ``submit``, ``serve``, ``release`` files in a folder.

| class | noise | words of a client, to each server |
|---|---|---|
| :class:`SecureSketch` | Gaussian, fresh in each of s copies | s d |
| :class:`PureSecureSketch` | discrete Laplace, delta = 0 | s d |
| :class:`SharedSum`: one of these on a plain sum of what clients encode | that one's | ``words`` |

To be read in this order:

* ``ring``: integers modulo 2^bits, and their shares. Shamir (1979).
* ``sums``: sums of words whatever their noise; ``protocol``: Gaussian noise, Burkhardt, Keller,
  Orlandi, Schwiegelshohn (2025), Theorem 4.4, on the grid the proofs in ``torchdp.grid``; ``pure``:
  discrete Laplace noise, their Theorem 4.8; ``shared_sum``: one of these on what clients encode.
* ``frames``: what travels. Nir, Langley (2018), RFC 8439. ``servers``: who takes it in.
* ``keys``, ``session``, ``roles``: parties that are processes of their own. Langley, Hamburg,
  Turner (2016), RFC 7748.
"""

from torchdp.secure.frames import FrameError
from torchdp.secure.keys import KeyFile, new_keys
from torchdp.secure.protocol import SecureSketch
from torchdp.secure.pure import PureSecureSketch
from torchdp.secure.ring import reconstruct, share
from torchdp.secure.roles import joined_session, open_session, read_session, release, serve, submit
from torchdp.secure.servers import Links, Server, client_frames, reveal_frames
from torchdp.secure.session import Party, Session
from torchdp.secure.shared_sum import SharedSum, Shown
from torchdp.secure.sums import Words

__all__ = [
    "FrameError",
    "KeyFile",
    "Links",
    "Party",
    "PureSecureSketch",
    "SecureSketch",
    "Server",
    "Session",
    "SharedSum",
    "Shown",
    "Words",
    "client_frames",
    "joined_session",
    "new_keys",
    "open_session",
    "read_session",
    "reconstruct",
    "release",
    "reveal_frames",
    "serve",
    "share",
    "submit",
]
