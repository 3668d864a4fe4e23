"""Patterns and all their translates: strategies for workloads that a group leaves as they are.

On a group of K points, with patterns p_b in [e^-epsilon, 1]^K and shares u_b, the output (b, s) has
the chance u_b p_b[x - s]/|p_b|_1: private, with columns that add up to 1, whatever p and u. Under
even types M = Q^T D^{-1} Q has the eigenvalues S = K sum_b u_b |F p_b|^2/|p_b|_1^2 in the group's
characters. Where translations leave the Gram matrix G of a workload as it is, averaging over them
loses nothing, for tr(G M^{-1}) is convex in M. So Adam descends on the logits of p and u against
log tr(G M^{-1}), without a constraint; then p is rounded, and the shares descend alone.

Shifts of a circle or torus are for ordered types (``torus``). Translates x -> x xor s of bit strings
are for sums of parities, in which G and M are diagonal: all types have one variance. They begin as
thresholds of random linear and quadratic forms in the signs of the bits.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.descent import Adam
from torchdp.randomizers.alphabet.hadamard_response import walsh_hadamard
from torchdp.randomizers.alphabet.strategy_search import FLOOR

FLIPPED = 4  # patterns
FORMS, STARTS, STEPS = (1.0, 2.0, 4.0, 1.0), 8, 400  # sizes of the starts, in K/(e^epsilon + 1), and the effort
FIRST, LAST = 0.1, 0.005  # learning rates
EXTREME = 8.0  # logit
SETTLING = 30  # steps of the shares once the patterns are rounded
DIAGONAL = 1e-9  # what G may have beside its diagonal, of its largest entry
LEAST = 1e-6  # share of a pattern that is dropped

# Of R searches side by side: logits (R, B, K) of entries, logarithms (R, B) of shares.
Patterns = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Group(ABC):
    """K points and a workload on them; low = e^-epsilon."""

    low: float
    generator: torch.Generator

    @abstractmethod
    def power(self, q: Tensor) -> Tensor:
        """|F q|^2: (R, B, K) -> (R, B, characters)."""

    @abstractmethod
    def price(self, spectrum: Tensor) -> Tensor:
        """tr(G M^{-1}) and its gradient, for the eigenvalues S: (R, characters) -> (R,)."""

    @torch.enable_grad()
    def descend(self, found: Patterns, steps: range, total: int, frozen: bool = False) -> tuple[Patterns, Tensor]:
        """Adam on the patterns and shares, or the shares of rounded patterns (frozen); the last prices, (R,)."""
        logits, shares = (each.clone().requires_grad_() for each in found)
        adam = Adam([shares] if frozen else [logits, shares], (0.9, 0.99))
        recent = shares.new_zeros(len(shares))
        for step in steps:
            ends = torch.where(logits > 0, EXTREME, -EXTREME) if frozen else logits
            p = self.low + (1 - self.low) * ends.sigmoid()
            power = self.power(p / p.sum(-1, keepdim=True))
            value = self.price(p.shape[-1] * (shares.softmax(-1)[..., None] * power).sum(-2))
            adam.step(value.clamp_min(1e-300).log().sum(), FIRST + (LAST - FIRST) * step / total)
            recent = 0.8 * recent + 0.2 * value.detach() / (1 - 0.8 ** (step - steps.start + 1))
            logits.detach().clamp_(-EXTREME, EXTREME)
        return (logits.detach(), shares.detach()), recent

    def best(self, found: Patterns, steps: int) -> Patterns:
        """Several starts, of which the best third take more than a quarter of the steps; the best first."""
        for part in (range(steps // 4), range(steps // 4, steps)):
            found, value = self.descend(found, part, steps)
            index = value.argsort()[: -(-len(value) // 3)] if part.start == 0 else value.argsort()
            found = found[0][index], found[1][index]
        return found

    def rounded(self, found: Patterns) -> Patterns:
        """(patterns of zeros and ones, their shares) of the best search, those that say nothing left out."""
        (logits, shares), value = self.descend(found, range(SETTLING), SETTLING, frozen=True)
        best = value.nan_to_num(math.inf).argmin()
        patterns, shares = logits[best] > 0, shares[best].softmax(-1)
        kept = (shares > LEAST) & patterns.any(1) & ~patterns.all(1)
        return patterns[kept], shares[kept]

    def normal(self, *shape: int) -> Tensor:
        """Standard normals, float64."""
        device = self.generator.device
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=self.generator)

    def even(self, logits: list[Tensor], starts: int) -> Patterns:
        """Equal shares, as many patterns in each start."""
        each = torch.stack(logits).unflatten(0, (starts, -1))
        return each, each.new_zeros(each.shape[:2])


@dataclass(frozen=True)
class BitStrings(Group):
    """Z_2^d: needed (k - 1,), the diagonal of G in the orthonormal basis of parities but for the constant."""

    needed: Tensor

    def power(self, q: Tensor) -> Tensor:
        return walsh_hadamard(q.flatten(0, 1)).view_as(q).square()

    def price(self, spectrum: Tensor) -> Tensor:
        return (self.needed / spectrum[:, 1:].clamp_min(1e-300)).sum(-1)

    def starts(self, count: int) -> Patterns:
        """Thresholds of random linear and quadratic forms, in turns."""
        types = torch.arange(len(self.needed) + 1, device=self.needed.device)
        bits = len(self.needed).bit_length()
        signs = 1 - 2 * ((types[:, None] >> torch.arange(bits, device=types.device)) & 1).double()
        logits = []
        for b in range(count * FLIPPED):
            form = signs @ self.normal(bits)
            if b % 2:
                form = form + ((signs @ self.normal(bits, bits)) * signs).sum(1) / 2
            share = min(0.5, FORMS[b % FLIPPED] / (1 / self.low + 1))
            height = (form - form.quantile(1 - share)) / form.std().clamp_min(1e-9)
            logits.append((3 * height).clamp(-2, 2) + 0.2 * self.normal(len(types)))
        return self.even(logits, count)


def flips(W: Tensor, epsilon: float, generator: torch.Generator) -> Tensor | None:
    """A matrix Q of at most 4 k outputs, (outputs, k), of small variance; None where G is not diagonal.

    W: (m, k), k a power of 2, rows of mean 0, not zero; what it does not ask for keeps a finite
    variance. Unchecked.
    """
    m, k = W.shape
    gram = walsh_hadamard(walsh_hadamard(W.mT @ W / m).mT) / k
    needed = gram.diagonal()
    if float((gram - needed.diag()).abs().max()) > DIAGONAL * float(needed.max()):
        return None
    group = BitStrings(math.exp(-epsilon), generator, needed[1:] + FLOOR * needed.mean())
    patterns, shares = group.rounded(group.best(group.starts(STARTS), STEPS))
    p = group.low + (1 - group.low) * patterns.to(W)
    types = torch.arange(k, device=W.device)
    weights = shares / shares.sum() / p.sum(-1)
    return (weights[:, None, None] * p[:, types[:, None] ^ types]).flatten(0, 1)  # (patterns, s, x)
