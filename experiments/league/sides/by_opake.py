"""opake: its accountant and its clipping."""

import numpy as np
import opake.dpsgd.accounting as accounting
import side
import torch
from opake.dpsgd.clipping import clipped_grad


def sampled(multiplier, chance, times, delta):
    one = accounting.poisson(accounting.gaussian(multiplier), sample_rate=chance)
    return lambda: (one * times).epsilon_at(delta)


def loss(parameters, x, y):
    A, a, B, b = parameters
    logits = torch.relu(x @ A.T + a) @ B.T + b
    return torch.nn.functional.cross_entropy(logits[None], y[None]) if x.ndim == 1 else (
        torch.nn.functional.cross_entropy(logits, y)
    )  # fmt: skip


def step(n, d, hidden, classes, bound):
    numbers, x, y = side.network(n, d, hidden, classes)
    parameters, x, y = (
        tuple(map(torch.from_numpy, numbers)),
        torch.from_numpy(x),
        torch.from_numpy(y),
    )
    gradient, state = clipped_grad(loss, clipping_norm=bound, batch_argnums=(1, 2))

    def total(x, y):
        found, _ = gradient(parameters, x, y, state=state)
        return np.concatenate([each.numpy().ravel() for each in found.pytree])

    return lambda: total(x, y), side.longest(total, x, y)


if __name__ == "__main__":
    torch.set_num_threads(1)
    side.main("opake", {"sampled sums": sampled, "one clipped step": step})
