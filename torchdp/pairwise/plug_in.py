"""The baseline: k-ary randomized response and the kernel evaluated on pairs of decoded reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.pairwise.protocol import AggregateProtocol
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.privacy import Guarantee
from torchdp.randomizers import RandomizedResponse


@dataclass(frozen=True)
class RandomizedResponsePlugIn(AggregateProtocol):
    """Each user reports its type by k-ary randomized response; the analyst averages the kernel over pairs.

    With Y_i = (e_{y_i} - q 1)/(p - q) and f the kernel matrix: sum over i != j of Y_i^T f Y_j / (n (n-1)),
    unbiased for distinct pairs. It depends on the reports' counts alone. With S_x = Cov(Y | x), s the counts,
    Var = [4 sum_users (s - e_x)^T f S_x f (s - e_x) + 2 sum_{i != j} tr(f S_i f S_j)] / (n (n-1))^2, exactly.

    Guarantees: epsilon-LDP for each user.
    Source: Bell, Bellet, Gascon, Kulkarni (2020), Algorithm 1.
    """

    @cached_property
    def randomizer(self) -> RandomizedResponse:
        """What a user runs."""
        return RandomizedResponse(self.statistic.types, self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return self.randomizer.guarantee

    @property
    def bits_per_user(self) -> int:
        return self.randomizer.bits

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.DISTINCT

    def collect(self, types: Tensor, *, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(how many users report each value,), (k,)."""
        reports = self.randomizer.sample(types, generator=generator)
        return (torch.bincount(reports, minlength=self.statistic.types),)

    def collect_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> tuple[Tensor, ...]:
        return (self.randomizer.sample_reports(counts, generator=generator, sample_shape=sample_shape),)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        f, m = self.statistic.kernel(form), self.randomizer.moments
        decoded = self.randomizer.decode_counts(sums[0])
        rows = f.sum(1)
        own = (f.diagonal() - 2 * m.q * rows + m.q**2 * rows.sum()) / (m.p - m.q) ** 2  # Y^T f Y for each report
        return (((decoded @ f) * decoded).sum(-1) - sums[0].double() @ own) / (n * (n - 1))

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        f, q, n = self.statistic.kernel(form), self.randomizer.moments.q, counts.sum(-1)
        gain = self.randomizer.moments.p - q
        rows, diagonal = f.sum(-1), f.diagonal(dim1=-2, dim2=-1)
        # First order. Column x of `others` is f (s - e_x), and pi_x = q 1 + gain e_x is the law of x's report.
        others = (f @ counts[..., None]) - f
        own = others.diagonal(dim1=-2, dim2=-1)
        mean = q * others.sum(-2) + gain * own
        first = (counts * (q * others.square().sum(-2) + gain * own.square() - mean.square())).sum(-1) / gain**2
        # tr(f S f S) for S = sum of S_i over users, less the terms i = j.
        spread = torch.diag_embed(n[..., None] * q + gain * (1 - gain) * counts) - q * (
            q * n[..., None, None] + gain * (counts[..., None] + counts[..., None, :])
        )
        product = f @ spread / gain**2
        every = (product * product.mT).sum((-2, -1))
        squares = f.square()
        pairs = q**2 * squares.sum((-2, -1))[..., None] + 2 * q * gain * squares.sum(-1)
        pairs = pairs + gain**2 * diagonal.square()
        expected = q * rows[..., None] + gain * f  # column x is f pi_x
        middle = q * expected.square().sum(-2) + gain * expected.diagonal(dim1=-2, dim2=-1).square()
        both = q**2 * rows.sum(-1)[..., None] + 2 * q * gain * rows + gain**2 * diagonal
        same = (counts * (pairs - 2 * middle + both.square())).sum(-1) / gain**4
        return (4 * first + 2 * (every - same)) / (n * (n - 1)) ** 2

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """The variance at the decoded histogram, cut off at 0 and scaled to n."""
        decoded = self.randomizer.decode_counts(sums[0]).clamp_min(0)
        return self.mean_variance(decoded * (n / decoded.sum(-1, keepdim=True)), form)
