"""The claims of Wagner (2025), and what the tables of our scripts say of each."""

from collections.abc import Iterator

from papers_base import theorems, where

from torchdp.simulate.paper import Finding, Paper, Part, Tables


def bitsums(tables: Tables) -> Iterator[Finding]:
    for row in tables["rmse"]:
        at = f"I = {row['I']}, epsilon = {row['eps']:g}, n = {row['n']:,}"
        claim = "randomized response keeps its promise"
        yield Finding.at_most("Section 4, RR", claim, f"true epsilon, {at}", row["eps"], row["true eps"])
        for name in ("RR", "3NB"):
            measure = f"RMSE of one bit sum in users, {at}: as calibrated there, and exactly"
            yield Finding.lower(
                f"Section 4, {name}", "noise that is enough", measure, row[f"{name} paper"], row[name]
            )
    at = "largest certified delta of all calibrated protocols over the target"
    yield Finding.at_most(
        "Theorem 3.1", "composed bit sums are private", at, 1.0, tables["summary"][0]["worst/delta"]
    )


def attack(tables: Tables) -> Iterator[Finding]:
    for row in where(tables["attack"], noise="calibrated"):
        at = f"delta that the best test attains, {row['protocol']}"
        yield Finding.at_most(
            "Theorem 3.1", "no attack beats the promise", at, row["certified"], row["attack"], row["error"]
        )


def error(tables: Tables) -> Iterator[Finding]:
    for rows in tables.values():
        row = max(rows, key=lambda row: abs(row["measured"] / row["predicted"] - 1))
        at = f"RMSE of a density, {row['kernel']}, {row['protocol']}, epsilon = {row['epsilon']:g}: the worst"
        yield Finding.equal(
            "Theorem 3.2, Figure 3", "error in closed form", at, row["predicted"], row["measured"], within=0.15
        )


def classification(tables: Tables) -> Iterator[Finding]:
    for name, rows in tables.items():
        best = max(row["epsilon"] for row in rows)
        for kernel in dict.fromkeys(row["kernel"] for row in rows):
            few = where(rows, kernel=kernel, epsilon=best)
            for paper, ours in (("RR, paper", "RR"), ("3NB, paper", "3NB")):
                pair = [[row for row in few if row["protocol"] == side] for side in (paper, ours)]
                if all(pair):
                    theirs, mine = (side[0] for side in pair)
                    at = f"errors of classification on {name}, {kernel}, epsilon = {best:g}: its calibration and exact"
                    yield Finding.lower(
                        "Figures 4 to 8",
                        f"accuracy by {ours}",
                        at,
                        1 - theirs["accuracy"],
                        1 - mine["accuracy"],
                        mine["standard_error"],
                    )


def messages(tables: Tables) -> Iterator[Finding]:
    for row in tables["messages"]:
        at = f"messages of a user, {row['kernel']}, epsilon = {row['epsilon']:g}: least error, and within 1 %"
        yield Finding.lower("Figure 2", "what a user sends", at, row["messages_least"], row["messages"])


PAPER = Paper(
    "densities",
    "Wagner (2025): learning from end user data with shuffled differential privacy over kernel densities",
    (
        theorems("Wagner"),
        Part("density/bitsums.py", bitsums),
        Part("density/attack.py", attack),
        Part(
            "density/error.py",
            error,
            {"error_digits.png": "Figure 3: error of a density and its parts, on digits."},
        ),
        Part("density/messages.py", messages),
        Part(
            "density/classification.py",
            classification,
            {"digits.png": "Figures 1, 4 to 8: accuracy against epsilon, on digits."},
        ),
    ),
    (
        Finding.unchecked(
            "Tables 1, 6 to 8", "decoded words", "a list of words has no number; density/decode.py prints ours"
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("torchdp paper reads this: run python run.py paper densities")
