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
from functools import cached_property

import torch
from torch import Tensor

from torchdp.brief import Brief
from torchdp.protocol.quadratic import QuadraticError, coordinates


@dataclass(frozen=True, eq=False)
class Expansion(Brief):
    """g(z + e) = g(z) + slope . e + e^T bend e, for an error e of covariance ``noise``. Unchecked.

    Args:
        slope: the gradient at the estimate z, (*b, a, r), of a answers in r coordinates.
        bend: half the Hessian, (*b, a, r, r), symmetric.
        noise: covariance of z, (*b, r, r).
        squares: how often ``curved`` counts: 2 of a square, 4 of a product of two independent copies, whose mean z
            has this noise.

    Guarantees:
        For a quadratic form and a known normal noise, linear - 4 curved + squares curved is unbiased for the
        covariance, at any size of the noise. What is cut at 0 adds to it.
    """

    slope: Tensor
    bend: Tensor
    noise: Tensor
    squares: float = 2.0

    @property
    def linear(self) -> Tensor:
        """slope N slope^T, the covariance of slope . e, (*b, a, a)."""
        return self.slope @ self.noise @ self.slope.mT

    @cached_property
    def moved(self) -> Tensor:
        """bend N, (*b, a, r, r): its trace is what e^T bend e adds to an answer on average."""
        return self.bend @ self.noise[..., None, :, :]

    @property
    def curved(self) -> Tensor:
        """T, tr(bend_a N bend_b N), (*b, a, a): half the covariance of the quadratic parts."""
        return self.moved.flatten(-2) @ self.moved.mT.flatten(-2).mT

    @property
    def variance(self) -> Tensor:
        """[linear - 4 curved]_+ + squares curved of each answer by itself, (*b, a)."""
        linear = (self.slope @ self.noise * self.slope).sum(-1)
        curved = (self.moved * self.moved.mT).sum((-2, -1))
        # The slope is noisy itself, see the module: its square is too large by four times ``curved``.
        return (linear - 4 * curved).clamp_min(0) + self.squares * curved

    @property
    def covariance(self) -> Tensor:
        """[linear - 4 curved]_+ + squares curved, (*b, a, a), eigenvalues cut at 0: positive semidefinite.

        Its diagonal is at least ``variance``, and the same where no eigenvalue is cut. NaN where a number is not
        finite.
        """
        curved = self.curved
        straight = self.linear - 4 * curved
        finite = straight.isfinite().all(-1).all(-1)[..., None, None]
        values, vectors = torch.linalg.eigh(straight.where(finite, 0.0))
        positive = (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT
        return positive.where(finite, torch.nan) + self.squares * curved

    def error(self) -> QuadraticError:
        """The error of each answer, (*b, a), as intervals need it: of a square."""
        noise = self.noise[..., None, :, :].expand_as(self.bend)
        curved, linear = coordinates(self.slope / 2, self.bend, noise)
        zero = torch.zeros_like(linear[..., 0])
        return QuadraticError(curved, linear, curved[..., :0], zero, zero)
