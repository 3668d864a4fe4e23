"""The claims of Edmonds, Nikolov, Ullman (2020), and what the tables of our scripts say of each."""

import math

from papers_base import (
    Finding,
    Paper,
    Part,
    farthest,
    least_likely,
    theorems,
    where,
    worst,
    worst_ratio,
)

PAPERS = "gamma_F, PrivUnit"  # factorization, by the better randomizer


def lower_bounds(tables):
    rows = [row for row in tables["local"] if row["needed"]]
    row = worst_ratio(rows, "needed", "enough")
    at = f"users at RMSE {row['alpha']:g} of the worst query, epsilon = {row['epsilon']:g}, {row['workload']}"
    yield Finding.at_most(
        "Theorems 22, 23", "no local protocol needs fewer", at, row["enough"], row["needed"]
    )
    for epsilon in sorted({row["epsilon"] for row in rows}):
        few = [row for row in where(rows, epsilon=epsilon) if row["alpha"] <= 0.01]
        row = worst(few, lambda row: row["ratio"])
        at = (
            f"users enough over users needed at epsilon = {epsilon:g}, alpha <= .01, "
            f"the worst: {row['workload']}"
        )
        yield Finding.at_most(
            "Theorem 10", "factorization is within a constant (4 granted)", at, 4.0, row["ratio"]
        )
    row = worst(tables["central"], lambda row: row["ratio"])
    at = (
        f"Gaussian factorization's error over additive noise's bound, {row['workload']}, "
        f"{row['error']}, granted 5"
    )
    yield Finding.at_most(
        "Theorems 7, 28", "optimal among data-independent noise", at, 5.0, row["ratio"]
    )


def norms(tables):
    known = [row for row in tables["known_values"] if row["known"]]
    row = farthest(known, "upper", "known")
    at = f"gamma_2 certified beside its known value, the worst of {len(known)}: {row['workload']}"
    yield Finding.equal(
        "Lemma 13", "gamma_2 is computed", at, row["known"], row["upper"], within=1e-3
    )
    (row,) = tables["random"]
    at = f"largest relative distance from an SDP over {row['matrices']} random matrices"
    claim = "gamma_2 is a semidefinite program"
    yield Finding.at_most("Lemma 13", claim, at, 1e-4, row["distance"])


def growth(tables):
    # from this k on the formula holds to 2 %
    row = largest(tables["growth"], "prefix", 256)
    if row:
        known = math.log(row["k"]) / math.pi + 0.755
        yield grows("Corollary 4", "ln k / pi + .755", known, row)
    row = largest(tables["growth"], "random signs", 64)
    if row:
        known = 8 * math.sqrt(row["k"]) / (3 * math.pi)
        yield grows("Theorem 1", "8 sqrt(k) / (3 pi)", known, row)


def largest(table, name, least):
    """The row of largest k of a workload; None where all k are below ``least``."""
    rows = [row for row in table if name in row["workload"] and row["k"] >= least]
    return max(rows, key=lambda row: row["k"], default=None)


def grows(result, formula, known, row):
    at = f"gamma_2 of {row['workload']}, k = {row['k']}, beside its growth"
    return Finding.equal(result, f"grows as {formula}", at, known, row["upper"], within=0.02)


def curves(tables):
    for row in tables["norms"]:
        at = f"certified gap of gamma_2(W; alpha) over all alpha, {row['workload']}"
        yield Finding.at_most("Lemma 12", "its dual has no gap", at, 1.01e-3, row["gap"])


def types(tables):
    rows = tables["error_vs_types"]
    mine = where(rows, mechanism=PAPERS)
    row = least_likely(mine)
    at = f"RMSE of a threshold, k = {row['k']}, epsilon = {row['epsilon']:g}, the worst z of {len(mine)}"
    claim = "error of the factorization mechanism"
    yield Finding.equal(
        "Theorem 10", claim, at, row["predicted"], row["measured"], row["standard_error"]
    )
    k = max(row["k"] for row in rows)
    for paper in where(mine, k=k):
        few = where(rows, k=k, epsilon=paper["epsilon"])
        best = min(few, key=lambda row: row["measured"])
        at = (
            f"RMSE of a threshold at k = {k}, epsilon = {paper['epsilon']:g}: "
            f"factorization beside {best['mechanism']}"
        )
        error = math.hypot(paper["standard_error"], best["standard_error"])
        yield Finding.lower(
            "Theorem 10", "the paper's mechanism", at, paper["measured"], best["measured"], error
        )


def learner(tables):
    for row in tables["learner"]:
        at = f"loss of the learned stump, n = {row['n']:,}, epsilon = {row['epsilon']:g}, over the least"
        limit = row["least"] + 2 * row["half_width"]
        if limit >= 0.5:  # a coin's loss: the claim says nothing
            continue
        yield Finding.at_most(
            "Theorem 24",
            "loss within twice the half-width of the least",
            at,
            limit,
            row["loss"],
            row["standard_error"],
        )


PAPER = Paper(
    "factorization",
    "Edmonds, Nikolov, Ullman (2020): the power of factorization mechanisms in local and central "
    "differential privacy",
    (
        theorems("Edmonds"),
        Part("factorization/lower_bounds.py", lower_bounds),
        Part("factorization/known_values.py", norms),
        Part(
            "factorization/growth.py",
            growth,
            {"growth.png": "Corollary 4: how gamma_2 grows with the number of types."},
        ),
        Part(
            "factorization/approximate.py",
            curves,
            {"curves.png": "Lemma 12: gamma_2(W; alpha) against alpha."},
        ),
        Part(
            "queries/error_vs_types.py",
            types,
            {"error_vs_types.png": "Theorem 10: error against the number of types."},
        ),
        Part(
            "queries/learner.py",
            learner,
            {"learner.png": "Theorem 24: loss of the learned concept."},
        ),
    ),
    (
        Finding.unchecked(
            "Lemma 29, Corollary 31", "data-dependent mechanisms", "no constant to compute"
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper factorization")
