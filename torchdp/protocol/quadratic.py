"""The error of a quadratic form of a nearly normal vector, and the intervals that invert its distribution."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.protocol.interval import Error, ErrorParts
from torchdp.protocol.tails import LARGEST, NEAR, TINY, normal_deviate
from torchdp.root import between

FARTHEST = 16.0  # of the logarithm of a step's odds: 1e7
NOISELESS = 1e-9  # of the largest coordinate: what rounding leaves of a direction without noise


@dataclass(frozen=True, eq=False)
class QuadraticError(Error):
    """Of an estimate T = z^T J z - tr(J N) of s^T J s, z normal with mean s and covariance N.

    T - truth = sum_i 2 g_i e_i + w_i (e_i^2 - 1), e standard normal: with N = L L^T and L^T J L = V diag(w) V^T, g is
    V^T L^T J s, of which V^T L^T J z is known. Linear errors have w = 0. Intervals hold the truths u of one path that
    neither tail at T rejects: g(u) is that of Lagrange's points, nearest to z in the metric N^-1 among those whose form
    is u, less what noise adds to its length. Along the path T increases stochastically, so each end is one root.

    The level is exact for one coordinate and in the limit of a linear error; between these no exact interval is known,
    and the coverage is measured: see :class:`torchdp.pairwise.protocol.PairwiseProtocol`; for normal z a search found
    0.930 at worst (experiments/pairwise/random_kernels.py). The tails are approximate, a 2.5 % one to .003.

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
        linear = variance.sqrt() * weights * point
        central, zero = curved[..., :0] if offset is None else -curved, torch.zeros_like(linear[..., 0])
        return QuadraticError(curved, linear, central, zero if offset is None else offset, zero + slack)

    @property
    def total(self) -> Tensor:
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
        path, u0 = _Path.of(self), value + self.offset

        def needed(z: Tensor) -> Tensor:
            """By the ends' own width at z."""
            wide = bias + z * self.slack
            u = torch.stack([-wide - u0, wide - u0])
            deviate, near = path.deviate(path.place(u)), 10 * NEAR * (path.scale + u.abs())
            for sign in (1, -1):  # every interval reaches to the end that the estimate lies beyond
                past = sign * (path.truth(torch.full_like(u, -sign * FARTHEST)) - u)
                kept = torch.where(past > -near, (sign * deviate).clamp_min(0), sign * deviate)
                deviate = sign * torch.where(past > near, 2 * LARGEST, kept)
            first, last = deviate  # falling
            return torch.where(last > 0, last, torch.where(first < 0, -first, 0.0)).clamp_max(2 * LARGEST)

        z = needed(torch.zeros_like(u0)).clamp_max(LARGEST)  # the answer but for slack
        if bool(self.slack.any()):
            z = between(lambda z: needed(z) - z, torch.zeros_like(u0), LARGEST)
        return torch.where(z > LARGEST * (1 - NEAR), torch.inf, z).where(~u0.isnan(), torch.nan)

    def scaled(self, factor: float | Tensor) -> "QuadraticError":
        each = torch.as_tensor(factor, dtype=self.offset.dtype, device=self.offset.device)
        curved, linear, central = (each[..., None] * side for side in (self.curved, self.linear, self.central))
        return QuadraticError(curved, linear, central, each * self.offset, each.abs() * self.slack)

    def joined(self, other: Error) -> Error:
        """Normal parts become linear coordinates; beside an error that follows the value (a ratio's) this is normal."""
        if isinstance(other, ErrorParts):
            if bool(other.curvature.any() | other.slope.any()):
                return other.joined(ErrorParts.normal(self.total))
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
        moved = squares * (eta * (2 - eta * w)) / d.square() + (1 - self.threshold) * w
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
        return between(lambda y: self.deviate(y) - goal, torch.full_like(goal, -FARTHEST), FARTHEST)

    def place(self, u: Tensor) -> Tensor:
        """Where the truth lies u above the centre."""
        goal = torch.asinh(u / self.scale)
        return between(lambda y: goal - torch.asinh(self.at(y)[0]), torch.full_like(u, -FARTHEST), FARTHEST)


def coordinates(slope: Tensor, J: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(curved, linear) of z^T J z for points z of this covariance, (*batch, r, r); slope: J z, (*batch, r).

    Of another function: half its second derivatives, (*batch, r, r), and half its first. NaN where one of them is.
    """
    sound = slope.isfinite().all(-1) & (J + noise).isfinite().all(-1).all(-1)
    known = sound[..., None]
    slope, J, noise = slope.where(known, 0.0), J.where(known[..., None], 0.0), noise.where(known[..., None], 0.0)
    values, vectors = torch.linalg.eigh(noise)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    curved, turn = torch.linalg.eigh(root.mT @ J @ root)
    linear = (turn.mT @ (root.mT @ slope[..., None]))[..., 0]
    least = NOISELESS * torch.maximum(curved.abs(), linear.abs()).amax(-1, keepdim=True)
    curved, linear = (torch.where(each.abs() < least, 0.0, each) for each in (curved, linear))
    return curved.where(known, torch.nan), linear.where(known, torch.nan)


def _threshold(squares: Tensor, own: Tensor) -> Tensor:
    """t at which sum_i max(0, squares_i - t own_i) is sum squares less what noise adds off the gradient, (*batch).

    That sum is at least the standard deviation of what noise adds, since less can not be told from it.
    At most 4 (1 - 1/m) + 2 log m, nearly the largest of m squares of noise, m = (sum own)^2/sum own^2 the number of
    coordinates that make it. With more, the noise of one large w would hide coordinates that are far beyond their own.
    """
    size = squares.sum(-1)
    left = size - own.sum(-1) + (own * squares).sum(-1) / size.clamp_min(TINY)
    spread = own.square().sum(-1)
    left = torch.maximum(left, torch.maximum((2 * spread).sqrt(), NEAR * size))
    many = (own.sum(-1).square() / spread.clamp_min(TINY)).clamp_min(1)
    most = (4 * (1 - 1 / many) + 2 * many.log()).expand_as(size)

    def excess(t: Tensor) -> Tensor:
        return (squares - t[..., None] * own).clamp_min(0).sum(-1) - left

    return between(excess, torch.zeros_like(most), most)
