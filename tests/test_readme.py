"""The README's own blocks run as a new user would run them, from an empty directory."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from torchdp import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = []
    for block in blocks("python"):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
        printed.append(output.getvalue())
    assert "local differential privacy, at most epsilon = 1" in printed[0]
    assert "one message" in printed[1]
    assert printed[2].startswith("optimised strategy") and "local differential privacy, exactly" in printed[2]
    assert "tensor(2.1114, dtype=torch.float64)" in printed[3]
    assert printed[4].startswith("shuffle differential privacy, at most epsilon = 1, delta = 1e-06")
    assert re.match(r"tensor\(1\.00\d+,", printed[5]) and "at most epsilon = 0.5, delta = 1e-06" in printed[5]
    assert re.match(r"tensor\(57\.0*, .*tensor\(57\.", printed[6]) and "central" in printed[6]


def test_estimate_command(tmp_path, monkeypatch, capsys):
    commands = [
        line
        for block in blocks("")
        for line in block.replace("\\\n", " ").splitlines()
        if "torchdp estimate" in line
    ]
    assert commands
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{150 + i % 50},{1000 * (i % 70)}" for i in range(200))
    Path("users.csv").write_text("height,income\n" + rows + "\n")
    for command in commands:
        assert cli.main(shlex.split(command)[1:]) == 0
        assert "Kendall's tau-a of height and income" in capsys.readouterr().out


def test_every_file_that_the_readme_names_exists():
    named = set(re.findall(r"(?:experiments|tests|kernels|torchdp)/[\w/.]*\w|run\.py|CONTRIBUTING\.md", README))
    assert named and all((ROOT / name).exists() for name in named), named


def test_the_test_command_is_what_ci_runs():
    assert "python3 run.py test" in blocks("")[0] and "python3 run.py test" in (ROOT / ".ci/run").read_text()
