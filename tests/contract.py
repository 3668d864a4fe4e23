"""One battery for every protocol. A test file makes a class of it: the protocol, some users, and
what is its own.

    class TestRandomizedResponse(LocalContract):
        protocol = RandomizedResponse(5, 1.0)
        x = torch.arange(5).repeat_interleave(8)
        bad = [torch.tensor([5]), torch.tensor([0.5])]

        def loss(self, protocol): ...  # the largest privacy loss of a message, from its law
        def truth(self): ...  # what is estimated, from x

``loss`` and ``truth`` share nothing with the code. It does not see a 5 % error in the variance of
one type: an enumeration, or "same draws, same sum", stays beside it.
"""

import contextlib
import dataclasses
import functools
import math
import random
import re
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from attacks import strongest
from batches import Ragged, Stacked, apart, batch_of, turns_of
from laws import executed, generator, one_law, z_scores
from torch.testing import assert_close

from torchdp.collection import Collection, Journal
from torchdp.noise import Noise, SeededNoise
from torchdp.pairwise.rounds.round import Round
from torchdp.privacy import Arithmetic, Model
from torchdp.protocol import Crowd, InteractiveProtocol, MessageProtocol, Objective, Tally
from torchdp.queries import PrivateLearner, SecureQueries
from torchdp.regression import SecondMoments
from torchdp.secure.shared_sum import SharedSum
from torchdp.secure.sums import SecureSums
from torchdp.shuffle import Amplified
from torchdp.shuffle.sums import Shuffled

TESTS = Path(__file__).resolve().parent
# What takes one summary after the other; docs/batches.md has the reasons.
UNBATCHED = (InteractiveProtocol, Round, SecureSums, PrivateLearner)
# of what leaves, that attacks look at
COLUMNS = 3
# times that a shuffler is looked at
MIXED = 2**9


@functools.cache
def entries(*folders):
    """The battery's classes that have a protocol, by folder and name: {"mean.LocalMean":
    TestLocalMean}.
    """
    found = {}
    modules = list(sys.modules.values())
    loaded = {getattr(module, "__file__", None): module for module in modules}
    for path in sorted(TESTS.glob("*/test_*.py")):
        if folders and path.parent.name not in folders:
            continue
        if not re.search(r"^class \w+\(.*Contract\)", path.read_text(), re.M):
            continue
        module = loaded.get(str(path)) or battery(path)
        for name, kind in vars(module).items():
            if name.startswith("Test") and isinstance(kind, type) and hasattr(kind, "protocol"):
                kind.page = str(path.relative_to(TESTS.parent))
                found[f"{path.parent.name}.{name.removeprefix('Test')}"] = kind
    return found


def battery(path):
    sys.path.insert(0, str(path.parent))
    module = executed(path, f"battery_{path.parent.name}_{path.stem}", registered=True)
    sys.path.remove(str(path.parent))
    return module


def channel_of(protocol):
    """What carries the messages: of a release its channel."""
    return getattr(protocol, "channel", protocol)


class Contract:
    """Any protocol."""

    # what is tested
    protocol: ClassVar
    # data of some users
    x: ClassVar[torch.Tensor]
    # data that must be refused
    bad: ClassVar[list] = []
    # fields times what makes the guarantee wrong: the negative control
    weaker: ClassVar[dict] = {"epsilon": 1.1}
    # draws of sample_estimate; of collect
    repeats = 10_000
    runs = 200
    # relative, of predicted_mse where it is to first order or from draws
    slack = 0.0
    # in the last place, of answers of a batch and of intervals, which are searched for
    units = 32.0
    ends = 1024.0
    # whether all that it takes are of one number of users
    alike = False
    # runs of groups of users
    grouped = 30
    # whether a summary's draws are as many whatever is drawn, and each of its own words
    stacked = True
    # mean squared standard error over the mean squared error
    honest = (0.7, 1.4)

    def loss(self, protocol) -> float:
        """The largest privacy loss (or delta at the stated epsilon), from the law alone."""
        raise AssertionError("a battery entry says what its largest privacy loss is")

    def truth(self) -> torch.Tensor:
        """What is estimated, from x, by a formula that shares nothing with the code."""
        raise AssertionError("a battery entry says what is estimated")

    def bound(self, protocol) -> float:
        return protocol.guarantee.epsilon

    @pytest.fixture(scope="class")
    @classmethod
    def slow(cls):
        """Tallies of ``runs`` runs of collect, by name: drawn once for the class."""
        each = [cls.protocol.collect(cls.x, noise=SeededNoise(seed)) for seed in range(cls.runs)]
        return {name: torch.stack([one[name] for one in each]) for name in each[0].parts}

    @pytest.fixture(scope="class")
    @classmethod
    def summary(cls):
        return cls.protocol.summary(cls.protocol.validate(cls.x))

    def test_guarantee_is_what_the_law_says(self):
        loss = self.loss(self.protocol)
        bound = self.bound(self.protocol)
        # nothing leaves more than the guarantee says
        assert loss <= bound * (1 + 1e-9)
        # where it is said to be exact, it is attained
        assert not self.protocol.guarantee.exact or loss >= bound * (1 - 1e-6)

    def test_a_wrong_constant_breaks_the_guarantee(self):
        fields = {each.name for each in dataclasses.fields(self.protocol)}
        odd = sorted(self.weaker.keys() - fields)
        if odd:
            pytest.fail(
                f"no field {odd}: `weaker` must name fields that, so many times, break the guarantee"
            )
        factors = self.weaker.items()
        changed = {name: getattr(self.protocol, name) * factor for name, factor in factors}
        assert self.loss(dataclasses.replace(self.protocol, **changed)) > self.bound(
            self.protocol
        ) * (1 + 1e-9)

    def test_exact_is_the_truth(self, summary):
        exact = self.protocol.exact(summary)
        # sums of float32 in another order
        assert_close(exact, self.truth().to(exact.dtype), rtol=1e-6, atol=1e-9)

    def test_two_paths_one_law(self, slow, summary):
        fast = self.protocol.sample_tally(
            summary, generator=generator(), sample_shape=(self.repeats // 4,)
        )
        assert set(slow) == set(fast.parts)
        assert fast.n == len(self.x)
        assert all(one_law(part, fast[name]) for name, part in slow.items())

    def test_predicted_mse(self, summary):
        drawn = self.protocol.sample_tally(
            summary, generator=generator(), sample_shape=(self.repeats,)
        )
        found = self.protocol.analyse(drawn)
        truth = self.protocol.exact(summary)
        squares = (found.value - truth).square()
        predicted = self.protocol.predicted_mse(summary)
        assert predicted.shape == squares.shape[1:]
        assert predicted.dtype == torch.float64
        noise = z_scores(squares, predicted)
        deviation = squares.std(0) / math.sqrt(self.repeats)
        allowed = 5 + self.slack * predicted / deviation.clamp_min(1e-12)
        assert (noise.abs() < allowed).all(), noise
        for objective in Objective:
            worst = self.protocol.worst_mse(found.n, objective)
            assert worst.shape == ()
            # the worst case covers these data too
            assert float(objective.of(predicted)) <= float(worst) * (1 + 1e-9) + 1e-12
        stated = found.standard_error.square().mean(0).sum()
        ratio = float(stated / squares.mean(0).sum())
        assert self.honest[0] < ratio < self.honest[1]
        # intervals cost far more than estimates
        some = {name: part[:1000] for name, part in drawn.parts.items()}
        low, high = self.protocol.analyse(Tally(drawn.n, some)).interval(0.9)
        # 0.9 is asked for
        assert ((low <= truth) & (truth <= high)).double().mean() > 0.85

    def released(self, row, seed, times):
        """What leaves where the first user holds this row, (times, columns), whole numbers or
        floats.
        """
        x = torch.cat([row[None], self.x[1:]])
        summary = self.protocol.validate_summary(self.protocol.summary(self.protocol.validate(x)))
        # rounds whose messages are attacked one by one
        if not hasattr(self.protocol, "release"):
            pytest.skip("nothing leaves at once")
        tally = self.protocol.release(summary, SeededNoise(seed), (times,))
        parts = tally.parts.values()
        return torch.cat([part.reshape(times, -1)[:, :COLUMNS] for part in parts], 1)

    def attacked(self, times):
        """The most certain log ratio of events of what leaves, over what delta leaves of it; its
        guarantee.
        """
        rows = torch.unique(self.x, dim=0)
        promise = self.protocol.guarantee
        one = self.released(rows[0], 0, times)
        two = self.released(rows[-1], 1, times)
        return strongest(one, two, promise.delta), promise

    def test_no_event_of_the_bits_that_leave_tells_more(self, times=2**13):
        if self.protocol.guarantee.arithmetic is not Arithmetic.REAL:
            found, promise = self.attacked(times)
            assert found <= promise.epsilon

    @pytest.mark.slow
    def test_no_event_of_ten_million_tells_more(self):
        """Ten million users' messages, or numbers that a curator releases."""
        alone = hasattr(self.protocol, "randomize")
        sizes = [math.prod(shape) for shape, _ in self.protocol.layout.values()]
        numbers = 1 if alone else sum(sizes)
        self.test_no_event_of_the_bits_that_leave_tells_more(10**7 // numbers)

    def test_batches(self, summary):
        one = self.protocol.sample_estimate(summary, generator=generator())
        many = self.protocol.sample_estimate(summary, generator=generator(), sample_shape=(2, 3))
        assert many.value.shape == (2, 3, *one.value.shape)
        assert many.standard_error.shape == many.value.shape
        empty = self.protocol.sample_estimate(summary, generator=generator(), sample_shape=(0,))
        assert empty.value.shape == (0, *one.value.shape)
        assert {end.shape for end in empty.interval()} == {empty.value.shape}

    def test_a_batch_is_its_loop(self, summary):
        """Summaries of other users in other numbers, in one call: the same answers to 32 units in
        the last place.
        """
        p = self.protocol
        turns = turns_of(summary, self.alike)
        near = partial(self.near, self.units)
        if isinstance(p, UNBATCHED):
            for verb in (p.predicted_mse, lambda one: p.sample_tally(one, generator=generator())):
                with pytest.raises((TypeError, ValueError), match=r"summary|\bn must"):
                    verb(batch_of(turns))
            return
        batch = batch_of(turns)
        near(p.exact(batch), map(p.exact, turns))
        near(p.predicted_mse(batch), map(p.predicted_mse, turns))
        loop = [
            p.sample_tally(one, generator=generator(i), sample_shape=(4,))
            for i, one in enumerate(turns)
        ]
        for objective in Objective:
            worst = p.worst_mse(torch.tensor([one.n for one in loop], dtype=torch.int64), objective)
            near(worst, (p.worst_mse(one.n, objective) for one in loop))
        found = p.analyse(batch_of(loop, 1))
        each = list(map(p.analyse, loop))
        near(found.value, (one.value for one in each), 1)
        near(found.standard_error, (one.standard_error for one in each), 1)
        for side in (0, 1):
            self.near(
                self.ends, found.interval(0.9)[side], (one.interval(0.9)[side] for one in each), 1
            )
        together = self.side_by_side(batch, len(turns)) if self.stacked else None
        if together is not None:
            pairs = zip(map(p.validate_summary, turns), Stacked(len(turns)).each, strict=True)
            alone = [p.sample_unchecked(one, draws, ()) for one, draws in pairs]
            for name, part in together.parts.items():
                near(part, (one[name] for one in alone))
            return
        drawn = p.sample_tally(batch, generator=generator(9), sample_shape=(250,))
        for i, one in enumerate(turns):
            alone = p.sample_tally(one, generator=generator(8), sample_shape=(250,))
            assert drawn.n[i] == alone.n
            assert all(one_law(drawn[name][:, i], alone[name]) for name in alone.parts)

    def side_by_side(self, batch, turns):
        """A batch drawn from the draws of its loop's turns; None where these take different numbers
        of them.
        """
        with contextlib.suppress(Ragged):
            return self.protocol.sample_unchecked(
                self.protocol.validate_summary(batch), Stacked(turns), ()
            )

    def test_groups_are_their_loop(self, slow):
        """Users of two groups, each like x, in a mixed order, and nobody of a third: each group's
        law is its own.
        """
        p = self.protocol
        n = len(self.x)
        apart = 1 if self.alike else 2
        order = torch.randperm(2 * n, generator=generator())
        x = torch.cat([self.x, self.x])[order]
        groups = apart * (order >= n).long()
        if isinstance(p, UNBATCHED):
            return
        noises = [SeededNoise(1000 + seed) for seed in range(self.grouped)]
        runs = [p.collect(x, groups=groups, size=2 * apart, noise=noise) for noise in noises]
        for name, part in slow.items():
            heard = torch.stack([run[name] for run in runs])
            one = heard[:, 0]
            two = heard[:, apart]
            assert one_law(one, part)
            assert one_law(two, part)
            assert not heard[:, 1:apart].any()
            assert not heard.is_floating_point() or not bool((one == two).all())
        if not self.alike:
            assert runs[0].n.tolist() == [n, 0, n, 0]
            assert p.check(runs[0], 0)
            with pytest.raises(ValueError, match=r"at batch index \(1,\)"):
                p.analyse(runs[0])
        kept = runs[0].at(runs[0].n > 0)
        found = p.analyse(kept)
        alone = [p.analyse(kept.at(at)) for at in (0, 1)]
        self.near(self.units, found.value, (one.value for one in alone))
        beside = p.estimate(torch.stack([self.x, self.x]), noise=SeededNoise(1))
        assert beside.n.tolist() == [n, n]
        assert beside.value.shape == found.value.shape

    def test_arrays_lists_and_tables_are_the_tensor_that_they_hold(self):
        p = self.protocol
        x = self.x.double() if self.x.is_floating_point() else self.x
        parts = p.collect(x, noise=SeededNoise(1)).parts
        for kind, rows in forms(x, p.held).items():
            found = p.collect(rows, noise=SeededNoise(1))
            assert found.n == len(x) and all(
                torch.equal(found[name], part) for name, part in parts.items()
            ), kind
            if isinstance(p, MessageProtocol):
                sent = p.randomize(x, noise=SeededNoise(2))
                again = p.randomize(rows, noise=SeededNoise(2))
                assert all(
                    torch.equal(*both) for both in zip(tensors(sent), tensors(again), strict=True)
                ), kind

    def test_nobody_is_asked_what_is_not_answered(self, monkeypatch):
        """Three groups, each like x, are answered by one call, or refused before a message is
        drawn.
        """
        beside = torch.stack([self.x] * 3)
        try:
            tally = self.protocol.collect(beside, noise=SeededNoise(1))
        except ValueError:
            # a draw would fail
            monkeypatch.setattr("torchdp.protocol.protocol.source", lambda *given: None)
            with pytest.raises(ValueError, match="x must be of"):
                self.protocol.collect(beside)
        else:
            assert len(self.protocol.analyse(tally).value) == 3

    def near(self, units, batch, turns, axis=0):
        found = apart(batch, list(turns), axis)
        assert found <= units, f"{found} units apart"

    def test_bad_data_are_refused(self):
        users = self.protocol
        verbs = [users.validate, users.collect, getattr(users, "randomize", users.estimate)]
        # alike in all rooms, with the cure
        if self.x.is_floating_point():
            for short in (torch.float16, torch.bfloat16):
                with pytest.raises(
                    TypeError, match=rf"float32 or float64, not {short}; call \.float"
                ):
                    self.protocol.validate(self.x.to(short))
        for bad in [
            *self.bad,
            self.x[:0],
            "text",
            None,
            self.x.to_sparse(),
        ]:
            # data of a batch, for one verb
            beside = isinstance(bad, torch.Tensor) and bad.ndim > self.x.ndim
            for verb in verbs[:1] if beside else verbs:
                with pytest.raises((TypeError, ValueError), match=r"\bx\b"):
                    verb(bad)

    def test_a_bad_summary_is_refused(self, summary):
        p = self.protocol
        odd = [None, "text", 3, torch.tensor(1.0), torch.zeros(3, 97), Crowd.of(torch.zeros(3, 97))]
        if isinstance(summary, Crowd):
            values = summary.values
            counts = summary.counts
            odd += [
                Crowd(values, 0 * counts),
                Crowd(values[:0], counts[:0]),
                Crowd(values[:, 0], counts),
            ]
            if values.is_floating_point():
                odd.append(Crowd(values * math.nan, counts))
        if isinstance(summary, torch.Tensor):
            odd += [
                summary * math.nan,
                torch.cat([summary, summary]),
                summary.to_sparse(),
            ]
        for wrong in odd:
            for verb in (
                p.exact,
                p.predicted_mse,
                lambda one: p.sample_tally(one, generator=generator()),
            ):
                with pytest.raises((TypeError, ValueError), match="summary"):
                    verb(wrong)

    def test_a_bad_objective_or_n_is_refused(self):
        for wrong in (None, "worst"):
            with pytest.raises(TypeError, match="objective must be"):
                self.protocol.worst_mse(len(self.x), wrong)
        for wrong in (0, -1, 1.5, None):
            with pytest.raises(ValueError, match="n must be"):
                self.protocol.worst_mse(wrong)

    def test_an_estimate_carries_no_data_in_its_graph(self):
        if self.x.is_floating_point():
            x = self.x.clone().requires_grad_()
            found = (
                self.protocol.estimate(x),
                self.protocol.exact(self.protocol.summary(self.protocol.validate(x))),
            )
            assert not (found[0].value.requires_grad or found[1].requires_grad)

    def test_a_tally_that_nobody_can_have_sent_is_refused(self):
        tally = self.protocol.collect(self.x, noise=SeededNoise(1))
        for wrong in never_sent(tally):
            both = {
                name: torch.stack([tally[name].to(part), part])
                for name, part in wrong.parts.items()
            }
            self.refuse(wrong)
            # beside a possible one
            self.refuse(Tally(wrong.n, both), "analyse")
        # a law is of so many users
        for n in (0, 10**9) if hasattr(channel_of(self.protocol), "law") else (0,):
            self.refuse(Tally(n, tally.parts), "analyse")
        for n in (-1, True, 1.5, math.nan, "4", None, 2**60):
            self.refuse(Tally(n, tally.parts))
        foreign = {name: torch.zeros(*part.shape, 97) for name, part in tally.parts.items()}
        for wrong in (Tally(tally.n, foreign), Tally(tally.n, {}), "text"):
            self.refuse(wrong)

    def refuse(self, tally, *names):
        """That no verb that takes tallies takes this one, and that each says so in words of its
        own.
        """
        p = self.protocol
        verbs = [getattr(p, name, p.check) for name in names or ("check", "analyse", "add")]
        if isinstance(p, MessageProtocol) and p.guarantee.model is Model.LOCAL and not names:
            verbs.append(partial(Collection.of(p).add, "batch"))
        for verb in verbs:
            with pytest.raises((TypeError, ValueError), match=r"tally|must be|NaN"):
                verb(tally)

    def test_tallies_of_its_own_law_are_taken(self, summary):
        tally = self.protocol.sample_tally(summary, generator=generator(2), sample_shape=(200,))
        assert self.protocol.check(tally) is tally

    def test_randomness_is_typed(self, summary):
        for wrong in (generator(), 1):
            with pytest.raises(TypeError, match="noise must be"):
                self.protocol.collect(self.x, noise=wrong)
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
            self.protocol.sample_tally(summary, generator=Noise())

    def test_a_seed_repeats_and_the_system_does_not(self):
        def parts(noise):
            tally = self.protocol.collect(self.x, noise=noise)
            return [part.double() for part in tally.parts.values()]

        for once, again in zip(parts(SeededNoise(3)), parts(SeededNoise(3)), strict=True):
            assert_close(once, again, rtol=1e-12, atol=0)
        # whole numbers of few users may agree by chance, but not twenty times
        once = parts(None)
        assert any(
            not torch.equal(a, b) for _ in range(20) for a, b in zip(once, parts(None), strict=True)
        )

    def test_global_randomness_is_untouched(self, summary):
        before = states()
        self.protocol.estimate(self.x)
        self.protocol.sample_estimate(summary, generator=generator())
        self.protocol.predicted_mse(summary)
        assert states() == before


class Unbiased:
    """Beside a Contract: errors average to 0, which a mean squared error does not show where the
    noise is large.
    """

    def test_is_unbiased(self, summary):
        found = self.protocol.sample_estimate(
            summary, generator=generator(1), sample_shape=(4 * self.repeats,)
        )
        bias = z_scores(found.value, self.protocol.exact(summary))
        assert (bias.abs() < 5).all(), bias


class MessageContract(Contract):
    """A protocol with a client half."""

    def released(self, row, seed, times):
        """What users who hold this row send, each alone; what servers or a shuffler show where the
        first user does.
        """
        mixed = Amplified | Shuffled | SecureSums | SharedSum | SecureQueries
        if isinstance(channel_of(self.protocol), mixed):
            x = torch.cat([row[None], self.x[1:]])
            noise = SeededNoise(seed)
            (name,) = self.protocol.layout
            totals = [
                self.protocol.collect(x, noise=noise)[name].flatten()
                for _ in range(min(times, MIXED))
            ]
            return torch.stack(totals)[:, :COLUMNS]
        sent = self.protocol.randomize(row.expand(times, *row.shape), noise=SeededNoise(seed))
        return sent.reshape(times, -1)[:, :COLUMNS]

    def same(self, one, two):
        return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(two), strict=True))

    def sent(self):
        """What users send in each run."""
        return [
            self.protocol.randomize(self.x, noise=SeededNoise(seed)) for seed in range(self.runs)
        ]

    def test_collect_is_the_tally_of_what_users_send(self, slow):
        each = [self.protocol.tally(messages) for messages in self.sent()]
        assert all(
            one_law(part, torch.stack([one[name] for one in each])) for name, part in slow.items()
        )

    def test_tallies_add(self):
        def tally(seed):
            return self.protocol.tally(self.protocol.randomize(self.x, noise=SeededNoise(seed)))

        add = self.protocol.add
        one, two, three = map(tally, range(3))
        left = add(add(one, two), three)
        right = add(one, add(two, three))
        alone = add(self.protocol.empty, one)
        assert left.n == right.n == 3 * one.n
        assert alone.n == one.n
        assert add().n == 0
        for name, part in one.parts.items():
            assert_close(left[name], right[name])
            assert_close(alone[name], part)

    def test_messages_travel(self):
        sent = self.protocol.randomize(self.x, noise=SeededNoise(1))
        data = self.protocol.encode(sent)
        assert isinstance(data, bytes)
        assert self.same(sent, self.protocol.decode(data))

    def test_bytes_that_nobody_sent_are_refused(self):
        data = self.protocol.encode(self.protocol.randomize(self.x, noise=SeededNoise(1)))
        with pytest.raises(ValueError, match="data"):
            self.protocol.decode(data + b"\xff")
        for wrong in (None, "text", 3):
            with pytest.raises(TypeError, match="data must be"):
                self.protocol.decode(wrong)
            with pytest.raises(TypeError, match="messages must be"):
                self.protocol.encode(wrong)


class LocalContract(MessageContract):
    """Each message stands alone."""

    # times the users whose tallies must be taken; more where the law is drawn without messages
    many = 100

    def sent(self):
        x = self.x.repeat(self.runs, *[1] * (self.x.ndim - 1))
        return self.protocol.randomize(x, noise=SeededNoise(1)).split(len(self.x))

    def test_one_user_speaks(self):
        sent = [self.protocol.randomize(row[None]) for row in self.x]
        tally = self.protocol.add(*map(self.protocol.tally, sent))
        assert tally.n == len(self.x)
        assert self.protocol.analyse(tally).n == len(self.x)

    def test_counts_that_do_not_add_up_are_refused(self):
        """What each user alone adds says what counts are: never negative or above n, and of what
        sum.
        """
        users = enumerate(self.x)
        p = self.protocol
        sent = [p.tally(p.randomize(row[None], noise=SeededNoise(seed))) for seed, row in users]
        tally = p.add(*sent)
        for name, part in tally.parts.items():
            alone = torch.stack([each[name] for each in sent])
            if part.is_floating_point() or not part.numel() or alone.min() < 0 or alone.max() > 1:
                continue
            place = torch.zeros_like(part).flatten()
            place[0] = 1
            place[-1] = -1
            # the sum stays
            moved = place.view_as(part) * (tally.n + 1)
            for wrong in (
                part + moved,
                part - moved,
                part * 0 - 1,
                part * 0 + tally.n + 1,
            ):
                self.refuse(Tally(tally.n, {**tally.parts, name: wrong}))
            if len(alone.flatten(1).sum(1).unique()) == 1:
                for n in (1, tally.n - 1, tally.n + 1, 10**9):
                    self.refuse(Tally(n, tally.parts))
                more = part + place.clamp_min(0).view_as(part)
                self.refuse(Tally(tally.n, {**tally.parts, name: more}))

    def test_tallies_of_one_user_and_of_very_many_are_taken(self, summary):
        p = self.protocol
        draws = generator(3)
        for x in (
            self.x[:1],
            self.x[-1:],
            self.x[:1].expand(self.x.shape).contiguous(),
        ):
            heard = p.collect(x, noise=SeededNoise(2))
            p.check(p.add(heard, p.empty, heard))
            p.check(p.sample_tally(p.summary(p.validate(x)), generator=draws, sample_shape=(200,)))
        p.check(p.sample_tally(times(summary, self.many), generator=draws, sample_shape=(3,)))

    def test_the_length_is_what_is_sent(self):
        data = self.protocol.encode(self.protocol.randomize(self.x))
        octets = math.ceil(self.protocol.bits_per_user / 8)
        assert len(data) == len(self.x) * max(1, octets)

    def test_a_journal_keeps_it(self, tmp_path):
        tally = self.protocol.collect(self.x, noise=SeededNoise(1))
        Journal(tmp_path / "journal", self.protocol).add("one", tally)
        again = Journal(tmp_path / "journal", self.protocol).estimate()
        assert_close(again.value, self.protocol.analyse(tally).value, equal_nan=True)

    def test_damaged_bytes_are_refused_or_a_message(self):
        data = self.protocol.encode(self.protocol.randomize(self.x[:1]))
        for at in range(min(len(data), 16)):
            for byte in (0, 127, 128, 255):
                try:
                    sent = self.protocol.decode(data[:at] + bytes([byte]) + data[at + 1 :])
                except ValueError as error:
                    assert "data" in str(error)
                else:
                    self.protocol.tally(sent)


class RelayContract(LocalContract):
    """A relay keeps its client's guarantee, which has an entry of its own: what is shown must be
    the client's data.
    """

    def loss(self, protocol):
        relay = channel_of(protocol)
        relay.client.validate(relay.client_input(relay.validate(self.x)))
        assert protocol.guarantee == relay.client.guarantee
        return relay.client.epsilon

    def test_a_wrong_constant_breaks_the_guarantee(self):
        relay = channel_of(self.protocol)
        louder = dataclasses.replace(relay.client, epsilon=1.1 * relay.client.epsilon)
        changed = dataclasses.replace(relay, client=louder)
        if relay is not self.protocol:
            changed = dataclasses.replace(self.protocol, channel=changed)
        # negative control: the changed mechanism loses more than is said
        assert self.loss(changed) > self.bound(self.protocol) * (1 + 1e-9)


def forms(x, held):
    """The same rows as users of numpy and pandas have them."""
    array = x.numpy()
    frame = pd.DataFrame(array)
    found = {
        "array": array,
        "lists": x.tolist(),
        "DataFrame": frame,
    }
    if frame.shape[1] == 1:
        found["Series"] = frame[0]
        found["numbers"] = array.reshape(len(x))
    if not isinstance(held, int):
        return found
    found["categories"] = frame[0].astype(pd.CategoricalDtype(range(held)))
    for fast in range(2, held):
        if held % fast == 0:
            both = pd.DataFrame({"slow": array // fast, "fast": array % fast})
            kinds = {
                "slow": pd.CategoricalDtype(range(held // fast)),
                "fast": pd.CategoricalDtype(range(fast)),
            }
            found["two categories"] = both.astype(kinds)
    if held == 2:
        found["booleans"] = frame[0].astype(bool)
    return found


def never_sent(tally):
    """Tallies that no users can have sent, each for one part alone."""
    for name, part in tally.parts.items():
        whole = not part.is_floating_point()
        size = float(part.abs().max() + tally.n)
        far = torch.iinfo(part.dtype).max if whole else 1e6 * size
        alone = part.clone()
        alone.view(-1)[:1] = -far
        odd = [torch.full_like(part, far), torch.full_like(part, -far), alone]
        odd += [part + 0.5] if whole else [part * math.nan, part + math.inf]
        for wrong in odd if part.numel() else ():
            yield Tally(tally.n, {**tally.parts, name: wrong})
    if any(bool(part.any()) for part in tally.parts.values()):
        yield Tally(0, tally.parts)


def times(summary, m):
    """The summary of m times as many users."""
    if isinstance(summary, Crowd):
        return Crowd(summary.values, summary.counts * m)
    return (
        SecondMoments(summary.n * m, summary.matrix * m)
        if hasattr(summary, "matrix")
        else summary * m
    )


def states():
    """The global generators of torch, Python and numpy."""
    numpy = np.random.get_state()[1]  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), numpy.tolist()


def tensors(messages):
    """The tensors in what users sent."""
    if isinstance(messages, torch.Tensor):
        return [messages]
    return [
        torch.as_tensor(getattr(messages, field.name)) for field in dataclasses.fields(messages)
    ]
