"""Opacus's own engine, one training at a time, on the models and from the weights of lanes.py."""

import warnings

import torch
from lanes import FORWARD, Lanes, shapes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Single(nn.Module):
    """One seed's model of ``nn.Linear`` layers, by the function that trains lanes."""

    def __init__(self, model, lanes, seed):
        super().__init__()
        self.model = model
        self.whole = lanes.whole
        self.layers = nn.ModuleDict()
        for name, W in lanes.whole.items():
            bias = lanes.biased[name]
            layer = nn.Linear(W.shape[-1] - bias, W.shape[-2], bias)
            self.layers[name] = layer
            layer.weight.data = W[0, seed, :, : layer.in_features].clone()
            if bias:
                layer.bias.data = W[0, seed, :, -1].clone()

    def linear(self, name, x):
        return self.layers[name](x)

    def forward(self, x):
        """(n, ...) -> (n, classes); examples come first, as Opacus wants them, then one lane."""
        return FORWARD[self.model](self, x[:, None])[:, 0]


def trained(
    model, x, y, update: type[torch.optim.Optimizer], given, seed,
    *, classes, batch, steps, noise
) :  # fmt: skip
    """After so many steps of PrivacyEngine, clipped to 1; noise: its multiplier."""
    from opacus import PrivacyEngine

    lanes = Lanes(shapes(model, x.shape[-1], classes), 1, seed + 1)
    single = Single(model, lanes, seed)
    with warnings.catch_warnings(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        net, optimizer, loader = PrivacyEngine().make_private(
            module=single,
            optimizer=update(single.parameters(), **given),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
            noise_multiplier=noise,
            max_grad_norm=1.0,
        )
        rows = (each for _ in range(steps) for each in loader)  # epoch after epoch
        for _, (inputs, targets) in zip(range(steps), rows, strict=False):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    return single


if __name__ == "__main__":
    raise SystemExit("Opacus beside the others: run python experiments/training/optimizers.py")
