"""Bags of messages, and the shuffler."""

import torch

from torchdp.shuffle import ShuffledMessages


def messages(instance, content):
    return ShuffledMessages(
        9, torch.tensor(instance, dtype=torch.int32), torch.tensor(content, dtype=torch.int8)
    )


def rows(m):
    return list(zip(m.instance.tolist(), m.content.tolist(), strict=True))


RANDOM = messages(
    torch.randint(0, 7, (500,), generator=torch.Generator().manual_seed(1)).tolist(),
    torch.randint(-1, 2, (500,), generator=torch.Generator().manual_seed(2)).tolist(),
)


def test_guarantee_the_shuffler_forgets_the_order():
    once = rows(RANDOM.mixed())
    for seed in range(5):
        order = torch.randperm(len(RANDOM), generator=torch.Generator().manual_seed(seed))
        assert (
            rows(ShuffledMessages(9, RANDOM.instance[order], RANDOM.content[order]).mixed()) == once
        )
    assert rows(RANDOM) != once  # the order that came in was another


def test_the_shuffler_keeps_every_message():
    assert sorted(rows(RANDOM.mixed())) == sorted(rows(RANDOM))
    odd = messages([2**31 - 1, 2**31 - 1, 2**31 - 3], [-128, 127, 0])
    assert sorted(rows(odd.mixed())) == sorted(rows(odd))
    assert rows(messages([], []).mixed()) == []
    assert rows(messages([3], [-1]).mixed()) == [(3, -1)]
