"""Bad input: exit code 2, one line on stderr, nothing on stdout, no value of the table in it."""

import subprocess
import sys

import pytest

import torchdp
from torchdp import cli

SECRET = "77.123456"
ROWS = [
    ("1.5", "0.5", "0", "red"),
    (SECRET, "0.25", "1", "blue"),
    ("3.5", "0.75", "1", "red"),
]
ASK = "--statistic gini-mean-difference --columns height"
MEAN = f"{ASK} --bounds height=0:100"
TABLES = {
    "empty": b"",
    "semicolons": b"height;dose\n77.123456;2\n3;4\n",
    "blank": b"\n\n",
    "header only": b"height,dose,label,colour\n",
    "one row": b"height,dose,label,colour\n77.123456,2,0,red\n",
    "binary": bytes(range(256)) * 4,
    "nul": b"\x00\x01\x02\x1b[31m77.123456\x00,\x00\n" * 3,
    "no header": b"77.123456,0.5,0,red\n77.123456,0.5,1,red\n",
    "twice": b"height,height\n1,77.123456\n2,3\n",
    "short row": b"height,dose\n1,77.123456\n77.123456\n3,4\n",
    "long row": b"height,dose\n1,77.123456\n3,4,77.123456\n",
    "open quote": b'height,dose\n1,"77.123456\n3,4\n',
    "huge cell": b"height,dose\n1,2\n" + b"7" * 200_000 + b",3\n",
    "latin": "height,größe\n1,77.123456\n".encode("latin-1"),
}
TABLES |= {
    f"cell {cell!r}": f"height,dose\n77.123456,1\n{cell},1\n3,3\n".encode()
    for cell in ("nan", "inf", "-inf", "1e999", "", "77.123456 cm")
}
SCRIPT = """
import contextlib, io, sys
from torchdp import cli
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
    cli.main(sys.argv[1:])
assert output.getvalue().startswith("usage: torchdp"), output.getvalue()
heavy = {"torch", "numpy", "scipy", "matplotlib", "cvxpy", "sklearn", "triton"}
print(len(sys.modules), *sorted(heavy & set(sys.modules)))
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    rows = [("height", "dose", "label", "colour"), *ROWS]
    lines = [",".join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def refuse(estimate):
    def refuse(*words):
        said = estimate(*words, "--epsilon 1 --trust local", code=2)
        assert "77.1" not in said
        return said

    return refuse


SAID = {
    "empty": "is empty", "header only": "0 rows", "binary": "not a UTF-8",
    "one row": "holds 1 rows to ask; this statistic needs at least 2 users",
    "no header": "'height' is missing", "twice": "more than once", "short row": "row 2: 1 cells",
    "long row": "line 3, saw 3", "cell 'nan'": "row 2: the cell is missing (1 such rows); --missing drop",
    "cell 'inf'": "row 2: not a finite number", "latin": "not a UTF-8",
    "semicolons": "its delimiter may be ';', not ',': see --delimiter",
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables(name, tmp_path, refuse):
    path = tmp_path / "table.csv"
    path.write_bytes(TABLES[name])
    assert SAID.get(name, "") in refuse("--csv", path, MEAN)


def test_missing_file_and_folder(tmp_path, refuse):
    for path in (tmp_path / "none.csv", tmp_path):
        # without the error's number, and with what was wanted
        said = refuse("--csv", path, MEAN)
        assert said.startswith(f"torchdp estimate: {path}: ")
        assert said.endswith("--csv takes a table with a header, or - for stdin\n")


def test_what_a_command_wanted_is_said(tmp_path, monkeypatch, estimate):
    monkeypatch.chdir(tmp_path)
    for command, words, wanted in (
        ("report", "none", "none: No such file or directory; it takes the results.jsonl"),
        ("merge", "into none", "none: No such file or directory; it takes stores"),
        ("sweep", "none.py", "or one under experiments/ of a checkout"),
    ):
        assert wanted in estimate(words, command=command, code=2)


@pytest.mark.parametrize("epsilon", ["0", "nan", "1e9", "1e-300"])
@pytest.mark.parametrize("protocol", ["auto", "randomized-response"])
def test_epsilon(table, epsilon, protocol, estimate):
    error = estimate(
        "--csv", table, MEAN, "--epsilon", epsilon, "--protocol", protocol, "--trust local", code=2
    )
    assert "epsilon must" in error or ("1e-300", "randomized-response") == (epsilon, protocol)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (f"{MEAN} --level 1", "--level"),
        (f"{MEAN} --bins 1", "--bins must be an integer >= 2"),
        (f"{MEAN} --bins 99999", "--bins must be at most 4096"),
        (ASK, "needs public bounds, --bounds height=LOW:HIGH"),
        (f"{ASK} --bounds height=0:50", "outside the stated bounds 0:50"),
        (f"{ASK} --bounds height=100:0", "lower end must be below"),
        (f"{ASK} --bounds 0:100", "must read NAME=LOW:HIGH"),
        (f"{ASK} --bounds height=2024-13-01:2024-12-31", "or two days such as 2024-01-31"),
        (f"{ASK} --bounds height=0001-01-01:2024-12-31", "of the years 1700 to 2200"),
        (f"{ASK} --bounds height=2024-01-01:2024-12-31", "row 1: not a date such as 2024-01-31"),
        (f"{ASK} --bounds dose=0:100", "names 'dose'"),
        (f"{MEAN} height=0:90", "'height' twice"),
        (f"{ASK} --bounds height=0:5e-324", "high - low must lie between"),
        ("--statistic gini-mean-difference --columns age --bounds age=0:1", "'age' is missing"),
        (
            "--statistic gini-mean-difference --columns colour --bounds colour=0:1",
            "row 1: not a finite number; correct or leave",
        ),
        (f"{MEAN} --columns height dose", "takes 1 --columns, not 2"),
        ("--statistic kendall --columns height height --bounds height=0:100", "a column twice"),
        (
            "--statistic kendall --columns height dose --bounds height=0:100 dose=0:1 --bins 65",
            "at most 64",
        ),
        (
            "--statistic auc --columns height colour --bounds height=0:100",
            "row 1: none of the stated values 0, 1",
        ),
        (
            "--statistic auc --columns height label --bounds height=0:100 --positive 0",
            "must differ",
        ),
        ("--statistic gini-diversity --columns colour", "needs --categories"),
        (
            "--statistic gini-diversity --columns colour --categories red,red,blue",
            "at least two different",
        ),
        (
            "--statistic gini-diversity --columns colour --categories red,green",
            "row 2: none of the stated values",
        ),
        ("--statistic gini-diversity --columns colour --categories red,blue --bins 4", "no --bins"),
        (f"{MEAN} --categories red,blue", "takes no --categories"),
    ],
)
def test_options(table, arguments, words, refuse):
    error = refuse("--csv", table, arguments)
    assert words in error
    assert "blue" not in error.replace("red, blue", "").replace("red,blue", "")


def test_an_answer_that_is_not_a_number_is_no_answer(tmp_path, estimate):
    # all messages name one class: at a budget this large randomized response changes nothing
    path = tmp_path / "one_class.csv"
    path.write_text("height,label\n" + "1,1\n" * 20)
    asked = "--statistic auc --columns height label --bounds height=0:2 --bins 2"
    how = "--protocol randomized-response --epsilon 700 --trust local"
    error = estimate("--csv", path, asked, how, code=2)
    assert "no finite estimate" in error


@pytest.mark.parametrize(
    "change",
    ["--statistic mode", "--epsilon one", "--unknown 3"],
)
def test_what_argparse_refuses(table, change, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["estimate", "--csv", table, *MEAN.split(), "--epsilon", "1", *change.split()])
    assert left.value.code == 2
    assert "77.1" not in capsys.readouterr().err


def test_no_command(capsys):
    both = ["sweep", "toy.py", "--device", "cuda", "--devices", "cpu,cpu"]
    for arguments in (
        [],
        ["guess"],
        ["estimate"],
        ["sweep"],
        both,
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        assert left.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_interruption(monkeypatch, table, capsys):
    def stop(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchdp.cli.estimate.estimate", stop)
    assert cli.main(["estimate", "--csv", table, *MEAN.split(), "--epsilon", "1"]) == 130
    assert capsys.readouterr().err == "torchdp estimate: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["estimate", "--help"],
        ["sweep", "--help"],
    ],
)
def test_help_imports_little(arguments):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    modules, *heavy = done.stdout.split()
    assert heavy == []
    assert int(modules) < 300


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"torchdp {torchdp.__version__}\n"
