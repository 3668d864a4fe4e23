"""The baseline for AUC: histograms of the two classes at every level of a binary tree over the scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import binomial
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.randomizers import OptimizedUnaryEncoding
from torchdp.randomizers.base import user_counts

LEAST = 100  # users of a class for each level that an estimate needs at least to mean anything


@dataclass(frozen=True)
class HierarchicalAUC:
    """AUC of scores 0, ..., k-1, k = 2^levels, of users whose *labels are public*; ties count one half.

    Each user takes a level l = 1, ..., levels at random and sends the node of its score there, among 2^l, by optimised
    unary encoding. The analyst adds, from the root, h-(left child) h+(right child) of the estimated fractions, and goes
    on into a child unless one of its two fractions is below ``prune`` standard errors; there, and at the leaves, it
    adds h- h+ /2. prune = 0 goes on into every node and is unbiased; a positive one trades noise for bias.
    epsilon in (0, 700]; levels >= 1; prune >= 0. Raises ValueError.

    Guarantees: epsilon-LDP for each user's score; labels are not protected.
    Source: Bell, Bellet, Gascon, Kulkarni (2020), the AUC protocol, with the threshold a parameter.
    """

    levels: int
    epsilon: float
    prune: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", checks.integer("levels", self.levels, 1))
        object.__setattr__(self, "prune", checks.non_negative("prune", self.prune))
        object.__setattr__(self, "epsilon", self._oracle(1).epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return self._oracle(1).guarantee

    @property
    def types(self) -> int:
        """k."""
        return 2**self.levels

    def collect(self, scores: Tensor, *, noise: Noise | None = None) -> tuple[Tensor, ...]:
        """One class: the tally of each level, from users with these scores (n,). noise: the system's where None."""
        scores = checks.indices("scores", scores, self.types)
        if scores.ndim != 1 or len(scores) < 1:
            raise ValueError(f"scores must have shape (n,) with n >= 1 users, not {tuple(scores.shape)}")
        noise = source(noise, scores.device)
        level = noise.below(self.levels, tuple(scores.shape)) + 1
        return tuple(
            self._oracle(each).old_collect(scores[level == each] >> (self.levels - each), noise)
            for each in range(1, self.levels + 1)
        )

    def collect_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: tuple[int, ...] = ()
    ) -> tuple[Tensor, ...]:
        """In law ``collect`` for counts (k,) users of a class with each score: (*sample_shape, 2^l + 1) for each l."""
        left = user_counts(counts, self.types)
        generator = checks.random_source(generator, left.device)
        left = left.expand(*checks.sample_shape(sample_shape), self.types)
        tallies = []
        for level in range(1, self.levels + 1):
            oracle = self._oracle(level)
            share = torch.full(left.shape, 1 / (self.levels - level + 1), dtype=torch.float64, device=left.device)
            here = binomial(left, share, generator)
            left = left - here
            held = here.unflatten(-1, (2**level, -1)).sum(-1)
            users = held.sum(-1, keepdim=True)
            on = binomial(held, torch.full_like(share[..., : 2**level], oracle.on), generator)
            off = binomial(users - held, torch.full_like(share[..., : 2**level], oracle.off), generator)
            tallies.append(torch.cat([on + off, users], -1))
        return tuple(tallies)

    def analyse(self, negatives: tuple[Tensor, ...], positives: tuple[Tensor, ...]) -> Tensor:
        """AUC from what ``collect`` returned for each class; NaN where a level has no users of one class.

        Raises ValueError, TypeError for tallies that no users can have sent.
        """
        negatives, positives = (
            self._tallies(*each) for each in (("negatives", negatives), ("positives", positives))
        )
        total, active = torch.zeros(()), torch.ones((), dtype=torch.bool)
        for level, both in enumerate(zip(negatives, positives, strict=True), 1):
            oracle = self._oracle(level)
            users = [tally[..., -1:].double() for tally in both]
            minus, plus = (oracle.decode_counts(tally) / n for tally, n in zip(both, users, strict=True))
            if level == 1:
                active = torch.ones_like(minus[..., :1], dtype=torch.bool)
                total = torch.zeros_like(minus[..., 0])
            across = minus[..., 0::2] * plus[..., 1::2]
            total = total + torch.where(active, across, 0.0).sum(-1)
            noise = [self.prune / math.sinh(self.epsilon / 2) / n.sqrt() for n in users]
            reached = active.repeat_interleave(2, -1)
            active = reached & (minus >= noise[0]) & (plus >= noise[1]) if self.prune > 0 else reached
            ends = reached if level == self.levels else reached & ~active
            total = total + torch.where(ends, minus * plus, 0.0).sum(-1) / 2
        return total

    def _tallies(self, name: str, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One class's tallies, checked: (..., 2^l + 1) of whole numbers, none above the last one, the users."""
        if isinstance(given, Tensor) or not isinstance(given, Sequence) or len(given) != self.levels:
            raise ValueError(f"{name} must be {self.levels} tallies, as collect returns them")
        for level, tally in enumerate(given, 1):
            checks.floating(f"{name}[{level - 1}]", tally)
            if tally.is_floating_point():
                raise TypeError(f"{name}[{level - 1}] must hold counts, not {tally.dtype}")
            if tally.ndim == 0 or tally.shape[-1] != 2**level + 1:
                raise ValueError(
                    f"{name}[{level - 1}] must have shape (..., {2**level + 1}), not {(*tally.shape,)}"
                )
            if bool(((tally < 0) | (tally > tally[..., -1:])).any()):
                raise ValueError(
                    f"{name}[{level - 1}] holds a count that is negative or above the number of users"
                )
        return tuple(given)

    def predicted_mse(self, negatives: Tensor, positives: Tensor) -> float:
        """Approximate mean squared error without pruning, for counts (k,) of each class.

        The numbers of users at each level count as n/levels and the draws of the levels as independent.
        """
        classes = [checks.counts("counts", counts, self.types).double() for counts in (negatives, positives)]
        if min(float(counts.sum()) for counts in classes) < LEAST * self.levels:
            raise ValueError(f"each class must have at least {LEAST * self.levels} users for this prediction")
        per_level = [float(counts.sum()) / self.levels for counts in classes]
        h = [counts / counts.sum() for counts in classes]
        noise, mse = 1 / math.sinh(self.epsilon / 2) ** 2, 0.0
        for level in range(1, self.levels + 1):
            minus, plus = (each.unflatten(-1, (2**level, -1)).sum(-1) for each in h)
            to_plus, to_minus = torch.zeros_like(minus), torch.zeros_like(plus)
            to_plus[1::2], to_minus[0::2] = minus[0::2], plus[1::2]  # the factor that each estimate meets
            pairs = 2.0 ** (level - 1)
            if level == self.levels:
                to_plus, to_minus, pairs = to_plus + minus / 2, to_minus + plus / 2, pairs * 1.5
            for fractions, factor, n in ((minus, to_minus, per_level[0]), (plus, to_plus, per_level[1])):
                squares = float(fractions @ factor.square())
                reports = noise * float(factor.square().sum()) + squares
                drawn = (1 - 1 / self.levels) * (squares - float(fractions @ factor) ** 2)
                mse += (reports + drawn) / n
            mse += noise**2 * pairs / (per_level[0] * per_level[1])
        return mse

    def _oracle(self, level: int) -> OptimizedUnaryEncoding:
        return OptimizedUnaryEncoding(2**level, self.epsilon)
