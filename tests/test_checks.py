"""Every check refuses what is not meant, by the argument's name, and lets through what is."""

import numpy as np
import pytest
import torch

from torchdp import checks


@pytest.mark.parametrize("value", [np.array([0.25, 17.0]), [0.25, 17.0]])
def test_arrays_and_lists_are_refused_with_the_remedy_and_never_shown(value):
    for check in (checks.floating, checks.integers):
        with pytest.raises(
            TypeError, match=r"x must be a torch.Tensor, not .*; torch.as_tensor makes one"
        ):
            check("x", value)
    for rest in ((checks.integer, 1), (checks.positive,)):
        with pytest.raises(ValueError, match=r"^[^.]*$"):
            rest[0]("x", value, *rest[1:])


def test_what_is_meant_passes():
    assert checks.positive("x", 700) == 700.0
    assert checks.non_negative("x", 0) == 0.0
    assert checks.integer("n", 10**15, 1) == 10**15
    assert checks.integer("n", torch.tensor(3), 0) == 3
    assert checks.device("device", "cpu") == torch.device("cpu")
    assert checks.floating("x", torch.ones(2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert checks.indices("x", torch.tensor([0, 2], dtype=torch.uint8), 3).dtype == torch.int64
    assert checks.below_one("x", 0) == 0.0
    assert checks.several("x", (1, 2), int) == [1, 2]
    checks.fits("x", 1000, 1000)
