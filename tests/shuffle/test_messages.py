"""Bags of messages, and the shuffler."""

import torch
from laws import generator

from torchdp.shuffle import ShuffledMessages


def messages(instance, content):
    return ShuffledMessages(
        9,
        torch.tensor(instance, dtype=torch.int32),
        torch.tensor(content, dtype=torch.int8),
    )


def rows(m):
    return list(zip(m.instance.tolist(), m.content.tolist(), strict=True))


INSTANCES = torch.randint(0, 7, (500,), generator=generator(1))
CONTENTS = torch.randint(-1, 2, (500,), generator=generator(2))
RANDOM = messages(INSTANCES.tolist(), CONTENTS.tolist())


def test_guarantee_the_shuffler_forgets_the_order():
    once = rows(RANDOM.mixed())
    for seed in range(5):
        order = torch.randperm(len(RANDOM), generator=generator(seed))
        assert (
            rows(ShuffledMessages(9, RANDOM.instance[order], RANDOM.content[order]).mixed()) == once
        )
    # the order that came in was another
    assert rows(RANDOM) != once


def test_the_shuffler_keeps_every_message():
    assert sorted(rows(RANDOM.mixed())) == sorted(rows(RANDOM))
    odd = messages([2**31 - 1, 2**31 - 1, 2**31 - 3], [-128, 127, 0])
    assert sorted(rows(odd.mixed())) == sorted(rows(odd))
    assert rows(messages([], []).mixed()) == []
    assert rows(messages([3], [-1]).mixed()) == [(3, -1)]
