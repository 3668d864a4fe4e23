"""The statistics of the field, those of any kernel, and ratios of two means."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization import signature_form
from torchdp.pairwise.forms import Form, Pairs, factorized, one_kernel
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.workloads import Workload

FINEST = 1e-6  # tol
MOST = 2**28  # numbers in the points of a statistic: 2 GiB
WEIGHT = 0.1  # of the denominator's squared norm, to that of the numerator


def from_kernel(
    kernel: Tensor | Workload,
    *,
    tol: float = 1e-3,
    pairs: Pairs = Pairs.DISTINCT,
    name: str = "kernel",
) -> PairwiseStatistic:
    """The statistic of any symmetric kernel matrix f, (k, k), by its certified gamma_2 signature
    factorization.

    Of many kernels (*answer, k, k): their points beside each other, so that one message serves all.
    Where users report their types, as to ``queries.LocalOracle``, each kernel's error is what it is
    alone; a message of vectors has the noise of all the kernels' radii.

    The points are the columns of R in f + c 1 1^T = R^T J R, with the free constant c that makes
    gamma_2 least, so radius^2 is at most that least value, up to ``tol``. Kronecker products are
    factored factor by factor, at c = 0 (the best constant of Kendall's tau). tol: at least 1e-6.
    Raises TypeError, ValueError.
    Source: Ghazi et al. (2023), section 3, with the signature form in the place of two factors.
    """
    if checks.positive("tol", tol) < FINEST:
        raise ValueError(
            f"tol must be at least {FINEST:g}, not {tol!r}: less takes long and saves almost no noise"
        )
    if isinstance(kernel, Workload):
        factors = tuple(factor.double() for factor in kernel.factors)
        if len(factors) > 1:
            found = signature_form(replace(kernel, factors=factors), tol)
            points = found.right.mT.contiguous()
            return PairwiseStatistic(kernel.name, points, Form(found.signature), pairs=pairs)
        name = kernel.name
        values = factors[0]
    else:
        values = checks.matrix("kernel", kernel).double()
    if values.ndim == 2:
        points, form = factorized(values, tol)
        return PairwiseStatistic(name, points, form, pairs=pairs)
    answer = values.shape[:-2]
    each = [from_kernel(one, tol=tol, pairs=pairs) for one in values.flatten(0, -3)]
    weights = torch.block_diag(*[one.form.weights for one in each]).unflatten(0, answer)
    constants = values.new_tensor([one.form.constant for one in each]).view(answer)
    points = torch.cat([one.points for one in each], 1)
    return PairwiseStatistic(name, points, Form(weights, constants), pairs=pairs)


def absolute_difference(k: int, *, spacing: float = 1.0) -> PairwiseStatistic:
    """Gini's mean difference: mean of spacing * abs(i - j) over pairs of distinct users, types 0,
    ..., k-1.

    Thresholds: abs(i - j) = (k-1)/2 - 2 <g_i, g_j>, g_i = (+-1/2 for each of the k-1 thresholds).
    Every vector has squared norm spacing (k-1)/2, half of max f and free of log k.
    Source: the free shift of a quadratic form; Ghazi et al. (2023), section 5, bound gamma_2 by
    O(k).
    """
    k, spacing = checks.integer("k", k, 2), checks.squarable("spacing", spacing)
    checks.fits("points", k, k, most=MOST)
    above = torch.arange(k)[:, None] > torch.arange(k - 1)
    points = (above.double() - 0.5) * math.sqrt(2 * spacing)
    weights = -torch.ones(k - 1, dtype=torch.float64)
    return PairwiseStatistic("absolute difference", points, Form(weights, spacing * (k - 1) / 2))


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
    points = torch.where(x < t, 1.0, torch.where(x == t, -t, 0.0)) / (t * (t + 1)).sqrt()
    return PairwiseStatistic(
        "unequal", points, Form(-torch.ones(k - 1, dtype=torch.float64), 1 - 1 / k)
    )


def kendall(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Kendall's tau-a of pairs on an a x b grid; type (y, z) has index y * b + z; ties count 0."""
    return from_kernel(workloads.kendall(a, b), tol=tol)


def auc(k: int, *, label_weight: float = 0.1, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 under labels 0 and 1, class sizes estimated from the same messages.

    Type (y, s) has index y * k + s. With f = (y - y') sgn(s - s')/2 and g = 1[y != y']/2,
    AUC = 1/2 + (mean f / mean g)/2; ties in score count one half. f is the signature form of the
    AUC workload; g = (1 - l l')/4 with l = 2y - 1 is carried by one more coordinate,
    sqrt(label_weight * radius^2) * l, so the vector's squared norm grows by the factor 1 +
    label_weight and no budget is split.
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
    return PairwiseStatistic(
        "auc", points, Form(numerator), below, offset=0.5, limits=(0.0, 1.0), likely=likely
    )


def class_histograms(k: int, positives: float | Sequence[float]) -> Tensor:
    """Public histograms of k scores under labels 0 and 1, for ``prior``: (5 or 5 for each share,
    2k); see :func:`auc`.

    Scores of the two classes even; Beta(2, 3) and (3, 2), (4, 6) and (6, 4), (1, 3) and (1, 2),
    (3, 1) and (2, 1) in k bins: broad and narrow, in the middle and at either end. positives: the
    share of label 1, or a few, in (0, 1).
    """
    given = (
        positives
        if isinstance(positives, Sequence) and not isinstance(positives, str)
        else [positives]
    )
    shares = torch.tensor(
        [checks.fraction("positives", each) for each in given], dtype=torch.float64
    )
    checks.fits("histograms", 10 * len(shares), checks.integer("k", k, 2))
    if not len(shares):
        raise ValueError("positives must hold one share in (0, 1) at least")
    edges = torch.linspace(0, 1, k + 1, dtype=torch.float64, device="cpu").numpy()
    pairs = ((1, 1, 1, 1), (2, 3, 3, 2), (4, 6, 6, 4), (1, 3, 1, 2), (3, 1, 2, 1))
    scores = torch.stack(
        [
            torch.as_tensor(
                np.diff(betainc(*each, edges)), dtype=torch.float64, device=shares.device
            )
            for a in pairs
            for each in (a[:2], a[2:])
        ]
    )
    labels = torch.stack([1 - shares, shares], 1)  # (shares, 2)
    return (labels[:, None, :, None] * scores.unflatten(0, (-1, 2))).flatten(2).flatten(0, 1)


def auc_of_sizes(k: int, negatives: int, positives: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """AUC of scores 0, ..., k-1 where the class sizes are public (who belongs to which class is
    not).

    Type (y, s) has index y * k + s. A mean over all pairs: with f as in :func:`auc` the sum over
    pairs is n+ n- (2 AUC - 1), so AUC = 1/2 + n^2/(2 n+ n-) mean f, exactly, for users of these
    numbers; ties count one half.
    Source: Ghazi et al. (2023), section 5, without the part of epsilon that goes into the class
    sizes.
    """
    negatives, positives = (
        checks.integer("negatives", negatives, 1),
        checks.integer("positives", positives, 1),
    )
    base = from_kernel(workloads.auc(checks.integer("k", k, 2)), tol=tol, pairs=Pairs.ALL)
    share = negatives / (negatives + positives)
    form = Form(base.form.weights / (2 * share * (1 - share)), 0.5)
    limits = (0.0, 1.0)
    return PairwiseStatistic(
        "auc of known class sizes", base.points, form, pairs=Pairs.ALL, limits=limits
    )


def ratio(
    above: PairwiseStatistic,
    below: PairwiseStatistic,
    *,
    offset: float = 0.0,
    limits: tuple[float, float] | None = None,
    weight: float = WEIGHT,
    name: str = "ratio",
) -> PairwiseStatistic:
    """offset + mean f / mean g for two means over distinct pairs, f that of ``above``, g that of
    ``below``.

    A user's vector is both users' vectors one after the other, g's scaled to ``weight`` times the
    squared norm of f's: one message carries both, and no budget is split. above, below: means of
    the same types, neither constant. limits: what the ratio can be. Raises TypeError, ValueError.
    """
    for key, each in (("above", above), ("below", below)):
        if (
            one_kernel(checks.instance(key, each, PairwiseStatistic)).denominator is not None
            or each.pairs is not Pairs.DISTINCT
        ):
            raise ValueError(
                f"{key} must be a mean over distinct pairs, not a ratio or over other pairs"
            )
        if each.radius == 0:
            raise ValueError(f"{key} must not be constant")
    if above.types != below.types:
        raise ValueError(
            f"above and below must have the same types, not {above.types} and {below.types}"
        )
    scale = math.sqrt(checks.positive("weight", weight)) * above.radius / below.radius
    empty = above.form.weights.new_zeros(below.dim)
    numerator = Form(torch.cat([above.form.weights, empty]), above.form.constant)
    weights = torch.cat([above.form.weights.new_zeros(above.dim), below.form.weights / scale**2])
    return PairwiseStatistic(
        name,
        torch.cat([above.points, scale * below.points], 1),
        numerator,
        Form(weights, below.form.constant),
        offset=offset,
        limits=limits,
    )


def gini(k: int, *, low: float = 0.0, high: float = 1.0) -> PairwiseStatistic:
    """The Gini coefficient of k numbers evenly from low to high: mean abs(x - y) over twice the
    mean.

    Over distinct pairs: n/(n - 1) times the area between the Lorenz curve and the diagonal. The
    denominator is the mean of x + y over pairs, which is affine in each: z w with z = (x - c)/s + s
    and (x - c)/s - s, weights 1/2 and -1/2, differ by x + y - 2 c. low, high: 0 <= low < high, the
    numbers of types 0 and k - 1. Raises ValueError.
    Source: Gini (1914); Ghazi et al. (2023), section 5, for the numerator.
    """
    k, low = checks.integer("k", k, 2), checks.non_negative("low", low)
    if not checks.squarable("high", high) > low:
        raise ValueError(f"high must be above low = {low:g}, not {high!r}")
    above = absolute_difference(k, spacing=(high - low) / (k - 1))
    numbers = torch.linspace(low, high, k, dtype=torch.float64)
    middle, half = (low + high) / 2, (high - low) / 2
    apart, scale = numbers - middle, math.sqrt(half)
    points = torch.stack([apart / scale + scale, apart / scale - scale], 1)
    weights = torch.tensor([0.5, -0.5], dtype=torch.float64)
    both = PairwiseStatistic("sum", points, Form(weights, 2 * middle))
    return ratio(above, both, limits=(0.0, 1.0), name="Gini coefficient")


def gamma(a: int, b: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Goodman and Kruskal's gamma on an a x b grid: (concordant - discordant)/(concordant +
    discordant) pairs.

    Type (y, z) has index y * b + z; pairs tied in y or z count in neither. Raises ValueError.
    Source: Goodman, Kruskal (1954).
    """
    signs = workloads.kendall(a, b)
    untied = Workload("untied", tuple(factor.abs() for factor in signs.factors))
    above, below = from_kernel(signs, tol=tol), from_kernel(untied, tol=tol)
    return ratio(above, below, limits=(-1.0, 1.0), name="gamma")


def concordance(times: int, scores: int, *, tol: float = 1e-3) -> PairwiseStatistic:
    """Harrell's concordance index of risk scores 0, ..., scores - 1 and times 0, ..., times - 1,
    some censored.

    Type (d, t, s) has index (d * times + t) * scores + s, d = 1 where the event was seen at t and 0
    where only that it came later. Comparable are pairs of which the one of less time has d = 1; of
    equal times, one of either d. Of these the share whose earlier event has the higher score; equal
    scores count one half: 1/2 + mean f/mean g with g = 1[comparable] and f = g
    sgn(difference of scores)/2. Raises ValueError.
    Source: Harrell, Califf, Pryor, Lee, Rosati (1982).
    """
    above, comparable = concordance_kernels(
        checks.integer("times", times, 2), checks.integer("scores", scores, 2)
    )
    f, g = (from_kernel(each, tol=tol) for each in (above, comparable))
    return ratio(f, g, offset=0.5, limits=(0.0, 1.0), name="concordance index")


def concordance_kernels(times: int, scores: int) -> tuple[Tensor, Tensor]:
    """f and g of :func:`concordance`, (k, k) each, k = 2 times scores."""
    checks.fits("kernel", 2 * times * scores, 2 * times * scores, most=2**24)
    seen, time, score = (
        torch.cartesian_prod(torch.arange(2), torch.arange(times), torch.arange(scores)).double().mT
    )
    before = time[:, None] < time
    tied = (time[:, None] == time) & (seen[:, None] > seen)
    first = (seen[:, None] * (before | tied)).double()  # x had the event before y's time
    sign = (score[:, None] - score).sign()
    return (first * sign + first.mT * sign.mT) / 2, first + first.mT
