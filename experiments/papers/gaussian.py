"""The claims of Nikolov, Tang (2023), and what the tables of our scripts say of each."""

from papers_base import Finding, Paper, Part, farthest, least_likely, theorems, where, worst_ratio


def errors(tables):
    rows = tables["errors"]
    for p in sorted({row["p"] for row in rows}):
        mine = where(rows, p=p)
        measure = f"E(error^2)^(1/2) n at p = {p:g}"
        row = least_likely(mine)
        at = f"{measure}, measured beside predicted, the worst z of {len(mine)}: {row['domain']}"
        claim = "Gaussian noise shaped to the set, unbiased"
        yield Finding.equal(
            "Theorem 15", claim, at, row["predicted"], row["measured"], row["standard_error"]
        )
        ours = where(mine, noise="default")
        row = worst_ratio(ours, "worst_data", "predicted")
        at = f"{measure}, rho = .5, the lower bound beside the default's error, {row['domain']}"
        yield Finding.at_most(
            "Theorem 43", "no mechanism is below", at, row["predicted"], row["worst_data"]
        )
        # both are of the same domains, in one order
        own_shape = [row["predicted"] for row in where(mine, noise="shift")]
        pairs = [
            {"shift": shift, "default": row["predicted"]}
            for shift, row in zip(own_shape, ours, strict=True)
        ]
        for pair, said in (
            (worst_ratio(pairs, "default", "shift"), "the worst for ours"),
            (worst_ratio(pairs, "shift", "default"), "where they differ most"),
        ):
            claim = "noise of the set's own shape"
            at = f"{measure}: {claim} beside ours, {said} of {len(pairs)}"
            yield Finding.compared("Theorem 15", claim, at, pair["shift"], pair["default"])
    for row in tables["boxes"]:
        at = f"round noise's error over shaped noise's on a box of sides 1, 2, 4, ..., p = {row['p']:g}"
        yield Finding.equal(
            "Lemma 60",
            "boxes in closed form",
            at,
            row["theory"],
            row["round_over_shaped"],
            within=1e-3,
        )
    row = worst_ratio(tables["pure"], "worst_data", "predicted")
    at = f"E(error^2)^(1/2) n at epsilon = 1, the lower bound beside pure noise, {row['domain']}"
    yield Finding.at_most(
        "Theorem 42", "no pure mechanism is below", at, row["predicted"], row["worst_data"]
    )


def shapes(tables):
    names = {"box": "Lemma 60", "ellipsoid in": "Lemma 19", "(x)": "Lemma 62"}
    for key, result in names.items():
        rows = [row for row in tables["closed_forms"] if key in row["domain"]]
        row = farthest(rows, "upper", "exact")
        at = (
            f"Gamma_p by the solver beside the closed form, p = {row['p']:g}, {row['domain']}, "
            f"of {len(rows)}"
        )
        yield Finding.equal(
            result, "Gamma_p in closed form", at, row["exact"], row["upper"], within=2e-4
        )
    row = farthest(tables["program"], "upper", "program")
    at = f"Gamma_p by the solver beside a semidefinite program, p = {row['p']:g}, {row['domain']}"
    yield Finding.equal(
        "Definition 2", "Gamma_p as a convex program", at, row["program"], row["upper"], within=2e-4
    )
    row = worst_ratio([row for row in tables["relaxations"] if row["theory"]], "gap", "theory")
    at = f"certified gap beside what the quadratic oracle allows, {row['domain']}, p = {row['p']:g}"
    yield Finding.at_most(
        "Theorem 32", "sets with a quadratic oracle", at, row["theory"], row["gap"]
    )


def local(tables):
    rows = tables["local_central"]
    n = max(row["n"] for row in rows)
    found = {row["method"]: row for row in where(rows, n=n)}
    for name, bound, result in (
        ("local, shaped, PrivUnit", "local lower bound, every data set", "Theorem 55"),
        ("central, shaped", "central lower bound, a neighbour", "Theorem 4"),
    ):
        at = f"E(error^2)^(1/2) at epsilon = 1, n = {n:,}, a skewed box: the bound beside {name}"
        yield Finding.at_most(
            result, "no mechanism is below", at, found[name]["measured"], found[bound]["predicted"]
        )
    at = f"E(error^2)^(1/2) at epsilon = 1, n = {n:,}: "
    point = found["local, shaped, point release"]
    unit = found["local, shaped, PrivUnit"]
    yield Finding.lower(
        "Theorem 17",
        "a local mechanism",
        at + "a point release beside PrivUnit",
        point["predicted"],
        unit["measured"],
        unit["standard_error"],
    )
    shaped = found["central, shaped"]
    plain = found["central, round"]
    yield Finding.at_most(
        "Corollary 16",
        "shaped noise is better",
        at + "round noise's as the limit of shaped noise's",
        plain["measured"],
        shaped["measured"],
        shaped["standard_error"],
    )


def covariance(tables):
    for name in dict.fromkeys(row["data"] for row in tables["covariance"]):
        rows = [row for row in tables["covariance"] if row["data"] == name]
        n = max(row["n"] for row in rows)
        entries, joint, *_, bound = where(rows, n=n)
        at = f"relative Frobenius error on {name}, n = {n:,}, epsilon = 1: "
        yield Finding.compared(
            "Theorem 6",
            "covariances",
            at + "the joint release, and noise on every entry at half the budget",
            entries["measured"],
            joint["measured"],
            joint["standard_error"],
        )
        yield Finding.at_most(
            "Theorem 6",
            "no mechanism is below",
            at + "the bound beside it",
            joint["measured"],
            bound["predicted"],
        )


PAPER = Paper(
    "gaussian",
    "Nikolov, Tang (2023): general Gaussian noise mechanisms and their optimality for unbiased "
    "mean estimation",
    (
        theorems("Nikolov"),
        Part(
            "mean/errors.py",
            errors,
            {
                "errors.png": "Theorems 15, 23, 42, 43: errors of six shapes of noise on twelve "
                "sets."
            },
        ),
        Part("mean/shapes.py", shapes),
        Part(
            "mean/local_central.py",
            local,
            {"local_central.png": "Theorems 4, 15, 17, 55: error against n."},
        ),
        Part(
            "mean/covariance.py",
            covariance,
            {"covariance.png": "Theorem 6: covariances of two tables."},
        ),
    ),
    (Finding.unchecked("Theorem 66, Claim 68", "steps of a proof", "nothing to compute"),),
)


if __name__ == "__main__":
    raise SystemExit("papers/run.py reads this: run python run.py paper gaussian")
