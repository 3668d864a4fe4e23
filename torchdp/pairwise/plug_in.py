"""The baseline: k-ary randomized response and the kernel evaluated on pairs of decoded reports."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.pairwise.protocol import AggregateProtocol
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.pairwise.variance import in_parts, symmetric_variance
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon < 1e-100:  # below, variances leave the range of floats
            raise ValueError(f"epsilon must be at least 1e-100 for randomized response, not {self.epsilon!r}")

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

    @property
    def layout(self) -> tuple[Tensor, ...]:
        return (torch.zeros(self.statistic.types, dtype=torch.int64, device=self.statistic.points.device),)

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        return counted(sums[0], n)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(how many users report each value,), (k,)."""
        return self.tally(self.randomizer.sample(types, noise=noise))

    def tally(self, reports: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the reports of some users, (n,)."""
        reports = checks.indices("reports", reports, self.statistic.types)
        return (torch.bincount(reports, minlength=self.statistic.types),)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (self.randomizer.sample_reports(counts, generator=generator, sample_shape=shape),)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        f, m = self.statistic.kernel(form), self.randomizer.moments
        decoded = self.randomizer.decode_counts(sums[0])
        rows = f.sum(1)
        own = (f.diagonal() - 2 * m.q * rows + m.q**2 * rows.sum()) / (m.p - m.q) ** 2  # Y^T f Y for each report
        return (((decoded @ f) * decoded).sum(-1) - sums[0].double() @ own) / (n * (n - 1))

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        kernel = self.statistic.kernel
        return symmetric_variance(lambda weights: kernel(Form(weights)), *self._spread, counts, form.weights)

    @property
    def _spread(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0."""
        m = self.randomizer.moments
        gain = m.p - m.q
        return m.q / gain**2, (1 - gain) / gain

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return self.randomizer.decode_counts(sums[0]) @ self.statistic.points / n

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """[4 F + 2 G] / (n (n-1))^2 at the decoded counts c, less what their noise adds to F.

        With P the projection off the direction of ones and D the diagonal of Cov(sum of the decoded reports), which
        is linear in c and positive: F = c^T f P D P f c, G = tr(P f P D P f P D). The mean of F at the decoded counts
        exceeds F by G + 2 own sum_t (P f c)_t (P f P)_tt D_tt to first order. A fraction 1/n is left out.
        """
        flat, own = self._spread

        def part(counts: Tensor, weights: Tensor) -> Tensor:
            f = self.statistic.kernel(Form(weights))
            f = f - f.mean(-2, keepdim=True)
            others = (f @ counts[..., None])[..., 0]
            f = f - f.mean(-1, keepdim=True)
            spread = flat * n + own * counts
            second = (spread * (f.square() @ spread[..., None])[..., 0]).sum(-1)
            noise = second + 2 * own * (others * f.diagonal(dim1=-2, dim2=-1) * spread).sum(-1)
            first = ((spread * others.square()).sum(-1) - noise).clamp_min(0)
            return (4 * first + 2 * second) / (n * (n - 1)) ** 2

        decoded = self.randomizer.decode_counts(sums[0])
        return in_parts(part, decoded, form.weights, decoded.shape[-1] ** 2)


def counted(reports: Tensor, n: int) -> str | None:
    """Why these cannot be counts (..., m) of one report from each of n users."""
    if bool((reports < 0).any()):
        return "a count is negative"
    if bool((reports.sum(-1) != n).any()):
        return "the counts do not add up to n"
    return None
