"""The baseline for AUC: histograms of the two classes at every level of a binary tree over the scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.protocol import Tally
from torchdp.randomizers import OptimizedUnaryEncoding

LEAST = 100  # users of a class for each level that an estimate needs at least to mean anything


@dataclass(frozen=True)
class HierarchicalAUC:
    """AUC of scores 0, ..., k-1, k = 2^levels, of users whose *labels are public*; ties count one half.

    Each user takes a level l = 1, ..., levels at random and sends the node of its score there, among 2^l, by optimised
    unary encoding. The analyst adds, for every node, h-(left child) h+(right child) of the estimated fractions, and at
    the leaves h- h+ /2, which is unbiased. epsilon in (0, 700]; levels >= 1. Raises ValueError.

    Guarantees: epsilon-LDP for each user's score; labels are not protected.
    Source: Bell, Bellet, Gascon, Kulkarni (2020), the AUC protocol, without pruning.
    """

    levels: int
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", checks.integer("levels", self.levels, 1))
        object.__setattr__(self, "epsilon", self._oracle(1).epsilon)

    def sample_tally(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: tuple[int, ...] = ()
    ) -> tuple[Tensor, ...]:
        """One class, counts (k,) users with each score: reports and users of each level, (*sample_shape, 2^l + 1)."""
        draws = Simulated(generator)
        left = counts.expand(*sample_shape, 2**self.levels)
        tallies = []
        for level in range(1, self.levels + 1):
            oracle = self._oracle(level)
            here = draws.binomial(left, 1 / (self.levels - level + 1))
            left = left - here
            held = here.unflatten(-1, (2**level, -1)).sum(-1)
            users = held.sum(-1, keepdim=True)
            reports = draws.binomial(held, oracle.on) + draws.binomial(users - held, oracle.off)
            tallies.append(torch.cat([reports, users], -1))
        return tuple(tallies)

    def analyse(self, negatives: tuple[Tensor, ...], positives: tuple[Tensor, ...]) -> Tensor:
        """AUC from each class's tallies; NaN where a level has no users of one class."""
        total = torch.zeros((), dtype=torch.float64)
        for level, both in enumerate(zip(negatives, positives, strict=True), 1):
            oracle = self._oracle(level)
            minus, plus = (
                oracle.totals(Tally(tally[..., -1], {"reports": tally[..., :-1]})) / tally[..., -1:].double()
                for tally in both
            )
            total = total + (minus[..., 0::2] * plus[..., 1::2]).sum(-1)
        return total + (minus * plus).sum(-1) / 2

    def predicted_mse(self, negatives: Tensor, positives: Tensor) -> float:
        """Approximate mean squared error, for counts (k,) of each class.

        The numbers of users at each level count as n/levels and the draws of the levels as independent.
        """
        classes = [checks.counts("counts", counts, 2**self.levels).double() for counts in (negatives, positives)]
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


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/pairwise/tables.py")
