"""Symmetric matrices as R^T J R."""

import pytest
import torch
from laws import overlap

from torchdp import workloads
from torchdp.factorization import factorize, signature_form

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def random_symmetric():
    W = torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return workloads.Workload("random", (W + W.T,))


def low_rank():
    W = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return workloads.Workload("low rank", (W @ torch.diag(torch.tensor([1.0, -1.0]).double()) @ W.T,))


KERNELS = [
    workloads.unequal(12),
    workloads.absolute_difference(10),
    workloads.absolute_difference(10, spacing=1 / 9),
    workloads.kendall(4, 5),
    workloads.auc(6),
    workloads.identity(3),
    random_symmetric(),
    low_rank(),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_guarantee_signature_form_of_kernels(kernel):
    W = kernel.dense()
    form = signature_form(kernel, tol=1e-5)
    R, J = form.right, torch.diag(form.signature)
    torch.testing.assert_close(R.T @ J @ R, W, rtol=0, atol=1e-9 * float(W.abs().max()))
    torch.testing.assert_close(form.left @ R, W, rtol=0, atol=1e-9 * float(W.abs().max()))
    assert form.signature.abs().eq(1).all()
    assert R.shape[0] == torch.linalg.matrix_rank(W)
    torch.testing.assert_close(R.square().sum(0).max(), form.certificate.upper, rtol=1e-8, atol=0)
    general = factorize(kernel, tol=1e-5).certificate
    torch.testing.assert_close(form.certificate.upper, general.upper, rtol=3e-5, atol=0)
    assert overlap(form.certificate, general)
