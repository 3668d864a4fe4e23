"""The blocks of the README and of docs/ run as a new user would run them, from an empty
directory.
"""

import collections
import contextlib
import functools
import io
import re
import shlex
from pathlib import Path

import pytest

import torchdp
from torchdp import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    path.name: path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
README = PAGES["README.md"]
HEAD = r"candidate +predicted error\n"
# a page and one of its blocks: what it prints
PRINTED = {
    ("README.md", 0): HEAD
    + r"optimised strategy[\s\S]*exactly epsilon = (?:1|0\.99\d+)\n0\.3\d+ \+- 0\.00\d+, 95 %: .*\ntruth 0\.3538",
    ("audit.md", 0): r"epsilon >= 9\.\d+ [^\n]*\nepsilon >= [89]\.\d+ .*\nmechanism repeats itself",
    ("audit.md", 1): r"(epsilon >= 0\.\d+ at delta[^\n]*: not refuted \([^\n]*\n){3}",
    (
        "audit.md",
        2,
    ): r"epsilon >= [01]\.?\d* at delta = 1e-05[^\n]*\nepsilon >= 4\.194 at delta = 0",
    ("batches.md", 1): r"torch\.Size\(\[1000\]\) cover 0\.9[3-7]\d*\ntorch\.Size\(\[1000, 3\]\)",
    ("batches.md", 2): r"torch\.Size\(\[10000, 12\]\)\nTrue True True",
    ("batches.md", 3): r"torch\.Size\(\[20, 500\]\) True",
    ("batches.md", 4): r"torch\.Size\(\[20\]\) torch\.Size\(\[20\]\) True",
    (
        "budget.md",
        0,
    ): r"question 1, [\s\S]*question 3, .*asked before[\s\S]*left +of epsilon = 1, .*epsilon = 0\.1"
    r"[\s\S]*must be > 0 and at most what is left",
    (
        "budget.md",
        2,
    ): r"1 questions: sums 2\.3 squares 4\.9\n5 .*\n30 .*\n100 questions: sums 23\d\.\d squares 4\d",
    (
        "budget.md",
        1,
    ): r"(tensor\(.*\n){3}guarantee spends more[^\n]*\ncentral.*at most epsilon = 0\.8[\s\S]*Event",
    ("choosing.md", 0): HEAD
    + r"optimised strategy[\s\S]*local.*exactly.*\ncandidate.*\nsums, discrete Laplace +0\.0005[56]\d* +a curator"
    r"[\s\S]*\n +10000 users: 0\.02.*\n.*0\.00",
    (
        "choosing.md",
        1,
    ): r"local: .*, error 0\.0\d*; local diff.*\nshuffle: .*, error 0\.000\d*; shuffle diff.*\n"
    r"curator: .*, error 0\.000\d*; central diff",
    ("choosing.md", 2): HEAD + r"[\s\S]*\(tensor[\s\S]*torch\.Size\(\[9, 9\]\)",
    ("choosing.md", 3): r"True\n$",
    ("choosing.md", 4): r"8 bins: at most 0\.\d+\n16 bins[\s\S]*64 bins: at most 0\.\d+\n$",
    ("cluster.md", 0): r"(tensor\(0\.9[34].*\n){2}$",
    ("densities.md", 0): r"candidate[\s\S]* waves[\s\S]*at most epsilon = 1, delta = 1e-06",
    (
        "densities.md",
        1,
    ): r"0\.2703\d*\n5\.\d+ .*at most epsilon = 1, delta = 1e-06[\s\S]*tensor[\s\S]*\n4\.\d+\n",
    ("batches.md", 0): r"tensor\(\[\[3\.7\d+.*\n[\s\S]*float64\)\n3\.73\d*\n"
    r".*epsilon\[1\] must be a finite number > 0",
    ("means.md", 0): r"tensor\(57\.0*, .*tensor\(57\.[\s\S]*central",
    ("means.md", 1): r"tensor",
    ("means.md", 2): r"tensor[\s\S]*tensor[\s\S]*tensor",
    ("norms.md", 0): r"tensor\(2\.1114, dtype=torch\.float64\)",
    ("norms.md", 1): r"tensor\(3\.89\d+, .*\ntensor\(0\.00",
    ("queries.md", 0): HEAD + r"optimised strategy[\s\S]*local differential privacy, exactly",
    ("queries.md", 1): r"(LocalOracle [\s\S]*?ShuffledQueries [\s\S]*?CentralLaplace [\s\S]*?){3}",
    ("queries.md", 2): r"0\.0092\d*\n0\.0106\d*\n0\.00028\d*\n0\.0023\d*\n",
    ("queries.md", 3): r"linear-transform.*\ntensor\(1\.000.*\ntensor\(1\.25",
    (
        "queries.md",
        4,
    ): r"tensor[\s\S]*local differential privacy, .*epsilon = (4|3\.9\d*)\ntensor\(0\.[5-8]",
    (
        "queries.md",
        5,
    ): r"all 16 held 0\.5\d+, width 0\.0036\d\nall 16 held 0\.9[56]\d, width 0\.0053\d\n",
    (
        "release.md",
        0,
    ): r"\d+ bytes from three users\n5000 users; 8 intervals; local differential privacy, exactly",
    # tests/cli/test_sweep_command.py runs its sweep
    ("sweeps.md", 0): r"$",
    ("table.md", 0): r" +value +standard_error +low +high\ntown +\nBasel( +0\.\d+){4}\nBern",
    ("table.md", 1): r"local differential privacy, at most epsilon = 1",
    ("table.md", 2): r"[\s\S]*vectors, PrivUnit",
    ("table.md", 3): r"tensor\(0\.[56]\d+, dtype=torch\.float64\) \(tensor",
    (
        "table.md",
        4,
    ): r"0\.[78]\d of the others are right; central differential privacy, at most epsilon = 2",
    ("training.md", 0): HEAD
    + r"(Poisson|cyclic|fixed)[\s\S]*central differential privacy, at most epsilon = ",
    ("training.md", 1): r"\d+\.\d+ central differential privacy, at most epsilon = 4",
    ("training.md", 2): r"6 central differential privacy, at most epsilon = [12][\s\S]*\nTrue",
    ("training.md", 4): r"6 central differential privacy, epsilon = 2, ",
    ("training.md", 3): r"True tensor\(9\.93[\s\S]*tensor\(\[",
}
# pages whose blocks follow one another: what all of them print
TOLD = {
    "corrections.md": r"1\.0\d* 0\.649\d+ at p = inf, where[\s\S]*\n1\.2\d+ where Theorem 64 claims at least 1\.2\d+\n"
    r"1\.0 loses 0\.0017[\s\S]*4\.0 loses 0\.0522\d* claimed 0\.024 [\s\S]*1000000 users[^\n]* 2368\.\d+\n"
    r"[\s\S]*attained 771122\d+\.\d+\n[\s\S]* = 1 logarithm 0\.0\n[\s\S]*\n10000\.0 84\.07\d+\n"
    r"answers to W = \(1, 1\): \{Fraction\(1, 1\)\}[\s\S]*width 1e-06[^\n]* 8e-06\nq_v\(mu_v\): \[1\. +0\.175\]"
    r"[\s\S]*\n100 3\.3\d+ with m more: 0\.43[\s\S]*\n1000000 383\.\d+ with m more: 0\.49\d+\n"
    r"1713 users, beta = 0\.01[^\n]*0\.20\d+\n2303 users[^\n]*0\.46\d+\n"
    r"Lemma 3\.3[^\n]* 0\.00336\d* [\s\S]*true epsilon 0\.5403\d* for 0\.5\n[^\n]* 689\d+\.\d+\n[\s\S]*argument -"
    r"[\s\S]*p is d\^4 alpha\^-6\n3 1 100 100000 24\.024\n[\s\S]* 80\.016\n[\s\S]*"
    r"mean 1/2 of 1\n[\s\S]*: 3 3\nepsilon_0 [^\n]* 0\.98925\d+\n[\s\S]*"
    r"k = 16 users 400 MSE: public signs 0\.1\d* unary 0\.00\d*\n[^\n]*signs 0\.1\d* unary 0\.[789]\d*\n"
    r"w\^2 at least 67\.\d+ and r sigma\^2 of noise 649\d\.\d+\n",
    "tasks.md": r" +value[\s\S]*tensor\([\s\S]*median +1(69\.[5-9]|70\.[0-4])[\s\S]*Basel mean +(169\.9|170\.[01])"
    r"[\s\S]*torch\.Size\(\[32, 32\]\)[\s\S]*word 1 +7\d\d\d[\s\S]*at most epsilon = 0\.97[\s\S]*"
    r"0\.(8[5-9]|9\d) of the others are right",
    "sums.md": r"tensor\(1\.00\d+,[\s\S]*at most epsilon = 0\.5, delta = 1e-06\n"
    r"(.* None (\w{4}-){15}\w{4}\n){5}tensor\(\[0\.\d*, 0\.\d*\], .*\ntensor\(\[",
    "relaxation.md": r"tensor\(1\.70[\s\S]*median 0\.0[1-4]\d* 0\.0[5-9]\d*\n[\s\S]*1329336000 tensor\(1771\.31[\s\S]*"
    r"torch\.Size\(\[2, 8\]\) \d+\.\d+\n",
    # tests/protocol/test_extending.py
    "extending.md": "",
    "story_survey.md": r"optimised strategy.*\n +1000 people[\s\S]* byte a person; local[^\n]* exactly epsilon = 2\n"
    r"\[10669, 9331\]\nclearest difference -?0\.\d+ .*\n\d+% of[\s\S]*median between 1\d\d and 1\d\d, truly 139\n"
    r"tau 0\.[234]\d+, .* truly 0\.317\n.*at most epsilon = 4",
    "story_federated.md": r"candidate.*\n128 waves, PoissonSum  0\.0011[\s\S]*\n96 waves[^\n]* 0\.006[\s\S]*shuffle"
    r"[\s\S]*10000 phones; shuffle[\s\S]*epsilon = 1\.0: off by 0\.001\d [\s\S]*epsilon = 0\.1: off by 0\.00\d+ [\s\S]*"
    r"rounding: 0\.0009\nprivacy: 0\.0006\n9\d\.\d% right",
    "from_opacus.md": r"Opacus: [12]\.\d\d\ncentral.*at most epsilon = 2, [\s\S]*\nnoise multiplier "
    r"(0\.99|1\.0[01])\n10 steps are left\n",
    "lora.md": r"\{.*\}\n2496 numbers trained\nloss on unseen source: 2\.[56]\d before, 2\.[234]\d after\n"
    r"central[^\n]*at most epsilon = 4, [\s\S]*\n30 steps are spent\n",
    "story_training.md": HEAD
    + r"cyclic Poisson, 8 bands +\d\.\d+ [\s\S]*DP-SGD 0\.8\d, the best plan 2[\s\S]*"
    r"DP-SGD: [89]\d\.\d% to [89]\d\.\d% of 297[\s\S]*\ncentral differential privacy, at most epsilon = 8",
}


def blocks(language, page="README.md"):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)
    return [block for name, block in fenced if name == language]


def runnable(page):
    return blocks("python", page) if page in PAGES else []


def estimates(page):
    """The page's ``torchdp estimate`` and ``plan`` commands, a line each."""
    text = "".join(blocks("", page)) if page in PAGES else ""
    lines = text.replace("\\\n", " ").splitlines()
    return [
        " ".join(line.split()) for line in lines if re.match(r"\s*torchdp (estimate|plan)", line)
    ]


def test_every_block_is_run():  # in any form and on any page: test_blocks.py
    count = {page: len(blocks("python", page)) for page in PAGES}
    assert {(page, i) for page in PAGES for i in range(count[page]) if page not in TOLD} == set(
        PRINTED
    )


@pytest.mark.parametrize(("page", "number"), PRINTED)
def test_python_blocks(page, number, tmp_path, monkeypatch, brief):
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(blocks("python", page)[number], page, "exec"), {"__name__": "__main__"})
    assert re.match(PRINTED[page, number], output.getvalue()), output.getvalue()
    # digits of noise differ, and no word
    for shown in blocks("text", page)[:1] if number == 0 else ():
        said = [
            re.sub(r"\d{3,}(?!\.)", "#", text).splitlines() for text in (shown, output.getvalue())
        ]
        assert said[0] == said[1], output.getvalue()


# pages of models that take half a minute or more
SLOW = {"from_opacus.md", "lora.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else ())
        for page in TOLD
        if TOLD[page]
    ],
)
def test_stories(page, tmp_path, monkeypatch, brief):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for block in blocks("python", page):
            exec(compile(block, page, "exec"), names)
    assert re.match(TOLD[page], output.getvalue()), output.getvalue()


def test_a_loop_of_opacus_becomes_one_of_ours_by_five_new_lines_at_most():
    loops = blocks("python", "from_opacus.md")[1:]
    lines = [collections.Counter(map(str.strip, loop.splitlines())) for loop in loops]
    # theirs and ours in turn
    new = [(b - a).total() for a, b in zip(lines[::2], lines[1::2], strict=True)]
    assert len(new) >= 10 and all(0 < count <= 5 for count in new), new


@pytest.mark.parametrize("page", [page for page in PAGES if estimates(page)])
def test_estimate_command(page, tmp_path, monkeypatch, capsys, request):
    commands = estimates(page)
    request.getfixturevalue("brief" if page == "README.md" else "quick")
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{150 + i % 50},{1000 * (i % 70)},{'ab'[i % 2]}" for i in range(200))
    Path("users.csv").write_text("height,income,town\n" + rows + "\n")
    for command in commands:
        assert cli.main(shlex.split(command)[1:]) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in re.findall(r"(?:height|income)(?==)", command)), (
            printed
        )
    assert "median of height" in printed or page != "README.md"


def test_the_words_of_the_field_are_calls_or_packages():
    """A row for each word: a call that there is, or who else does it."""
    rows = [row for row in PAGES["words.md"].splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 60
    assert all("`" in row or "](" in row or "not here" in row or "see " in row for row in rows)
    asked = "top-k, exponential mechanism, audit, k-means, logistic, noisy max, hyperparameter"
    assert all(any(word in row.split("|")[1] for row in rows) for word in asked.split(", "))
    for call in re.findall(r"`((?:\w+\.)+\w+)", " ".join(rows)):
        package, *names = call.split(".")
        if package in torchdp.__dir__() and package != "training":
            assert functools.reduce(getattr, names, getattr(torchdp, package)), call


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    named = set(
        re.findall(
            r"(?:experiments|tests|kernels|torchdp|docs)/[\w/.]*\w|run\.py|CONTRIBUTING\.md",
            PAGES[page],
        )
    )
    assert all((ROOT / name).exists() for name in named), named
    for link in (
        re.findall(r"\]\(([\w/.]+\.md)", PAGES[page]) if page == "README.md" else ()
    ):  # others: test_site.py
        assert (ROOT / link).exists(), link


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_the_test_command_is_what_ci_runs():
    assert "python3 run.py test" in blocks("")[0]
    assert "python3 run.py test" in (ROOT / ".ci/run").read_text()
