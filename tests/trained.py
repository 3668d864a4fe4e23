"""What tests of training share."""

import torch


def squares(output, target):
    return torch.nn.functional.mse_loss(output, target, reduction="none").mean(1)
