"""Private training with the ``Trainer`` of transformers; needs ``torchdp[transformers]``."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.training.passes import BEHIND, PARTS, SEVERAL, Passes
from torchdp.training.plan import Run

with checks.needing("PrivateTrainer", "transformers[torch]"):
    from transformers import Trainer, TrainingArguments

__all__ = ["PrivateTrainer", "own_loss"]

# Of TrainingArguments: the value that a run goes with, and why.
SERVED = {
    "gradient_accumulation_steps": (1, PARTS),
    "fp16": (False, "its scaler would rescale the gradients; bf16=True has none"),
    "auto_find_batch_size": (False, "it would begin again, and steps are spent once"),
    "label_smoothing_factor": (0, "the loss is the run's: smooth it there"),
    "include_num_input_tokens_seen": ("no", "the count is not private"),
    "train_sampling_strategy": ("random", "the plan decides who is in a batch"),
    "parallel_mode": ("not_parallel", SEVERAL),
}


def own_loss(outputs: Any, targets: Tensor) -> Tensor:
    """The loss that a model of transformers makes of labels among its inputs.

    targets are not read.
    """
    return outputs["loss"]


class PrivateTrainer(Trainer):
    """transformers' ``Trainer`` on the batches and the private gradients of a :class:`Run`.

        run = plan.start(model, own_loss, ledger="steps")
        PrivateTrainer(run, args=args, train_dataset=data, data_collator=collate).train()

    Optimizer, schedule, clipping of the private gradient (``max_grad_norm``, which costs no
    privacy), logs, evaluation and checkpoints are the Trainer's. An epoch is one pass over the
    users. Without ``max_steps`` all of the plan's steps are taken, whatever ``num_train_epochs``
    and the batch sizes in args say. The loss is the run's; ``compute_loss`` serves evaluation
    alone. With peft, start the run on the model that ``get_peft_model`` returns: its parameters
    that require a gradient are trained. Pad all rows to one length: one that is padded to the
    longest row of its batch may have another gradient than alone, unless the model's masks make
    padding inert.

    After a kill: ``plan.resume(model, own_loss, secret, ledger="steps")``, and
    ``train(resume_from_checkpoint=...)``. A checkpoint holds nothing secret: keep
    ``run.secret_state()`` apart from it. The ledger may be ahead of the checkpoint; the steps in
    between are lost. A checkpoint that is ahead of the run is refused: it is of another run.

    Args:
        run: its module is the model.
        args: those of the Trainer, which gets a copy.
        show_loss: whether logs and checkpoints hold the training loss, which is **not private**;
            neither is evaluation on training data. The count of floating-point operations is 0:
            it would show how many users were in a step.
        options: of the Trainer.

    Raises TypeError, ValueError where args would add up or rescale gradients, draw other batches,
    or use several devices.

    Guarantees: all gradients together, and so the trained parameters, have ``plan.guarantee``,
    where padding makes no row's gradient depend on the others.
    """

    def __init__(
        self,
        run: Run,
        args: TrainingArguments | None = None,
        *,
        show_loss: bool = False,
        **options: Any,
    ) -> None:
        self.run = checks.instance("run", run, Run)
        self.show_loss = checks.instance("show_loss", show_loss, bool)
        args = copy.copy(TrainingArguments("tmp_trainer") if args is None else args)
        for name, (value, reason) in SERVED.items():
            given = getattr(args, name, value)
            if getattr(given, "value", given) != value:  # of an Enum, or the value itself
                raise ValueError(f"{name} must be {value!r}, not {given!r}: {reason}")
        if options.get("compute_loss_func") is not None:
            raise ValueError(
                "compute_loss_func must be left out: the loss is the one of plan.start"
            )
        if args.max_steps < 0:
            args.max_steps = run.plan.strategy.steps
        # Batches are the run's, which goes on by itself; NaN of an empty batch is no mistake.
        args.ignore_data_skip = True
        args.logging_nan_inf_filter = False
        super().__init__(run.module, args, **options)
        if self.model is not run.module:
            raise ValueError(
                "run must be of the model that is trained: add adapters before plan.start"
            )

    def get_train_dataloader(self) -> Any:
        """The run's batches of ``train_dataset``, collated and read ahead as the Trainer's own."""
        own = super().get_train_dataloader()
        options = {name: getattr(own, name) for name in ("collate_fn", "num_workers", "pin_memory")}
        return Passes(self.run, own.dataset, **options)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Puts the step's private gradient into ``.grad``.

        Raises ValueError for another run's checkpoint.
        """
        run = self.run
        if self.state.global_step > run.step:
            behind = BEHIND.format(self.state.global_step, run.step)
            raise ValueError(f"resume_from_checkpoint must be of this run: {behind}")
        run.module.train()
        train = getattr(self.optimizer, "train", None)
        if train is not None:  # an optimizer without a schedule
            train()
        inputs = dict(self._prepare_inputs(inputs))
        # Any tensor with a row for each user: own_loss reads no targets.
        labels = [inputs[name] for name in self.label_names if name in inputs]
        rows = (labels or list(inputs.values()))[0]
        # The Trainer moves the model after the run was made.
        run.noise.to(rows.device)
        with self.compute_loss_context_manager():
            loss = run.backward(inputs, rows)
        # The Trainer logs what is returned, and the loss itself is not private.
        return loss.detach() if self.show_loss else torch.full_like(loss, math.nan)

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the true number tells how many users were in a step."""
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Without the training loss, unless ``show_loss``."""
        hidden = () if self.show_loss else ("loss", "train_loss")
        shown = {name: value for name, value in logs.items() if name not in hidden}
        super().log(shown, *args, **kwargs)
