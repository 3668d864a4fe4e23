"""The histogram that tallies make most likely, plain and smoothed: by EM, or nearest in the noise.

Notation: Q, (outputs, k), the distributions of a client's messages; f, (b, outputs), shares of the
reports of n users; h, (b, k), histograms; D = diag(Q h), H = diag(h), M = Q^T D^-1 Q.
"""

import math
from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.memory import rows_at_once
from torchdp.randomizers.alphabet.frequency import FrequencyOracle, StrategyOracle
from torchdp.root import root

TINY = 1e-300

# Nats that the log likelihood of a plain fit may lack; a 95 % interval is 1.9 nats wide.
GAP = 0.1

# Products of a fit with the distributions, at most.
PRODUCTS = 3000

# Steps of smoothed EM at one strength, at most, and nats of the step at which it ends.
STEPS = 300
STILL = 1e-3

# Of the wide kernels: the first leaves even shares.
PASSES = (math.inf, 1024, 256, 64, 16, 4)
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)

# Types of a smaller share than this of 1/k do not move with the reports.
LIGHT = 1e-3

# Of 1/k: what rounding may leave of a smoothed share.
LEAST = 1e-12

# Nats that a projection may lack.
CLOSE = 1e-3

# Shares of a projection below this are zeros that rounding moved.
ON = 1e-9

# From this epsilon on the answers nearest to a strategy's have less error than likely ones where
# few types are held; below it more, being pulled to single types by noise.
TELLING = 2.0

# Degrees of freedom are computed on at most so many types.
MERGED = 128

# Degrees of freedom of the penalised fits.
FREEDOMS = (2.5, 4, 6, 9, 14, 22, 40)

# Up to so many types roughness is penalised.
LARGEST = 1024

# Logarithm of a strength, at most.
STEEPEST = 60.0

# Of the largest diagonal entry.
ROUNDING = 1e-10


def fits(client: FrequencyOracle, reports: Tensor, ordered: bool) -> tuple[Tensor, Tensor]:
    """Fits (fits, b, k), and the gap of the last, (b,).

    Each starts from the smoother. reports: (b, outputs).
    """
    k = client.k
    h = reports.new_full((len(reports), k), 1 / k)
    histograms = []
    if ordered:
        for kernel in smoothers(k, reports.device):
            h = smoothed(client, reports, kernel, h)
            histograms.append(h)
    h, gap = most_likely(client, reports, h)
    histograms.append(h)
    return torch.stack(histograms), gap


def expected(client: FrequencyOracle, shares: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Q^T(shares/Q h), (b, k), and the log likelihood of one user, (b,).

    A step of EM multiplies h by the first.
    """
    p = client.mixed(h).clamp_min(TINY)
    return client.gathered(shares / p), (shares * p.log()).sum(-1)


def most_likely(client: FrequencyOracle, reports: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """argmax over h of sum_y reports_y log (Q h)_y, (b, k), and what that may lack, (b,).

    The gap n (max_x (Q^T(f/Q h))_x - 1), f = reports/n, is at least the lack: the log likelihood is
    concave, and its gradient's product with h is n. EM keeps the sum of h; extrapolation is taken
    only where it does not lower the likelihood. What is not within ``GAP`` after ``PRODUCTS`` says
    so by its gap.

    Args:
        client: Q are the distributions of its messages.
        reports: (b, outputs).
        start: (b, k), positive histograms.

    Source: Dempster, Laird, Rubin (1977); Varadhan, Roland (2008), SQUAREM.
    """
    n = reports.sum(-1)
    f = reports / n[:, None]
    h = start
    # Rows that are not within GAP yet: what is near needs no further product.
    open_rows = torch.arange(len(reports), device=start.device)
    best = start.clone()
    lack = torch.full_like(n, torch.inf)
    for _ in range(0, PRODUCTS, 3):
        ratio, value = expected(client, f, h)
        gap = n[open_rows] * (ratio.amax(-1) - 1)
        best[open_rows] = h
        lack[open_rows] = gap
        wide = gap > GAP
        if not wide.any():
            break
        open_rows = open_rows[wide]
        f = f[wide]
        h = h[wide]
        once = h * ratio[wide]
        twice = once * expected(client, f, once)[0]
        h = _extrapolated(client, f, (h, once, twice), value[wide])
    return best, lack.clamp_min(0)


def _extrapolated(
    client: FrequencyOracle, f: Tensor, path: tuple[Tensor, Tensor, Tensor], value: Tensor
) -> Tensor:
    """Three histograms of EM extrapolated, and a step of EM on; the last where that is less likely.

    value: the log likelihood of the first.
    """
    h, once, twice = path
    first = once - h
    bend = twice - once - first
    squared_bend = bend.square().sum(-1, keepdim=True).clamp_min(TINY)
    squared_step = first.square().sum(-1, keepdim=True) / squared_bend
    length = squared_step.sqrt().clamp_min(1)
    moved = h + 2 * length * first + length.square() * bend
    # EM never leaves a share of 0, so that none may come there at once.
    moved = torch.maximum(moved, 1e-3 * twice)
    moved = moved / moved.sum(-1, keepdim=True)
    ratio, reached = expected(client, f, moved)
    return torch.where((reached >= value)[:, None], moved * ratio, twice)


def smoothers(k: int, device: torch.device) -> list[Tensor]:
    """Kernels from the widest to the narrowest: (1 - s) I + s B^w, B = (1, 2, 1)/4 reflected.

    Each by its eigenvalues (k + 1,) on the circle of the k types and their mirror image.
    """
    frequencies = torch.pi / k * torch.arange(k + 1, dtype=torch.float64, device=device)
    B = (1 + torch.cos(frequencies)) / 2
    # A strength is a share of the interval, whatever the number of types.
    width = max(1, round((k / 64) ** 2))
    once = B**width
    wide = [once**passes for passes in PASSES]
    return [*wide, *((1 - s) + s * once for s in STRENGTHS)]


def convolved(h: Tensor, kernel: Tensor) -> Tensor:
    """h, (*batch, k), smoothed: the kernels are doubly stochastic."""
    if not h.numel():  # which Fourier transforms refuse
        return h
    k = h.shape[-1]
    mirrored = torch.cat([h, h.flip(-1)], -1)
    spectrum = torch.fft.rfft(mirrored) * kernel
    return torch.fft.irfft(spectrum, n=2 * k)[..., :k]


def smoothed(client: FrequencyOracle, reports: Tensor, kernel: Tensor, start: Tensor) -> Tensor:
    """EM whose every step is smoothed: (b, k), each until it hardly moves.

    Source: Silverman, Jones, Wilson, Nychka (1990).
    """
    n = reports.sum(-1)
    f = reports / n[:, None]
    h = start
    found = start.clone()
    before = torch.full_like(n, -torch.inf)
    moving_rows = torch.arange(len(n), device=n.device)
    for _ in range(STEPS):
        ratio, value = expected(client, f, h)
        found[moving_rows] = h
        moving = n * (value - before).abs() >= STILL
        if not moving.any():
            break
        moving_rows = moving_rows[moving]
        n = n[moving]
        f = f[moving]
        before = value[moving]
        h = convolved((h * ratio)[moving], kernel).clamp_min(LEAST / h.shape[-1])
        h = h / h.sum(-1, keepdim=True)
    return found


def merged(client: FrequencyOracle) -> tuple[Tensor, Tensor]:
    """At most ``MERGED`` groups of neighbours, (groups, k), and Q for even shares within each.

    Q is (outputs, groups).
    """
    width = -(-client.k // MERGED)
    group = torch.arange(client.k, device=client.device) // width
    groups = torch.arange(-(-client.k // width), device=client.device)
    members = (groups[:, None] == group).double()
    return members, client.mixed(members / members.sum(1, keepdim=True)).mT


def judged(
    client: FrequencyOracle,
    reports: Tensor,
    fits: Tensor,
    W: Tensor,
    moves: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of fits: degrees of freedom, advantages, covariances with the unbiased answers, (fits, b).

    To first order a fit follows the shares f of the reports by dh = X Q^T D^-1 df, X as in
    ``response``. Reports of users whose types are fixed have covariance (D - Q H Q^T)/n, so that
    Cov(h, u) = X (I - M H)/n for every unbiased histogram u. That of least variance has A^-1/n,
    A^-1 = M^-1 - H: the degrees of freedom n tr A Cov(h, u) are tr X M, less 1 for the sum.

    The advantage is half of what the estimated risk of h is below that of this u: the risk is of
    n (h - t)^T A (h - t), t the users' own histogram. Its unbiased estimate for h is
    n (h - u)^T A (h - u) + 2 d - r, d the degrees of freedom; that for u is the rank r of A. With
    the gradient g = Q^T D^-1 (f - Q h), of covariance V/n, V = M - M H M, the distance is
    n g^T V^-1 g. What n users can not tell does not count: V + I/n is inverted.

    Args:
        client: Q are the distributions of its messages; of more than ``MERGED`` types neighbours
            are merged, within which a fit hardly varies.
        reports: (b, outputs).
        fits: by each of ``smoothers`` and without one, or the last alone; (fits, b, k).
        moves: Y, (b, k, k), of one fit of another kind, whose changes are dh = Y du to first order:
            d = tr Y and Cov(h, u) = Y A^-1/n.
        W: the queries, (m, k), of the covariances tr Cov(W h, W u).

    Source: Mallows (1973); Stein (1981).
    """
    groups, Q = (part.to(W) for part in merged(client))
    queries = (W - W.mean(1, keepdim=True)) @ groups.mT / groups.sum(1)
    metric = queries.mT @ queries
    eye = torch.eye(len(groups)).to(Q)
    # The fit without smoothing has no kernel.
    kernels = [convolved(eye, one) for one in smoothers(len(groups), Q.device)[: len(fits) - 1]]
    n = reports.sum(-1, keepdim=True)
    rows = rows_at_once(max(groups.numel(), Q.numel()))
    found = []
    for h, S in zip(fits, [*kernels, None], strict=True):
        own = repeat(None) if moves is None else moves.split(rows)
        parts = zip(h.split(rows), reports.split(rows), n.split(rows), own, strict=False)
        for part, received, users, moved in parts:
            p = client.mixed(part).clamp_min(TINY)
            M = Q.mT @ (Q / p[..., None])
            merged_h = part @ groups.mT
            MH = M * merged_h[:, None]
            g = (received / (users * p)) @ Q - 1
            lone = alone(Q, users * p, g)
            if moved is not None:
                X = torch.linalg.solve(M + ROUNDING * _trace(M)[:, None, None] * eye, moved.mT).mT
            elif S is None:
                free = merged_h > LIGHT / client.k
                X = unsmoothed(M, torch.where(free, 1, lone))
            else:
                X = response(M, merged_h + lone / users, S)
            freedom = (X * M).sum((-1, -2))
            if moved is None:  # else the sum stays 1 as it is
                freedom = freedom - 1
            covariance = ((metric @ X) * (eye - MH).mT).sum((-1, -2)) / users[:, 0]
            V = M - MH @ M
            level = 1 / users + ROUNDING * M.diagonal(dim1=-2, dim2=-1)
            system = V + level.diag_embed()
            # One decomposition for the rank, tr((V + I/n)^-1 V), and for the distance.
            solved = torch.linalg.solve(system, torch.cat([V, g[..., None]], -1))
            distance = users[:, 0] * (solved[..., -1] * g).sum(-1)
            advantage = _trace(solved) - freedom - distance.clamp_min(0) / 2
            found.append(torch.stack([freedom, advantage, covariance]))
    freedoms, advantages, covariances = torch.cat(found, 1).view(3, *fits.shape[:2])
    return freedoms, advantages, covariances


def response(M: Tensor, h: Tensor, S: Tensor) -> Tensor:
    """X, (b, k, k), of fits h = S EM(h, f), (b, k), with a kernel S: (I - S + S H M)^-1 S H."""
    eye = torch.eye(len(S)).to(S)
    return torch.linalg.solve(eye - S + S @ (h[..., None] * M), S * h[:, None])


def unsmoothed(M: Tensor, free: Tensor) -> Tensor:
    """X without a kernel: M^-1 of the types that move, (b, k) in [0, 1], by their part in that."""
    root = free.sqrt()
    known = torch.linalg.diagonal(M)
    # A type of which nothing is told is no part of the others' system.
    own = torch.where(known > 0, (1 - free + ROUNDING) * known, 1)
    system = root[..., None] * M * root[:, None] + own.diag_embed()
    return root[..., None] * torch.linalg.solve(system, root.diag_embed())


def alone(Q: Tensor, messages: Tensor, g: Tensor) -> Tensor:
    """How far a report moves absent types of gradients g, (b, k), over what it moves others.

    Where few reports of a message are expected, one of them brings in a type that was absent: it
    adds Q_yx / (expected reports of y) to the gradient, and what is then above 0 moves the type.
    That is the mean over the messages of x, each by what it tells of x: its share of the message
    where shares are even.

    messages: expected reports, (b, outputs).
    """
    lacking = -g[:, None] * messages[..., None] / Q.clamp_min(TINY)
    told = Q.square() / Q.sum(1, keepdim=True)
    return (told * (1 - lacking).clamp(0, 1)).sum(1)


def _trace(A: Tensor) -> Tensor:
    """Of matrices (*batch, k, k): (*batch)."""
    return torch.linalg.diagonal(A).sum(-1)


def nearest_answers(
    client: StrategyOracle, reports: Tensor, W: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The histogram of the answers nearest to a strategy's unbiased ones, with its advantage.

    argmin over histograms of ||W h - V f||, (1, b, k), V the decoder; and its covariance with u.
    Where few types are held it has less error than what is likely, since it counts errors as the
    answers do.
    """
    centred = W - W.mean(1, keepdim=True)
    gram = centred.mT @ centred
    n = reports.sum(-1, keepdim=True)
    pull = reports / n @ client.decoder(centred).mT @ centred
    h, _ = nearest_histogram(gram, pull, CLOSE / float(n.max()))
    # V Q = W: the mean of what a report of its type adds.
    X = _projected(gram, pull, h, gram.diagonal() / n)
    _, advantage, covariance = judged(client, reports, h[None], W, X @ gram)
    return h[None], advantage, covariance


def projections(
    gram: Tensor,
    pull: Tensor,
    n: float | Tensor,
    ordered: bool,
    W: Tensor,
    step: float | Tensor = TINY,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """argmin over histograms of h^T A h/2 - <pull, h> + s ||h''||^2/2 at each s, the last 0.

    Even shares come first. Beyond ``LARGEST`` types or where these are not ordered only the last.

    Args:
        gram: A, (k, k), the inverse covariance of what one user reports of the types.
        pull: (b, k).
        n: users, or (b,).
        W: the queries, (m, k).
        step: what one report adds to the pull of the type that it tells, or (b, 1).

    Returns: the fits (fits, b, k), their degrees of freedom (fits, b), the covariances of one
    user's part tr Cov(W h, W u) (fits, b), and the gap of the last (b,), in nats.
    """
    k = len(gram)
    # nearest_histogram counts for one user.
    limit = CLOSE / float(torch.as_tensor(n, dtype=torch.float64).amax())
    metric = W.mT @ W
    rough = torch.zeros_like(gram)
    strengths = []
    fits = []
    traces = []
    if ordered and 2 < k <= LARGEST:
        fits.append(torch.full_like(pull, 1 / k))
        traces.append(torch.zeros_like(pull[:, :2]).mT)
        bend = torch.eye(k).to(gram).diff(n=2, dim=0)
        rough = bend.mT @ bend
        strengths = _strengths(gram, rough)
    for strength in [*strengths, 0.0]:
        stiff = gram + strength * rough
        h, gap = nearest_histogram(stiff, pull, limit)
        X = _projected(stiff, pull, h, step)
        fits.append(h)
        traces.append(torch.stack([(X * seen).sum((-1, -2)) for seen in (gram, metric)]))
    freedoms, covariances = torch.stack(traces, 1)
    return torch.stack(fits), freedoms, covariances, n * gap.clamp_min(0)


def _projected(stiff: Tensor, pull: Tensor, h: Tensor, step: float | Tensor) -> Tensor:
    """X, (b, k, k), of projections h to which changes dp of the pull add X dp.

    A type without weight moves by its part of a report that brings it in.
    """
    slope = h @ stiff - pull
    lacking = slope - (h * slope).sum(-1, keepdim=True)
    X = unsmoothed(stiff, torch.where(h > ON, 1, (1 - lacking / step).clamp(0, 1)))
    # The sum stays 1.
    sums = X.sum(-1, keepdim=True)
    return X - sums * sums.mT / sums.sum(1, keepdim=True)


def _strengths(gram: Tensor, rough: Tensor) -> list[float]:
    """Those at which the unconstrained fit has ``FREEDOMS`` degrees of freedom.

    From the public distribution alone.
    """
    scale = float(gram.trace() / rough.trace())
    ridge = ROUNDING * torch.eye(len(gram)).to(gram)
    lower = torch.linalg.cholesky(gram + scale * (rough + ridge))
    half = torch.linalg.solve_triangular(lower, gram, upper=False)
    # A in the coordinates where A + scale R is the identity: its eigenvalues are in [0, 1].
    whitened = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    kept = torch.linalg.eigvalsh(whitened).clamp(0, 1)
    kept = kept[kept > ROUNDING]
    strengths = []
    for wanted in FREEDOMS:
        if wanted < len(kept) - 1:
            excess = partial(_excess, kept, wanted)
            log_strength = root(excess, -STEEPEST, STEEPEST, grow=(False, False))
            strengths.append(scale * math.exp(log_strength))
    return strengths


def _excess(kept: Tensor, wanted: float, log_strength: float) -> float:
    """Degrees of freedom at this strength, in A + scale R, above those that are wanted."""
    freedom = kept / (kept + math.exp(log_strength) * (1 - kept))
    return float(freedom.sum()) - wanted
