"""Divisible noise over real numbers: its least size, what it promises, and its sums.

Client i adds noise of its own to what it sends in each copy; the sum over a row, signs included, is
the noise of that row, which ``sample_sum`` draws at once. What clients send are integers:
``torchdp.secure``. The signs do not matter: every distribution here is symmetric. Units: sums
without the factor s^-1/2.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.brief import Brief
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.sketching.coalition import EVERYBODY, AdaptiveCoalition
from torchdp.sketching.sketch import Sketch

# Replacement, since the sketch is drawn for n clients: n is public.
KIND = Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE


class DivisibleNoise(Brief, ABC):
    """Noise whose parts are added by the clients; n clients, s copies, m rows, d columns."""

    def sample_sum(
        self,
        sketch: Sketch,
        columns: int,
        *,
        generator: torch.Generator,
        sample_shape: Sequence[int] = (),
    ) -> Tensor:
        """The noise of each row, exactly in distribution: (*sample_shape, m, d)."""
        draws = Simulated(generator, checks.instance("sketch", sketch, Sketch).device)
        leading = checks.sample_shape(sample_shape)
        shape = (*leading, sketch.height, checks.integer("columns", columns, 1))
        checks.fits("the noise", *shape)
        return self.sums_of(sketch, shape, draws)

    @abstractmethod
    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """``sample_sum`` from these draws; shape: (*sample_shape, m, d); unchecked."""

    @abstractmethod
    def variance(self, sketch: Sketch) -> Tensor:
        """Variance of an entry of each row of the release, all clients adding noise: (m,)."""


@entrywise(of_floats=True, bound=checks.squarable, epsilon=checks.positive, delta=checks.fraction)
def entry_variance(bound: Numbers, *, epsilon: Numbers, delta: Numbers) -> Numbers:
    """V = (2 B/mu*)^2, 1/mu* = gaussian_sigma(epsilon, delta): the least variance on S A.

    That of independent Gaussian noise. bound: B, the largest l_2 norm of a client's row. Numbers,
    or batches that broadcast. Raises TypeError, ValueError.

    Guarantees: S A + N(0, V) is (epsilon, delta)-DP, exactly, for the sketch's every s, m, n and d.
    Source: Balle, Wang (2018), Theorem 8, at sensitivity |S_i (a_i - a_i')^T|_F = |a_i - a_i'|_2 <=
    2 B.
    """
    return gaussian_sigma(epsilon, delta, 2 * bound) ** 2


@dataclass(frozen=True, eq=False)
class GaussianNoise(DivisibleNoise):
    """N(0, sigma_j^2) in each entry that goes to row j, independently in every copy.

    sigma: (m,), or one number for every row. Raises ValueError, TypeError.

    Guarantees: epsilon at delta, exact where everybody is honest, and with one copy for each kind
    of coalition.
    Source: replacing row a_i changes sqrt(s) S A by sgn_ic (a_i - a_i') in row j = rows[c, i] of
    each copy c, the noise
        of row j is N(0, h_j sigma_j^2 I), and rows are independent: the pair is two Gaussians at
        distance mu_i^2 = |a_i - a_i'|^2 sum_c 1/(h_j sigma_j^2) <= 4 B^2 sum_c 1/(h_j sigma_j^2),
        with equality for a_i' = -a_i; Balle, Wang (2018), Theorem 8.
    """

    sigma: Tensor | float

    def __post_init__(self) -> None:
        # A copy: whoever changed sigma afterwards would move a guarantee that was given.
        checks.own(self)
        if isinstance(self.sigma, Tensor):
            sigma = checks.floating("sigma", self.sigma).double()
        else:
            sigma = torch.tensor(checks.positive("sigma", self.sigma), dtype=torch.float64)
        if sigma.ndim > 1 or not sigma.numel() or not (sigma > 0).all():
            raise ValueError(
                "sigma must be finite, > 0, one number or one for each row, not of shape "
                f"{tuple(sigma.shape)}"
            )
        object.__setattr__(self, "sigma", sigma)

    @staticmethod
    def calibrated(
        sketch: Sketch,
        bound: float,
        *,
        epsilon: float,
        delta: float,
        coalition: AdaptiveCoalition = EVERYBODY,
    ) -> "GaussianNoise":
        """The least noise for (epsilon, delta), with a sigma for each row.

        sigma_j^2 = s V/h_j, h_j the row's honest pairs: every entry of the release has variance V
        (``entry_variance``) where all are honest. Empty rows count as rows of one client. bound: B,
        the largest l_2 norm of a client's row. Raises ValueError, TypeError.

        Guarantees: (epsilon, delta)-DP; exact where everybody is honest, and with one copy for each
        kind of coalition.
        Source: mu_i^2 = 4 B^2 sum_c 1/(h_j sigma_j^2) = mu*^2 for every client.
        """
        honest = checks.instance("coalition", coalition, AdaptiveCoalition).honest(sketch)
        # With sigma_j in proportion to h_j^-1/2 all h_j sigma_j^2 are one number, so that every
        # client has the same mu_i, and none has more noise than it needs.
        shape = honest.clamp_min(1).double().rsqrt()
        # Rows of norm up to B are at most 2 B apart, which a_i' = -a_i attains.
        distance = 2 * checks.squarable("bound", bound) * _distance(sketch, honest, shape)
        return GaussianNoise(gaussian_sigma(epsilon, delta, distance) * shape)

    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        # All c_j pairs add noise to the sum; that fewer are relied on is the guarantee's business.
        deviations = sketch.counts().sqrt() * self._rows(sketch)
        return draws.normal(shape) * deviations[:, None]

    def variance(self, sketch: Sketch) -> Tensor:
        checks.instance("sketch", sketch, Sketch)
        # The release is the sums over sqrt(s).
        return sketch.counts() * self._rows(sketch) ** 2 / sketch.copies

    def guarantee(
        self,
        sketch: Sketch,
        bound: float,
        *,
        delta: float,
        coalition: AdaptiveCoalition = EVERYBODY,
    ) -> Guarantee:
        """What S A plus this noise promises to each honest client. Raises TypeError, ValueError."""
        honest = checks.instance("coalition", coalition, AdaptiveCoalition).honest(sketch)
        sigma = self._rows(sketch)
        distance = 2 * checks.squarable("bound", bound) * _distance(sketch, honest, sigma)
        # The distance is in standard deviations of the noise: sigma is 1.
        promise = gaussian_guarantee(1.0, delta, distance, *KIND)
        # The Gaussian tradeoff is exact, but no coalition may reach the counts h_j in all rows at
        # once.
        return replace(promise, exact=promise.exact and coalition.exact(sketch))

    def _rows(self, sketch: Sketch) -> Tensor:
        sigma = torch.as_tensor(self.sigma, dtype=torch.float64, device=sketch.device)
        if sigma.ndim and len(sigma) != sketch.height:
            raise ValueError(f"sigma has {len(sigma)} rows, the sketch {sketch.height}")
        return sigma.expand(sketch.height)


def _distance(sketch: Sketch, honest: Tensor, sigma: Tensor) -> float:
    """(max_i sum_c 1/(h_j sigma_j^2))^1/2, j = rows[c, i]: the largest distance of two releases.

    In deviations, of clients' rows that are 1 apart. honest, sigma: (m,).
    """
    # An empty row has h_j = 0 and nobody whom it could betray: its infinite loss is taken out.
    loss = torch.where(sketch.counts() > 0, 1 / (honest * sigma.square()), 0.0)
    # Where all clients have the same column, as in a plain sum, kinds is that one column.
    return math.sqrt(float(loss[sketch.kinds].sum(0).max()))


@dataclass(frozen=True, eq=False)
class LaplaceNoise(DivisibleNoise):
    """Gamma(1/parts_j, scale) - Gamma(1/parts_j, scale) in each entry.

    parts_j of them make a Laplace(scale).

    scale: b. parts: (m,), the honest (client, copy) pairs that a row holds at least. Raises
    ValueError, TypeError.

    Guarantees: pure epsilon, exactly 2 s B_1/scale, for clients' rows of l_1 norm at most B_1,
    where parts_j <= h_j.
    Source: replacing row a_i changes s rows of sqrt(s) S A, each by at most 2 B_1 in l_1, under
    independent noise that
        is Laplace plus more of the same kind, whose density ratio tends to exp(2 B_1/b) far out;
        Dwork, McSherry, Nissim, Smith (2006), Theorem 1; infinitely divisible: Kotz, Kozubowski,
        Podgorski (2001), Section 2.4.
    """

    scale: float
    parts: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.positive("scale", self.scale)
        checks.keep(self, parts=_parts)

    @staticmethod
    def calibrated(
        sketch: Sketch, bound: float, *, epsilon: float, coalition: AdaptiveCoalition = EVERYBODY
    ) -> "LaplaceNoise":
        """Scale 2 s B_1/epsilon in each row.

        An entry of the release has variance 8 s B_1^2/epsilon^2. bound: B_1, the largest l_1 norm
        of a client's row. One copy is best. Raises ValueError, TypeError.

        Guarantees: pure epsilon, exactly.
        """
        honest = checks.instance("coalition", coalition, AdaptiveCoalition).honest(sketch)
        sensitivity = 2 * sketch.copies * checks.squarable("bound", bound)
        scale = sensitivity / checks.squarable("epsilon", epsilon)
        # An empty row has no pairs and gets no noise: 1 only keeps the division of its 0 pairs
        # defined.
        return LaplaceNoise(scale, honest.clamp_min(1))

    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        # Gamma laws of one scale add up: c_j shares of Gamma(1/parts_j) are Gamma(c_j/parts_j).
        shares = sketch.counts() / _row_parts(self.parts, sketch)
        first, second = draws.gamma(shares[:, None].expand(2, *shape))
        return self.scale * (first - second)

    def variance(self, sketch: Sketch) -> Tensor:
        checks.instance("sketch", sketch, Sketch)
        # A row holds c_j/parts_j Laplaces, each of variance 2 b^2.
        wholes = 2 * self.scale**2 * sketch.counts() / _row_parts(self.parts, sketch)
        return wholes / sketch.copies

    def guarantee(
        self, sketch: Sketch, bound: float, *, coalition: AdaptiveCoalition = EVERYBODY
    ) -> Guarantee:
        """What S A plus this noise promises to each honest client. Raises TypeError, ValueError."""
        honest = checks.instance("coalition", coalition, AdaptiveCoalition).honest(sketch)
        epsilon = 2 * sketch.copies * checks.squarable("bound", bound) / self.scale
        # Less than one Laplace, the share k < 1, has tails x^(k - 1) exp(-x/b), whose ratios exceed
        # exp(2 B_1/b): no such epsilon holds.
        too_few = _row_parts(self.parts, sketch) > honest
        if bool(too_few[sketch.counts() > 0].any()):
            raise ValueError(
                "some row may hold fewer honest clients than parts: "
                "its noise would be no whole Laplace"
            )
        source = "Dwork, McSherry, Nissim, Smith (2006), Theorem 1"
        return Guarantee(epsilon, 0.0, *KIND, coalition.exact(sketch), source)


def _parts(name: str, parts: Tensor) -> Tensor:
    parts = checks.floating(name, parts).double()
    if parts.ndim != 1 or not (parts >= 1).all():
        raise ValueError(
            f"parts must hold one number >= 1 for each row, not of shape {tuple(parts.shape)}"
        )
    return parts


def _row_parts(parts: Tensor, sketch: Sketch) -> Tensor:
    if len(parts) != sketch.height:
        raise ValueError(f"parts has {len(parts)} rows, the sketch {sketch.height}")
    return parts.to(sketch.device)
