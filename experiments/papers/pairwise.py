"""The claims of Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), and what the tables of our
scripts say of each.
"""

import math

from papers_base import Finding, Paper, Part, theorems, where, worst


def large_domain(tables):
    for row in tables["mse"]:
        at = f"mean squared error of abs(x - y) on 1,024 types, measured beside predicted, {row['protocol']}"
        error = (row["high"] - row["low"]) / 2 / 1.96
        yield Finding.equal(
            "Lemma 11", "error in closed form", at, row["predicted"], row["measured"], error
        )
    two, one = (where(tables["mse"], protocol=name)[0] for name in ("Twice", "LocalFactorization"))
    at = "mean squared error of abs(x - y) on 1,024 types: two messages beside one"
    yield Finding.lower(
        "Theorem 5",
        "the paper's protocol",
        at,
        two["measured"],
        one["measured"],
        (one["high"] - one["low"]) / 4,
    )


def separation(tables):
    rows = tables["predicted"]
    n, sizes = max(row["n"] for row in rows), sorted({row["k"] for row in rows})
    last = {(row["protocol"], row["k"]): row["scaled_mse"] for row in where(rows, n=n)}
    if len(sizes) > 1 and n >= 10**10:
        growth = {
            name: last[name, sizes[-1]] / last[name, sizes[0]] for name, k in last if k == sizes[0]
        }
        at = f"MSE at k = {sizes[-1]} over that at k = {sizes[0]}, random signs, n = {n:g}, epsilon = 1, "
        claim = "the leading error is free of gamma_2"
        name = "three-round (paper's constants)"  # what is tuned to n gets there at larger n
        yield Finding.as_printed("Theorem 24", claim, at + name, 1.1, growth[name])
        alone, rounds = growth["one-message"], growth["two-round"]
        yield Finding.at_most(
            "Theorem 6",
            "without rounds it is not",
            at + "two rounds, below one message",
            alone,
            rounds,
        )
    ours, theirs = (
        last[name, sizes[-1]] for name in ("two-round", "three-round (paper's constants)")
    )
    at = f"n epsilon^2 MSE at epsilon = 1, n = {n:g}, k = {sizes[-1]}: its three rounds beside our two"
    yield Finding.lower("Theorem 24", "three rounds", at, theirs, ours)
    scores = [
        (abs(row[name]), row["k"], row["protocol"])
        for row in tables["crossings"]
        for name in ("z_below", "z_above")
        if not math.isnan(row["crossing"])
    ]
    at = f"largest z-score of {len(scores)} measured errors beside their predictions"
    largest, *_ = worst(scores, lambda score: score[0])
    yield Finding.at_most("Appendix C.1", "error of interactive protocols", at, 5.0, largest)


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
        few = {row["how"]: row for row in where(rows, rank=rank)}
        projection = next(
            row for name, row in few.items() if "proj" in name.lower() or "Johnson" in name
        )
        best = worst(few.values(), lambda row: -row["distortion"])
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
    "Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): pairwise statistics under local differential privacy",
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
    (
        Finding.unchecked(
            "Remark after Corollary 7", "other models: the factor n in MSE", "compared by no script"
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper pairwise")
