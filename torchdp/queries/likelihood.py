"""The most likely histogram of reports whose messages have a known distribution, plain and smoothed; batched EM."""

import torch
from torch import Tensor

from torchdp.memory import rows_at_once

TINY = 1e-300
GAP = 0.1  # nats that the log likelihood of a plain fit may lack; a 95 % interval is 1.9 nats wide
PRODUCTS = 3000  # of a fit with the distributions, at most
STEPS, STILL = 300, 1e-3  # of smoothed EM at one strength, at most; nats of a step at which it ends
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
LIGHT = 1e-3  # a type of a smaller share than this of 1/k does not move


def expected(Q: Tensor, shares: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step of EM less its product with h, Q^T(shares/Q h), and the log likelihood of one user, (b, k) and (b,)."""
    p = (h @ Q.mT).clamp_min(TINY)
    return (shares / p) @ Q, (shares * p.log()).sum(-1)


def most_likely(Q: Tensor, reports: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """argmax over histograms h of sum_y reports_y log (Q h)_y, (b, k), and what the log likelihood may lack, (b,).

    The gap n (max_x (Q^T(f/Q h))_x - 1), f = reports/n, is at least the lack: the log likelihood is concave, and its
    gradient's product with h is n. EM keeps the sum of h; extrapolation is taken only where it does not lower the
    likelihood. What is not within ``GAP`` after ``PRODUCTS`` says so by its gap.

    Q: (outputs, k), columns that add up to 1; reports: (b, outputs); start: (b, k), positive histograms.
    Source: Dempster, Laird, Rubin (1977); Varadhan, Roland (2008), SQUAREM.
    """
    n = reports.sum(-1)
    f, h, alive = reports / n[:, None], start.clone(), torch.arange(len(reports), device=Q.device)
    best, lack = start.clone(), torch.full_like(n, torch.inf)
    for _ in range(0, PRODUCTS, 3):
        ratio, value = expected(Q, f, h)
        gap = n[alive] * (ratio.amax(-1) - 1)
        best[alive], lack[alive] = h, gap
        going = gap > GAP
        if not bool(going.any()):
            break
        alive, f, h, ratio, value = alive[going], f[going], h[going], ratio[going], value[going]
        once = h * ratio
        twice = once * expected(Q, f, once)[0]
        h = _further(Q, f, (h, once, twice), value)
    return best, lack.clamp_min(0)


def _further(Q: Tensor, f: Tensor, path: tuple[Tensor, Tensor, Tensor], value: Tensor) -> Tensor:
    """Three histograms of EM extrapolated and one step of EM on, or the last where that has a lower likelihood."""
    h, once, twice = path
    first = once - h
    bend = twice - once - first
    norms = first.square().sum(-1, keepdim=True) / bend.square().sum(-1, keepdim=True).clamp_min(TINY)
    length = norms.sqrt().clamp_min(1)
    moved = torch.maximum(h + 2 * length * first + length.square() * bend, 1e-3 * twice)  # never to 0 at once
    moved = moved / moved.sum(-1, keepdim=True)
    ratio, reached = expected(Q, f, moved)
    return torch.where((reached >= value)[:, None], moved * ratio, twice)


def smoothers(k: int, device: torch.device) -> list[Tensor]:
    """Doubly stochastic (k, k), from the widest to the narrowest: (1 - s) I + s B^w, B = (1, 2, 1)/4 reflected."""
    eye = torch.eye(k, dtype=torch.float64, device=device)
    B, i = eye / 2, torch.arange(k - 1, device=device)
    B[i, i + 1] = B[i + 1, i] = 0.25
    B[0, 0] = B[-1, -1] = 0.75
    w = max(1, round((k / 64) ** 2))  # a strength is a share of the interval, whatever the number of types
    B = torch.matrix_power(B, w)
    wide = [torch.matrix_power(B, 16), torch.matrix_power(B, 4)]
    return wide + [(1 - s) * eye + s * B for s in STRENGTHS]


def smoothed(Q: Tensor, reports: Tensor, S: Tensor, start: Tensor) -> Tensor:
    """EM whose every step is smoothed by S, (k, k): (b, k). Source: Silverman, Jones, Wilson, Nychka (1990)."""
    n, h, before = reports.sum(-1), start, torch.full_like(start[:, 0], -torch.inf)
    for _ in range(STEPS):
        ratio, value = expected(Q, reports / n[:, None], h)
        if bool((n * (value - before).abs() < STILL).all()):
            break
        h, before = (h * ratio) @ S, value
        h = h / h.sum(-1, keepdim=True)
    return h


def freedom(Q: Tensor, h: Tensor, S: Tensor | None) -> Tensor:
    """Degrees of freedom of a fit smoothed by S, (b,): how much its own reports flatter its log likelihood.

    At the fixed point h = S EM(h, f), with H = diag(h), D = diag(Q h), M = Q^T D^-1 Q, to first order
    dh = (I - S + S H M)^-1 S H Q^T D^-1 df. Reports of users whose types are fixed have covariance (D - Q H Q^T)/n,
    so that the optimism is tr[(I - S + S H M)^-1 S H M (I - H M)]; without smoothing (S None) the inverse is the
    identity on types that have weight.
    """
    k = Q.shape[1]
    eye, found = torch.eye(k, dtype=Q.dtype, device=Q.device), []
    for some in h.split(rows_at_once(max(k * k, Q.numel()))):
        HM = some[..., None] * (Q.mT @ (Q / (some @ Q.mT).clamp_min(TINY)[..., None]))
        if S is None:
            moved = torch.diag_embed((some > LIGHT / k).to(Q.dtype))
        else:
            moved = torch.linalg.solve(eye - S + S @ HM, S @ HM)
        found.append((moved * (eye - HM).mT).sum((-2, -1)))
    return torch.cat(found)
