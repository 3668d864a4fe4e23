"""transformers' Trainer on a run: step for step our own loop, over checkpoints, with LoRA; the rest
is refused.
"""

import math

import peft
import pytest
import torch
from frameworks import by_hand, flat, holds
from torch.utils.data import Dataset
from trained import STEPS, plans
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from torchdp.noise import SeededNoise
from torchdp.training.transformers import PrivateTrainer, own_loss

pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = torch.randint(1, 20, (60, 6), generator=torch.Generator().manual_seed(0))
SIZES = dict(
    vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
)


class Rows(Dataset):
    """With a column that no model takes."""

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, user):
        return {"input_ids": WORDS[user], "labels": WORDS[user], "name": user}


def model(lora=False):
    torch.manual_seed(3)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    net = GPT2LMHeadModel(GPT2Config(**SIZES, **dropout, attn_implementation="eager"))
    adapters = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(net, adapters) if lora else net


def arguments(folder, **options):
    given = {
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 2,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
    }
    return TrainingArguments(str(folder), **given | options)


class Seen(TrainerCallback):
    """The parameters after each step."""

    def __init__(self):
        self.parameters = []

    def on_step_end(self, args, state, control, model=None, **rest):
        self.parameters.append(flat(model))


def parts(batch):
    inputs = {name: batch[name] for name in ("input_ids", "labels")}
    return inputs, inputs["labels"]


def hand(plan, lora=False):
    net = model(lora).train()
    return by_hand(plan, net, own_loss, torch.optim.SGD(net.parameters(), 0.01), Rows(), parts)


@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        ("ordered", False),
        ("independent", False),
        ("banded", False),
        ("banded", True),
    ],
)
def test_each_step_is_that_of_our_own_loop(kind, lora, tmp_path):
    net = model(lora)
    seen = Seen()
    run = plans()[kind].start(net, own_loss, noise=SeededNoise(1))
    ours = PrivateTrainer(run, arguments(tmp_path), train_dataset=Rows(), callbacks=[seen])
    ours.train()
    assert run.step == STEPS == ours.state.global_step
    assert ours.state.epoch == 2
    assert torch.equal(torch.stack(seen.parameters), torch.stack(hand(plans()[kind], lora)))


class Killed(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **rest):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("stop", "lora"), [(3, True), (4, False)])
def test_a_checkpoint_and_the_ledger_go_on_with_the_run(stop, lora, tmp_path):
    plan = plans()["ordered"]
    ledger = tmp_path / "ledger"
    secret = tmp_path / "secret"
    args = arguments(
        tmp_path / "kept",
        optim="adamw_torch",
        lr_scheduler_type="linear",
        save_strategy="steps",
        save_steps=1,
    )

    def trained(run, *callbacks, **options):
        seen = Seen()
        ours = PrivateTrainer(run, args, train_dataset=Rows(), callbacks=[seen, *callbacks])
        ours.train(**options)
        return seen.parameters

    expected = trained(plan.start(model(lora), own_loss, noise=SeededNoise(1)))
    run = plan.start(model(lora), own_loss, noise=SeededNoise(1), ledger=ledger)
    torch.save(run.secret_state(), secret)
    with pytest.raises(KeyboardInterrupt):
        trained(run, Killed(stop))
    last = tmp_path / "kept" / f"checkpoint-{stop}"
    key = run.secret_state()["key"]
    assert run.step == stop
    # The control: the key is found where it is.
    assert holds(secret, key)
    assert not holds(tmp_path / "kept", key)
    # Of a kill between the last checkpoint and the last step.
    for lost in (0, 1) if lora else (0,):
        run = plan.resume(
            model(lora), own_loss, torch.load(secret), ledger=ledger, step=stop + lost
        )
        seen = trained(run, resume_from_checkpoint=str(last))
        assert len(seen) == STEPS - stop - lost
        assert run.step == STEPS
        if not lost:
            torch.testing.assert_close(seen, expected[stop:])
        ledger = None
    fresh = plan.start(model(lora), own_loss)
    message = f"must be of this run: the checkpoint is at step {stop}, the run at 0"
    with pytest.raises(ValueError, match=message):
        trained(fresh, resume_from_checkpoint=str(last))
    # Its noise is not spent on another model.
    assert fresh.step == 0


def test_logs_and_checkpoints_do_not_say_the_loss_nor_how_many_users_there_were(tmp_path):
    """Under Poisson sampling the size of a batch is as secret as who is in it."""
    for show_loss in (False, True):
        run = plans()["independent"].start(model(), own_loss)
        args = arguments(tmp_path, save_strategy="steps", save_steps=2, logging_steps=1)
        ours = PrivateTrainer(run, args, show_loss=show_loss, train_dataset=Rows())
        found = ours.train()
        logged = [name for entry in ours.state.log_history for name in entry]
        assert ("loss" in logged) == show_loss
        assert ("train_loss" in logged) == show_loss
        assert math.isfinite(found.training_loss) == show_loss
        # A count of operations is one of users.
        assert ours.state.total_flos == 0
        assert "learning_rate" in logged
        assert "grad_norm" in logged
        # The Trainer has a copy.
        assert args.max_steps == -1


REFUSED = [  # arguments, options of the Trainer, message
    ({"gradient_accumulation_steps": 2}, {}, "gradient_accumulation_steps must be 1, not 2"),
    ({"fp16": True}, {}, "fp16 must be False, not True: its scaler"),
    ({"auto_find_batch_size": True}, {}, "auto_find_batch_size must be False"),
    ({"train_sampling_strategy": "group_by_length"}, {}, "strategy must be 'random'"),
    ({}, {"compute_loss_func": own_loss}, "compute_loss_func must be left out"),
    ({}, {"show_loss": 1}, "show_loss must be"),
    ({}, {"train_dataset": WORDS[:9]}, "one row for each of the plan's 60 users, not 9"),
]


@pytest.mark.parametrize(("given", "options", "message"), REFUSED)
def test_guarantee_what_would_break_a_run_is_refused_before_a_step_is_spent(
    given, options, message, tmp_path
):
    run = plans()["ordered"].start(model(), own_loss)
    args = arguments(tmp_path, **given)
    options = {"train_dataset": Rows()} | options
    with pytest.raises((TypeError, ValueError), match=message):
        PrivateTrainer(run, args, **options).train()
    assert run.step == 0


def test_several_devices_are_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path)
    run = plans()["ordered"].start(model(), own_loss)
    monkeypatch.setattr(type(args), "parallel_mode", type(args.parallel_mode).DISTRIBUTED)
    with pytest.raises(ValueError, match="parallel_mode must be 'not_parallel'"):
        PrivateTrainer(run, args, train_dataset=Rows())
