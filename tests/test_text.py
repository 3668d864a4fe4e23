"""Text of others is neither misread nor obeyed; no message advises what does not work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdp import factorization, privacy, text
from torchdp.privacy import sampling
from torchdp.privacy.composition import gaussian_profile
from torchdp.simulate import plots

ROOT = Path(__file__).parents[1]


def test_numbers_are_of_plain_digits():
    assert text.number(" -1.5e3 ") == -1500
    assert text.integer("-7") == -7
    assert text.number("inf") == np.inf
    for bad in ("1_75", "\uff11\uff17\uff15", "\u0663", "", "1,5", "0x1", "1e"):
        for read in (text.number, text.integer):
            with pytest.raises(ValueError):
                read(bad)


def test_what_is_shown_is_one_line_of_printable_characters():
    assert text.shown("M\xfcller, Zo\xeb \u4e2d") == "M\xfcller, Zo\xeb \u4e2d"
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert text.shown(every).isprintable()
    assert text.shown("\x1b[31m\n\u202e\udcff") == r"\x1b[31m\n\u202e\udcff"


def test_no_message_names_a_distribution_that_no_index_has():
    pages = [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
    pages += [
        path
        for folder in ("torchdp", "kernels", "experiments")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    wrong = [
        path for path in pages if re.search(r"pip install (-\S+ )*'?torchdp\b", path.read_text())
    ]
    assert not wrong
    assert pages


# regular expressions of words for which the field has a term: docs/notation.md
DIALECT = (
    "errs", "err less", "nobody", "laws?", "bits tell", "off by", "people who", "hides? less", "harder to hide",
    "speaks? of", "rooms?", "takes? part", "private to the last bit", "told apart", "attained", "in earnest",
    "beforehand", "goes on where", "mix people", "last one's", "without a message", "what may still be spent",
    "types of users", "numbers of memory", "battery", "of one's own", "that no unbiased one is below",
)  # fmt: skip


def dialect(text):
    return re.findall(rf"(?i)[^.]{{0,40}}\b(?:{'|'.join(DIALECT)})\b", " ".join(text.split()))


def test_pages_use_the_terms_of_the_field():
    # its instances have names
    pages = [path for path in ROOT.glob("docs/*.md") if path.name != "theorems.md"]
    for page in pages:
        # no code and no address
        prose = re.sub(r"(?ms)^```.*?^```|`[^`]*`|\]\([^)]*\)", " ", page.read_text())
        assert not dialect(prose), page.name
    assert pages
    assert dialect("a law of large numbers")
    assert dialect("This protocol errs less.")


ABSENT = {
    "cvxpy": lambda: factorization.reference(torch.eye(2)),
    "dp-accounting": lambda: privacy.composed_delta([gaussian_profile(10.0)], 2, 1.0),
    "dp-accounting ": lambda: sampling.sampled_guarantee(1.0, 0.1, 10, 1e-6),
    "matplotlib": plots.subplots,
}


@pytest.mark.parametrize("package", ABSENT)
def test_a_missing_package_is_named_with_the_command(package, monkeypatch):
    absent = ("cvxpy", "dp_accounting.pld", "dp_accounting.pld.pld_pmf")
    for name in (*absent, "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=f"needs {package.strip()} .*: pip install {package.strip()}"
    ):
        ABSENT[package]()


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("--help", "1"), ("report absent", "")],
)
def test_a_reader_who_leaves_ends_a_command_quietly(command, unbuffered):
    """As ``torchdp --help | head`` does; an error is still said."""
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "torchdp", *command.split()]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    os.close(write)
    if "absent" in command:
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "absent" in done.stderr
    else:
        assert done.stderr == ""
        assert done.returncode in (text.CLOSED, 0)
