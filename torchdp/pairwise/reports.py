"""Reports about the type itself, the kernel averaged over pairs of them: subsets, bit vectors, randomized response."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from torchdp.draws import Simulated
from torchdp.pairwise.consistent import nearest
from torchdp.pairwise.protocol import ROUNDING, PairwiseProtocol
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.pairwise.variance import NUMBERS_AT_ONCE, in_parts, symmetric_variance, worst_symmetric
from torchdp.protocol import Layout, Limits, Relay, Tally, Users
from torchdp.protocol.interval import Error
from torchdp.protocol.quadratic import QuadraticError, coordinates
from torchdp.protocol.types import from_messages
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SubsetSelection, SymmetricUnaryEncoding
from torchdp.randomizers.alphabet.bit_vectors import BitVectorOracle
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.draws import unpack

NEAR = 1e-6  # relative gap of the search of a histogram
O = TypeVar("O", bound=FrequencyOracle)


@dataclass(frozen=True)
class ReportPairs(PairwiseProtocol, Relay[Tensor, Tensor, O]):
    """Users report their type by an oracle, ``client``; the analyst averages the kernel over pairs of reports.

    The variance is ``symmetric_variance``, exactly, of an oracle that treats all types alike.
    """

    estimated_pairs = Pairs.DISTINCT

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(self.validate_summary(summary), draws, shape)

    def decoded(self, tally: Tally) -> Tensor:
        """Unbiased counts of the types, (*batch, k)."""
        return self.client.totals(tally)

    def plug_in_variance(self, tally: Tally, form: Form) -> Tensor:
        """That of ``mean_errors`` but for its slack, a fraction 1/n: without decompositions."""

        def part(both: Tensor, weights: Tensor) -> Tensor:
            h, point = both.tensor_split([self.statistic.types], -1)
            noise, turned = self.noise(h, self.statistic.points), weights * point
            linear = torch.einsum("...s,...st,...t->...", turned, noise, turned)
            square = torch.einsum("...s,...st,...t->...", weights, noise.square(), weights)
            return 4 * (linear - square).clamp_min(0) + 2 * square

        n, point = tally.users(1), self.mean_point(tally)
        both = torch.cat([nearest(self, tally, NEAR) / n, point], -1)
        found = in_parts(part, both, form.weights, point.shape[-1] * max(self.statistic.points.shape))
        return found * (tally.users() / (tally.users() - 1)) ** 2

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        kernel = self.statistic.kernel
        return symmetric_variance(lambda weights: kernel(Form(weights)), *self.spread, counts, form.weights)

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        return worst_symmetric(self.statistic.kernel(Form(form.weights)), *self.spread, n)

    def noise(self, counts: Tensor, points: Tensor) -> Tensor:
        """Covariance of the sum of users' decoded points (k, r) of counts (*batch, k) of users, (*batch, r, r)."""
        (flat, own), centred = self.spread, points - points.mean(0)
        each = flat * counts.sum(-1, keepdim=True) + own * counts
        return torch.einsum("...x,xs,xt->...st", each, centred, centred)

    def principal(self, shares: Tensor, point: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """``coordinates`` of the form at mean vectors (rows, r) of users of these shares (rows, k).

        By shares of the types where these are fewer, as of many kernels together.
        """
        points = self.statistic.points
        if self.statistic.dim <= self.statistic.types or math.isnan(self.spread[0]):
            return coordinates(point * weights, weights.diag_embed(), self.noise(shares, points))
        apart, types = points - points.mean(0), torch.eye(len(points)).to(points)  # noise adds up to 0
        kernel = (apart * weights[..., None, :]) @ apart.mT
        return coordinates((point * weights) @ apart.mT, kernel, self.noise(shares, types))

    @cached_property
    def _centred(self) -> tuple[Tensor, Tensor]:
        """The points less their mean over types, and that mean."""
        middle = self.statistic.points.mean(0)
        return self.statistic.points - middle, middle

    @cached_property
    def spread(self) -> tuple[float, float]:
        """(flat, own): Cov Y = flat I + own e_x e_x^T on vectors of sum 0, whatever x."""
        S = self.client.covariance(0)
        pair = float(S[1, 2]) if len(S) > 2 else 0.0  # two types: any value, the two parts then make up for it
        flat = float(S[1, 1]) - pair
        return flat, float(S[0, 0]) - float(S[1, 1]) - 2 * float(S[0, 1]) + 2 * pair

    def mean_point(self, tally: Tally) -> Tensor:
        return self._total(tally) / tally.users(1)

    def _total(self, tally: Tally) -> Tensor:
        centred, middle = self._centred
        return self.decoded(tally) @ centred + tally.users(1) * middle

    def mean_errors(self, tally: Tally) -> Callable[[Tensor, Tensor], Error]:
        """That of the mean over all pairs, of s^T J s: its range has ends, which the truth may lie at.

        The mean over distinct pairs is n/(n - 1) times it less mean f(x, x), whose own noise counts as independent.
        """
        h, point, n = nearest(self, tally, NEAR), self.mean_point(tally), tally.users()
        squares = self.statistic.points.square()
        decoded, of_mean = (each / tally.users(1) for each in (self.decoded(tally), h))
        rows = max(1, NUMBERS_AT_ONCE // (squares.shape[1] * max(squares.shape)))

        def error(weights: Tensor, value: Tensor) -> QuadraticError:
            weights = weights.expand(*np.broadcast_shapes(weights.shape, point.shape))
            wide = (x.expand(*weights.shape[:-1], -1) for x in (of_mean, point, weights))
            each = zip(*(x.reshape(-1, x.shape[-1]).split(rows) for x in wide), strict=True)
            found = [self.principal(*some) for some in each]
            curved, linear = (torch.cat(every).view(*weights.shape[:-1], -1) for every in zip(*found, strict=True))
            diagonal = weights @ squares.mT
            apart = diagonal - diagonal.mean(-1, keepdim=True)
            own = (decoded * apart).sum(-1) + diagonal.mean(-1)
            offset = (point.square() * weights).sum(-1) - curved.sum(-1) - ((n - 1) * value + own) / n
            spread = self.client.workload_variance(apart[..., None, :])[..., 0, :]
            slack = ((h * spread).sum(-1).clamp_min(0) / n).sqrt() / n
            return QuadraticError(curved, linear, curved[..., :0], offset, slack).scaled(n / (n - 1))

        return error


@dataclass(frozen=True)
class SubsetPairs(ReportPairs[BitVectorOracle]):
    """Each user sends a random set of types, more often one that holds its own; the analyst pairs the messages.

    Decoded and projected on sum 1, a message is Y in R^k with E Y = e_x, and a user's vector Z = sum_x Y_x u_x has
    E Z = u_x: sum over i != j of Z_i^T J Z_j / (n (n-1)) is unbiased for distinct pairs. The sets' sizes do not give
    Z^T J Z, so the analyst must see each message, and its distribution is drawn from messages.
    kind: the class of the oracle.

    Guarantees: epsilon-LDP for each user.
    Source: the pair estimator of Bell, Bellet, Gascon, Kulkarni (2020), Algorithm 1, for reports of Ye, Barg (2018)
    or Wang, Blocki, Li, Jha (2017).
    """

    kind: type[SubsetSelection] | type[OptimizedUnaryEncoding] | type[SymmetricUnaryEncoding] = SubsetSelection

    def __post_init__(self) -> None:
        if not (isinstance(self.kind, type) and issubclass(self.kind, BitVectorOracle)):
            raise TypeError(
                "kind must be a class of oracle: SubsetSelection, OptimizedUnaryEncoding or SymmetricUnaryEncoding"
            )
        super().__post_init__()

    @cached_property
    def client(self) -> BitVectorOracle:  # type: ignore[override]
        """What a user runs."""
        return self.kind(self.statistic.types, self.epsilon)

    @property
    def layout(self) -> Layout:
        return {**self.client.layout, "squares": ((self.statistic.dim,), torch.float64)}

    @property
    def users_at_once(self) -> int:  # type: ignore[override]
        """Whose reports are held together: four million bits."""
        return max(1, 2**22 // self.statistic.types)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return from_messages(self, self.validate_summary(summary), draws, shape)

    def tally(self, messages: Tensor) -> Tally:
        """Packed bits (n, ceil(k/64)): the oracle's tally, and the sum of the squares of the coordinates of Z, (r,)."""
        rows, (centred, middle) = self.client.packed(messages), self._centred
        bits = unpack(rows)[:, : self.statistic.types].double()
        squares = (bits @ centred / self.client.gap + middle).square().sum(0)
        return Tally(len(rows), {"reports": bits.sum(0).long(), "squares": squares})

    def limits(self, n: Users) -> dict[str, Limits]:
        (centred, middle), gap = self._centred, self.client.gap
        most = float((centred.abs().sum(0) / gap + middle.abs()).square().max())
        return {**super().limits(n), "squares": Limits(0.0, n * most)}

    def impossible(self, tally: Tally) -> str | None:
        squares, n = tally["squares"], tally.users(1)
        slack = ROUNDING * (squares + self._centred[0].square().sum(0)) * n  # a coordinate may be rounding alone
        if bool((squares * n + slack < self._total(tally).square() * (1 - ROUNDING)).any()):
            return "the squares add up to less than the square of the sum over n"
        return None

    def mean(self, tally: Tally, form: Form) -> Tensor:
        n = tally.users()
        squares = self._total(tally).square() - tally["squares"]
        return (form.weights * squares).sum(-1) / (n * (n - 1)) + form.constant


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
