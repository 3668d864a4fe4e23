"""The same code on a CUDA device: values agree with the CPU's, laws with the predictions."""

import pytest
import torch
from torch.testing import assert_close

from torchdp import cli, pairwise, queries, randomizers, simulate, workloads
from torchdp.factorization import (
    approximate,
    factorize,
    factorize_product,
    gamma2,
    gamma2_dual,
    hard_instance,
    lipschitz_tree,
    signature_form,
    train,
    zeta,
)
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator

pytestmark = pytest.mark.gpu


def cuda_normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=keyed_generator(b"gpu")).cuda()


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("p", [2.0, 3.0, float("inf")])
def test_factorize_agrees_with_the_cpu(p, shift):
    W = cuda_normal(2, 9, 12)
    there = factorize(W, p, shift, tol=1e-06).certificate
    here = factorize(W.cpu(), p, shift, tol=1e-06).certificate
    assert there.upper.is_cuda
    assert there.gap.max() <= 1e-6
    # both stop within tol of the optimum
    assert_close(there.upper.cpu(), here.upper, rtol=3e-6, atol=0)


def test_prefix_signature_training_and_gamma2():
    certificate = factorize(workloads.prefix(64, device="cuda"), tol=1e-5).certificate
    # the value as certified elsewhere
    assert certificate.lower <= 2.1113687
    assert certificate.upper >= 2.1113667
    assert signature_form(workloads.kendall(8, 8, device="cuda")).certificate.gap <= 1e-3
    assert train(workloads.prefix(16, device="cuda")).certificate.gap <= 1e-5
    W = cuda_normal(5, 5).requires_grad_()
    gamma2(W).backward()
    assert W.grad.is_cuda
    assert torch.isfinite(W.grad).all()


def test_approximate_norms_duals_and_structure():
    W = workloads.prefix(16, device="cuda")
    # the second needs the semidefinite program
    found = approximate(W, torch.tensor([0.1, 0.6], device="cuda"))
    assert found.left.is_cuda
    assert found.certificate.gap.max() <= 1e-3
    assert zeta(W, 1, 2.0).certificate.gap <= 1e-3
    assert gamma2_dual(found.witness[0]).gap <= 1e-5
    assert hard_instance(W).samples(0.01, 1.0) == pytest.approx(
        hard_instance(workloads.prefix(16)).samples(0.01, 1.0)
    )
    assert factorize_product(workloads.kendall(8, 8, device="cuda")).certificate.gap <= 1e-3
    assert lipschitz_tree(torch.eye(5, dtype=torch.float64, device="cuda")).left.is_cuda


@pytest.mark.parametrize("kind", ["vectors", "twice", "subsets"])
def test_pairwise_protocols(kind):
    statistic = pairwise.absolute_difference(8).to("cuda")
    oracle = randomizers.SubsetSelection(8, 1.0)
    protocol = {
        "vectors": lambda: queries.LocalFactorization.of(statistic, 1.0),
        "twice": lambda: queries.Twice.of(statistic, 1.0),
        "subsets": lambda: queries.LocalOracle.of(statistic, oracle),
    }[kind]()
    counts = torch.tensor([50, 0, 10, 300, 20, 5, 100, 15], device="cuda")
    truth = float(statistic.exact(counts))
    types = torch.repeat_interleave(torch.arange(8, device="cuda"), counts)

    def squared_error(generator, size):
        drawn = protocol.sample_estimate(counts, generator=generator, sample_shape=(size,)).value
        return (drawn - truth).square()

    moments = simulate.run(squared_error, 20_000, 0, device="cuda", block_size=10_000).moments
    assert abs(moments.z_score(float(protocol.predicted_mse(counts)))) < 5
    assert protocol.estimate(
        types, noise=SeededNoise.of(keyed_generator(b"types", "cuda"))
    ).value.is_cuda


def test_the_doctor_finds_every_kernel_in_order(capsys):
    assert cli.main(["doctor"]) == 0
    assert "reference [" not in capsys.readouterr().out
