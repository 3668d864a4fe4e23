"""A mean whose box shrinks to where the users are, in rounds of concentrated differential privacy."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.balls import Box
from torchdp.draws import Draws
from torchdp.mean.central import GaussianMean
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee
from torchdp.protocol import Estimate

CELLS, LOOKS = 64, 8  # of each coordinate's histogram, and how many are asked for at most
LOOK, LAST = 1 / 40, 0.3  # of rho: each of them, and the histogram that the last box is chosen by
HELD = 0.75  # of the users, whom the cells that stand out must hold
SURE = 0.05  # chance that noise alone stands out
GAINED = 4.0  # times narrower: else it was the last look
INNER, RATIO = 12, 1.5  # cells of the last histogram where users are; further out each is so many times wider


@dataclass(frozen=True, eq=False)
class AdaptiveEstimate(Estimate):
    """Of a mean in a ``box`` that was found privately, under a ``guarantee`` for everything that was asked.

    standard_error is of the noise alone: users outside the box were moved to its nearest point, and of the bias that
    this leaves nothing is promised.
    """

    box: Box = field(kw_only=True)
    guarantee: Guarantee = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class AdaptiveMean:
    """Noisy histograms of every coordinate narrow the box, then a Gaussian mean is released in the last one.

    At most eight histograms of 64 cells a coordinate find where most users are, each up to 21 times finer than the one
    before, until little is gained. One more, of cells that grow outwards, says what clipping costs: each coordinate's
    ends make noise^2 + (estimated bias)^2 + (what that may be off by)^2 least. What is left of rho, half of it or
    more, goes to :class:`GaussianMean` ``tuned`` to this box. A histogram of d coordinates has l_2 sensitivity
    (2 d)^{1/2} however many its cells are; it finds users where they are many against (d/rho)^{1/2}.

    box: where users' points may lie at all; points outside are refused. rho > 0; delta in (0, 1): where epsilon is
    stated. n is public. Raises TypeError, ValueError.

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
        object.__setattr__(self, "rho", checks.positive("rho", self.rho))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``."""
        multiplier = 1 / math.sqrt(2 * self.rho)
        return gaussian_guarantee(multiplier, self.delta, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)

    def estimate(self, x: Tensor, *, noise: Noise | None = None) -> AdaptiveEstimate:
        """x: (n, d) in the box, n >= 1; noise: None is the system's cipher. Raises TypeError, ValueError."""
        x = checks.real("x", x).detach()
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(f"x must have shape (n, d) with n >= 1, not {tuple(x.shape)}")
        x, draws = self.box.admit(x.double()), source(noise, x.device)
        first, left = (self.box.low.to(x), self.box.high.to(x)), self.rho
        low, high = first
        for _ in range(LOOKS):
            before = high - low
            low, high = _narrowed(x, low, high, LOOK * self.rho, draws)
            left -= LOOK * self.rho
            if bool((high - low > before / GAINED).all()):
                break
        left -= LAST * self.rho
        box = Box(*_clipping(x, (low, high), first, LAST * self.rho, left, draws))
        last = GaussianMean.tuned(box, rho=left, delta=self.delta)
        found = last.analyse(last.hear(x.clamp(box.low.to(x), box.high.to(x)), draws))
        return AdaptiveEstimate(found.value, found.standard_error, found.n, box=box, guarantee=self.guarantee)


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
    return counts + deviation * draws.normal((d, cells)), deviation


def _narrowed(x: Tensor, low: Tensor, high: Tensor, rho: float, draws: Draws) -> tuple[Tensor, Tensor]:
    """Each coordinate's interval, three times as wide as that of the cells that stand out, inside the old one.

    Cells are merged by twos until those above the noise hold most users; where they never do nothing changes.
    """
    steps = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64, device=x.device)
    edges = torch.cat([low[:, None] + (high - low)[:, None] * steps[:-1], high[:, None]], 1)
    counts, deviation = _histogram(x, edges, rho, draws)
    low, high = low.clone(), high.clone()
    for i in range(len(low)):
        for merged in (1, 2, 4, 8):
            cells = counts[i].view(-1, merged).sum(1)
            limit = deviation * math.sqrt(2 * merged * math.log(len(low) * len(cells) / SURE))
            above = (cells > limit).nonzero()[:, 0]
            if len(above) and float(cells[above].sum()) >= HELD * len(x):
                a, b = edges[i, merged * above[0]], edges[i, merged * (above[-1] + 1)]
                low[i], high[i] = torch.maximum(low[i], 2 * a - b), torch.minimum(high[i], 2 * b - a)
                break
    return low, high


def _clipping(
    x: Tensor, inner: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor], rho: float, left: float, draws: Draws
) -> tuple[Tensor, Tensor]:
    """Ends of each coordinate, for a mean under ``left``, by one more histogram of cells from inner to outer ends."""
    (n, d), (low, high) = x.shape, inner
    edges, cells_below = _growing(inner, outer)
    counts, deviation = _histogram(x, edges, rho, draws)
    below, between, above = counts.tensor_split([cells_below, cells_below + INNER], 1)
    known = [_standing(below.flip(1), deviation).flip(1), torch.ones_like(between), _standing(above, deviation)]
    kept = torch.cat(known, 1)
    out = (edges[:, 1:] + edges[:, :-1])[:, None] / 2 - edges[
        :, :, None
    ]  # of a cell from an edge, (d, edges, cells)
    beyond = [((kept * counts)[:, None] * part).sum(2) / n for part in (out.clamp_min(0), out.clamp_max(0))]
    unsure = [
        (kept[:, None] * part.square()).sum(2) * (deviation / n) ** 2
        for part in (out.clamp_min(0), out.clamp_max(0))
    ]
    low, high = low.clone(), high.clone()
    for _ in range(3):  # the noise of a box is (sum of widths)^2/(2 left n^2): what one more unit of width costs
        price = float((high - low).sum()) / (left * n**2)
        for i in range(d):
            width = edges[i] - edges[i][:, None]  # (low end, high end)
            bias = beyond[0][i] + beyond[1][i][:, None]
            loss = price * width + bias.square() + unsure[0][i] + unsure[1][i][:, None]
            a, b = divmod(int(torch.where(width > 0, loss, math.inf).argmin()), len(edges[i]))
            low[i], high[i] = edges[i, a], edges[i, b]
    return torch.minimum(low, high), high


def _growing(inner: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    """Edges (d, cells + 1): equal cells inside, growing ones up to the outer ends; how many lie below."""
    sides = (inner[1] - inner[0])[:, None]
    far = [
        float(((end - here).abs() / sides[:, 0].clamp_min(1e-300)).max())
        for end, here in zip(outer, inner, strict=True)
    ]
    grown = [
        sides * (RATIO ** torch.arange(1, 2 + math.ceil(math.log1p(each) / math.log(RATIO))).to(sides) - 1)
        for each in far
    ]
    steps = torch.linspace(0, 1, INNER + 1, dtype=torch.float64, device=sides.device)
    middle = inner[0][:, None] + sides * steps
    edges = torch.cat([(inner[0][:, None] - grown[0]).flip(1), middle, inner[1][:, None] + grown[1]], 1)
    return edges.clamp(outer[0][:, None], outer[1][:, None]), grown[0].shape[1]


def _standing(counts: Tensor, deviation: float) -> Tensor:
    """1 for cells, from the middle outwards, that stand out of the noise: in a row by a little, or alone by far."""
    alone = counts > deviation * math.sqrt(2 * math.log(max(2, counts.numel()) / SURE))
    return (alone | (counts > deviation).cumprod(1).bool()).to(counts)
