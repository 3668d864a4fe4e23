"""The noise of the linear-transformation model's paper, as printed and as its experiments seem to
have drawn it.

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
    """sigma^2 = 4 s^3 eta^2 m d^2 ln(1.25 s/(delta/d - m e^{-(n - s - t')/(8 m)}))/(epsilon^2 (n -
    s - t')).

    columns: d. entry_bound: eta, the largest absolute value of an entry. corrupt: t'. Raises
    ValueError where the logarithm is undefined; the paper abstains where n < 8 m ln(d m/delta) +
    t', which lacks s and lets such n pass.

    What is wrong: at d = s = 1 the constant 4 is too small for its own claim (its proof gives 16).
    Elsewhere it wastes noise: entry variance over the least is s^3 d ln(1.25 s d/delta)
    (mu*/epsilon)^2 for large n.
    Source: arXiv 2412.00497, Corollary 4.7.
    """
    d, eta = checks.integer("columns", columns, 1), checks.squarable("entry_bound", entry_bound)
    epsilon, delta = checks.squarable("epsilon", epsilon), checks.fraction("delta", delta)
    checks.instance("sketch", sketch, Sketch)
    n, m, s = sketch.clients, sketch.height, sketch.copies
    left = n - s - checks.integer("corrupt", corrupt, 0)
    rest = delta / d - m * math.exp(-max(left, 0) / (8 * m))
    if left <= 0 or rest <= 0:
        raise ValueError(
            "Corollary 4.7 is undefined here: too few clients for these rows, columns and delta"
        )
    variance = 4 * s**3 * eta**2 * m * d**2 * math.log(1.25 * s / rest) / (epsilon**2 * left)
    return GaussianNoise(math.sqrt(variance))


def laplace_noise(
    sketch: Sketch, columns: int, entry_bound: float, *, epsilon: float, corrupt: int = 0
) -> LaplaceNoise:
    """Gamma(1/(n/m - t'), b) - Gamma(1/(n/m - t'), b), b = 2 eta m^2 d/epsilon, for a dense sketch
    of m copies.

    columns: d. entry_bound: eta. corrupt: t' < n/m (printed: t' < n, which leaves no whole
    Laplace). Raises ValueError.

    What is wrong: m counts twice, as sensitivity and in the composition, and every entry holds m
    Laplaces where one would do. True epsilon: epsilon/m.
    Source: arXiv 2412.00497, Corollary 4.10.
    """
    d, eta = checks.integer("columns", columns, 1), checks.squarable("entry_bound", entry_bound)
    if checks.instance("sketch", sketch, Sketch).copies != sketch.height:
        raise ValueError(
            f"the sketch must be dense, copies = height = {sketch.height}, not {sketch.copies}"
        )
    parts = sketch.clients / sketch.height - checks.integer("corrupt", corrupt, 0)
    if parts < 1:
        raise ValueError(
            f"corrupt must be below clients/height = {sketch.clients / sketch.height:g}, not {corrupt}"
        )
    scale = 2 * eta * sketch.height**2 * d / checks.squarable("epsilon", epsilon)
    return LaplaceNoise(
        scale, torch.full((sketch.height,), parts, dtype=torch.float64, device=sketch.device)
    )


def experiment_noise(sketch: Sketch, *, epsilon: float, delta: float) -> GaussianNoise:
    """sigma^2 = 2 ln(1.25/delta)/(epsilon^2 n): no rows, no columns, no bound, so not
    (epsilon, delta)-DP.

    Inferred from the text and from the size of the printed errors, which no noise of Corollary 4.7
    can give. ``guarantee`` says what it promises at the bound of the data at hand. Raises
    ValueError.
    Source: arXiv 2412.00497, Section 6.2, p = 1.
    """
    epsilon, delta = checks.squarable("epsilon", epsilon), checks.fraction("delta", delta)
    clients = checks.instance("sketch", sketch, Sketch).clients
    return GaussianNoise(math.sqrt(2 * math.log(1.25 / delta) / (epsilon**2 * clients)))
