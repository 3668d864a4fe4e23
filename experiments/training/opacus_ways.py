"""Opacus's two ways to a sum of clipped gradients, without noise: functions of what a model is
given.

Both put the model in training mode, and raise ImportError where Opacus is not installed.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Way = Callable[..., Tensor]


def trained(net) -> list[Tensor]:
    return [p for p in net.parameters() if p.requires_grad]


def options(y, bound):
    return {"noise_multiplier": 0.0, "max_grad_norm": bound, "expected_batch_size": len(y)}


def fixed(net) -> nn.Module:
    """With Opacus's layers in the place of torch's recurrent ones, which draw new weights."""
    from opacus.validators import ModuleValidator

    return ModuleValidator.fix(net.train())


def hooks(net, y, bound):
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    hooked = GradSampleModule(fixed(net))
    optimizer = DPOptimizer(torch.optim.SGD(trained(hooked), 0.1), **options(y, bound))

    def way(*x, **named):
        F.cross_entropy(hooked(*x, **named), y).backward()
        optimizer.clip_and_accumulate()
        gradient = torch.cat([p.summed_grad.flatten() for p in trained(hooked)])
        optimizer.zero_grad()
        return gradient

    return way


def ghost(net, y, bound):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    ghosts = GradSampleModuleFastGradientClipping(fixed(net), max_grad_norm=bound)
    clips = DPOptimizerFastGradientClipping(
        torch.optim.SGD(trained(ghosts), 0.1), **options(y, bound)
    )
    two_passes = DPLossFastGradientClipping(ghosts, clips, nn.CrossEntropyLoss())

    def way(*x, **named):
        two_passes(ghosts(*x, **named), y).backward()
        gradient = torch.cat([p.grad.flatten() for p in trained(ghosts)])
        ghosts.zero_grad(set_to_none=True)
        return gradient

    return way


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/training/clipping.py")
