"""The synthetic rows of Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.2."""

import math

import torch


def spectrum_rows(clients, columns, rank, *, generator):
    """Rows with ``rank`` singular values sqrt(n/rank), the others 1/n, and random bases: (n, d),
    float64.

    The singular bases are those of a standard normal matrix. A row's mean squared norm is 1.
    """
    normal = torch.randn(clients, columns, dtype=torch.float64, generator=generator)
    values, vectors = torch.linalg.eigh(normal.mT @ normal)
    wanted = values.new_full((columns,), 1 / clients)
    wanted[-rank:] = math.sqrt(clients / rank)
    # normal (normal^T normal)^(-1/2) has orthonormal columns
    factors = wanted / values.sqrt()
    return normal @ (vectors * factors) @ vectors.mT


def regression_rows(clients, columns, spread, *, generator):
    """Rows a ~ N(0, I) and labels <a, x>, x ~ N(0, spread^2 I), all entries cut to [-1, 1]: (n, d),
    (n,), float64.

    The paper (spread is its mu) leaves its scaling to [-1, 1] unsaid; cutting needs no look at the
    data, and leaves a loss at the optimum.
    """
    x = spread * torch.randn(columns, dtype=torch.float64, generator=generator)
    A = torch.randn(clients, columns, dtype=torch.float64, generator=generator).clamp_(-1, 1)
    return A, (A @ x).clamp_(-1, 1)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/regression/ridge.py")
