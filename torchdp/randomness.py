"""Generators filled with as much randomness as they hold.

``torch.Generator().manual_seed(seed)`` on a CPU keeps only the low 32 bits of the seed: among 10^5
generators some pair is likely to draw the same numbers, and noise that was drawn for real data
could be found by trying all seeds. Here the whole state of the Mersenne Twister (19937 bits) is
filled; on a GPU the seed has 64 bits.
"""

import hashlib
import sys

import torch

# torch's CPU state: a header of 24 bytes, 624 words of 32 bits stored in 64, then what is left of
# the last normal.
_HEADER = 24
_WORDS = 624
_SIZE = 5056


def keyed_generator(key: bytes, device: torch.device | str | None = None) -> torch.Generator:
    """A generator whose stream is a function of ``key`` and of the kind of device alone.

    By SHAKE-256. device: for None torch's default, which a script's ``--device`` sets.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    generator = torch.Generator(device)
    material = hashlib.shake_256(key).digest(4 * _WORDS)
    # A GPU's counter is keyed by a seed of 64 bits, and holds no more.
    if device.type != "cpu":
        return generator.manual_seed(int.from_bytes(material[:8], "little", signed=True))
    state = generator.manual_seed(1).get_state()
    first_word = int.from_bytes(state[_HEADER : _HEADER + 8].numpy().tobytes(), sys.byteorder)
    if state.numel() != _SIZE or first_word != 1:  # a fresh state starts with the seed
        raise RuntimeError(
            f"torch {torch.__version__} stores its CPU generator in a way that is not known here"
        )
    signed = torch.frombuffer(bytearray(material), dtype=torch.int32)
    words = signed.to(torch.int64) & 0xFFFFFFFF
    state[_HEADER : _HEADER + 8 * _WORDS] = words.view(torch.uint8)
    state[:8] = signed[:2].view(torch.uint8)  # what initial_seed() returns
    return generator.set_state(state)
