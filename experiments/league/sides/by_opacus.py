"""opacus: its PRV accountant, and its gradients of each example, clipped and summed by its optimizer."""

import numpy as np
import side
import torch
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.optimizers import DPOptimizer


def sampled(multiplier, chance, times, delta):
    def work():
        accountant = PRVAccountant()
        accountant.history = [(multiplier, chance, times)]
        return accountant.get_epsilon(delta=delta)

    return (work,)


def step(n, d, hidden, classes, bound):
    numbers, x, y = side.network(n, d, hidden, classes)
    layers = torch.nn.Sequential(torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes))
    for parameter, values in zip(layers.parameters(), numbers, strict=True):
        parameter.data = torch.from_numpy(values)
    model, x, y = GradSampleModule(layers, loss_reduction="sum"), torch.from_numpy(x), torch.from_numpy(y)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=bound, expected_batch_size=n)

    def total(x, y):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        optimizer.clip_and_accumulate()
        return np.concatenate([each.summed_grad.numpy().ravel() for each in model.parameters()])

    def alone(i):
        return float(np.linalg.norm(total(x[i : i + 1], y[i : i + 1]).astype(float)))

    return (lambda: total(x, y)), lambda: [alone(i) for i in range(8)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    side.main("opacus", {"sampled sums": sampled, "one clipped step": step})
