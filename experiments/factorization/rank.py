"""What rank costs: projection, truncation and training under a rank cap, and the rank of a pairwise protocol.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 11 to 13 (no figures there).
Command:  python experiments/factorization/rank.py
Expected: at equal rank and distortion, training has the least norm, and truncation beats the projection in both; the
    rank that Lemma 12 guarantees is above the matrix's own for prefix sums 64. With one message a smooth kernel's
    error falls with the rank chosen by predicted error, and again (averaged over the two histograms) with points and
    weights trained on it.
Pairwise errors are bounds on the mean squared error: variance at that histogram + the bias's largest entry, squared.
Output: results/factorization/rank/reductions.csv and protocol.csv.
Artifact: Ghazi et al. (2023) | Lemmas 11 to 13
Status: negative: projection loses to truncation and training
Time: about 20 seconds on one core; --smoke in seconds.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchdp import pairwise, workloads
from torchdp.factorization import (
    LowRankRelaxation,
    factorize,
    jl_rank,
    johnson_lindenstrauss,
    train,
    truncate,
)
from torchdp.queries import LocalFactorization
from torchdp.randomizers import PrivUnit
from torchdp.simulate import Experiment, Report

LENGTH = 0.15  # of the Gaussian kernel on [0, 1]
FIRST, LAST = 4.0, 4000.0  # sharpness of the smoothed maximum


@dataclass(frozen=True)
class Config:
    k: int = 64
    ranks: tuple[int, ...] = (4, 8, 16, 32)
    steps: int = 1000
    tol: float = 1e-2
    types: int = 32
    cases: tuple[str, ...] = ("1,1000", "0.5,1000", "0.5,10000", "0.25,2000")  # epsilon, n


FULL = Config()
SMOKE = Config(8, (4,), 100, 0.1, 8, ("0.5,1000",))


def reductions(config: Config, report: Report) -> None:
    k = config.k
    W = workloads.prefix(k).dense()
    full = factorize(W, tol=1e-4)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    upper, guaranteed = float(full.certificate.upper), jl_rank(k, k, 0.5)
    report.say(f"prefix {k}: gamma_2 = {upper:.4f}; Lemma 12 at alpha = gamma_2/2: rank {guaranteed}")
    for rank in config.ranks:
        U, S, Vh = torch.linalg.svd(W)
        root = S[:rank].sqrt()
        cut = truncate(full, rank)
        structure, alpha = partial(LowRankRelaxation, rank=rank), float(cut.certificate.residual)
        learned = train(W, structure=structure, alpha=alpha, tol=config.tol, steps=config.steps)
        found = {
            "projection": johnson_lindenstrauss(full, rank, generator=generator),
            "truncation, no weights": replace(full, left=U[:, :rank] * root, right=root[:, None] * Vh[:rank]),
            "truncation, dual weights": cut,
            "trained, same distortion": learned,
        }
        for name, each in found.items():
            distortion = (W - each.left @ each.right).abs().max()
            report.row("reductions", rank=rank, how=name, distortion=distortion, norm=each.norm)


def bound(
    statistic: pairwise.PairwiseStatistic, kernel: Tensor, histograms: Tensor, n: int, epsilon: float
) -> Tensor:
    """Variance at each histogram + the largest entry of the bias, squared."""
    protocol = LocalFactorization.of(statistic, epsilon)
    bias = float((statistic.kernel(statistic.form) - kernel).abs().max())
    return torch.tensor([float(protocol.predicted_mse(h * n)) + bias**2 for h in histograms], dtype=torch.float64)


def statistic_of(right: Tensor, weights: Tensor, constant: float) -> pairwise.PairwiseStatistic:
    form = pairwise.Form(weights.detach().clone(), constant)
    return pairwise.PairwiseStatistic("rank", right.detach().mT.contiguous(), form, pairs=pairwise.Pairs.ALL)


def truncated(base: pairwise.PairwiseStatistic, rank: int) -> pairwise.PairwiseStatistic:
    """The coordinates with the largest root mean square over the types."""
    kept = base.points.square().mean(0).argsort(descending=True)[:rank]
    form = pairwise.Form(base.form.weights[kept], base.form.constant)
    return pairwise.PairwiseStatistic("rank", base.points[:, kept].contiguous(), form, pairs=pairwise.Pairs.ALL)


def trained(
    W: Tensor, rank: int, histograms: Tensor, n: int, variance: float, steps: int
) -> tuple[Tensor, Tensor]:
    """(right, weights) of W, trained on its leading variance, averaged over the histograms, + bias squared."""
    module = LowRankRelaxation(W, rank, symmetric=True)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        sharpness = FIRST * (LAST / FIRST) ** (step / steps)
        left, right = module()
        v = variance * smooth_max(right.square().sum(0), sharpness)
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


def protocol_rank(config: Config, report: Report) -> None:
    k = config.types
    x = torch.linspace(0, 1, k, dtype=torch.float64)
    kernel = torch.exp(-(x[:, None] - x).square() / (2 * LENGTH**2))
    peaked = torch.exp(-((x - 0.3) / 0.12).square() / 2)
    histograms = torch.stack([peaked / peaked.sum(), torch.full_like(peaked, 1 / k)])
    base = pairwise.from_kernel(kernel, tol=1e-4, pairs=pairwise.Pairs.ALL)
    W = kernel - base.form.constant
    report.say(
        f"\nGaussian kernel on {k} points, one message: bound on the error at a peaked and at the flat histogram"
    )
    for epsilon, n in ((float(a), int(b)) for a, b in (case.split(",") for case in config.cases)):
        cuts = [truncated(base, rank) for rank in range(1, base.dim + 1)]
        least = min(cuts, key=lambda cut: float(bound(cut, kernel, histograms, n, epsilon).mean()))
        variance = float(PrivUnit.unit_variance(least.dim, epsilon))
        right, weights = trained(W, least.dim, histograms, n, variance, config.steps)
        rows = {"from_kernel": base, "rank by predicted error": least}
        rows["trained at that rank"] = statistic_of(right, weights, base.form.constant)
        for name, each in rows.items():
            at_peaked, at_flat = bound(each, kernel, histograms, n, epsilon).tolist()
            report.row("protocol", epsilon=epsilon, n=n, how=name, rank=each.dim, peaked=at_peaked, flat=at_flat)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    reductions(config, report)
    protocol_rank(config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
