"""pandas in, pandas out: tables become the tensors that their rows say, and estimates keep their
names.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from laws import generator

from torchdp import (
    density,
    mean,
    pairwise,
    queries,
    randomizers,
    shuffle,
)
from torchdp.domains import Box
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate, rows_of

CELLS = [2, 0, 1, 2]
TOWNS = pd.Series(
    ["Zug", "Basel", "Bern", "Zug"],
    name="town",
    index=[7, 3, 3, 1],
)
TOWNS = TOWNS.astype(pd.CategoricalDtype(["Basel", "Bern", "Zug"]))


SEX = pd.Series(
    ["m", "f", "f", "m"],
    dtype=pd.CategoricalDtype(["f", "m"]),
    index=TOWNS.index,
)
NUMBERS = (
    ("int8", "uint16", "int64", "Int32", "UInt8"),
    ("float16", "float32", "Float64", "uint64", "UInt64"),
)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((name, torch.int64) for name in NUMBERS[0]),
        *((name, torch.float64) for name in NUMBERS[1]),
        *((name, torch.bool) for name in ("bool", "boolean")),
        (pd.SparseDtype("int64"), torch.int64),
    ],
)
def test_a_column_of_each_kind(kind, dtype):
    cells = pd.Series(CELLS).astype("bool" if kind == "boolean" else "int64")
    found = rows_of(cells.astype(kind), ())
    assert found.dtype == dtype
    assert torch.equal(found, torch.tensor(CELLS).to(dtype))


@pytest.mark.parametrize(
    "kind",
    [
        "int8",
        "uint16",
        ">i4",
        "int64",
        "float16",
        ">f4",
        "uint64",
        "bool",
    ],
)
def test_an_array_of_each_kind(kind):
    array = np.array(CELLS).astype(kind)
    found = rows_of(array[::-1], ())
    assert found.tolist() == array[::-1].tolist()
    assert rows_of(array.tolist(), ()).tolist() == array.tolist()
    assert rows_of(array, (1,)).shape == (4, 1)
    assert rows_of(array[:, None], ()).shape == (4,)


def test_a_tensor_is_passed_as_it_is():
    for x in (
        torch.tensor([1]),
        torch.zeros(2, 3, 4),
        torch.ones(3).to_sparse(),
    ):
        assert rows_of(x, 2) is x
        assert rows_of(x, ()) is x
    # but for booleans that are types
    assert torch.equal(rows_of(torch.tensor([[True, False]]), 2), torch.tensor([[1, 0]]))
    assert rows_of(torch.tensor([True]), ()).dtype == torch.bool


class Polars:
    """What other tables have."""

    def to_pandas(self):
        return TOWNS.to_frame()


@pytest.mark.parametrize("x", [pd.Categorical(TOWNS), pd.Index(CELLS), Polars()], ids=type)
def test_other_columns_are_types_too(x):
    assert rows_of(x, 3).tolist() == CELLS
    with pytest.raises(ValueError, match=r"not 3 numbers; make one.*ravel_multi_index"):
        rows_of([[1, 0, 0], [0, 1, 1]], 8)


def test_categories_are_types_in_their_order_and_columns_share_one_kind():
    assert rows_of(TOWNS, 3).tolist() == CELLS
    assert rows_of(TOWNS.to_frame(), 3).tolist() == CELLS
    assert rows_of(TOWNS.cat.reorder_categories(["Zug", "Bern", "Basel"]), 3).tolist() == [
        0,
        2,
        1,
        0,
    ]
    assert rows_of(pd.cut(pd.Series([1.5, 0.5]), [0, 1, 2]), 2).tolist() == [1, 0]
    assert (
        rows_of(pd.Series([True, False]), 3).tolist()
        == rows_of([True, False], 3).tolist()
        == [1, 0]
    )
    table = pd.DataFrame(np.arange(6).reshape(3, 2), columns=["a", "a"])
    assert rows_of(table, (2,)).tolist() == [[0, 1], [2, 3], [4, 5]]
    mixed = table.set_axis(["a", "b"], axis=1).assign(
        a=[True, False, True],
        c=[0.5, 1, 2],
    )
    assert rows_of(mixed, (3,)).tolist() == [[1, 1, 0.5], [0, 3, 1], [1, 5, 2]]
    assert rows_of(mixed[["a"]], (1,)).dtype == torch.bool
    assert rows_of(mixed[["a", "b"]], (2,)).dtype == torch.int64


def test_columns_of_categories_are_product_types_the_first_column_the_slowest():
    both = pd.DataFrame({"sex": SEX, "town": TOWNS})
    assert rows_of(both, 6).tolist() == [5, 0, 1, 5]
    assert rows_of(both[["town", "sex"]], 6).tolist() == [5, 0, 2, 5]
    assert rows_of(both.assign(sex=SEX == "m"), 6).tolist() == [5, 0, 1, 5]
    kendall = pairwise.kendall(2, 3)
    protocol = queries.LocalFactorization.of(kendall, 1.0)
    assert torch.equal(
        protocol.validate(rows_of(both, kendall.types)),
        rows_of(both, 6),
    )
    oracle = randomizers.RandomizedResponse(3, 1.0)
    assert oracle.collect(TOWNS, groups=both).n.shape == (6,)
    assert oracle.collect(TOWNS, groups=SEX == "m").n.shape == (2,)


def test_a_domain_and_its_nearest_points_take_lists_arrays_and_tables():
    box = Box([0, 0.5], [1.0, 2])
    table = pd.DataFrame({"a": [0.2, 4.0], "b": [1, 1]})
    assert box.low.dtype == torch.float64
    assert box.high.tolist() == [1.0, 2.0]
    for rows in (table, table.to_numpy(), table.to_numpy().tolist()):
        assert box.project(rows).tolist() == [[0.2, 1.0], [1.0, 1.0]]


def test_every_verb_takes_a_table():
    """The same noise on the same rows: a table's answer is its tensor's."""
    oracle = randomizers.RandomizedResponse(3, 1.0)
    x = torch.tensor(CELLS)
    points = pd.DataFrame(
        {
            "height": [0.1, 0.2, 0.9],
            "income": [0.5, 0.5, 0.0],
        }
    )
    found = mean.GaussianMean.tuned(
        Box(torch.zeros(2), torch.ones(2)),
        rho=0.5,
        delta=1e-6,
    )
    features = density.InnerProduct(2).draw(1, generator=generator(1))
    curator = density.CentralKDE(features, shuffle.CentralGaussianSum(1, 1.0), 1e-5)
    classes = density.ShuffledClasses((curator, curator))
    labels = pd.Series(["x", "y"], dtype=pd.CategoricalDtype(["x", "y"]))
    for verb, *tables in (
        (
            lambda x, noise: oracle.collect(x, groups=x, noise=noise)["reports"],
            TOWNS,
        ),
        (lambda x, noise: oracle.estimate(x, noise=noise).value, TOWNS),
        (lambda x, noise: oracle.randomize(x, noise=noise), TOWNS),
        (lambda x, noise: oracle.summary(x), TOWNS),
        (lambda x, noise: found.summary(x).mean, points),
        (lambda x, noise: found.estimate(x, noise=noise).value, points),
        (
            lambda x, y, noise: classes.estimate((x, y), noise=noise).value,
            points[:2] / 2,
            labels,
        ),
    ):
        columns = [each.cat.codes if each.ndim == 1 else each for each in tables]
        rows = [torch.tensor(each.to_numpy()) for each in columns]
        of_table = verb(*tables, noise=SeededNoise(1))
        assert torch.equal(
            of_table,
            verb(
                *(each.long() if each.ndim == 1 else each for each in rows),
                noise=SeededNoise(1),
            ),
        )
    assert density.class_counts(labels, 2).tolist() == [1, 1]
    # a group that no one is in has its place, and is empty
    few = TOWNS[TOWNS != "Zug"]
    assert oracle.collect(few, groups=few).n.tolist() == [1, 1, 0]
    assert oracle.collect(x, groups=x).n.shape == (3,)


def test_an_estimate_is_a_table_with_its_names():
    value = torch.arange(6, dtype=torch.float64).view(2, 3)
    half = torch.tensor(0.5).double()
    found = Estimate(value, half, 4).frame(TOWNS, level=0.9)
    low, high = Estimate(value, torch.full_like(value, 0.5), 4).interval(0.9)
    assert found.index.tolist() == [
        (group, town) for group in range(2) for town in ("Basel", "Bern", "Zug")
    ]
    assert found.index.names == [None, "town"]
    assert found.loc[(1, "Bern")].tolist() == [
        4.0,
        0.5,
        float(low[1, 1]),
        float(high[1, 1]),
    ]
    assert Estimate(value[0, 0], value[0, 1], 4).frame().shape == (1, 4)
    two = Estimate(value[0, :2], value[0, :2], 4)
    assert two.frame(pd.DataFrame(columns=["u", "v"])).index.tolist() == [
        "u",
        "v",
    ]
    assert (
        Estimate(value, value, 4).frame(["all", "some"], "abc").loc[("some", "c"), "value"] == 5.0
    )
