"""Ten thousand regions in one pass over their users, and a thousand bootstrap samples in one call, beside the loop.

Command:  python experiments/queries/regions.py
Expected: 10,000 regions, CPU seconds (the loop's, from 200 regions): histograms of 12 types of 1e7 users 0.33 (3.8);
    Gini indices of 1e6 users 0.69 (14), of 1e7 5.7 (37); means in R^3 of 1e6 users under central Gaussian noise 0.24
    (22); at most 0.62 GiB in all. Answers of 200 regions less the truth over the predicted error: z in [-0.3, 0.3],
    deviation 0.98 to 1.00. 1,000 bootstrap samples with their intervals, over the loop's time: one message .004,
    Gaussian mean .002, moments .002, density .37 (binomial draws, of which the loop makes as many).
Output: results/queries/regions/regions.csv, bootstrap.csv.
Artifact: own | batches
Status: agrees
Time: two minutes of one core; --smoke in seconds.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdp.density import GaussianFourier, ShuffledKDE
from torchdp.domains import Box
from torchdp.mean import GaussianMean
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, unequal
from torchdp.protocol import Crowd, Protocol
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator
from torchdp.regression import GramRelease, SecondMoments
from torchdp.shuffle import PoissonSum
from torchdp.simulate import Experiment, Report


@dataclass(frozen=True)
class Config:
    users: int = 10_000_000
    regions: int = 10_000
    types: int = 12
    epsilon: float = 1.0
    looped: int = 200  # regions and samples of which the loop's time is taken
    samples: int = 1_000
    sampled: int = 5_000  # users of the data set whose samples are drawn


FULL = Config()
SMOKE = Config(20_000, 50, looped=20, samples=30, sampled=300)


def data(config: Config) -> tuple[Tensor, Tensor]:
    """Each user's region, large and small ones but never of fewer than two users, and type."""
    generator = keyed_generator(b"regions")
    share = torch.rand(config.users, dtype=torch.float64, generator=generator)
    region = (share**1.5 * config.regions).long()
    region[: 2 * config.regions] = torch.arange(config.regions).repeat(2)
    skewed = torch.rand(2, config.users, generator=generator).prod(0)
    return region, (skewed * config.types).long()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def memory() -> float:
    """The most that this process has held by now, the data included, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def pass_over(
    name: str, protocol: Protocol[Any], x: Tensor, region: Tensor, config: Config, report: Report
) -> None:
    seconds, found = timed(lambda: protocol.estimate(x, groups=region, noise=SeededNoise(1)))
    held = memory()
    some = [x[region == each] for each in range(config.looped)]
    loop, _ = timed(lambda: [protocol.estimate(each, noise=SeededNoise(2)) for each in some])
    summaries = [protocol.summary(protocol.validate(each)) for each in some]
    truth = torch.stack([protocol.exact(each) for each in summaries])
    deviation = torch.stack([protocol.predicted_mse(each) for each in summaries]).sqrt()
    z = (found.value[: config.looped] - truth) / deviation
    report.row(
        "regions",
        protocol=name,
        users=len(x),
        regions=len(found.value),
        seconds=seconds,
        gibibytes=held,
        loop=loop * config.regions / config.looped,
        answers=z.numel(),
        z=float(z.mean()) * z.numel() ** 0.5,
        deviation=float(z.std()),
    )


def bootstrap(
    name: str, protocol: Protocol[Any], batch: Any, each: list[Any], config: Config, report: Report
) -> None:
    generator = keyed_generator(b"bootstrap")
    protocol.sample_estimate(each[0], generator=generator).interval()  # tables
    together, _ = timed(lambda: protocol.sample_estimate(batch, generator=generator).interval())
    loop, _ = timed(lambda: [protocol.sample_estimate(one, generator=generator).interval() for one in each])
    whole = loop * config.samples / len(each)
    report.row(
        "bootstrap", protocol=name, samples=config.samples, seconds=together, loop=whole, ratio=together / whole
    )


def resampled(config: Config, values: int) -> Tensor:
    """How often each sample with replacement holds each value of one data set: (samples, values)."""
    shares = torch.rand(values, dtype=torch.float64, generator=keyed_generator(b"shares"))
    size = (config.samples, config.sampled)
    drawn = torch.multinomial(shares.expand(size[0], -1), size[1], True, generator=keyed_generator(b"samples"))
    return torch.zeros(size[0], values, dtype=torch.int64).scatter_add_(1, drawn, torch.ones_like(drawn))


def second(points: Tensor, counts: Tensor) -> Tensor:
    """The second moments of each sample, (samples, d, d)."""
    return points.mT @ (counts[..., None] * points)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    region, x = data(config)
    gini, some = OneMessage(unequal(config.types), config.epsilon), max(config.users // 10, 2 * config.regions)
    box = Box(torch.zeros(3), torch.ones(3))
    mean = GaussianMean.tuned(box, epsilon=config.epsilon, delta=1e-6)
    points = torch.rand(some, 3, dtype=torch.float64, generator=keyed_generator(b"points"))
    pass_over("histograms", RandomizedResponse(config.types, config.epsilon), x, region, config, report)
    pass_over("Gini indices", gini, x[:some], region[:some], config, report)
    pass_over("Gini indices, all", gini, x, region, config, report)
    pass_over("means in R^3", mean, points, region[:some], config, report)
    counts, held = resampled(config, config.types), resampled(config, 400)
    crowds = [Crowd(points[:400], each) for each in held[: config.looped]]
    bootstrap("OneMessage", gini, counts, list(counts[: config.looped]), config, report)
    together = Crowd.shared(points[:400], held)
    bootstrap("GaussianMean", mean, together, crowds, config, report)
    family = GaussianFourier(3, 1.0)
    kde = ShuffledKDE.calibrated(
        family.draw(32, generator=keyed_generator(b"waves")), PoissonSum, config.sampled, config.epsilon, 1e-6
    )
    bootstrap("ShuffledKDE", kde, together, crowds, config, report)
    gram = GramRelease(config.sampled, 3, 3**0.5, config.epsilon, 1e-6)
    moments = [SecondMoments(config.sampled, each) for each in second(points[:400], held)]
    batch = SecondMoments(held.sum(1), second(points[:400], held))
    bootstrap("GramRelease", gram, batch, moments[: config.looped], config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
