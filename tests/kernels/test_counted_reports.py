"""Reports that are counted as they are drawn: one law with the aggregate, and errors in words."""

import pytest
import torch

from torchdp.kernels import response_counts, unary_counts
from torchdp.noise import SeededNoise
from torchdp.randomizers import OptimizedUnaryEncoding, RandomizedResponse, SymmetricUnaryEncoding

KINDS = [RandomizedResponse, OptimizedUnaryEncoding, SymmetricUnaryEncoding]
COUNTS = torch.tensor([0, 1, 3, 7])
USERS = torch.arange(4).repeat_interleave(COUNTS)


@pytest.fixture
def fused(monkeypatch, device):
    """The device of the fused path, which is taken wherever it is."""
    monkeypatch.setenv("TORCHDP_KERNELS", "fused")
    monkeypatch.setattr("torchdp.kernels.dispatch.Kernel._trial", lambda *_: None)
    blocks = pytest.importorskip("torchdp.kernels.unary_counts.fused")
    # of the size that suits the interpreter
    monkeypatch.setattr(blocks, "WORDS", 1024)
    monkeypatch.setattr(blocks, "USERS", 1024)
    return device


def test_collecting_takes_the_fused_path_and_has_the_law_of_the_aggregate(fused):
    """Many users in a few calls: each count against its mean, in standard deviations; another
    epsilon is noticed.
    """
    x = USERS.repeat(300)
    held = torch.bincount(x, minlength=4)
    for kind in KINDS:
        oracle = kind(4, 1.0)
        noise = SeededNoise(3, fused)
        tally = oracle.collect(x.to(fused), noise=noise)
        assert oracle.check(tally).n == len(x)
        variances = oracle.workload_variance(torch.eye(4)) @ held.double()
        deviation = variances.sqrt()
        # the largest of many deviations, each of them normal
        assert ((oracle.totals(tally).cpu() - held) / deviation).abs().max() < 5.2
        wrong = kind(4, 0.3).totals(tally).cpu()
        # negative control: read with another epsilon
        assert ((wrong - held) / deviation).abs().max() > 5.2
        again = oracle.collect(x.to(fused), noise=noise)
        # a new key from the same noise
        assert not torch.equal(again["reports"], tally["reports"])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [16, 1024])
def test_collecting_on_a_gpu_counts_the_specifications_reports(kind, k):
    oracle = kind(k, 1.0)
    n = 3001
    x = torch.arange(n) ** 2 % k
    for dtype in (torch.int64, torch.int32, torch.int16):
        tally = oracle.collect(x.to("cuda", dtype), noise=SeededNoise(6, "cuda"))["reports"]
        key = SeededNoise(6, "cuda").kernel_key()
        wanted = (
            response_counts.reference.counts(x, k, oracle._step, key)
            if kind is RandomizedResponse
            else unary_counts.reference.tally(x, k, oracle.lost, oracle.off, key)
        )
        assert torch.equal(tally.cpu(), wanted)
