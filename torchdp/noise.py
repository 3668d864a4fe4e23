"""Where the noise of users and curators comes from: a cipher keyed by the system, or a seed.

Public draws (features, sketches, matrices) and ``sample_`` take a ``torch.Generator``; private
noise takes a :class:`Noise`. The two are different types, so no stream can be both published and
used for privacy.
"""

import hashlib
import os
import threading
from typing import NoReturn

import torch
from torch import Tensor

from torchdp.draws import Draws, Simulated
from torchdp.kernels.chacha import Stream, key_of, system_key

# words under one key of the system's
LONGEST = 2**26
# A child may get the number of a process that is gone: forks are counted too.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def process() -> tuple[int, int]:
    """What tells this process from its parent and its children, which must not read one stream."""
    return os.getpid(), _forks


class Noise(Draws):
    """ChaCha20 under 256 bits of the operating system's: no word is repeated, or of two threads.

    Each thread has its own key, drawn at its first use; so has a forked child. A key makes 2^26
    words, or those of one larger call, and is forgotten. A copy or a pickle would repeat its words:
    both raise TypeError. On a GPU the words are the cipher's too; fused kernels, which draw from
    Philox, are for :class:`SeededNoise`.

    Guarantees: uniform, independent words to anybody who can not tell ChaCha20 or the system's
    generator from random.
    Source: Bernstein (2008), ChaCha, a variant of Salsa20; Nir, Langley (2018), RFC 8439.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.device = torch.get_default_device() if device is None else torch.device(device)
        self._own = threading.local()

    def fill(self, words: Tensor) -> None:
        own = self._own
        # A forked child has its parent's stream in memory, and must not read a word of it.
        if getattr(own, "process", None) != process() or own.stream.used + words.numel() > LONGEST:
            own.stream = Stream(system_key(self.device))
            own.process = process()
        own.stream.fill(words)

    def kernel_key(self) -> int | None:
        return None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can not be copied or pickled: the copy would repeat its "
            "words; make a new one where it is used"
        )


class SeededNoise(Noise):
    """The same distribution from a seed, for tests and simulations. It gives no privacy.

    Args:
        seed: any integer, all of which counts.
        device: of the words.

    Threads share one stream under a lock; in a forked child it raises RuntimeError, since it would
    repeat its parent's words.
    """

    def __init__(self, seed: int, device: torch.device | str | None = None) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an int, not {type(seed).__name__}")
        super().__init__(device)
        self.seed = seed
        # Hashed, so that neighbouring seeds have unrelated keys.
        key = hashlib.shake_256(b"torchdp seeded noise %d" % seed).digest(32)
        self._stream = Stream(key_of(key, self.device))
        self._lock = threading.Lock()
        self._process = process()

    @staticmethod
    def of(generator: torch.Generator) -> "SeededNoise":
        """A seed of 256 bits from a generator, on its device: users' messages in a simulation."""
        draws = Simulated(generator)
        # 256 bits, as many as the cipher's key has.
        words = draws.words((4,)).cpu().numpy().tobytes()
        return SeededNoise(int.from_bytes(words, "little"), draws.device)

    def fill(self, words: Tensor) -> None:
        # Checked at each call: the fork copies the object without calling it.
        if self._process != process():
            raise RuntimeError(
                "this SeededNoise was made before a fork; make one with another seed in the child"
            )
        with self._lock:
            self._stream.fill(words)

    def kernel_key(self) -> int:
        return int(self.words(()))


def source(noise: Noise | None, device: torch.device | str | None = None) -> Noise:
    """``noise``, or for None the system's under a new key, on ``device``.

    device: None where the words are read by the host: any. Raises TypeError, ValueError.
    """
    if noise is None:
        return Noise(device or "cpu")
    if not isinstance(noise, Noise):
        raise TypeError(
            "noise must be None (the system's) or a Noise such as SeededNoise(1), not "
            f"{type(noise).__name__}; "
            "a torch.Generator draws what is public or simulated, never what hides a user"
        )
    if device is not None and noise.device.type != torch.device(device).type:
        raise ValueError(
            f"noise is on {noise.device}, the data on {device}; make the noise on {device}"
        )
    return noise
