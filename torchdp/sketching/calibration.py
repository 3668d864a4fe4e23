"""How much noise each client adds: calibrated to the honest clients of each row of the public sketch.

The release S A + N is (epsilon, delta)-DP where every entry of N has variance V = (2 B/mu*)^2, 1/mu* =
gaussian_sigma(epsilon, delta): replacing a row of A changes S A by at most 2 B in Frobenius norm, whatever m, n, s, d.
"""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.privacy import gaussian_sigma
from torchdp.sketching.coalition import Coalition, known
from torchdp.sketching.noise import EVERYBODY
from torchdp.sketching.pure_noise import LaplaceNoise, PolyaNoise
from torchdp.sketching.sketch import Sketch


def entry_variance(bound: float, *, epsilon: float, delta: float) -> float:
    """V = (2 B/mu*)^2, the least variance of an entry of S A + N, N iid Gaussian. Raises ValueError.

    bound: B, the largest l_2 norm of a client's row.

    Guarantees: S A + N(0, V) is (epsilon, delta)-DP, exactly, for the sketch's every s, m, n and d.
    Source: Balle, Wang (2018), Theorem 8, at sensitivity |S_i (a_i - a_i')^T|_F = |a_i - a_i'|_2 <= 2 B.
    """
    return gaussian_sigma(epsilon, delta, 2 * checks.squarable("bound", bound)) ** 2


def row_sigma(
    sketch: Sketch, bound: float, *, epsilon: float, delta: float, coalition: Coalition = EVERYBODY
) -> Tensor:
    """sigma_j of ``GaussianNoise`` for each row, (m,), float64: sqrt(s V/h_j), so that every entry of the release has
    variance V where all are honest.

    With a ``StaticCoalition`` proportional to 1/sqrt(c_j), at the least factor. Rows that hold nobody count as rows of
    one client. bound: B, the largest l_2 norm of a client's row. Raises ValueError.

    Guarantees: (epsilon, delta)-DP; exact where everybody is honest, and with one copy for each kind of coalition.
    Source: mu_i^2 = 4 B^2 sum_c 1/(h_j sigma_j^2) = mu*^2 for every client (``GaussianNoise``); ``losses``.
    """
    known(sketch, coalition)
    shape = coalition.shares(sketch, delta).clamp_min(1).double().rsqrt()
    factor = coalition.losses(sketch, shape, checks.fraction("delta", delta)).factor(epsilon, delta)
    return 2 * checks.squarable("bound", bound) * factor * shape


def single_sigma(
    sketch: Sketch, bound: float, *, epsilon: float, delta: float, coalition: Coalition = EVERYBODY
) -> float:
    """One public sigma for all rows, sigma^2 = V max_i sum_c 1/h_j, j = rows[c, i]. Raises ValueError.

    With a ``StaticCoalition``, the least for its delta. bound: B, the largest l_2 norm of a client's row.

    Guarantees: (epsilon, delta)-DP; exact where everybody is honest, and with one copy for each kind of coalition.
    Source: as for ``row_sigma``.
    """
    known(sketch, coalition)
    shape = torch.ones(sketch.height, dtype=torch.float64, device=sketch.device)
    factor = coalition.losses(sketch, shape, checks.fraction("delta", delta)).factor(epsilon, delta)
    return 2 * checks.squarable("bound", bound) * factor


def one_copy_sigma(
    sketch: Sketch, bound: float, *, epsilon: float, delta: float, coalition: Coalition = EVERYBODY
) -> float:
    """sigma of ``OneCopyGaussianNoise``, sigma^2 = V max_i l_i, l_i the honest leverages. Raises ValueError.

    With a ``StaticCoalition`` the least for delta averaged over the clients' leverages. bound: B, the largest l_2 norm
    of a client's row.

    Guarantees: (epsilon, delta)-DP; exact where everybody is honest.
    Source: mu_i^2 = 4 B^2 l_i/sigma^2 (``OneCopyGaussianNoise``); ``losses``.
    """
    known(sketch, coalition)
    factor = coalition.one_copy_losses(sketch, checks.fraction("delta", delta)).factor(epsilon, delta)
    return 2 * checks.squarable("bound", bound) * factor


def laplace_noise(
    sketch: Sketch, bound: float, *, epsilon: float, delta: float = 0.0, coalition: Coalition = EVERYBODY
) -> LaplaceNoise:
    """Laplace noise of scale 2 s B_1/epsilon in each row; entry variance of the release 8 s B_1^2/epsilon^2.

    bound: B_1, the largest l_1 norm of a client's row. delta: for a ``StaticCoalition`` alone. One copy is best.
    Raises ValueError.

    Guarantees: pure epsilon, exactly; with a static coalition (epsilon, share delta).
    Source: ``LaplaceNoise``.
    """
    known(sketch, coalition)
    scale = 2 * sketch.copies * checks.squarable("bound", bound) / checks.squarable("epsilon", epsilon)
    return LaplaceNoise(scale, coalition.honest(sketch, delta).clamp_min(1))


def polya_noise(
    sketch: Sketch, bound: int, *, epsilon: float, delta: float = 0.0, coalition: Coalition = EVERYBODY
) -> PolyaNoise:
    """Discrete Laplace noise of ratio exp(-epsilon/(2 s B_1)) in each row.

    bound: B_1, the largest l_1 norm of a client's row of integers. delta: for a ``StaticCoalition`` alone. One copy is
    best. Raises ValueError.

    Guarantees: pure epsilon, exactly; with a static coalition (epsilon, share delta).
    Source: ``PolyaNoise``.
    """
    known(sketch, coalition)
    distance = 2 * sketch.copies * checks.integer("bound", bound, 1)
    ratio = math.exp(-checks.squarable("epsilon", epsilon) / distance)
    return PolyaNoise(ratio, coalition.honest(sketch, delta).clamp_min(1))
