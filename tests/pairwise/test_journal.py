"""The journal: what was acknowledged is there after any crash, each batch once; damage is never taken for a crash."""

import errno
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import torchdp
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import Collection, Journal, OneMessage, RandomizedResponsePlugIn, load, save
from torchdp.randomness import keyed_generator

ROOT = Path(torchdp.__file__).parents[1]
STATISTIC = pairwise.absolute_difference(4)
PROTOCOL = OneMessage(STATISTIC, 1.0)


def batch(index, protocol=PROTOCOL):
    generator = keyed_generator(f"batch {index}".encode())
    return f"batch {index}", protocol.collect(torch.tensor([0, 1, index % 4]), noise=SeededNoise.of(generator)), 3


def filled(path, batches=4):
    with Journal(path, PROTOCOL) as journal:
        for index in range(batches):
            journal.add(*batch(index))
        return journal.collection


def same(one, two):
    assert dict(one.batches) == dict(two.batches) and one.n == two.n
    assert all(map(torch.equal, one.sums, two.sums))


def quiet(path, act=load):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return act(path, PROTOCOL)


def test_closed_and_opened_again_it_is_the_same_to_the_bit(tmp_path):
    path = tmp_path / "folder" / "votes.jsonl"
    before = filled(path)
    same(load(path, PROTOCOL), before)
    with Journal(path, PROTOCOL) as journal:
        same(journal.collection, before)
        assert journal.add(*batch(2)) is journal.collection and path.read_bytes().count(b"\n") == 5
        journal.add(*batch(9))
        assert journal.estimate().n == 15
        same(load(path, PROTOCOL), journal.collection)  # while it is open


def test_it_holds_sums_names_and_a_fingerprint_alone(tmp_path):
    filled(tmp_path / "votes.jsonl", 2)
    first, *rest = [json.loads(line.split(b" ", 1)[1]) for line in (tmp_path / "votes.jsonl").open("rb")]
    assert first == {"format": "torchdp.pairwise.journal/1", "protocol": pairwise.fingerprint(PROTOCOL)}
    for index, body in enumerate(rest):
        name, sums, n = batch(index)
        assert set(body) == {"batches", "n", "sums"} and list(body["batches"]) == [name] and body["n"] == n
        assert body["sums"] == [each.tolist() for each in sums]


def test_saved_merged_and_compacted(tmp_path):
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    first = filled(here)
    second = Collection.empty(PROTOCOL).add(*batch(7)).add(*batch(8))
    save(second, there)
    same(load(there, PROTOCOL), second)
    with Journal(here, PROTOCOL) as journal:
        journal.merge(load(there, PROTOCOL))
        assert journal.merge(second) is journal.collection  # a retry
        same(journal.collection, first.merge(second))
        size = here.stat().st_size
        journal.compact()
        assert here.read_bytes().count(b"\n") == 2 and here.stat().st_size < size
        same(load(here, PROTOCOL), first.merge(second))
        journal.add(*batch(20))
        assert journal.add(*batch(0)).n == 21
    same(load(here, PROTOCOL), first.merge(second).add(*batch(20)))
    save(Collection.empty(PROTOCOL), there)
    assert load(there, PROTOCOL).n == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.jsonl", "here.jsonl.lock", "there.jsonl"]


def test_cut_at_every_byte_it_loses_the_torn_batch_alone_and_goes_on(tmp_path):
    whole, path = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    complete = filled(whole)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in (*range(0, ends[0] + 2, 5), *range(ends[2] - 1, len(data) + 1)):
        path.write_bytes(data[:cut])
        kept = sum(end <= cut for end in ends) - 1
        if kept >= 0:
            assert len(quiet(path).batches) == kept
        if cut % 37 == 0 or any(abs(cut - end) < 2 for end in ends):
            with quiet(path, Journal) as journal:
                assert len(journal.collection.batches) == max(kept, 0)
                for index in range(4):
                    journal.add(*batch(index))
                same(journal.collection, complete)
            assert path.read_bytes() == data


def test_zeros_after_the_end_are_a_torn_line_too(tmp_path):
    path = tmp_path / "votes.jsonl"  # a file system may have grown the file and not yet written it
    before = filled(path)
    with path.open("ab") as file:
        file.write(bytes(5000))
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(bytes(5000))
    with pytest.warns(RuntimeWarning, match="torn last line"), Journal(empty, PROTOCOL) as journal:
        same(journal.add(*batch(0)), load(empty, PROTOCOL))
    with pytest.warns(RuntimeWarning, match=r"votes\.jsonl: left out a torn last line \(5000 bytes\)"):
        same(load(path, PROTOCOL), before)
    with pytest.warns(RuntimeWarning, match="send it again"):
        Journal(path, PROTOCOL).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(load(path, PROTOCOL), before)


def test_damage_before_the_end_is_an_error_that_names_the_line(tmp_path):
    path = tmp_path / "votes.jsonl"
    filled(path)
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for line, position in ((1, 70), (2, ends[0] + 80), (4, ends[2] + 3)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        for act in (load, Journal):
            with pytest.raises(ValueError, match=rf"votes\.jsonl, line {line}: damaged"):
                act(path, PROTOCOL)
        assert path.read_bytes() == damaged  # left as it is


def test_files_that_are_no_journal_are_left_alone(tmp_path):
    path = tmp_path / "table.csv"
    for content in (b"a,b\n1,2\n", b"x" * 10_000):
        path.write_bytes(content)
        for act in (load, Journal):
            with pytest.raises(ValueError, match=r"table\.csv is not a journal"):
                quiet(path, act)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        load(path, PROTOCOL)
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing", PROTOCOL)


def test_another_protocol_is_refused(tmp_path):
    path = tmp_path / "votes.jsonl"
    before = filled(path)
    for other in (OneMessage(STATISTIC, 2.0), RandomizedResponsePlugIn(STATISTIC, 1.0)):
        for act in (load, Journal):
            with pytest.raises(ValueError, match="belongs to another protocol"):
                act(path, other)
    same(load(path, PROTOCOL), before)


def test_one_process_at_a_time_and_none_after_closing(tmp_path):
    path = tmp_path / "votes.jsonl"
    journal = Journal(path, PROTOCOL)
    with pytest.raises(OSError, match="another process collects into this journal") as caught:
        Journal(path, PROTOCOL)
    assert str(path) in str(caught.value)
    journal.add(*batch(0))
    journal.close()
    journal.close()
    for use in (lambda: journal.add(*batch(1)), journal.compact):
        with pytest.raises(ValueError, match="is closed; open it again"):
            use()
    with Journal(path, PROTOCOL) as again:
        assert again.collection.n == 3


def test_nothing_is_acknowledged_before_it_is_on_the_disk(tmp_path, monkeypatch):
    path, calls = tmp_path / "votes.jsonl", []
    filled(path, 1)
    for name in ("pwrite", "ftruncate", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *some, name=name, real=real: (calls.append(name), real(*some))[1])
    with Journal(path, PROTOCOL) as journal:
        assert calls == ["ftruncate", "fsync"]  # what was read may be the last words of a killed process
        calls.clear()
        journal.add(*batch(1))
        assert calls == ["pwrite", "fsync"]
        calls.clear()
        journal.add(*batch(1))
        assert calls == []


@pytest.mark.parametrize(
    ("call", "code"), [("pwrite", errno.ENOSPC), ("fsync", errno.EIO), ("fsync", errno.ENOSPC)]
)
def test_a_failing_disk_is_reported_and_the_batch_not_counted(tmp_path, monkeypatch, call, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    path = tmp_path / "votes.jsonl"
    with Journal(path, PROTOCOL) as journal:
        before = journal.add(*batch(0))
        with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(code)) as caught:
            patch.setattr(os, call, fail)
            journal.add(*batch(1))
        assert caught.value.errno == code and "votes.jsonl" in str(caught.value)
        same(journal.collection, before)
        if call == "fsync":  # nobody knows what is on the disk: it must be read again
            with pytest.raises(ValueError, match="open it again"):
                journal.add(*batch(1))
        else:
            same(journal.add(*batch(1)), before.add(*batch(1)))
    with Journal(path, PROTOCOL) as journal:
        same(journal.add(*batch(1)), before.add(*batch(1)))
    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(code)):
        patch.setattr(os, "fsync", fail)
        save(before, tmp_path / "copy.jsonl")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["votes.jsonl", "votes.jsonl.lock"]


def test_a_full_disk_cuts_the_half_written_line_off(tmp_path):
    path = tmp_path / "votes.jsonl"
    before = filled(path, 2)
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_journal import Journal, PROTOCOL, batch
with Journal({str(path)!r}, PROTOCOL) as journal:
    limit = {path.stat().st_size + 50}
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for _ in range(2):
        try:
            journal.add(*batch(2))
        except OSError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(journal.add(*batch(2)).n)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second, users = done.stdout.splitlines()
    for line in (first, second):
        assert "is the disk full?" in line and "already counted in it are kept" in line and str(path) in line
    assert users == "9"
    same(load(path, PROTOCOL), before.add(*batch(2)))


def test_unwritable_paths_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "votes.jsonl", Path("/proc/votes.jsonl")):
        for act in (lambda path: Journal(path, PROTOCOL), lambda path: save(Collection.empty(PROTOCOL), path)):
            with pytest.raises(OSError, match="cannot write to the collection") as caught:
                act(path)
            assert str(path) in str(caught.value)


KILLS = """
import os, random, select, signal, sys, time, warnings
import torch
from torchdp import pairwise
from torchdp.pairwise import Journal, RandomizedResponsePlugIn, load
path, kills = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
warnings.simplefilter("ignore")
types = 400
protocol = RandomizedResponsePlugIn(pairwise.unequal(types), 1.0)

def sums(index):  # whole numbers: their total shows a batch that is missing or counted twice
    return (torch.arange(types) * 10**9 + index * index,)

def collect(output, start):
    with Journal(path, protocol) as journal:
        for index in range(max(0, start - 3), start + 10**6):  # the last ones again: a retry
            journal.add(str(index), sums(index), index + 1)
            os.write(output, b"%d\\n" % index)
            if index % 50 == 49:
                journal.compact()

draw, acknowledged, moments = random.Random(1), -1, []
for kill in range(kills):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            collect(write, acknowledged + 1)
        finally:
            os._exit(1)
    os.close(write)
    # some are killed as they open the journal, most at a random moment among their first batches
    if kill % 5:
        select.select([read], [], [])
    time.sleep(draw.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    told = os.fdopen(read, "rb").read().split(b"\\n")[:-1]
    acknowledged = max([acknowledged, *map(int, told)])
    if not os.path.exists(path) or not os.path.getsize(path):
        assert acknowledged == -1
        continue
    found = load(path, protocol)
    there = sorted(map(int, found.batches))
    assert there == list(range(len(there))) and len(there) - 1 in (acknowledged, acknowledged + 1), kill
    assert found.n == sum(index + 1 for index in there)
    total = torch.arange(types) * 10**9 * len(there) + sum(index * index for index in there)
    assert torch.equal(found.sums[0], total), kill
    moments.append(len(there) - 1 > acknowledged)
print(kills, acknowledged + 1, sum(moments))
"""


def killed(path, kills):
    command = [sys.executable, "-c", KILLS, str(path), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=570)
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


def test_killed_eight_times_nothing_acknowledged_is_lost_or_counted_twice(tmp_path):
    kills, batches, _ = killed(tmp_path / "votes.jsonl", 8)
    assert kills == 8 and batches > 8


@pytest.mark.slow
def test_killed_a_hundred_times_nothing_acknowledged_is_lost_or_counted_twice(tmp_path):
    kills, batches, _ = killed(tmp_path / "votes.jsonl", 100)
    assert kills == 100 and batches > 100
