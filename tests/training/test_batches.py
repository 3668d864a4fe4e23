"""Participation that is kept: batches by the rule, and other people's batches refused."""

import pytest
import torch
from rules import permits
from torch.utils.data import DataLoader, TensorDataset

from torchdp.randomness import keyed_generator
from torchdp.training import ONCE, Batches, Epochs, ParticipationLog, Separated

RULES = [ONCE, Epochs(1), Epochs(3), Epochs(4), Separated(1, 3), Separated(2, 2), Separated(3, 9)]


@pytest.mark.parametrize("rule", RULES)
def test_guarantee_accepted_batches_keep_the_rule_and_refused_ones_break_it(rule):
    """Random batches of 6 users: the check refuses exactly those after which some user's steps break the rule."""
    g, refused = keyed_generator(b"attendance"), 0
    for _ in range(30):
        attendance, steps = ParticipationLog(rule, 6), {user: [] for user in range(6)}
        while attendance.step < 9:
            batch = torch.randperm(6, generator=g)[: int(torch.randint(0, 4, (), generator=g))]
            breaks = any(not permits(rule, [*steps[user], attendance.step]) for user in batch.tolist())
            try:
                assert torch.equal(attendance.check(batch), batch) and not breaks
            except ValueError as error:
                assert breaks and "may not participate again under" in str(error)
                refused += 1
                batch = attendance.check([])
            for user in batch.tolist():
                steps[user].append(attendance.step - 1)
    assert refused == 0 if rule == Epochs(1) else refused > 20


@pytest.mark.parametrize("rule", RULES)
def test_guarantee_batches_keep_the_rule_or_are_refused(rule):
    made = 0
    for users in (6, 7, 12):
        for size in (1, 2, 3):
            for steps in (1, 4, 12):
                period = users // size
                places = [list(range(place, steps, period)) for place in range(period)]
                if all(permits(rule, place) for place in places):
                    batches = Batches(rule, users, size, steps, generator=keyed_generator(b"order"))
                    attendance = ParticipationLog(rule, users)
                    assert [len(attendance.check(batch)) for batch in batches] == [size] * steps
                    made += 1
                else:
                    with pytest.raises(ValueError, match="does not allow"):
                        Batches(rule, users, size, steps, generator=keyed_generator(b"order"))
    assert made > 3


def test_a_shuffled_loader_breaks_fixed_epochs_and_is_refused():
    data, attendance = TensorDataset(torch.arange(150)), ParticipationLog(Epochs(30), 150)
    shuffled = DataLoader(data, batch_size=5, shuffle=True, generator=keyed_generator(b"shuffled"))
    for (batch,) in shuffled:
        attendance.check(batch)
    with pytest.raises(ValueError, match=r"of the 5 users in the batch of step 30 .* Epochs\(period=30\)"):
        attendance.check(next(iter(shuffled))[0])
    assert attendance.step == 30
    kept = Batches(Epochs(30), 150, 5, 60, generator=keyed_generator(b"kept"))
    attendance = ParticipationLog(Epochs(30), 150)
    loader = DataLoader(data, batch_sampler=kept)
    for (batch,) in loader:
        attendance.check(batch)
        if attendance.step == 30:
            break
    for (batch,) in loader:  # goes on
        attendance.check(batch)
    assert attendance.step == 60
    with pytest.raises(RuntimeError, match="all 60 batches were handed out"):
        next(iter(loader))


def test_batches_go_on_after_a_restart():
    def batches(first):
        return Batches(Separated(4, 2), 9, 2, 8, generator=keyed_generator(b"restart"), first=first)

    assert list(batches(0))[3:] == list(batches(3)) and len(batches(3)) == 5
    assert len({user for batch in batches(0) for user in batch}) == 8
