"""Frames between clients, servers and analyst: what was changed, dropped, swapped or repeated on
its way is found.
"""

import hmac
import math
import os
import random
from itertools import permutations

import pytest
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from laws import generator
from parties import (
    HEADER_BYTES,
    NONCE_BYTES,
    TAG_BYTES,
    changed,
    links_of,
    opened,
)

from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_log_delta
from torchdp.secure import (
    FrameError,
    PureSecureSketch,
    SecureSketch,
    Server,
    client_frames,
    reconstruct,
    reveal_frames,
    share,
)
from torchdp.sketching import AdaptiveCoalition, balanced_osnap, ones

SECRET = bytes(range(32))
SESSION_NONCE = bytes(32)


def protocol(n=24, absent=3, **settings):
    sketch = balanced_osnap(n, 4, 2, generator=generator())
    settings = {
        "servers": 3,
        "coalition": AdaptiveCoalition(absent=absent),
        **settings,
    }
    return SecureSketch(sketch, 3, 1.0, 1.0, 1e-5, **settings)


def forged(key, front, words):
    """A frame with this header, true or not, by code of its own."""
    nonce = os.urandom(NONCE_BYTES)
    body = words.contiguous().numpy()
    body = body.tobytes()
    cipher = ChaCha20Poly1305(hmac.digest(key, b"frame", "sha256"))
    return front + cipher.encrypt(nonce, body, front) + nonce


class Run:
    """A session of a protocol: its parties and the frames that clients send, ``each`` clients under
    one key.
    """

    def __init__(self, p, nonce=SESSION_NONCE, secret=SECRET, each=1):
        self.protocol = p
        self.session = p.session(nonce)
        self.each = each
        self.links = links_of(p.servers, secret)
        self.A = torch.full((p.sketch.clients, p.columns), 0.1)
        words = p.randomize(self.A, noise=SeededNoise(1)).values
        self.shares = share(words, p.servers, noise=SeededNoise(2))
        self.firsts = range(0, p.sketch.clients, each)
        self.keys = [[os.urandom(32) for _ in range(p.servers)] for _ in self.firsts]
        self.frames = [self.sent(i, keys) for i, keys in zip(self.firsts, self.keys, strict=True)]

    def sent(self, first, keys, count=None):
        """Clients' frames by any keys."""
        last = first + (self.each if count is None else count)
        shares = self.shares[:, :, first:last]
        return client_frames(self.protocol, self.session, shares, first, keys)

    def servers(self):
        p = self.protocol
        servers = [Server(p, self.session, k, self.links[f"server {k}"]) for k in range(p.servers)]
        for server in servers:
            for first, keys in zip(self.firsts, self.keys, strict=True):
                server.enrol(first, self.each, keys[server.number])
        return servers

    def fed(self, without=()):
        servers = self.servers()
        for i, frames in enumerate(self.frames):
            for k, frame in enumerate(frames):
                if (i, k) not in without:
                    servers[k].receive(frame)
        return servers

    def release(self, servers):
        return reveal_frames(
            self.protocol,
            self.session,
            agreed(servers),
            self.links["analyst"],
        ).value


def agreed(servers):
    for a in servers:
        for b in servers:
            if a is not b:
                b.agree(a.roll_call(b.number))
    return [server.publish() for server in servers]


def in_one_process(run):
    """What the same messages give without servers."""
    words = run.protocol.randomize(run.A, noise=SeededNoise(1))
    return run.protocol.analyse(run.protocol.tally(words)).value


def test_frames_give_the_bits_of_the_protocol_in_one_process():
    pure = PureSecureSketch(
        balanced_osnap(24, 4, 2, generator=generator()),
        3,
        1.0,
        1.0,
        coalition=AdaptiveCoalition(2),
    )
    for settings in ({}, {"bits": 32}, {"servers": 2}, pure):
        run = Run(pure if settings is pure else protocol(**settings))
        expected = in_one_process(run)
        assert torch.equal(run.release(run.fed()), expected)


def test_words_on_the_links_are_as_many_as_the_formula_says():
    for bits in (32, 64):
        run = Run(protocol(bits=bits))
        # what a frame carries besides words
        overhead = HEADER_BYTES + TAG_BYTES
        up = sum(len(frame) - overhead for frames in run.frames for frame in frames)
        lists = agreed(run.fed())
        down = sum(len(frame) - overhead for frame in lists)
        assert up == 3 * 2 * 24 * 3 * bits // 8
        assert down == 3 * 4 * 3 * bits // 8
        assert up + down == run.protocol.payload_bytes


def test_three_thousand_attacks_in_transit_are_all_found():
    run = Run(protocol())
    other = Run(protocol(), nonce=bytes(range(1, 33)))
    stranger = Run(protocol(), secret=os.urandom(32))
    chance = random.Random(0)
    found = 0
    # a server whom nobody has reached yet
    target = run.fed(without={(i, 1) for i in range(24)})[1]
    full = run.fed()[1]
    # changed on its way
    for _ in range(1200):
        frame = run.frames[chance.randrange(24)][1]
        with pytest.raises(FrameError):
            target.receive(changed(frame, chance))
        found += 1
    # a true frame in the wrong place: another server's, session's or sender's
    for _ in range(900):
        i = chance.randrange(24)
        wrong = chance.choice(
            [
                run.frames[i][chance.choice([0, 2])],
                other.frames[i][1],
                stranger.frames[i][1],
            ]
        )
        with pytest.raises(FrameError):
            target.receive(wrong)
        found += 1
    # one client's frame passed off as another's, under a header that says so
    for _ in range(150):
        i, j = chance.sample(range(24), 2)
        header = run.frames[j][1][:HEADER_BYTES]
        with pytest.raises(FrameError):
            target.receive(header + run.frames[i][1][HEADER_BYTES:])
        found += 1
    # nothing of all this left a trace
    assert not target.seen.any()
    # repeated
    for _ in range(600):
        with pytest.raises(FrameError, match="repeats"):
            full.receive(run.frames[chance.randrange(24)][1])
        found += 1
    few = Run(protocol(n=8, absent=1))
    # dropped: too many are missing, at one server or spread over all
    for _ in range(150):
        lost = {(i, chance.randrange(3)) for i in chance.sample(range(8), chance.randrange(2, 9))}
        with pytest.raises(FrameError, match="did not reach every server"):
            agreed(few.fed(without=lost))
        found += 1
    assert found == 3000


def test_clients_who_reached_only_some_servers_are_left_out_everywhere():
    run = Run(protocol())
    gone = torch.zeros(24, dtype=torch.bool)
    # whose frames miss one server or several
    gone[[2, 11, 20]] = True
    servers = run.fed(
        without={
            (2, 0),
            (11, 1),
            (11, 2),
            (20, 0),
            (20, 1),
            (20, 2),
        }
    )
    words = run.protocol.randomize(run.A, noise=SeededNoise(1)).values
    words[:, gone] = 0
    sums = torch.zeros(4, 3, dtype=torch.int64)
    sums.index_add_(0, run.protocol.sketch.rows.flatten(), words.flatten(0, 1))
    assert torch.equal(run.release(servers), run.protocol.ring.to_reals(sums) / 2**0.5)


def test_a_server_whom_nobody_may_miss_holds_its_sums_alone():
    run = Run(protocol(absent=0))
    for server in run.fed():
        state = vars(server).values()
        held = sum(getattr(each, "nbytes", 0) for each in state)
        # the sums; of each client whether it is here, and the range of its key
        assert held == 4 * 3 * 8 + 17 * 24


def test_attacks_on_roll_calls_and_sums_are_found():
    run = Run(protocol())
    other = Run(protocol(), nonce=bytes(range(1, 33)))
    servers = run.fed()
    chance = random.Random(2)
    call = servers[0].roll_call(1)
    for wrong in (
        other.fed()[0].roll_call(1),
        servers[0].roll_call(2),
        run.frames[0][1],
        b"",
        call[:-1],
    ):
        with pytest.raises(FrameError):
            servers[1].agree(wrong)
    # reflected to its sender, or to a third
    for back in (
        servers[0],
        servers[2],
    ):
        with pytest.raises(FrameError):
            back.agree(call)
    for _ in range(200):
        with pytest.raises(FrameError):
            servers[1].agree(changed(call, chance))
    servers[1].agree(call)
    with pytest.raises(FrameError, match="twice"):
        servers[1].agree(call)
    with pytest.raises(FrameError, match="1 of 2 roll calls"):
        servers[1].publish()
    servers[1].agree(servers[2].roll_call(1))
    for k in (0, 2):
        for ell in range(3):
            if k != ell:
                servers[k].agree(servers[ell].roll_call(k))
    sums = [server.publish() for server in servers]
    analyst = run.links["analyst"]
    for wrong in (
        sums[:2],
        [*sums, sums[0]],
        [sums[0], sums[0], sums[2]],
        [*sums[:2], run.frames[0][2]],
    ):
        with pytest.raises(FrameError):
            reveal_frames(run.protocol, run.session, wrong, analyst)
    for _ in range(200):
        with pytest.raises(FrameError):
            reveal_frames(
                run.protocol,
                run.session,
                [sums[0], changed(sums[1], chance), sums[2]],
                analyst,
            )
    with pytest.raises(FrameError):
        reveal_frames(run.protocol, other.session, sums, analyst)
    assert reveal_frames(run.protocol, run.session, reversed(sums), analyst).value.shape == (4, 3)


def test_sums_over_different_clients_are_not_put_together():
    run = Run(protocol())
    first = agreed(run.fed())
    second = agreed(run.fed(without={(5, 0)}))
    with pytest.raises(FrameError, match="same clients"):
        reveal_frames(
            run.protocol,
            run.session,
            [first[0], second[1], first[2]],
            run.links["analyst"],
        )


def test_a_server_publishes_once_and_lets_nobody_in_late():
    run = Run(protocol())
    servers = run.fed(without={(0, k) for k in range(3)})
    agreed(servers)
    for server in servers:
        with pytest.raises(FrameError, match="published already"):
            server.publish()
        with pytest.raises(FrameError, match="begun to agree"):
            server.receive(run.frames[0][server.number])


def test_a_fast_server_does_not_close_a_slow_ones_doors():
    """Server 1 has nobody yet when server 0's roll call comes; it hears all and makes its own
    afterwards.
    """
    run = Run(protocol())
    servers = run.servers()
    full = run.fed()
    for i in range(24):
        for k in (0, 2):
            servers[k].receive(run.frames[i][k])
    servers[1].agree(servers[0].roll_call(1))
    servers[1].agree(servers[2].roll_call(1))
    with pytest.raises(FrameError, match="no roll call yet"):
        servers[1].publish()
    for i in range(24):
        servers[1].receive(run.frames[i][1])
    for k in (0, 2):
        servers[k].agree(servers[1].roll_call(k))
        servers[k].agree(servers[2 - k].roll_call(k))
    with pytest.raises(FrameError, match="begun to agree"):
        servers[1].receive(run.frames[0][1])
    released = reveal_frames(
        run.protocol,
        run.session,
        [s.publish() for s in servers],
        run.links["analyst"],
    ).value
    assert torch.equal(released, run.release(full))


def test_outside_the_model_a_server_that_lies_about_its_sum_is_believed():
    run = Run(protocol())
    sums = agreed(run.fed())
    honest = reveal_frames(run.protocol, run.session, sums, run.links["analyst"]).value
    servers = run.servers()
    own = run.shares[:, :, 5:6].clone()
    own[1, 0] += 2**run.protocol.ring.fraction_bits
    lies = client_frames(run.protocol, run.session, own, 5, run.keys[5])
    for i, frames in enumerate(run.frames):
        for k, server in enumerate(servers):
            # who has its key
            server.receive((lies if (i, k) == (5, 1) else frames)[k])
    lie = agreed(servers)[1]
    released = reveal_frames(
        run.protocol,
        run.session,
        [sums[0], lie, sums[2]],
        run.links["analyst"],
    ).value
    moved = torch.zeros(4, 3, dtype=torch.float64)
    moved[run.protocol.sketch.rows[0, 5]] = 2**-0.5
    assert torch.allclose(released - honest, moved, atol=1e-12)


def test_one_client_can_not_speak_for_another():
    """Single clients, and organisations of several: for others, for a part of them, or for some of
    both.
    """
    for each in (1, 8):
        run = Run(protocol(), each=each)
        servers = run.servers()
        for mine, other in permutations(range(3), 2):
            tries = [
                (each * other, each),
                (each * other + each - 1, 1),
                (min(mine, other) * each, 2 * each),
            ]
            for first, count in tries:
                for server, frame in zip(
                    servers,
                    run.sent(first, run.keys[mine], count),
                    strict=True,
                ):
                    with pytest.raises(FrameError, match=r"tag|issued no key"):
                        server.receive(frame)
            # nor under the other's own header
            for k, server in enumerate(servers):
                header = run.frames[other][k][:HEADER_BYTES]
                frame = forged(run.keys[mine][k], header, run.shares[k][:, :each])
                with pytest.raises(FrameError, match="tag"):
                    server.receive(frame)
                # nor read them
                with pytest.raises(InvalidTag):
                    opened(run.keys[mine][k], run.frames[other][k])
        assert not any(server.seen.any() for server in servers)
        # with its own keys all of it succeeds
        for k, server in enumerate(servers):
            assert torch.equal(
                opened(run.keys[2][k], run.frames[2][k]),
                run.shares[k, :, 2 * each : 3 * each].flatten(),
            )
            header = run.frames[2][k][:HEADER_BYTES]
            server.receive(forged(run.keys[2][k], header, run.shares[k][:, :each]))
            assert server.seen.nonzero()[:, 0].tolist() == list(range(2 * each, 3 * each))


def test_a_server_opens_frames_of_the_clients_it_issued_a_key_to_and_of_nobody_else():
    run = Run(protocol(), each=8)
    p = run.protocol
    keys = run.keys
    server = Server(p, run.session, 0, run.links["server 0"])
    # its key is the right one, but no client is known here yet
    for first, count in ((0, 8), (3, 2)):
        with pytest.raises(FrameError, match="issued no key"):
            server.receive(run.sent(first, keys[0], count)[0])
    server.enrol(8, 8, keys[1][0])
    # one organisation in three frames
    for first, count in (
        (8, 3),
        (15, 1),
        (11, 4),
    ):
        server.receive(run.sent(first, keys[1], count)[0])
    assert server.seen.nonzero()[:, 0].tolist() == list(range(8, 16))
    # keys of one session open no other's
    later = Server(p, p.session(bytes(range(1, 33))), 0, run.links["server 0"])
    issued = [each.issue(first, 8) for each in (later, server) for first in (0, 16)]
    assert len(set(issued)) == 4
    assert all(len(key) == 32 for key in issued)
    frames = run.sent(0, [issued[0]] * 3)
    with pytest.raises(FrameError, match="another session"):
        later.receive(frames[0])
    with pytest.raises(FrameError, match="no key for the link"):
        server.roll_call(99)


def test_who_has_no_key_of_a_link_reads_nothing():
    """All frames of a client add up to its words in nobody's hands; the same words are never the
    same frame.
    """
    run = Run(protocol())
    words = run.protocol.randomize(run.A, noise=SeededNoise(1)).values
    for i in (0, 7):
        bodies = [frame[HEADER_BYTES:-TAG_BYTES] for frame in run.frames[i]]
        total = sum(torch.frombuffer(bytearray(body), dtype=torch.int64) for body in bodies)
        assert (total != words[:, i].flatten()).all()
        read = [opened(key, frame) for key, frame in zip(run.keys[i], run.frames[i], strict=True)]
        # with the keys they do
        assert torch.equal(reconstruct(torch.stack(read)), words[:, i].flatten())
        for key, frame in zip(
            run.keys[i - 1] + run.keys[i][::-2],
            run.frames[i] + run.frames[i][::2],
            strict=True,
        ):
            # other clients' keys, and those of other servers
            with pytest.raises(InvalidTag):
                opened(key, frame)
        assert len({run.sent(i, run.keys[i])[0][HEADER_BYTES:] for _ in range(20)}) == 20


def test_drop_outs_leave_the_noise_that_colluders_were_counted_for():
    """n = 30, ten drop out, then ten of the others collude: ten clients' noise has to hide a
    client.
    """
    for absent in (0, 10):
        p = SecureSketch(
            ones(30),
            1,
            1.0,
            1.0,
            1e-6,
            coalition=AdaptiveCoalition(10, absent=absent),
        )
        exact = gaussian_log_delta(float(p.sigma[0]) * math.sqrt(10), 1.0, 2.0)
        run = Run(p)
        assert (exact <= math.log(1e-6) + 1e-9) is (absent == 10)
        for gone in (10, 11):
            servers = run.fed(without={(i, i % 2) for i in range(gone)})
            if gone <= absent:
                assert (
                    reveal_frames(
                        p,
                        run.session,
                        agreed(servers),
                        run.links["analyst"],
                    ).n
                    == 20
                )
            else:
                with pytest.raises(
                    FrameError,
                    match=f"{gone} of 30 .* absent = {absent} drop out",
                ):
                    agreed(servers)
    with pytest.raises(ValueError, match=r"corrupt \+ absent must be below"):
        SecureSketch(
            ones(30),
            1,
            1.0,
            1.0,
            1e-6,
            coalition=AdaptiveCoalition(20, absent=10),
        )
