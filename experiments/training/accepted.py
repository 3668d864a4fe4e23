"""Which models of transformers have their gradients clipped example by example, beside Opacus's two
ways.

Paper: as of experiments/training/clipping.py.
Command:  OMP_NUM_THREADS=1 python experiments/training/accepted.py
Expected: torchdp accepts all 40 and equals one example after another within 5e-5, Opacus's hooks do
for 36 and ghost
    clipping for 30; the exceptions by which they refuse the others are named. Tiny random models of
    their default attention but for two, full or with LoRA of rank 4 (peft), with a mask of each
    row's own length and without; ViT has no mask. BERT and GPT-2 are given position_ids, without
    which Opacus's hooks refuse them. The loss is the cross entropy of the class, or of the last
    word.
Output: results/training/accepted/accepted.csv. Printed: experiments/bench/accepted_cpu.txt.
Artifact: - | which models clipping takes
Status: agrees
Time: a minute on one core; --smoke in seconds.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from opacus_ways import ghost, hooks, trained
from torch import Tensor, nn
from torch.nn import functional as F

from torchdp.simulate import Experiment
from torchdp.training import clip_and_sum

BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
DISTILBERT = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
LLAMA = BERT | {"num_key_value_heads": 1}
T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
VIT = {name: size for name, size in BERT.items() if name != "vocab_size"}
VIT |= {"image_size": 8, "patch_size": 4}
EAGER = {"attn_implementation": "eager"}
MODELS = {  # class, sizes, what LoRA adapts
    "BERT": ("BertForSequenceClassification", BERT, ["query", "value"]),
    "RoBERTa": ("RobertaForSequenceClassification", BERT, ["query", "value"]),
    "DistilBERT": ("DistilBertForSequenceClassification", DISTILBERT, ["q_lin", "v_lin"]),
    "GPT-2": ("GPT2LMHeadModel", GPT2, ["c_attn"]),
    "Llama": ("LlamaForCausalLM", LLAMA, ["q_proj", "v_proj"]),
    "Qwen2": ("Qwen2ForCausalLM", LLAMA, ["q_proj", "v_proj"]),
    "T5": ("T5ForConditionalGeneration", T5, ["q", "v"]),
    "ViT": ("ViTForImageClassification", VIT, ["q_proj", "v_proj"]),
    "GPT-2, eager": ("GPT2LMHeadModel", GPT2 | EAGER, ["c_attn"]),
    "Llama, eager": ("LlamaForCausalLM", LLAMA | EAGER, ["q_proj", "v_proj"]),
}


@dataclass(frozen=True)
class Config:
    models: tuple[str, ...] = tuple(MODELS)


BOUND = 0.5


class Logits(nn.Module):
    """Of the class, or of the last word."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **x):
        logits = self.inner(**x).logits
        return logits[:, -1] if logits.ndim == 3 else logits


def task(name, adapted, masked) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    import transformers

    kind, sizes, parts = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    net = model(model.config_class(**sizes)).eval()
    if adapted:
        import peft

        config = peft.LoraConfig(
            r=4, target_modules=parts, lora_dropout=0.0, init_lora_weights=False
        )
        net = peft.get_peft_model(net, config)
    words = torch.randint(3, 50, (4, 7))
    x = {"pixel_values": torch.randn(4, 3, 8, 8)} if name == "ViT" else {"input_ids": words}
    if masked and name != "ViT":
        padding = torch.tensor([0, 3, 0, 2])[:, None]
        x["attention_mask"] = (torch.arange(7) >= padding).long()
    if name == "BERT" or name.startswith("GPT-2"):
        x["position_ids"] = torch.arange(7).expand(4, 7)
    if name == "T5":
        x["decoder_input_ids"] = words[:, :3]
    return Logits(net).train(False), x, torch.tensor([0, 1, 1, 0])


def alone(net, x, y):
    """One example after another."""
    parameters = trained(net)
    total = torch.zeros(sum(p.numel() for p in parameters))
    for i in range(len(y)):
        example = {name: value[i : i + 1] for name, value in x.items()}
        loss = F.cross_entropy(net(**example), y[i : i + 1])
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in parts])
        total += gradient * min(1.0, BOUND / float(gradient.norm()))
    return total


def ours(net, y, bound) -> Callable[..., Tensor]:
    return lambda **x: clip_and_sum(net, F.cross_entropy, x, y, bound)


def answer(way: Callable[..., Tensor], net, x, y, expected):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = way(net, y, BOUND)(**x)
    except Exception as error:  # whatever it raises is the answer
        return type(error).__name__
    difference = float((total - expected).norm() / expected.norm())
    return "equal" if difference < 5e-5 else f"differs by {difference:.1g}"


def measure(config, report):
    ways = {"torchdp": ours, "Opacus, hooks": hooks, "Opacus, ghost clipping": ghost}
    for name, adapted, masked in product(config.models, (False, True), (False, True)):
        net, x, y = task(name, adapted, masked)
        for part in net.modules():  # Opacus asks for training mode; nothing here is drawn
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        expected = alone(net, x, y)
        row = {"model": name, "trained": "LoRA" if adapted else "full", "mask": masked}
        for way, call in ways.items():
            row[way] = answer(call, copy.deepcopy(net), x, y, expected)
        report.row("accepted", **row)


EXPERIMENT = Experiment(measure, Config(), Config(models=("BERT",)))

if __name__ == "__main__":
    EXPERIMENT.main()
