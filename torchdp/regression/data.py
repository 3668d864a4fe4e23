"""Rows to try the mechanisms on: the paper's synthetic ones, and bounds on rows."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from torchdp import checks
from torchdp.regression.errors import SecondMoments, checked
from torchdp.regression.rows import shortened


def spectrum_rows(clients: int, columns: int, rank: int, *, generator: torch.Generator) -> Tensor:
    """Rows with ``rank`` singular values sqrt(n/rank), the others 1/n, and random bases: (n, d), float64.

    The singular bases are those of a standard normal matrix. A row's mean squared norm is 1. Raises ValueError.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.2.
    """
    n, d = checks.integer("clients", clients, 1), checks.integer("columns", columns, 1)
    if not checks.integer("rank", rank, 1) <= d <= n:
        raise ValueError(f"rank <= columns <= clients is needed, not {rank}, {d}, {n}")
    normal = _normal((n, d), generator)
    values, vectors = torch.linalg.eigh(normal.mT @ normal)
    wanted = values.new_full((d,), 1 / n)
    wanted[-rank:] = math.sqrt(n / rank)
    return normal @ (vectors * (wanted / values.sqrt())) @ vectors.mT


def regression_rows(
    clients: int, columns: int, spread: float, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Rows a ~ N(0, I) and labels <a, x>, x ~ N(0, spread^2 I), all entries cut to [-1, 1]: (n, d), (n,), float64.

    The paper leaves its scaling to [-1, 1] unsaid; cutting needs no look at the data, and leaves a loss at the
    optimum. Raises ValueError.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.2 (spread is its mu).
    """
    n, d = checks.integer("clients", clients, 1), checks.integer("columns", columns, 1)
    x = checks.positive("spread", spread) * _normal((d,), generator)
    A = _normal((n, d), generator).clamp_(-1, 1)
    return A, (A @ x).clamp_(-1, 1)


def clipped_rows(A: Tensor, bound: float) -> Tensor:
    """Rows shortened to a public l_2 bound, float64: what a client may do without seeing anybody else's.

    In float32 a row's rounding could leave it longer than the bound. Raises ValueError, TypeError.
    """
    return shortened(checks.matrix("A", A).double(), checks.positive("bound", bound))


def scaled_columns(A: Tensor) -> Tensor:
    """Each column over its largest absolute value. That value is read from the data: for experiments, not private."""
    A = checks.matrix("A", A)
    largest = A.abs().amax(-2, keepdim=True)
    return A / torch.where(largest > 0, largest, 1.0)


def export_moments(path: str | Path, moments: SecondMoments, *, name: str) -> None:
    """Write n and M as JSON, with a note that they are not private. 17 digits: nothing is lost."""
    checked(moments)
    content = {
        "name": name,
        "differentially_private": False,
        "note": "exact second moments of real rows; keep them as carefully as the rows",
        "clients": moments.clients,
        "moments": moments.matrix.tolist(),
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normals where the generator lives."""
    checks.fits("the rows", *shape)
    generator = checks.random_source(generator, getattr(generator, "device", torch.device("cpu")))
    return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator)
