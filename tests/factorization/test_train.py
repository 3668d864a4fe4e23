"""Training on the relaxation, any objective and structure: against semidefinite programs, sound
wherever it stops.
"""

import math
import warnings

import pytest
import torch
from laws import normal, overlap, uniform
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import (
    Groups,
    Norm,
    Objective,
    Product,
    Relaxation,
    factorize,
    factorize_epochs,
    strategy,
    train,
)
from torchdp.factorization.certificates.objective_certificate import certify_objective

PRIOR = torch.tensor([0.5, 0.1, 0.1, 0.2, 0.1], dtype=torch.float64)
PAIRS = torch.tensor(
    [
        [1.0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 1, 0, 0, 1],
    ]
)


def test_a_batch_goes_as_one_by_one():
    """Rank 0 and 3, a zero row, a scale of 1e200 and other exponents, side by side."""
    W = normal(2, 3, 8, 6)
    W[0, 1] = 0.0
    W[0, 2] = W[0, 2, :, :3] @ W[0, 2, :3]
    W[1, 0, 2] = 0.0
    W[1, 1] *= 1e200
    found = train(W)
    certificate = found.certificate
    exact = factorize(W, tol=1e-6).certificate
    assert certificate.closed(1e-5).all()
    assert overlap(certificate, exact)
    assert (certificate.residual <= 1e-12 * W.abs().amax((-2, -1)).clamp_min(1.0)).all()
    assert_close(found.sensitivity, certificate.upper.sqrt())
    alone = train(W[1, 2]).certificate
    assert_close(certificate.upper[1, 2], alone.upper, rtol=1e-5, atol=0)


def test_guarantee_train_is_sound_after_one_step():
    with pytest.warns(
        RuntimeWarning, match="after 1 iterations at a certified gap .*raise steps or tol"
    ) as record:
        certificate = train(workloads.prefix(16), steps=1).certificate
    assert record[0].filename == __file__
    assert certificate.lower <= 1.704480245 <= certificate.upper
    assert certificate.gap > 1e-3


def test_a_structure_of_ones_own_with_parameters_shared_by_a_batch():
    class Shared(torch.nn.Module):
        def __init__(self, W):
            super().__init__()
            self.W = W
            self.logs = torch.nn.Parameter(torch.zeros(W.shape[-1]).double())

        def forward(self):
            left = self.W / self.logs.exp()
            right = torch.diag(self.logs.exp())
            return left, right.expand(*self.W.shape[:-2], -1, -1)

    pair = torch.stack([torch.eye(3), 5 * torch.eye(3)])
    W = pair.double() * torch.tensor([1.0, 2.0, 4.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train(W, structure=Shared)
    assert torch.equal(found.right[0] / found.right[0, 0, 0], found.right[1] / found.right[1, 0, 0])
    assert_close(found.certificate.upper, torch.tensor([4.0, 20.0]).double(), rtol=1e-5, atol=0)
    plain = train(W[0], structure=Relaxation)
    assert plain.certificate.gap <= 1e-4


def test_dtype_and_grad_mode():
    state = torch.get_rng_state()
    with torch.no_grad():
        result = train(normal(4, 5).float(), tol=1e-4)
    with torch.inference_mode():
        train(normal(4, 5))
    assert result.left.dtype == torch.float32
    assert not result.left.requires_grad
    assert not result.row_weights.requires_grad
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


class Mixed(Objective):
    """A share of the largest squared error, the rest of the mean one."""

    def __init__(self, share):
        self.share = share

    def rows(self, a):
        return self.share * a + (1 - self.share) * a.mean(-1, keepdim=True)


class Local(Objective):
    """The worst query's variance of a local protocol whose users' types are drawn from PRIOR: it
    has an offset.
    """

    def rows(self, a):
        return a

    def offset(self, W):
        return -0.4 * (W.square() @ PRIOR)


OBJECTIVES = {
    "worst": Norm(),
    "p = 4": Norm(4.0),
    "mixed": Mixed(0.3),
    "local": Local(),
    "groups": Groups(PAIRS),
}


def squared(name, a, b, W):
    """The objective's squared error, written again."""
    a = a.detach()
    b = b.detach()
    if name == "p = 4":
        norm = a.square().sum().sqrt()
        return norm * b.max()
    if name == "mixed":
        return (0.3 * a.max() + 0.7 * a.mean()) * b.max()
    if name == "local":
        offset = 0.4 * (W.square() * PRIOR).sum(1)
        return (a * b.max() - offset).max()
    if name == "groups":
        b = b.sqrt()
        # the columns of each of PAIRS move together
        sums = b[0] + b[1], b[2] + b[3], b[1] + b[4]
        return a.max() * max(sums) ** 2
    return a.max() * b.max()


def program(name, W):
    """The least squared error by cvxpy: Z >= 0 with W off its diagonal, columns of length 1."""
    cp = pytest.importorskip("cvxpy")
    m, n = W.shape
    Z = cp.Variable((m + n, m + n), PSD=True)
    a = cp.diag(Z)[:m]
    b = cp.diag(Z)[m:]
    offset = 0.4 * (W.square() * PRIOR).sum(1).numpy()
    error = {
        "worst": lambda: cp.max(a),
        "p = 4": lambda: cp.pnorm(a, 2),
        "mixed": lambda: 0.3 * cp.max(a) + 0.7 * cp.sum(a) / m,
        "local": lambda: cp.max(a - offset),
    }[name]()
    limits = [Z[:m, m:] == W.numpy(), b <= 1]
    problem = cp.Problem(cp.Minimize(error), limits)
    return float(problem.solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "groups"])
def test_training_reaches_the_programs_optimum_and_closes_the_certificate(name):
    W = normal(6, 5)
    found = train(W, OBJECTIVES[name])
    assert found.certificate.gap <= 1e-5
    assert float(found.certificate.upper) ** 2 == pytest.approx(program(name, W), rel=3e-5)
    rows = found.left.square().sum(1)
    columns = found.right.square().sum(0)
    exact = squared(name, rows, columns, W)
    assert float(found.certificate.upper) ** 2 == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_guarantee_certify_objective_bounds_every_factorization(name):
    """Random multipliers never prove more than random factorizations attain; a wrong offset or
    slope would.
    """
    objective = OBJECTIVES[name]
    W = normal(6, 5)
    least = math.inf
    for seed in range(20):
        T = torch.eye(5).double() + 0.3 * normal(5, 5, seed=seed, name=b"T")
        left = torch.linalg.solve(T, W, left=False)
        right = T
        value = squared(
            name,
            left.square().sum(1),
            right.square().sum(0),
            W,
        )
        least = min(least, float(value) ** 0.5)
        columns = 3 if name == "groups" else 5
        rows = 1 if name == "p = 4" else 6
        s = uniform(rows, seed=seed)
        z = uniform(columns, seed=seed + 50)
        bounds = certify_objective(W, left, right, objective, s, z)
        assert float(bounds.upper) == pytest.approx(float(value) ** 0.5, rel=1e-9)
        assert bounds.lower <= least * (1 + 1e-9)
    assert train(W, objective).certificate.upper <= least


def test_what_factors_miss_is_charged():
    W = normal(6, 5)
    found = train(W, Mixed(0.3))
    weights = found.row_weights, found.column_weights
    whole = certify_objective(
        W,
        found.left,
        found.right,
        Mixed(0.3),
        *weights,
    )
    less = certify_objective(
        W,
        0.99 * found.left,
        found.right,
        Mixed(0.3),
        *weights,
    )
    none = certify_objective(
        W,
        0 * found.left,
        found.right,
        Mixed(0.3),
        *weights,
    )
    assert whole.gap <= 1e-5
    assert whole.upper < less.upper < none.upper
    # a hundredth of the largest entry
    assert less.residual == pytest.approx(0.01 * float(W.abs().max()), rel=1e-9)


def test_groups_end_at_the_least_error_from_any_start():
    """The proof of objectives.py: no local minimum, where the certificate can not say so."""
    W = normal(3, 5)
    values = []
    for seed in range(2):

        class Started(Relaxation):
            def __init__(self, W, seed=seed):
                super().__init__(W)
                with torch.no_grad():
                    step = normal(*self.T.shape, seed=seed, name=b"start")
                    self.T.add_(0.5 * step)

        certificate = train(W, Groups(PAIRS), Started, tol=1e-4).certificate
        values.append(float(certificate.upper))
    assert max(values) <= min(values) * (1 + 2e-4)
    both = Groups(torch.ones(1, 2))
    certificate = train(torch.eye(2), both).certificate
    assert float(certificate.upper) == pytest.approx(2.0, rel=1e-5)


STRUCTURES = {
    "bands": (strategy(bands=2), lambda C: torch.equal(C, C.tril().triu(-1))),
    "toeplitz": (strategy(bands=4, toeplitz=True), lambda C: torch.equal(C[1:, 1:], C[:-1, :-1])),
    "signs": (strategy(nonnegative=True), lambda C: bool((C >= 0).all())),
    "blocks": (
        strategy(torch.block_diag(torch.ones(3, 3), torch.ones(1, 1))),
        lambda C: not C[3:, :3].any(),
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_keep_their_shape_and_their_product(name):
    W = workloads.prefix(4).dense()
    structure, holds = STRUCTURES[name]
    found = train(torch.stack([W, 2 * W]), structure=structure, tol=1e-3)
    certificate = found.certificate
    free = train(W).certificate
    assert holds(found.right[0])
    assert certificate.residual.max() <= 1e-12
    assert_close(2 * certificate.upper[0], certificate.upper[1], rtol=3e-3, atol=0)
    assert free.upper <= certificate.upper[0] * (1 + 1e-5)
    assert_close(certificate.lower[0], free.lower, rtol=1e-3, atol=0)


def test_closed_forms_of_structures():
    """Two diagonal entries: sqrt(2). Toeplitz: the square root's coefficients are best for the
    worst query.
    """
    W = workloads.prefix(2).dense()
    certificate = train(W, structure=strategy(bands=1)).certificate
    assert float(certificate.upper) == pytest.approx(2**0.5, rel=1e-5)
    toeplitz = train(workloads.prefix(16), structure=strategy(bands=16, toeplitz=True))
    coefficients = [math.comb(2 * k, k) / 4**k for k in range(16)]
    best = sum(c**2 for c in coefficients)
    assert float(toeplitz.certificate.upper) == pytest.approx(best, rel=2e-5)


def test_a_product_of_relaxations():
    A = workloads.prefix(3).dense()
    B = workloads.prefix(2).dense()
    certificate = train(
        torch.kron(A, B), Mixed(0.5), lambda W: Product(Relaxation(A), Relaxation(B))
    ).certificate
    free = train(torch.kron(A, B), Mixed(0.5)).certificate
    assert certificate.residual <= 1e-12
    assert certificate.gap <= 0.01
    assert free.upper <= certificate.upper * (1 + 1e-5)
    worst = train(torch.kron(A, B), structure=lambda W: Product(Relaxation(A), Relaxation(B)))
    # gamma_2 is multiplicative: the structure costs nothing
    assert worst.certificate.gap <= 1e-4


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_bands_for_users_who_come_back(p):
    """Two passes of three steps, three bands: against what users move by any signs, and the bound
    of epochs.
    """
    W = workloads.prefix(6).dense()
    groups = torch.eye(3).repeat(1, 2)
    found = train(
        W,
        Groups(groups, p, apart=True),
        strategy(bands=3),
        tol=1e-4,
    )
    C = found.right
    rows = torch.linalg.vector_norm(found.left.norm(dim=1), ord=p)
    moved = []
    for i in range(3):
        for s in (-1, 0.5, 1):
            user = C[:, i] + s * C[:, i + 3]
            moved.append(float(user.norm()))
    # what users move is attained
    assert float(rows) * max(moved) == pytest.approx(float(found.certificate.upper), rel=1e-9)
    best = factorize_epochs(W, 3, p, tol=1e-4).certificate
    assert found.certificate.lower <= best.upper
    assert best.lower <= found.certificate.upper <= 1.02 * best.upper
