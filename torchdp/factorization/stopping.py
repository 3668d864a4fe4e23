"""When a certificate is good enough, and what to say where it is not: one rule for every solver and every caller."""

import warnings

import torch
from torch import Tensor

from torchdp.factorization.certificate import Certificate


def closed(certificate: Certificate, tol: float, size: Tensor, dtype: torch.dtype) -> bool:
    """Whether each problem's certificate is closed, or its norm is 0 but for the rounding of factors in ``dtype``.

    size: largest absolute entry of each problem. A norm of 0 (a single point and a free shift) has no relative gap.
    """
    return bool((certificate.closed(tol) | (certificate.upper <= 16 * torch.finfo(dtype).eps * size)).all())


def warn_where_open(
    certificate: Certificate,
    tol: float,
    size: Tensor,
    dtype: torch.dtype,
    iterations: int,
    max_iterations: int,
    *,
    stacklevel: int = 3,
) -> None:
    """RuntimeWarning, at the caller's caller, where :func:`closed` is false."""
    if not closed(certificate, tol, size, dtype):
        warn_open(float(certificate.gap.max()), tol, dtype, iterations, max_iterations, stacklevel=stacklevel + 1)


def warn_open(
    gap: float, tol: float, dtype: torch.dtype, iterations: int, max_iterations: int, *, stacklevel: int = 2
) -> None:
    """RuntimeWarning of a gap above ``tol``: more iterations help only where they ran out."""
    if iterations >= max_iterations:
        remedy = "raise max_iterations or tol"
    elif dtype == torch.float64:
        remedy = "rounding is in the way: raise tol"
    else:
        remedy = "rounding is in the way (float32 factors stop near 1e-6): raise tol, or take W in float64"
    warnings.warn(
        f"stopped after {iterations} iterations at a certified gap of {gap:.2e}, above tol = {tol:.2e}; {remedy}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def working(name: str, W: Tensor, *, stacklevel: int = 3) -> Tensor:
    """W; in half precision, which would leave gaps of a hundredth, W in float32, and a RuntimeWarning."""
    if W.dtype not in (torch.float16, torch.bfloat16):
        return W
    warnings.warn(
        f"{name} is in {W.dtype}, too coarse for factors: its entries are taken as they are, and the factors are "
        "float32; pass float32 or float64",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
    return W.float()
