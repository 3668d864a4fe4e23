"""``torchdp secure``: the guide's terminals from an empty folder, every question, and what is
refused.
"""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch

from torchdp import cli, secure
from torchdp.privacy import gaussian_log_delta

PAGE = Path(__file__).parents[2] / "docs" / "sums.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
# what is typed stands in blocks of no language
TYPED = [block.replace("\\\n", " ").splitlines() for language, block in BLOCKS if not language]
TERMINALS = [[shlex.split(line) for line in lines] for lines in TYPED]
PEOPLE = [
    (h, w, 0.8 * h - 0.4 * w)
    for h in (-0.6, -0.2, 0.1, 0.3, 0.7)
    for w in (-0.5, -0.4, -0.3, -0.1, 0, 0.2, 0.4, 0.6)
]


def table(name, people):
    lines = ["height,weight,strength,town"]
    for k, person in enumerate(people):
        numbers = [f"{number:.4f}" for number in person]
        lines.append(",".join([*numbers, "ab"[k % 2]]))
    Path(f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A command's exit code and output, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = cli.main(["secure", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def opened(run, *asked, sizes=(24, 16)):
    """Keys, tables and a session of two organisations and two servers, in ``study``."""
    run("keys", "north", "south", "server-0", "server-1", "analyst")
    table("north", PEOPLE[: sizes[0]]), table("south", PEOPLE[sizes[0] :])
    parties = ["--servers", "server-0.pub", "server-1.pub", "--analyst", "analyst.pub"]
    organisations = [f"north.pub={sizes[0]}", f"south.pub={sizes[1]}"]
    done = run(
        "open", "study", *asked, "--epsilon", "1", *parties, "--organisations", *organisations
    )
    if done[0] == 0:
        fingerprint = re.search(r"fingerprint ([0-9a-f-]{79})", done[1])[1]
        for name in ("north", "south", "server-0", "server-1", "analyst"):
            assert run("join", "study", f"{name}.key", "--fingerprint", fingerprint)[0] == 0
    return done


def test_the_guide_is_three_terminals_and_fourteen_commands(run):
    """A terminal goes on where its command succeeded; each waits for the others as ``--wait``
    does.
    """
    assert len(TERMINALS) == 3
    assert sum(map(len, TERMINALS)) == 14
    table("north", PEOPLE * 75), table("south", PEOPLE * 50)
    left = [list(terminal) for terminal in TERMINALS]
    said = []
    for _ in range(8):
        for terminal in left:
            while terminal:
                words = [word for word in terminal[0][2:] if word not in ("--wait", "600")]
                known = re.findall(r"fingerprint ([0-9a-f-]{79})", "".join(said)) or ["unknown"]
                code, out, _ = run(*[known[0] if word == "FINGERPRINT" else word for word in words])
                if code:
                    break
                terminal.pop(0), said.append(out)
    assert left == [[], [], []]
    found = dict(re.findall(r"^coefficient of (\w+) +(\S+)$", said[-1], re.MULTILINE))
    assert abs(float(found["height"]) - 0.8) < 0.4
    assert "5000 clients; linear-transform" in said[-1]
    fingerprints = re.findall(r"(?:fingerprint|session) ([0-9a-f-]{79})", "".join(said))
    assert len(fingerprints) == 10
    assert len(set(fingerprints)) == 1
    assert "GramRelease of height, weight, strength" in "".join(said)


QUESTIONS = {
    "sum": (["--columns", "height", "weight", "--bound", "1", "--delta", "1e-6"], 2),
    "sum of Laplace noise": (["--columns", "height", "--bound", "1"], 1),
    "gram": (["--columns", "height", "weight", "--bound", "1", "--delta", "1e-6"], 3),
    "moments": (["--columns", "strength", "--bound", "1", "--orders", "1", "2"], 2),
    "histogram": (["--columns", "town", "--categories", "a,b"], 2),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question(run, name):
    asked, numbers = QUESTIONS[name]
    code, out, _ = opened(run, "--question", name.split()[0], *asked)
    assert code == 0
    assert run("show", "study")[1:] == (out, "")
    assert "fingerprint" in out
    # the clients of the largest organisation
    assert "corrupt = 24" in out or "corrupt=24" in out
    for who in ("north", "south"):
        assert run("submit", "study", f"{who}.key", f"{who}.csv", "--seed", 1)[2].endswith(
            "for trying out only\n"
        )
    assert run("release", "study", "analyst.key")[0] == 2
    for server in (0, 1, 0):
        code, _, error = run("serve", "study", f"server-{server}.key")
        assert code == 0 or "server-1.server-0.roll is not there yet" in error
    code, out, _ = run("release", "study", "analyst.key", "--json")
    found = json.loads(out)
    assert found["n"] == 40
    assert len(found["names"]) == len(found["value"]) == numbers
    people = torch.tensor(PEOPLE, dtype=torch.float64)
    h, w, s = people.T
    truth = {
        "sum": [h.sum(), w.sum()], "sum of Laplace noise": [h.sum()], "histogram": [20, 20],
        "gram": [(h * h).sum(), (h * w).sum(), (w * w).sum()], "moments": [s.sum(), (s * s).sum()],
    }[name]  # fmt: skip
    for value, error, true in zip(found["value"], found["standard_error"], truth, strict=True):
        assert abs(value - float(true)) < 12 * error
    lines = run("release", "study", "analyst.key")[1]
    assert all(each in lines for each in found["names"])


REFUSED = [
    (["--question", "sum", "--columns", "height", "--delta", "1e-6"], "--bound is needed"),
    (["--question", "histogram", "--columns", "town"], "--categories"),
    (["--question", "moments", "--columns", "height", "weight", "--bound", "1"], "one column"),
    (
        ["--question", "gram", "--columns", "height", "--bound", "1", "--label", "weight"],
        "come together",
    ),
    (["--question", "sum", "--columns", "height", "--bound", "1e-300"], "bound"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_is_missing_is_named(run, asked, said):
    code, _, error = opened(run, *asked)
    assert code == 2
    assert said in error
    assert not Path("study", "session.json").exists()


@pytest.mark.parametrize("corrupt", [None, 0])
def test_guarantee_the_others_noise_hides_a_client_from_the_largest_organisation(run, corrupt):
    """What 16 clients of the other organisation add; with corrupt = 0 it is too little, and that is
    said.
    """
    asked = ["--question", "sum", "--columns", "height", "--bound", "1", "--delta", "1e-6"]
    said = opened(run, *asked, *([] if corrupt is None else ["--corrupt", str(corrupt)]))[2]
    sums = secure.read_session("study").sums
    log_delta = gaussian_log_delta(float(sums.sigma[0]) * math.sqrt(16), 1.0, 2.0)
    assert (log_delta <= math.log(1e-6) + 1e-9) is (corrupt is None)
    assert (
        "knows the noise of its 24 clients, corrupt = 0: the guarantee does not hold" in said
    ) is (corrupt == 0)


def test_tables_and_keys_of_others_are_refused_and_no_value_is_shown(run):
    opened(run, "--question", "sum", "--columns", "height", "--bound", "1")
    table("north", [*PEOPLE[:23], (123.456, 0, 0)])
    for words, said in (
        (["north.key", "south.csv"], "x must hold the 24 clients of north, a row each, not 16"),
        (["north.key", "north.csv"], "l_1 norm above bound"),
        (["server-0.key", "north.csv"], "not the key of north, south"),
        (["none.key", "north.csv"], "none.key"),
    ):
        code, out, error = run("submit", "study", *words)
        assert code == 2
        assert said in error
        assert out == ""
        assert "123.4" not in error
    # a key is never written over
    assert run("keys", "north")[0] == 2
