"""Groups of users: what they are promised together, against pairs that are so many steps apart."""

import math

import pandas as pd
import pytest
from gaussians import true_epsilon

from torchdp import protocol
from torchdp.privacy import Guarantee, Model, Neighbours, for_groups, gaussian_guarantee


def promise(epsilon, delta, **more):
    return Guarantee(epsilon, delta, Model.CENTRAL, Neighbours.REPLACE_ONE, True, "", **more)


def test_guarantee_of_groups_is_attained_by_noise_of_whole_numbers_and_of_normals():
    # geometric noise, counts three apart: the log ratio far out is three times that of one
    assert for_groups(promise(0.5, 0.0), 3).epsilon == 1.5
    one = gaussian_guarantee(2.0, 1e-6, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
    three = for_groups(one, 3)
    assert three.mu == 1.5
    assert three.epsilon == pytest.approx(true_epsilon(1.5, 1e-6), rel=1e-6)
    assert three.epsilon > for_groups(one, 2).epsilon > one.epsilon


def test_guarantee_of_groups_multiplies_delta():
    """Steps in a chain of k + 1 data sets on which p = e^eps q + delta at each: the worst case."""
    epsilon, delta = 0.4, 1e-3
    chance = 0.0
    for _ in range(4):
        chance = math.exp(epsilon) * chance + delta
    group = for_groups(promise(epsilon, delta), 4)
    assert (group.epsilon, group.delta) == (4 * epsilon, pytest.approx(chance, rel=1e-9))
    assert group.delta >= chance
    with pytest.raises(ValueError, match="delta for groups of 99"):
        for_groups(promise(1.0, 1e-6), 99)


def test_rows_of_each_user_are_as_many_as_stated():
    table = pd.DataFrame({"who": list("aaaaabbc"), "x": range(8)})
    rows = protocol.sampled_rows(table, "who", 3)
    assert rows["who"].value_counts().to_dict() == {"a": 3, "b": 3, "c": 3}
    assert set(rows.loc[rows["who"] == "b", "x"]) <= {5, 6}
    with pytest.raises(ValueError, match="user must name a column"):
        protocol.sampled_rows(table, "id", 1)
    with pytest.raises(ValueError, match="lacks 1 of 2"):
        protocol.sampled_rows(pd.DataFrame({"who": ["a", None]}), "who", 1)
