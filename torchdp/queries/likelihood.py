"""The histogram that tallies make most likely, plain and smoothed: by batched EM, or nearest in the noise's metric."""

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
STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
LIGHT = 1e-3  # a type of a smaller share than this of 1/k does not move
LEAST = 1e-12  # of 1/k: what rounding may leave of a smoothed share
MERGED = 128  # types at most on which degrees of freedom are computed
FREEDOMS = (2.5, 4, 6, 9, 14, 22, 40)  # of the penalised fits
LARGEST = 1024  # types up to which roughness is penalised
STEEPEST = 60.0  # logarithm of a strength, at most
ROUNDING = 1e-10  # of the largest diagonal entry


def fits(client: FrequencyOracle, reports: Tensor, ordered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Fits (fits, b, k), their Akaike values (fits, b) and the gap of the last, (b,): each starts from the smoother.

    reports: (b, outputs).
    """
    h = torch.full(
        (len(reports), client.k), 1 / client.k, dtype=torch.float64, device=reports.device
    )
    found, n = list[Tensor](), reports.sum(-1)
    for kernel in smoothers(client.k, reports.device) if ordered else []:
        h = smoothed(client, reports, kernel, h)
        found.append(h)
    h, gap = most_likely(client, reports, h)
    found.append(h)
    if not ordered:  # one fit, of weight 1
        return h[None], torch.zeros_like(gap)[None], gap
    values = torch.stack([n * expected(client, reports / n[:, None], each)[1] for each in found])
    return torch.stack(found), values - freedoms(client, found), gap


def expected(client: FrequencyOracle, shares: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step of EM less its product with h, Q^T(shares/Q h), and the log likelihood of one user, (b, k) and (b,)."""
    p = client.mixed(h).clamp_min(TINY)
    return client.gathered(shares / p), (shares * p.log()).sum(-1)


def most_likely(client: FrequencyOracle, reports: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """argmax over histograms h of sum_y reports_y log (Q h)_y, (b, k), and what the log likelihood may lack, (b,).

    The gap n (max_x (Q^T(f/Q h))_x - 1), f = reports/n, is at least the lack: the log likelihood is concave, and its
    gradient's product with h is n. EM keeps the sum of h; extrapolation is taken only where it does not lower the
    likelihood. What is not within ``GAP`` after ``PRODUCTS`` says so by its gap.

    client: Q are the distributions of its messages; reports: (b, outputs); start: (b, k), positive histograms.
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
    """Three histograms of EM extrapolated and one step of EM on, or the last where that has a lower likelihood."""
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
    """Kernels from the widest to the narrowest: (1 - s) I + s B^w, B = (1, 2, 1)/4 reflected at the ends.

    Each by its eigenvalues (k + 1,) on the circle of the k types and their mirror image.
    """
    wave = (
        1 + torch.cos(torch.pi / k * torch.arange(k + 1, dtype=torch.float64, device=device))
    ) / 2
    # a strength is a share of the interval, whatever the number of types
    width = max(1, round((k / 64) ** 2))
    once = wave**width
    return [once**16, once**4, *((1 - s) + s * once for s in STRENGTHS)]


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
    """Degrees of freedom of fits (b, k) by each of ``smoothers`` and without one: how much reports flatter them.

    On merged neighbours beyond ``MERGED`` types: a smoothed fit hardly varies within such a group. (fits, b).
    """
    k, device = fits[0].shape[-1], fits[0].device
    width = -(-k // MERGED)
    group = torch.arange(k, device=device) // width
    held = (torch.arange(-(-k // width), device=device)[:, None] == group).double()  # (groups, k)
    Q = client.mixed(held / held.sum(1, keepdim=True)).mT
    eye = torch.eye(len(held), dtype=torch.float64, device=device)
    kernels = [convolved(eye, each) for each in smoothers(len(held), device)]
    return torch.stack(
        [freedom(Q, h @ held.mT, S) for h, S in zip(fits, [*kernels, None], strict=True)]
    )


def freedom(Q: Tensor, h: Tensor, S: Tensor | None) -> Tensor:
    """Degrees of freedom of fits h (b, k) smoothed by S (k, k), Q (outputs, k): (b,).

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


def projections(
    gram: Tensor, pull: Tensor, n: float | Tensor, ordered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """argmin over histograms of h^T A h/2 - <pull, h> + s ||h''||^2/2 at each strength s, the last 0.

    Beyond ``LARGEST`` types or where these are not ordered only the last.

    gram: A, (k, k), the inverse covariance of what one user reports of the types; pull: (b, k); n: users, or (b,).
    The fits are (fits, b, k), their Akaike values (fits, b) and the gap of the last (b,), in nats.
    """
    k, rounding = len(gram), ROUNDING * float(gram.diagonal().amax())
    if not ordered or not 2 < k <= LARGEST:
        h, gap = nearest_histogram(gram, pull, rounding)
        return h[None], torch.zeros_like(gap)[None], n * gap.clamp_min(0)
    bend, i = (
        torch.zeros(k - 2, k, dtype=gram.dtype, device=gram.device),
        torch.arange(k - 2, device=gram.device),
    )
    bend[i, i], bend[i, i + 1], bend[i, i + 2] = 1.0, -2.0, 1.0
    rough = bend.mT @ bend
    fits, scores, gap = [], [], pull.new_zeros(len(pull))
    for s in [*_strengths(gram, rough), 0.0]:
        stiff = gram + s * rough
        h, gap = nearest_histogram(stiff, pull, rounding)
        fits.append(h)
        scores.append(
            n * ((pull * h).sum(-1) - ((h @ gram) * h).sum(-1) / 2)
            - _held(gram, stiff, h, rounding)
        )
    return torch.stack(fits), torch.stack(scores), n * gap.clamp_min(0)


def _held(gram: Tensor, stiff: Tensor, h: Tensor, rounding: float) -> Tensor:
    """Degrees of freedom of projections: of the types with weight, less 1 for the sum. (b, k) -> (b,)."""
    on = (h > 1e-9).to(h)
    both = on[:, :, None] * on[:, None]
    # a type without weight is a block of its own
    system = both * stiff + torch.diag_embed(1 - on + rounding * on)
    return torch.linalg.solve(system, both * gram).diagonal(dim1=-2, dim2=-1).sum(-1) - 1


def _strengths(gram: Tensor, rough: Tensor) -> list[float]:
    """Those at which the unconstrained fit has ``FREEDOMS`` degrees of freedom, from the public distribution alone."""
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
