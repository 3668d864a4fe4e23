"""The journal: what was acknowledged is there after any crash, each batch once; damage is never
taken for a crash.
"""

import errno
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch
from collection.asked import Places, Votes

import torchdp
from torchdp.collection import Collection, Journal
from torchdp.protocol import Tally

ROOT = Path(torchdp.__file__).parents[1]
POINTS = torch.tensor(
    [
        [0.1, 0.2, -1 / 3],
        [1.5, 0.0, 1.0],
        [0.3, 0.3, 2.0],
        [-1.0, 0.0, 0.25],
    ]
).double()
PROTOCOL = Places(4, 1.0, POINTS)
COUNTS = Votes(4, 1.0)


def batch(index):
    place = torch.tensor([0.1, 0.2, -1 / 3]).double() * (index + 1) + 1e-17
    square = place.square().sum()
    return f"batch {index}", Tally(3, {"square": square, "place": place})


def count(index):
    votes = torch.tensor([1, index, index * index, 0])
    return f"batch {index}", Tally(1 + index + index**2, {"votes": votes})


def filled(path, batches=4):
    journal = Journal(path, PROTOCOL)
    for index in range(batches):
        journal.add(*batch(index))
    return journal.collection


def same(one, two):
    assert dict(one.batches) == dict(two.batches)
    assert one.n == two.n
    assert all(torch.equal(one.tally[name], two.tally[name]) for name in two.tally.parts)


def load(path, protocol=PROTOCOL):
    os.stat(path)
    return Journal(path, protocol).collection


def child(script, *arguments, **environment):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    path = f"{ROOT}:{Path(__file__).parents[1]}"
    given = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=given,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_opened_again_it_is_the_same_to_the_bit(tmp_path):
    path = tmp_path / "new" / "folder" / "votes.db"
    before = filled(path)
    journal = Journal(path, PROTOCOL)
    same(journal.collection, before)
    size = path.stat().st_size
    assert journal.add(*batch(2)) is journal.collection
    # a retry
    assert path.stat().st_size == size
    journal.add(*batch(9))
    assert journal.estimate().n == 15
    same(load(path, PROTOCOL), journal.collection)
    with pytest.raises(ValueError, match="came before with other content"):
        journal.add("batch 9", batch(8)[1])
    same(
        pickle.loads(pickle.dumps(journal)).collection,
        journal.collection,
    )


def test_two_objects_and_paths_see_each_other(tmp_path):
    path = tmp_path / "votes.db"
    link = tmp_path / "link"
    link.symlink_to(path)
    one = Journal(path, PROTOCOL)
    two = Journal(link, PROTOCOL)
    for index in range(6):
        (two if index % 2 else one).add(*batch(index))
    same(one.collection, two.collection)
    same(one.collection, filled(tmp_path / "other.db", 6))
    with pytest.raises(ValueError, match="other content"):
        one.add("batch 5", batch(0)[1])
    os.link(path, tmp_path / "hard")
    with pytest.raises(ValueError, match="several hard links"):
        two.add(*batch(7))


def test_it_holds_tallies_names_and_the_protocol_alone(tmp_path):
    filled(tmp_path / "votes.db", 2)
    with sqlite3.connect(tmp_path / "votes.db") as db:
        assert {name for (name,) in db.execute("SELECT name FROM sqlite_master")} == {
            "header",
            "batches",
            "ends",
        }
        rows = db.execute("SELECT id, names, n, tally FROM batches").fetchall()
    db.close()
    for index, (number, names, n, data) in enumerate(rows):
        name, given = batch(index)
        assert number == index + 1
        assert n == given.n
        assert data == given["place"].numpy().tobytes() + given["square"].numpy().tobytes()
        assert names.startswith(f'{{"{name}": "')
        assert len(names) == len(name) + 72


def test_another_protocol_is_refused_and_that_of_the_file_can_be_used(tmp_path):
    path = tmp_path / "votes.db"
    before = filled(path)
    others = {
        "protocol.epsilon": Places(4, 2.0, POINTS),
        "protocol": COUNTS,
        r"places \(by 5.0e-06": Places(4, 1.0, POINTS * (1 + 5e-6)),
        r"places \(of shape": Places(4, 1.0, POINTS[:, :2]),
        "words": Places(4, 1.0, POINTS, "other"),
    }
    for where, other in others.items():
        with pytest.raises(ValueError, match=f"belongs to another protocol: .*{where}"):
            Journal(path, other)
    same(load(path), before)
    rounded = Places(4, 1.0, POINTS * (1 + 1e-12))
    # as another processor might make it
    journal = Journal(path, rounded)
    assert torch.equal(journal.protocol.places, POINTS)
    assert not torch.equal(rounded.places, POINTS)
    assert journal.merge(Collection.of(rounded).add(*batch(4))).n == 15


SIMILAR = """
import sys
from collection.test_journal import Journal, batch, similar
protocol = similar()
journal = Journal(sys.argv[1], protocol)
print(journal.add(sys.argv[2], batch(1)[1]).n, float(journal.estimate().value[0]))
"""


def similar():
    """Points whose last digits depend on the processor."""
    x = torch.arange(3).double()
    distance = (x[:, None] - x).abs()
    values, vectors = torch.linalg.eigh(distance.sqrt())
    points = torch.cat([vectors * values, POINTS[:1]])
    return Places(4, 1.0, points.abs())


def test_other_processors_and_numbers_of_threads_go_on(tmp_path):
    """The last digits of a factorization change with both."""
    path = tmp_path / "votes.db"
    protocol = similar()
    Journal(path, protocol).add("a", batch(0)[1])
    plain = {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    }
    for index, setting in enumerate([{"OMP_NUM_THREADS": "1", **plain}, {"OMP_NUM_THREADS": "2"}]):
        n, value = child(SIMILAR, path, index, **setting).split()
        assert int(n) == 6 + 3 * index
        assert float(value) == pytest.approx(
            float(load(path, protocol).estimate().value[0]), rel=1e-9
        )


def test_files_that_are_no_journal_are_left_alone(tmp_path):
    path = tmp_path / "table.csv"
    database = tmp_path / "other.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE birds (name TEXT)")
    db.close()
    for content, words in (
        (b"a,b\n1,2\n", "is not a journal"),
        (b"x" * 10_000, "is not a journal"),
        (bytes(9000), "is not a journal"),
        (database.read_bytes(), "is not a journal"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"table\.csv {words}"):
            Journal(path, PROTOCOL)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        Journal(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing", PROTOCOL)
    with pytest.raises(FileNotFoundError, match="missing"):
        Journal(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_damage_is_refused_and_nothing_silently_changed(tmp_path):
    """Bits turned, blocks of zeros, cuts and pages swapped: the same collection, or an error."""
    whole = tmp_path / "whole.db"
    path = tmp_path / "cut.db"
    before = filled(whole)
    draw = random.Random(1)
    refused = 0
    data = whole.read_bytes()
    for trial in range(160):
        damaged = bytearray(data)
        at = draw.randrange(len(data))
        if trial % 4 == 0:
            damaged = damaged[:at]
        elif trial % 4 == 1:
            damaged[at : at + 100] = bytes(len(damaged[at : at + 100]))
        elif trial % 4 == 2 and len(data) >= 8192:
            one, two = draw.sample(range(len(data) // 4096), 2)
            a = slice(4096 * one, 4096 * one + 4096)
            b = slice(4096 * two, 4096 * two + 4096)
            damaged[a], damaged[b] = damaged[b], damaged[a]
        else:
            damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            same(load(path, PROTOCOL), before)
        except ValueError as error:
            assert "cut.db" in str(error)
            refused += 1
        assert path.read_bytes() == damaged
    # the rest hit bytes that hold nothing
    assert refused > 60


@pytest.mark.parametrize(
    "fault",
    [
        "DELETE FROM batches WHERE id = 4",
        "DELETE FROM batches WHERE id = 2",
        "UPDATE batches SET n = n + 1 WHERE id = 3",
        "UPDATE batches SET names = replace(names, 'batch 1', 'batch 7')",
        "UPDATE batches SET n = 3.5 WHERE id = 3",
        "UPDATE ends SET batches = 3",
        "DELETE FROM ends",
        "DELETE FROM header",
        "UPDATE header SET protocol = x'00'",
        "CREATE TRIGGER t AFTER INSERT ON batches BEGIN DELETE FROM batches; END",
    ],
)
def test_edited_files_are_refused(tmp_path, fault):
    path = tmp_path / "votes.db"
    before = filled(path)
    journal = Journal(path, PROTOCOL)
    with sqlite3.connect(path) as db:
        db.execute(fault)
    db.close()
    with pytest.raises(ValueError, match="damaged"):
        load(path)
    # what it has seen is in its memory
    if not fault.startswith("UPDATE batches") and "id = 2" not in fault:
        with pytest.raises(ValueError, match="damaged"):
            journal.add(*batch(5))
    assert journal._collection.n == before.n


def test_an_emptied_or_replaced_file_is_not_a_new_one(tmp_path):
    path = tmp_path / "votes.db"
    filled(path)
    journal = Journal(path, PROTOCOL)
    older = path.read_bytes()
    journal.add(*batch(4))
    path.write_bytes(older)
    with pytest.raises(ValueError, match=r"damaged \(row 5\)"):
        journal.add(*batch(5))
    path.unlink()
    with pytest.raises(OSError, match=r"votes\.db"):
        journal.add(*batch(5))
    assert not path.exists()
    Journal(path, Places(4, 2.0, POINTS))
    with pytest.raises(ValueError, match="replaced by another journal"):
        journal.add(*batch(5))
    path.write_bytes(b"")
    with pytest.raises(
        ValueError,
        match=r"it is empty, but votes\.db-journal says that batches were written",
    ):
        Journal(path, PROTOCOL)


def test_a_failing_disk_is_reported_and_the_batch_not_counted(tmp_path, monkeypatch):
    path = tmp_path / "votes.db"
    before = filled(path, 1)
    journal = Journal(path, PROTOCOL)
    busy = sqlite3.connect(path, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("torchdp.collection.journal.PATIENCE", 0.01)
    with pytest.raises(
        TimeoutError,
        match=r"database is locked; batches already counted in it are kept.*votes\.db",
    ):
        journal.add(*batch(1))
    same(load(path), before)
    busy.close()
    same(journal.add(*batch(1)), before.add(*batch(1)))


def in_a_child(act):
    """Exit code of a forked child that runs ``act``."""
    process = os.fork()
    if process == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "votes.db"
    said = tmp_path / "said"
    journal = Journal(path, COUNTS)
    limit = path.stat().st_size + 8_000

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        told = 0
        try:
            while told < 10_000:
                journal.add(*count(told))
                told += 1
        except OSError as error:
            resource.setrlimit(
                resource.RLIMIT_FSIZE,
                (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
            )
            before = len(journal.collection.batches)
            after = len(journal.add(*count(told)).batches)
            said.write_text(f"{told} {before} {after} {error.errno} {error}")

    assert in_a_child(fill) == 0
    told, before, after, code, complaint = said.read_text().split(maxsplit=4)
    assert int(code) in (errno.ENOSPC, errno.EIO)
    assert str(path) in complaint
    assert "already counted in it are kept" in complaint
    assert int(told) == int(before) == int(after) - 1 == len(load(path, COUNTS).batches) - 1
    assert int(told) > 5


def test_a_fork_in_the_middle_of_another_threads_batch(tmp_path):
    path = tmp_path / "votes.db"
    journal = Journal(path, COUNTS)
    stop = threading.Event()

    def work():
        index = 1000
        while not stop.is_set():
            journal.add(*count(index))
            index += 1
            # a lock of the system is not fair
            stop.wait(0.003)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index in range(5):
            assert in_a_child(lambda index=index: journal.add(*count(index))) == 0
    finally:
        stop.set()
        thread.join()
    names = set(load(path, COUNTS).batches)
    assert {f"batch {index}" for index in range(5)} <= names
    assert "batch 1000" in names
