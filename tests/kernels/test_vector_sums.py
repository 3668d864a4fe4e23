"""Sums of messages from a counter, as the reference makes them: every message can be made again
alone.
"""

import pytest
import torch
from torch.testing import assert_close

from torchdp.kernels import privunit

LAW = {"radius": 2.0, "mean": 0.7}
COUNTS = torch.tensor([4, 0, 1, 3])


def setting(dtype=torch.float64, dim=5, seed=0):
    """(points of the ball, T, sqrt(1 - T^2), g0) for the eight users of COUNTS."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(
        4,
        dim,
        dtype=torch.float64,
        generator=generator,
    )
    points *= torch.tensor([[2.0], [1], [0.5], [1.9]]) / points.norm(dim=1, keepdim=True)
    lift = torch.randn(8, dtype=torch.float64, generator=generator)
    t = torch.rand(8, dtype=torch.float64, generator=generator)
    return points.to(dtype), (lift, t, (1 - t * t).sqrt())


TYPES = torch.arange(4).repeat_interleave(COUNTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_message_is_a_function_of_the_key_and_the_user(dtype):
    points, draws = setting(dtype)
    whole = privunit.messages(
        points,
        TYPES,
        *draws,
        9,
        100,
        **LAW,
    )
    assert whole.dtype == dtype
    assert whole.shape == (8, 5)
    for user in range(8):
        alone = [each[user : user + 1] for each in draws]
        again = privunit.messages(
            points,
            TYPES[user : user + 1],
            *alone,
            9,
            100 + user,
            **LAW,
        )
        assert_close(again[0], whole[user])
    assert (privunit.messages(points, TYPES, *draws, 10, 100, **LAW) != whole).all()


def test_sums_are_those_of_the_messages_and_parts_add_up():
    points, draws = setting()
    first = torch.tensor([3, 0, 0, 0])
    second = torch.tensor([1, 0, 1, 3])
    capped = privunit.sums(
        points,
        COUNTS,
        *draws,
        9,
        **LAW,
    )
    assert_close(capped, privunit.messages(points, TYPES, *draws, 9, **LAW).sum(0))
    head = privunit.sums(
        points,
        first,
        *(each[:3] for each in draws),
        9,
        **LAW,
    )
    tail = privunit.sums(
        points,
        second,
        *(each[3:] for each in draws),
        9,
        3,
        **LAW,
    )
    assert_close(head + tail, capped)
