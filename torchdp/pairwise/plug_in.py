"""The baseline: k-ary randomized response and the kernel evaluated on pairs of decoded reports."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from torchdp.pairwise.reports import ReportPairs
from torchdp.pairwise.statistic import Form
from torchdp.pairwise.variance import in_parts
from torchdp.protocol import Tally
from torchdp.randomizers import RandomizedResponse


@dataclass(frozen=True)
class RandomizedResponsePlugIn(ReportPairs[RandomizedResponse]):
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
    def client(self) -> RandomizedResponse:  # type: ignore[override]
        """What a user runs."""
        return RandomizedResponse(self.statistic.types, self.epsilon)

    def mean(self, tally: Tally, form: Form) -> Tensor:
        f, m, n = self.statistic.kernel(form), self.client, tally.users()
        decoded, rows = self.decoded(tally), f.sum(-1)
        own = f.diagonal(dim1=-2, dim2=-1) - 2 * m.q * rows + m.q**2 * rows.sum(-1, keepdim=True)
        both = ((decoded[..., None, :] @ f)[..., 0, :] * decoded).sum(-1)
        return (both - (tally["reports"] * own).sum(-1) / (m.p - m.q) ** 2) / (n * (n - 1))  # less each Y^T f Y

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """[4 F + 2 G] / (n (n-1))^2 at the decoded counts c, less what their noise adds to F.

        With P the projection off the direction of ones and D the diagonal of Cov(sum of the decoded reports), which
        is linear in c and positive: F = c^T f P D P f c, G = tr(P f P D P f P D). The mean of F at the decoded counts
        exceeds F by G + 2 own sum_t (P f c)_t (P f P)_tt D_tt to first order. A fraction 1/n is left out.
        """
        flat, own = self.spread

        def part(counts: Tensor, weights: Tensor) -> Tensor:
            n = counts.sum(-1)
            f = self.statistic.kernel(Form(weights))
            f = f - f.mean(-2, keepdim=True)
            others = (f @ counts[..., None])[..., 0]
            f = f - f.mean(-1, keepdim=True)
            spread = flat * n[..., None] + own * counts
            second = (spread * (f.square() @ spread[..., None])[..., 0]).sum(-1)
            noise = second + 2 * own * (others * f.diagonal(dim1=-2, dim2=-1) * spread).sum(-1)
            first = ((spread * others.square()).sum(-1) - noise).clamp_min(0)
            return (4 * first + 2 * second) / (n * (n - 1)) ** 2

        decoded = self.decoded(tally)
        return in_parts(part, decoded, form.weights, decoded.shape[-1] ** 2)
