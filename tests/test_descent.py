"""Adam without torch.optim: the same steps."""

import pytest
import torch

from torchdp.descent import Adam


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.99)])
def test_takes_the_steps_of_the_published_algorithm(betas):
    """Kingma, Ba (2015), Algorithm 1, written out by number."""
    x = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64, requires_grad=True)
    idle = torch.ones(2, requires_grad=True)
    adam, y = Adam([x, idle], betas), x.detach().clone()
    m = v = torch.zeros(3, dtype=torch.float64)
    for t in range(1, 20):
        rate = 0.1 * (1 - t / 20)
        adam.step((x**4).sum() + x.prod(), rate)
        g = 4 * y**3 + torch.stack([y[1] * y[2], y[0] * y[2], y[0] * y[1]])
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        y = y - rate * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + 1e-8)
        torch.testing.assert_close(x.detach(), y, rtol=1e-12, atol=1e-14)
    assert torch.equal(idle, torch.ones(2))
