"""A curator's mean under pure differential privacy: noise whose density falls with a norm in which users are near."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import betainc, gammaincc, gammaincinv, ndtr
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.noise_shape import NoiseShape
from torchdp.domains.shapes import difference_shape
from torchdp.draws import Draws, Simulated
from torchdp.mean.protocol import MeanProtocol
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.protocol import Crowd, CuratorProtocol, Estimate, Limits, Tally, Users
from torchdp.protocol.interval import quantile
from torchdp.protocol.records import beside, combined, farthest
from torchdp.root import root
from torchdp.threads import on_host

ORDERS = (1.0, 2.0, math.inf)
LENGTHS = 2**14  # equally likely ones of noise of l_2
MOST_CORNERS = 2000  # whose distances in l_1 are all looked at


@dataclass(frozen=True)
class Block:
    """So many coordinates of u = A^+ x in a row, the l_q norm that their noise falls with, its share of epsilon."""

    size: int
    order: float
    share: float

    @property
    def deviation(self) -> float:
        """Standard deviation of each coordinate of noise of density ~ exp(-||z||_q)."""
        k = self.size
        return math.sqrt({1.0: 2.0, 2.0: k + 1.0, math.inf: (k + 1) * (k + 2) / 3}[self.order])


@dataclass(frozen=True, eq=False)
class PureMean(MeanProtocol, CuratorProtocol[Crowd]):
    """The curator releases the mean plus A z / n, z of density ~ exp(-sum_b epsilon_b ||z_b||_{q_b} / D_b).

    D_b is the diameter of block b of u = A^+ x in l_{q_b}, epsilon_b = share_b epsilon. z_b is R times a uniform point
    of the l_q ball of its k coordinates, R ~ Gamma(k + 1, D_b/epsilon_b): of covariance (D_b/epsilon_b)^2 times
    2 (q = 1), k + 1 (q = 2), (k + 1)(k + 2)/3 (q = inf). One block whose ball holds K - K is the K-norm mechanism: for
    a box of d equal sides 6 d^2/((d + 1)(d + 2)) times less variance than Laplace noise in each coordinate apart.
    ``error(n, p)`` takes the noise for Gaussian but at p = 2; intervals are those of a number of its block's noise, and
    the widest where several make an answer. A tally is the noisy sum of u, each cut to the domain's ``ends``.

    shape: A and the centre of u. blocks: sizes that add up to A's columns, q in {1, 2, inf}, shares of sum 1.
    epsilon > 0. Raises TypeError, ValueError. ``tuned`` chooses.

    Guarantees: epsilon-DP in the central model for replacing one user's point, n public.
    Source: Hardt, Talwar (2010), "On the geometry of differential privacy", section 4; basic composition of blocks.
    """

    domain: Domain
    shape: NoiseShape
    epsilon: float
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, epsilon=checks.positive)
        rank = self.shape.root.shape[1]  # 0: a single point, without noise
        blocks = tuple(checks.several("blocks", self.blocks, Block)) if rank or self.blocks else ()
        object.__setattr__(self, "blocks", blocks)
        for block in blocks:
            checks.integer("blocks: size", block.size, 1)
            checks.positive("blocks: share", block.share)
            if block.order not in ORDERS:
                raise ValueError(f"blocks must be of order 1, 2 or inf, not {block.order!r}")
        if sum(block.size for block in blocks) != rank:
            raise ValueError(f"blocks must have {rank} coordinates together, the rank of the shape")
        if not math.isclose(sum(block.share for block in blocks), 1.0, rel_tol=1e-9) and blocks:
            raise ValueError("blocks must have shares that add up to 1")
        checks.validated(self, "diameters")  # blocks whose noise no float holds

    @classmethod
    def tuned(cls, domain: Domain, *, epsilon: float) -> "PureMean":
        """The least (E ||error||_2^2)^{1/2} of: the ellipsoid of :func:`difference_shape`; the l_1 ball; coordinates
        in blocks of like width, each a box, from Laplace noise in each one to a box around all.

        Raises ValueError, TypeError. Guarantees: as the class.
        """
        shape = difference_shape(domain, 2.0)
        r = shape.root.shape[1]
        if r == 0:
            return cls(domain, shape, epsilon, ())
        axes = _axes(shape, _widths(domain))
        k = axes.root.shape[1]
        cross = replace(axes, root=(axes.root != 0).to(axes.root))
        found = [
            cls(domain, shape, epsilon, (Block(r, 2.0, 1.0),)),
            cls(domain, cross, epsilon, (Block(k, 1.0, 1.0),)),
            cls(domain, axes, epsilon, _like_widths(axes.root.norm(dim=0))),
        ]
        return min(found, key=lambda each: float(each.noise_root(1).square().sum()))

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The least and the largest of each coordinate of u over the domain, (r,): users' are cut to them."""
        rows, centre = self.encoding.inverse, self.encoding.centre
        low, high = -self.domain.supports(-rows, centre), self.domain.supports(rows, centre)
        return low, torch.maximum(low, high)

    @cached_property
    def diameters(self) -> list[float]:
        """D_b of each block: proved upper bounds, with what membership tests let through where it is not cut."""
        own, found, start = self.encoding, [], 0
        corners, (low, high) = self.domain.corners(MOST_CORNERS), self.ends
        for block in self.blocks:
            rows, widths = (each[start : start + block.size] for each in (own.inverse, high - low))
            if block.order == 2:
                most = own.diameter if block.size == len(own.inverse) else float(widths.norm())
            elif block.order == 1:
                most = float(widths.sum())
                if corners is not None:
                    shown = corners @ rows.mT
                    room = 2 * self.domain.missed(rows) * math.sqrt(block.size)
                    apart = float(torch.cdist(shown, shown, p=1).max()) + room
                    most = min(apart, most)
            else:
                most = float(widths.max())
            found.append(most * (1 + 1e-12))
            start += block.size
        return found

    @property
    def scales(self) -> list[float]:
        """Of each block's noise: diameter / (share epsilon), the shares' sum at most 1."""
        whole = max(1.0, math.fsum(block.share for block in self.blocks))
        each = zip(self.blocks, self.diameters, strict=True)
        return [most * whole / (block.share * self.epsilon) for block, most in each]

    @cached_property
    def deviations(self) -> Tensor:
        """Of the noise of the sum of u, (r,)."""
        each = zip(self.blocks, self.scales, strict=True)
        return self._spread([scale * block.deviation for block, scale in each]).to(self.shape.root)

    @on_host
    def _spread(self, numbers: list[float]) -> Tensor:
        """One number of each block, as one of each coordinate, (r,)."""
        sizes = torch.tensor([block.size for block in self.blocks], dtype=torch.int64)
        return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(sizes)

    @property
    def guarantee(self) -> Guarantee:
        source = "Hardt, Talwar (2010), section 4"
        return Guarantee(self.epsilon, 0.0, Model.CENTRAL, Neighbours.REPLACE_ONE, False, source)

    def limits(self, n: Users) -> dict[str, Limits]:
        low, high = self.ends
        noise = farthest(float(self.deviations.sum()), math.fsum(self.scales))
        return {"sum": Limits.around(n * float(torch.maximum(-low, high).sum()) + noise)}

    def noise_root(self, n: Users) -> Tensor:
        """B = A diag(deviations) / n: Cov(estimate) = B B^T exactly."""
        return self.shape.root * self.deviations / beside(checks.people("n", n, 1), 2)

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        total = self.shape.root.new_zeros(self.shape.root.shape[1])
        for u, counts in self.encoded(summary):
            total = total + combined(counts, u.clamp(*self.ends))
        return Tally(summary.n, {"sum": total + self._noise(draws, (*shape, *total.shape[:-1]))})

    def noise(self, n: int, count: int, draws: Simulated) -> Tensor:
        return self._noise(draws, (count,)) @ self.shape.root.mT / checks.integer("n", n, 1)

    def _noise(self, draws: Draws, shape: tuple[int, ...]) -> Tensor:
        """Of the sum of u, (*shape, r)."""
        each = zip(self.blocks, self.scales, strict=True)
        parts = [scale * _noise(block, draws, shape) for block, scale in each]
        return torch.cat(parts, -1) if parts else self.shape.root.new_zeros((*shape, 0))

    def analyse(self, tally: Tally) -> Estimate:
        return replace(super().analyse(tally), stretch=self.stretch)

    @on_host
    def stretch(self, level: float) -> Tensor:
        """How far the ends of an interval lie over those of normal noise of the same deviation, (d,).

        One block of l_2 is as long in all directions, and a number of l_1 or l_inf alone that of its block; if
        several numbers make an answer, the widest distribution, the normal one, and for l_inf R times a normal number.
        """
        used = (self.shape.root != 0).cpu()
        each, together = (self._spread([_stretch(b, level, m) for b in self.blocks]) for m in (False, True))
        widest, mixed = (
            torch.where(used, law, 0.0).amax(1) if len(law) else torch.ones(len(used))
            for law in (each, torch.maximum(each, together))
        )
        round_one = len(self.blocks) == 1 and self.blocks[0].order == 2
        alone = used.sum(1) <= 1 if not round_one else torch.ones(len(used), dtype=torch.bool)
        return torch.where(alone, widest, mixed.clamp_min(1.0)).to(self.shape.root)


def _noise(block: Block, draws: Draws, shape: tuple[int, ...]) -> Tensor:
    """Of density ~ exp(-||z||_q), (*shape, size)."""
    k, whole = block.size, (*shape, block.size)
    if block.order == 1:
        signs = 1.0 - 2.0 * (draws.uniform(whole) < 0.5).double()
        return signs * draws.exponential(whole)
    ones = torch.ones((*shape, 1), dtype=torch.float64, device=draws.device)
    if block.order == 2:  # the length of such noise is Gamma(k)
        normal = draws.normal(whole)
        return draws.gamma(k * ones) * normal / normal.norm(dim=-1, keepdim=True)
    return draws.gamma((k + 1) * ones) * (2 * draws.uniform(whole) - 1)


def _stretch(block: Block, level: float, mixed: bool = False) -> float:
    """Of one coordinate z of the block's noise: its P(abs(z) > t) = 1 - level is solved for t.

    l_1: e^-t. l_inf: R times a uniform number, R ~ Gamma(k + 1), or, for a sum of several (``mixed``), as R is common
    to them, R times a normal one. l_2: R times a coordinate of a uniform unit vector, R ~ Gamma(k). By the mean over
    equally likely R.
    """
    k, beyond = block.size, 1 - level
    likely = (np.arange(LENGTHS) + 0.5) / LENGTHS
    lengths = gammaincinv(k + (block.order == math.inf), likely) if block.order > 1 and k > 1 else np.empty(0)

    def outside(t: float) -> float:
        if block.order == math.inf and mixed and k > 1:
            return float(2 * ndtr(-t * math.sqrt(3) / lengths).mean())
        if block.order == math.inf:
            return float(gammaincc(k + 1, t) - t / k * gammaincc(k, t))
        if block.order == 1 or k == 1:
            return math.exp(-t)
        return float(1 - betainc(0.5, (k - 1) / 2, np.minimum(t / lengths, 1.0) ** 2).mean())

    z = quantile(level)
    if not z:  # a level that rounds to nothing
        return 1.0
    return root(lambda t: outside(t) - beyond, 0.0, 2 * block.deviation * z, 1e-12) / (block.deviation * z)


def _widths(domain: Domain) -> Tensor:
    """max x_i - min x_i over the domain, (d,)."""
    one = torch.eye(domain.dimension).to(domain.spanning())
    zero = torch.zeros_like(one[0])
    return domain.supports(one, zero) + domain.supports(-one, zero)


def _axes(shape: NoiseShape, widths: Tensor) -> NoiseShape:
    """``shape`` with the bounding box's axes, the widest first; coordinates without width have none."""
    order = widths.argsort(descending=True)
    order = order[widths[order] > 0]
    return replace(shape, root=torch.diag(widths)[:, order])


def _like_widths(widths: Tensor) -> tuple[Block, ...]:
    """Consecutive coordinates, widest first, in boxes: the least sum of c_b^{1/3}, c_b = (k + 1)(k + 2)/3 times its
    squared widths; with shares ~ c_b^{1/3} the noise has the variance (sum_b c_b^{1/3})^3 / epsilon^2.
    """
    beyond = [*widths.square().flip(0).cumsum(0).flip(0).tolist(), 0.0]  # from the narrowest: nothing cancels
    d = len(widths)

    def root(i: int, j: int) -> float:
        k = j - i
        return ((k + 1) * (k + 2) / 3 * (beyond[i] - beyond[j])) ** (1 / 3)

    best, back = [0.0], [0]
    for j in range(1, d + 1):
        value, i = min((best[i] + root(i, j), i) for i in range(j))
        best.append(value)
        back.append(i)
    blocks, j = [], d
    while j:
        i = back[j]
        blocks.append(Block(j - i, math.inf, root(i, j) / best[d]))
        j = i
    return tuple(reversed(blocks))
