"""What a user sends under the density of least predicted error, and under the chosen one: 1 % more error at most.

Paper: Wagner (2025), Figure 2 (messages of a user), on features of 64 numbers and 125 users, as many as a digit has.
Command:  python experiments/density/messages.py
Expected: a row for each kernel and epsilon, delta = 1e-5. "least": the candidate of least predicted error; "chosen":
    ``ShuffledKDE.tuned(...).best``, of fewest messages within 1 % of that; "error": of the chosen one over the least.
Output: results/density/messages/messages.csv; printed: ``experiments/bench/messages_cpu.txt``.
Artifact: Wagner (2025) | Figure 2
Status: own rule; the paper has no choice
Time: five minutes on one core; --smoke in 10 to 20 CPU-seconds.
"""

from dataclasses import dataclass

import torch

from torchdp.density import GaussianOrthogonal, InnerProductRotated, LaplacianSigns, ShuffledKDE
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

DELTA = 1e-5
KERNELS = {  # and repetitions
    "inner product": (InnerProductRotated, 1),
    "Gaussian": (lambda d: GaussianOrthogonal(d, 0.7), 64),
    "Laplacian": (lambda d: LaplacianSigns(d, 0.25 * d**0.5), 128),
}


@dataclass(frozen=True)
class Config:
    kernels: tuple[str, ...] = tuple(KERNELS)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.5)
    dimension: int = 64
    users: int = 125


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for kernel in config.kernels:
        family, repetitions = KERNELS[kernel]
        features = family(config.dimension).draw(repetitions, generator=keyed_generator(kernel.encode()))
        for epsilon in config.epsilons:
            choice = ShuffledKDE.tuned(features, config.users, epsilon, DELTA)
            least = min(choice.candidates, key=lambda one: one.error)
            chosen = choice.candidates[0]
            report.row(
                "messages",
                kernel=kernel,
                epsilon=epsilon,
                least=least.name,
                chosen=chosen.name,
                error=chosen.error / least.error,
                messages_least=least.protocol.messages_per_user,
                messages=chosen.protocol.messages_per_user,
                bits_least=least.protocol.bits_per_user,
                bits=chosen.protocol.bits_per_user,
            )


EXPERIMENT = Experiment(measure, Config(), Config(("inner product",), (4.5,), 8, 30))

if __name__ == "__main__":
    EXPERIMENT.main()
