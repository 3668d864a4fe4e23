"""The claims of Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), and what the tables of our
scripts say of each.
"""

import math
from collections import defaultdict

from papers_base import Finding, Paper, Part, farthest, theorems, where, worst, worst_ratio


def noise(tables):
    for row in tables["true_epsilon"]:
        corollary = row["noise"].split(",")[0]
        if corollary in ("Corollary 4.7", "Corollary 4.10"):
            at = f"true epsilon, {row['noise']}, d = {row['d']}"
            yield Finding.as_printed(
                corollary, "the noise keeps its promise", at, row["nominal"], row["true"]
            )
    least = worst_ratio(tables["entries"], "exact", "paper")
    at = f"variance of an entry where they differ least: d = 10, s = {least['s']}, epsilon = {least['epsilon']:g}"
    yield Finding.lower("Corollary 4.7", "noise that is enough", at, least["paper"], least["exact"])
    for row in where(tables["drawn"], times=1.0):
        at = f"delta of drawn noise at epsilon 1, {row['noise']}"
        yield Finding.equal(
            "Theorem 4.4", "divided noise is private", at, 1e-3, row["delta"], row["error"]
        )


def moments(tables):
    first = tables["histogram"][0]
    last = tables["histogram"][-1]
    for name in ("Gaussian", "Laplace"):
        at = f"root mean squared error of a count at n = {last['n']:,} beside n = {first['n']:,}, {name} noise"
        claim = "frequencies at an error free of n"
        yield Finding.equal(
            "Table 1", claim, at, first[f"{name}_predicted"], last[name], within=0.03
        )
        at = f"root mean squared error of a count, n = {last['n']:,}, {name} noise, beside the best local oracle's"
        yield Finding.at_most(
            "Table 1", "below the local model", at, last["best_local"], last[name]
        )
    for row in tables["paper"]:
        at = f"true epsilon of F_2's noise, values to {row['D']:g}"
        yield Finding.as_printed("Section 4.1", "moments are private", at, 0.5, row["true_epsilon"])


def costs(tables):
    for table in (3, 4, 5):
        rows = where(tables["captions"], table=table)
        row = farthest(rows, "MB", "paper_MB")
        at = f"MB of all communication, worst of {len(rows)} rows: n = {row['n']:,}, s = {row['s']}"
        yield Finding.equal(f"Table {table}", "bytes", at, row["paper_MB"], row["MB"], within=1e-3)
        row = worst_ratio(rows, "MB_as_stated", "paper_MB")
        at = f"MB with as many servers as the caption states, n = {row['n']:,}, s = {row['s']}"
        yield Finding.as_printed(
            f"Table {table}", "its caption", at, row["paper_MB"], row["MB_as_stated"]
        )
    yield Finding.unchecked("Tables 3 to 5", "seconds of one server", "seconds of other machines")


def low_rank(tables):
    rows = tables["low_rank"]
    n = max(row["n"] for row in rows)
    for row in where(rows, n=n, method="paper exp., p = 1"):
        k = row["k"]
        epsilon = row["epsilon"]
        (ours,) = where(rows, n=n, k=k, epsilon=epsilon, method="Gram")
        (theirs,) = where(rows, n=n, k=k, epsilon=epsilon, method="sketch")
        at = (
            f"psi, n = {n:,}, k = {k}, epsilon = {epsilon:g}, of the Gram matrix beside the "
            "sketch's, both exact"
        )
        yield Finding.lower(
            "Theorems 5.4, 5.7", "low rank from a sketch", at, theirs["psi"], ours["psi"]
        )


CONSTANT = "variance 2 ln(1.25/delta)/epsilon^2 n^-p: the paper prints n^-p alone"


def exponents(tables):
    rows = tables["slopes"]
    settings = (  # the last two are not the paper's, which says nothing of p = .5 in Figure 2
        ("spectrum", "100 sums", "Figure 2", "psi, 100 sums", (0.6,)),
        ("whole", "all rows", "Figures 3, 4", "phi - 1, rows not cut, no sketch", (0.5, 0.6)),
        ("whole", "100 sums", "Figures 3, 4", "phi - 1, rows not cut, 100 sums", ()),
        ("cut", "all rows", "Figures 3, 4", "phi - 1, rows cut to [-1, 1], no sketch", ()),
    )
    for kind, sums, result, measure, claimed in settings:
        mine = where(rows, rows=kind, sums=sums)
        epsilon = max(row["epsilon"] for row in mine)
        parameter = max(row["parameter"] for row in mine if row["parameter"] <= 10)
        last = {row["p"]: row["last"] for row in where(mine, epsilon=epsilon, parameter=parameter)}
        setting = f"{measure}, epsilon = {epsilon:g}, at the largest n, {CONSTANT}"
        for p in (0.6, 0.5):
            if p not in claimed:
                other = f"slope of {setting}, and 0"
                yield Finding.compared(
                    result, f"p = {p:g}, where the paper claims nothing", other, 0.0, last[p]
                )
        if 0.6 in claimed:
            at = f"slope of {setting}"
            yield Finding.as_printed(
                result, "p = .6: the error falls in the end", at, 0.0, last[0.6]
            )
        if 0.5 in claimed:
            at = f"minus the slope of {setting}; .1 granted"
            yield Finding.as_printed(result, "p = .5: the error does not fall", at, 0.1, -last[0.5])
    groups = defaultdict(list)
    for row in rows:
        if row["rows"] != "spectrum":
            groups[row["rows"], row["sums"], row["epsilon"], row["p"]].append(row["last"])
    apart = max(max(found) - min(found) for found in groups.values())
    at = "largest difference of slopes between lambda = 1, 10 and 100; .01 granted"
    yield Finding.at_most("Figure 4", "lambda does not change how the error grows", at, 0.01, apart)


def ridge(tables):
    rows = tables["phi"]
    for row in where(rows, method="paper exp."):
        epsilon = row["epsilon"]
        (gram,) = where(rows, epsilon=epsilon, method="Gram")
        (sketch,) = where(rows, epsilon=epsilon, method="sketch")
        (curator,) = where(rows, epsilon=epsilon, method="SSP")
        at = (
            f"phi, n = {row['n']:,}, lambda = 10, epsilon = {epsilon:g}, of the Gram matrix beside "
        )
        yield Finding.lower(
            "Theorem 5.8",
            "ridge regression",
            at + "the sketch, both exact",
            sketch["phi"],
            gram["phi"],
        )
        yield Finding.compared(
            "Theorem 5.8", "a curator", at + "a curator's SSP", curator["phi"], gram["phi"]
        )


def uci(tables):
    for rows, table, result, peer in (
        (tables["phi"], "phi", "Table 8", "AdaSSP"),
        (tables["psi"], "psi", "Tables 6, 7", "MOD-SULQ"),
    ):
        for kind in ("as they are", "rows repeated", "synthetic"):
            few = [row for row in rows if kind_of(row["table"]) == kind]
            for name in ("sketch", peer) if few else ():
                row = worst_ratio(few, "Gram", name)
                beside = "the sketch, both exact" if name == "sketch" else f"a curator's {name}"
                at = (
                    f"{table} of the Gram matrix beside {beside}, worst of {len(few)} tables, "
                    f"{kind}: {row['table']}"
                )
                error = math.hypot(row["Gram error"], row[f"{name} error"])
                claim = "on other tables, a curator" if name == peer else "on other tables"
                yield Finding.compared(result, claim, at, row[name], row["Gram"], error)


def kind_of(table):
    if "repeated" in table:
        return "rows repeated"
    return "synthetic" if "synthetic" in table else "as they are"


def servers(tables):
    row = tables["servers"][0]
    at = "whether separate processes' release is that of one, bit for bit"
    yield Finding.equal(
        "Algorithm 1, Lemma 4.3",
        "the servers compute S (A + G)",
        at,
        1.0,
        float(row["identical"] in (True, "True")),
    )
    at = "variance of the release over the predicted one"
    error = row["standard_error"]
    yield Finding.equal(
        "Corollary 4.11",
        "noise by servers",
        at,
        1.0,
        row["measured_over_predicted_variance"],
        error,
    )
    row = tables["bytes"][0]
    yield Finding.equal("Section 6.1", "bytes on the links", "bytes", row["formula"], row["words"])


def grid(tables):
    row = worst(tables["attack"], lambda row: row["attack"])
    at = (
        f"exact delta over the stated, rounded normals, {row['clients']:,} clients, "
        f"epsilon = {row['epsilon']:g}"
    )
    yield Finding.at_most(
        "Section 4, on a grid", "private in a ring of 32 or 64 bits", at, 1.0, row["attack"]
    )
    factor = worst(tables["noises"], lambda row: row["factor"])["factor"]
    at = "variance over that of real numbers, the worst of other noises"
    yield Finding.at_most("Section 4, on a grid", "rounding costs little", at, 1.001, factor)


PAPER = Paper(
    "sketching",
    "Burkhardt, Keller, Orlandi, Schwiegelshohn (2025): the linear-transformation model",
    (
        theorems("Burkhardt"),
        Part("sketching/noise.py", noise),
        Part("regression/moments.py", moments),
        Part("secure/grid.py", grid),
        Part("secure/servers.py", servers),
        Part("bench/sketching.py", costs),
        Part(
            "regression/low_rank.py",
            low_rank,
            {"low_rank.png": "psi against n by every route at an exact guarantee."},
        ),
        Part(
            "regression/exponents.py",
            exponents,
            {
                "figure2.png": "Figure 2: psi against n for every exponent of the noise.",
                "figure3.png": "Figure 3: phi - 1 against n for every exponent, lambda = 10, "
                "sketched or not; the middle column is the paper's setting, as its text has it; "
                "SSP and an exact local mechanism where rows are cut.",
                "figure4.png": "Figure 4: phi - 1 without a sketch, lambda = 1, 10, 100.",
            },
        ),
        Part(
            "regression/ridge.py",
            ridge,
            {"ridge.png": "phi against n by every method at an exact guarantee."},
        ),
        Part("regression/tables.py", uci),
        Part(
            "regression/tables.py",
            uci,
            laptop=("--no-stand-ins", "--no-samples"),
            data="--data",
            holds="tables of UCI as rows of numbers",
            folder="regression/uci",
        ),
    ),
    (
        Finding.unchecked(
            "Tables 6 to 8",
            "the printed numbers",
            "psi and phi on four files of UCI that are not at hand",
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper sketching")
