"""``torchdp doctor`` says what is here and which kernels agree; a kernel that fails is named, and
why.
"""

import pytest
import torch

from torchdp import cli
from torchdp.cli import doctor
from torchdp.kernels.dispatch import Kernel
from torchdp.kernels.dispatch.every import KERNELS


def told(capsys, *arguments):
    """The exit code, and what was printed."""
    code = cli.main(["doctor", *arguments])
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def automatic(monkeypatch):
    monkeypatch.delenv("TORCHDP_KERNELS", raising=False)


def test_on_a_cpu_the_references_are_used(capsys):
    code, page = told(capsys, "--device", "cpu")
    assert code == 0
    assert f"torch {torch.__version__.partition('+')[0]}" in page
    assert "cpu        " in page
    assert "[1] fused kernels need a CUDA device" in page
    assert page.count("reference [1]") == len(KERNELS)


def test_verdicts_are_said_and_a_kernel_that_fails_is_the_exit_code(capsys, monkeypatch):
    # restored afterwards
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(Kernel, "fault", lambda self, device: None)
    code, page = told(capsys, "--interpret")
    assert code == 0
    assert "in Triton's interpreter" in page
    assert page.count("fused") == len(KERNELS)
    said = "does not agree with its reference"
    monkeypatch.setattr(Kernel, "fault", lambda self, device: said if self is KERNELS[2] else None)
    code, page = told(capsys, "--interpret")
    assert code == 1
    assert page.count("reference [1]") == 1
    assert f"[1] {said}" in page


def test_a_kernel_that_kills_its_context_is_named(monkeypatch):
    def lost(*_):
        raise RuntimeError("response_counts.counts has killed the CUDA context of cuda:0")

    monkeypatch.setattr(Kernel, "fault", lost)
    assert "has killed" in doctor.fault(KERNELS[2], torch.device("cuda:0"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device must be a device of this machine"),
        (["--interpret", "--device", "cuda"], "--interpret runs on the CPU"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    assert cli.main(["doctor", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("torchdp doctor: ")
    assert message in said
    assert said.count("\n") == 1
