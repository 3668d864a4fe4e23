"""Floors that several benches share: what the random numbers, or one pass over the memory, cost
alone.
"""

import torch

from torchdp.randomness import keyed_generator

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def words(n):
    """n words of 64 bits of a generator, written part by part."""
    part = torch.empty(2**16, dtype=torch.int64, device=DEVICE)
    generator = keyed_generator(b"floor", DEVICE)

    def written():
        for first in range(0, n, len(part)):
            part[: n - first].random_(generator=generator)

    return written


def normals(n, d, dtype=torch.float64):
    """n x d normals, made part by part and thrown away."""
    rows = max(1, 2**18 // d)
    kind = {"dtype": dtype, "device": DEVICE, "generator": keyed_generator(b"floor", DEVICE)}
    return lambda: [torch.randn(min(rows, n - first), d, **kind) for first in range(0, n, rows)]


def read(x):
    """One pass over x."""
    return lambda: x.sum(dtype=x.dtype)


def unit_vectors(n, d, dtype=torch.float32):
    """Inside the unit ball."""
    x = torch.randn(n, d, dtype=dtype, device=DEVICE, generator=keyed_generator(b"points", DEVICE))
    return x / (1.01 * x.norm(dim=1, keepdim=True))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/run.py")
