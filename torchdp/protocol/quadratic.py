"""The error of a quadratic form of a nearly normal vector, and the intervals that invert its distribution."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.protocol.interval import Error, ErrorParts

FARTHEST = 16.0  # of the logarithm of a step's odds: 1e7
FEW = 100  # steps, of the searches for a saddlepoint, an end and a threshold; they stop where nothing moves
NEAR = 1e-7  # relative change at which a search stops
EVEN = 1e-3  # deviates below which the saddlepoint formula is replaced by its limit
NOISELESS = 1e-9  # of the largest coordinate: what rounding leaves of a direction without noise
LARGEST = 40.0  # standard errors: of less than 1e-300
TINY = 1e-300
MANY = 256  # rows, of which those that are done are put aside
ENDLESS = 1e15  # a saddlepoint beyond it is that of a value which cannot be told from the end of the range


@dataclass(frozen=True, eq=False)
class QuadraticError(Error):
    """Of an estimate T = z^T J z - tr(J N) of s^T J s, z normal with mean s and covariance N.

    T - truth = sum_i 2 g_i e_i + w_i (e_i^2 - 1), e standard normal: with N = L L^T and L^T J L = V diag(w) V^T, g is
    V^T L^T J s, of which V^T L^T J z is known. Linear errors have w = 0. Intervals hold the truths u of one path that
    neither tail at T rejects: g(u) is that of Lagrange's points, nearest to z in the metric N^-1 among those whose form
    is u, less what noise adds to its length. Along the path T increases stochastically, so each end is one root.

    The level is exact for one coordinate and in the limit of a linear error; between these no exact interval is known,
    and the coverage is measured: see :class:`torchdp.pairwise.protocol.PairwiseProtocol`. The tails are approximate, a
    2.5 % one to .003.

    curved, linear: w and V^T L^T J z, (*batch, r). central: (*batch, c), w of noise whose g is known to be 0.
    offset: the form of z, less tr(J N), less the estimate, (*batch). slack: the standard deviation of a small normal
    error beside, (*batch): z times it widens both ends, so that a truth at the end of the form's range is not missed.

    Source: Lugannani, Rice (1980), Kuonen (1999) for the tails of quadratic forms; Barndorff-Nielsen (1986) for the
    deviate; the path is that of the profile likelihood.
    """

    curved: Tensor
    linear: Tensor
    central: Tensor
    offset: Tensor
    slack: Tensor

    @staticmethod
    def isotropic(
        point: Tensor,
        weights: Tensor,
        variance: Tensor | float,
        slack: Tensor | float = 0.0,
        offset: Tensor | None = None,
    ) -> "QuadraticError":
        """The same for independent coordinates of these variances; offset: of z1^T J z2, two vectors of mean z."""
        variance = torch.as_tensor(variance, dtype=point.dtype, device=point.device).expand(point.shape)
        curved = variance * weights
        central, zero = curved[..., :0] if offset is None else -curved, torch.zeros_like(point[..., 0])
        linear = variance.sqrt() * weights * point
        return QuadraticError(curved, linear, central, zero if offset is None else offset, zero + slack)

    @property
    def variance(self) -> Tensor:
        """Estimate of the error's variance, (*batch)."""
        squares = (self.linear.square() - self.curved.square()).sum(-1).clamp_min(0)
        both = self.curved.square().sum(-1) + self.central.square().sum(-1)
        return 4 * squares + 2 * both + self.slack.square()

    def margins(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        path, z = _Path.of(self), torch.as_tensor(z, dtype=torch.float64, device=self.linear.device)
        ends = path.truth(path.crossing(torch.stack(torch.broadcast_tensors(-z, z, self.offset)[:2])))
        wide = z * self.slack + NEAR * path.scale  # a truth at the path's end is not missed by rounding
        return wide - ends[1] - self.offset, wide + ends[0] + self.offset

    def gap(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        none = torch.full_like(self.offset, torch.nan)
        return none, none

    def distance(self, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """inf beyond the form's own range."""
        path = _Path.of(self)

        def needed(z: Tensor) -> Tensor:
            """By the ends' own width at z."""
            wide = bias + z * self.slack
            u = torch.stack([-wide, wide]) - value - self.offset
            deviate, near = path.deviate(path.place(u)), 10 * NEAR * (path.scale + u.abs())
            for sign in (1, -1):  # every interval reaches to the end that the estimate lies beyond
                past = sign * (path.truth(torch.full_like(u, -sign * FARTHEST)) - u)
                kept = torch.where(past > -near, (sign * deviate).clamp_min(0), sign * deviate)
                deviate = sign * torch.where(past > near, 2 * LARGEST, kept)
            first, last = deviate  # falling
            return torch.where(last > 0, last, torch.where(first < 0, -first, 0.0)).clamp_max(2 * LARGEST)

        zero = torch.zeros_like(value + self.offset)
        first = needed(zero).clamp_max(LARGEST)  # the answer but for slack
        z = _root(lambda z: needed(z) - z, zero, zero + LARGEST, first) if bool(self.slack.any()) else first
        return torch.where(z > LARGEST * (1 - NEAR), torch.inf, z).where(~value.isnan(), torch.nan)

    def scaled(self, factor: float | Tensor) -> "QuadraticError":
        each = torch.as_tensor(factor, dtype=self.offset.dtype, device=self.offset.device)
        curved, linear, central = (each[..., None] * side for side in (self.curved, self.linear, self.central))
        return QuadraticError(curved, linear, central, each * self.offset, each.abs() * self.slack)

    def joined(self, other: Error) -> Error:
        """Normal parts become linear coordinates; beside an error that follows the value (a ratio's) this is normal."""
        if isinstance(other, ErrorParts):
            if bool(other.curvature.any() | other.slope.any()):
                return other.joined(ErrorParts.normal(self.variance))
            deviation = other.variance.clamp_min(0).sqrt() / 2
            zero, none = torch.zeros_like(deviation), deviation.new_zeros(deviation.shape[:-1])
            other = QuadraticError(zero, deviation, zero[..., :0], none, none)
        if not isinstance(other, QuadraticError):  # it knows how to join this
            return other.joined(self)
        offset = self.offset + other.offset
        curved, linear, central = (
            torch.cat([each.expand(*offset.shape, -1).to(offset) for each in both], -1)
            for both in ((self.curved, other.curved), (self.linear, other.linear), (self.central, other.central))
        )
        return QuadraticError(curved, linear, central, offset, torch.hypot(self.slack, other.slack))


@dataclass(frozen=True, eq=False)
class _Path:
    """Truths less the centre by place y, (*sides, *batch), and the deviate of the estimate seen under them.

    eta runs between the poles 1/w as sinh y does between infinities, and g_i^2 is
    max(0, linear_i^2/(1 - eta w_i)^2 - t w_i^2). All over ``scale``, so that squares stay in range.
    """

    curved: Tensor
    squares: Tensor  # of linear
    central: Tensor
    offset: Tensor  # of the centre from the estimate
    scale: Tensor  # (*batch)
    threshold: Tensor  # (*batch, 1)

    @staticmethod
    def of(error: QuadraticError) -> "_Path":
        scale = torch.cat([error.curved, error.linear, error.central], -1).abs().amax(-1).clamp_min(TINY)
        curved, linear, central = (each / scale[..., None] for each in (error.curved, error.linear, error.central))
        squares = linear.square()
        threshold = _threshold(squares, curved.square())[..., None]
        return _Path(curved, squares, central, error.offset / scale, scale, threshold)

    def at(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(truth over ``scale``, squares of g)."""
        w, squares = self.curved, self.squares
        v = torch.sinh(y) / (squares.sum(-1) + w.square().sum(-1) / 2).clamp_min(TINY).sqrt()
        pole = torch.where(v >= 0, w.amax(-1).clamp_min(0), w.amin(-1).clamp_max(0))
        eta = (v / (1 + v * pole))[..., None]
        d = 1 - eta * w
        left = squares / d.square() - self.threshold * w.square()
        moved = squares * (2 * eta - eta.square() * w) / d.square() + (1 - self.threshold) * w
        least = w - squares / torch.where(w == 0, 1.0, w)
        return torch.where((left > 0) | (w == 0), moved, least).sum(-1), left.clamp_min(0)

    def truth(self, y: Tensor) -> Tensor:
        return self.scale * self.at(y)[0]

    def deviate(self, y: Tensor) -> Tensor:
        """d with P[an estimate above the one seen] = 1 - Phi(d): it falls along the path."""
        u, squares = self.at(y)
        curved = torch.cat([self.curved.expand_as(squares), self.central.expand(*u.shape, -1)], -1)
        squares = torch.nn.functional.pad(squares, (0, self.central.shape[-1]))
        return normal_deviate(-u - self.offset, curved, squares)

    def crossing(self, goal: Tensor) -> Tensor:
        """Where the deviate is ``goal``, or the end of the path that is nearest to it."""
        far = torch.full_like(goal, FARTHEST)
        return _root(lambda y: self.deviate(y) - goal, -far, far)

    def place(self, u: Tensor) -> Tensor:
        """Where the truth lies u above the centre."""
        far = torch.full_like(u, FARTHEST)
        return _root(lambda y: torch.asinh(u / self.scale) - torch.asinh(self.at(y)[0]), -far, far)


def coordinates(slope: Tensor, J: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(curved, linear) of z^T J z for points z of this covariance, (*batch, r, r); slope: J z, (*batch, r).

    Of another function: half its second derivatives, (*batch, r, r), and half its first. NaN where one of them is.
    """
    sound = slope.isfinite().all(-1) & (J + noise).isfinite().all(-1).all(-1)
    slope, J, noise = (
        x.where(sound.view(*sound.shape, *(1,) * (x.ndim - sound.ndim)), 0.0) for x in (slope, J, noise)
    )
    values, vectors = torch.linalg.eigh(noise)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    curved, turn = torch.linalg.eigh(root.mT @ J @ root)
    linear = (turn.mT @ (root.mT @ slope[..., None]))[..., 0]
    least = NOISELESS * torch.maximum(curved.abs(), linear.abs()).amax(-1, keepdim=True)
    curved, linear = (torch.where(each.abs() < least, 0.0, each) for each in (curved, linear))
    return curved.where(sound[..., None], torch.nan), linear.where(sound[..., None], torch.nan)


def normal_deviate(x: Tensor, curved: Tensor, squares: Tensor) -> Tensor:
    """d with P[sum_i w_i (e_i^2 - 1) + 2 g_i e_i > x] = 1 - Phi(d) nearly, (*batch); curved: w, squares: g^2.

    With K(s) = sum_i -log(1 - 2 w_i s)/2 - w_i s + 2 g_i^2 s^2/(1 - 2 w_i s) and K'(s) = x: d = r + log(v/r)/r,
    r = sign(s) sqrt(2 (s x - K(s))), v = s sqrt(K''(s)).
    """
    size = (2 * curved.square() + 4 * squares).sum(-1).sqrt().clamp_min(TINY)
    w, g, x = curved / size[..., None], squares / size[..., None].square(), (x / size).clamp(-LARGEST, LARGEST)
    up, down = w.amax(-1).clamp_min(0), (-w.amin(-1)).clamp_min(0)
    p = _saddlepoint(*(each.reshape(-1, *each.shape[x.ndim :]) for each in (w, g, x, up, down))).view_as(x)
    s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
    d = 1 - 2 * w * s[..., None]
    K = (-torch.log(d) / 2 - w * s[..., None] + 2 * g * s[..., None].square() / d).sum(-1)
    r = s.sign() * (2 * (s * x - K)).clamp_min(0).sqrt()
    v = s * (2 * (w / d).square() + 4 * g / d**3).sum(-1).sqrt()
    even = (r.abs() < EVEN) | (v.abs() < EVEN)
    third = (8 * w**3 + 24 * w * g).sum(-1)
    far, ratio = torch.where(even, 1.0, r), torch.where(even, 1.0, v / r)
    return torch.where(even, x + third / 6, far + ratio.log() / far)


def _saddlepoint(w: Tensor, g: Tensor, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """p at which K'(s) = x, (rows); ENDLESS where there is none, since x is beyond all values.

    s runs from pole to pole, 1/(2 w), as p does over the line: Newton's steps in p never leave the range.
    """
    low, high = (torch.where(x.sign() == side, torch.zeros_like(x), -side * torch.inf) for side in (1, -1))
    p, found = x, x.clone()
    rows = torch.arange(len(x), device=x.device)
    for _ in range(FEW):
        s = p / (1 + 2 * torch.where(p > 0, up * p, -down * p))
        d = 1 - 2 * w * s[..., None]
        slope = (
            2 * w.square() * s[..., None] / d + 4 * g * s[..., None] * (1 - w * s[..., None]) / d.square()
        ).sum(-1)
        bend = (2 * (w / d).square() + 4 * g / d**3).sum(-1)
        low, high = torch.where(slope > x, low, p), torch.where(slope > x, p, high)
        step = p - (slope - x) / (bend * (s / torch.where(p == 0, 1.0, p)).where(p != 0, 1.0).square()).clamp_min(
            TINY
        )
        half = torch.where(high.isinf(), 8 * low + 1, torch.where(low.isinf(), 8 * high - 1, (low + high) / 2))
        inside = (step >= low) & (step <= high) & (step.abs() <= 8 * p.abs() + 1)
        new = torch.where(inside, step, half)
        going = ((new - p).abs() > NEAR * p.abs()) & (new.abs() < ENDLESS)
        p, left = new, int(going.sum())
        if len(p) > MANY and 2 * left < len(p):  # the others are done with
            found[rows] = p
            w, g, x, up, down, low, high, p, rows = (
                each[going] for each in (w, g, x, up, down, low, high, p, rows)
            )
        if not left:
            break
    found[rows] = p
    return found


def _threshold(squares: Tensor, own: Tensor) -> Tensor:
    """t at which sum_i max(0, squares_i - t own_i) is sum squares less what noise adds off the gradient, (*batch).

    At most 4 + 2 log r, more than the largest of r squares of noise.
    """
    size = squares.sum(-1)
    left = size - own.sum(-1) + (own * squares).sum(-1) / size.clamp_min(TINY)
    left = torch.maximum(left, NEAR * size)
    most = torch.full_like(size, 4 + 2 * math.log(max(1, own.shape[-1])))
    return _root(
        lambda t: (squares - t[..., None] * own).clamp_min(0).sum(-1) - left, torch.zeros_like(size), most
    )


def _root(f: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, first: Tensor | None = None) -> Tensor:
    """Where a falling f is 0 between a and b, or the end nearest to that; first: a guess.

    Source: Dowell, Jarratt (1972).
    """
    left, right, y = f(a), f(b), (a + b) / 2 if first is None else first
    inside, end = (left > 0) & (right < 0), torch.where(left <= 0, a, b)
    for step in range(FEW):
        value = f(y)
        above = value > 0
        left, right = (
            torch.where(above, value, left * right / (right + value)),
            torch.where(above, right * left / (left + value), value),
        )
        a, b = torch.where(above, y, a), torch.where(above, b, y)
        new = b - right * (b - a) / (right - left)
        new = torch.where((new > a) & (new < b) & (step % 4 != 3), new, (a + b) / 2)
        if not bool((inside & (value.abs() > NEAR) & (b - a > NEAR**2)).any()):
            break
        y = torch.where(value.abs() > NEAR, new, y)
    return torch.where(inside, y, end)
