"""Objects print themselves shortly: shapes in a terminal, a table in a notebook."""

import dataclasses
import importlib
import inspect

import pytest
import torch
from contract import entries
from fuzz import recipes, verbs

from torchdp import factorization, pairwise, privacy, queries, training, workloads
from torchdp.brief import WIDE, Brief, html_table
from torchdp.protocol import Estimate

RECIPES = [line for lines in recipes.ALL.values() for line in lines if "fresh" not in line]


def ours(value):
    return [
        one
        for one in (value if isinstance(value, tuple) else (value,))
        if "torchdp" in type(one).__module__
    ]


@pytest.mark.slow
def test_no_repr_of_a_public_call_is_long():
    found = [each for line in RECIPES for each in ours(eval(line, recipes.names()))]
    long = {repr(each) for each in found if len(repr(each)) > WIDE}
    assert found
    assert not long


def test_no_public_record_prints_tables():
    """What holds more than a few numbers and names prints itself as ``Brief`` does."""
    short = {"int", "int | None", "float", "bool", "str"}
    for room in recipes.ROOMS.split():
        for kind in filter(
            inspect.isclass, vars(importlib.import_module(f"torchdp.{room}")).values()
        ):
            if dataclasses.is_dataclass(kind) and kind.__repr__ is not Brief.__repr__:
                held = {
                    getattr(each.type, "__name__", str(each.type))
                    for each in dataclasses.fields(kind)
                }
                assert held <= short | {
                    "Box",
                    "Guarantee",
                    "Participation",
                } or "GaussianFourier" in str(held), kind


def test_no_repr_of_a_protocol_is_long():
    found = [repr(entry.protocol) for entry in entries().values()]
    assert max(map(len, found)) <= WIDE
    # a repr tells nearly all of them apart
    assert len(set(found)) > 0.9 * len(found)


def test_a_repr_names_parts_and_leaves_out_defaults():
    protocol = queries.Twice.of(pairwise.auc(3), 1.0)
    assert repr(protocol) == "MessageRelease(question='auc', channel=Twice)"
    assert repr(workloads.prefix(4)) == "Workload(name='prefix', factors=(float64(4, 4)))"


@pytest.mark.parametrize(
    "value, parts",
    [
        (queries.choose(workloads.identity(3), 100, 1.0), ["predicted error", "lower bound"]),
        (
            privacy.gaussian_guarantee(
                2.0, 1e-5, 1.0, privacy.Model.CENTRAL, privacy.Neighbours.ADD_REMOVE
            ),
            ["central differential privacy", "epsilon = "],
        ),
        (
            queries.Twice.of(pairwise.unequal(3), 1.0).estimate(torch.arange(30) % 3),
            ["standard error", "low", "high"],
        ),
        (
            verbs.kept()["densities"],
            ["<td>n</td><td>10</td>", "central differential privacy", "float64(2, "],
        ),
        (factorization.factorize(torch.eye(2), tol=0.1).certificate, ["<td>lower</td><td>1</td>"]),
        (
            training.choose(training.Iterates(3), 6, 2, epsilon=1.0, delta=1e-3).best,
            ["epsilon = 1", "sigma"],
        ),
    ],
)
def test_a_notebook_shows_a_table(value, parts):
    shown = value._repr_html_()
    assert shown.startswith("<table>")
    assert all(part in shown for part in parts)


def test_an_estimate_prints_its_numbers():
    few = Estimate(
        torch.tensor([2.0, -3.0]),
        torch.tensor([1.0, 0.5]),
        5,
    )
    assert (
        str(few).split()
        == "value standard error low high 2 1 0.040036 3.95996 -3 0.5 -3.97998 -2.02002".split()
    )
    assert str(few).count("\n") == 2
    assert "float32(2,)" in repr(few)
    many = Estimate(torch.arange(30.0), torch.tensor(1.0), 5)
    assert str(many).splitlines()[-2:] == [f"{11:>15}{1:>15}", "and 18 more"]
    assert "low" not in str(many)


def test_a_table_escapes_what_others_wrote():
    assert (
        html_table([("<b>", 0.12345678)])
        == "<table><tr><td>&lt;b&gt;</td><td>0.123457</td></tr></table>"
    )
