"""The statistics of the field, and those of any kernel."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization import free_constant, signature_form
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.workloads import Workload

FINEST = 1e-6  # tol
MOST = 2**28  # numbers in the points of a statistic: 2 GiB


def from_kernel(
    kernel: Tensor | Workload, *, tol: float = 1e-3, pairs: Pairs = Pairs.DISTINCT, name: str = "kernel"
) -> PairwiseStatistic:
    """The statistic of any symmetric kernel matrix f, (k, k), by its certified gamma_2 signature factorization.

    Of many kernels (*answer, k, k): their points beside each other, so that one message serves all. Where users report
    their types, as to :class:`PairReports`, each kernel's error is what it is alone; a message of vectors
    has the noise of all the kernels' radii.

    The points are the columns of R in f + c 1 1^T = R^T J R, with the free constant c that makes gamma_2 least, so
    radius^2 is at most that least value, up to ``tol``. Kronecker products are factored factor by factor, at c = 0
    (the best constant of Kendall's tau). tol: at least 1e-6. Raises TypeError, ValueError.
    Source: Ghazi et al. (2023), section 3, with the signature form in the place of two factors.
    """
    if checks.positive("tol", tol) < FINEST:
        raise ValueError(
            f"tol must be at least {FINEST:g}, not {tol!r}: less takes long and saves almost no noise"
        )
    if isinstance(kernel, Workload):
        name, kernel = kernel.name, replace(kernel, factors=tuple(factor.double() for factor in kernel.factors))
        kernel = kernel.factors[0] if len(kernel.factors) == 1 else kernel
    else:
        kernel = checks.matrix("kernel", kernel).double()
        if kernel.ndim > 2:
            each = [from_kernel(one, tol=tol, pairs=pairs) for one in kernel.flatten(0, -3)]
            weights = torch.block_diag(*(one.form.weights for one in each)).unflatten(0, kernel.shape[:-2])
            form = Form(weights, kernel.new_tensor([one.form.constant for one in each]).view(kernel.shape[:-2]))
            return PairwiseStatistic(name, torch.cat([one.points for one in each], 1), form, pairs=pairs)
    constant = 0.0
    if not isinstance(kernel, Workload):
        constant = free_constant(kernel, tol=tol).constant
        kernel = kernel + constant
    factors = signature_form(kernel, tol)
    return PairwiseStatistic(name, factors.right.mT.contiguous(), Form(factors.signature, -constant), pairs=pairs)


def absolute_difference(k: int, *, spacing: float = 1.0) -> PairwiseStatistic:
    """Gini's mean difference: mean of spacing * abs(i - j) over pairs of distinct users, types 0, ..., k-1.

    Thresholds: abs(i - j) = (k-1)/2 - 2 <g_i, g_j>, g_i = (+-1/2 for each of the k-1 thresholds). Every vector
    has squared norm spacing (k-1)/2, half of max f and free of log k.
    Source: the free shift of a quadratic form; Ghazi et al. (2023), section 5, bound gamma_2 by O(k).
    """
    k, spacing = checks.integer("k", k, 2), checks.squarable("spacing", spacing)
    checks.fits("points", k, k, most=MOST)
    above = torch.arange(k)[:, None] > torch.arange(k - 1)
    points = (above.double() - 0.5) * math.sqrt(2 * spacing)
    weights = -torch.ones(k - 1, dtype=torch.float64)
    return PairwiseStatistic("absolute difference", points, Form(weights, spacing * (k - 1) / 2))


def unequal(k: int) -> PairwiseStatistic:
    """Gini's diversity index: the fraction of pairs of distinct users whose types differ.

    1[i != j] = 1 - 1/k - <e_i - 1/k, e_j - 1/k>: the corners of a simplex, in k - 1 dimensions (Helmert's basis).
    Source: the free shift; Ghazi et al. (2023), section 5, use W = 1 1^T - I as it is.
    """
    k = checks.integer("k", k, 2)
    checks.fits("points", k, k, most=MOST)
    t = torch.arange(1, k, dtype=torch.float64)
    x = torch.arange(k, dtype=torch.float64)[:, None]
    points = torch.where(x < t, 1.0, torch.where(x == t, -t, 0.0)) / (t * (t + 1)).sqrt()
    return PairwiseStatistic("unequal", points, Form(-torch.ones(k - 1, dtype=torch.float64), 1 - 1 / k))


def kendall(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Kendall's tau-a of pairs on an a x b grid; type (y, z) has index y * b + z; ties count 0."""
    return from_kernel(workloads.kendall(a, b), tol=tol)


def auc(k: int, *, label_weight: float = 0.1, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 under labels 0 and 1, class sizes estimated from the same messages.

    Type (y, s) has index y * k + s. With f = (y - y') sgn(s - s')/2 and g = 1[y != y']/2,
    AUC = 1/2 + (mean f / mean g)/2; ties in score count one half. f is the signature form of the AUC workload;
    g = (1 - l l')/4 with l = 2y - 1 is carried by one more coordinate, sqrt(label_weight * radius^2) * l, so the
    vector's squared norm grows by the factor 1 + label_weight and no budget is split.
    Source: Ghazi et al. (2023), section 5, who spend half of epsilon on the class sizes.
    """
    base = from_kernel(workloads.auc(checks.integer("k", k, 2)), tol=tol)
    square = checks.squarable("label_weight", label_weight) * base.radius**2
    label = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(k) * math.sqrt(square)
    numerator = torch.cat([base.form.weights / 2, torch.zeros(1, dtype=torch.float64)])
    denominator = torch.zeros_like(numerator)
    denominator[-1] = -1 / (4 * square)
    points = torch.cat([base.points, label[:, None]], 1)
    likely = class_histograms(k, (0.1, 0.5, 0.9))
    below = Form(denominator, 0.25)
    return PairwiseStatistic("auc", points, Form(numerator), below, offset=0.5, limits=(0.0, 1.0), likely=likely)


def class_histograms(k: int, positives: float | Sequence[float]) -> Tensor:
    """Public histograms of k scores under labels 0 and 1, for ``prior``: (5 or 5 for each share, 2k); see :func:`auc`.

    Scores of the two classes even; Beta(2, 3) and (3, 2), (4, 6) and (6, 4), (1, 3) and (1, 2), (3, 1) and (2, 1) in k
    bins: broad and narrow, in the middle and at either end. positives: the share of label 1, or a few, in (0, 1).
    """
    given = positives if isinstance(positives, Sequence) and not isinstance(positives, str) else [positives]
    shares = torch.tensor([checks.fraction("positives", each) for each in given], dtype=torch.float64)
    checks.fits("histograms", 10 * len(shares), checks.integer("k", k, 2))
    if not len(shares):
        raise ValueError("positives must hold one share in (0, 1) at least")
    edges = torch.linspace(0, 1, k + 1, dtype=torch.float64, device="cpu").numpy()
    pairs = ((1, 1, 1, 1), (2, 3, 3, 2), (4, 6, 6, 4), (1, 3, 1, 2), (3, 1, 2, 1))
    scores = torch.stack(
        [
            torch.as_tensor(np.diff(betainc(*each, edges)), dtype=torch.float64, device=shares.device)
            for a in pairs
            for each in (a[:2], a[2:])
        ]
    )
    labels = torch.stack([1 - shares, shares], 1)  # (shares, 2)
    return (labels[:, None, :, None] * scores.unflatten(0, (-1, 2))).flatten(2).flatten(0, 1)


def auc_of_sizes(k: int, negatives: int, positives: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 where the class sizes are public (who belongs to which class is not).

    Type (y, s) has index y * k + s. A mean over all pairs: with f as in :func:`auc` the sum over pairs is
    n+ n- (2 AUC - 1), so AUC = 1/2 + n^2/(2 n+ n-) mean f, exactly, for users of these numbers; ties count one half.
    Source: Ghazi et al. (2023), section 5, without the part of epsilon that goes into the class sizes.
    """
    negatives, positives = checks.integer("negatives", negatives, 1), checks.integer("positives", positives, 1)
    base = from_kernel(workloads.auc(checks.integer("k", k, 2)), tol=tol, pairs=Pairs.ALL)
    share = negatives / (negatives + positives)
    form = Form(base.form.weights / (2 * share * (1 - share)), 0.5)
    limits = (0.0, 1.0)
    return PairwiseStatistic("auc of known class sizes", base.points, form, pairs=Pairs.ALL, limits=limits)
