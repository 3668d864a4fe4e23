"""Every amplified epsilon beside dp-accounting's own, and beside what an attack is seen to reach.

Paper: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023), Theorem 4.
    The noise is that of ``training.choose`` at delta = 1e-5; all epsilons are of that noise at
    delta = 1e-4. The attack is the likelihood ratio of all outputs, the user's part 1 in every step
    that takes them; its epsilon is the largest at which so many draws show a hockey-stick
    divergence above delta, by an exact binomial bound (99.9 %).
Command:  OMP_NUM_THREADS=1 python experiments/training/accounting.py
Expected: attack <= torchdp <= 1.01 dp-accounting, which is an upper bound too; attack within 5 % of
torchdp.
Output: results/training/accounting/epsilons.csv.
Artifact: Choquette-Choo et al. (2023) | amplification by sampling
Status: agrees
Time: 15 minutes on one core; --smoke in seconds.
"""

from dataclasses import dataclass

import dp_accounting
import torch
from scipy.special import betaincinv

from torchdp.privacy import sampled_guarantee
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment
from torchdp.training import ONCE, CyclicPoisson, Iterates, choose, sensitivity

DELTA, SURE = 1e-4, 0.999
AT_ONCE = 2**15


@dataclass(frozen=True)
class Config:
    cell: tuple[int, int, int] = (120, 1500, 50)  # steps, users, batch
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    draws: int = 1_000_000


def ratios(plan, times, draws):
    """Log likelihood ratios, user there over not, of outputs drawn with the user: their steps' rows
    do not meet.
    """
    found, generator = [], keyed_generator(b"attack")
    assert isinstance(plan.sampling, CyclicPoisson)
    q, multiplier = (
        plan.sampling.chance,
        plan.sigma / plan.bound / sensitivity(plan.strategy, ONCE).value,
    )
    for start in range(0, draws, AT_ONCE):
        shape = min(AT_ONCE, draws - start), times
        y = multiplier * torch.randn(shape, generator=generator, dtype=torch.float64)
        y += torch.rand(shape, generator=generator, dtype=torch.float64) < q
        found.append(torch.log1p(q * torch.expm1((y - 0.5) / multiplier**2)).sum(1))
    return torch.cat(found)


def reached(losses):
    """The largest epsilon at which coins of chance max(0, 1 - e^(epsilon - loss)) fall on 1 more
    often than DELTA.
    """
    coins, low, high = (
        torch.rand(len(losses), generator=keyed_generator(b"coins"), dtype=torch.float64),
        0.0,
        50.0,
    )
    while high - low > 1e-4:
        middle = (low + high) / 2
        hits = int((coins < -torch.expm1(middle - losses)).sum())
        sure = hits and betaincinv(hits, len(losses) - hits + 1, 1 - SURE) >= DELTA
        low, high = (middle, high) if sure else (low, middle)
    return low


def measure(config, report):
    torch.set_num_threads(1)
    steps, users, batch = config.cell
    for epsilon in config.epsilons:
        for one in choose(Iterates(steps), users, batch, epsilon=epsilon, delta=1e-5).candidates:
            plan = one.protocol
            if not isinstance(plan.sampling, CyclicPoisson):
                continue
            times, q = plan.sampling.times(steps), plan.sampling.chance
            multiplier = plan.sigma / plan.bound / sensitivity(plan.strategy, ONCE).value
            event = dp_accounting.PoissonSampledDpEvent(
                q, dp_accounting.GaussianDpEvent(multiplier)
            )
            theirs = dp_accounting.pld.PLDAccountant().compose(event, times).get_epsilon(DELTA)
            ours = sampled_guarantee(multiplier, q, times, DELTA).epsilon
            attack = reached(ratios(plan, times, config.draws))
            report.row(
                "epsilons", at_1e_5=epsilon, plan=one.name, times=times, chance=q, multiplier=multiplier,
                attack=attack, torchdp=ours, dp_accounting=theirs,
            )  # fmt: skip


EXPERIMENT = Experiment(measure, Config(), Config((12, 120, 20), (2.0,), 100_000))

if __name__ == "__main__":
    EXPERIMENT.main()
