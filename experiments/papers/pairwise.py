"""The claims of Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), and what the tables of our
scripts say of each.
"""

import math

from papers_base import Finding, Paper, Part, theorems, where, worst, worst_ratio


def large_domain(tables):
    for row in tables["mse"]:
        at = f"mean squared error of abs(x - y) on 1,024 types, measured beside predicted, {row['protocol']}"
        error = (row["high"] - row["low"]) / 2 / 1.96
        yield Finding.equal(
            "Lemma 11", "error in closed form", at, row["predicted"], row["measured"], error
        )
    (two,) = where(tables["mse"], protocol="Twice")
    (one,) = where(tables["mse"], protocol="LocalFactorization")
    at = "mean squared error of abs(x - y) on 1,024 types: two messages beside one"
    yield Finding.lower(
        "Theorem 5",
        "the paper's protocol",
        at,
        two["measured"],
        one["measured"],
        (one["high"] - one["low"]) / 4,
    )
    last = where(tables["models"], n=10**8)
    for row, before in zip(last, where(tables["models"], n=10**6), strict=True):
        at = f"local over shuffled MSE, n = 1e8 beside n = 1e6, epsilon = 1, {row['statistic']}"
        ours = 100 * row["factor"] / before["factor"]
        yield Finding.equal("Remark after Corollary 7", "a factor n", at, 100.0, ours, within=0.02)
    row = worst_ratio(last[:-1], "curator", "laplace")
    at = f"MSE at n = 1e8, epsilon = 1, {row['statistic']}: a curator's noise on factors, and at"
    yield Finding.compared(
        "Remark after Corollary 7",
        "a curator",
        f"{at} the sensitivity",
        row["laplace"],
        row["curator"],
    )


def separation(tables):
    rows = tables["predicted"]
    n = max(row["n"] for row in rows)
    sizes = sorted({row["k"] for row in rows})
    least = sizes[0]
    largest = sizes[-1]
    last = {(row["protocol"], row["k"]): row["scaled_mse"] for row in where(rows, n=n)}
    # what is tuned to n gets to its leading error at larger n
    papers = "three-round (paper's constants)"
    if len(sizes) > 1 and n >= 10**10:
        growth = {name: last[name, largest] / last[name, least] for name, _ in last}
        at = (
            f"MSE at k = {largest} over that at k = {least}, random signs, n = {n:g}, epsilon = 1, "
        )
        claim = "the leading error is free of gamma_2"
        yield Finding.as_printed("Theorem 24", claim, at + papers, 1.1, growth[papers])
        alone = growth["one-message"]
        rounds = growth["two-round"]
        yield Finding.at_most(
            "Theorem 6",
            "without rounds it is not",
            at + "two rounds, below one message",
            alone,
            rounds,
        )
    ours = last["two-round", largest]
    theirs = last[papers, largest]
    at = (
        f"n epsilon^2 MSE at epsilon = 1, n = {n:g}, k = {largest}: its three rounds beside our two"
    )
    yield Finding.lower("Theorem 24", "three rounds", at, theirs, ours)
    crossed = [row for row in tables["crossings"] if not math.isnan(row["crossing"])]
    scores = [abs(row[name]) for row in crossed for name in ("z_below", "z_above")]
    at = f"largest z-score of {len(scores)} measured errors beside their predictions"
    z = worst(scores, lambda score: score)
    yield Finding.at_most("Appendix C.1", "error of interactive protocols", at, 5.0, z)


def constant(tables):
    for row in tables["free_constant"]:
        at = f"gamma_2 of {row['kernel']}: the least over constants, and as it is"
        yield Finding.compared(
            "Section 5", "a constant added to the kernel", at, row["gamma_2"], row["least"]
        )


def users(tables):
    rows = [row for row in tables["results"] if row.get("predicted_mse")]
    row = worst(rows, lambda row: abs(row["z"]))
    at = f"largest z-score of {len(rows)} measured errors beside their predictions"
    yield Finding.at_most(
        "Corollary 7", "Gini, Kendall, AUC: error in closed form", at, 4.5, abs(row["z"])
    )


def rank(tables):
    rows = tables["reductions"]
    for rank in dict.fromkeys(row["rank"] for row in rows):
        few = where(rows, rank=rank)
        (projection,) = where(few, how="projection")
        best = worst(few, lambda row: -row["distortion"])
        at = f"distortion at rank {rank}: the projection beside the best of {len(few)}, {best['how']}"
        yield Finding.lower(
            "Lemmas 12, 13",
            "fewer dimensions by projection",
            at,
            projection["distortion"],
            best["distortion"],
        )


def kernels(tables):
    for row in tables["lipschitz"]:
        at = f"gamma_2 of abs(i - j), k = {row['k']}, over k: Lemma 17's bound holds its tree"
        yield Finding.at_most(
            "Corollary 16, Lemma 17", "Lipschitz kernels", at, row["its_bound"], row["search_tree"]
        )
    row = tables["lipschitz"][-1]
    at = f"gamma_2 of abs(i - j), k = {row['k']}, over k: the tree beside the certified optimum"
    yield Finding.lower("Lemma 17", "a tree", at, row["search_tree"], row["upper"])


PAPER = Paper(
    "pairwise",
    "Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): pairwise statistics under local "
    "differential privacy",
    (
        theorems("Ghazi"),
        Part("pairwise/large_domain.py", large_domain),
        Part("pairwise/free_constant.py", constant),
        Part("factorization/structured.py", kernels),
        Part("factorization/rank.py", rank),
        Part("pairwise/error_vs_n.py", users, laptop=("--trials", "2500")),
        Part(
            "pairwise/separation.py",
            separation,
            {"separation.png": "Theorem 24: error of interactive protocols against n."},
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper pairwise")
