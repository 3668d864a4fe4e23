"""Batches as they arrive: each counted once, whatever the order; estimates are those of all users at once."""

import copy
import dataclasses
import json
import math
import pickle
import threading

import pytest
import torch

from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import (
    Collection,
    OneMessage,
    OneMessagePairs,
    RandomizedResponsePlugIn,
    TwoMessage,
)
from torchdp.pairwise.description import described, difference, made
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.absolute_difference(4)
KINDS = [TwoMessage, OneMessage, OneMessagePairs, RandomizedResponsePlugIn]
TYPES = torch.randint(4, (60,), generator=keyed_generator(b"types"))


def parts(protocol, types=TYPES, size=13, key=b"messages"):
    generator = keyed_generator(key)
    return [(protocol.collect(some, noise=SeededNoise.of(generator)), len(some)) for some in types.split(size)]


def filled(protocol, key=b"messages"):
    total = Collection.empty(protocol)
    for index, (sums, n) in enumerate(parts(protocol, key=key)):
        total = total.add(f"batch {index}", sums, n)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_that_of_all_messages_at_once(kind):
    protocol = kind(STATISTIC, 4.0)
    total, batches = filled(protocol), parts(protocol)
    at_once = protocol.analyse(tuple(map(sum, zip(*(sums for sums, _ in batches), strict=True))), len(TYPES))
    assert total.n == total.estimate().n == len(TYPES) and len(total.batches) == len(batches) == 5
    torch.testing.assert_close(total.estimate().value, at_once.value)
    torch.testing.assert_close(total.estimate().standard_error, at_once.standard_error)
    low, high = total.estimate().interval()
    assert low < total.estimate().value < high


def test_guarantee_collection_holds_what_its_protocol_promises_and_nothing_but_the_sums():
    for kind in KINDS:
        protocol = kind(STATISTIC, 1.5)
        total = filled(protocol)
        assert total.guarantee == protocol.guarantee and total.guarantee.epsilon == pytest.approx(1.5)
        # all that it holds is a function of the sums: other users with the same messages leave the same collection
        again = Collection.empty(protocol)
        for index, (sums, n) in enumerate(parts(protocol)):
            again = again.add(f"batch {index}", tuple(each.clone() for each in sums), n)
        assert dict(again.batches) == dict(total.batches) and again.n == total.n
        assert {field.name for field in dataclasses.fields(Collection)} == {"protocol", "batches", "n", "sums"}


@pytest.mark.parametrize("kind", KINDS)
def test_tally_of_messages_is_what_collect_returns(kind):
    protocol = kind(STATISTIC, 2.0)
    sums, noise = protocol.collect(TYPES, noise=SeededNoise(1)), SeededNoise(1)
    if kind in (OneMessage, TwoMessage):  # their sums are made type by type
        given = STATISTIC.points[TYPES.sort().values]
    else:
        given = TYPES if kind is RandomizedResponsePlugIn else STATISTIC.points[TYPES]
    messages = [protocol.randomizer.sample(given, noise=noise) for _ in range(1 + (kind is TwoMessage))]
    for one, two in zip(protocol.tally(*messages), sums, strict=True):
        torch.testing.assert_close(one, two)


def test_a_retry_is_counted_once_and_changed_content_is_refused():
    protocol = OneMessage(STATISTIC, 1.0)
    total = filled(protocol)
    for index, (sums, n) in enumerate(parts(protocol)):
        assert total.add(f"batch {index}", sums, n) is total
        assert total.add(f"batch {index}", [each.clone() for each in sums], n) is total
    (sums, n), *_ = parts(protocol, key=b"others")
    with pytest.raises(ValueError, match=r"batch 'batch 0' came before with other content"):
        total.add("batch 0", sums, n)
    (sums, n), *_ = parts(protocol)
    with pytest.raises(ValueError, match="other content"):
        total.add("batch 0", sums, n + 1)
    assert total.add("batch 9", sums, n).n == len(TYPES) + n  # another name is another batch
    assert total.n == len(TYPES)  # a value: not changed by what was made of it


def test_merging_is_adding_all_batches_in_any_order():
    protocol = RandomizedResponsePlugIn(STATISTIC, 1.0)  # counts: exact in any order
    empty = Collection.empty(protocol)
    singles = [empty.add(str(index), sums, n) for index, (sums, n) in enumerate(parts(protocol))]
    total = empty.merge(*singles)
    left, right = empty.merge(*singles[:2]), empty.merge(*singles[2:])
    for other in (left.merge(right), right.merge(left), empty.merge(*reversed(singles))):
        assert other.n == total.n and dict(other.batches) == dict(total.batches)
        assert torch.equal(other.sums[0], total.sums[0])
    assert total.merge(left, right, empty, total) is total  # all of them are in it
    with pytest.raises(ValueError, match="share 1 of 2 batches, such as '1'"):
        left.merge(singles[2]).merge(singles[1].merge(singles[4]))
    assert left.merge(singles[1], singles[4]).n == left.n + singles[4].n  # one by one they can be told apart


@pytest.mark.parametrize(
    "other",
    [
        OneMessage(STATISTIC, 1.0 + 1e-8),
        OneMessagePairs(STATISTIC, 1.0),
        TwoMessage(STATISTIC, 1.0),
        OneMessage(STATISTIC, 1.0, PrivUnit),
        OneMessage(pairwise.absolute_difference(4, spacing=1 + 1e-5), 1.0),
        OneMessage(dataclasses.replace(STATISTIC, pairs=pairwise.Pairs.ALL), 1.0),
        OneMessage(dataclasses.replace(STATISTIC, points=STATISTIC.points.flip(0)), 1.0),
        OneMessage(pairwise.unequal(4), 1.0),
    ],
    ids=str,
)
def test_another_protocol_does_not_merge(other):
    protocol = OneMessage(STATISTIC, 1.0)
    assert difference(described(other), described(protocol)) is not None
    with pytest.raises(ValueError, match="different protocols do not merge"):
        filled(protocol).merge(Collection.empty(other))
    for same in (
        OneMessage(pairwise.absolute_difference(4), 1),
        OneMessage(pairwise.absolute_difference(4, spacing=1 + 1e-12), 1),
    ):
        total = filled(protocol)
        assert filled(same).merge(total.batch("more", total.sums, 60)).n == 2 * len(TYPES)


def test_a_description_covers_every_field_and_refuses_what_it_cannot_read():
    statistic = pairwise.auc(2)
    changed = [
        dataclasses.replace(statistic, name="other"),
        dataclasses.replace(statistic, offset=0.25),
        dataclasses.replace(statistic, denominator=None),
        dataclasses.replace(statistic, form=pairwise.Form(-statistic.form.weights)),
        dataclasses.replace(statistic, form=dataclasses.replace(statistic.form, constant=1.0)),
    ]
    written = [described(TwoMessage(each, 1.0)) for each in (statistic, *changed)]
    for one in written:
        assert sum(difference(one, other) is None for other in written) == 1
        assert described(made(one, {})) == one == json.loads(json.dumps(one))
    different = [
        1,
        1.0,
        True,
        "1",
        None,
        ("ab", "c"),
        ("a", "bc"),
        ("a",),
        2.0,
        float("inf"),
        pairwise.Pairs.ALL,
        PrivUnit,
    ]
    different += [
        torch.zeros(2),
        torch.zeros(2, 1),
        torch.zeros(2).long(),
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0]),
    ]
    for one in different:
        assert [difference(described(one), described(other)) is None for other in different].count(True) == 1
        assert described(made(described(one), {})) == described(one)
    with pytest.raises(TypeError, match=r"protocol\[1\] cannot be written down: it is a list"):
        described((1, [2]))


@dataclasses.dataclass(frozen=True)
class Own(OneMessage):
    """A protocol that is not torchdp's."""


def test_a_class_of_somebody_else_must_be_given():
    classes: dict[str, type] = {}
    tree = described(Own(STATISTIC, 1.0), classes)
    assert type(made(tree, classes)) is Own
    for name in (f"{__name__}:Own", "os:system", "torchdp.checks:positive", "torchdp.checks:os"):
        with pytest.raises(ValueError, match="is not"):
            made({**tree, "made": name}, {})


def test_it_can_be_pickled_and_copied():
    total = filled(OneMessage(STATISTIC, 1.0))
    for other in (pickle.loads(pickle.dumps(total)), copy.deepcopy(total)):
        assert dict(other.batches) == dict(total.batches) and torch.equal(other.sums[0], total.sums[0])
        assert other.merge(total) is other
        assert other.add("more", total.sums, 7).n == 67 and total.add("other", total.sums, 8).n == 68


def test_collections_share_their_names_and_never_change():
    """Batches cost time in proportion to their number: only a second continuation copies the names."""
    empty = Collection.empty(RandomizedResponsePlugIn(STATISTIC, 1.0))
    one, steps = torch.tensor([1, 0, 0, 0]), [empty]
    for index in range(50):
        steps.append(steps[-1].add(str(index), (one,), 1))
    assert all(each.batches._shared is steps[1].batches._shared for each in steps)
    for size, each in enumerate(steps):
        assert list(each.batches) == [str(index) for index in range(size)] and len(each.batches) == each.n == size
        assert str(size) not in each.batches
    other = steps[20].add("other", (one,), 1)
    assert list(other.batches) == [*map(str, range(20)), "other"] and "other" not in steps[-1].batches
    assert other.batches._shared is not steps[20].batches._shared
    team = [
        threading.Thread(target=lambda i=i: steps.append(steps[50].add(f"thread {i}", (one,), 1)))
        for i in range(8)
    ]
    for each in team:
        each.start()
    for each in team:
        each.join()
    assert all(list(each.batches)[:-1] == list(steps[50].batches) for each in steps[51:]) and len(steps) == 59


@pytest.mark.parametrize(
    "name, sums, n, error, words",
    [
        ("", (torch.zeros(3),), 5, ValueError, "name must be a text"),
        (7, (torch.zeros(3),), 5, ValueError, "name must be a text"),
        ("a", (torch.zeros(3),), 0, ValueError, "n must be an integer >= 1"),
        ("a", (torch.zeros(3),), 2.5, ValueError, "n must be an integer >= 1"),
        ("a", (), 5, ValueError, "sums must be 1 tensors"),
        ("a", torch.zeros(1, 3), 5, ValueError, "sums must be 1 tensors"),
        ("a", (torch.zeros(4),), 5, ValueError, r"sums\[0\] must have shape \(\.\.\., 3\), not \(4,\)"),
        ("a", (torch.tensor([1.0, math.nan, 2.0]),), 5, ValueError, r"sums\[0\] holds NaN"),
        ("a", ([1.0, 2.0, 3.0],), 5, TypeError, r"sums\[0\] must be a torch.Tensor"),
    ],
)
def test_bad_batches(name, sums, n, error, words):
    with pytest.raises(error, match=words):
        Collection.empty(OneMessage(STATISTIC, 1.0)).add(name, sums, n)


def test_protocols_that_need_all_users_at_once_are_refused():
    statistic = dataclasses.replace(STATISTIC, pairs=pairwise.Pairs.ALL)
    shuffled = pairwise.shuffled_form(statistic, 1000, 1.0, 1e-6)
    for protocol in (pairwise.TwoRound(STATISTIC, 2.0, 1.0), shuffled):
        with pytest.raises(ValueError, match="needs all its users at once"):
            Collection.empty(protocol)


def test_every_protocol_of_single_messages_serves():
    statistic = pairwise.absolute_difference(5)
    reports = pairwise.strategy_reports(statistic, 60, 2.0, generator=keyed_generator(b"search"), steps=5)
    for protocol in (pairwise.SubsetPairs(statistic, 2.0), reports):
        batches, total = parts(protocol), Collection.empty(protocol)
        for index, (sums, n) in enumerate(batches):
            total = total.add(str(index), sums, n)
        assert total.merge(total) is total and math.isfinite(float(total.estimate().value))


def test_other_bad_input():
    with pytest.raises(TypeError, match="protocol must be a PairwiseProtocol"):
        Collection.empty(STATISTIC)
    counts = Collection.empty(RandomizedResponsePlugIn(STATISTIC, 1.0))
    with pytest.raises(TypeError, match=r"sums\[0\] must hold counts"):
        counts.add("a", (torch.tensor([1.0, 2.0, 0.0, 0.0]),), 3)
    with pytest.raises(TypeError, match="other must be a Collection"):
        counts.merge(3)
    for n in (0, 1):
        few = counts if n == 0 else counts.add("a", (torch.tensor([1, 0, 0, 0]),), 1)
        with pytest.raises(ValueError, match=f"at least 2 users, {n} arrived"):
            few.estimate()
