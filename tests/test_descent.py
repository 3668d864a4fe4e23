"""Adam without torch.optim: the same steps."""

import pytest
import torch
from torch.testing import assert_close

from torchdp.descent import Adam


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.99)])
def test_takes_the_steps_of_the_published_algorithm(betas):
    """Kingma, Ba (2015), Algorithm 1, by torch.optim."""
    x = torch.tensor([1.0, -2.0, 0.3], dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    idle = torch.ones(2, requires_grad=True)
    adam = Adam([x, idle], betas)
    expected = torch.optim.Adam([y], betas=betas)
    for t in range(1, 20):
        rate = 0.1 * (1 - t / 20)
        adam.step((x**4).sum() + x.prod(), rate)
        expected.param_groups[0]["lr"] = rate
        expected.zero_grad()
        ((y**4).sum() + y.prod()).backward()
        expected.step()
        assert_close(x, y, rtol=1e-12, atol=1e-14)
    assert torch.equal(idle, torch.ones(2))
