"""The first day on a GPU, without one: its runner on steps of its own, a part of its rehearsal, and all of it."""

import json
import sys

import pytest
import torch
from scripts import FOLDER, loaded


@pytest.fixture(scope="module")
def module():
    with loaded("bench/first_day.py") as module:  # "bench/first_day_steps.py" and the others are its own
        yield module


def steps(module, folder):
    """One of each fate; ``good`` writes down that it ran."""
    codes = {
        "good": ("open('ran', 'a').write('x'); print('{\"a\": 1}')", 20),
        "bad": ("print('what is wrong <b>'); raise SystemExit(3)", 20),
        "false": ("print('{\"agrees\": false}')", 20),
        "endless": ("import time; print('{\"a\": 2}', flush=True); time.sleep(60)", 0.5),
    }
    return [
        module.Step(name, (sys.executable, "-S", "-c", code), planned) for name, (code, planned) in codes.items()
    ]


def test_what_fails_is_a_row_and_the_same_command_goes_on(module, tmp_path):
    every = steps(module, tmp_path)
    found = module.day(every, tmp_path, 100)
    assert {name: each["status"] for name, each in found.items()} == {
        "good": "ok",
        "bad": "exit 3",
        "false": "wrong",
        "endless": "over 1 s",
    }
    assert found["good"]["rows"] == [{"a": 1}] and found["endless"]["rows"] == [{"a": 2}]
    assert json.loads((tmp_path / "first_day.json").read_text()) == found
    again = module.day(every, tmp_path, 1)  # no time is left for what failed
    assert [each["status"] for each in again.values()] == ["ok", *["no time left"] * 3]
    assert (tmp_path / "ran").read_text() == "x"
    changed = [module.Step("good", (*every[0].command, "more"), 20)]
    assert module.day(changed, tmp_path, 100)["good"]["status"] == "ok"
    assert (tmp_path / "ran").read_text() == "xx"  # another command: what the old one found is not its


def test_steps_of_one_word_run_together(module):
    words = ("", "", "x", "x", "y", "")
    every = [module.Step(str(place), (), 1, together=word) for place, word in enumerate(words)]
    found = [[step.name for step in stage] for stage in module.stages(every)]
    assert found == [["0"], ["1"], ["2", "3"], ["4"], ["5"]]


def test_the_page_shows_what_failed_and_a_rehearsal_claims_no_gpu(module, tmp_path):
    found = {
        "bad": {"status": "exit 3", "seconds": 1.0, "planned": 2, "rows": [], "said": "wrong <b>"},
        "time over the bound": {
            "status": "ok",
            "seconds": 3.0,
            "planned": 2,
            "rows": [{"launch": "one of ours", "of the bound": 0.5}],
        },
        "bench: x": {
            "status": "ok",
            "seconds": 1,
            "planned": 2,
            "rows": [{"case": "a case", "times as fast": 9.0}],
        },
    }
    pages = {}
    for rehearsed in (False, True):
        page, text = (path.read_text() for path in module.write(found, tmp_path, rehearsed))
        pages[rehearsed] = page
        assert "wrong &lt;b&gt;" in page and "wrong <b>" not in page and page.count("<svg") == 1
        assert ("not yet measured" in text) == rehearsed and "exit 3" in text
    assert "no figure of a GPU" in pages[True] and len(pages[False]) > len(pages[True])  # two panels more


def test_the_day_fits_its_budget_and_is_rehearsed_step_by_step(module, tmp_path):
    there, here = ([*module.steps(device, tmp_path)] for device in ("cuda:0", "cpu"))
    assert [step.name for step in there] == [step.name for step in here]
    planned = sum(max(step.seconds for step in stage) for stage in module.stages(there))
    assert planned < 600
    for one, other in zip(there, here, strict=True):
        assert one.command[1:3] == other.command[1:3] and not one.interpreted  # the same script and step
    assert {step.command[3] for step in there if step.command[2] in ("facts", "parity")} == {"cuda:0"}
    scripts = [FOLDER / script for script, _ in module.PAPERS.values()]
    assert all(path.is_file() for path in scripts) and len(scripts) == 5


def test_without_a_gpu_it_says_so(module, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    for given, said in (([], "--rehearse"), (["--rehearse", "--only", "nothing"], "no step is named so")):
        with pytest.raises(SystemExit, match="2"):
            module.main(["--out", str(tmp_path / "none"), *given])
        assert said in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_part_is_rehearsed(module, tmp_path, capsys):
    assert module.main(["--out", str(tmp_path), "--rehearse", "--only", "parity: response_counts"]) == 0
    (found,) = json.loads((tmp_path / "first_day.json").read_text()).values()
    assert len(found["rows"]) == 10 and all(row["agrees"] for row in found["rows"])
    assert "1 of 1 steps are well" in capsys.readouterr().out


@pytest.mark.slow
def test_all_is_rehearsed(module, tmp_path):
    assert module.main(["--out", str(tmp_path), "--rehearse"]) == 0
    assert (tmp_path / "first_day.html").read_text().count("<h2>") > 20
