"""Users that local privacy needs at least, for any workload, from a dual witness.

All constants are explicit. The claim: W (m x n) are linear queries on n types. Users hold i.i.d.
types of unknown distribution mu; each sends one epsilon-LDP message (non-interactive: no message
depends on another; users may differ, public coins are allowed). If every answer (W mu)_v is
estimated with root mean squared error at most alpha whatever mu is, then at least
``HardInstance.samples`` users took part.

Its proof. Take a distribution c on queries, P on types, and directions M_v with sum_x M_vx = 0,
<W_v, M_v> = 1. For each v the types are from lambda_v + t M_v, t unknown in [-B_v, B_v], where
B_v |M_v| <= lambda_v: the answer to query v is a constant + t. A message has density A(y|x) and
mean density q(y) = sum_x P_x A(y|x). Write E = e^epsilon.
1. rho_y = A(y|.) / q(y) has mean 1 under P, and its values differ by factors of at most E. With
   K = diag(c)^{1/2} M diag(P)^{-1/2}, h_y = diag(P)^{1/2} (rho_y - 1) and H = sum_y q(y) h_y h_y^T,
       sum_v c_v sum_y (M_v A(y))^2 / q(y) = tr K H K^T.
2. tr H <= (E - 1)^2 / 4E = sinh^2(epsilon/2), the largest variance of a density ratio with values
   in [a, E a] (Bhatia, Davis 2000), and H <= tanh^2(epsilon/2) I, the contraction of chi^2 by an
   epsilon-LDP message (Asoodeh, Zhang 2022). So the trace is at most tanh^2(epsilon/2) times the
   sum of the cosh^2(epsilon/2) largest squared singular values of K (a fraction of the last counts
   in part): ``HardInstance.information``.
3. In I_v, the Fisher information about t averaged over a symmetric prior, lambda_v + t M_v stands
   where q has P. That costs theta_v with lambda_v A >= theta_v P A, and a_v >= E 1 / (1 - s^2)
   with |s| <= (|t| / B_v) tanh(epsilon/2) g_v, g_v = max_x B_v |M_v| / lambda_v: so sum_v c_v
   (theta_v / a_v) I_v <= information.
4. van Trees (Gill, Levit 1995) with the prior cos^2(pi t / 2 B_v) / B_v, whose Fisher information
   is pi^2 / B_v^2: 1 / alpha^2 <= n I_v + pi^2 / B_v^2 for each v. Average over v with the weights
   of step 3.
5. A test that tells lambda_v from lambda_v + t M_v, wrong with probability at most b either way,
   needs messages of divergence kl(1 - b, b) = (1 - 2 b) log((1 - b) / b). Divergences add up over
   users, each of whom gives at most chi^2 = t^2 sum_y (M_v A(y))^2 / (lambda_v A(y)): so n
   information t^2 >= kl(1 - b, b) sum_v c_v theta_v, by steps 1 and 3, over the v with B_v > t. A
   learner is such a test: :func:`learner_samples`.
At the witness of min over u of gamma_2(W - u 1^T) all singular values of K are 1 / gamma_2: for
small alpha the bound is gamma_2^2 / (sinh^2(epsilon/2) alpha^2) where K has rank at least
cosh^2(epsilon/2).

Noise that a curator needs at least (:func:`least_noise_variance`). One query of width 1
(its largest change when one user's value is replaced). Z is the noise, c its mean, q = e^-epsilon
and s(t) = P(|Z - c| >= t), so that Var Z = int 2t s(t) dt. Comparing Z with Z - 1 and Z + 1 on
half-lines,
    s(t + 1) >= q (s(t) - 2 delta) for t > 0,  and  s(t) >= q (2 - 2 delta - P(|Z - c| > 1 - t)) for
    0 < t <= 1.
The first gives s(t + j) >= q^j (s(t) + d) - d with d = 2 delta / (e^epsilon - 1); the second
couples t and 1 - t. Keep N terms of sum_j 2 (t + j) s(t + j) for t < 1/2 and N - 1 for t > 1/2:
their sum is least where s(t) = s(1 - t) = 2 q (1 - delta) / (1 + q) =: b, and its integral over t
is
    V = sum_{j < N} (j + 1/4) (q^j (b + d) - d) + sum_{j < N - 1} (j + 3/4) (q^j (b + d) - d).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.factorize import Matrix, factorize, matrix_of
from torchdp.factorization.norm import gamma2_dual, witness

# Of <W, U>: a query whose share is mostly rounding.
NEGLIGIBLE = 1e-12
# Prior widths tried for each query; the widest over a test's shift.
WIDTHS = 64
WIDEST = 100.0
# Of the integral over the prior, and their relative error.
NODES, MASSES = np.polynomial.legendre.leggauss(96)
QUADRATURE_ERROR = 1e-8
# Terms of V, at most.
MOST_TERMS = 10**7


@dataclass(frozen=True)
class HardInstance(Brief):
    """For each query v a line of distributions that moves its answer, and a message hardly.

    query_weights: c, (m,), a probability vector.
    type_weights: P, (n,), likewise.
    directions: M, (m, n), rows that sum to 0 and have <W_v, M_v> = 1 (0 where c_v = 0).
    All float64.
    """

    query_weights: Tensor
    type_weights: Tensor
    directions: Tensor

    def distributions(self, scale: float) -> tuple[Tensor, Tensor]:
        """lambda, (m, n), and half-widths B, (m,): lambda_v + t M_v is one for |t| <= B_v.

        lambda_v = max(P, scale |M_v|) / Z_v with Z_v its sum, and B_v = scale / Z_v. Raises
        ValueError on scale <= 0.
        Guarantees: both ends are distributions, and their answers to query v differ by 2 B_v.
        """
        scale = checks.positive("scale", scale)
        larger = torch.maximum(self.type_weights, scale * self.directions.abs())
        Z = larger.sum(-1)
        return larger / Z[:, None], scale / Z

    def information(self, epsilon: float) -> float:
        """Largest information of one epsilon-LDP message about t, in the mean over v ~ c.

        tanh^2(epsilon/2) * (sum of the cosh^2(epsilon/2) largest squared singular values of K); at
        most sinh^2(epsilon/2) ||K||_op^2, and as epsilon grows ||K||_F^2, the information of the
        type itself.

        Guarantees: sum_v c_v sum_y (sum_x M_vx A(y|x))^2 / (sum_x P_x A(y|x)) <= information for
        every epsilon-LDP A.
        Source: steps 1 and 2 of this file's proof; it stands where Edmonds, Nikolov, Ullman (2020),
        Lemma 11, has O(epsilon^2) times a squared norm from l_inf to L_2(c).
        """
        half = checks.positive("epsilon", epsilon) / 2
        spectrum = self._spectrum
        # Above 50 it counts all of any spectrum, and would overflow.
        count = math.cosh(min(half, 50.0)) ** 2
        parts = count - torch.arange(len(spectrum), device=spectrum.device)
        largest = parts.clamp(0, 1) * spectrum
        return math.tanh(half) ** 2 * float(largest.sum())

    def samples(self, alpha: float, epsilon: float) -> float:
        """Users needed for root mean squared error at most ``alpha`` on every query.

        Whatever the users' distribution:
        (1 / information) sum_v c_v max over B of (theta_v / a_v) (1 / alpha^2 - pi^2 / B_v^2), not
        below 0. A protocol whose error on every data set of n users is at most alpha has error at
        most alpha + (max - min of a query) / (2 sqrt n) on their distribution; at large epsilon
        fewer queries may need more in this bound: that of ``hard_instance(W[rows])`` holds for W
        too.

        alpha: in the units of W. Raises ValueError.
        Guarantees: no non-interactive epsilon-LDP protocol with fewer users has that error.
        Source: after Edmonds, Nikolov, Ullman (2020), Theorems 22 and 23, with Fisher information
        in place of the KL divergence; that spares the factor 4 of Lemma 15 and the factor
        log(1/alpha) of Lemma 20.
        """
        alpha = checks.squarable("alpha", alpha)
        epsilon = checks.positive("epsilon", epsilon)
        information = self.information(epsilon)
        sizes = self.directions.abs()
        lengths = sizes.sum(-1)
        if information == 0 or not bool((lengths > 0).any()):
            return 0.0
        # B_v <= scale: below pi alpha the prior alone knows t as well as the estimate has to.
        narrow = math.pi * alpha
        wide = 30 / float(lengths[lengths > 0].min())
        if wide <= narrow:
            return 0.0
        best = torch.zeros_like(self.query_weights)
        for scale in np.geomspace(narrow, wide, WIDTHS).tolist():
            center, half, theta = self._lines(scale, epsilon)
            ratios = half[:, None] * sizes / center.clamp_min(1e-300)
            g = ratios.amax(-1).clamp(max=1)
            gain = theta / _mean_inverse(math.tanh(epsilon / 2) * g)
            unknown_before = alpha**-2 - (math.pi / half) ** 2
            best = torch.maximum(best, gain * unknown_before)
        return float((self.query_weights * best).sum()) / information

    def samples_absolute(self, alpha: float, epsilon: float) -> float:
        """Users needed for mean absolute error at most ``alpha`` on every query.

        So also for the mean largest error. samples(alpha sqrt(2 e / pi)): an error of mean absolute
        value alpha has entropy power at most 2 e alpha^2 / pi (the Laplace distribution's), and van
        Trees' inequality bounds the entropy power too.

        Guarantees: no non-interactive epsilon-LDP protocol with fewer users has that error.
        Source: Efroimovich (1980), from Stam's inequality. The error is that of Edmonds, Nikolov,
        Ullman (2020).
        """
        alpha = checks.squarable("alpha", alpha)
        return self.samples(alpha * math.sqrt(2 * math.e / math.pi), epsilon)

    def samples_to_test(self, shift: float, epsilon: float, failure: float) -> float:
        """Users needed to tell lambda_v from lambda_v + shift M_v for every query v.

        kl(1 - failure, failure) / (information shift^2) sum_v c_v max over B_v > shift of theta_v.

        Args:
            shift: > 0, in the units of W.
            epsilon: of local privacy.
            failure: probability to take one for the other, either way; from 1/2 on a coin will do.

        Raises ValueError.
        Guarantees: no non-interactive epsilon-LDP protocol of fewer users does that for every v and
        width B_v.
        Source: step 5 of this file's proof; Edmonds, Nikolov, Ullman (2020), Lemma 11, bounds the
        same divergence.
        """
        shift = checks.squarable("shift", shift)
        failure = checks.fraction("failure", failure)
        information = self.information(epsilon)
        best = torch.zeros_like(self.query_weights)
        if information == 0 or failure >= 0.5:
            return 0.0
        for scale in (shift * np.geomspace(1, WIDEST, WIDTHS)).tolist():
            _, half, theta = self._lines(scale, epsilon)
            best = torch.maximum(best, torch.where(half > shift, theta, 0.0))
        divergence = (1 - 2 * failure) * math.log((1 - failure) / failure)
        return divergence * float(self.query_weights @ best) / (information * shift**2)

    def _lines(self, scale: float, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        """lambda and B, and theta with lambda_v A >= theta_v P A for every message."""
        center, half = self.distributions(scale)
        Z = scale / half
        # lambda = (P + rest) / Z, and rest A >= e^-epsilon P A (Z - 1)
        theta = (1 + (Z - 1) * math.exp(-epsilon)) / Z
        return center, half, theta

    @cached_property
    def _spectrum(self) -> Tensor:
        """Squared singular values of K, descending."""
        # Directions are 0 where types have no weight.
        used = self.type_weights > 0
        scale = torch.where(used, self.type_weights.rsqrt(), 0.0)
        K = self.query_weights.sqrt()[:, None] * self.directions * scale
        return torch.linalg.svdvals(K).square()


def hard_instance(
    W: Matrix, U: Tensor | None = None, column_weights: Tensor | None = None
) -> HardInstance:
    """Hard distributions for the queries W from any dual witness U, good or bad.

    With P = column_weights (those of gamma2_dual(U) where None) U becomes U - U 1 P^T, whose rows
    sum to 0; then c_v is proportional to <W_v, U_v>, and M_v = U_v / <W_v, U_v>. Queries with <W_v,
    U_v> <= 0 are left out.

    Args:
        W: (m, n), real, or a :class:`Workload`.
        U: (m, n), None for the witness of min over u of gamma_2(W - u 1^T), the best as alpha -> 0
            (column_weights are then its own).
        column_weights: (n,), non-negative.

    Where every type also has its negative, as in W and -W side by side, that least norm is
    gamma_2(W), and U and -U side by side its witness. Warns like :func:`factorize`. Raises
    ValueError, TypeError.

    Guarantees: the rows of the directions sum to 0 and move their query's answer at rate 1.
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 17 to 21, without their symmetrization.
    """
    W = checks.one_matrix("W", matrix_of(W))
    if U is None:
        found = factorize(W, shift=True)
        column_weights = found.column_weights
        U = witness(W, found.row_weights, column_weights, shift=True)
    U = checks.matrix("U", U).detach().double()
    if U.shape != W.shape:
        raise ValueError(f"U must have W's shape {tuple(W.shape)}, not {tuple(U.shape)}")
    if column_weights is None:
        column_weights = gamma2_dual(U).column_weights
    P = checks.floating("column_weights", column_weights).detach().double()
    if P.shape != W.shape[1:] or (P < 0).any() or not (P > 0).any():
        raise ValueError(f"column_weights must be {W.shape[1]} non-negative numbers, not all 0")
    P = P / P.sum()
    # A type of weight 0 proves nothing; without it the rows of U - U 1 P^T sum to 0.
    U = torch.where(P > 0, U, 0.0)
    U = U - U.sum(-1, keepdim=True) * P
    share = (W * U).sum(-1)
    used = share > NEGLIGIBLE * share.clamp_min(0).sum()
    # <W_v, M_v> = 1; queries left out have no direction.
    share = torch.where(used, share, 0.0)
    directions = torch.where(used[:, None], U / share[:, None], 0.0)
    total = share.sum()
    c = share / torch.where(total > 0, total, 1.0)
    return HardInstance(c, P, directions)


def learner_samples(concepts: Matrix, alpha: float, epsilon: float, failure: float = 0.05) -> float:
    """Users that any non-interactive epsilon-LDP learner of the concepts needs.

    Whatever the records' distribution is, it learns where, with probability 1 - failure, its
    concept's loss exceeds the least by at most alpha and is known within alpha / 2, as of
    ``queries.PrivateLearner.samples``. Labelled records (x, y) are the types of the queries (D,
    -D): those of every lambda_v of its hard instance, x and -x alike, leave all concepts a loss of
    1/2, and t M_v takes t/2 off that of concept v: for t > 4 alpha the estimate says which it is.

    Args:
        concepts: D, (concepts, records), entries +1 and -1.
        alpha: excess loss, > 0.
        epsilon: of local privacy.
        failure: probability not to learn.

    Raises TypeError, ValueError; warns like :func:`factorize`.
    Guarantees: no such learner of fewer users exists.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 25, with its constants and without
    log(1/alpha): about gamma_2(D)^2 / (16 sinh^2(epsilon/2) alpha^2) times kl(1 - failure, failure)
    for small alpha.
    """
    D = checks.one_matrix("concepts", matrix_of(concepts)).double()
    if not bool((D.abs() == 1).all()):
        raise ValueError("concepts must hold +1 and -1, each concept's label of each record")
    found = factorize(D)
    U = witness(D, found.row_weights, found.column_weights)
    P = torch.cat([found.column_weights, found.column_weights])
    signed = torch.cat([D, -D], 1)
    instance = hard_instance(signed, torch.cat([U, -U], 1), P)
    # A shift t takes t/2 off a loss: from 4 alpha on the learner's estimate says which it is.
    return instance.samples_to_test(4 * checks.squarable("alpha", alpha), epsilon, failure)


def sample_upper_bound(
    norm: float, variance: float, alpha: float, *, spread: float = 0.0, bias: float = 0.0
) -> float:
    """Users for whom the local factorization mechanism has root mean squared error ``alpha``.

    On every query:
    (norm^2 variance + spread^2 / 4) / (alpha^2 - bias^2): each user of type x sends an unbiased
    message of R_x with covariance ``variance`` * (largest ||R_x||)^2 * I, and query v is read off
    the mean as <L_v, .> (plus the shift).

    Args:
        norm: largest row norm of L * largest column norm of R, gamma_2 or its upper bound.
        variance: of the randomizer on the unit ball, ``PrivUnit(dim, epsilon).moments.variance``.
        alpha: in the units of W.
        spread: largest max - min of a row of L R where the users are a sample of the distribution
            whose answers are wanted, 0 for the users' own.
        bias: largest abs(W - L R - shift).

    Raises ValueError.
    Guarantees: that many users are enough.
    Source: after Edmonds, Nikolov, Ullman (2020), Theorem 10, for the error of one query in place
    of the largest.
    """
    norm = checks.within("norm", norm, 0, checks.LARGEST)
    spread = checks.within("spread", spread, 0, checks.LARGEST)
    bias = checks.within("bias", bias, 0, checks.LARGEST)
    variance = checks.positive("variance", variance)
    alpha = checks.squarable("alpha", alpha)
    if bias >= alpha:
        raise ValueError(
            f"bias must be below alpha = {alpha:g}, not {bias!r}: more users do not reduce it"
        )
    return (norm**2 * variance + spread**2 / 4) / (alpha**2 - bias**2)


def _mean_inverse(b: Tensor) -> Tensor:
    """E 1 / (1 - b^2 s^2) for s of density cos^2(pi s / 2) on [-1, 1], rounded up; b in [0, 1]."""
    nodes = torch.as_tensor(NODES, dtype=b.dtype, device=b.device)
    masses = torch.as_tensor(MASSES, dtype=b.dtype, device=b.device)
    masses = masses * torch.cos(math.pi / 2 * nodes) ** 2
    integrand = masses / (1 - (b[..., None] * nodes) ** 2)
    return integrand.sum(-1) * (1 + QUADRATURE_ERROR)


def least_noise_variance(epsilon: float, delta: float = 0.0) -> float:
    """A lower bound V on Var Z / width^2 for every (epsilon, delta)-DP mechanism x -> q(x) + Z.

    Z is independent of x. The V of this file's head, at its best N; width: the largest change of q
    when one user's value is replaced. delta = 0: V = 1 / (2 sinh^2(epsilon/2)), attained by the
    discrete Laplace noise in multiples of the width. Not tight for large delta: the best noise in
    quarters of the width (a linear program) has 1.00 times V at (epsilon, delta) = (1, 1e-3), 1.29
    times at (1, 0.1), 3.9 times at (0.5, 0.3), 4.0 times at (3, 0.05).

    epsilon > 0; delta in [0, 1). Raises ValueError.
    Guarantees: no additive noise that is (epsilon, delta)-DP for replace-one has a smaller
    variance.
    Source: ours, in place of Edmonds, Nikolov, Ullman (2020), Lemma 26, which names no constant and
    lacks a square.
    """
    epsilon = checks.positive("epsilon", epsilon)
    delta = checks.below_one("delta", delta)
    q = math.exp(-epsilon)
    if delta == 0:
        # All terms: a geometric series.
        return 2 * q / math.expm1(-epsilon) ** 2
    d = 2 * delta * q / -math.expm1(-epsilon)
    b = 2 * q * (1 - delta) / (1 + q)
    if d == 0 or b == 0:  # epsilon is so large that both underflow
        return 0.0
    # As long as they are positive.
    terms = math.ceil((math.log(b + d) - math.log(d)) / epsilon)
    if terms > MOST_TERMS:
        raise ValueError(
            f"epsilon = {epsilon:g} and delta = {delta:g} need {terms:g} terms; raise epsilon"
        )
    j = np.arange(terms, dtype=np.float64)
    s = q**j * (b + d) - d
    low_half = (j + 0.25) * s
    high_half = (j + 0.75) * s
    return float(low_half.sum() + high_half[:-1].sum())


def additive_noise_bound(norm: float, epsilon: float, delta: float = 0.0) -> float:
    """Least error of an (epsilon, delta)-DP mechanism h -> W h + Z, Z independent of the data.

    It is sqrt(2 V) * norm. h counts the users of each type; for averages divide the error by their
    number. With norm = min over v of gamma_(p)(W - v 1^T), the error is (sum_i sd(Z_i)^p)^{1/p}: p
    = 2 the root of the summed squared errors (Edmonds et al. divide it by sqrt m), p = inf the
    worst query's root mean squared error. For delta = 0: norm / sinh(epsilon/2). Every direction u
    has Var u^T Z >= V (width of u^T W)^2. So the columns of cov(Z)^{-1/2} W lie within V^{-1/2} of
    each other, hence in a ball of radius (2 V)^{-1/2} (Jung 1901), and with cov(Z)^{1/2} they
    factor W - v 1^T.

    Args:
        norm: >= 0, such as ``factorize(W, p, shift=True).certificate.lower``.
        epsilon: > 0; V: :func:`least_noise_variance`.
        delta: in [0, 1).

    Raises ValueError.
    Guarantees: no such mechanism has a smaller error (replace-one neighbours), for any W.
    Source: Edmonds, Nikolov, Ullman (2020), Theorem 28; Nikolov, Tang (2023), section 3, for p and
    the shift.
    """
    V = least_noise_variance(epsilon, delta)
    return math.sqrt(2 * V) * checks.non_negative("norm", norm)
