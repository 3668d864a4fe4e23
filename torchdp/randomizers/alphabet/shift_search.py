"""Patterns of small variance for a given workload: the search behind ``ShiftStrategy.tuned``.

Under uniform types on a circle of K >= k the variance is tr(G M^{-1}) less a constant, G the workload's Gram matrix and
M the corner of the circulant matrix with spectrum S = K sum_b share_b |F p_b|^2/|p_b|_1^2, p_b in [e^-epsilon, 1]^K.
Any p_b and shares are private, so Adam descends on their logits without a constraint. It begins where neighbouring
types are merged to at most 64, from arcs and from noise with a falling spectrum; then each logit is repeated twice,
with noise, and descends again. On up to 256 types M is factored, beyond tr(G M^{-1}) is estimated from random signs and
conjugate gradients with Fourier transforms. The room beyond the k types is tried at three sizes,
of which the best on at most 256 merged types goes on.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam; Hutchinson (1990) for the
estimate of a trace; T. Chan (1988) for circulant preconditioners of Toeplitz systems.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.descent import Adam
from torchdp.threads import one_thread

PATTERNS = 8
COARSEST, FACTORED = 64, 256  # types at which the search begins; up to which M is factored
PADS = (1 / 8, 1 / 4, 1 / 2)  # room beyond the types, of their number
ARCS, CLOUDS = (1.0, 2.0, 4.0, 8.0, 3.0, 6.0), (1.0, 2.0, 1.5, 4.0)  # sizes of the starts, in K/(e^epsilon + 1)
FIRST, LAST = 0.1, 0.005  # learning rates
EXTREME = 8.0  # logit
RIDGE = 1e-12  # of the diagonal: keeps a singular M apart from rounding
SETTLING = 30  # steps of the shares once the patterns are rounded
PROBES, ITERATIONS, RESIDUAL = 8, 60, 1e-4
FLOOR = 1e-8  # weight of the histogram beside the workload: what W does not ask for keeps a finite variance
LEAST = 1e-6  # share of a pattern that is dropped


@dataclass(frozen=True)
class Shifts:
    """Logits (R, B, K) of the patterns' entries and logarithms (R, B) of shares: R searches side by side."""

    logits: Tensor
    shares: Tensor

    def pick(self, index: Tensor) -> "Shifts":
        """The searches at index."""
        return Shifts(self.logits[index], self.shares[index])

    def spectrum(self, low: float) -> Tensor:
        """S, (R, K//2 + 1)."""
        p = low + (1 - low) * self.logits.sigmoid()
        power = torch.fft.rfft(p / p.sum(-1, keepdim=True)).abs().square()
        return p.shape[-1] * (self.shares.softmax(-1)[..., None] * power).sum(-2)


Judge = Callable[[Tensor, Tensor, Tensor], float]  # of patterns, shares and a workload: the worst type's variance


@one_thread
def search(
    W: Tensor, epsilon: float, steps: int, starts: int, judge: Judge, generator: torch.Generator
) -> tuple[Tensor, Tensor] | None:
    """(patterns, shares) of the best search over the sizes of the circle, judged on at most 256 merged types.

    W: (m, k), rows of mean 0. None: no patterns tell all types apart. Unchecked.
    """
    low, k = math.exp(-epsilon), W.shape[1]
    halvings = max(0, math.ceil(math.log2(k / COARSEST)))
    judged = max(0, math.ceil(math.log2(k / FACTORED)))
    best, least, circle = None, math.inf, 0
    for pad in PADS:
        size = k + max(1, round(pad * k))
        shifts = _starts(-(-size // 2**halvings), epsilon, starts, generator, W.device)
        coarse = _merged(W, 2**halvings)
        shifts, value = _descend(shifts, low, coarse, range(steps // 4), steps, generator)
        shifts = shifts.pick(value.argsort()[: -(-starts // 3)])
        shifts, value = _descend(shifts, low, coarse, range(steps // 4, steps), steps, generator)
        shifts = shifts.pick(value.argmin()[None])
        shifts = _finer(shifts, low, W, size, range(halvings - 1, judged - 1, -1), steps, generator)
        coarse = _merged(W, 2**judged)
        found = judge(*_rounded(shifts, low, coarse, generator), coarse)
        if found < least:
            best, least, circle = shifts, found, size
    if best is None:
        return None
    best = _finer(best, low, W, circle, range(judged - 1, -1, -1), steps, generator)
    return _rounded(best, low, _merged(W, 1), generator)


def _finer(
    shifts: Shifts, low: float, W: Tensor, circle: int, levels: range, steps: int, generator: torch.Generator
) -> Shifts:
    """Refined and descended from level to level, 2^level types merged."""
    for level in levels:
        shifts = _refined(shifts, -(-circle // 2**level), generator)
        shifts, _ = _descend(shifts, low, _merged(W, 2**level), range(steps // 3), steps // 3, generator)
    return shifts


def _rounded(shifts: Shifts, low: float, W: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Patterns of zeros and ones, and their shares, those that say nothing left out."""
    shifts = Shifts(torch.where(shifts.logits > 0, EXTREME, -EXTREME), shifts.shares)
    shifts, _ = _descend(shifts, low, W, range(SETTLING), SETTLING, generator, frozen=True)
    patterns, shares = shifts.logits[0] > 0, shifts.shares[0].softmax(-1)
    kept = (shares > LEAST) & patterns.any(1) & ~patterns.all(1)
    return patterns[kept], shares[kept]


def _starts(circle: int, epsilon: float, starts: int, generator: torch.Generator, device: torch.device) -> Shifts:
    """Arcs with rough edges and thresholded noise with a spectrum 1/f, in turns: about K/(e^epsilon + 1) ones."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=generator)

    place = torch.arange(circle, dtype=torch.float64, device=device)
    logits = []
    for start in range(starts):
        sizes = ARCS if start % 2 == 0 else CLOUDS
        for b in range(PATTERNS):
            ones = circle / (math.exp(epsilon) + 1) * sizes[(start // 2 + b) % len(sizes)]
            ones = min(max(1, round(ones)), circle - 1)
            if start % 2 == 0:
                height = (ones / 2 - (place - circle / 2).abs()) / (1 + 0.15 * ones)
            else:
                falling = torch.fft.rfft(normal(circle)) / (1 + torch.arange(circle // 2 + 1, device=device))
                cloud = torch.fft.irfft(falling, n=circle)
                height = 3.0 * (cloud >= cloud.topk(ones).values[-1]).double() - 1.5
            logits.append(height.clamp(-2, 2) + 0.3 * normal(circle))
    shares = torch.zeros(starts, PATTERNS, dtype=torch.float64, device=device)
    return Shifts(torch.stack(logits).unflatten(0, (starts, PATTERNS)), shares)


def _merged(W: Tensor, width: int) -> Tensor:
    """The workload on types merged so many at a time, (rows, types): at most that many rows where it is factored."""
    padded = torch.nn.functional.pad(W[None], (0, -W.shape[1] % width), mode="replicate")[0]
    W = padded.unflatten(1, (-1, width)).mean(-1)
    W = (W - W.mean(1, keepdim=True)) / math.sqrt(len(W))
    if W.shape[1] > FACTORED:
        return W
    if len(W) > W.shape[1]:
        W = torch.linalg.qr(W, mode="r").R
    floor = math.sqrt(FLOOR / W.shape[1]) * float(W.norm())
    return torch.cat([W, floor * torch.eye(W.shape[1], dtype=W.dtype, device=W.device)])


def _refined(shifts: Shifts, circle: int, generator: torch.Generator) -> Shifts:
    """On twice the types: without the noise the new frequencies would stay empty."""
    logits = shifts.logits.clamp(-2, 2).repeat_interleave(2, -1)[..., :circle]
    noise = torch.randn(logits.shape, dtype=logits.dtype, device=logits.device, generator=generator)
    return Shifts(logits + 0.4 * noise, shifts.shares)


def _descend(
    shifts: Shifts,
    low: float,
    W: Tensor,
    steps: range,
    total: int,
    generator: torch.Generator,
    frozen: bool = False,
) -> tuple[Shifts, Tensor]:
    """Adam on the logits and the shares against log tr(G M^{-1}); the last values, (R,). frozen: shares alone."""
    k, circle = W.shape[1], shifts.logits.shape[-1]
    shifts = Shifts(shifts.logits.clone(), shifts.shares.clone().requires_grad_())
    shifts.logits.requires_grad_(not frozen)
    adam = Adam([shifts.shares] if frozen else [shifts.logits, shifts.shares], (0.9, 0.99))
    recent = W.new_zeros(len(shifts.logits))
    for step in steps:
        spectrum = shifts.spectrum(low)
        probes = W if k <= FACTORED else signed_sums(W, PROBES, generator)
        y = _solved(spectrum.detach(), probes, circle)
        power = torch.fft.rfft(y, n=circle).abs().square().sum(-2)
        power[..., 1 : (circle + 1) // 2] *= 2  # each frequency but 0 and K/2 stands for two
        value = 2 * (y * probes).sum((-2, -1)) - (spectrum * power).sum(-1) / circle
        adam.step(value.clamp_min(1e-300).log().sum(), FIRST + (LAST - FIRST) * step / total)
        recent = 0.8 * recent + 0.2 * value.detach() / (1 - 0.8 ** (step - steps.start + 1))
        with torch.no_grad():
            shifts.logits.clamp_(-EXTREME, EXTREME)
    return Shifts(shifts.logits.detach(), shifts.shares.detach()), recent


def signed_sums(W: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random combinations w of the queries, (count, k), with E w w^T = W^T W / count."""
    signs = torch.randint(0, 2, (count, len(W)), device=W.device, generator=generator).to(W) * 2 - 1
    return signs @ W / math.sqrt(count)


def _solved(spectrum: Tensor, w: Tensor, circle: int) -> Tensor:
    """M^{-1} w for each spectrum: (R, F), (P, k) -> (R, P, k)."""
    k = w.shape[1]
    if k <= FACTORED:
        types = torch.arange(k, device=w.device)
        M = torch.fft.irfft(spectrum, n=circle)[:, (types[:, None] - types).abs()]
        M.diagonal(dim1=-2, dim2=-1).mul_(1 + RIDGE)
        return torch.cholesky_solve(w.mT.expand(len(M), -1, -1), torch.linalg.cholesky_ex(M)[0]).mT

    def times(factor: Tensor, y: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(y, n=circle) * factor[:, None], n=circle)[..., :k]

    # Conjugate gradients; the corner of the inverse circulant matrix is near the inverse of the corner.
    y, residual = torch.zeros(len(spectrum), *w.shape).to(w), w.expand(len(spectrum), -1, -1)
    inverse = 1 / spectrum
    direction = image = times(inverse, residual)
    product = (residual * image).sum(-1, keepdim=True)
    enough = RESIDUAL**2 * product
    for _ in range(ITERATIONS):
        moved = times(spectrum, direction)
        length = product / (direction * moved).sum(-1, keepdim=True)
        y, residual = y + length * direction, residual - length * moved
        image = times(inverse, residual)
        before, product = product, (residual * image).sum(-1, keepdim=True)
        if bool((product <= enough).all()):
            break
        direction = image + product / before * direction
    return y
