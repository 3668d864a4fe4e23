"""What is kept of a device's kernels: whole or not at all, by many writers, and never a reason to fail."""

import multiprocessing
import os
import warnings

import pytest
import torch

from torchdp.kernels import dispatch, response_counts
from torchdp.kernels.dispatch import Kernel, cases, verdicts
from torchdp.kernels.dispatch.verdicts import Verdicts

GPU = torch.device("cuda:0")
FOUND = Verdicts(
    {"a.counts": {"": None, "form": None}, "b.stream": {"form": "does not agree"}}, {"p": {"PAIRS": 512}}
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache directory, and a device with a name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "no such GPU")
    verdicts._read.cache_clear()
    yield tmp_path
    verdicts._read.cache_clear()


def test_what_is_written_is_read_and_nothing_else_lies_there(home):
    assert verdicts.read(GPU) == Verdicts()
    file = verdicts.write(GPU, FOUND)
    assert verdicts.read(GPU) == FOUND
    assert [file] == list((home / "torchdp").iterdir())
    assert verdicts.read(torch.device("cpu")) == Verdicts()


def test_another_device_torch_or_source_has_another_file(home, monkeypatch):
    files = {verdicts.path(GPU)}
    for module, name, value in (
        (torch.cuda, "get_device_name", lambda device: "another"),
        (torch, "__version__", "9.9"),
        (verdicts, "version", lambda package: "9.9"),
        (verdicts, "sources", lambda: "other"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            files.add(verdicts.path(GPU))
    assert len(files) == 5


BAD = {
    "empty": b"",
    "half": b'{"faults": {"chacha.keystream": nu',
    "list": b"[1, 2]",
    "number": b"7",
    "no tiles": b'{"faults": {}}',
    "faults a list": b'{"faults": [], "tiles": {}}',
    "a fault a number": b'{"faults": {"a": {"form": 1}}, "tiles": {}}',
    "no forms": b'{"faults": {"a": null}, "tiles": {}}',
    "tiles flat": b'{"faults": {}, "tiles": {"p": 3}}',
    "a size a text": b'{"faults": {}, "tiles": {"p": {"PAIRS": "512"}}}',
    "a size true": b'{"faults": {}, "tiles": {"p": {"PAIRS": true}}}',
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "long": b" " * (verdicts.LARGEST + 1),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_a_warning_and_is_written_anew(home, content):
    file = verdicts.path(GPU)
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is not read"):
        assert verdicts.read(GPU) == Verdicts()
    assert verdicts.write(GPU, FOUND) == file and verdicts.read(GPU) == FOUND


def test_a_file_that_may_not_be_read(home, monkeypatch):
    verdicts.write(GPU, FOUND)

    def refused(*_, **__):
        raise PermissionError("no")

    monkeypatch.setattr("pathlib.Path.read_text", refused)
    with pytest.warns(RuntimeWarning, match="is not read"):
        assert verdicts.read(GPU) == Verdicts()


def test_a_directory_in_its_place_and_a_home_that_can_not_be_written(home, monkeypatch):
    verdicts.path(GPU).mkdir(parents=True)
    assert verdicts.read(GPU) == Verdicts()
    with pytest.warns(RuntimeWarning, match="not kept"):
        assert verdicts.write(GPU, FOUND) is None
    assert len(list((home / "torchdp").iterdir())) == 1  # no draft is left behind
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    with pytest.warns(RuntimeWarning, match="not kept"):
        assert verdicts.write(GPU, FOUND) is None
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    with pytest.warns(RuntimeWarning, match="no home directory"):
        assert verdicts.write(GPU, FOUND) is None
    assert verdicts.read(GPU) == Verdicts()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_home(home):
    home.chmod(0o500)
    try:
        with pytest.warns(RuntimeWarning, match="not kept"):
            assert verdicts.write(GPU, FOUND) is None
        assert verdicts.read(GPU) == Verdicts()
    finally:
        home.chmod(0o700)


def test_two_processes_that_write_at_once_leave_the_file_of_one(home):
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the children are forked")
    contents = [Verdicts({f"kernel {i}": {"": str(each)} for i in range(100)}, {}) for each in range(2)]

    def keep_writing(found):
        for _ in range(50):
            verdicts.write(GPU, found)

    verdicts.write(GPU, contents[0])
    fork = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        children = [fork.Process(target=keep_writing, args=(found,)) for found in contents]
        for child in children:
            child.start()
    warned = []
    while any(child.is_alive() for child in children):
        verdicts._read.cache_clear()
        with warnings.catch_warnings(record=True) as seen:
            assert verdicts.read(GPU) in contents
        warned += seen
    for child in children:
        child.join()
    assert not warned and all(child.exitcode == 0 for child in children)
    assert len(list((home / "torchdp").iterdir())) == 1


def test_a_kept_verdict_is_obeyed_without_a_trial(home, monkeypatch):
    call = (torch.arange(50) % 16, 16, 2**58, 7)
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)

    def forbidden(*_):
        raise AssertionError("tried")

    for fault, wanted in ((None, "fused"), ("is too slow", "plain")):
        verdicts.write(GPU, Verdicts({"response_counts.counts": {"": fault}}, {}))
        made = Kernel("torchdp.kernels.response_counts", "counts", lambda *_: "plain", cases.RESPONSE_COUNTS)
        monkeypatch.setattr(made, "trial", forbidden)
        monkeypatch.setattr(made, "fused", lambda device: lambda *_: "fused")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert made(GPU, *call) == made(GPU, *call) == wanted
        assert [str(each.message)[:49] for each in seen] == [
            "the fused response_counts.counts is too slow; its"
        ] * (fault is not None)


@pytest.mark.parametrize(("size", "used"), [(512, 512), (0, 1024), (7, 1024), (2**20, 1024)])
def test_kept_tiles_are_set_once_and_only_if_they_are_among_the_choices(home, monkeypatch, device, size, used):
    """A grid of any other size might leave users out: an edited file must not decide it."""
    fused = pytest.importorskip("torchdp.kernels.response_counts.fused")
    monkeypatch.setattr(fused, "PAIRS", 1024)
    monkeypatch.setattr(dispatch, "_loaded", {})
    package = "torchdp.kernels.response_counts"
    verdicts.write(GPU, Verdicts({}, {package: {"PAIRS": size, "PROGRAMS": 1, "__name__": 5}}))
    assert response_counts.COUNTS.tiles(GPU) == {"PAIRS": used}
    assert fused.PROGRAMS == 2048 and fused.__name__.endswith("fused")
