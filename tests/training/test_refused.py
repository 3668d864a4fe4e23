"""Modules and losses whose sums would not be an example's own, or not repeat: refused by name."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import mse_loss

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum, clipped_sum
from torchdp.training.per_example import masks


class Functional(nn.Module):
    """Dropout that no module shows, beside a recurrent layer or a linear one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x[:, None])
        out = out[0] if isinstance(out, tuple) else out
        return functional.dropout(out[:, 0], 0.5, self.training)


@pytest.mark.parametrize("inner", [nn.Linear(4, 3), nn.GRU(4, 3, batch_first=True)])
def test_dropout_that_no_module_shows_is_refused_and_draws_from_no_global_generator(inner):
    net, x, y = Functional(inner), torch.ones(3, 4), torch.zeros(3, 3)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="pass dropout="):
        clip_and_sum(net, mse_loss, x, y, 1.0)
    assert torch.equal(torch.get_rng_state(), before)
    assert clip_and_sum(net, mse_loss, x, y, 1.0, dropout=keyed_generator(b"masks")).isfinite().all()
    assert clip_and_sum(net.eval(), mse_loss, x, y, 1.0).any()


def test_guarantee_masks_are_seeded_on_their_own_device_alone_and_its_state_is_put_back(monkeypatch):
    """Two generators stand for those of two GPUs; one that is seeded and not put back would repeat its numbers."""
    gpus = [torch.Generator().manual_seed(place) for place in (1, 2)]
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    before = [each.get_state() for each in gpus]
    with masks(7, torch.device("cuda", 1)):
        assert torch.equal(gpus[0].get_state(), before[0])
        assert gpus[1].initial_seed() == torch.initial_seed() == 7
    assert all(torch.equal(each.get_state(), old) for each, old in zip(gpus, before, strict=True))


def test_what_is_no_loss_or_no_gradient_is_named():
    with pytest.raises(TypeError, match="loss"):
        clip_and_sum(nn.Linear(4, 3), lambda output, target: 1.0, torch.ones(2, 4), torch.zeros(2), 1.0)
    with pytest.raises(TypeError, match="gradients"):
        clipped_sum([torch.ones(2, 3, dtype=torch.complex64)], 1.0)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"sparse": True}])
def test_guarantee_tables_that_a_call_writes_to_are_refused_before_it(option):
    """Rows that are made shorter in place would show who was in a batch."""
    net = nn.Sequential(nn.Embedding(50, 4, **option), nn.GRU(4, 3))
    before = net[0].weight.detach().clone()
    with pytest.raises(ValueError, match="max_norm"):
        clip_and_sum(net, lambda out, y: out[0].sum(), torch.arange(6).view(3, 2), torch.zeros(3), 1.0)
    assert torch.equal(net[0].weight, before)
