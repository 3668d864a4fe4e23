"""Patterns of bit strings and all their translates x -> x xor s: strategies for sums of parities.

If the Gram matrix G of a workload is diagonal in the parities (marginals, parities), averaging a strategy over the
translates loses nothing, for tr(G M^{-1}) is convex in M. With base patterns p_b in [e^-epsilon, 1]^k and shares u_b
the output (b, s) has the chance u_b p_b[x xor s]/|p_b|_1: the columns add up to 1 whatever p and u, M is diagonal in
the parities with the entries k sum_b u_b (H p_b)^2/|p_b|_1^2, and all types have one variance. Adam descends on the
logits of p and u from thresholds of random linear and quadratic forms in the signs of the bits.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam.
"""

import math

import torch
from torch import Tensor

from torchdp.descent import Adam
from torchdp.randomizers.alphabet.hadamard_response import walsh_hadamard

PATTERNS, STARTS, STEPS, SETTLING = 4, 8, 400, 60
SIZES = (1.0, 2.0, 4.0, 1.0)  # of the patterns at the start, in k/(e^epsilon + 1)
FIRST, LAST, EXTREME = 0.1, 0.005, 8.0  # learning rates; logit
DIAGONAL = 1e-9  # what G may have beside its diagonal, of its largest entry
LEAST = 1e-6  # share of a pattern that is dropped
FLOOR = 1e-8  # of the histogram beside the workload


def translates(W: Tensor, epsilon: float, generator: torch.Generator) -> Tensor | None:
    """A matrix Q of at most 4 k outputs, (outputs, k), of small variance for W; None where G is not diagonal.

    W: (m, k), k a power of 2, rows of mean 0, not zero; what it does not ask for keeps a finite variance. Unchecked.
    """
    m, k = W.shape
    gram = walsh_hadamard(walsh_hadamard(W.mT @ W / m).mT) / k  # in the orthonormal basis of parities
    needed = gram.diagonal()
    if float((gram - needed.diag()).abs().max()) > DIAGONAL * float(needed.max()):
        return None
    needed = needed[1:] + FLOOR * needed.mean()
    low = math.exp(-epsilon)
    logits, shares = _starts(k, epsilon, generator, W.device)

    def price(p: Tensor) -> Tensor:
        q = p / p.sum(-1, keepdim=True)
        power = walsh_hadamard(q.flatten(0, 1)).view_as(q).square()
        return (needed / (k * (shares.softmax(-1)[..., None] * power).sum(-2)[:, 1:]).clamp_min(1e-300)).sum(-1)

    logits.requires_grad_()
    shares.requires_grad_()
    adam = Adam([logits, shares], (0.9, 0.99))
    for step in range(STEPS):
        loss = price(low + (1 - low) * logits.sigmoid()).log().sum()
        adam.step(loss, FIRST + (LAST - FIRST) * step / STEPS)
        with torch.no_grad():
            logits.clamp_(-EXTREME, EXTREME)
    patterns = low + (1 - low) * (logits.detach() > 0).to(W)
    adam = Adam([shares], (0.9, 0.99))
    for _ in range(SETTLING):
        adam.step(price(patterns).log().sum(), FIRST)
    best = int(price(patterns).nan_to_num(math.inf).argmin())
    types = torch.arange(k, device=W.device)
    rows = patterns[best][:, types[:, None] ^ types]  # (patterns, s, x)
    weights = shares.detach()[best].softmax(-1)
    weights = weights * (weights > LEAST)
    weights = weights / weights.sum() / patterns[best].sum(-1)
    return (weights[:, None, None] * rows)[weights > 0].flatten(0, 1)


def _starts(k: int, epsilon: float, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits, (STARTS, PATTERNS, k), and logarithms of shares."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=generator)

    bits = k.bit_length() - 1
    signs = 1 - 2 * ((torch.arange(k, device=device)[:, None] >> torch.arange(bits, device=device)) & 1).double()
    logits = []
    for start in range(STARTS * PATTERNS):
        form = signs @ normal(bits)
        if start % 2:
            form = form + ((signs @ normal(bits, bits)) * signs).sum(1) / 2
        share = min(0.5, SIZES[start % len(SIZES)] / (math.exp(epsilon) + 1))
        height = (form - form.quantile(1 - share)) / form.std().clamp_min(1e-9)
        logits.append((3 * height).clamp(-2, 2) + 0.2 * normal(k))
    return torch.stack(logits).unflatten(0, (STARTS, PATTERNS)), torch.zeros(
        STARTS, PATTERNS, device=device
    ).double()
