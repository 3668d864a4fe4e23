"""Batches as they arrive: each counted once, whatever the order; estimates are those of all users
at once.
"""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from collection.asked import Places, Votes
from laws import generator

from torchdp.collection import Collection, Journal, compare
from torchdp.collection import difference as differ
from torchdp.description import described, difference
from torchdp.noise import SeededNoise
from torchdp.protocol import Estimate, Tally
from torchdp.protocol.interval import laplace_stretch, quantile
from torchdp.randomizers import RandomizedResponse

POINTS = torch.tensor(
    [
        [0.1, 0.2, -1 / 3],
        [1.5, 0.0, 1.0],
        [0.3, 0.3, 2.0],
        [-1.0, 0.0, 0.25],
    ]
).double()
PLACES = Places(4, 1.5, POINTS)
KINDS = [PLACES, Votes(4, 1.5)]
TYPES = torch.randint(4, (60,), generator=generator())


def parts(protocol, seed=1):
    noise = SeededNoise(seed)
    return [protocol.collect(some, noise=noise) for some in TYPES.split(13)]


def filled(protocol, prefix="batch ", seed=1):
    total = Collection.of(protocol)
    for index, tally in enumerate(parts(protocol, seed)):
        total = total.add(f"{prefix}{index}", tally)
    return total


@pytest.mark.parametrize("protocol", KINDS)
def test_the_estimate_is_that_of_all_messages_at_once(protocol):
    total = filled(protocol)
    batches = parts(protocol)
    at_once = protocol.analyse(protocol.add(*batches))
    assert total.n == total.estimate().n == len(TYPES)
    assert len(total.batches) == len(batches) == 5
    torch.testing.assert_close(total.estimate().value, at_once.value)
    torch.testing.assert_close(total.estimate().standard_error, at_once.standard_error)


@pytest.mark.parametrize("protocol", KINDS)
def test_guarantee_collection_holds_what_its_protocol_promises_and_nothing_but_the_tally(protocol):
    total = filled(protocol)
    assert total.guarantee == protocol.guarantee
    assert total.guarantee.epsilon == 1.5
    # all that it holds is a function of the tallies: other users with the same messages leave the
    # same collection
    again = filled(protocol)
    assert dict(again.batches) == dict(total.batches)
    assert again.n == total.n
    assert {field.name for field in dataclasses.fields(Collection)} == {
        "protocol",
        "batches",
        "tally",
    }


def test_a_retry_is_counted_once_and_changed_content_is_refused():
    total = filled(PLACES)
    for index, tally in enumerate(parts(PLACES)):
        assert total.add(f"batch {index}", tally) is total
        assert (
            total.add(
                f"batch {index}",
                Tally(
                    tally.n,
                    {k: v.clone() for k, v in tally.parts.items()},
                ),
            )
            is total
        )
    with pytest.raises(
        ValueError,
        match=r"batch 'batch 0' came before with other content",
    ):
        total.add("batch 0", parts(PLACES, 2)[0])
    tally = parts(PLACES)[0]
    with pytest.raises(ValueError, match="other content"):
        total.add("batch 0", Tally(tally.n + 1, tally.parts))
    # another name is another batch
    assert total.add("batch 9", tally).n == len(TYPES) + tally.n
    # a value: not changed by what was made of it
    assert total.n == len(TYPES)


def test_merging_is_adding_all_batches_in_any_order():
    # counts: exact in any order
    empty = Collection.of(Votes(4, 1.0))
    singles = [empty.add(str(index), tally) for index, tally in enumerate(parts(empty.protocol))]
    total = empty.merge(*singles)
    left = empty.merge(*singles[:2])
    right = empty.merge(*singles[2:])
    for other in (
        left.merge(right),
        right.merge(left),
        empty.merge(*reversed(singles)),
    ):
        assert other.n == total.n
        assert dict(other.batches) == dict(total.batches)
        assert torch.equal(other.tally["votes"], total.tally["votes"])
    # all of them are in it
    assert total.merge(left, right, empty, total) is total
    with pytest.raises(ValueError, match="share 1 of 2 batches, such as '1'"):
        left.merge(singles[2]).merge(singles[1].merge(singles[4]))
    # one by one they can be told apart
    assert left.merge(singles[1], singles[4]).n == left.n + singles[4].n


@pytest.mark.parametrize("other", [
    Places(4, 1.0 + 1e-8, POINTS), Votes(4, 1.0), Places(4, 1.0, POINTS * (1 + 1e-5)),
    Places(4, 1.0, POINTS.flip(0)), Places(4, 1.0, POINTS, "other"),
], ids=str)  # fmt: skip
def test_another_protocol_does_not_merge(other):
    protocol = Places(4, 1.0, POINTS)
    assert difference(described(other), described(protocol)) is not None
    with pytest.raises(ValueError, match="different protocols do not merge"):
        filled(protocol).merge(Collection.of(other))
    for same in (
        Places(4, 1.0, POINTS.clone()),
        Places(4, 1.0, POINTS * (1 + 1e-12)),
    ):
        total = filled(protocol)
        assert filled(same).merge(total.batch("more", total.tally)).n == 2 * len(TYPES)


def test_it_can_be_pickled_and_copied():
    total = filled(PLACES)
    for other in (
        pickle.loads(pickle.dumps(total)),
        copy.deepcopy(total),
    ):
        assert dict(other.batches) == dict(total.batches)
        assert torch.equal(other.tally["place"], total.tally["place"])
        assert other.merge(total) is other
        more = total.tally
        assert other.add("more", more).n == 120
        assert total.add("other", more).n == 120


def test_collections_share_their_names_and_never_change():
    """Batches cost time in proportion to their number: only a second continuation copies the
    names.
    """
    empty = Collection.of(Votes(4, 1.0))
    one = Tally(1, {"votes": torch.tensor([1, 0, 0, 0])})
    steps = [empty]
    for index in range(50):
        steps.append(steps[-1].add(str(index), one))
    for size, each in enumerate(steps):
        assert list(each.batches) == [str(index) for index in range(size)]
        assert len(each.batches) == each.n == size
        assert str(size) not in each.batches
    other = steps[20].add("other", one)
    assert list(other.batches) == [*map(str, range(20)), "other"]
    assert "other" not in steps[-1].batches


def test_what_is_kept_does_not_change_with_the_tensors_that_were_given():
    votes = torch.tensor([1, 2, 0, 0])
    total = Collection.of(Votes(4, 1.0)).add("a", Tally(3, {"votes": votes}))
    votes += 1
    assert total.tally["votes"].tolist() == [1, 2, 0, 0]


def test_groups_are_compared_and_shared_users_refused(tmp_path):
    one = filled(Places(4, 1.0, POINTS))
    two = filled(Places(4, 2.0, POINTS, "men"), "other ")
    found = compare(one, two)
    assert found.n == 120
    torch.testing.assert_close(found.value, one.estimate().value - two.estimate().value)
    with pytest.raises(AttributeError, match="but no p-value"):
        _ = found.p_value
    with pytest.raises(TypeError, match="sampling error of this estimate is not known"):
        found.of_population()
    answers = RandomizedResponse(3, 1.0).estimate(
        torch.tensor([0, 1, 2, 2, 2, 0]), noise=SeededNoise(1)
    )
    users = differ(
        answers,
        RandomizedResponse(3, 2.0).estimate(torch.tensor([0, 1, 1]), noise=SeededNoise(2)),
    )
    whole = users.of_population()
    differing = [i for i, p_value in enumerate(whole.p_value.tolist()) if p_value < 1]
    assert differing
    for i in differing:
        low, high = whole.interval(1 - float(whole.p_value[i]))
        assert min(abs(float(low[i])), abs(float(high[i]))) < 1e-6
    assert bool((whole.standard_error >= users.standard_error).all())
    assert torch.equal(whole.value, users.value)
    kept = Journal(tmp_path / "kept.db", one.protocol)
    kept.add("more", one.tally)
    assert torch.equal(compare(kept, two).value, found.value)
    with pytest.raises(
        ValueError,
        match=r"share 5 batches, such as 'batch 0'.*paired data need",
    ):
        compare(one, one)
    with pytest.raises(ValueError, match="different subjects"):
        compare(one, filled(Places(4, 1.0, -POINTS), "other "))
    for wrong in ((one, two.estimate()), (3, one)):
        with pytest.raises(TypeError, match="must be a Collection"):
            compare(*wrong)


def test_a_difference_of_biased_estimates_is_wider_and_stays_inside_the_limits():
    value = torch.tensor(0.5).double()
    error = torch.tensor(0.03).double()
    one = Estimate(value, error, 10, 0.02, limits=(0.0, 1.0), sampled=True)
    two = Estimate(
        value - 0.1,
        error * 4 / 3,
        20,
        limits=(0.75, 1.0),
        sampled=True,
    )
    found = differ(one, two)
    low, high = found.interval()
    assert found.n == 30
    assert found.limits == (-1.0, 0.25)
    assert float(found.standard_error) == pytest.approx(0.05)
    assert (float(low), float(high)) == pytest.approx(
        (0.08 - 1.959964 * 0.05, 0.12 + 1.959964 * 0.05), abs=1e-7
    )
    # 0.08 is 1.6 standard errors
    assert float(found.p_value) == pytest.approx(0.1095986)
    assert float(found.interval(1 - 1e-12)[1]) == 0.25
    with pytest.raises(TypeError, match="second must be a Estimate"):
        differ(one, 0.5)


def test_a_difference_of_estimates_that_are_not_normal_has_their_wider_ends():
    value = torch.tensor([0.5, 0.0]).double()
    error = torch.tensor([0.03, 0.01]).double()
    one = Estimate(value, error, 10, stretch=laplace_stretch, sampled=True)
    two = Estimate(value - 0.1, error * 4 / 3, 20, sampled=True)
    found = pickle.loads(pickle.dumps(differ(one, two)))
    for level in (0.5, 0.99):
        end = 0.1 + 0.05 * laplace_stretch(level) * quantile(level)
        assert float(found.interval(level)[1][0]) == pytest.approx(end)
    low, _ = found.interval(1 - float(found.p_value[0]))
    assert abs(float(low[0])) < 1e-4
    assert float(found.p_value[0]) == pytest.approx(math.exp(-(2**1.5)), rel=1e-3)
    assert float(found.p_value[1]) == pytest.approx(math.exp(-6 * 2**0.5), rel=2e-3)
    same = differ(one, one).p_value
    assert same.tolist() == pytest.approx([1.0, 1.0])
