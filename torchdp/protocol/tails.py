"""Tails of quadratic forms of normal vectors."""

import torch
from torch import Tensor

from torchdp.protocol.interval import LARGEST

FEW = 100  # steps of the search for a saddlepoint; it stops where nothing moves
NEAR = 1e-7  # relative change at which a search stops
EVEN = 1e-3  # deviates below which the saddlepoint formula is replaced by its limit
TINY = 1e-300
MANY = 256  # rows, of which those that are done are put aside
ENDLESS = 1e15  # a saddlepoint beyond it is that of a value which cannot be told from the end of the range


def normal_deviate(x: Tensor, curved: Tensor, squares: Tensor) -> Tensor:
    """d with P[sum_i w_i (e_i^2 - 1) + 2 g_i e_i > x] = 1 - Phi(d) nearly, (*batch); curved: w, squares: g^2.

    With K(s) = sum_i -log(1 - 2 w_i s)/2 - w_i s + 2 g_i^2 s^2/(1 - 2 w_i s) and K'(s) = x: d = r + log(v/r)/r,
    r = sign(s) sqrt(2 (s x - K(s))), v = s sqrt(K''(s)).
    """
    size = (2 * curved.square() + 4 * squares).sum(-1).sqrt().clamp_min(TINY)
    w, g, x = curved / size[..., None], squares / size[..., None].square(), (x / size).clamp(-LARGEST, LARGEST)
    up, down = w.amax(-1).clamp_min(0), (-w.amin(-1)).clamp_min(0)
    p = _saddlepoint(*(each.reshape(-1, *each.shape[x.ndim :]) for each in (w, g, x, up, down))).view_as(x)
    s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
    d = 1 - 2 * w * s[..., None]
    K = (-torch.log(d) / 2 - w * s[..., None] + 2 * g * s[..., None].square() / d).sum(-1)
    r = s.sign() * (2 * (s * x - K)).clamp_min(0).sqrt()
    v = s * (2 * (w / d).square() + 4 * g / d**3).sum(-1).sqrt()
    even = (r.abs() < EVEN) | (v.abs() < EVEN)
    third = (8 * w**3 + 24 * w * g).sum(-1)
    far, ratio = torch.where(even, 1.0, r), torch.where(even, 1.0, v / r)
    return torch.where(even, x + third / 6, far + ratio.log() / far)


def _saddlepoint(w: Tensor, g: Tensor, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """p at which K'(s) = x, (rows); ENDLESS where there is none, since x is beyond all values.

    s runs from pole to pole, 1/(2 w), as p does over the line: Newton's steps in p never leave the range.
    """
    low, high = (torch.where(x.sign() == side, torch.zeros_like(x), -side * torch.inf) for side in (1, -1))
    p, found, going = x, x.clone(), torch.ones_like(x, dtype=torch.bool)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(FEW):
        s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
        ws, gs = w * s[..., None], g * s[..., None]
        d = 1 - 2 * ws
        slope = (2 * w * ws / d + 4 * gs * (1 - ws) / d.square()).sum(-1)
        bend = (2 * (w / d).square() + 4 * g / d**3).sum(-1)
        low, high = torch.where(slope > x, low, p), torch.where(slope > x, p, high)
        inner = (s / torch.where(p == 0, 1.0, p)).where(p != 0, 1.0)
        step = p - (slope - x) / (bend * inner.square()).clamp_min(TINY)
        half = torch.where(high.isinf(), 8 * low + 1, torch.where(low.isinf(), 8 * high - 1, (low + high) / 2))
        inside = (step >= low) & (step <= high) & (step.abs() <= 8 * p.abs() + 1)
        new = torch.where(inside, step, half)
        moves = going & ((new - p).abs() > NEAR * p.abs()) & (new.abs() < ENDLESS)
        p, going, left = torch.where(going, new, p), moves, int(moves.sum())  # what is done stays as it is
        if len(p) > MANY and 2 * left < len(p):  # the others are done with
            found[rows] = p
            kept = (w, g, x, up, down, low, high, p, rows, going)
            w, g, x, up, down, low, high, p, rows, going = (each[moves] for each in kept)
        if not left:
            break
    found[rows] = p
    return found
