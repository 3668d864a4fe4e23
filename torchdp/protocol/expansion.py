"""The second-order expansion of answers about their estimates, and their joint covariance.

Notation: s is the truth, z = s + e the estimate, e a normal error of mean 0 and covariance N; near
z the answers are g_a(z + e) = g_a(z) + slope_a . e + e^T bend_a e. J_a is bend_a, T_ab =
tr(J_a N J_b N).

**A square.** For g_a(s) = s^T J_a s the estimate z^T J_a z - tr(J_a N) has the error
2 (J_a s) . e + e^T J_a e - tr(J_a N). Odd moments of e are 0 and Cov(e^T A e, e^T B e) = 2
tr(A N B N), so

    Cov_ab = 4 s^T J_a N J_b s + 2 T_ab.

The analyst knows slope_a = 2 J_a z = 2 J_a s + 2 J_a e, not 2 J_a s, and on average this adds
noise:

    E slope_a^T N slope_b = 4 s^T J_a N J_b s + 4 E e^T J_a N J_b e = 4 s^T J_a N J_b s + 4 T_ab.

So slope N slope^T - 4 T + 2 T has the expectation Cov, exactly, whatever N's size.

**A product of two copies.** z1 and z2 are independent with covariance 2 N, and their mean z has
covariance N. z1^T J_a z2 - s^T J_a s = J_a s . (e1 + e2) + e1^T J_a e2 has the covariance
4 s^T J_a N J_b s + tr(J_a 2N J_b 2N) = 4 s^T J_a N J_b s + 4 T_ab, again exactly; slopes are those
at z, so that slope N slope^T - 4 T + 4 T is unbiased.

**A smooth function.** Let N be of order 1/n, D the third derivatives, and c_ab the sum of
slope_ai N_ij D_bjkl N_kl over i, j, k, l. Up to terms of order n^-3, Cov(g_a(z), g_b(z)) is
slope_a^T N slope_b + 2 T_ab + (c_ab + c_ba)/2 with the slopes at s. The slope at z is that at s,
plus 2 J e, plus half of D e e, so that E slope_a^T N slope_b is the same with 4 T_ab in the place
of 2 T_ab: the third derivatives cancel, and what is told of g(z) holds to second order. The
estimate g(z) - tr(J(z) N), whose correction moves with z, has a covariance without (c_ab + c_ba)/2;
what is stated differs by this, 1/n relative to the whole.

Where e is not normal, third and fourth cumulants come in; of a mean of n reports they are 1/n
relative to the whole.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Block = tuple[slice, Tensor, Tensor | None]
"""Answers: the coordinates that they are functions of, slope (*b, a, r), bend (*b, a, r, r)."""


def joint_covariance(blocks: Sequence[Block], noise: Tensor, squares: float = 2.0) -> Tensor:
    """[slope N slope^T - 4 T]_+ + squares T of the answers of all blocks, (*b, a, a): positive
    semidefinite.

    Eigenvalues of the first part are cut at 0. NaN where a number is not finite. Unchecked.

    Args:
        blocks: answers beside each other, each with its own coordinates of z, so that no bend is
            larger than these.
        noise: N, covariance of z, (*b, r, r).
        squares: how often T counts: 2 of squares, 4 of products of two independent copies, whose
            mean z has this noise.

    Guarantees:
        For quadratic forms and a known normal noise it is unbiased but for what is cut, at any size
        of the noise.
    """
    linear_rows = []
    curved_rows = []
    for rows, slope, bend in blocks:
        linear = []
        curved = []
        for columns, other_slope, other_bend in blocks:
            N = noise[..., rows, columns]
            linear.append(slope @ N @ other_slope.mT)
            # T_ab = tr(J_a N J_b N) is 0 where either answer is linear.
            if bend is None or other_bend is None:
                curved.append(torch.zeros_like(linear[-1]))
                continue
            # tr(J_a N J_b N) of the coordinates of the one and of the other
            left = bend @ N[..., None, :, :]
            right = other_bend @ N.mT[..., None, :, :]
            curved.append(left.flatten(-2) @ right.mT.flatten(-2).mT)
        linear_rows.append(torch.cat(linear, -1))
        curved_rows.append(torch.cat(curved, -1))
    T = torch.cat(curved_rows, -2)
    known = torch.cat(linear_rows, -2) - 4 * T
    finite = known.isfinite().all(-1).all(-1)[..., None, None]
    # An estimate of slope N slope^T at the truth need not be positive semidefinite.
    eigenvalues, vectors = torch.linalg.eigh(known.where(finite, 0.0))
    positive = (vectors * eigenvalues.clamp_min(0)[..., None, :]) @ vectors.mT
    return positive.where(finite, torch.nan) + squares * T
