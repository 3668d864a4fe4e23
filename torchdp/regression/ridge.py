"""Ridge regression and low rank from released second moments, and their errors predicted.

The plain solution, and those whose regularization fits the noise; top directions.
"""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, each
from torchdp.protocol.records import beside
from torchdp.regression.errors import SecondMoments, checked, least_loss, least_squares, level, loss
from torchdp.regression.second_moment_noise import NoisyMoments

FAILING = 0.05  # chance that the noise is larger than what cautious_ridge regularizes for
STEPS = 128  # of the search for the regularization, over twelve decades


def solve_ridge(gram: Tensor, cross: Tensor, ridge: Numbers) -> Tensor:
    """(G + ridge I)^-1 c: (*batch, d, d), (*batch, d) -> (*batch, d), float64; what is released is
    taken as it is.

    ridge: a number, or numbers that broadcast with the batch: many regularizations of one release
    are one call. With G = Y_A^T Y_A and c = Y_A^T Y_b this is the published analysis of a sketch.
    Noise can make G + ridge I indefinite, and the solution then means nothing: see
    :func:`adaptive_ridge`. Raises TypeError, ValueError.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 5.8; Vu, Slavkovic (2009).
    """
    gram, cross = checks.matrix("gram", gram).double(), checks.floating("cross", cross).double()
    if gram.shape[-1] != gram.shape[-2] or cross.shape != gram.shape[:-1]:
        raise ValueError(
            f"gram (..., d, d), cross (..., d) do not fit: {tuple(gram.shape)}, {tuple(cross.shape)}"
        )
    ridges = each(checks.non_negative, "ridge", ridge).to(gram)[..., None, None]
    shifted = gram + ridges * torch.eye(gram.shape[-1]).to(gram)
    solution, info = torch.linalg.solve_ex(shifted, cross[..., None])
    if bool(info.any()):
        raise ValueError(
            f"gram + ridge I is singular{checks.at(info > 0)}; take a ridge > 0, or adaptive_ridge"
        )
    return solution[..., 0]


def adaptive_ridge(noisy: NoisyMoments, ridge: float) -> Tensor:
    """Solution of the ridge regression with as much more regularization as the noise asks for:
    (*batch, d), float64.

    (G + t I)^-1 c for the t >= ridge of least :func:`estimated_loss`, or x = 0 where no estimate is
    below that of 0. It reads the release and public noise levels alone: no budget is spent, unlike
    AdaSSP's third for the smallest eigenvalue. With :func:`debiased` rows the levels are
    approximate, and where noise hides everything the result can be somewhat worse than x = 0. ridge
    >= 0. Raises TypeError, ValueError.

    Source: Stein (1981), Lemma 1, applied here to normal noise that is isotropic on symmetric
    matrices.
    """
    (gram, cross), ridge = _parts(noisy), checks.non_negative("ridge", ridge)
    values, vectors = torch.linalg.eigh(gram)
    u = (vectors.mT @ cross[..., None])[..., 0]  # (*batch, d)
    scale = values.abs().amax(-1).clamp_min(torch.finfo(torch.float64).tiny)
    least = (-values[..., 0]).clamp_min(ridge)  # from here on G + t I is not indefinite
    steps = torch.logspace(-9, 3, STEPS, dtype=torch.float64, device=values.device)
    # t = least itself where that is positive definite
    extra = torch.cat([steps.new_zeros(1), steps])
    t = least[..., None] + scale[..., None] * extra  # (*batch, steps)
    risk = estimated_loss(values, u, t, ridge, noisy)
    best = risk.argmin(-1, keepdim=True)
    chosen = u / (values + t.gather(-1, best))
    chosen = torch.where(risk.gather(-1, best) < 0, chosen, 0.0)
    return (vectors @ chosen[..., None])[..., 0]


def cautious_ridge(noisy: NoisyMoments, ridge: float) -> Tensor:
    """Solution with as much more regularization as the largest noise may ask for: (*batch, d),
    float64.

    (G + t I)^-1 c, t = max(ridge, r - max(l, 0), r/2 - l), r = (d ln(2 d^2/.05))^{1/2} gram_sigma,
    l the least eigenvalue of G: the rule of AdaSSP, from one release of A^T A and A^T b, so that no
    third of the budget goes to the eigenvalue, and with it G + t I stays r/2 away from singular,
    whatever the noise. It can have lower error than :func:`adaptive_ridge` where noise nearly
    swamps everything. ridge >= 0. Raises TypeError, ValueError.

    Source: Wang (2018), Algorithm 2.
    """
    (gram, cross), d = _parts(noisy), noisy.columns
    ridge = checks.non_negative("ridge", ridge)
    norm = math.sqrt(d * math.log(2 * d**2 / FAILING)) * noisy.gram_sigma
    least = torch.linalg.eigvalsh(gram)[..., 0]
    return solve_ridge(
        gram, cross, torch.maximum(norm - least.clamp_min(0), norm / 2 - least).clamp_min(ridge)
    )


def _parts(noisy: NoisyMoments) -> tuple[Tensor, Tensor]:
    """The released A^T A and A^T b, float64. Raises TypeError, ValueError."""
    if not isinstance(noisy, NoisyMoments) or noisy.cross is None:
        raise TypeError("noisy must be NoisyMoments with a cross part; release with labels")
    return checks.matrix("gram", noisy.gram).double(), noisy.cross.double()


def estimated_loss(
    values: Tensor, u: Tensor, t: Tensor, ridge: float, noisy: NoisyMoments
) -> Tensor:
    """Estimates of the loss at x = (G + t I)^-1 c less b^T b, for each t: (*batch, steps).

    inf where G + t I is not positive definite.

    With H = G + t I,
        x^T (G + ridge I) x - 2 c^T x + gram_sigma^2 (tr(H^-1) |x|^2 + x^T H^-1 x) + 2 cross_sigma^2
        tr H^-1
    is unbiased, by Stein's identity, as long as H stays away from singular: the terms behind c^T x
    are what the noise in G and c gains by being fitted. values, u: eigenvalues of G and c in its
    eigenbasis, (*batch, d); t: (*batch, steps).

    Source: Stein (1981), Lemma 1, applied here to normal noise that is isotropic on symmetric
    matrices.
    """
    h = values[..., None, :] + t[..., None]  # (*batch, steps, d)
    usable = h.amin(-1) > 1e-12 * values.abs().amax(-1, keepdim=True)
    h = torch.where(usable[..., None], h, 1.0)
    x = u[..., None, :] / h
    trace = (1 / h).sum(-1)
    fitted = ((values[..., None, :] + ridge) * x.square() - 2 * u[..., None, :] * x).sum(-1)
    gram_variance = noisy.gram_sigma.square()[..., None]
    cross_variance = noisy.cross_sigma.square()[..., None]
    in_gram = gram_variance * (trace * x.square().sum(-1) + (x.square() / h).sum(-1))
    penalty = in_gram + 2 * cross_variance * trace
    return torch.where(usable, fitted + penalty, math.inf)


def predicted_phi_of_sketch(
    moments: SecondMoments, ridge: float, height: int, variance: float
) -> Tensor:
    """E phi of the debiased ridge solution of a sketch of m rows whose entries carry noise V,
    (*batch); or phi(0).

    To first order, in the eigenbasis of A^T A with h_i = lambda_i + ridge and R = |A x - b|^2 at
    the optimum x: the noise adds sum_i (V (lambda_i (1 + |x|^2) + R) + m V^2 (1 + |x|^2 +
    x_i^2))/h_i, the sketch d R/(m - d - 1) (a normal sketch's, exact without ridge). Where noise is
    large the plain solution can have larger error than x = 0, and ``adaptive_ridge`` less than
    predicted. Raises ValueError.
    """
    height, V = checks.integer("height", height, 1), level("variance", variance)
    x, least = least_squares(moments, ridge), least_loss(moments, ridge)
    zero, d = moments.label_square / least, x.shape[-1]
    if height <= d + 1:
        return zero
    values, vectors = torch.linalg.eigh(moments.gram)
    values, residual = values.clamp_min(0), loss(moments, x, 0.0)[..., None]
    x = (vectors.mT @ x[..., None])[..., 0]
    norm = 1 + x.square().sum(-1, keepdim=True)
    noise = (V * (values * norm + residual) + height * V**2 * (norm + x.square())) / (
        values + ridge
    )
    return torch.minimum(
        1 + (noise.sum(-1) + d * residual[..., 0] / (height - d - 1)) / least, zero
    )


def top_directions(gram: Tensor, rank: int) -> Tensor:
    """The rank directions of largest variance: top eigenvectors of a (noisy) A^T A, (*batch, d, d)
    -> (*batch, d, k).

    The top right singular vectors of a sketch Y are those of Y^T Y; subtracting a multiple of the
    identity, as ``debiased`` does, changes nothing. rank: 1 <= k <= d. Raises TypeError,
    ValueError.

    Source: Dwork, Talwar, Thakurta, Zhang (2014), section 3; for sketches Burkhardt, Keller,
    Orlandi, Schwiegelshohn (2025), Theorem 5.4.
    """
    gram = checks.shaped(
        "gram", checks.matrix("gram", gram), ..., "d", "d", note=", Y^T Y of a sketch Y"
    )
    rank = checks.integer("rank", rank, 1, gram.shape[-1])
    gram = gram.to(torch.promote_types(gram.dtype, torch.float32))
    return torch.linalg.eigh((gram + gram.mT) / 2).eigenvectors[..., -rank:].flip(-1)


def predicted_psi(moments: SecondMoments, rank: int, gram_sigma: float) -> Tensor:
    """E psi of the top directions of M + noise of this level, to first order; or a random space's
    psi if less.

    sum_{i <= k < j} (gram_sigma^2 / 2)/(lambda_i - lambda_j)/n: direction i is turned towards j by
    E_ij / (lambda_i - lambda_j), and E_ij has variance gram_sigma^2 / 2 in any orthonormal basis.
    (*batch), as all predictions here. Raises ValueError.
    """
    variance = level("gram_sigma", gram_sigma) ** 2 / 2
    return _perturbed(moments, rank, torch.full_like(checked(moments).matrix, variance))


def predicted_psi_of_sketch(
    moments: SecondMoments, rank: int, height: int, variance: float
) -> Tensor:
    """E psi of the top directions of a sketch of m rows whose entries carry noise V, to first
    order.

    In the eigenbasis the (i, j) entry of Y^T Y has variance lambda_i lambda_j / m, from the sketch
    (as for normal sketches), + V (lambda_i + lambda_j) + m V^2, from the noise. Raises ValueError.
    """
    height, V = checks.integer("height", height, 1), level("variance", variance)
    values = torch.linalg.eigvalsh(checked(moments).matrix).clamp_min(0).flip(-1)
    one, two = values[..., :, None], values[..., None, :]
    return _perturbed(moments, rank, one * two / height + V * (one + two) + height * V**2)


def random_psi(moments: SecondMoments, rank: int) -> Tensor:
    """E psi of a uniformly random space: (sum_{i <= k} lambda_i - (k/d) tr M)/n. Raises
    ValueError.
    """
    rank = checks.integer("rank", rank, 1, checked(moments).columns)
    values = torch.linalg.eigvalsh(moments.matrix)
    return (values[..., -rank:].sum(-1) - rank / moments.columns * values.sum(-1)) / beside(
        moments.n
    )


def _perturbed(moments: SecondMoments, rank: int, variances: Tensor) -> Tensor:
    """variances: (*batch, d, d), of the perturbation's entries in the eigenbasis, largest
    eigenvalue first.
    """
    rank = checks.integer("rank", rank, 1, moments.columns)
    values, own = torch.linalg.eigvalsh(moments.matrix).flip(-1), variances[..., :rank, rank:]
    gaps = values[..., :rank, None] - values[..., None, rank:]
    terms = torch.where(own > 0, own / gaps, 0.0).sum((-2, -1))
    return torch.minimum(terms / beside(moments.n), random_psi(moments, rank))
