"""The noise of the linear-transformation model's paper, as printed and as in its experiments.

``guarantee`` says what each promises in truth. For use, take ``GaussianNoise.calibrated``.
"""

import math

import torch

from torchdp import checks
from torchdp.sketching.noise import GaussianNoise, LaplaceNoise
from torchdp.sketching.sketch import Sketch


def gaussian_noise(
    sketch: Sketch,
    columns: int,
    entry_bound: float,
    *,
    epsilon: float,
    delta: float,
    corrupt: int = 0,
) -> GaussianNoise:
    """The noise of Corollary 4.7.

    sigma^2 = 4 s^3 eta^2 m d^2 ln(1.25 s/(delta/d - m e^{-(n - s - t')/(8 m)}))/(epsilon^2 (n - s -
    t')).

    Args:
        sketch: of n clients, m rows and s copies.
        columns: d.
        entry_bound: eta, the largest absolute value of an entry.
        epsilon: > 0.
        delta: in (0, 1).
        corrupt: t'.

    Raises ValueError where the logarithm is undefined; the paper abstains where n < 8 m ln(d
    m/delta) + t', which lacks s and lets such n pass.

    What is wrong: at d = s = 1 the constant 4 is too small for its own claim (its proof gives 16).
    Elsewhere it wastes noise: entry variance over the least is s^3 d ln(1.25 s d/delta)
    (mu*/epsilon)^2 for large n.
    Source: arXiv 2412.00497, Corollary 4.7.
    """
    d = checks.integer("columns", columns, 1)
    eta = checks.squarable("entry_bound", entry_bound)
    epsilon = checks.squarable("epsilon", epsilon)
    delta = checks.fraction("delta", delta)
    checks.instance("sketch", sketch, Sketch)
    m = sketch.height
    s = sketch.copies
    honest = sketch.clients - s - checks.integer("corrupt", corrupt, 0)
    # The paper's count of honest clients in a row fails with the probability subtracted here.
    rest = delta / d - m * math.exp(-max(honest, 0) / (8 * m))
    if honest <= 0 or rest <= 0:
        raise ValueError(
            "Corollary 4.7 is undefined here: too few clients for these rows, columns and delta"
        )
    log = math.log(1.25 * s / rest)
    variance = 4 * s**3 * eta**2 * m * d**2 * log / (epsilon**2 * honest)
    return GaussianNoise(math.sqrt(variance))


def laplace_noise(
    sketch: Sketch, columns: int, entry_bound: float, *, epsilon: float, corrupt: int = 0
) -> LaplaceNoise:
    """The noise of Corollary 4.10, for a dense sketch of m copies.

    Gamma(1/(n/m - t'), b) - Gamma(1/(n/m - t'), b), b = 2 eta m^2 d/epsilon.

    Args:
        sketch: of n clients and m rows.
        columns: d.
        entry_bound: eta.
        epsilon: > 0.
        corrupt: t' < n/m (printed: t' < n, which leaves no whole Laplace).

    Raises ValueError.

    What is wrong: m counts twice, as sensitivity and in the composition, and every entry holds m
    Laplaces where one would do. True epsilon: epsilon/m.
    Source: arXiv 2412.00497, Corollary 4.10.
    """
    d = checks.integer("columns", columns, 1)
    eta = checks.squarable("entry_bound", entry_bound)
    m = checks.instance("sketch", sketch, Sketch).height
    if sketch.copies != m:
        raise ValueError(f"the sketch must be dense, copies = height = {m}, not {sketch.copies}")
    # As printed; in truth each row of a dense sketch holds all n clients, m times as many.
    each_row = sketch.clients / m
    honest = each_row - checks.integer("corrupt", corrupt, 0)
    if honest < 1:
        raise ValueError(f"corrupt must be below clients/height = {each_row:g}, not {corrupt}")
    scale = 2 * eta * m**2 * d / checks.squarable("epsilon", epsilon)
    parts = torch.full((m,), honest, dtype=torch.float64, device=sketch.device)
    return LaplaceNoise(scale, parts)


def experiment_noise(sketch: Sketch, *, epsilon: float, delta: float) -> GaussianNoise:
    """The noise that the paper's experiments seem to have drawn: not (epsilon, delta)-DP.

    sigma^2 = 2 ln(1.25/delta)/(epsilon^2 n): no rows, no columns, no bound. Inferred from the text
    and from the size of the printed errors, which no noise of Corollary 4.7 can give. ``guarantee``
    says what it promises at the bound of the data at hand. Raises ValueError.
    Source: arXiv 2412.00497, Section 6.2, p = 1.
    """
    epsilon = checks.squarable("epsilon", epsilon)
    delta = checks.fraction("delta", delta)
    clients = checks.instance("sketch", sketch, Sketch).clients
    # The textbook's variance at sensitivity 1, over n clients.
    variance = 2 * math.log(1.25 / delta) / (epsilon**2 * clients)
    return GaussianNoise(math.sqrt(variance))
