"""Lightning's Trainer on a run: step for step our own loop, over checkpoints too; what would break
it is refused.
"""

import os
from unittest import mock

import pytest
import torch
from frameworks import by_hand, flat, holds
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from trained import KINDS, STEPS, plans

from torchdp.noise import SeededNoise
from torchdp.training import Passes
from torchdp.training.lightning import PrivateModule

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, (X.sum(1) > 0).long())


class Net(PrivateModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


class Seen(Callback):
    """The parameters after each step."""

    def __init__(self):
        self.parameters = []

    def on_train_batch_end(self, trainer, module, *rest):
        self.parameters.append(flat(module))


QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 9,
    "enable_checkpointing": False,
}


def trainer(*callbacks, **options):
    return Trainer(callbacks=[*callbacks], **QUIET | options)


def expected(plan, hand, optimizer=None):
    """The parameters of our own loop after each step."""
    optimizer = optimizer or hand.configure_optimizers()
    return by_hand(plan, hand, cross_entropy, optimizer, DATA, tuple)


@KINDS
@pytest.mark.parametrize("workers", [0, 1])
def test_each_step_is_that_of_our_own_loop(kind, workers):
    net = Net()
    seen = Seen()
    run = plans()[kind].start(net, cross_entropy, noise=SeededNoise(1))
    ours = trainer(seen)
    ours.fit(net, Passes(run, DATA, num_workers=workers))
    assert run.step == STEPS == ours.global_step
    wanted = expected(plans()[kind], Net())
    assert torch.equal(torch.stack(seen.parameters), torch.stack(wanted))


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_a_checkpoint_and_the_ledger_go_on_with_the_run(stop, tmp_path):
    plan = plans()["ordered"]
    wanted = expected(plan, Net())
    net = Net()
    ledger = tmp_path / "ledger"
    secret = tmp_path / "secret"
    run = plan.start(net, cross_entropy, noise=SeededNoise(1), ledger=ledger)
    torch.save(run.secret_state(), secret)
    kept = ModelCheckpoint(
        tmp_path / "kept", every_n_train_steps=1, save_top_k=-1, filename="{step}"
    )
    trainer(kept, max_steps=stop, enable_checkpointing=True).fit(net, Passes(run, DATA))
    last = tmp_path / "kept" / f"step={stop}.ckpt"
    key = run.secret_state()["key"]
    assert run.step == stop
    # The control: the key is found where it is.
    assert holds(secret, key)
    assert not holds(tmp_path / "kept", key)
    # Of a kill between the last checkpoint and the last step.
    for lost in (0, 1):
        net = Net()
        seen = Seen()
        run = plan.resume(net, cross_entropy, torch.load(secret), ledger=ledger, step=stop + lost)
        trainer(seen).fit(net, Passes(run, DATA), ckpt_path=last)
        assert len(seen.parameters) == STEPS - stop - lost
        assert run.step == STEPS
        if not lost:
            # A new run takes its first batch in parts, whose sums round otherwise
            torch.testing.assert_close(seen.parameters, wanted[stop:])
        ledger = None
    net = Net()
    fresh = plan.start(net, cross_entropy)
    message = f"ckpt_path must be of this run: the checkpoint is at step {stop}, the run"
    with pytest.raises(ValueError, match=message):
        trainer().fit(net, Passes(fresh, DATA), ckpt_path=last)
    # Its noise is not spent on another model.
    assert fresh.step == 0


def test_clipping_of_the_private_gradient_is_lightnings():
    plan = plans()["ordered"]
    hand = Net()
    net = Net()
    seen = Seen()
    optimizer = hand.configure_optimizers()

    def clip(*_):
        nn.utils.clip_grad_norm_(hand.parameters(), 0.1)

    optimizer.register_step_pre_hook(clip)
    wanted = expected(plan, hand, optimizer)
    run = plan.start(net, cross_entropy, noise=SeededNoise(1))
    trainer(seen, gradient_clip_val=0.1).fit(net, Passes(run, DATA))
    assert torch.equal(torch.stack(seen.parameters), torch.stack(wanted))


class Own(Net):
    def training_step(self, batch, i):
        x, y = batch
        return cross_entropy(self(x), y)


class Manual(Net):
    automatic_optimization = False


class Scaled(MixedPrecision):
    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu"))


REFUSED = [  # module, options of the Trainer, message
    (Own, {}, r"training_step must return what self\.private_step"),
    (Manual, {}, "automatic_optimization must be True"),
    (Net, {"accumulate_grad_batches": 2}, "accumulate_grad_batches must be 1"),
    (Net, {"plugins": Scaled()}, "precision must not scale gradients"),
    (Net, {"strategy": "ddp"}, "devices must be 1"),
]


@mock.patch.dict(os.environ)  # where Lightning leaves a process group's address
@pytest.mark.parametrize(("module", "options", "message"), REFUSED)
def test_guarantee_what_would_break_a_run_is_refused_before_a_step_is_spent(
    module, options, message
):
    net = module()
    run = plans()["ordered"].start(net, cross_entropy)
    before = flat(net)
    try:
        with pytest.raises(ValueError, match=message):
            trainer(**options).fit(net, Passes(run, DATA))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    # A model that moved without noise would show its users.
    assert run.step == 0
    assert torch.equal(flat(net), before)


def test_other_batches_and_other_modules_are_refused():
    net = Net()
    run = plans()["ordered"].start(net, cross_entropy)
    message = r"train_dataloaders must be training\.Passes\(run, data\), not DataLoader"
    with pytest.raises(TypeError, match=message):
        trainer().fit(net, DataLoader(DATA, 15, shuffle=True))
    with pytest.raises(ValueError, match="run must be of this module"):
        trainer().fit(Net(), Passes(run, DATA))
    with pytest.raises(TypeError, match="run must be"):
        Passes(net, DATA)
    assert run.step == 0
