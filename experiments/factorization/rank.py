"""What rank costs: projection, truncation and training under a rank cap, and the rank of a pairwise protocol.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 11 to 13 (no figures there).
Command:  python experiments/factorization/rank.py
Expected: at equal rank and distortion, training has the least norm, and truncation beats the projection in both; the
    rank that Lemma 12 guarantees is above the matrix's own for prefix sums 64. Under OneMessage a smooth kernel's error
    falls with the rank chosen by predicted error, and again (averaged over the two histograms) with points and weights
    trained on it.
Pairwise errors are bounds on the mean squared error: variance at that histogram + the bias's largest entry, squared.
Time: about 20 seconds on one core; --smoke in seconds.
"""

import argparse

import torch
from torch import Tensor

from torchdp import pairwise, workloads
from torchdp.factorization import (
    SignatureRelaxation,
    factorize,
    jl_rank,
    johnson_lindenstrauss,
    low_rank,
    truncate,
)
from torchdp.factorization.rank import measure

LENGTH = 0.15  # of the Gaussian kernel on [0, 1]
FIRST, LAST = 4.0, 4000.0  # sharpness of the smoothed maximum


def reductions(smoke: bool) -> None:
    k, ranks = (8, (4,)) if smoke else (64, (4, 8, 16, 32))
    W = workloads.prefix(k).dense()
    full = factorize(W, tol=1e-4)
    generator = torch.Generator().manual_seed(0)
    guaranteed = jl_rank(k, k, 0.5)
    print(
        f"prefix {k}: gamma_2 = {float(full.certificate.upper):.4f}; Lemma 12 at alpha = gamma_2/2: rank {guaranteed}"
    )
    print(f"{'rank':<6}{'how':<26}{'distortion':>12}{'norm':>10}")
    for rank in ranks:
        U, S, Vh = torch.linalg.svd(W)
        root = S[:rank].sqrt()
        cut = truncate(full, rank)
        found = {
            "projection": johnson_lindenstrauss(full, rank, generator=generator),
            "truncation, no weights": measure(W, U[:, :rank] * root, root[:, None] * Vh[:rank]),
            "truncation, dual weights": cut,
            "trained, same distortion": low_rank(W, rank, float(cut.distortion), steps=50 if smoke else 1000),
        }
        for name, each in found.items():
            print(f"{rank:<6}{name:<26}{float(each.distortion):>12.4f}{float(each.norm):>10.4f}", flush=True)


def bound(
    statistic: pairwise.PairwiseStatistic, kernel: Tensor, histograms: Tensor, n: int, epsilon: float
) -> Tensor:
    """Variance at each histogram + the largest entry of the bias, squared."""
    protocol = pairwise.OneMessage(statistic, epsilon)
    bias = float((statistic.kernel(statistic.form) - kernel).abs().max())
    return torch.tensor([protocol.predicted_mse(h, n) + bias**2 for h in histograms], dtype=torch.float64)


def statistic_of(right: Tensor, weights: Tensor, constant: float) -> pairwise.PairwiseStatistic:
    form = pairwise.Form(weights.detach().clone(), constant)
    return pairwise.PairwiseStatistic("rank", right.detach().mT.contiguous(), form, pairs=pairwise.Pairs.ALL)


def truncated(base: pairwise.PairwiseStatistic, rank: int) -> pairwise.PairwiseStatistic:
    """The coordinates with the largest root mean square over the types."""
    kept = base.points.square().mean(0).argsort(descending=True)[:rank]
    form = pairwise.Form(base.form.weights[kept], base.form.constant)
    return pairwise.PairwiseStatistic("rank", base.points[:, kept].contiguous(), form, pairs=pairwise.Pairs.ALL)


def trained(
    W: Tensor, rank: int, histograms: Tensor, n: int, threshold: float, steps: int
) -> tuple[Tensor, Tensor]:
    """(right, weights) of W, trained on OneMessage's leading variance, averaged over the histograms, + bias squared."""
    module = SignatureRelaxation(W, rank)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        sharpness = FIRST * (LAST / FIRST) ** (step / steps)
        left, right = module()
        v = smooth_max(right.square().sum(0), sharpness) / threshold**2
        first = 4 * v * (module.weights * (histograms @ right.mT)).square().sum(1) / n
        second = 2 * v**2 * module.weights.square().sum() / n**2
        worst = smooth_max((W - left @ right).abs().flatten(), sharpness)
        optimizer.zero_grad()
        (first.mean() + second + worst.square()).log().backward()
        optimizer.step()
        schedule.step()
    _, right = module()
    return right, module.weights


def smooth_max(values: Tensor, sharpness: float) -> Tensor:
    return ((sharpness * values.clamp_min(1e-12).log()).logsumexp(0) / sharpness).exp()


def protocol_rank(smoke: bool) -> None:
    k, cases = (8, [(0.5, 1000)]) if smoke else (32, [(1.0, 1000), (0.5, 1000), (0.5, 10_000), (0.25, 2000)])
    x = torch.linspace(0, 1, k, dtype=torch.float64)
    kernel = torch.exp(-(x[:, None] - x).square() / (2 * LENGTH**2))
    peaked = torch.exp(-((x - 0.3) / 0.12).square() / 2)
    histograms = torch.stack([peaked / peaked.sum(), torch.full_like(peaked, 1 / k)])
    base = pairwise.from_kernel(kernel, tol=1e-4, pairs=pairwise.Pairs.ALL)
    W = kernel - base.form.constant
    print(f"\nGaussian kernel on {k} points, OneMessage: bound on the error at a peaked and at the flat histogram")
    print(f"{'epsilon':<9}{'n':<8}{'how':<26}{'rank':>5}{'peaked':>12}{'flat':>12}")
    for epsilon, n in cases:
        threshold = pairwise.OneMessage(base, epsilon).randomizer.tau.threshold
        cuts = [truncated(base, rank) for rank in range(1, base.dim + 1)]
        least = min(cuts, key=lambda cut: float(bound(cut, kernel, histograms, n, epsilon).mean()))
        steps = 100 if smoke else 1000
        right, weights = trained(W, least.dim, histograms, n, threshold, steps)
        rows = {"from_kernel": base, "rank by predicted error": least}
        rows["trained at that rank"] = statistic_of(right, weights, base.form.constant)
        for name, each in rows.items():
            peaked_error, flat_error = bound(each, kernel, histograms, n, epsilon).tolist()
            print(
                f"{epsilon:<9g}{n:<8}{name:<26}{each.dim:>5}{peaked_error:>12.3e}{flat_error:>12.3e}", flush=True
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reductions(arguments.smoke)
    protocol_rank(arguments.smoke)
