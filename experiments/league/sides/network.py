"""The network of ``side.network`` as a module of torch, for the sides that use it."""

import side
import torch


def module(n, d, hidden, classes):
    """The module, and its examples with labels."""
    parameters, x, y = side.network(n, d, hidden, classes)
    layers = torch.nn.Sequential(
        torch.nn.Linear(d, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )
    for parameter, values in zip(layers.parameters(), parameters, strict=True):
        parameter.data = torch.from_numpy(values)
    return layers, torch.from_numpy(x), torch.from_numpy(y)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/run.py")
