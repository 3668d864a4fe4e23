"""pandas in, pandas out: tables become the tensors that their rows say, and estimates keep their names."""

import numpy as np
import pandas as pd
import pytest
import torch

from torchdp import density, mean, randomizers, shuffle
from torchdp.domains import Box
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate, rows_of

CELLS = [2, 0, 1, 2]
TOWNS = pd.Series(["Zug", "Basel", "Bern", "Zug"], name="town", index=[7, 3, 3, 1])
TOWNS = TOWNS.astype(pd.CategoricalDtype(["Basel", "Bern", "Zug"]))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((name, torch.int64) for name in ("int8", "uint16", "int64", "Int32", "UInt8")),
        *((name, torch.float64) for name in ("float16", "float32", "Float64", "uint64", "UInt64")),
        *((name, torch.bool) for name in ("bool", "boolean")),
        (pd.SparseDtype("int64"), torch.int64),
    ],
)
def test_a_column_of_each_kind(kind, dtype):
    cells = pd.Series(CELLS).astype("bool" if kind == "boolean" else "int64")
    found = rows_of(cells.astype(kind))
    assert found.dtype == dtype and torch.equal(found, torch.tensor(CELLS).to(dtype))


def test_categories_are_types_in_their_order_and_columns_share_one_kind():
    assert rows_of(TOWNS).tolist() == CELLS and rows_of(TOWNS.to_numpy()) is not TOWNS
    assert rows_of(TOWNS.cat.reorder_categories(["Zug", "Bern", "Basel"])).tolist() == [0, 2, 1, 0]
    table = pd.DataFrame(np.arange(6).reshape(3, 2), columns=["a", "a"])
    assert rows_of(table).tolist() == [[0, 1], [2, 3], [4, 5]]
    mixed = table.set_axis(["a", "b"], axis=1).assign(a=[True, False, True], c=[0.5, 1, 2])
    assert rows_of(mixed).tolist() == [[1, 1, 0.5], [0, 3, 1], [1, 5, 2]]
    assert rows_of(mixed[["a"]]).dtype == torch.bool and rows_of(mixed[["a", "b"]]).dtype == torch.int64


def test_what_is_made_of_a_table_is_its_own():
    column = pd.Series([1.0, 2.0])
    rows_of(column)[0] = 9.0
    assert column[0] == 1.0


def test_every_verb_takes_a_table():
    """The same noise on the same rows: a table's answer is its tensor's."""
    oracle, x = randomizers.RandomizedResponse(3, 1.0), torch.tensor(CELLS)
    points = pd.DataFrame({"height": [0.1, 0.2, 0.9], "income": [0.5, 0.5, 0.0]})
    found = mean.GaussianMean.tuned(Box(torch.zeros(2), torch.ones(2)), rho=0.5, delta=1e-6)
    features = density.InnerProduct(2).draw(1, generator=torch.Generator().manual_seed(1))
    curator = density.CentralKDE(features, shuffle.CentralGaussianSum(1, 1.0), 1e-5)
    classes = density.ShuffledClasses((curator, curator))
    labels = pd.Series(["x", "y"], dtype=pd.CategoricalDtype(["x", "y"]))
    for verb, *tables in (
        (oracle.randomize, TOWNS),
        (lambda x, noise: oracle.collect(x, noise=noise)["reports"], TOWNS),
        (lambda x, noise: oracle.collect(x, groups=x, noise=noise)["reports"], TOWNS),
        (lambda x, noise: oracle.estimate(x, noise=noise).value, TOWNS),
        (lambda x, noise: found.estimate(x, noise=noise).value, points),
        (lambda x, y, noise: classes.estimate((x, y), noise=noise).value, points[:2] / 2, labels),
    ):
        of_table, of_rows = (verb(*each, noise=SeededNoise(1)) for each in (tables, map(rows_of, tables)))
        assert torch.equal(of_table, of_rows)
    assert density.class_counts(labels, 2).tolist() == [1, 1]
    few = TOWNS[TOWNS != "Zug"]  # a group that no one is in has its place, and is empty
    assert oracle.collect(few, groups=few).n.tolist() == [1, 1, 0] and oracle.collect(x, groups=x).n.shape == (3,)


def test_an_estimate_is_a_table_with_its_names():
    value = torch.arange(6.0).double().view(2, 3)
    found = Estimate(value, torch.tensor(0.5).double(), 4).frame(TOWNS, level=0.9)
    low, high = Estimate(value, torch.full_like(value, 0.5), 4).interval(0.9)
    assert found.index.tolist() == [(group, town) for group in range(2) for town in ("Basel", "Bern", "Zug")]
    assert found.index.names == [None, "town"]
    assert found.loc[(1, "Bern")].tolist() == [4.0, 0.5, float(low[1, 1]), float(high[1, 1])]
    assert Estimate(value[0, 0], value[0, 1], 4).frame().shape == (1, 4)
    two = Estimate(value[0, :2], value[0, :2], 4)
    assert two.frame(pd.DataFrame(columns=["u", "v"])).index.tolist() == ["u", "v"]
    assert Estimate(value, value, 4).frame(["all", "some"], "abc").loc[("some", "c"), "value"] == 5.0
