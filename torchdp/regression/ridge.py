"""Ridge regression and low rank from released second moments, and their errors predicted.

The plain solution, and those whose regularization fits the noise; top directions.

Notation: G, c: the released A^T A and A^T b; t: the regularization, at least ``ridge``; lambda_i:
eigenvalues; V: the variance of a sketch's entry.
"""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, each
from torchdp.protocol.records import broadcast_users
from torchdp.regression.errors import SecondMoments, checked, least_loss, least_squares, level, loss
from torchdp.regression.second_moment_noise import NoisyMoments

# chance that the noise is larger than what cautious_ridge regularizes for
FAILING = 0.05
# of the search for the regularization, over twelve decades
STEPS = 128
# an eigenvalue below this share of the largest is 0 to rounding
SINGULAR = 1e-12


def solve_ridge(gram: Tensor, cross: Tensor, ridge: Numbers) -> Tensor:
    """(G + ridge I)^-1 c: (*batch, d), float64; what is released is taken as it is.

    With G = Y_A^T Y_A and c = Y_A^T Y_b this is the published analysis of a sketch. Noise can make
    G + ridge I indefinite, and the solution then means nothing: see :func:`adaptive_ridge`.

    Args:
        gram: G, (*batch, d, d).
        cross: c, (*batch, d).
        ridge: a number, or numbers that broadcast with the batch: many regularizations of one
            release are one call.

    Raises TypeError, ValueError.

    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 5.8; Vu, Slavkovic (2009).
    """
    G = checks.matrix("gram", gram).double()
    c = checks.floating("cross", cross).double()
    if G.shape[-1] != G.shape[-2] or c.shape != G.shape[:-1]:
        raise ValueError(
            f"gram (..., d, d), cross (..., d) do not fit: {tuple(G.shape)}, {tuple(c.shape)}"
        )
    ridges = each(checks.non_negative, "ridge", ridge).to(G)
    identity = torch.eye(G.shape[-1]).to(G)
    shifted = G + ridges[..., None, None] * identity
    # By LU, not Cholesky: noise may have made the matrix indefinite.
    solution, info = torch.linalg.solve_ex(shifted, c[..., None])
    if info.any():
        raise ValueError(
            f"gram + ridge I is singular{checks.at(info > 0)}; take a ridge > 0, or adaptive_ridge"
        )
    return solution[..., 0]


def adaptive_ridge(noisy: NoisyMoments, ridge: float) -> Tensor:
    """Ridge regression with as much more regularization as the noise asks for: (*batch, d).

    (G + t I)^-1 c for the t >= ridge of least :func:`estimated_loss`, or x = 0 where no estimate is
    below that of 0. It reads the release and public noise levels alone: no budget is spent, unlike
    AdaSSP's third for the smallest eigenvalue. With :func:`debiased` rows the levels are
    approximate, and where noise hides everything the result can be somewhat worse than x = 0.

    Args:
        noisy: the release, with a cross part.
        ridge: >= 0.

    Returns: float64. Raises TypeError, ValueError.

    Source: Stein (1981), Lemma 1, applied here to normal noise that is isotropic on symmetric
    matrices.
    """
    G, c = _parts(noisy)
    ridge = checks.non_negative("ridge", ridge)
    values, vectors = torch.linalg.eigh(G)
    u = _multiplied(vectors.mT, c)
    # Above 0 even where the whole release is 0, so that some t is usable.
    scale = values.abs().amax(-1).clamp_min(torch.finfo(torch.float64).tiny)
    # from here on G + t I is not indefinite
    least = (-values[..., 0]).clamp_min(ridge)
    steps = torch.logspace(-9, 3, STEPS, dtype=torch.float64, device=values.device)
    # t = least itself where that is positive definite
    extra = torch.cat([steps.new_zeros(1), steps])
    t = least[..., None] + scale[..., None] * extra  # (*batch, steps)
    risk = estimated_loss(values, u, t, ridge, noisy)
    # Unusable t have the risk inf: where all have, x = 0 is taken below.
    best = risk.argmin(-1, keepdim=True)
    x = u / (values + t.gather(-1, best))
    # x = 0 has the estimate 0
    x = torch.where(risk.gather(-1, best) < 0, x, 0.0)
    return _multiplied(vectors, x)


def cautious_ridge(noisy: NoisyMoments, ridge: float) -> Tensor:
    """Ridge regression with as much more regularization as the largest noise may ask for.

    (G + t I)^-1 c, t = max(ridge, r - max(l, 0), r/2 - l), r = (d ln(2 d^2/.05))^{1/2} gram_sigma,
    l the least eigenvalue of G: the rule of AdaSSP, from one release of A^T A and A^T b, so that no
    third of the budget goes to the eigenvalue, and with it G + t I stays r/2 away from singular,
    whatever the noise. It can have lower error than :func:`adaptive_ridge` where noise nearly
    swamps everything.

    Args:
        noisy: the release, with a cross part.
        ridge: >= 0.

    Returns: (*batch, d), float64. Raises TypeError, ValueError.

    Source: Wang (2018), Algorithm 2.
    """
    G, c = _parts(noisy)
    ridge = checks.non_negative("ridge", ridge)
    d = noisy.columns
    r = math.sqrt(d * math.log(2 * d**2 / FAILING)) * noisy.gram_sigma
    least = torch.linalg.eigvalsh(G)[..., 0]
    t = torch.maximum(r - least.clamp_min(0), r / 2 - least)
    return solve_ridge(G, c, t.clamp_min(ridge))


def _parts(noisy: NoisyMoments) -> tuple[Tensor, Tensor]:
    """G and c, float64. Raises TypeError, ValueError."""
    if not isinstance(noisy, NoisyMoments) or noisy.cross is None:
        raise TypeError("noisy must be NoisyMoments with a cross part; release with labels")
    return checks.matrix("gram", noisy.gram).double(), noisy.cross.double()


def _multiplied(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrices times vectors, in batches."""
    return (matrix @ vector[..., None])[..., 0]


def estimated_loss(
    values: Tensor, u: Tensor, t: Tensor, ridge: float, noisy: NoisyMoments
) -> Tensor:
    """Estimates of the loss at x = (G + t I)^-1 c less b^T b, for each t: (*batch, steps).

    inf where G + t I is not positive definite.

    With H = G + t I,
        x^T (G + ridge I) x - 2 c^T x + gram_sigma^2 (tr(H^-1) |x|^2 + x^T H^-1 x) + 2 cross_sigma^2
        tr H^-1
    is unbiased, by Stein's identity, as long as H stays away from singular: the terms behind c^T x
    are what the noise in G and c gains by being fitted.

    Args:
        values: eigenvalues of G, (*batch, d).
        u: c in its eigenbasis, (*batch, d).
        t: (*batch, steps).
        ridge: of the loss, >= 0.
        noisy: whose noise levels are read.

    Source: Stein (1981), Lemma 1, applied here to normal noise that is isotropic on symmetric
    matrices.
    """
    h = values[..., None, :] + t[..., None]  # (*batch, steps, d)
    usable = h.amin(-1) > SINGULAR * values.abs().amax(-1, keepdim=True)
    # 1 stands in for what is not positive: no infinity and no NaN enters the sums.
    h = torch.where(usable[..., None], h, 1.0)
    x = u[..., None, :] / h
    squares = x.square()
    quadratic = (values[..., None, :] + ridge) * squares
    fitted = (quadratic - 2 * u[..., None, :] * x).sum(-1)
    trace = (1 / h).sum(-1)
    gram_variance = noisy.gram_sigma.square()[..., None]
    cross_variance = noisy.cross_sigma.square()[..., None]
    # what the noise in G, and in c, gains by being fitted
    in_gram = gram_variance * (trace * squares.sum(-1) + (squares / h).sum(-1))
    penalty = in_gram + 2 * cross_variance * trace
    return torch.where(usable, fitted + penalty, math.inf)


def predicted_phi_of_sketch(
    moments: SecondMoments, ridge: float, height: int, variance: float
) -> Tensor:
    """E phi of the debiased ridge solution of a sketch, (*batch); or phi(0), if less.

    To first order, in the eigenbasis of A^T A with h_i = lambda_i + ridge and R = |A x - b|^2 at
    the optimum x: the noise adds sum_i (V (lambda_i (1 + |x|^2) + R) + m V^2 (1 + |x|^2 +
    x_i^2))/h_i, the sketch d R/(m - d - 1) (a normal sketch's, exact without ridge). Where noise is
    large the plain solution can have larger error than x = 0, and ``adaptive_ridge`` less than
    predicted.

    Args:
        moments: with labels.
        ridge: >= 0.
        height: m, rows of the sketch.
        variance: V, of the noise in each of its entries.

    Raises ValueError.
    """
    m = checks.integer("height", height, 1)
    V = level("variance", variance)
    x = least_squares(moments, ridge)
    least = least_loss(moments, ridge)
    phi_of_zero = moments.label_square / least
    d = x.shape[-1]
    # The mean of an inverse Wishart matrix is infinite from here down.
    if m <= d + 1:
        return phi_of_zero
    values, vectors = torch.linalg.eigh(moments.gram)
    values = values.clamp_min(0)
    R = loss(moments, x, 0.0)
    # From here on x is in the eigenbasis.
    x = _multiplied(vectors.mT, x)
    squares = x.square()
    norm = 1 + squares.sum(-1, keepdim=True)
    linear = V * (values * norm + R[..., None])
    quadratic = m * V**2 * (norm + squares)
    noise = (linear + quadratic) / (values + ridge)
    sketch = d * R / (m - d - 1)
    return torch.minimum(1 + (noise.sum(-1) + sketch) / least, phi_of_zero)


def top_directions(gram: Tensor, rank: int) -> Tensor:
    """The directions of largest variance: top eigenvectors of a (noisy) A^T A, (*batch, d, k).

    The top right singular vectors of a sketch Y are those of Y^T Y; subtracting a multiple of the
    identity, as ``debiased`` does, changes nothing.

    Args:
        gram: (*batch, d, d).
        rank: k, from 1 to d.

    Raises TypeError, ValueError.

    Source: Dwork, Talwar, Thakurta, Zhang (2014), section 3; for sketches Burkhardt, Keller,
    Orlandi, Schwiegelshohn (2025), Theorem 5.4.
    """
    gram = checks.matrix("gram", gram)
    checks.shaped("gram", gram, ..., "d", "d", note=", Y^T Y of a sketch Y")
    rank = checks.integer("rank", rank, 1, gram.shape[-1])
    # eigh takes no half precision.
    gram = gram.to(torch.promote_types(gram.dtype, torch.float32))
    # It reads one triangle alone, and what the other one tells would be lost.
    vectors = torch.linalg.eigh((gram + gram.mT) / 2).eigenvectors
    return vectors[..., -rank:].flip(-1)


def predicted_psi(moments: SecondMoments, rank: int, gram_sigma: float) -> Tensor:
    """E psi of the top directions of M + noise of this level, to first order: (*batch).

    sum_{i <= k < j} (gram_sigma^2 / 2)/(lambda_i - lambda_j)/n: direction i is turned towards j by
    E_ij / (lambda_i - lambda_j), and E_ij has variance gram_sigma^2 / 2 in any orthonormal basis.
    A random space's psi, if that is less, as all predictions here. Raises ValueError.
    """
    variance = level("gram_sigma", gram_sigma) ** 2 / 2
    return _perturbed(moments, rank, torch.full_like(checked(moments).matrix, variance))


def predicted_psi_of_sketch(
    moments: SecondMoments, rank: int, height: int, variance: float
) -> Tensor:
    """E psi of the top directions of a sketch of m rows with noise V in its entries: (*batch).

    To first order: in the eigenbasis the (i, j) entry of Y^T Y has variance lambda_i lambda_j / m,
    from the sketch (as for normal sketches), + V (lambda_i + lambda_j) + m V^2, from the noise.
    Raises ValueError.
    """
    m = checks.integer("height", height, 1)
    V = level("variance", variance)
    values = torch.linalg.eigvalsh(checked(moments).matrix).clamp_min(0).flip(-1)
    first = values[..., :, None]
    second = values[..., None, :]
    return _perturbed(moments, rank, first * second / m + V * (first + second) + m * V**2)


def random_psi(moments: SecondMoments, rank: int) -> Tensor:
    """E psi of a uniformly random space: (sum_{i <= k} lambda_i - (k/d) tr M)/n: (*batch).

    Raises ValueError.
    """
    rank = checks.integer("rank", rank, 1, checked(moments).columns)
    values = torch.linalg.eigvalsh(moments.matrix)
    kept = rank / moments.columns * values.sum(-1)
    return (values[..., -rank:].sum(-1) - kept) / broadcast_users(moments.n)


def _perturbed(moments: SecondMoments, rank: int, variances: Tensor) -> Tensor:
    """First-order psi of M with a random perturbation, or a random space's.

    variances: (*batch, d, d), of its entries in the eigenbasis, largest eigenvalue first.
    """
    psi_of_random = random_psi(moments, rank)
    values = torch.linalg.eigvalsh(moments.matrix).flip(-1)
    # A gap of 0 makes the sum infinite, where first order says nothing: the random space's is
    # taken.
    gaps = values[..., :rank, None] - values[..., None, rank:]
    turning = variances[..., :rank, rank:]
    # where no noise turns them, directions of one eigenvalue cost nothing
    terms = torch.where(turning > 0, turning / gaps, 0.0).sum((-2, -1))
    return torch.minimum(terms / broadcast_users(moments.n), psi_of_random)
