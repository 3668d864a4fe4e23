"""phi and psi from the second moments against their definitions on the rows."""

import pytest
import torch
from laws import normal

from torchdp.regression import SecondMoments, loss, phi, psi
from torchdp.regression.errors import least_squares


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_phi_is_the_ratio_of_losses_on_the_rows(ridge):
    A = normal(40, 3)
    b = normal(40, seed=1)
    x = normal(5, 2, 3, seed=2)
    moments = SecondMoments.of(A, b)
    best = torch.linalg.solve(A.mT @ A + ridge * torch.eye(3), A.mT @ b)

    def direct(x):
        residual = A @ x - b
        return residual.square().sum() + ridge * x.square().sum()

    torch.testing.assert_close(least_squares(moments, ridge), best)
    losses = torch.stack([direct(v) for v in x.flatten(0, 1)])
    wanted = losses.view(5, 2) / direct(best)
    torch.testing.assert_close(phi(moments, x, ridge), wanted)
    torch.testing.assert_close(loss(moments, best, ridge), direct(best))
    assert float(phi(moments, best, ridge)) == pytest.approx(1)
    of_zero = float(b @ b / direct(best))
    assert float(phi(moments, torch.zeros(3), ridge)) == pytest.approx(of_zero)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_psi_is_the_excess_risk_on_the_rows(k):
    A = normal(40, 4)
    X = torch.linalg.qr(normal(3, 4, k, seed=1)).Q
    # what a subspace leaves of the rows
    missed = [A - A @ x @ x.mT for x in X]
    direct = torch.stack([each.square().sum() for each in missed])
    singular = torch.linalg.svdvals(A)[k:]
    best = singular.square().sum()
    torch.testing.assert_close(psi(SecondMoments.of(A), X), (direct - best) / 40)


def test_moments_are_summed_in_parts_and_join(monkeypatch):
    A = normal(50, 3).float()
    b = normal(50, seed=1)
    whole = SecondMoments.of(A, b)
    monkeypatch.setattr("torchdp.memory.NUMBERS_AT_ONCE", 40)
    torch.testing.assert_close(SecondMoments.of(A, b).matrix, whole.matrix)
    first = SecondMoments.of(A[:20], b[:20])
    parts = first + SecondMoments.of(A[20:], b[20:])
    assert parts.n == 50
    assert whole.matrix.dtype == torch.float64
    torch.testing.assert_close(parts.matrix, whole.matrix)


def test_least_squares_of_a_singular_gram_is_the_shortest_solution():
    A = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    torch.testing.assert_close(
        least_squares(SecondMoments.of(A, A[:, 0]), 0.0),
        torch.full((2,), 0.5).double(),
    )
