"""Solvers stop where the certificate of what they return is closed: neither before it nor long after."""

import warnings

import pytest
import torch
from laws import normal

from torchdp import workloads
from torchdp.factorization import (
    approximate,
    factorize,
    factorize_epochs,
    factorize_product,
    signature_form,
    train,
)
from torchdp.factorization.solvers import spectrum


def one_large_row():
    W = normal(40, 40)
    W[0] *= 1e6
    return W


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_solution_that_is_certified_is_not_improved():
    """Completing the factors closes a gap that the iteration itself never sees closed."""
    found = factorize(one_large_row(), shift=True, tol=1e-6)
    assert found.certificate.gap <= 1e-6
    assert found.iterations <= 100  # 10,000 by the iteration's own bounds


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_a_gap_that_only_the_iteration_believes_in_is_closed_in_fact(seed):
    """At 1e-10 a trace norm from a Gram matrix is too large: two of these stopped above tol and asked for more."""
    found = factorize(normal(6, 6, seed=seed), tol=1e-10)
    assert found.certificate.gap <= 1e-10 and found.iterations <= 100


def test_a_solver_that_believes_too_much_is_not_believed(monkeypatch):
    """Negative control: trace norms 1 % too large. The warning does not ask for iterations."""
    right = spectrum.Mirrored.step

    def wrong(self, X, c, P, gap):
        step = right(self, X, c, P, gap)
        return step._replace(trace=1.01 * step.trace)

    W = workloads.prefix(16).dense()
    honest = factorize(W, tol=1e-3)
    monkeypatch.setattr(spectrum.Mirrored, "step", wrong)
    with pytest.warns(RuntimeWarning, match="certified gap of .*: raise tol") as record:
        found = factorize(W, tol=1e-5)
    assert found.iterations < 100 and found.certificate.gap > 1e-5
    assert "max_iterations" not in str(record[0].message)
    assert found.certificate.lower <= honest.certificate.upper * (1 + 1e-12)


def test_the_warning_says_what_would_help():
    W = normal(6, 6)
    with pytest.warns(RuntimeWarning, match="after 2 iterations .*raise max_iterations or tol"):
        factorize(W, tol=1e-6, max_iterations=2)
    with pytest.warns(RuntimeWarning, match="rounding is in the way .*take W in float64"):
        found = factorize(W.float(), tol=1e-9)
    assert found.iterations < 200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factorize(W.float(), tol=1e-5)


HALVES = {
    "factorize": lambda W: factorize(W, shift=True, tol=1e-5),
    "product": lambda W: factorize_product(workloads.Workload("product", (W, W)), tol=1e-5).factors[0],
    "signature": lambda W: signature_form(W + W.T, tol=1e-5),
    "epochs": lambda W: factorize_epochs(W, 2, tol=1e-5),
    "approximate": lambda W: approximate(W, 0.2, tol=1e-5),
    "train": train,
}


@pytest.mark.parametrize("solver", HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_warns_and_is_worked_in_float32(solver, dtype):
    with pytest.warns(RuntimeWarning, match=f"{dtype}, too coarse for factors") as record:
        found = HALVES[solver](normal(4, 4, seed=1).to(dtype))
    assert record[0].filename == __file__
    assert found.left.dtype == found.right.dtype == torch.float32
    assert found.certificate.gap <= 2e-5
