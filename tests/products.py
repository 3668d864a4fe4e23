"""What tests of second moments share: rows, their products and sketches written out, delta of a
Gaussian pair.
"""

import itertools
import math

import torch
from laws import generator, normal
from torch import Tensor

from torchdp.sketching import Sketch


def rows(
    n: int,
    d: int,
    seed: int = 0,
    bound: float = 1.5,
) -> Tensor:
    """Rows of norm at most ``bound``."""
    A = normal(n, d, seed=seed)
    lengths = torch.linalg.vector_norm(A, dim=1, keepdim=True)
    return A * (bound / lengths).clamp_max(1)


def sphere(
    n: int,
    d: int,
    radius: float,
    seed: int = 0,
) -> Tensor:
    return radius * torch.nn.functional.normalize(normal(n, d, seed=seed), dim=1)


def written_out(sketch: Sketch) -> Tensor:
    """S, entry by entry."""
    S = torch.zeros(sketch.height, sketch.clients).double()
    for c, i in itertools.product(range(sketch.copies), range(sketch.clients)):
        S[sketch.rows[c, i], i] += float(sketch.signs[c, i]) / math.sqrt(sketch.copies)
    return S


def products(A: Tensor, b: Tensor | None = None) -> Tensor:
    """The upper triangle of A^T A, sqrt 2 times off the diagonal, and A^T b, number by number."""
    d = A.shape[1]
    gram = []
    for i, j in itertools.combinations_with_replacement(range(d), 2):
        gram.append((A[:, i] * A[:, j]).sum() * (1 if i == j else math.sqrt(2)))
    cross = [] if b is None else [(A[:, i] * b).sum() for i in range(d)]
    return torch.stack([*gram, *cross])


def regression_rows(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normal rows and labels linear in them, all entries cut to [-1, 1], which leaves a loss."""
    draws = generator(seed)
    x = torch.randn(d, dtype=torch.float64, generator=draws)
    A = torch.randn(n, d, dtype=torch.float64, generator=draws).clamp_(-1, 1)
    return A, (A @ x).clamp_(-1, 1)


def spectrum_rows(n: int, d: int, rank: int) -> Tensor:
    """Rows with ``rank`` singular values sqrt(n/rank), the others 1/n."""
    U, _, Vh = torch.linalg.svd(
        torch.randn(
            n,
            d,
            dtype=torch.float64,
            generator=generator(),
        ),
        full_matrices=False,
    )
    return (
        U
        * torch.tensor([math.sqrt(n / rank)] * rank + [1 / n] * (d - rank), dtype=torch.float64)
        @ Vh
    )


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle, Wang (2018), Theorem 8, from the error function."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)
