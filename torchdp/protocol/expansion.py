"""The second-order expansion of answers about their estimates: variances, joint covariances, intervals.

Notation: s is the truth, z = s + e the estimate, e a normal error of mean 0 and covariance N; near z
the answers are g_a(z + e) = g_a(z) + slope_a . e + e^T bend_a e. J_a is bend_a, T_ab = tr(J_a N J_b N).

**A square.** For g_a(s) = s^T J_a s the estimate z^T J_a z - tr(J_a N) has the error
2 (J_a s) . e + e^T J_a e - tr(J_a N). Odd moments of e are 0 and Cov(e^T A e, e^T B e) = 2 tr(A N B N), so

    Cov_ab = 4 s^T J_a N J_b s + 2 T_ab.

The analyst knows slope_a = 2 J_a z = 2 J_a s + 2 J_a e, not 2 J_a s, and on average this adds noise:

    E slope_a^T N slope_b = 4 s^T J_a N J_b s + 4 E e^T J_a N J_b e = 4 s^T J_a N J_b s + 4 T_ab.

So slope N slope^T - 4 T + 2 T has the expectation Cov, exactly, whatever N's size.

**A product of two copies.** z1 and z2 are independent with covariance 2 N, and their mean z has covariance N.
z1^T J_a z2 - s^T J_a s = J_a s . (e1 + e2) + e1^T J_a e2 has the covariance
4 s^T J_a N J_b s + tr(J_a 2N J_b 2N) = 4 s^T J_a N J_b s + 4 T_ab, again exactly; slopes are those at z, so that
slope N slope^T - 4 T + 4 T is unbiased.

**A smooth function.** Let N be of order 1/n, D the third derivatives, and c_ab the sum of
slope_ai N_ij D_bjkl N_kl over i, j, k, l. Up to terms of order n^-3, Cov(g_a(z), g_b(z)) is
slope_a^T N slope_b + 2 T_ab + (c_ab + c_ba)/2 with the slopes at s. The slope at z is that at s, plus 2 J e, plus half
of D e e, so that E slope_a^T N slope_b is the same with 4 T_ab in the place of 2 T_ab: the third derivatives cancel,
and what is told of g(z) holds to second order. The estimate g(z) - tr(J(z) N), whose correction moves with z, has a
covariance without (c_ab + c_ba)/2; what is told of it is off by this, 1/n relative to the whole.

Where e is not normal, third and fourth cumulants come in; of a mean of n reports they are 1/n relative to the whole.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.protocol.interval import Error, ErrorParts
from torchdp.protocol.quadratic import QuadraticError, coordinates

# Relative to the largest entry: what rounding makes of a symmetric matrix.
EVEN = 1e-9
SQUARE, PRODUCT = 2.0, 4.0


@dataclass(frozen=True, eq=False)
class Expansion(Brief):
    """g(z + e) = g(z) + slope . e + e^T bend e, for an error e of covariance ``noise``.

    The number of dimensions says what is diagonal, so leading dimensions are never left out; each may be 1.

    Args:
        slope: the gradient at the estimate z, (*b, a, r), of a answers in r coordinates.
        bend: half the Hessian, (*b, a, r, r), symmetric; (*b, a, r): of diagonal ones the diagonals; None: g is
            linear.
        noise: covariance of z, (*b, r, r); (*b, r): of independent coordinates the variances.
        squares: how often ``curved`` counts: 2 of a square, 4 of a product of two independent copies, whose mean z
            has this noise.

    Raises TypeError, ValueError.

    Guarantees:
        For a quadratic form and a known normal noise, linear - 4 curved + squares curved is unbiased for the
        covariance, at any size of the noise. What is cut at 0 adds to it.
    """

    slope: Tensor
    bend: Tensor | None
    noise: Tensor
    squares: float = SQUARE

    def __post_init__(self) -> None:
        checks.keep(self, squares=checks.non_negative)
        slope = checks.dense("slope", self.slope)
        checks.shaped("slope", slope, ..., "answers", "coordinates")
        batch = slope.shape[:-2]
        a, r = slope.shape[-2:]
        noise = checks.dense("noise", self.noise)
        _fits("noise", noise, (*batch, r), (*batch, r, r))
        if self.bend is None:
            return
        bend = checks.dense("bend", self.bend)
        _fits("bend", bend, (*batch, a, r), (*batch, a, r, r))
        if self._full_bend:
            uneven = (bend - bend.mT).abs().amax() > EVEN * bend.abs().amax()
            if bool(uneven):
                raise ValueError("bend must be symmetric in its last two dimensions; take (bend + bend.mT) / 2")

    @property
    def linear(self) -> Tensor:
        """slope N slope^T, the covariance of slope . e, (*b, a, a)."""
        return self._spread @ self.slope.mT

    @property
    def curved(self) -> Tensor:
        """T, tr(bend_a N bend_b N), (*b, a, a): half the covariance of the quadratic parts."""
        if self.bend is None:
            return torch.zeros_like(self.linear)
        if self._full_bend:
            moved = self._moved(self.bend)
            return moved.flatten(-2) @ moved.mT.flatten(-2).mT
        return self._weighed(self.bend) @ self.bend.mT

    @property
    def variance(self) -> Tensor:
        """[linear - 4 curved]_+ + squares curved of each answer by itself, (*b, a)."""
        linear = (self._spread * self.slope).sum(-1)
        if self.bend is None:
            return linear
        if self._full_bend:
            moved = self._moved(self.bend)
            curved = (moved * moved.mT).sum((-2, -1))
        else:
            curved = (self._weighed(self.bend) * self.bend).sum(-1)
        # The slope is noisy itself, see the module: its square is too large by four times ``curved``.
        return (linear - 4 * curved).clamp_min(0) + self.squares * curved

    @property
    def covariance(self) -> Tensor:
        """[linear - 4 curved]_+ + squares curved, (*b, a, a), eigenvalues cut at 0: positive semidefinite.

        Its diagonal is at least ``variance``, and the same where no eigenvalue is cut. NaN where a number is not
        finite.
        """
        linear = self.linear
        if self.bend is None:
            return linear
        curved = self.curved
        straight = linear - 4 * curved
        finite = straight.isfinite().all(-1).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(straight.where(finite, 0.0))
        positive = (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT
        return positive.where(finite, torch.nan) + self.squares * curved

    def error(self, offset: Tensor | None = None) -> Error:
        """The error of each answer, (*b, a), as intervals need it.

        Args:
            offset: z^T bend z - tr(bend N) less the estimate, (*b, a), of a quadratic form; None: 0. A product z1^T
                bend z2 of copies with mean z needs it, since it is not a function of z.

        Raises ValueError.
        """
        if self.bend is None:
            return ErrorParts.normal(self.variance)
        if self.squares not in (SQUARE, PRODUCT):
            raise ValueError(f"squares must be 2 or 4 for an error's distribution, not {self.squares!r}")
        if self.squares == PRODUCT and offset is None:
            raise ValueError("offset must be given for a product of two copies: it depends on their difference")
        curved, linear = self._coordinates(self.bend)
        zero = torch.zeros_like(linear[..., 0])
        # z1^T J z2 = z^T J z - d^T J d, d half the difference, of mean 0 and of the same noise.
        central = -curved if self.squares == PRODUCT else curved[..., :0]
        return QuadraticError(curved, linear, central, zero if offset is None else zero + offset, zero)

    @property
    def _full_noise(self) -> bool:
        return self.noise.ndim == self.slope.ndim

    @property
    def _full_bend(self) -> bool:
        return self.bend is not None and self.bend.ndim > self.slope.ndim

    @property
    def _spread(self) -> Tensor:
        """slope N, (*b, a, r)."""
        if self._full_noise:
            return self.slope @ self.noise
        return self.slope * self.noise[..., None, :]

    def _moved(self, bend: Tensor) -> Tensor:
        """bend N of full bends, (*b, a, r, r)."""
        if self._full_noise:
            return bend @ self.noise[..., None, :, :]
        return bend * self.noise[..., None, None, :]

    def _weighed(self, weights: Tensor) -> Tensor:
        """M of diagonal bends, (*b, a, r), with curved = M weights^T: tr(diag(v) N diag(w) N) = v^T (N * N) w."""
        if self._full_noise:
            return weights @ self.noise.square()
        return weights * self.noise.square()[..., None, :]

    def _coordinates(self, bend: Tensor) -> tuple[Tensor, Tensor]:
        """(curved, linear) of each answer's form, (*b, a, r); slope is 2 J z."""
        half = self.slope / 2
        if not self._full_bend and not self._full_noise:
            variances = self.noise[..., None, :]
            curved = (variances * bend).expand_as(half)
            return curved, variances.sqrt() * half
        J = bend if self._full_bend else bend.diag_embed()
        N = self.noise if self._full_noise else self.noise.diag_embed()
        each = (*half.shape, half.shape[-1])
        return coordinates(half, J.expand(each), N[..., None, :, :].expand(each))


def _fits(name: str, value: Tensor, *shapes: tuple[int, ...]) -> None:
    """Refuses a tensor of none of these shapes, of which leading dimensions may be 1. Raises ValueError."""
    found = tuple(value.shape)
    for shape in shapes:
        leading = len(shapes[0]) - 1
        if len(found) != len(shape) or found[leading:] != shape[leading:]:
            continue
        if all(own in (1, size) for own, size in zip(found[:leading], shape[:leading], strict=True)):
            return
    wanted = " or ".join(map(str, shapes))
    raise ValueError(f"{name} must have shape {wanted}, as slope has it, not {found}")
