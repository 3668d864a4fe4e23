"""The store: round trip, torn and damaged lines, full and unwritable disks."""

import errno
import json
import os
import random
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchdp
from torchdp.simulate import Moments
from torchdp.simulate.store import Record, append, decode, encode, load

CONFIG = {"n": 100, "eps": 0.1, "name": "é\n", "list": [1, None, True]}


def numbers(samples: torch.Tensor) -> dict[str, Moments]:
    return {"z": Moments.of(samples), "a share": Moments.of(samples > 0.5), "none": Moments()}


def record(block: int) -> Record:
    samples = torch.rand(50, generator=torch.Generator().manual_seed(block), dtype=torch.float64)
    return Record(
        3, CONFIG, block, 50, numbers(samples), {"predicted_mse": 1 / 3}, 0.25, "cpu", "trial a, torch 2.13.0"
    )


def filled(path: Path, blocks: int = 4) -> list[Record]:
    records = [record(block) for block in range(blocks)]
    for item in records:
        append(path, item)
    return records


def quiet_load(path: Path) -> list[Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [item for run in load(path).runs.values() for item in run.values()]


def test_round_trip_is_exact(tmp_path):
    path = tmp_path / "folder" / "store.jsonl"
    records = filled(path)
    assert quiet_load(path) == records
    assert [list(each.metrics) for each in quiet_load(path)] == 4 * [["z", "a share", "none"]]
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[0])["config"] == CONFIG  # plain JSON lines for any other reader


def test_extreme_floats_round_trip():
    for value in (5e-324, 1e308, -0.0, 0.1 + 0.2, 2.0**-1074 * 3):
        item = replace(
            record(0), metrics={"x": Moments(2, value, abs(value), -abs(value), abs(value))}, seconds=1e-9
        )
        assert decode(encode(item)) == item


def test_non_finite_moments_are_never_written(tmp_path):
    path = tmp_path / "store.jsonl"
    with pytest.raises(ValueError, match="JSON"):
        append(path, replace(record(0), metrics={"x": Moments(1)}))
    assert not path.exists()


def test_truncation_at_every_byte_loses_at_most_the_torn_record(tmp_path):
    path, whole = tmp_path / "store.jsonl", tmp_path / "whole.jsonl"
    records = filled(whole)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for offset in range(ends[2], len(data) + 1):
        path.write_bytes(data[:offset])
        kept = sum(end - 1 <= offset for end in ends)  # a line that only lacks its newline is whole
        assert quiet_load(path) == records[:kept], offset
        if offset % 40 == 0 or offset in ends or offset + 1 in ends:
            for item in records[kept:]:
                append(path, item)
            assert quiet_load(path) == records, offset


def test_bit_flips_never_give_a_wrong_record(tmp_path):
    path = tmp_path / "store.jsonl"
    records = filled(path)
    data = path.read_bytes()
    draw = random.Random(1)
    detected = 0
    for _ in range(300):
        damaged = bytearray(data)
        position = draw.randrange(8 * len(data))
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        found = quiet_load(path)
        assert all(item in records for item in found)
        assert len(found) >= len(records) - 2  # a lost newline joins two lines
        detected += len(found) < len(records)
    assert detected > 290


def test_damaged_lines_are_counted_and_reported(tmp_path):
    path = tmp_path / "store.jsonl"
    records = filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    foreign = b'{"block":1}\n[1,2]\nnull\nnot json\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    edited = lines[1].replace(b'"seconds":0.25', b'"seconds":0.26')
    assert edited != lines[1]
    path.write_bytes(lines[0] + b"\n" + foreign + edited + lines[2])
    with pytest.warns(RuntimeWarning, match=r"store\.jsonl: skipped 7 line"):
        runs = load(path).runs
    assert [item for run in runs.values() for item in run.values()] == [records[0], records[2]]


def test_another_format_is_skipped():
    assert decode(encode(record(0)).replace(b"torchdp.simulate.store/4", b"torchdp.simulate/1")) is None


def test_equal_duplicates_are_idempotent_first_wins(tmp_path):
    path = tmp_path / "store.jsonl"
    first = record(0)
    append(path, first)
    append(path, replace(first, seconds=99.0, device="other"))
    assert quiet_load(path) == [first]


def test_duplicates_with_other_moments_are_refused(tmp_path):
    path = tmp_path / "store.jsonl"
    append(path, record(0))
    append(path, replace(record(0), metrics=record(1).metrics, device="cuda (X)"))
    with pytest.raises(
        ValueError, match=r"store\.jsonl holds block 0 of seed 3.*different moments.*cpu.*cuda \(X\)"
    ):
        load(path)


def test_other_seeds_block_sizes_lengths_and_code_are_not_duplicates(tmp_path):
    path = tmp_path / "store.jsonl"
    shorter = {**record(1).metrics, "z": replace(record(1).moments, count=7)}
    items = [record(0), replace(record(0), seed=4), replace(record(0), block_size=60)]
    items += [replace(record(0), metrics=shorter), replace(record(0), config={"n": 100})]
    items += [replace(record(1), code="trial b, torch 2.13.0")]
    for item in items:
        append(path, item)
    runs = load(path).runs
    assert [len(run) for run in runs.values()] == [2, 1, 1, 1, 1]


def test_threads_may_append_to_one_file(tmp_path):
    path = tmp_path / "store.jsonl"

    def work(start: int) -> None:
        for block in range(start, start + 25):
            append(path, record(block))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 25, 50, 75)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (run,) = load(path).runs.values()
    assert sorted(block for block, _ in run) == list(range(100))


def test_full_disk_gives_a_clear_error_and_keeps_what_was_written(tmp_path):
    path = tmp_path / "store.jsonl"
    filled(path, 2)
    limit = path.stat().st_size + 100
    script = f"""
import resource
from pathlib import Path
from torchdp.simulate.store import append, load
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
path = Path({str(path)!r})
item = next(iter(next(iter(load(path).runs.values())).values()))
for _ in range(2):
    try:
        append(path, item)
    except OSError as error:
        print(error)
"""
    root = Path(torchdp.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    for line in (first, second):
        assert "cannot append to the results store" in line and str(path) in line
    assert "is the disk full?" in first  # the write that fitted in part
    assert "File too large" in second  # the write that did not fit at all
    assert quiet_load(path) == [record(0), record(1)]
    append(path, record(2))
    assert quiet_load(path) == [record(0), record(1), record(2)]


def test_unwritable_paths_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "store.jsonl", Path("/proc/store.jsonl")):
        with pytest.raises(OSError, match="cannot append to the results store") as caught:
            append(path, record(0))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "code"),
    [("open", errno.EROFS), ("open", errno.EACCES), ("write", errno.ENOSPC), ("fsync", errno.EIO)],
)
def test_every_failing_call_is_explained(tmp_path, monkeypatch, call, code):
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(code)) as caught:
        patch.setattr(os, call, fail)
        append(tmp_path / "store.jsonl", record(0))
    assert caught.value.errno == code
    assert "store.jsonl" in str(caught.value)
    append(tmp_path / "store.jsonl", record(0))  # the failed call left nothing that stands in the way
    assert quiet_load(tmp_path / "store.jsonl") == [record(0)]
