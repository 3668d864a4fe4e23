"""Objects print themselves shortly: shapes in a terminal, a table in a notebook."""

import pytest
import torch
from contract import entries
from fuzz import recipes, verbs

from torchdp import factorization, pairwise, privacy, queries, training, workloads
from torchdp.brief import WIDE, html_table
from torchdp.protocol import Choice

RECIPES = [line for lines in recipes.ALL.values() for line in lines if "fresh" not in line]


def ours(value):
    return [one for one in (value if isinstance(value, tuple) else (value,)) if "torchdp" in type(one).__module__]


@pytest.mark.slow
def test_no_repr_of_a_public_call_is_long():
    found = [
        each for line in RECIPES for each in ours(eval(line, recipes.names())) if not isinstance(each, Choice)
    ]
    assert len(found) > 300 and max(map(len, map(repr, found))) <= WIDE


def test_no_repr_of_a_protocol_is_long():
    found = [repr(entry.protocol) for entry in entries().values()]
    assert max(map(len, found)) <= WIDE and len(set(found)) > 0.9 * len(found)


def test_a_repr_names_parts_and_leaves_out_defaults():
    assert (
        repr(pairwise.OneMessage(pairwise.auc(3), 1.0)) == "OneMessage(statistic='auc', epsilon=1, kind=PrivUnitG)"
    )
    assert repr(workloads.prefix(4)) == "Workload(name='prefix', factors=(float64(4, 4)))"


@pytest.mark.parametrize(
    "value, parts",
    [
        (queries.choose(workloads.identity(3), 100, 1.0), ["predicted error", "lower bound"]),
        (
            privacy.gaussian_guarantee(2.0, 1e-5, 1.0, privacy.Model.CENTRAL, privacy.Neighbours.ADD_REMOVE),
            ["central differential privacy", "epsilon = "],
        ),
        (pairwise.OneMessage(pairwise.auc(3), 1.0).estimate(torch.arange(6)), ["standard error", "low", "high"]),
        (verbs.kept()["densities"], ["<td>n</td><td>10</td>", "central differential privacy", "float64(2, "]),
        (factorization.factorize(torch.eye(2), tol=0.1).certificate, ["<td>lower</td><td>1</td>"]),
        (training.choose(training.Iterates(3), 6, 2, epsilon=1.0, delta=1e-3).best, ["epsilon = 1", "sigma"]),
    ],
)
def test_a_notebook_shows_a_table(value, parts):
    shown = value._repr_html_()
    assert shown.startswith("<table>") and all(part in shown for part in parts)


def test_a_table_escapes_what_others_wrote():
    assert html_table([("<b>", 0.12345678)]) == "<table><tr><td>&lt;b&gt;</td><td>0.123457</td></tr></table>"
