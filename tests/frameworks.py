"""What the tests of Lightning's and transformers' trainers share: the loop that they are held
to.
"""

import torch
from trained import STEPS

from torchdp.noise import SeededNoise


def by_hand(
    plan,
    net,
    loss,
    optimizer,
    data,
    parts,
    steps=STEPS,
):
    """The parameters after each step of our own loop, flat. parts: of a batch, inputs and
    targets.
    """
    run = plan.start(net, loss, noise=SeededNoise(1))
    seen = []
    for batch in run.loader(data):
        run.backward(*parts(batch))
        optimizer.step()
        seen.append(flat(net))
        if run.step == steps:
            return seen
    return seen


def flat(net):
    trained = [p for p in net.parameters() if p.requires_grad]
    return torch.cat([p.detach().flatten().clone() for p in trained])


def holds(path, key):
    """Whether the bytes of a run's key are in a file, or in one of a folder's."""
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return any(bytes(key.tolist()) in one.read_bytes() for one in files)
