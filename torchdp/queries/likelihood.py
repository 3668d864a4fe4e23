"""The histogram that tallies make most likely, plain and smoothed: by batched EM, or nearest in the
noise's metric.
"""

import math
from functools import partial

import torch
from torch import Tensor

from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.memory import rows_at_once
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.root import root

TINY = 1e-300
GAP = 0.1  # nats that the log likelihood of a plain fit may lack; a 95 % interval is 1.9 nats wide
PRODUCTS = 3000  # of a fit with the distributions, at most
STEPS, STILL = 300, 1e-3  # of smoothed EM at one strength, at most; nats of a step at which it ends
PASSES = (math.inf, 1024, 256, 64, 16, 4)  # of the wide kernels: the first leaves even shares
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
LIGHT = 1e-3  # a type of a smaller share than this of 1/k does not move
LEAST = 1e-12  # of 1/k: what rounding may leave of a smoothed share
CLOSE = 1e-3  # nats that a projection may lack
MERGED = 128  # types at most on which degrees of freedom are computed
FREEDOMS = (2.5, 4, 6, 9, 14, 22, 40)  # of the penalised fits
LARGEST = 1024  # types up to which roughness is penalised
STEEPEST = 60.0  # logarithm of a strength, at most
ROUNDING = 1e-10  # of the largest diagonal entry


def fits(client: FrequencyOracle, reports: Tensor, ordered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Fits (fits, b, k), their degrees of freedom (fits, b), the gap of the last, (b,): each starts
    from the smoother.

    reports: (b, outputs).
    """
    h = torch.full(
        (len(reports), client.k), 1 / client.k, dtype=torch.float64, device=reports.device
    )
    found = list[Tensor]()
    for kernel in smoothers(client.k, reports.device) if ordered else []:
        h = smoothed(client, reports, kernel, h)
        found.append(h)
    h, gap = most_likely(client, reports, h)
    found.append(h)
    return torch.stack(found), freedoms(client, found), gap


def expected(client: FrequencyOracle, shares: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step of EM less its product with h, Q^T(shares/Q h), and the log likelihood of one user,
    (b, k) and (b,).
    """
    p = client.mixed(h).clamp_min(TINY)
    return client.gathered(shares / p), (shares * p.log()).sum(-1)


def most_likely(client: FrequencyOracle, reports: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """argmax over histograms h of sum_y reports_y log (Q h)_y, (b, k), and what the log likelihood
    may lack, (b,).

    The gap n (max_x (Q^T(f/Q h))_x - 1), f = reports/n, is at least the lack: the log likelihood is
    concave, and its gradient's product with h is n. EM keeps the sum of h; extrapolation is taken
    only where it does not lower the likelihood. What is not within ``GAP`` after ``PRODUCTS`` says
    so by its gap.

    client: Q are the distributions of its messages; reports: (b, outputs); start: (b, k), positive
    histograms.
    Source: Dempster, Laird, Rubin (1977); Varadhan, Roland (2008), SQUAREM.
    """
    n = reports.sum(-1)
    f, h, alive = reports / n[:, None], start, torch.arange(len(reports), device=start.device)
    best, lack = start.clone(), torch.full_like(n, torch.inf)
    for _ in range(0, PRODUCTS, 3):
        ratio, value = expected(client, f, h)
        gap = n[alive] * (ratio.amax(-1) - 1)
        best[alive], lack[alive] = h, gap
        going = gap > GAP
        if not bool(going.any()):
            break
        alive, f, h, ratio, value = alive[going], f[going], h[going], ratio[going], value[going]
        once = h * ratio
        twice = once * expected(client, f, once)[0]
        h = _further(client, f, (h, once, twice), value)
    return best, lack.clamp_min(0)


def _further(
    client: FrequencyOracle, f: Tensor, path: tuple[Tensor, Tensor, Tensor], value: Tensor
) -> Tensor:
    """Three histograms of EM extrapolated and one step of EM on, or the last where that has a lower
    likelihood.
    """
    h, once, twice = path
    first = once - h
    bend = twice - once - first
    norms = first.square().sum(-1, keepdim=True) / bend.square().sum(-1, keepdim=True).clamp_min(
        TINY
    )
    length = norms.sqrt().clamp_min(1)
    # never to 0 at once
    moved = torch.maximum(h + 2 * length * first + length.square() * bend, 1e-3 * twice)
    moved = moved / moved.sum(-1, keepdim=True)
    ratio, reached = expected(client, f, moved)
    return torch.where((reached >= value)[:, None], moved * ratio, twice)


def smoothers(k: int, device: torch.device) -> list[Tensor]:
    """Kernels from the widest to the narrowest: (1 - s) I + s B^w, B = (1, 2, 1)/4 reflected at the
    ends.

    Each by its eigenvalues (k + 1,) on the circle of the k types and their mirror image.
    """
    wave = (
        1 + torch.cos(torch.pi / k * torch.arange(k + 1, dtype=torch.float64, device=device))
    ) / 2
    # a strength is a share of the interval, whatever the number of types
    width = max(1, round((k / 64) ** 2))
    once = wave**width
    wide = [once**passes for passes in PASSES]
    return [*wide, *((1 - s) + s * once for s in STRENGTHS)]


def convolved(h: Tensor, kernel: Tensor) -> Tensor:
    """h, (*batch, k), smoothed: the kernels are doubly stochastic."""
    if not h.numel():  # which Fourier transforms refuse
        return h
    spectrum = torch.fft.rfft(torch.cat([h, h.flip(-1)], -1)) * kernel
    return torch.fft.irfft(spectrum, n=2 * h.shape[-1])[..., : h.shape[-1]]


def smoothed(client: FrequencyOracle, reports: Tensor, kernel: Tensor, start: Tensor) -> Tensor:
    """EM whose every step is smoothed: (b, k), each until it is still.

    Source: Silverman, Jones, Wilson, Nychka (1990).
    """
    n, h, found = reports.sum(-1), start, start.clone()
    f, before, alive = (
        reports / n[:, None],
        torch.full_like(n, -torch.inf),
        torch.arange(len(n), device=n.device),
    )
    for _ in range(STEPS):
        ratio, value = expected(client, f, h)
        found[alive] = h
        going = n * (value - before).abs() >= STILL
        if not bool(going.any()):
            break
        alive, n, f, before, h = (each[going] for each in (alive, n, f, value, h * ratio))
        h = convolved(h, kernel).clamp_min(LEAST / h.shape[-1])
        h = h / h.sum(-1, keepdim=True)
    return found


def freedoms(client: FrequencyOracle, fits: list[Tensor]) -> Tensor:
    """Degrees of freedom of fits (b, k) by each of ``smoothers`` and without one, or of the last
    alone: (fits, b).

    Of smoothed ones on merged neighbours beyond ``MERGED`` types: a fit hardly varies within such a
    group.
    """
    *smooth, plain = fits
    held, Q = merged(client)
    eye = torch.eye(len(held), dtype=Q.dtype, device=Q.device)
    found = [
        freedom(Q, h @ held.mT, convolved(eye, kernel))
        for h, kernel in zip(smooth, smoothers(len(held), Q.device), strict=False)
    ]
    found.append(((plain @ held.mT > LIGHT / client.k).sum(-1) - 1).to(plain))
    return torch.stack(found)


def merged(client: FrequencyOracle) -> tuple[Tensor, Tensor]:
    """At most ``MERGED`` groups of neighbours, (groups, k), and Q for even shares within each,
    (outputs, groups).
    """
    width = -(-client.k // MERGED)
    group = torch.arange(client.k, device=client.device) // width
    groups = torch.arange(-(-client.k // width), device=client.device)
    held = (groups[:, None] == group).double()
    return held, client.mixed(held / held.sum(1, keepdim=True)).mT


def freedom(Q: Tensor, h: Tensor, S: Tensor) -> Tensor:
    """Degrees of freedom n tr A Cov(h, u) of fits h (b, k) smoothed by S (k, k), Q (outputs, k):
    (b,).

    At the fixed point h = S EM(h, f), with H = diag(h), D = diag(Q h), M = Q^T D^-1 Q, to first
    order dh = (I - S + S H M)^-1 S H Q^T D^-1 df. Reports of users whose types are fixed have
    covariance (D - Q H Q^T)/n, and the unbiased histogram u that of least variance A^-1/n, A^-1 =
    M^-1 - H, so that the trace is that of (I - S + S H M)^-1 S H M, less 1 for the sum.
    """
    eye = torch.eye(len(S), dtype=S.dtype, device=S.device)
    found = []
    for some in h.split(rows_at_once(max(S.numel(), Q.numel()))):
        HM = some[..., None] * (Q.mT @ (Q / (some @ Q.mT).clamp_min(TINY)[..., None]))
        moved = torch.linalg.solve(eye - S + S @ HM, S @ HM)
        found.append(moved.diagonal(dim1=-2, dim2=-1).sum(-1) - 1)
    return torch.cat(found)


def advantages(
    client: FrequencyOracle, reports: Tensor, fits: Tensor, freedoms: Tensor
) -> tuple[Tensor, Tensor]:
    """Half of what the estimated risk of fits (fits, b, k) is below that of the unbiased u, and
    d/r, (fits, b).

    The risk is of n (h - t)^T A (h - t), t the users' own histogram, A^-1/n the covariance of u
    where types are fixed. Its unbiased estimate for h is n (h - u)^T A (h - u) + 2 d - r, d the
    degrees of freedom; that for u is the rank r of A. With the gradient g = Q^T D^-1 (f - Q h), of
    covariance V/n, V = M - M H M as in ``freedom``, the distance is n g^T V^-1 g. What n users can
    not tell does not count: V + I/n is inverted.

    reports: (b, outputs).
    Source: Mallows (1973); Stein (1981).
    """
    held, Q = merged(client)
    n = reports.sum(-1, keepdim=True)
    ranks = []
    distances = []
    for h in fits:
        rows = rows_at_once(max(held.numel(), Q.numel()))
        for some, f, users in zip(
            h.split(rows), (reports / n).split(rows), n.split(rows), strict=True
        ):
            p = client.mixed(some).clamp_min(TINY)
            M = Q.mT @ (Q / p[..., None])
            V = M - (M * (some @ held.mT)[:, None]) @ M
            g = (f / p) @ Q - 1
            level = 1 / users + ROUNDING * M.diagonal(dim1=-2, dim2=-1)
            both = torch.cat([V, g[..., None]], -1)
            solved = torch.linalg.solve(V + level.diag_embed(), both)
            rank = solved.diagonal(dim1=-2, dim2=-1).sum(-1)
            distance = users[:, 0] * (solved[..., -1] * g).sum(-1)
            ranks.append(rank)
            distances.append(distance.clamp_min(0))
    r = torch.cat(ranks).view(freedoms.shape)
    distance = torch.cat(distances).view(freedoms.shape)
    return r - freedoms - distance / 2, freedoms / r.clamp_min(TINY)


def projections(
    gram: Tensor, pull: Tensor, n: float | Tensor, ordered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """argmin over histograms of h^T A h/2 - <pull, h> + s ||h''||^2/2 at each s, the last 0; even
    shares first.

    Beyond ``LARGEST`` types or where these are not ordered only the last.

    gram: A, (k, k), the inverse covariance of what one user reports of the types; pull: (b, k); n:
    users, or (b,). The fits are (fits, b, k), their degrees of freedom (fits, b) and the gap of the
    last (b,), in nats.
    """
    k = len(gram)
    limit = CLOSE / float(torch.as_tensor(n, dtype=torch.float64).amax())
    rough = torch.zeros_like(gram)
    strengths = [0.0]
    fits, freedoms = list[Tensor](), list[Tensor]()
    if ordered and 2 < k <= LARGEST:
        bend = torch.eye(k, dtype=gram.dtype, device=gram.device).diff(n=2, dim=0)
        rough = bend.mT @ bend
        strengths = [*_strengths(gram, rough), 0.0]
        fits.append(torch.full_like(pull, 1 / k))
        freedoms.append(torch.zeros_like(pull[:, 0]))
    for s in strengths:
        stiff = gram + s * rough
        h, gap = nearest_histogram(stiff, pull, limit)
        fits.append(h)
        freedoms.append(_held(gram, stiff, h) if s else (h > 1e-9).sum(-1).to(h) - 1)
    return torch.stack(fits), torch.stack(freedoms), n * gap.clamp_min(0)


def _held(gram: Tensor, stiff: Tensor, h: Tensor) -> Tensor:
    """Degrees of freedom of projections: of the types with weight, less 1 for the sum. (b, k) ->
    (b,).
    """
    on = (h > 1e-9).to(h)
    both = on[:, :, None] * on[:, None]
    rounding = ROUNDING * gram.diagonal().amax()
    # a type without weight is a block of its own
    system = both * stiff + torch.diag_embed(1 - on + rounding * on)
    return torch.linalg.solve(system, both * gram).diagonal(dim1=-2, dim2=-1).sum(-1) - 1


def _strengths(gram: Tensor, rough: Tensor) -> list[float]:
    """Those at which the unconstrained fit has ``FREEDOMS`` degrees of freedom, from the public
    distribution alone.
    """
    scale = float(gram.trace() / rough.trace())
    lower = torch.linalg.cholesky(gram + scale * (rough + ROUNDING * torch.eye(len(gram)).to(gram)))
    half = torch.linalg.solve_triangular(lower, gram, upper=False)
    kept = torch.linalg.eigvalsh(torch.linalg.solve_triangular(lower, half.mT, upper=False)).clamp(
        0, 1
    )
    kept = kept[kept > ROUNDING]  # of A in A + scale R
    found = []
    for wanted in FREEDOMS:
        if wanted < len(kept) - 1:
            least = root(partial(_excess, kept, wanted), -STEEPEST, STEEPEST, grow=(False, False))
            found.append(scale * math.exp(least))
    return found


def _excess(kept: Tensor, wanted: float, log_strength: float) -> float:
    """Degrees of freedom at this strength, in A + scale R, above those that are wanted."""
    return float((kept / (kept + math.exp(log_strength) * (1 - kept))).sum()) - wanted
