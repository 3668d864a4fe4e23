"""What rank costs: projection, and truncation with and without dual weights.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 11 to 13 (no figures there).
Command:  python experiments/factorization/rank.py
Expected: truncation beats the projection in distortion and in norm; the rank that Lemma 12
    guarantees is above the matrix's own for prefix sums 64.
Output: results/factorization/rank/reductions.csv.
Artifact: Ghazi et al. (2023) | Lemmas 11 to 13
Status: negative: projection loses to truncation
Time: seconds on one core, --smoke too.
"""

from dataclasses import dataclass, replace

import torch

from torchdp import workloads
from torchdp.factorization import (
    factorize,
    jl_rank,
    johnson_lindenstrauss,
    truncate,
)
from torchdp.simulate import Experiment


@dataclass(frozen=True)
class Config:
    k: int = 64
    ranks: tuple[int, ...] = (4, 8, 16, 32)


def measure(config, report):
    torch.set_num_threads(1)
    k = config.k
    W = workloads.prefix(k).dense()
    full = factorize(W, tol=1e-4)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    report.say(
        f"prefix {k}: gamma_2 = {float(full.certificate.upper):.4f}; "
        f"Lemma 12 at alpha = gamma_2/2: rank {jl_rank(k, k, 0.5)}"
    )
    U, S, Vh = torch.linalg.svd(W)
    root = S.sqrt()
    left = U * root
    right = root[:, None] * Vh
    for rank in config.ranks:
        cut = truncate(full, rank)
        found = {
            "projection": johnson_lindenstrauss(full, rank, generator=generator),
            "truncation, no weights": replace(full, left=left[:, :rank], right=right[:rank]),
            "truncation, dual weights": cut,
        }
        for name, factors in found.items():
            off = W - factors.left @ factors.right
            distortion = off.abs().max()
            report.row("reductions", rank=rank, how=name, distortion=distortion, norm=factors.norm)


EXPERIMENT = Experiment(measure, Config(), Config(8, (4,)))

if __name__ == "__main__":
    EXPERIMENT.main()
