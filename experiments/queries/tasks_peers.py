"""OpenDP's and diffprivlib's answers to the tasks of ``tasks.py``, at the same guarantee: run by it.

Their histograms are private for adding or removing one person: at half of epsilon they are for
replacing one. Arguments: the people's file, runs. Prints a line of JSON for each task.
"""

import json
import math
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
EPSILON = 1.0
DELTA = 1e-6


def noisy_counts(counts, scale=2 / EPSILON):
    """Discrete Laplace noise on whole numbers of which a person moves two by one."""
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    return np.array(dp.m.make_laplace(*space, scale=scale)([int(count) for count in counts]))


def noisy_number(number, sensitivity):
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    return dp.m.make_laplace(*space, scale=sensitivity / EPSILON)(float(number))


def quantile(values, alpha, epsilon):
    """By the exponential mechanism over candidates half a centimetre apart."""
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    candidates = np.linspace(140, 210, 141).tolist()

    def made(scale):
        scores = dp.t.make_quantile_score_candidates(*space, candidates, alpha)
        best = dp.m.make_noisy_max(
            scores.output_domain,
            scores.output_metric,
            dp.max_divergence(),
            scale=scale,
            negate=True,
        )
        return scores >> best

    # Replacing one is two steps of adding or removing.
    scale = dp.binary_search_param(made, d_in=2, d_out=epsilon, T=float)
    return candidates[made(scale)(values.tolist())]


def gaussian(counts, distance):
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def made(scale):
        return dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=scale))

    low, high = 1.0, 1e4
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        if made(middle).map(distance).epsilon(DELTA) > EPSILON:
            low = middle
        else:
            high = middle
    return np.array(dp.m.make_gaussian(*space, scale=high)([int(count) for count in counts]))


def named(words):
    """Words whose noisy count passes a threshold, for one word a person added or removed."""
    space = (
        dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int)),
        dp.l01inf_distance(dp.absolute_distance(T=int)),
    )
    epsilon, delta = EPSILON / 2, DELTA / 2
    threshold = 1
    while True:
        release = dp.m.make_laplace_threshold(*space, scale=1 / epsilon, threshold=threshold)
        spent = release.map((1, 1, 1))
        if spent[1] <= delta:
            break
        threshold += 1
    labels, counts = np.unique(words, return_counts=True)
    return release(dict(zip(labels.tolist(), counts.tolist(), strict=True)))


def by_opendp(t):
    town = np.bincount(t["town"], minlength=8)
    cells = np.bincount(2 * t["town"] + t["vote"], minlength=16)
    grid, *_ = np.histogram2d(
        t["age"], t["height"], bins=[np.linspace(17, 90, 33), np.linspace(140, 210, 33)]
    )
    height = t["height"]
    n = len(height)
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    pairs = [(i, j) for i in range(20) for j in range(i + 1, 20)]
    tables = [np.bincount(t["bits"][:, i] + 2 * t["bits"][:, j], minlength=4) for i, j in pairs]
    votes = np.bincount(t["vote"], minlength=2)
    ages = np.bincount(t["age"] - 18, minlength=72)
    yield "count_of_those_who", "discrete Laplace", lambda: noisy_counts(votes)
    yield "histogram", "discrete Laplace", lambda: noisy_counts(town)
    yield "mean_of_a_number", "Laplace", lambda: [noisy_number(height.mean(), 70 / n)]
    yield "median", "exponential", lambda: [quantile(height, 0.5, EPSILON)]
    yield (
        "quantiles",
        "exponential, epsilon/5",
        lambda: [quantile(height, p, EPSILON / 5) for p in shares],
    )
    yield "distribution_function", "counts, added up", lambda: noisy_counts(ages).cumsum() / n
    yield "contingency_table", "discrete Laplace", lambda: noisy_counts(cells)
    yield "heat_map", "discrete Laplace", lambda: noisy_counts(grid.ravel())
    yield (
        "means_of_private_groups",
        "counts, sums, epsilon/2",
        lambda: (
            175
            + (np.bincount(t["town"], height - 175, 8) + np.random.default_rng().laplace(0, 140, 8))
            / noisy_counts(town, 4 / EPSILON)
        ),
    )
    yield "unknown_categories", "threshold", lambda: named(t["words"])
    yield (
        "pairs_of_twenty_columns",
        "Gaussian on all cells",
        lambda: gaussian(np.concatenate(tables), math.sqrt(2 * 190)),
    )


def by_diffprivlib(t):
    height = t["height"]
    bounds = (140, 210)
    rows, label = t["rows"], t["label"]
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    edges = [np.linspace(17, 90, 33), np.linspace(140, 210, 33)]
    ends = (-np.ones(8), np.ones(8))

    def ridge():
        model = models.LinearRegression(epsilon=EPSILON, bounds_X=ends, bounds_y=(-1, 1))
        return ((model.fit(rows, t["target"]).predict(rows) - t["target"]) ** 2).mean()

    def components():
        model = models.PCA(
            n_components=2, epsilon=EPSILON, data_norm=1.0, bounds=ends, centered=True
        )
        return 1 - (model.fit(rows).transform(rows) ** 2).sum() / (rows**2).sum()

    def logistic():
        model = models.LogisticRegression(epsilon=EPSILON, data_norm=1.0)
        return 1 - model.fit(rows, label).score(rows, label)

    yield (
        "histogram",
        "epsilon/2",
        lambda: tools.histogram(t["town"], EPSILON / 2, bins=8, range=(0, 7))[0],
    )
    yield "mean_of_a_number", "", lambda: [tools.mean(height, epsilon=EPSILON, bounds=bounds)]
    yield "variance", "", lambda: [tools.var(height, epsilon=EPSILON, bounds=bounds)]
    yield "median", "exponential", lambda: [tools.median(height, epsilon=EPSILON, bounds=bounds)]
    yield (
        "quantiles",
        "epsilon/5 each",
        lambda: tools.quantile(height, shares, epsilon=EPSILON, bounds=bounds),
    )
    yield (
        "heat_map",
        "epsilon/2",
        lambda: tools.histogram2d(t["age"], height, EPSILON / 2, bins=edges)[0].ravel(),
    )
    yield "ridge", "LinearRegression", ridge
    yield "principal_components", "", components
    yield "logistic_regression", "objective perturbation", logistic


def main():
    people = dict(np.load(sys.argv[1]))
    for package, tasks in (("OpenDP", by_opendp), ("diffprivlib", by_diffprivlib)):
        for name, note, release in tasks(people):
            answers = []
            times = []
            for _ in range(int(sys.argv[2])):
                start = time.process_time()
                answer = release()
                times.append(time.process_time() - start)
                answers.append(answer if isinstance(answer, dict) else np.asarray(answer).tolist())
            print(json.dumps([package, name, note, answers, float(np.median(times))]))


if __name__ == "__main__":
    import opendp.prelude as dp
    from diffprivlib import models, tools

    dp.enable_features("contrib", "idealized-numerics")
    main()
