"""What a user sends under the density that is chosen, and under that of least predicted error:
``density.choose``.

Paper: Wagner (2025), Figure 2 (messages of a user), on features of 64 numbers and 125 users, as
many as a digit has.
Command:  python experiments/density/messages.py
Expected: a row for each kernel and epsilon, delta = 1e-5. "least": chosen with up to 8,192 messages
of a user;
    "chosen": with the default, 2,048; "error": of the chosen one over the least.
Output: results/density/messages/messages.csv.
Artifact: Wagner (2025) | Figure 2
Status: own rule; the paper has no choice
Time: a minute on one core; --smoke in some seconds.
"""

from dataclasses import dataclass

import torch

from torchdp.density import Gaussian, InnerProduct, choose
from torchdp.simulate import Experiment

DELTA = 1e-5
MANY = 8192.0
KERNELS = {"inner product": InnerProduct, "Gaussian": lambda d: Gaussian(0.7)}


@dataclass(frozen=True)
class Config:
    kernels: tuple[str, ...] = tuple(KERNELS)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.5)
    dimension: int = 64
    users: int = 125


def measure(config, report):
    torch.set_num_threads(1)
    for kernel in config.kernels:
        given = {"n": config.users, "delta": DELTA}
        if kernel == "Gaussian":
            given["dimension"] = config.dimension
        for epsilon in config.epsilons:
            asked = KERNELS[kernel](config.dimension)
            chosen = choose(asked, epsilon=epsilon, **given).candidates[0]
            least = choose(asked, epsilon=epsilon, most_messages=MANY, **given).candidates[0]
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
