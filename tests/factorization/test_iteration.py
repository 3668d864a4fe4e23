"""The accelerated fixed point against its plain form; solvers stop where what they return is
certified, not later.
"""

import math
import warnings

import pytest
import torch
from laws import normal, overlap
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import (
    approximate,
    certify,
    factorize,
    factorize_epochs,
    factorize_product,
    signature_form,
    train,
)
from torchdp.factorization.solvers import spectrum
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.randomness import keyed_generator


def certified(W, *, p=math.inf, shift=False, **settings):
    found = solve(W, p=p, shift=shift, **settings)
    weights = found.row_weights, found.column_weights
    certificate = certify(
        W,
        found.left,
        found.right,
        *weights,
        p=p,
        shift=found.shift,
    )
    return certificate, found.iterations


def test_prefix_256_in_half_the_iterations():
    W = workloads.prefix(256).dense()
    fast, iterations = certified(W, tol=1e-4)
    plain, plain_iterations = certified(W, tol=1e-4, memory=0)
    # tol, and what rounding adds
    assert fast.gap <= 1.01e-4
    assert plain.gap <= 1.01e-4
    assert 2 * iterations <= plain_iterations
    # the value as certified elsewhere
    assert max(fast.lower, plain.lower) <= 2.5327186
    assert min(fast.upper, plain.upper) >= 2.5327161


def test_all_ranges_64_in_400_iterations():
    """The hard case: hundreds of rows carry weight, and the plain iteration needs thousands of
    steps.
    """
    certificate, iterations = certified(workloads.all_ranges(64).dense(), tol=1e-6)
    assert iterations <= 400
    assert certificate.gap <= 1.01e-6
    # the value as certified elsewhere
    assert certificate.lower <= 2.4886332
    assert certificate.upper >= 2.4886307


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("shift", [False, True])
def test_points_in_the_plane(p, shift):
    """Few points with a free shift: weights at the floor must not steer the acceleration
    (they once stopped it).
    """
    W = torch.tensor(
        [[-0.6069, -1.9858, -1.0025, 0.8439], [-0.4679, 0.1730, -1.6784, -0.6285]]
    ).double()
    fast, iterations = certified(
        W,
        p=p,
        shift=shift,
        tol=1e-6,
    )
    plain, _ = certified(
        W,
        p=p,
        shift=shift,
        tol=1e-6,
        memory=0,
    )
    assert iterations <= 60
    # tol, and what rounding adds
    assert fast.gap <= 1.01e-6
    assert overlap(fast, plain)


def test_a_norm_of_zero_is_reached_without_a_warning():
    point = normal(5, 1, name=b"one point")
    W = point.expand(5, 4).clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = factorize(W, shift=True)
    # zero, up to rounding
    assert found.certificate.upper <= 1e-14
    assert_close(found.shift, W[:, 0])


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(
    "kind", ["tall", "dependent columns", "zero column", "ill-conditioned", "zero", "batch"]
)
def test_a_tall_matrix_at_p_2_is_solved_through_its_gram_matrix(kind, shift):
    """Both ways to its square root, Cholesky and QR: the same certified norm as that of the
    triangle of W = Q T.
    """
    generator = keyed_generator(kind.encode())
    W = torch.randn(
        40,
        6,
        dtype=torch.float64,
        generator=generator,
    )
    if kind == "dependent columns":
        W[:, 5] = W[:, 0] - 2 * W[:, 1]
    elif kind == "zero column":
        W[:, 2] = 0
    elif kind == "ill-conditioned":
        drawn = torch.randn(
            6,
            6,
            dtype=torch.float64,
            generator=generator,
        )
        # nine decades between the first and the last singular value
        scales = 10 ** -torch.linspace(0, 9, 6, dtype=torch.float64)
        W = W @ torch.linalg.qr(drawn).Q
        W = W * scales @ torch.linalg.qr(W[:6]).Q
    elif kind == "zero":
        W = torch.zeros_like(W)
    elif kind == "batch":
        W = torch.stack(
            [
                W,
                0 * W,
                1e100 * W.square(),
                W[:, :1] * torch.ones(6),
            ]
        )
    found = factorize(W, 2, shift, tol=1e-6)
    certificate = found.certificate
    # nothing below this is seen in float64
    rounding = 1e-13 * W.abs().amax((-2, -1))
    assert (certificate.upper <= certificate.lower * (1 + 1e-6) + rounding).all()
    assert (certificate.residual <= rounding).all()
    triangle = torch.linalg.qr(W, mode="r").R
    square = factorize(triangle, 2, shift, tol=1e-6).certificate
    assert (certificate.lower <= square.upper + rounding).all()
    assert (square.lower <= certificate.upper + rounding).all()
    assert found.row_weights.shape == W.shape[:-1]
    assert found.left.shape[-2] == 40


def one_large_row():
    W = normal(40, 40)
    W[0] *= 1e6
    return W


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_solution_that_is_certified_is_not_improved():
    """Completing the factors closes a gap that the iteration itself never sees closed."""
    found = factorize(one_large_row(), shift=True, tol=1e-6)
    assert found.certificate.gap <= 1e-6
    # 10,000 by the iteration's own bounds
    assert found.iterations <= 100


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_a_gap_that_only_the_iteration_believes_in_is_closed_in_fact(seed):
    """At 1e-10 a trace norm from a Gram matrix is too large: two of these stopped above tol and
    asked for more.
    """
    found = factorize(normal(6, 6, seed=seed), tol=1e-10)
    # closed in fact
    assert found.certificate.gap <= 1e-10
    assert found.iterations <= 100


def test_a_solver_that_believes_too_much_is_not_believed(monkeypatch):
    """Negative control: trace norms 1 % too large. The warning does not ask for iterations."""
    right = spectrum.Mirrored.step

    def wrong(self, X, c, P):
        step = right(self, X, c, P)
        return step._replace(trace=1.01 * step.trace)

    W = workloads.prefix(16).dense()
    honest = factorize(W, tol=1e-3)
    monkeypatch.setattr(spectrum.Mirrored, "step", wrong)
    with pytest.warns(RuntimeWarning, match="certified gap of .*: raise tol") as record:
        found = factorize(W, tol=1e-5)
    assert found.iterations < 100
    # what the true certificate says of weights that were believed
    assert found.certificate.gap > 1e-5
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


def first_factor(W):
    return factorize_product(workloads.Workload("product", (W, W)), tol=1e-5).factors[0]


HALVES = {
    "factorize": lambda W: factorize(W, shift=True, tol=1e-5),
    "product": first_factor,
    "signature": lambda W: signature_form(W + W.T, tol=1e-5),
    "epochs": lambda W: factorize_epochs(W, 2, tol=1e-5),
    "approximate": lambda W: approximate(W, 0.2, tol=1e-5),
    "train": train,
}


@pytest.mark.parametrize(
    ("solver", "dtype"),
    [
        ("factorize", torch.float16),
        ("factorize", torch.bfloat16),
        ("product", torch.float16),
        ("signature", torch.bfloat16),
        ("epochs", torch.float16),
        ("approximate", torch.bfloat16),
        ("train", torch.float16),
    ],
)
def test_half_precision_is_worked_in_float32(solver, dtype):
    found = HALVES[solver](normal(4, 4, seed=1).to(dtype))
    assert found.left.dtype == found.right.dtype == torch.float32
    # what float32 can tell
    assert found.certificate.gap <= 2e-5
