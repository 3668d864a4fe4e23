"""Certificates to keep: in fractions, and in a file that numpy alone verifies."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from laws import normal

from torchdp import workloads
from torchdp.factorization import exact_certificate, factorize, load, save, train
from torchdp.factorization.certificates.exact_certificate import outer_root, positive_definite

PAGE = (Path(__file__).parents[2] / "docs" / "relaxation.md").read_text()
PROBLEMS = [
    (workloads.prefix(9).dense(), math.inf, False),
    (normal(4, 9), math.inf, False),
    (normal(9, 4), 2.0, False),
    (normal(5, 5) * 1e-12, math.inf, False),
    (normal(6, 2) @ normal(2, 7), 2.0, False),
    (normal(3, 3).sign(), math.inf, False),
    (normal(1, 6), math.inf, False),
    (normal(5, 8), math.inf, True),
    (normal(5, 8), 4.0, False),
    (normal(8, 5), 4.0, True),
]


def proved(W, found, p=math.inf):
    return exact_certificate(W, found.left, found.right, found.row_weights, found.column_weights, p=p)


@pytest.mark.parametrize("number", range(7))
def test_guarantee_exact_bounds_are_fractions_that_bracket_the_norm(number):
    W, p, _ = PROBLEMS[number]
    found = factorize(W, p, tol=1e-7)
    exact = proved(W, found, p)
    assert isinstance(exact.lower, Fraction) and exact.lower <= exact.upper
    for mine, theirs in ((exact.lower, found.certificate.lower), (exact.upper, found.certificate.upper)):
        assert float(mine) == pytest.approx(float(theirs), rel=1e-7)


def test_closed_forms_lie_between_the_fractions():
    """gamma_2 of Hadamard's signs is sqrt(4), of prefix sums of 2 it is 2/sqrt(3): squares, as fractions."""
    for W, square in ((torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]), Fraction(4)),
                      (workloads.prefix(2).dense(), Fraction(4, 3))):  # fmt: skip
        exact = proved(W.double(), factorize(W.double(), tol=1e-9))
        assert exact.lower**2 <= square <= exact.upper**2 and exact.upper - exact.lower < 1e-7


def test_bad_factors_and_weights_prove_less_and_nothing_false():
    W = normal(4, 5)
    found, norm = factorize(W, tol=1e-9), float(factorize(W, tol=1e-9).certificate.lower)
    values = [found.left, found.right, found.row_weights, found.column_weights]
    for i, factor in enumerate((0.9, 0.0, 2.0, 0.0)):
        changed = list(values)
        changed[i] = values[i] * factor + 0.1
        exact = exact_certificate(W, *changed)
        assert exact.lower <= norm * (1 + 1e-8) and exact.upper >= norm * (1 - 1e-8)
    assert exact_certificate(W, *values[:2], 0 * values[2], values[3]).lower == 0
    assert not positive_definite([[Fraction(1), Fraction(2)], [Fraction(2), Fraction(4)]])  # singular: not proved
    assert positive_definite([[Fraction(1), Fraction(2)], [Fraction(2), Fraction(5)]])


@pytest.mark.parametrize(
    "value", [Fraction(2), Fraction(1, 3), Fraction(10**40, 7), Fraction(3, 10**41), Fraction(0)]
)
def test_roots_are_rounded_outwards(value):
    low, high = outer_root(value, up=False), outer_root(value, up=True)
    assert low**2 <= value <= high**2 and high - low <= Fraction(1, 2**60) * high


@pytest.fixture(scope="module")
def verify():
    """The page's program, as somebody else would run it."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (program,) = [block for block in blocks if "def verify" in block]
    program = program[: program.index("\n\nprint(")]
    assert len(program.splitlines()) <= 60 and "torch" not in program
    names = {}
    exec(program, names)
    return names["verify"]


@pytest.mark.parametrize("number", range(10))
def test_numpy_alone_verifies_ten_files(number, verify, tmp_path):
    W, p, shift = PROBLEMS[number]
    found = train(W, p, shift=shift, tol=1e-4)
    save(tmp_path / "kept.npz", W, found, p=p)
    lower, upper = verify(tmp_path / "kept.npz")
    assert lower == pytest.approx(float(found.certificate.lower), rel=1e-9)
    assert upper == pytest.approx(float(found.certificate.upper), rel=1e-9)
    again, same, order = load(tmp_path / "kept.npz")
    assert torch.equal(again, W) and order == p
    torch.testing.assert_close(same.certificate.upper, found.certificate.upper)


FORGED = {
    "a lower bound that nothing proves": lambda file: {"lower": file["lower"] * 1.01},
    "factors of another matrix": lambda file: {"left": 0.99 * file["left"], "right": 0.99 * file["right"]},
    "weights of another optimum": lambda file: {"column_weights": file["column_weights"][::-1].copy()},
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refused_by_both(name, verify, tmp_path):
    save(tmp_path / "kept.npz", PROBLEMS[1][0], train(PROBLEMS[1][0]))
    with np.load(tmp_path / "kept.npz") as file:
        arrays = {key: file[key] for key in file.files} | FORGED[name](file)
    np.savez(tmp_path / "forged.npz", **arrays)
    with pytest.raises(ValueError, match="not proved"):
        verify(tmp_path / "forged.npz")
    with pytest.raises(ValueError, match="do not prove"):
        load(tmp_path / "forged.npz")
    del arrays["lower"]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(ValueError, match=r"missing: \['lower'\]"):
        load(tmp_path / "short.npz")
