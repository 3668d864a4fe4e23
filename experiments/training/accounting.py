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

DELTA = 1e-4
SURE = 0.999  # confidence of the attack's bound
AT_ONCE = 2**15  # draws, so that memory does not grow with their number


@dataclass(frozen=True)
class Config:
    cell: tuple[int, int, int] = (120, 1500, 50)  # steps, users, batch
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    draws: int = 1_000_000


def log_ratios(multiplier, q, times, draws):
    """Of likelihoods, user there over not, of outputs drawn with the user: (draws,)."""
    losses = []
    generator = keyed_generator(b"attack")
    for start in range(0, draws, AT_ONCE):
        shape = (min(AT_ONCE, draws - start), times)
        y = multiplier * torch.randn(shape, generator=generator, dtype=torch.float64)
        y += torch.rand(shape, generator=generator, dtype=torch.float64) < q
        normal = (y - 0.5) / multiplier**2
        # rows of the user's steps do not meet, so that the steps are independent
        losses.append(torch.log1p(q * torch.expm1(normal)).sum(1))
    return torch.cat(losses)


def reached(losses):
    """The largest epsilon whose coins, of chance max(0, 1 - e^(epsilon - loss)), exceed DELTA."""
    n = len(losses)
    coins = torch.rand(n, generator=keyed_generator(b"coins"), dtype=torch.float64)
    low = 0.0
    high = 50.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        hits = int((coins < -torch.expm1(middle - losses)).sum())
        if hits and betaincinv(hits, n - hits + 1, 1 - SURE) >= DELTA:
            low = middle
        else:
            high = middle
    return low


def measure(config, report):
    torch.set_num_threads(1)
    steps, users, batch = config.cell
    for epsilon in config.epsilons:
        for one in choose(Iterates(steps), users, batch, epsilon=epsilon, delta=1e-5).candidates:
            plan = one.protocol
            if not isinstance(plan.sampling, CyclicPoisson):
                continue
            times = plan.sampling.times(steps)
            q = plan.sampling.chance
            multiplier = plan.sigma / plan.bound / sensitivity(plan.strategy, ONCE).value
            normal = dp_accounting.GaussianDpEvent(multiplier)
            event = dp_accounting.PoissonSampledDpEvent(q, normal)
            accountant = dp_accounting.pld.PLDAccountant().compose(event, times)
            report.row(
                "epsilons",
                at_1e_5=epsilon,
                plan=one.name,
                times=times,
                chance=q,
                multiplier=multiplier,
                attack=reached(log_ratios(multiplier, q, times, config.draws)),
                torchdp=sampled_guarantee(multiplier, q, times, DELTA).epsilon,
                dp_accounting=accountant.get_epsilon(DELTA),
            )


EXPERIMENT = Experiment(measure, Config(), Config((12, 120, 20), (2.0,), 100_000))

if __name__ == "__main__":
    EXPERIMENT.main()
