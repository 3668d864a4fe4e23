"""The checker of theorems: what fails is known, planted wrong ones are caught, each endorsement has its check."""

import math
import re

import pytest
import test_papers
from scripts import FOLDER, loaded

with loaded("theorems.py") as module:
    from statements import base, gaussian

ENDORSED = [
    (title.split(",")[0].split(" ")[0], row)
    for title, text in test_papers.PAPERS
    for row in test_papers.rows(text)
    if "agrees" in row[4] and "agrees in MB" not in row[4]
]


def test_only_the_statements_known_to_be_false_fail(smoke):
    found = smoke("theorems.py").tables["theorems"]
    failing = {row["statement"] for row in found if row["verdict"] == "fails"}
    assert len(found) == len(base.CHECKS) > 70 and all(row["instances"] for row in found)
    assert failing == {each.statement for each in base.CHECKS if each.false}
    page = (FOLDER.parent / "docs/theorems.md").read_text()  # the full run's, committed
    verdicts = re.findall(r"^\| (?!result).*\| \**(holds|fails)\** \|$", page, re.M)
    assert verdicts == ["fails" if each.false else "holds" for each in module.chosen(module.FULL)]


@pytest.mark.parametrize(
    ("instances", "planted"),
    [
        (gaussian.boxes, {"factor": 0.55}),
        (gaussian.boxes, {"factor": 0.45}),
        (gaussian.products, {"norm": lambda a, b, p: base.p_norm(base.np.array([a, b]), 1.0)}),  # not 2p/(p + 2)
        (gaussian.products, {"norm": lambda a, b, p: math.sqrt(gaussian.product_norm(a, b, p))}),
        (gaussian.duality, {"order": lambda p: 2.0 if p == math.inf else p / (p - 2) if p > 2 else math.inf}),
    ],
    ids=["10 % more", "10 % less", "another exponent", "a missing square", "p and q exchanged"],
)
def test_planted_wrong_theorems_are_caught(instances, planted):
    tried = base.Check("Nikolov", "planted", "wrong", "the same", lambda rng, n: instances(rng, n, **planted))
    assert tried.run(7, 1)["failures"] > 0
    assert base.Check("Nikolov", "planted", "wrong", "the same", instances).run(7, 1)["failures"] == 0


@pytest.mark.parametrize(("paper", "row"), ENDORSED, ids=[f"{paper}: {row[0]}" for paper, row in ENDORSED])
def test_every_endorsed_theorem_has_a_check_a_measure_and_a_range(paper, row):
    assert re.search(r"agrees in .+ for .+", row[4])
    assert any(named(each, paper, row) for each in base.CHECKS)


def named(check, paper, row):
    return check.paper == paper and re.match(re.escape(check.row) + r"(?![\d.])", row[0])


def test_every_check_has_its_row_and_a_theorem_without_check_is_seen():
    every = [
        (title.split(" ")[0].strip(","), row)
        for title, text in test_papers.PAPERS
        for row in test_papers.rows(text)
    ]
    assert len(ENDORSED) > 35 and not [c.row for c in base.CHECKS if not any(named(c, *each) for each in every)]
    assert not any(named(each, "Nikolov", ["Theorem 2: of nobody"]) for each in base.CHECKS)
