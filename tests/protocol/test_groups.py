"""Users in groups: each row goes to its own, whatever the order, and what is asked of a batch goes
to each entry.
"""

from types import SimpleNamespace

import pytest
import torch
from laws import generator, uniform

from torchdp.noise import SeededNoise
from torchdp.pairwise import unequal
from torchdp.protocol import Crowd, Protocol, Tally
from torchdp.protocol.frames import grouped
from torchdp.protocol.records import weighted_sum
from torchdp.queries import LocalOracle
from torchdp.randomizers import RandomizedResponse, SubsetSelection


def test_rows_go_to_their_own_group_in_their_order():
    groups = torch.randint(5, (100,), generator=generator()) * 2
    x = torch.arange(100)
    heard = []

    def collect(rows, draws):
        heard.append(rows)
        return Tally(len(rows), {"first": rows[0], "sum": rows.sum()})

    layout = {"first": ((), torch.int64), "sum": ((), torch.int64)}
    protocol = SimpleNamespace(layout=layout, collect_unchecked=collect)
    tally = Protocol.collect_groups(protocol, x, groups, 11, None)
    assert torch.equal(
        tally["sum"],
        torch.zeros(11, dtype=torch.int64).index_add(0, groups, x),
    )
    assert all(torch.equal(rows, x[groups == 2 * at]) for at, rows in enumerate(heard))
    assert len(heard) == 5
    assert tally.n.tolist() == torch.bincount(groups, minlength=11).tolist()


def test_data_side_by_side_are_groups():
    x = torch.arange(24).view(2, 3, 4)
    rows, own, batch = grouped(x, 24, None, None)
    assert batch == (2, 3)
    assert torch.equal(rows, x.flatten())
    assert torch.equal(own, torch.arange(6).repeat_interleave(4))
    # three users in each of two groups, who hold four numbers
    rows, own, batch = grouped(x, (4,), None, None)
    assert batch == (2,)
    assert torch.equal(rows, x.flatten(0, 1))
    assert torch.equal(own, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert grouped(x, (3, 4), None, None)[1:] == (None, ())


@pytest.mark.parametrize(
    "protocol",
    [
        RandomizedResponse(4, 60.0),
        LocalOracle.of(unequal(4), SubsetSelection(4, 50.0)),
    ],
)
def test_one_user_in_a_group_and_nobody(protocol):
    """At an epsilon that hides nothing each group's answer is its own: in one pass, and one after
    the other.
    """
    # groups 1, 3 and 5 are of nobody
    x = torch.tensor([0, 1, 1, 3, 2, 1])
    groups = torch.tensor([4, 0, 2, 0, 2, 2])
    tally = protocol.collect(x, groups=groups, size=6, noise=SeededNoise(1))
    assert tally.n.tolist() == [2, 0, 3, 0, 1, 0]
    for at in (0, 2, 4):
        alone = protocol.collect(x[groups == at], noise=SeededNoise(2))
        for name, part in alone.parts.items():
            torch.testing.assert_close(tally.at(at)[name], part, rtol=0.05, atol=0.5)
    both = protocol.add(tally, tally)
    again = protocol.add(protocol.empty, tally)
    assert both.n.tolist() == (2 * tally.n).tolist()
    assert torch.equal(again.n, tally.n)


def test_a_crowd_of_a_batch_has_the_moments_of_each():
    values = uniform(2, 5, 3)
    counts = torch.randint(1, 9, (2, 5), generator=generator())
    for crowd in (
        Crowd(values, counts),
        Crowd.shared(values[0], counts),
    ):
        rows = crowd.rows.expand(2, 5, 3)
        for at in (0, 1):
            one = Crowd(rows[at], counts[at])
            torch.testing.assert_close(crowd.mean[at], one.mean)
            torch.testing.assert_close(crowd.covariance[at], one.covariance)
    with pytest.raises(ValueError, match="leading dimensions of counts"):
        Crowd(values[0][:, None].expand(5, 5, 3), counts)


def test_sums_of_a_batch_behind_repetitions():
    weights = uniform(4, 2, 3, 5)
    rows = uniform(2, 3, 5, 7, seed=1)
    torch.testing.assert_close(
        weighted_sum(weights, rows),
        torch.einsum("sabm,abmr->sabr", weights, rows),
    )
    torch.testing.assert_close(weighted_sum(weights, rows[0, 0]), weights @ rows[0, 0])


def test_a_tally_of_a_batch_is_judged_entry_by_entry():
    told = RandomizedResponse(3, 1.0)
    n = torch.tensor([2, 5], dtype=torch.int64)
    good = torch.tensor([[1, 1, 0], [2, 2, 1]])
    assert told.check(Tally(n, {"reports": good})).n is n
    # reports that so many users can not have sent, and at which place of the batch
    for wrong, index in (
        ([[2, 2, 1], [2, 2, 1]], 0),
        ([[1, 1, 0], [2, 2, 2]], 1),
        ([[1, 1, 0], [7, -2, 0]], 1),
    ):
        with pytest.raises(
            ValueError,
            match=rf"can have sent.* at batch index \({index},\)",
        ):
            told.check(Tally(n, {"reports": torch.tensor(wrong)}))
    with pytest.raises(ValueError, match="n must have the parts' shape"):
        told.check(Tally(n, {"reports": good[0]}))
