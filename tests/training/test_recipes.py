"""Recipes that people train by, their routes, and their sums beside plain autograd."""

import peft
import pytest
import torch
import transformers
from hidden import WIDTH, Backward, Hidden, batch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from trained import brute
from transformers.activations import ACT2FN

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import Clipper

N = 7
BOUND = 0.3
INPUTS, LABELS = batch(N)
SEQUENCES = torch.randn(N, 5, 6, generator=keyed_generator(b"sequences"))
WORDS = torch.randint(3, 50, (N, 10), generator=keyed_generator(b"words"))
MASKS = keyed_generator(b"masks")


def summed(net, x, loss=F.cross_entropy, y=LABELS, route="factors", tolerance=1e-4, **options):
    """The sum of a second call, held to plain autograd where nothing is drawn."""
    sums = Clipper(net, loss)
    # The second batch takes the program that the first one has shown.
    for _ in range(2):
        total, _ = sums(x, y, BOUND, **options)
    assert sums.route.startswith(route), sums.route
    if not options:
        expected = brute(net, loss, x, y, BOUND)
        assert (total - expected).norm() < tolerance * expected.norm()


class Block(nn.Module):
    """``run(block, z)`` of a block of layers."""

    def __init__(self, run, rate=0.0):
        super().__init__()
        linear = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Sequential(nn.LayerNorm(WIDTH), linear, nn.Dropout(rate), nn.GELU())
        self.run = run

    def forward(self, z, x):
        return self.run(self.block, z)


def checkpointed(block, z):
    z = z + checkpoint(block, z, use_reentrant=False)
    return checkpoint(block, z, use_reentrant=False)


def in_half(block, z):
    with torch.autocast("cpu", torch.bfloat16):
        return block(z).float()


def test_gradient_checkpointing_keeps_the_fast_route():
    summed(Hidden(Block(checkpointed)), INPUTS)
    summed(Hidden(Block(checkpointed, 0.5)), INPUTS, dropout=MASKS)


def born(z, x):
    """A leaf that is made in forward."""
    return (z.detach() * 1.0).requires_grad_() + z


def until_small(z, x):
    """Rows that are done are left alone: each is a function of itself."""
    done = torch.zeros(len(z), 1, dtype=torch.bool)
    while not done.all():
        new = torch.where(done, z, torch.tanh(z / 2))
        changes = (new - z).abs().amax(1, keepdim=True)
        done = done | (changes < 1e-2)
        z = new
    return z


def guarded(z, x):
    if not z.isfinite().all():
        raise ValueError("not finite")
    return z


class Exponential(torch.autograd.Function):
    """As torch's documentation has it."""

    @staticmethod
    def forward(ctx, z):
        out = z.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


HALF = {"tolerance": 2e-2}
LOOP = {"route": "loop"}
USES = {
    "a leaf that is made in forward": (born, {}),
    "a custom function": (lambda z, x: Exponential.apply(z), {}),
    "gradients that go straight through": (lambda z, x: Backward.apply(z, lambda g: g), {}),
    "autocast inside": (Block(in_half), HALF),
    "half precision inside": (lambda z, x: z.bfloat16().float(), HALF),
    "a loop that ends by the data": (until_small, LOOP),
    "a guard that reads the data": (guarded, LOOP),
}


@pytest.mark.parametrize("name", USES)
def test_uses_in_forward(name):
    use, options = USES[name]
    summed(Hidden(use), INPUTS, **options)


def test_hooks_of_modules_see_gradients():
    seen = []
    net = Hidden(born)
    net.last.register_full_backward_hook(lambda module, before, after: seen.append(after))
    summed(net, INPUTS)
    assert seen


class Force(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 1, bias=False)

    def forward(self, x):
        x = x.requires_grad_()
        energy = self.last(torch.tanh(self.first(x))).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


def test_gradients_inside_of_the_module_are_served():
    summed(Force(), INPUTS, F.mse_loss, torch.tanh(INPUTS), "loop")


class Draws(nn.Module):
    """Noise on embeddings, as NEFTune's, and the loss inside."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x, labels):
        z = self.first(x)
        uniform = torch.zeros_like(z).uniform_(-0.1, 0.1)
        z = z + uniform + 0.1 * torch.randn_like(z)
        return F.cross_entropy(self.last(z), labels)


def test_draws_in_forward_beside_a_loss_inside():
    x = {"x": INPUTS, "labels": LABELS}
    summed(Draws(), x, lambda output, y: output, dropout=MASKS)


class Recurrent(nn.Module):
    """Of sequences (n, T, 6) means of all outputs, and of all states at the end."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer
        width = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        words = 1 if self.layer.batch_first else 0
        outputs, state = self.layer(x if words else x.transpose(0, 1))
        if isinstance(state, tuple):
            state = sum(state)
        ends = state.sum((0, 2))
        return self.last(outputs.mean(words)) + ends[:, None] / 10


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_layers_are_unrolled(kind, both, bias):
    layer = kind(6, 8, 2, bias=bias, bidirectional=both, batch_first=not both)
    summed(Recurrent(layer), SEQUENCES)


def test_recurrent_layers_draw_masks():
    # Between the layers, for each example its own.
    layer = nn.LSTM(6, 8, 2, dropout=0.5, batch_first=True)
    summed(Recurrent(layer), SEQUENCES, dropout=MASKS)


class Starts(nn.Module):
    """Its first state is made of the example."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        state = x.mean(1)[None].contiguous()
        outputs, _ = self.gru(x, state)
        return self.last(outputs[:, -1])


def test_recurrent_layers_start_from_the_examples():
    summed(Starts(), SEQUENCES)


def test_convolutions_of_channels_under_autocast():
    torch.manual_seed(0)
    alone = nn.Conv1d(6, 6, 3, groups=6)
    net = nn.Sequential(alone, nn.ConvTranspose1d(6, 4, 3), nn.Flatten(), nn.Linear(20, 3))
    with torch.autocast("cpu", torch.bfloat16):
        summed(net, SEQUENCES.mT, **HALF)


@pytest.mark.parametrize(
    ("mode", "padding", "route"),
    [
        ("sum", None, "factors"),
        ("mean", None, "factors"),
        ("sum", 0, "vmap"),
    ],
)
def test_bags_of_words_but_for_padding(mode, padding, route):
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(50, 8, mode=mode, padding_idx=padding)
    # A word that counts as none has a gradient of 0.
    words = WORDS.where(WORDS > 20, 0)
    summed(nn.Sequential(bag, nn.Linear(8, 3)), words, route=route)


class Windows(nn.Module):
    """As Swin: four windows of each example, and a table of relative positions in the scores."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(9))
        self.last = nn.Linear(24, 3)

    def forward(self, x):
        z = x.repeat(1, 1, 4).view(len(x) * 4, 5, 6)
        places = torch.arange(5)
        distances = places[:, None] - places
        scores = z @ z.mT + self.table[distances + 4][None]
        windows = (scores.softmax(2) @ z).mean(1)
        return self.last(windows.view(len(x), 24))


class Lookup(nn.Module):
    """As DeBERTa's positions: keys that are made of parameters alone, for every head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.keys = nn.Linear(6, 6)
        self.places = nn.Parameter(torch.randn(2, 4, 6))

    def forward(self, x):
        heads = x.view(len(x), 5, 2, 3).transpose(1, 2)
        keys = self.keys(self.places).view(1, 2, 4, 2, 3)[:, :, :, 0]
        return (heads @ keys.mT).mean((1, 2))[:, :3]


@pytest.mark.parametrize("kind", [Windows, Lookup])
def test_attention_with_tables_and_keys_of_parameters(kind):
    summed(kind(), SEQUENCES)


def next_word(output, words):
    return F.cross_entropy(output.logits[:, :-1].mT, words[:, 1:])


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_checkpointed_language_models_with_and_without_adapters(adapted, half):
    """As transformers' Trainer prepares them: inputs require gradients, autocast is around."""
    net = transformer("llama")
    if adapted:
        net = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    net.gradient_checkpointing_enable({"use_reentrant": False})
    net.enable_input_require_grads()
    net.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        summed(net, {"input_ids": WORDS}, next_word, WORDS, **HALF if half else {})


def of_logits(output, y):
    return F.cross_entropy(output.logits, y)


def of_output(output, y):
    return output.loss


def test_speech_models_are_served():
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_feat_extract_layers=2,
        num_labels=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    torch.manual_seed(0)
    net = transformers.Wav2Vec2ForSequenceClassification(config).eval()
    x = {"input_values": torch.randn(4, 400, generator=keyed_generator(b"speech"))}
    y = LABELS[:4]
    # Used in training alone: noise would move it.
    with pytest.raises(ValueError, match=r"masked_spec_embed.*unused="):
        clip_and_sum(net, of_logits, x, y, BOUND)
    total = clip_and_sum(net, of_logits, x, y, BOUND, unused=["wav2vec2.masked_spec_embed"])
    expected = brute(net, of_logits, x, y, BOUND)
    assert (total - expected).norm() < 1e-3 * expected.norm()


def sizes(**given):
    return {"vocab_size": 50, **given}


LAYERS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
MODELS = {  # class of the model, of its configuration, sizes
    "bert": (
        transformers.BertForSequenceClassification,
        transformers.BertConfig,
        sizes(**LAYERS, num_labels=3),
    ),
    "distilbert": (
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertConfig,
        sizes(dim=16, n_layers=1, n_heads=2, hidden_dim=24, num_labels=3),
    ),
    "vit": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig,
        dict(LAYERS, image_size=8, patch_size=4, num_labels=3),
    ),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        sizes(n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0),
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        sizes(**LAYERS, num_key_value_heads=1, use_cache=False),
    ),
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        sizes(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0),
    ),
}
CLASSIFIES = ("bert", "distilbert", "vit")


def transformer(name):
    kind, config, given = MODELS[name]
    torch.manual_seed(0)
    return kind(config(**given)).eval()


def counted(*lengths):
    """(4, 10): whether a row's word is one of its first ones, so many of each."""
    return torch.arange(10) < torch.tensor(lengths)[:, None]


def task(name, form):
    """Inputs and the loss of four rows: with a mask, without, or with labels inside of the call."""
    words = WORDS[:4]
    x = {"input_ids": words}
    if name == "vit":
        x = {"pixel_values": torch.randn(4, 3, 8, 8, generator=keyed_generator(b"pixels"))}
    elif form != "no mask":
        x["attention_mask"] = counted(10, 4, 10, 5).long()
    if form == "labels":
        # Fewer words of some rows count.
        some = words.masked_fill(counted(1, 2, 4, 3), -100)
        return x | {"labels": LABELS[:4] if name in CLASSIFIES else some}, of_output
    if name in CLASSIFIES:
        return x, of_logits
    if name == "t5":
        x["decoder_input_ids"] = words[:, :3]

    def by_place(output, y):
        places = torch.arange(output.logits.shape[1])
        return F.cross_entropy(output.logits.mT, y[:, None] + places)

    return x, by_place


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["mask", "no mask", "labels"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_are_served_and_the_package_is_as_it_was(name, form):
    functions = dict(dict.items(ACT2FN))
    x, loss = task(name, form)
    # Its functions are swapped in passes of other libraries, and left so.
    summed(transformer(name), x, loss, LABELS[:4])
    assert dict(dict.items(ACT2FN)) == functions
