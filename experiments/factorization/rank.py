"""What rank costs: projection, truncation and training under a rank cap.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 11 to 13 (no figures there).
Command:  python experiments/factorization/rank.py
Expected: at equal rank and distortion, training has the least norm, and truncation beats the
projection in both; the
    rank that Lemma 12 guarantees is above the matrix's own for prefix sums 64.
Output: results/factorization/rank/reductions.csv.
Artifact: Ghazi et al. (2023) | Lemmas 11 to 13
Status: negative: projection loses to truncation and training
Time: about ten seconds on one core; --smoke in seconds.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch

from torchdp import workloads
from torchdp.factorization import (
    LowRankRelaxation,
    factorize,
    jl_rank,
    johnson_lindenstrauss,
    train,
    truncate,
)
from torchdp.simulate import Experiment


@dataclass(frozen=True)
class Config:
    k: int = 64
    ranks: tuple[int, ...] = (4, 8, 16, 32)
    steps: int = 1000
    tol: float = 1e-2


def measure(config, report):
    torch.set_num_threads(1)
    k = config.k
    W = workloads.prefix(k).dense()
    full = factorize(W, tol=1e-4)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    upper, guaranteed = float(full.certificate.upper), jl_rank(k, k, 0.5)
    report.say(
        f"prefix {k}: gamma_2 = {upper:.4f}; Lemma 12 at alpha = gamma_2/2: rank {guaranteed}"
    )
    for rank in config.ranks:
        U, S, Vh = torch.linalg.svd(W)
        root = S[:rank].sqrt()
        cut = truncate(full, rank)
        structure, alpha = partial(LowRankRelaxation, rank=rank), float(cut.certificate.residual)
        learned = train(W, structure=structure, alpha=alpha, tol=config.tol, steps=config.steps)
        found = {
            "projection": johnson_lindenstrauss(full, rank, generator=generator),
            "truncation, no weights": replace(
                full, left=U[:, :rank] * root, right=root[:, None] * Vh[:rank]
            ),
            "truncation, dual weights": cut,
            "trained, same distortion": learned,
        }
        for name, each in found.items():
            distortion = (W - each.left @ each.right).abs().max()
            report.row("reductions", rank=rank, how=name, distortion=distortion, norm=each.norm)


EXPERIMENT = Experiment(measure, Config(), Config(8, (4,), 100, 0.1))

if __name__ == "__main__":
    EXPERIMENT.main()
