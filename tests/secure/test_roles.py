"""Organisations, servers and analyst, each with its own key file, over files in a folder."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import sqlite3
import stat
import threading
import warnings

import pytest
import torch
from cryptography.exceptions import InvalidTag
from laws import generator
from parties import HEADER_BYTES, Parties, changed, hkdf, ladder, opened, rows

from torchdp import secure
from torchdp.density import GaussianFourier, SecureKDE
from torchdp.privacy import gaussian_log_delta
from torchdp.regression import FrequencyMoments, GramRelease, SecureHistogram
from torchdp.secure import FrameError, KeyFile, PureSecureSketch, SecureSketch
from torchdp.sketching import AdaptiveCoalition, balanced_osnap, ones

# is honest: no row of the sketch holds more than the largest organisation
EVERYBODY = AdaptiveCoalition(0)
SKETCH = balanced_osnap(20, 4, 2, generator=generator())
QUESTIONS = {
    "sketch": (SecureSketch(SKETCH, 3, 1.0, 1.0, 1e-5, coalition=EVERYBODY), rows(20, 3)),
    "pure": (PureSecureSketch(SKETCH, 2, 1.0, 1.0, coalition=EVERYBODY), rows(20, 2, 0.5)),
    "gram": (GramRelease(20, 2, 1.0, 1.0, 1e-5, label_bound=1.0), rows(20, 3)),
    "moments": (FrequencyMoments(20, 2.0, (1.0, 2.0), 1.0, 1e-5), rows(20, 1)[:, 0]),
    "histogram": (SecureHistogram(20, 4, 1.0), torch.arange(20) % 4),
    "density": (
        SecureKDE(GaussianFourier(2).draw(3, generator=generator()), 20, 1.0, 1e-5),
        rows(20, 2),
    ),
}


@pytest.fixture
def parties(tmp_path):
    """Makes a session; a wide one may lose the organisation of most clients."""

    def parties(name="sketch", folder="one", absent=0):
        question, x = QUESTIONS[name]
        if absent:
            question = SecureSketch(
                ones(20), 3, 1.0, 1.0, 1e-5, coalition=AdaptiveCoalition(0, absent)
            )
            x = x
        return Parties(question, x, tmp_path / folder)

    return parties


@pytest.mark.parametrize("name", QUESTIONS)
def test_parties_with_their_own_rows_and_keys_give_the_bits_of_one_process(parties, name):
    found = parties(name)
    found.submit()
    found.serve()
    released = found.release()
    alone = found.alone()
    assert (
        torch.equal(released.value, alone.value)
        and type(released) is type(alone)
        and released.n == 20
    )
    assert torch.equal(released.standard_error, alone.standard_error)
    found.serve(1)  # all over again: nothing changes
    assert torch.equal(found.release().value, alone.value)


def test_keys_are_those_of_the_rfcs_and_fit_one_link_in_one_session(parties):
    found = parties()
    base = (9).to_bytes(32, "little")
    digest = found.session.digest
    north = found.key("north")
    server = found.key("server-1")
    mine = north.key(digest, "server-1", server.public)
    assert mine == server.key(digest, "north", north.public)
    with contextlib.closing(sqlite3.connect(north.path)) as db:
        ((secret,),) = db.execute("SELECT secret FROM party")
    assert bytes.fromhex(north.public) == ladder(secret, base)
    assert mine == hkdf(
        digest,
        ladder(secret, bytes.fromhex(server.public)),
        b"torchdp secure link: north and server-1",
    )
    # the same two keys under another name
    assert mine != north.key(digest, "server-2", server.public)
    with pytest.raises(ValueError, match="none of X25519"):
        north.key(digest, "server-1", "00" * 32)  # of small order


def test_a_key_file_is_its_owners_and_serves_one_session(parties, tmp_path):
    found = parties()
    other = parties(folder="other")
    path = found.folder / "keys" / "north.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        KeyFile.made(path, "north")
    with pytest.raises(ValueError, match="joined another session"):
        secure.submit(found.at, other.key("north"), found.part("north"))
    with pytest.raises(ValueError, match="not the key of north, south, east, west"):
        secure.submit(found.at, found.key("server-0"), found.part("north"))
    found.submit("north")
    again = found.opened(found.question)  # the same parties and keys, another nonce
    secure.open_session(tmp_path / "again", again)
    assert again.digest != found.session.digest
    with pytest.raises(ValueError, match="joined another session"):
        secure.submit(tmp_path / "again", found.key("north"), found.part("north"))
    with pytest.raises(ValueError, match="joined another session"):
        found.key("north").join(again, again.fingerprint)
    path.chmod(0o640)
    with pytest.raises(ValueError, match="may be read by others"):
        found.key("north")
    (tmp_path / "none").touch(0o600)
    with pytest.raises(OSError, match="no such table"):
        KeyFile(tmp_path / "none")
    (tmp_path / "none").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(ValueError, match="no key file, or damaged"):
        KeyFile(tmp_path / "none")


ROLES = {
    "north": lambda at, key, x: secure.submit(at, key, x),
    "server-0": lambda at, key, x: secure.serve(at, key),
    "analyst": lambda at, key, x: secure.release(at, key),
    "south": lambda at, key, x: secure.joined_session(at, key),
}


@pytest.mark.parametrize("name", ROLES)
def test_guarantee_every_role_refuses_a_session_that_its_person_did_not_accept(parties, name):
    """The file is swapped after fingerprints were compared: for other servers' keys, another
    question, other text.
    """
    found = parties()
    play = lambda: ROLES[name](found.at, found.key(name), found.part("north"))  # noqa: E731
    evil = KeyFile.made(found.folder / "evil", "server-0")
    server = dataclasses.replace(found.session.servers[0], public=evil.public)
    swapped = dataclasses.replace(found.session, servers=(server, *found.session.servers[1:]))
    weaker = dataclasses.replace(
        found.session, question=dataclasses.replace(found.question, epsilon=100.0)
    )
    path = found.at / "session.json"
    before = None
    true = path.read_bytes()
    for wrong in (swapped.to_bytes(), weaker.to_bytes(), true + b" ", b"{}", b""):
        path.write_bytes(wrong)
        before = {each.name: each.read_bytes() for each in found.at.iterdir()}
        with pytest.raises(ValueError, match="joined another session than this file's"):
            play()
        # nothing left
        assert {each.name: each.read_bytes() for each in found.at.iterdir()} == before
    path.write_bytes(true)
    with contextlib.suppress(TimeoutError):
        play()  # a control, and no swap bound the key to another session
    if name == "north":
        assert (found.at / "north.server-0.frames").exists()


@pytest.mark.parametrize("name", ["gram", "moments", "histogram", "density", "sum", "pure sum"])
def test_guarantee_a_session_counts_the_largest_organisation_where_the_question_says_nothing(
    parties, name
):
    """As the question with corrupt = 10 does, in its file too; what the other ten add is enough by
    itself.
    """
    found = parties("histogram")
    sums = {
        "sum": SecureSketch(ones(20), 2, 1.0, 1.0, 1e-5),
        "pure sum": PureSecureSketch(ones(20), 2, 1.0, 1.0),
    }
    asked = sums.get(name) or QUESTIONS[name][0]
    session = found.opened(asked)
    assert (
        asked.secure_sum().coalition.corrupt is None
        and session.sums.coalition == AdaptiveCoalition(10)
    )
    assert secure.Session.from_bytes(session.to_bytes()).sums.coalition == AdaptiveCoalition(10)
    assert session.exposed is None
    everybody = float((session.sums.variance / asked.secure_sum(3).variance).min())
    assert everybody == pytest.approx(2, rel=1e-3) or (
        name in ("histogram", "pure sum") and everybody > 1.9
    )


def test_a_session_whose_largest_organisation_leaves_nobody_is_refused(parties):
    found = parties("histogram")
    with pytest.raises(
        ValueError, match="10 clients of the largest organisation as corrupt, which leaves too few"
    ):
        found.opened(SecureSketch(SKETCH, 3, 1.0, 1.0, 1e-5))
    with pytest.raises(ValueError, match="state corrupt, 0 where"):
        found.opened(SecureHistogram(20, 4, 1.0, absent=10))


@pytest.mark.parametrize("corrupt", [0, 9, 10])
def test_a_session_says_whose_noise_is_not_counted(parties, tmp_path, corrupt):
    found = parties("histogram")
    session = found.opened(dataclasses.replace(found.question, corrupt=corrupt))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        secure.open_session(tmp_path / "said", session)
    said = [str(each.message) for each in told]
    assert any(f"noise of its 10 clients, corrupt = {corrupt}" in each for each in said) is (
        corrupt < 10
    )
    assert (session.exposed is None) is (corrupt == 10)


@pytest.mark.parametrize("corrupt", [None, 0])
def test_guarantee_the_others_noise_hides_a_client_from_the_largest_organisation(parties, corrupt):
    """What ten clients of the other organisations add; with corrupt = 0 it is too little, and that
    is said.
    """
    coalition = AdaptiveCoalition(corrupt)
    question = SecureSketch(ones(20), 1, 1.0, 1.0, 1e-6, coalition=coalition)
    session = parties("histogram").opened(question)
    others = float(session.sums.sigma[0]) * math.sqrt(10)
    log_delta = gaussian_log_delta(others, 1.0, 2.0)
    assert (log_delta <= math.log(1e-6) + 1e-9) is (corrupt is None)
    assert (session.exposed is None) is (corrupt is None)


def test_guarantee_a_key_that_joined_nothing_plays_no_role(parties, tmp_path):
    found = parties()
    (path,) = secure.new_keys(tmp_path, "north")
    key = KeyFile(path.with_suffix(".key"))
    for play in ROLES.values():
        with pytest.raises(ValueError, match="has joined no session: compare the fingerprint"):
            play(found.at, key, found.part("north"))
    assert key.joined is None  # what is found binds nothing
    with pytest.raises(ValueError, match="not the key of"):
        key.join(found.session, found.session.fingerprint)
    for wrong in ("", "0" * 64, found.session.fingerprint[:-1], found.session.digest.hex()):
        with pytest.raises(ValueError, match="fingerprint is not the session's"):
            found.key("north").join(found.session, wrong)
    # again, as it was typed
    found.key("north").join(found.session, f" {found.session.fingerprint.upper()}\n")
    assert found.key("north").joined == found.session.digest


def test_no_partys_files_open_anothers_frames(parties):
    """Every key file tried on every frame, by public calls and an own cipher: its two ends alone
    open it.
    """
    found = parties()
    found.submit()
    found.serve()
    public = {
        party.name: party.public for party in (*found.session.servers, *found.session.organisations)
    }
    public["analyst"] = found.session.analyst.public
    for path in found.at.glob("*.*.*"):
        sender, receiver, _ = path.name.split(".")
        for holder in public:
            key = found.key(holder)
            opens = 0
            for other in set(public) - {holder}:
                link = key.key(found.session.digest, other, public[other])
                try:
                    opens += bool(len(opened(link, path.read_bytes())))
                except InvalidTag:
                    continue
            assert opens == (holder in (sender, receiver)), (path, holder)
    travelled = b"".join(
        path.read_bytes() for path in [*found.at.iterdir(), *(found.folder / "keys").glob("*.pub")]
    )
    with contextlib.closing(sqlite3.connect(found.key("north").path)) as db:
        ((secret,),) = db.execute("SELECT secret FROM party")
    assert public["north"].encode() in travelled
    assert secret not in travelled and secret.hex().encode() not in travelled


def broken(kind, found, other, chance):
    """Spoil what west sent to server-1; returns the true bytes."""
    path = found.at / "west.server-1.frames"
    true = path.read_bytes()
    wrong = {
        "truncated": lambda: true[: chance.randrange(1, len(true))],
        "changed": lambda: next(
            filter(lambda wrong: len(wrong) <= len(true), iter(lambda: changed(true, chance), None))
        ),
        "another server's": lambda: (found.at / "west.server-0.frames").read_bytes(),
        "another organisation's": lambda: (found.at / "south.server-1.frames").read_bytes(),
        "another session's": lambda: (other.at / "west.server-1.frames").read_bytes(),
        "a stranger's header": lambda: true[:HEADER_BYTES] + os.urandom(len(true) - HEADER_BYTES),
        "twice": lambda: true + true,
        "followed by others": lambda: true + (found.at / "south.server-1.frames").read_bytes(),
    }
    path.write_bytes(wrong[kind]())
    return path, true, wrong


KINDS = ("truncated", "changed", "another server's", "another organisation's", "another session's",
         "a stranger's header")  # fmt: skip


def test_spoiled_files_are_named_and_count_nothing_and_the_true_one_then_does(parties):
    found = parties()
    other = parties(folder="other")
    chance = random.Random(0)
    found.submit(), other.submit()
    for kind, _ in itertools.product(KINDS, range(2)):
        path, true, _ = broken(kind, found, other, chance)
        with (
            warnings.catch_warnings(record=True) as told,
            pytest.raises(TimeoutError, match="6 clients of west are"),
        ):
            warnings.simplefilter("always")
            secure.serve(found.at, found.key("server-1"))
        assert "west.server-1.frames is refused" in str(told[0].message), kind
        path.write_bytes(true)
    for kind in ("twice", "followed by others"):  # what is behind a true frame
        path, true, _ = broken(kind, found, other, chance)
        with pytest.warns(UserWarning, match=r"west.server-1.frames is refused from byte \d+ on"):
            found.serve(1)
        path.write_bytes(true)
        found = parties(folder=kind)
        found.submit()
    found.serve()
    assert torch.equal(found.release().value, found.alone().value)


@pytest.mark.parametrize("absent", [0, 9, 10])
def test_who_is_absent_is_agreed_before_anything_opens(parties, absent):
    found = parties(absent=absent)
    found.submit("north", "east", "west")  # south, with ten clients, does not come
    if absent < 10:
        with pytest.raises(
            TimeoutError, match=f"10 clients of south are missing, absent = {absent} may be"
        ):
            found.serve(1)
        found.submit("south")
        found.serve()
        assert torch.equal(found.release().value, found.alone().value)
        return
    for name in found.servers[:2]:
        with pytest.raises(TimeoutError, match="roll is not there yet"):
            secure.serve(found.at, found.key(name))
    # too late for two servers; the third hears it, and the roll calls leave it out
    found.submit("south")
    with pytest.warns(UserWarning, match=r"south.server-[01].frames is refused: it came after"):
        found.serve()
    released = found.release()
    assert released.n == 10 and torch.equal(
        released.value, found.alone("north", "east", "west").value
    )


def test_a_server_that_was_closed_counts_the_same_frames_or_none(parties):
    found = parties()
    found.submit()
    with pytest.raises(TimeoutError):
        secure.serve(found.at, found.key("server-0"))
    path = found.at / "east.server-0.frames"
    true = path.read_bytes()
    for wrong in (None, true[:-1], changed(true, random.Random(2))):
        path.unlink(missing_ok=True)
        if wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(
            FrameError, match=r"east\.server-0\.frames was counted and is gone or changed"
        ):
            secure.serve(found.at, found.key("server-0"))
    path.write_bytes(true)
    found.serve()
    path = found.at / "north.server-0.frames"
    for spoil in (lambda: path.write_bytes(path.read_bytes()[:-1]), path.unlink):
        spoil()
        with pytest.raises(
            FrameError, match="was sent and is gone or changed; nothing is drawn twice"
        ):
            found.submit("north")
    assert torch.equal(found.release().value, found.alone().value)


def test_what_is_done_once_is_done_once_by_any_number_of_threads(tmp_path):
    KeyFile.made(tmp_path / "key", "north")
    made, results = [], []

    def make():
        made.append(None)
        return os.urandom(16)

    threads = [
        threading.Thread(target=lambda: results.append(KeyFile(tmp_path / "key").once("it", make)))
        for _ in range(8)
    ]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert (
        len(made) == 1
        and len(results) == 8
        and set(results) == {KeyFile(tmp_path / "key").done("it")}
    )
    with pytest.raises(ZeroDivisionError):
        KeyFile(tmp_path / "key").once("more", lambda: bytes(1 // 0))
    assert KeyFile(tmp_path / "key").done("more") is None


def test_a_session_says_all_that_is_public_and_nothing_else_is_read(parties, tmp_path):
    found = parties("gram")
    data = found.session.to_bytes()
    read = secure.read_session(found.at)
    assert read.to_bytes() == data and read.fingerprint == found.session.fingerprint
    assert read.question == found.question
    for old, new in ((b"north", b"nord"), (found.key("east").public.encode(), b"0" * 64)):
        assert secure.Session.from_bytes(data.replace(old, new)).digest != found.session.digest
    tree = json.loads(data)
    tree["of"]["question"] = {
        "made": "torchdp.collection.journal:Journal",
        "of": {"path": str(tmp_path / "made")},
    }
    with pytest.raises(FrameError, match="is not torchdp's"):
        secure.Session.from_bytes(json.dumps(tree).encode())
    assert not (tmp_path / "made").exists()
    with pytest.raises(FrameError, match="was changed"):
        secure.Session.from_bytes(data + b"\n")
    with pytest.raises(ValueError, match="must be empty"):
        secure.open_session(found.at, found.session)


def history(found, chance, steps):
    """Roles in any order and number, files lost, found again and spoiled; returns the sums that
    ever left a server.
    """
    stolen, left = {}, {}
    for _ in range(steps):
        files = [path for path in found.at.glob("[!.]*") if path.suffix in (".frames", ".roll")]
        act = chance.choice(["submit", "serve", "serve", "lose", "spoil", "find"])
        with warnings.catch_warnings(), contextlib.suppress(FrameError, TimeoutError):
            warnings.simplefilter("ignore")
            if act == "submit":
                found.submit(chance.choice(list(found.sizes)))
            elif act == "serve":
                secure.serve(found.at, found.key(chance.choice(found.servers)))
            elif act == "find" and stolen:
                path, true = stolen.popitem()
                path.write_bytes(true)
            elif files:
                path = chance.choice(files)
                stolen.setdefault(path, path.read_bytes())
                path.unlink() if act == "lose" else path.write_bytes(
                    changed(path.read_bytes(), chance)
                )
        for path in found.at.glob("[!.]*.sum"):
            left.setdefault(path.name, set()).add(path.read_bytes())
    for path, true in stolen.items():
        path.write_bytes(true)
    return left


@pytest.mark.parametrize("runs", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_whatever_happens_one_sum_of_one_set_of_clients_leaves(tmp_path, runs):
    sizes, servers, released = {"north": 2, "south": 1, "east": 1}, ("server-0", "server-1"), 0
    question = SecureSketch(ones(4), 2, 1.0, 1.0, 1e-5, coalition=AdaptiveCoalition(0, 2))
    for run in range(runs):
        found = Parties(question, rows(4, 2), tmp_path / str(run), sizes, servers)
        left = history(found, random.Random(run), 25)
        assert all(len(sums) == 1 for sums in left.values())
        with warnings.catch_warnings(), contextlib.suppress(FrameError, TimeoutError):
            warnings.simplefilter("ignore")
            found.submit(), found.serve()
            value = found.release()
            sets = [names for k in (1, 2, 3) for names in itertools.combinations(sizes, k)]
            fits = [names for names in sets if sum(map(sizes.get, names)) == value.n >= 2]
            assert any(torch.equal(value.value, found.alone(*names).value) for names in fits)
            released += 1
    assert released >= runs // 2
