"""The statistics of the field, those of any kernel, and ratios of two means."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization import signature_form
from torchdp.pairwise.forms import Form, Pairs, factorized, one_kernel
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.workloads import Workload

# The least tol: below it factorizations take long and save almost no noise.
FINEST = 1e-6
# Numbers in the points of a statistic: 2 GiB.
MOST = 2**28
# Of the denominator's squared norm, to that of the numerator.
WEIGHT = 0.1
# Numbers in a kernel that is factorized.
MOST_KERNEL = 2**24
# Beta distributions of the scores of the two classes: broad and narrow, in the middle and at
# either end.
SCORES = (
    ((1, 1), (1, 1)),
    ((2, 3), (3, 2)),
    ((4, 6), (6, 4)),
    ((1, 3), (1, 2)),
    ((3, 1), (2, 1)),
)


def from_kernel(
    kernel: Tensor | Workload,
    *,
    tol: float = 1e-3,
    pairs: Pairs = Pairs.DISTINCT,
    name: str = "kernel",
) -> PairwiseStatistic:
    """The statistic of any symmetric kernel f by its certified gamma_2 signature factorization.

    The points are the columns of R in f + c 1 1^T = R^T J R, with the free constant c that makes
    gamma_2 least, so radius^2 is at most that least value, up to ``tol``. Kronecker products are
    factored factor by factor, at c = 0 (the best constant of Kendall's tau).

    Args:
        kernel: f, (k, k), or many, (*answer, k, k), whose points stand beside each other, so that
            one message serves all. Where users report their types, as to ``queries.LocalOracle``,
            each kernel's error is what it is alone; a message of vectors has the noise of all the
            kernels' radii.
        tol: of the factorization, relative, at least 1e-6.
        pairs: which are averaged over.
        name: what the statistic is called.

    Raises TypeError, ValueError.
    Source: Ghazi et al. (2023), section 3, with the signature form in the place of two factors.
    """
    if checks.positive("tol", tol) < FINEST:
        raise ValueError(
            f"tol must be at least {FINEST:g}, not {tol!r}: less takes long and saves almost no "
            "noise"
        )
    if isinstance(kernel, Workload):
        name = kernel.name
        if len(kernel.factors) > 1:
            factors = tuple(factor.double() for factor in kernel.factors)
            factorization = signature_form(replace(kernel, factors=factors), tol)
            points = factorization.right.mT.contiguous()
            return PairwiseStatistic(name, points, Form(factorization.signature), pairs=pairs)
        kernel = kernel.factors[0]
    kernel = checks.matrix("kernel", kernel).double()
    if kernel.ndim == 2:
        points, form = factorized(kernel, tol)
        return PairwiseStatistic(name, points, form, pairs=pairs)
    columns = []
    weights = []
    constants = []
    for f in kernel.flatten(0, -3):
        own, form = factorized(f, tol)
        columns.append(own)
        weights.append(form.weights)
        constants.append(form.constant)
    answer = kernel.shape[:-2]
    together = Form(
        torch.block_diag(*weights).unflatten(0, answer),
        kernel.new_tensor(constants).view(answer),
    )
    return PairwiseStatistic(name, torch.cat(columns, 1), together, pairs=pairs)


def absolute_difference(k: int, *, spacing: float = 1.0) -> PairwiseStatistic:
    """Gini's mean difference: the mean of spacing * abs(i - j), types 0, ..., k - 1.

    Thresholds: abs(i - j) = (k-1)/2 - 2 <g_i, g_j>, g_i = (+-1/2 for each of the k-1 thresholds).
    Every vector has squared norm spacing (k-1)/2, half of max f and free of log k.
    Source: the free shift of a quadratic form; Ghazi et al. (2023), section 5, bound gamma_2 by
    O(k).
    """
    k = checks.integer("k", k, 2)
    spacing = checks.squarable("spacing", spacing)
    checks.fits("points", k, k, most=MOST)
    above = torch.arange(k)[:, None] > torch.arange(k - 1)
    points = (above.double() - 0.5) * math.sqrt(2 * spacing)
    form = Form(-torch.ones_like(points[0]), spacing * (k - 1) / 2)
    return PairwiseStatistic("absolute difference", points, form)


def unequal(k: int) -> PairwiseStatistic:
    """Gini's diversity index: the fraction of pairs of distinct users whose types differ.

    1[i != j] = 1 - 1/k - <e_i - 1/k, e_j - 1/k>: the corners of a simplex, in k - 1 dimensions
    (Helmert's basis).
    Source: the free shift; Ghazi et al. (2023), section 5, use W = 1 1^T - I as it is.
    """
    k = checks.integer("k", k, 2)
    checks.fits("points", k, k, most=MOST)
    t = torch.arange(1, k, dtype=torch.float64)
    x = torch.arange(k, dtype=torch.float64)[:, None]
    # Column t is 1 at types below t and -t at type t, before it is scaled to length 1.
    contrasts = (x < t).double() - t * (x == t)
    points = contrasts / (t * (t + 1)).sqrt()
    return PairwiseStatistic("unequal", points, Form(-torch.ones_like(t), 1 - 1 / k))


def kendall(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Kendall's tau-a of pairs on an a x b grid; type (y, z) has index y * b + z; ties count 0."""
    return from_kernel(workloads.kendall(a, b), tol=tol)


def auc(k: int, *, label_weight: float = 0.1, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 under labels 0 and 1, class sizes estimated from the same messages.

    Type (y, s) has index y * k + s. With f = (y - y') sgn(s - s')/2 and g = 1[y != y']/2, AUC = 1/2
    + (mean f / mean g)/2; ties in score count one half. f is the signature form of the AUC
    workload; g = (1 - l l')/4 with l = 2y - 1 is carried by one more coordinate, sqrt(label_weight
    * radius^2) * l, so the vector's squared norm grows by the factor 1 + label_weight and no budget
    is split.
    Source: Ghazi et al. (2023), section 5, who spend half of epsilon on the class sizes.
    """
    base = from_kernel(workloads.auc(checks.integer("k", k, 2)), tol=tol)
    square = checks.squarable("label_weight", label_weight) * base.radius**2
    zero = base.points.new_zeros(1)
    sign = torch.ones_like(base.points[:, :1])
    sign[:k] = -1.0
    points = torch.cat([base.points, sign * math.sqrt(square)], 1)
    f = torch.cat([base.form.weights / 2, zero])
    # The labels' coordinates multiply to square l l', of which g takes -l l'/4.
    g = torch.cat([torch.zeros_like(base.form.weights), zero - 1 / (4 * square)])
    return PairwiseStatistic(
        "auc",
        points,
        Form(f),
        Form(g, 0.25),
        offset=0.5,
        limits=(0.0, 1.0),
        likely=class_histograms(k, (0.1, 0.5, 0.9)),
    )


def class_histograms(k: int, positives: float | Sequence[float]) -> Tensor:
    """Public histograms of k scores under labels 0 and 1, for ``prior``; see :func:`auc`.

    Scores of the two classes even; Beta(2, 3) and (3, 2), (4, 6) and (6, 4), (1, 3) and (1, 2),
    (3, 1) and (2, 1) in k bins: broad and narrow, in the middle and at either end.

    Args:
        k: scores, 2 at least.
        positives: the share of label 1, or several, in (0, 1).

    Returns:
        Five histograms for each share, (5 shares, 2k).
    """
    given: Sequence[Any] = [positives]
    if isinstance(positives, Sequence) and not isinstance(positives, str):
        given = positives
    shares = [checks.fraction("positives", share) for share in given]
    checks.fits("histograms", 10 * len(shares), checks.integer("k", k, 2))
    if not shares:
        raise ValueError("positives must hold one share in (0, 1) at least")
    a, b = np.array(SCORES).T[..., None]  # (classes, histograms, 1) each
    edges = torch.linspace(0, 1, k + 1, dtype=torch.float64, device="cpu").numpy()
    scores = np.diff(betainc(a, b, edges))
    label = torch.tensor(shares, dtype=torch.float64)
    labels = torch.stack([1 - label, label], 1)
    joint = labels[:, None, :, None] * torch.from_numpy(scores).to(labels).transpose(0, 1)
    return joint.flatten(2).flatten(0, 1)


def auc_of_sizes(k: int, negatives: int, positives: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 where the class sizes are public (not who is in which class).

    Type (y, s) has index y * k + s. A mean over all pairs: with f as in :func:`auc` the sum over
    pairs is n+ n- (2 AUC - 1), so AUC = 1/2 + n^2/(2 n+ n-) mean f, exactly, for users of these
    numbers; ties count one half.
    Source: Ghazi et al. (2023), section 5, without the part of epsilon that goes into the class
    sizes.
    """
    negatives = checks.integer("negatives", negatives, 1)
    positives = checks.integer("positives", positives, 1)
    base = from_kernel(workloads.auc(checks.integer("k", k, 2)), tol=tol, pairs=Pairs.ALL)
    share = negatives / (negatives + positives)
    form = Form(base.form.weights / (2 * share * (1 - share)), 0.5)
    return replace(base, name="auc of known class sizes", form=form, limits=(0.0, 1.0))


def ratio(
    above: PairwiseStatistic,
    below: PairwiseStatistic,
    *,
    offset: float = 0.0,
    limits: tuple[float, float] | None = None,
    weight: float = WEIGHT,
    name: str = "ratio",
) -> PairwiseStatistic:
    """offset + mean f / mean g for two means over distinct pairs.

    A user's vector is both vectors one after the other, g's scaled to ``weight`` times the squared
    norm of f's: one message carries both, and no budget is split.

    Args:
        above: the mean of f.
        below: the mean of g, of the same types; neither is constant.
        offset: what is added.
        limits: what the ratio can be.
        weight: > 0.
        name: what the ratio is called.

    Raises TypeError, ValueError.
    """
    for key, mean in (("above", above), ("below", below)):
        checks.instance(key, mean, PairwiseStatistic)
        if one_kernel(mean).denominator is not None or mean.pairs is not Pairs.DISTINCT:
            raise ValueError(
                f"{key} must be a mean over distinct pairs, not a ratio or over other pairs"
            )
        if mean.radius == 0:
            raise ValueError(f"{key} must not be constant")
    if above.types != below.types:
        raise ValueError(
            f"above and below must have the same types, not {above.types} and {below.types}"
        )
    scale = math.sqrt(checks.positive("weight", weight)) * above.radius / below.radius
    points = torch.cat([above.points, scale * below.points], 1)
    f = above.form.weights
    # A form is of two coordinates: the square undoes the points' scale.
    g = below.form.weights / scale**2
    return PairwiseStatistic(
        name,
        points,
        Form(torch.cat([f, torch.zeros_like(g)]), above.form.constant),
        Form(torch.cat([torch.zeros_like(f), g]), below.form.constant),
        offset=offset,
        limits=limits,
    )


def gini(k: int, *, low: float = 0.0, high: float = 1.0) -> PairwiseStatistic:
    """The Gini coefficient of k numbers evenly from low to high: E abs(x - y) over twice the mean.

    Over distinct pairs: n/(n - 1) times the area between the Lorenz curve and the diagonal. The
    denominator is the mean of x + y over pairs, which is affine in each: z w with z = (x - c)/s + s
    and (x - c)/s - s, weights 1/2 and -1/2, differ by x + y - 2 c. low, high: 0 <= low < high, the
    numbers of types 0 and k - 1. Raises ValueError.
    Source: Gini (1914); Ghazi et al. (2023), section 5, for the numerator.
    """
    k = checks.integer("k", k, 2)
    low = checks.non_negative("low", low)
    if not checks.squarable("high", high) > low:
        raise ValueError(f"high must be above low = {low:g}, not {high!r}")
    differences = absolute_difference(k, spacing=(high - low) / (k - 1))
    c = (low + high) / 2
    s = math.sqrt((high - low) / 2)  # both coordinates are then of one size
    scaled = (torch.linspace(low, high, k, dtype=torch.float64) - c) / s
    points = torch.stack([scaled + s, scaled - s], 1)
    weights = torch.tensor([0.5, -0.5], dtype=torch.float64)
    sums = PairwiseStatistic("sum", points, Form(weights, 2 * c))
    return ratio(differences, sums, limits=(0.0, 1.0), name="Gini coefficient")


def gamma(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Goodman and Kruskal's gamma on an a x b grid.

    (concordant - discordant)/(concordant + discordant) pairs. Type (y, z) has index y * b + z;
    pairs tied in y or z count in neither. Raises ValueError.
    Source: Goodman, Kruskal (1954).
    """
    signs = workloads.kendall(a, b)
    untied = Workload("untied", tuple(factor.abs() for factor in signs.factors))
    f = from_kernel(signs, tol=tol)
    g = from_kernel(untied, tol=tol)
    return ratio(f, g, limits=(-1.0, 1.0), name="gamma")


def concordance(times: int, scores: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Harrell's concordance index of risk scores and times, some of them censored.

    Scores are 0, ..., scores - 1 and times 0, ..., times - 1. Type (d, t, s) has index (d * times +
    t) * scores + s, d = 1 where the event was seen at t and 0 where only that it came later.
    Comparable are pairs of which the one of less time has d = 1; of equal times, one of either d.
    Of these the share whose earlier event has the higher score; equal scores count one half: 1/2 +
    mean f/mean g with g = 1[comparable] and f = g sgn(difference of scores)/2. Raises ValueError.
    Source: Harrell, Califf, Pryor, Lee, Rosati (1982).
    """
    times = checks.integer("times", times, 2)
    scores = checks.integer("scores", scores, 2)
    k = 2 * times * scores
    checks.fits("kernel", k, k, most=MOST_KERNEL)
    types = torch.cartesian_prod(torch.arange(2), torch.arange(times), torch.arange(scores))
    seen, time, score = types.double().mT
    before = time[:, None] < time
    tied = (time[:, None] == time) & (seen[:, None] > seen)
    first = seen[:, None] * (before | tied)  # x had the event before y's time
    concordant = first * (score[:, None] - score).sign()
    f = from_kernel((concordant + concordant.mT) / 2, tol=tol)
    # Of two users at most one comes first: the sum is 0 or 1.
    g = from_kernel(first + first.mT, tol=tol)
    return ratio(f, g, offset=0.5, limits=(0.0, 1.0), name="concordance index")
