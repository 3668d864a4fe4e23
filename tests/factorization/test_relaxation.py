"""The relaxations as torch modules: what they promise at every parameter, how they travel, training
end to end.
"""

import copy
import itertools
import math
import pickle
from functools import partial

import laws
import pytest
import torch
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import Relaxation
from torchdp.factorization.relaxation import smooth_log_norm

normal = partial(laws.normal, name=b"relaxation")


def symmetric(*shape):
    W = normal(*shape)
    return W + W.mT


MODULES = [
    lambda: Relaxation(normal(4, 3)),
    lambda: Relaxation(normal(2, 3, 5)),
]


def shake(module, size=0.3):
    """The module at other values of its parameters."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            step = normal(*parameter.shape, name=str(i).encode())
            parameter.add_(size * step.to(parameter))
    return module


@pytest.mark.parametrize(
    "shape",
    [
        (6, 4),
        (4, 6),
        (5, 5),
        (1, 1),
        (2, 3, 7, 4),
        (3, 4, 7),
    ],
)
def test_guarantee_relaxation_is_W_at_every_parameter(shape):
    W = normal(*shape)
    left, right = shake(Relaxation(W))()
    assert_close(left @ right, W, rtol=0, atol=1e-12)
    assert left.shape == (*shape[:-1], right.shape[-2])
    assert right.shape[-1] == shape[-1]


def test_relaxation_of_low_rank_and_of_zero():
    low_rank = normal(6, 2) @ normal(2, 5)
    of_rank_one = normal(6, 5)[:, :1].expand(6, 5)
    W = torch.stack([low_rank, torch.zeros(6, 5).double(), of_rank_one])
    left, right = shake(Relaxation(W))()
    assert left.shape == (3, 6, 2)
    assert_close(left @ right, W, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_units_of_W_do_not_change_the_parameters(scale):
    one = Relaxation(normal(4, 5))
    other = Relaxation(normal(4, 5) * scale)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert_close(torch.matmul(*other()) / scale, torch.matmul(*one()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", MODULES)
def test_state_dict_deepcopy_and_pickle(make):
    module = shake(make())
    fresh = make()
    state = module.state_dict()
    # no wrapper in front of the names
    assert all("." not in name for name in state)
    assert {name for name, _ in module.named_parameters()} <= set(state)
    fresh.load_state_dict(laws.stored(state))
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        for a, b in zip(other(), module(), strict=True):
            assert_close(a, b, rtol=1e-12, atol=1e-14)
            assert a.requires_grad
    left, right = copy.deepcopy(module).to(torch.float32)()
    assert left.dtype == right.dtype == torch.float32
    assert_close((left @ right).double(), torch.matmul(*module()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", MODULES)
def test_a_module_keeps_its_own_copy_of_W_and_follows_its_dtype(make):
    assert all(p.dtype == torch.float64 for p in make().parameters())
    W = symmetric(4, 4).float().requires_grad_()
    module = Relaxation(W)
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in module.buffers())
    assert all(p.dtype == torch.float32 for p in module.parameters())
    kept = module.W.clone()
    with torch.no_grad():
        W.mul_(2)
    assert torch.equal(module.W, kept)


@pytest.mark.parametrize("p", [2.0, 4.0, math.inf])
def test_guarantee_smooth_log_norm_is_never_below_the_norm(p):
    left = normal(3, 6, 4)
    right = normal(3, 4, 7, name=b"right")
    rows = left.norm(dim=-1)
    norms = torch.linalg.vector_norm(rows, ord=p, dim=-1)
    longest = right.norm(dim=-2).amax(-1)
    exact = (norms * longest).log()
    values = [smooth_log_norm(left, right, t, p) for t in (1.0, 4.0, 100.0, 1e4)]
    assert all((value >= exact - 1e-12).all() for value in values)
    assert all((a >= b - 1e-12).all() for a, b in itertools.pairwise(values))
    assert_close(values[-1], exact, rtol=0, atol=1e-3)
    assert smooth_log_norm(torch.zeros(2, 3), torch.zeros(3, 2), 4.0).isfinite()


def train(module, loss, steps, learning_rate=0.03):
    """An ordinary loop; ``loss`` gets (left, right) and the sharpness of this step."""
    optimizer = torch.optim.Adam(
        module.parameters(),
        lr=learning_rate,
        betas=(0.9, 0.99),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        # from smooth to sharp, by the same factor at each step
        sharpness = 4 * 1000 ** (step / steps)
        loss(*module(), sharpness).sum().backward()
        optimizer.step()
        schedule.step()
    return module


def test_an_ordinary_loop_reaches_the_norm():
    """Prefix sums 16: gamma_2 is 1.7045; a batch trains as one by one."""
    prefix = workloads.prefix(16).dense()
    batch = torch.stack([prefix, -2 * prefix])

    def norm(W, steps):
        factors = train(Relaxation(W), smooth_log_norm, steps)()
        left, right = [factor.detach() for factor in factors]
        assert_close(left @ right, W, rtol=0, atol=1e-12)
        return left.norm(dim=-1).amax(-1) * right.norm(dim=-2).amax(-1)

    assert 1.7044 <= norm(batch, 200)[0] <= 1.7045 * 1.005
    assert_close(norm(batch[:1], 50), norm(batch, 50)[:1], rtol=1e-6, atol=0)
