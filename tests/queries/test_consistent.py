"""Consistency: the projection is right, certified by its gap, never farther from the truth, and biased."""

import pytest
import torch

from torchdp import workloads
from torchdp.queries import consistent
from torchdp.randomness import keyed_generator


def noisy(shape, seed=b"noise"):
    return torch.randn(shape, dtype=torch.float64, generator=keyed_generator(seed))


@pytest.mark.parametrize("W", [workloads.prefix(8), workloads.all_ranges(5), workloads.identity(7)])
def test_agrees_with_cvxpy(W):
    cp = pytest.importorskip("cvxpy")
    answers = W.dense().mean(1) + 0.3 * noisy(W.shape[0])
    h = cp.Variable(W.shape[1], nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(W.dense().numpy() @ h - answers.numpy())), [cp.sum(h) == 1])
    problem.solve(solver=cp.CLARABEL)
    found = consistent(W, answers)
    assert float((found.value - answers).square().sum()) == pytest.approx(problem.value, rel=1e-6)
    torch.testing.assert_close(found.value, W.dense() @ torch.from_numpy(h.value), rtol=0, atol=1e-4)


def test_guarantee_nearer_to_every_histogram_up_to_the_gap():
    W = workloads.prefix(10).dense()
    answers = noisy((200, 10))
    found = consistent(W, answers)
    h = torch.rand(200, 10, dtype=torch.float64, generator=keyed_generator(b"h"))
    truth = h / h.sum(-1, keepdim=True) @ W.mT
    before, after = (answers - truth).square().sum(-1), (found.value - truth).square().sum(-1)
    assert (after <= before + 2 * found.gap + 1e-12).all()
    assert (found.histogram >= 0).all()
    torch.testing.assert_close(found.histogram.sum(-1), torch.ones(200, dtype=torch.float64))
    torch.testing.assert_close(found.value, found.histogram @ W.mT)
    assert (found.gap <= 1e-7).all()


def test_answers_of_a_histogram_stay_and_zero_counts_are_biased_up():
    W = workloads.identity(4).dense()
    h = torch.tensor([0.0, 0.2, 0.3, 0.5], dtype=torch.float64)
    torch.testing.assert_close(consistent(W, W @ h).value, W @ h, rtol=0, atol=1e-6)
    many = consistent(W, h + 0.1 * noisy((4000, 4), b"bias")).value.mean(0)
    assert many[0] > 0.02  # the unbiased answers average to 0 there
