"""Private training with Lightning's ``Trainer``; needs ``torchdp[lightning]``."""

from typing import Any

from torch import Tensor

from torchdp import checks
from torchdp.training.clipping import Inputs
from torchdp.training.passes import BEHIND, PARTS, SEVERAL, Passes
from torchdp.training.plan import Run

with checks.needing("PrivateModule", "lightning"):
    from lightning.pytorch import LightningModule
    from lightning.pytorch.strategies import SingleDeviceStrategy

__all__ = ["PrivateModule"]


class PrivateModule(LightningModule):
    """A ``LightningModule`` that trains on the batches and the private gradients of a :class:`Run`.

        class Net(PrivateModule):  # with forward and configure_optimizers, and no training_step
            ...

        run = plan.start(net, torch.nn.functional.cross_entropy, ledger="steps")
        trainer.fit(net, training.Passes(run, data))

    An epoch is one pass over the users, and training ends when all steps are spent. The loss is the
    run's. Optimizer, schedulers, callbacks, clipping of the private gradient (which costs no
    privacy) and checkpoints are Lightning's; optimization stays automatic.

    After a kill: ``plan.resume(net, loss, secret, ledger="steps")`` and ``trainer.fit(net,
    training.Passes(run, data), ckpt_path=...)``. A checkpoint holds nothing secret: keep
    ``run.secret_state()`` apart from it. The ledger may be ahead of the checkpoint; the steps in
    between are lost. A checkpoint that is ahead of the run is refused: it is of another run.

    What ``training_step`` returns, and all that is logged or monitored on training data, is **not
    private**; neither is validation on training data.

    Guarantees: all gradients together, and so the trained parameters, have ``plan.guarantee``,
    where batches are given to ``private_step`` alone.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Of a batch (inputs, targets); of others override it.

        It returns ``self.private_step(inputs, targets)``.
        """
        inputs, targets = batch
        return self.private_step(inputs, targets)

    def private_step(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Puts the step's private gradient into ``.grad``.

        Returns the mean loss, which is not private. Raises TypeError, ValueError, before anything
        is released, where the Trainer would add up or scale gradients, use several devices, or hand
        out other batches than the run's.
        """
        run = self._run()
        # Lightning moves the module after the run was made.
        run.noise.to(targets.device)
        loss = run.backward(inputs, targets)
        # Before the next batch is asked for, which would raise.
        self.trainer.should_stop |= run.step == run.plan.strategy.steps
        return loss

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing: ``private_step`` has set the gradients. Raises ValueError for another loss."""
        if loss.requires_grad:
            raise ValueError(
                "training_step must return what self.private_step(inputs, targets) returns: the "
                "gradient of another loss would not be private"
            )

    def optimizer_zero_grad(self, *args: Any) -> None:
        """Nothing: each step's gradient takes the place of the last one."""

    def _run(self) -> Run:
        """The run whose batches the Trainer hands out. Raises TypeError, ValueError."""
        trainer = self.trainer
        passes = trainer.train_dataloader
        if not isinstance(passes, Passes):
            raise TypeError(
                "train_dataloaders must be training.Passes(run, data), not "
                f"{type(passes).__name__}: the plan decides who is in a batch"
            )
        run = passes.run
        if run.module is not self:
            raise ValueError("run must be of this module: plan.start(net, loss)")
        if not self.automatic_optimization:
            raise ValueError("automatic_optimization must be True")
        if trainer.accumulate_grad_batches != 1:
            raise ValueError("accumulate_grad_batches must be 1: " + PARTS)
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError("precision must not scale gradients: 'bf16-mixed', not '16-mixed'")
        if not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise ValueError("devices must be 1: " + SEVERAL)
        if trainer.global_step > run.step:
            behind = BEHIND.format(trainer.global_step, run.step)
            raise ValueError(f"ckpt_path must be of this run: {behind}")
        return run
