"""Every check refuses what is not meant, by the argument's name, and lets through what is."""

import math

import numpy as np
import pytest
import torch

from torchdp import checks

BAD = {
    "positive": (["1", None, True, math.nan, math.inf, 0, -1, 10**400, torch.ones(2)], ()),
    "non_negative": (["1", None, False, math.nan, -1e-9, torch.ones(2)], ()),
    "squarable": ([0, 1e-200, 1e200, math.nan], ()),
    "below_one": ([1, -1e-9, "0", None, math.nan, True, torch.rand(2)], ()),
    "several": ([1, None, "x", [], torch.ones(2), [1]], (torch.Tensor,)),
    "fraction": ([0, 1, math.nan, True, torch.rand(2)], ()),
    "integer": ([1.0, True, "3", 0, 2**60, torch.tensor([1, 2]), None], (1,)),
    "instance": ([1, None, "x", torch.Tensor], (torch.Tensor,)),
    "function": ([1, None, "x"], ()),
    "device": ([1, None, "nonsense", "cuda:99", "meta", "cpu:x"], ()),
    "sample_shape": (["ab", 3, (1.5,), (-1,), None, (2**60,)], ()),
}
TENSORS = {
    "not a tensor": [1.0, 2.0],
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(2, 2, device="meta"),
    "float8": torch.ones(2, 2).to(torch.float8_e4m3fn),
    "uint16": torch.ones(2, 2, dtype=torch.uint16),
    "complex": torch.ones(2, 2, dtype=torch.complex64),
}
READS = {
    "real": (),
    "floating": (),
    "matrix": (),
    "indices": (3,),
    "counts": (2,),
}


@pytest.mark.parametrize("name", BAD)
def test_numbers_and_objects_are_refused_by_name(name):
    values, rest = BAD[name]
    for value in values:
        with pytest.raises((ValueError, TypeError), match=r"epsilon|sample_shape"):
            getattr(checks, name)(*(() if name == "sample_shape" else ("epsilon",)), value, *rest)


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("name", READS)
def test_exotic_tensors_are_refused_by_name(name, kind):
    with pytest.raises((ValueError, TypeError), match=r"^x "):
        getattr(checks, name)("x", TENSORS[kind], *READS[name])


@pytest.mark.parametrize("value", [np.array([0.25, 17.0]), [0.25, 17.0]])
def test_arrays_and_lists_are_refused_with_the_remedy_and_never_shown(value):
    for check in (checks.floating, checks.integers):
        with pytest.raises(TypeError, match=r"x must be a torch.Tensor, not .*; torch.as_tensor makes one"):
            check("x", value)
    for rest in ((checks.integer, 1), (checks.positive,)):
        with pytest.raises(ValueError, match=r"^[^.]*$"):
            rest[0]("x", value, *rest[1:])


def test_what_is_meant_passes():
    assert checks.positive("x", 700) == 700.0 and checks.non_negative("x", 0) == 0.0
    assert checks.integer("n", 10**15, 1) == 10**15 and checks.integer("n", torch.tensor(3), 0) == 3
    assert checks.device("device", "cpu") == torch.device("cpu")
    assert checks.floating("x", torch.ones(2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert checks.indices("x", torch.tensor([0, 2], dtype=torch.uint8), 3).dtype == torch.int64
    assert checks.below_one("x", 0) == 0.0 and checks.several("x", (1, 2), int) == [1, 2]
    checks.fits("x", 1000, 1000)


@pytest.mark.parametrize(
    ("check", "value", "rest"),
    [
        ("indices", torch.tensor([-1]), (3,)),
        ("indices", torch.tensor([3]), (3,)),
        ("indices", torch.tensor([0.0]), (3,)),
        ("indices", torch.tensor([True]), (3,)),
        ("counts", torch.tensor([1, -1]), (2,)),
        ("counts", torch.tensor([0.5, 1]), (2,)),
        ("counts", torch.tensor([2**62, 2**62]), (2,)),
        ("counts", torch.tensor([1, 1, 1]), (2,)),
        ("floating", torch.tensor([math.nan]), ()),
        ("matrix", torch.ones(0, 3), ()),
        ("fits", 2**20, (2**20,)),
    ],
)
def test_values_out_of_range(check, value, rest):
    with pytest.raises((ValueError, TypeError), match=r"^x "):
        getattr(checks, check)("x", value, *rest)
