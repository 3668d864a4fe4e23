"""Factorization norms in closed form, and given factors certified: no iteration anywhere."""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent, power_norm, row_norm
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution


def gamma_product_domain(norms: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p(K_1 x ... x K_k) from the sets' Gamma_p: their l_{2p/(p+2)} norm.

    A user holds one point of each set: Gamma_2 adds, Gamma_inf adds in squares.
    norms: (*batch, k), not negative. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 60.
    """
    return power_norm(_norms("norms", norms), _box_order(p))


def gamma_box(low: Tensor, high: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p([low_1, high_1] x ... x [low_d, high_d]) = ||high - low||_{2p/(p+2)} / 2.

    low, high: (*batch, d), low <= high. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), equations (26) and (27), with the factor 1/2 of (27) in both.
    """
    return gamma_product_domain(_half(low, high), p)


def gamma_ellipsoid(A: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p({A u + v: ||u|| <= 1}) = the l_p norm of A's row norms, whatever the centre v.

    A: (*batch, d, r). Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 19.
    """
    return row_norm(checks.matrix("A", A).double(), check_exponent(p))


def at_uniform_weights(W: Tensor, left: Tensor, right: Tensor, p: float) -> Factorization:
    """Given factors of W, balanced and certified with uniform weights for the lower bound. Raises ValueError on p."""
    p = check_exponent(p)
    rows, columns = torch.ones_like(W[..., 0]).double(), torch.ones_like(W[..., 0, :]).double() / W.shape[-1]
    return finish(W, Solution(left, right, None, rows, columns, columns, 0), p)


def _norms(name: str, values: Tensor) -> Tensor:
    values = checks.floating(name, values).double()
    if values.ndim == 0 or 0 in values.shape or bool((values < 0).any()):
        raise ValueError(f"{name} must be a non-empty (*batch, k) tensor without negative entries")
    return values


def _half(low: Tensor, high: Tensor) -> Tensor:
    low, high = checks.floating("low", low).double(), checks.floating("high", high).double()
    try:
        torch.broadcast_shapes(low.shape, high.shape)
    except RuntimeError as error:
        raise ValueError(
            f"low {tuple(low.shape)} and high {tuple(high.shape)} must have one shape, (*batch, d)"
        ) from error
    if bool((low > high).any()):
        raise ValueError("low must be at most high in every coordinate")
    return _norms("high - low", high - low) / 2


def _box_order(p: float) -> float:
    p = check_exponent(p)
    return 2.0 if p == math.inf else 2 * p / (p + 2)
