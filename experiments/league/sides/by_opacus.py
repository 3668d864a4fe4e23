"""opacus: its PRV accountant, and clipped sums by ghost clipping, its faster way for these
layers.
"""

import numpy as np
import side
import torch
from network import module
from opacus.accountants import PRVAccountant
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping


def sampled(multiplier, chance, times, delta):
    def work():
        accountant = PRVAccountant()
        accountant.history = [(multiplier, chance, times)]
        return accountant.get_epsilon(delta=delta)

    return work


def step(n, d, hidden, classes, bound):
    layers, x, y = module(n, d, hidden, classes)
    model = GradSampleModuleFastGradientClipping(
        layers, max_grad_norm=bound, use_ghost_clipping=True, loss_reduction="sum"
    )
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizerFastGradientClipping(
        plain,
        noise_multiplier=1.0,
        max_grad_norm=bound,
        expected_batch_size=n,
        loss_reduction="sum",
    )
    entropy = torch.nn.CrossEntropyLoss(reduction="sum")
    loss = DPLossFastGradientClipping(model, optimizer, entropy, loss_reduction="sum")

    def total(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.accumulate()
        return np.concatenate([each.summed_grad.numpy().ravel() for each in model.parameters()])

    return lambda: total(x, y), side.longest(total, x, y)


if __name__ == "__main__":
    torch.set_num_threads(1)
    side.main("opacus", {"sampled sums": sampled, "one clipped step": step})
