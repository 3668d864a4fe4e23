"""A mean whose domain shrinks to where the users are, in rounds of concentrated differential privacy."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.balls import Box, Ellipsoid
from torchdp.draws import Draws
from torchdp.mean.gaussian import GaussianMean
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.protocol import Estimate
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.rounded_sum import released_guarantee
from torchdp.rounded import RoundedNormal

CELLS, LOOKS = 64, 10  # of each coordinate's histogram, and how many are asked for at most
LOOK, LAST = 1 / 40, 0.15  # of rho: each of them at most, and the histogram of distances
SHORT, STEADY = 1 / 500, 200  # of rho: a look at least; for noise below a 200th of n it takes no more
HELD = 0.75  # of the users, whom the cells that stand out must hold
SURE = 2e-3  # chance that noise alone stands out
GAINED = 4.0  # times narrower: else it was the last look
NEAREST, RATIO = 0.1, 1.3  # the first distance of the last histogram, in that of most users; how its cells grow
BEYOND = 2  # cells that count beyond the last that stands out
CLEAR, WINDOW = 4.0, 6  # times the noise of a sum of directions: so many show theirs, of so many cells at most
FINER = 3  # radii that are tried, for each cell
FINE, MOST = 10, 28  # directions are in steps of 2^-10, or of 2^-28 of the noise where that is more
FLOOR = 0.3  # of the mean deviation: no coordinate counts for less
GRAIN = 2.0**-26  # of the centre: floats tell apart points of a domain that is as wide
MOST_RINGS = 8192  # cells of the last histogram, at most: they could grow from the least float to the largest
LEAST = 2.0**-46  # rho for each dimension, at least: below, noise has more whole steps than are drawn
MOST_RHO = 5e5  # mu of 1000
LARGEST = 1e80  # of the box: looks make it up to 1e13 times smaller

Pair = tuple[Tensor, Tensor]  # of each coordinate


@dataclass(frozen=True, eq=False)
class AdaptiveEstimate(Estimate):
    """Of a mean in a ``domain`` that was found privately, under a ``guarantee`` for everything that was asked.

    standard_error is of the noise alone: users outside the ellipsoid were moved onto it, and of the bias that this
    leaves nothing is promised.
    """

    domain: Ellipsoid = field(kw_only=True)
    guarantee: Guarantee = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class AdaptiveMean:
    """Noisy histograms narrow a box to where users are, one of distances an ellipsoid; then a Gaussian mean in that.

    At most ten histograms of 64 cells a coordinate find where most users are, each up to 21 times finer than the one
    before, until little is gained: a centre c and a deviation s_i of each coordinate. A histogram of d coordinates has
    l_2 sensitivity (2 d)^{1/2}, so they find users who are many against (d/rho)^{1/2}; it takes rho/40 at most, and
    rho/500 where noise stays below n/200. One more histogram is of the
    distances ||(x - c)/s^{1/2}||, with the sum of the users' directions in each cell, of sensitivity 2: the radius r
    makes noise^2 + (estimated bias)^2 least. Tails whose directions cancel bias a mean less than those on one side; two
    cells beyond the last that stands out count too: a few users far off. What is left of rho, 3/5 or more, goes to a
    :class:`GaussianMean` in the ellipsoid of axes r s_i^{1/2}, users outside moved onto it.

    box: where users' points may lie at all; points outside are refused. rho: 2^-46 for each dimension to 5e5; delta
    in (0, 1): where epsilon is stated. n is public. Raises TypeError, ValueError.

    Guarantees: rho-zCDP in the central model for replacing one user's point: Gaussian rounds, each chosen from earlier
        answers, whose rho add up to at most this; so (epsilon, delta)-DP by the curve of mu = (2 rho)^{1/2}.
    Source: Bun, Steinke (2016), Lemma 2.3, and Smith, Thakurta (2022) for rounds in turn. The plan is after Biswas,
        Dong, Kamath, Ullman (2020), with histograms in the place of their tail bounds.
    """

    box: Box
    rho: float
    delta: float

    def __post_init__(self) -> None:
        checks.instance("box", self.box, Box)
        checks.keep(self, rho=checks.positive, delta=checks.fraction)
        if self.rho < self.box.dimension * LEAST:
            raise ValueError(
                f"rho must be at least {self.box.dimension * LEAST:.3g} in {self.box.dimension} dimensions, "
                f"not {self.rho:g}: no such noise is drawn; ask for less privacy, or for fewer dimensions"
            )
        if self.rho > MOST_RHO:
            raise ValueError(f"rho must be at most {MOST_RHO:g}, not {self.rho:g}: it would protect no user")
        largest = float(torch.maximum(self.box.low.abs(), self.box.high.abs()).max())
        if largest and not 1 / LARGEST <= largest <= LARGEST:
            raise ValueError(f"box must have coordinates of 1e-80 to 1e80, not {largest:.1g}; change their unit")

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, of the whole numbers that leave."""
        d = self.box.dimension
        numbers = LOOKS * CELLS * d + MOST_RINGS * (d + 1) + d
        return replace(released_guarantee(1 / math.sqrt(2 * self.rho), self.delta, numbers), exact=False)

    def estimate(self, x: Rows, *, noise: Noise | None = None) -> AdaptiveEstimate:
        """x: (n, d) in the box, n >= 1; noise: None is the system's cipher. Raises TypeError, ValueError."""
        x = checks.shaped("x", checks.precise("x", rows_of(x)).detach(), "n", "d", note=" with n >= 1")
        x, draws = self.box.project(self.box.validate(x).double()), source(noise, x.device)
        middle = self.box.middle.to(x)  # around it floats tell apart points of a narrow box far from 0
        x, low, high, left = x - middle, self.box.low.to(x) - middle, self.box.high.to(x) - middle, self.rho
        centre, spread, reach = (low + high) / 2, (high - low) / 2, (low, high)
        look = min(LOOK * self.rho, max(SHORT * self.rho, len(low) * (STEADY / len(x)) ** 2))
        for _ in range(LOOKS):
            before = high - low
            (low, high), (centre, spread) = _narrowed(x, (low, high), (centre, spread), look, draws)
            left -= look
            if bool(((high - low > before / GAINED) | (before == 0)).all()):
                break
        left -= LAST * self.rho
        furthest = torch.maximum(centre - reach[0], reach[1] - centre)
        # a few users may lie far from a value that most share
        spread = torch.maximum(torch.maximum(spread, FLOOR * spread.mean()), GRAIN * centre.abs())
        spread = torch.minimum(spread, furthest)
        radius = _radius(x, centre, spread, furthest, LAST * self.rho, left, draws)
        domain = Ellipsoid(torch.diag(radius * spread.sqrt()), centre)
        last = GaussianMean.tuned(domain, rho=left, delta=self.delta)
        found = last.analyse(last.collect_unchecked(_inside(x, domain), draws))
        own, value = Ellipsoid(domain.root, middle + centre), middle + found.value
        return AdaptiveEstimate(value, found.standard_error, found.n, domain=own, guarantee=self.guarantee)


def _histogram(x: Tensor, edges: Tensor, rho: float, draws: Draws) -> tuple[Tensor, float]:
    """Users in each cell of each coordinate under rho-zCDP, edges (d, cells + 1): (d, cells); the noise's deviation.

    A user who moves leaves one cell of each coordinate and enters one: l_2 sensitivity (2 d)^{1/2}.
    """
    d, cells = edges.shape[0], edges.shape[1] - 1
    values = x.mT.contiguous()
    where = torch.searchsorted(edges.contiguous(), values, right=True) - 1
    where = torch.where(values == edges[:, -1:], cells - 1, where)
    inside = (where >= 0) & (where < cells)
    places = (where + cells * torch.arange(d, device=x.device)[:, None])[inside]
    counts = torch.bincount(places, minlength=d * cells).view(d, cells).double()
    deviation = math.sqrt(2 * d / (2 * rho))
    return RoundedNormal.fine(deviation).added(counts.double(), draws), deviation


def _narrowed(x: Tensor, ends: Pair, known: Pair, rho: float, draws: Draws) -> tuple[Pair, Pair]:
    """Each coordinate's interval, three times as wide as that of the cells that stand out, inside the old one.

    Behind it centre and deviation of the users in these cells, merged by twos until those above the noise hold most
    users; where they never do nothing changes.
    """
    low, high, centre, spread = (each.clone() for each in (*ends, *known))
    steps = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64, device=x.device)
    edges = torch.cat([low[:, None] + (high - low)[:, None] * steps[:-1], high[:, None]], 1)
    counts, deviation = _histogram(x, edges, rho, draws)
    for i in range(len(low)):
        for merged in (1, 2, 4, 8):
            cells = counts[i].view(-1, merged).sum(1)
            limit = deviation * math.sqrt(2 * merged * math.log(len(low) * len(cells) / SURE))
            above = (cells > limit).nonzero()[:, 0]
            if len(above) and float(cells[above].sum()) >= HELD * len(x):
                starts, stops = edges[i, merged * above], edges[i, merged * (above + 1)]
                share, middles = cells[above] / cells[above].sum(), (starts + stops) / 2
                centre[i] = share @ middles
                square = share @ (middles - centre[i]).square() + (stops[0] - starts[0]).square() / 12
                spread[i] = square.sqrt()
                a, b = starts[0], stops[-1]
                low[i], high[i] = torch.maximum(low[i], 2 * a - b), torch.minimum(high[i], 2 * b - a)
                break
    return (low, high), (centre, spread)


def _radius(
    x: Tensor, centre: Tensor, spread: Tensor, furthest: Tensor, rho: float, left: float, draws: Draws
) -> float:
    """Of the ellipsoid with axes radius spread^{1/2} for a mean under ``left``, by one more histogram, of distances.

    Noise of such a mean has (2 radius)^2 sum(spread)/(2 left n^2). A user beyond moves it by (distance - radius)/n in
    these coordinates, by (sum(spread^2)/sum(spread))^{1/2} times that in the data's: users beyond add up as their
    coherence says, and else as steps of a random walk.
    """
    n, total = len(x), float(spread.sum())
    if total == 0:
        return 0.0
    axes = spread.clamp_min(1e-300).sqrt()
    usual = math.sqrt(total)  # the distance of a user who is a deviation off in each coordinate
    count = 2 + math.ceil(math.log(max(2.0, float((furthest / axes).norm()) / usual / NEAREST)) / math.log(RATIO))
    growing = NEAREST * usual * RATIO ** torch.arange(count, dtype=torch.float64, device=x.device)
    edges = torch.cat([growing.new_zeros(1), growing])
    counts, sums, deviation = _rings((x - centre) / axes, edges, rho, draws)
    kept = _standing(counts[None], deviation)[0]
    counts[int(kept.cumsum(0).argmax()) + 1 + BEYOND :] = 0.0  # a few users far off, whom no cell shows, count too
    finer = torch.arange(FINER * (count - 1) + 1, dtype=torch.float64, device=x.device)
    radii = edges[1] * RATIO ** (finer / FINER)
    low, high = torch.maximum(edges[:-1], radii[:, None]), torch.maximum(edges[1:], radii[:, None])
    width, below, above = edges.diff(), low - radii[:, None], high - radii[:, None]  # users lie evenly in a cell
    along = ((above.square() - below.square()) / (2 * width)) @ (_coherence(counts, sums, deviation) * counts)
    astray = ((above**3 - below**3) / (3 * width)) @ counts
    bias = (along.clamp_min(0).square() + astray.clamp_min(0)) / n**2
    loss = 2 * radii.square() * total / (left * n**2) + float(spread.square().sum()) / total * bias
    return float(radii[int(loss.argmin())])


def _rings(offsets: Tensor, edges: Tensor, rho: float, draws: Draws) -> tuple[Tensor, Tensor, float]:
    """Users at each distance, and the sum of their directions, under rho-zCDP: (cells,), (cells, d), the deviation.

    A user adds (1, u) to one cell, ||u|| <= 1, u in whole steps: who moves changes it by 2 at most, be it from cell to
    cell or to the other side of one. offsets: (n, d).
    """
    cells, d = len(edges) - 1, offsets.shape[1]
    deviation = 2 / math.sqrt(2 * rho)
    size = math.ceil(math.log2(deviation))
    step = 2.0 ** max(min(-FINE, size - 8), size - MOST)
    length = offsets.norm(dim=1).clamp_max(float(edges[-1]))
    where = (torch.searchsorted(edges, length) - 1).clamp_(0, cells - 1)
    largest = offsets.abs().amax(1, keepdim=True).clamp_min(1e-300)
    scaled = (offsets / largest).nan_to_num(0.0)  # no square underflows
    direction = scaled / scaled.norm(dim=1, keepdim=True).clamp_min(1.0) * (1 - 1e-9)
    each = torch.cat([torch.ones_like(direction[:, :1]), direction], 1) / step
    total = torch.zeros(cells, d + 1, dtype=torch.int64, device=offsets.device)
    total.index_add_(0, where, each.trunc().to(torch.int64))  # towards 0: no norm grows
    found = RoundedNormal(deviation, step).added(total.double() * step, draws)
    return found[:, 0], found[:, 1:], deviation


def _coherence(counts: Tensor, sums: Tensor, deviation: float) -> Tensor:
    """||mean direction|| of the users of each cell, (cells,): with the fewest cells inside it that show it; else 1."""
    found, shown = torch.ones_like(counts), torch.zeros_like(counts, dtype=torch.bool)
    whole = [torch.cat([each.new_zeros(WINDOW, *each.shape[1:]), each.cumsum(0)]) for each in (counts, sums)]
    for width in range(1, WINDOW + 1):
        users, total = (each[WINDOW:] - each[WINDOW - width : len(each) - width] for each in whole)
        noise = deviation * math.sqrt(width * sums.shape[1])
        clear = ~shown & (users >= CLEAR * noise)
        length = (total.square().sum(1) - noise**2).clamp_min(0).sqrt()
        found, shown = torch.where(clear, (length / users).clamp_max(1), found), shown | clear
    return found


def _inside(x: Tensor, domain: Ellipsoid) -> Tensor:
    """x, moved towards the centre until it is in the ellipsoid, whose axes are the coordinates'."""
    off = x - domain.centre
    length = (off / domain.root.diagonal().clamp_min(1e-300)).norm(dim=1, keepdim=True)
    return domain.centre + off / length.clamp_min(1.0)


def _standing(counts: Tensor, deviation: float) -> Tensor:
    """1 for cells, from the middle outwards, that stand out of the noise: in a row by a little, or alone by far."""
    alone = counts > deviation * math.sqrt(2 * math.log(max(2, counts.numel()) / SURE))
    return (alone | (counts > deviation).cumprod(1).bool()).to(counts)
