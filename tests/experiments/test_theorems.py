"""The checker of theorems: what fails is known, planted wrong ones are caught, each endorsement has
its check.
"""

import math
import re
from functools import partial

import pytest
import test_papers
from scripts import FOLDER, loaded

with loaded("theorems.py") as module:
    from statements import base, gaussian, sketching


def test_only_the_statements_known_to_be_false_fail(smoke):
    found = smoke("theorems.py").tables["theorems"]
    failing = {row["statement"] for row in found if row["verdict"] == "fails"}
    assert len(found) == len(base.CHECKS) > 70 and all(row["instances"] for row in found)
    assert failing == {each.statement for each in base.CHECKS if each.kind}
    assert {each.kind for each in base.CHECKS} == {"", *base.KINDS}
    page = (FOLDER.parent / "docs/theorems.md").read_text()  # the full run's, committed
    verdicts = re.findall(r"^\| (?!result).*\| \**(holds|fails)\** \| (\w*) \|$", page, re.M)
    assert verdicts == [
        ("fails" if each.kind else "holds", each.kind)
        for each in module.chosen(module.EXPERIMENT.full)
    ]


@pytest.mark.parametrize(
    ("instances", "planted"),
    [
        (gaussian.boxes, {"factor": 0.55}),  # a tenth more, a tenth less
        (gaussian.boxes, {"factor": 0.45}),
        # not 2p/(p + 2)
        (gaussian.products, {"norm": lambda a, b, p: base.p_norm(base.np.array([a, b]), 1.0)}),
        (gaussian.products, {"norm": lambda a, b, p: math.sqrt(gaussian.product_norm(a, b, p))}),
        (sketching.divided, {"more": 1.0}),  # a part more than there are
        (  # p and q exchanged
            gaussian.duality,
            {"order": lambda p: 2.0 if p == math.inf else p / (p - 2) if p > 2 else math.inf},
        ),
    ],
)
def test_planted_wrong_theorems_are_caught(instances, planted):
    def failures(**planted):
        source = base.each(instances, **planted)
        if instances is sketching.divided:  # no draw after another: it walks its cases itself
            source = partial(instances, **planted)
        return base.Check("Nikolov", "planted", "wrong", "the same", source).run(7, 1)["failures"]

    assert failures(**planted) > 0
    assert failures() == 0


def test_every_check_has_its_row_and_a_theorem_without_check_is_seen():
    """In docs/papers.csv, from which the page of papers takes what it says of each result."""
    names = dict(zip(module.PAPERS, test_papers.pages.NAMES, strict=True))
    rows = {
        paper: [row["result"] for row in test_papers.ROWS if row["paper"] == names[paper]]
        for paper in names
    }
    assert not [
        each.row for each in base.CHECKS if not test_papers.reached(rows[each.paper], each.row)
    ]
    assert not test_papers.reached(rows["Nikolov"], "Theorem 5")
