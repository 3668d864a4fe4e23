"""The scripts of private training find what their docstrings promise."""

import pytest
import torch
from scripts import loaded


@pytest.mark.parametrize("model", ["linear", "MLP", "CNN", "attention"])
def test_lanes_clip_as_single_examples_do(model):
    with loaded("training/optimizers.py") as script:
        x, y, _ = script.data("digits", None)
        lanes = script.Lanes(script.shapes(model, 64, 10), 2, 2)
        index, kept = torch.arange(6).view(2, 3), torch.tensor([[1.0, 1, 1], [1, 0, 1]])
        for W in lanes.whole.values():
            W.mul_(1 + torch.arange(4.0).view(2, 2, 1, 1))
        sums, one = lanes.clipped(script.FORWARD[model], x[index], y[index], kept), script.Lanes({}, 1, 1)
        expected = {name: torch.zeros_like(W) for name, W in lanes.whole.items()}
        for rate, seed, i in torch.cartesian_prod(*map(torch.arange, (2, 2, 3))).tolist():
            one.whole = {k: W[rate, seed, None, None].clone().requires_grad_() for k, W in lanes.whole.items()}
            row = index[seed, i]
            loss = torch.nn.functional.cross_entropy(
                script.FORWARD[model](one, x[row, None, None])[0], y[row, None]
            )
            own = torch.autograd.grad(loss, list(one.whole.values()))
            norm = torch.cat([g.flatten() for g in own]).norm()
            for total, g in zip(expected.values(), own, strict=True):
                total[rate, seed] += kept[seed, i] * g[0, 0] / norm.clamp_min(1)
        torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-5)


def test_private_adam_moves_each_number_as_written_down():
    with loaded("training/optimizers.py") as script:
        p, x, m, v, u = torch.ones(4, dtype=torch.float64), 1.0, 0.0, 0.0, 0.0
        adam = script.PrivateAdam([{"params": [p], "lr": 0.1}], weight_decay=0.4)
        deviations = [0.9, 0.2, 0.0, 1.4]
        for t, (g, adam.deviation) in enumerate(zip([0.3, -2.0, 1.1, 0.5], deviations, strict=True), 1):
            p.grad = torch.full_like(p, g)
            adam.step()
            m, v, u = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2, 0.999 * u + 0.001 * adam.deviation**2
            noise = u / (1 - 0.999**t)
            size = max(v / (1 - 0.999**t) - noise, noise) ** 0.5 + 1e-8
            x = x * (1 - 0.1 * 0.4) - 0.1 * m / (1 - 0.9**t) / size
            torch.testing.assert_close(p, torch.full_like(p, x), rtol=1e-12, atol=0)
