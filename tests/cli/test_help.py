"""--help imports nothing heavy, and little in all."""

import subprocess
import sys

import pytest

import torchdp
from torchdp import cli

SCRIPT = """
import contextlib, io, sys
from torchdp import cli
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
    cli.main(sys.argv[1:])
assert output.getvalue().startswith("usage: torchdp"), output.getvalue()
heavy = {"torch", "numpy", "scipy", "matplotlib", "cvxpy", "sklearn", "triton"}
print(len(sys.modules), *sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["estimate", "--help"], ["sweep", "--help"]])
def test_help_imports_little(arguments):
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    modules, *heavy = done.stdout.split()
    assert heavy == [] and int(modules) < 300


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"torchdp {torchdp.__version__}\n"
