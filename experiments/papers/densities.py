"""The claims of Wagner (2025), and what the tables of our scripts say of each."""

import math

from papers_base import Finding, Paper, Part, farthest, theorems, where, worst


def bitsums(tables):
    for row in tables["rmse"]:
        if row["I"] == 1:  # the paper composes many repetitions
            continue
        at = f"I = {row['I']}, epsilon = {row['eps']:g}, n = {row['n']:,}"
        claim = "randomized response keeps its promise"
        yield Finding.as_printed(
            "Section 4, RR", claim, f"true epsilon, {at}", row["eps"], row["true eps"]
        )
        for name in ("RR", "3NB"):
            measure = f"RMSE of one bit sum in users, {at}: as calibrated there, and exactly"
            yield Finding.lower(
                f"Section 4, {name}",
                "noise that is enough",
                measure,
                row[f"{name} paper"],
                row[name],
            )
    at = "largest certified delta of all calibrated protocols over the target"
    yield Finding.at_most(
        "Theorem 3.1", "composed bit sums are private", at, 1.0, tables["summary"][0]["worst/delta"]
    )


def attack(tables):
    for row in where(tables["attack"], noise="calibrated"):
        at = f"delta that the best test attains, {row['protocol']}"
        yield Finding.at_most(
            "Theorem 3.1",
            "no attack beats the promise",
            at,
            row["certified"],
            row["attack"],
            row["error"],
        )


def error(tables):
    for rows in tables.values():
        row = farthest(rows, "measured", "predicted")
        at = f"RMSE of a density, {row['kernel']}, {row['protocol']}, epsilon = {row['epsilon']:g}: the worst"
        yield Finding.equal(
            "Theorem 3.2, Figure 3",
            "error in closed form",
            at,
            row["predicted"],
            row["measured"],
            within=0.15,
        )


SHUFFLED = ("Poisson", "randomized response", "3NB")  # calibrated exactly


def classification(tables):
    for name, rows in tables.items():
        found = {(row["kernel"], row["protocol"], row["epsilon"]): row for row in rows}
        best = max(row["epsilon"] for row in rows)
        for kernel in dict.fromkeys(row["kernel"] for row in rows):
            at = f"on {name}, {kernel}"
            for protocol in (*SHUFFLED, "Pure"):
                theirs = found.get((kernel, f"{protocol}, paper", best))
                ours = found.get((kernel, protocol, best))
                # the paper has no calibration of some, and quick runs leave out others
                if theirs and ours:
                    yield calibrations(theirs, ours, f"{at}, epsilon = {best:g}", protocol)
            for epsilon in sorted({row["epsilon"] for row in rows if row["epsilon"] >= 1}):
                yield curator(found, kernel, epsilon, f"{at}, epsilon = {epsilon:g}")


def calibrations(theirs, ours, at, protocol):
    claim = f"accuracy by {protocol}"
    error = math.hypot(theirs["standard_error"], ours["standard_error"])
    measure = f"share of wrong classes {at}: its calibration and exact"
    # Pure keeps delta = 0 where its own calibration spends delta
    verdict = Finding.compared if protocol == "Pure" else Finding.lower
    return verdict(
        "Figures 4 to 8", claim, measure, 1 - theirs["accuracy"], 1 - ours["accuracy"], error
    )


def curator(found, kernel, epsilon, at):
    """The best shuffled protocol beside a curator."""
    central = found[kernel, "curator's Gaussian noise", epsilon]
    ours = [found[kernel, each, epsilon] for each in SHUFFLED if (kernel, each, epsilon) in found]
    best = worst(ours, lambda row: row["accuracy"])
    error = math.hypot(central["standard_error"], best["standard_error"])
    measure = f"accuracy of {best['protocol']} {at}, and a curator's"
    return Finding.compared(
        "Section 4.1", "a curator", measure, central["accuracy"], best["accuracy"], error
    )


def messages(tables):
    for row in tables["messages"]:
        at = f"messages of a user, {row['kernel']}, epsilon = {row['epsilon']:g}: chosen, and 8,192 allowed"
        yield Finding.compared(
            "Figure 2", "what a user sends", at, row["messages_least"], row["messages"]
        )


ORTHOGONAL = "Gaussian, orthogonal"
ROTATED = "inner product, rotated"
AGNEWS = ("--data", "agnews rows")
REAL = {
    "smoke": ("--smoke", *AGNEWS),
    "full": AGNEWS,
    "data": "--folder",
    "holds": "agnews_test_mpnet.pt, see experiments/density/data.py",
}
BOTH = ("--kernels", ORTHOGONAL, ROTATED)
PAPER = Paper(
    "densities",
    "Wagner (2025): learning from end user data with shuffled differential privacy over kernel "
    "densities",
    (
        theorems("Wagner"),
        Part(
            "density/classification.py",
            classification,
            {"agnews_rows.png": "Figures 1, 4 to 8: accuracy against epsilon, on rows of AG News."},
            laptop=(*AGNEWS, *BOTH, *"--epsilons 1 2 4.5 --trials 6".split()),
            **REAL,
            folder="density/agnews",
        ),
        Part(
            "density/error.py",
            error,
            {
                "error_agnews_rows.png": "Figure 3: error of a density on rows of AG News, "
                "on the same features."
            },
            laptop=(*AGNEWS, "--kernels", ORTHOGONAL, *"--draws 4 --epsilons 1 4.5".split()),
            **REAL,
            folder="density/error_agnews",
        ),
        Part("density/bitsums.py", bitsums),
        Part("density/attack.py", attack),
        Part(
            "density/error.py",
            error,
            {"error_digits.png": "Figure 3: error of a density on digits, on the same features."},
            laptop=("--kernels", ORTHOGONAL, "--draws", "6"),
        ),
        Part("density/messages.py", messages),
        Part(
            "density/classification.py",
            classification,
            {"digits.png": "Figures 1, 4 to 8: accuracy against epsilon, on digits."},
            laptop=(*BOTH, *"--epsilons 1 4.5 --trials 6".split()),
        ),
    ),
    (
        Finding.unchecked(
            "Tables 1, 6 to 8",
            "decoded words",
            "a list of words has no number; density/decode.py prints ours",
        ),
    ),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper densities")
