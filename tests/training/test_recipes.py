"""Recipes that people train by, their routes, and their sums beside plain autograd."""

import peft
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from trained import brute

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import Clipper

N = 7
BOUND = 0.3
INPUTS = torch.randn(N, 6, generator=keyed_generator(b"inputs"))
SEQUENCES = torch.randn(N, 5, 6, generator=keyed_generator(b"sequences"))
LABELS = torch.randint(3, (N,), generator=keyed_generator(b"labels"))
WORDS = torch.randint(50, (N, 10), generator=keyed_generator(b"words"))


def summed(net, loss, x, y, route, tolerance=1e-4, dropout=None):
    """The sum of a second call, held to plain autograd where nothing is drawn."""
    sums = Clipper(net, loss)
    for _ in range(2):
        total, _ = sums(x, y, BOUND, dropout=dropout)
    assert sums.route.startswith(route), sums.route
    if dropout is None:
        expected = brute(net, loss, x, y, BOUND)
        assert (total - expected).norm() < tolerance * expected.norm()


class Net(nn.Module):
    """``use(self, z)`` of hidden numbers."""

    def __init__(self, use, rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(rate), nn.GELU())
        self.last = nn.Linear(16, 3)
        self.use = use

    def forward(self, x):
        return self.last(self.block(self.use(self, self.first(x))))


def checkpointed(net, z):
    z = z + checkpoint(net.block, z, use_reentrant=False)
    return checkpoint(net.block, z, use_reentrant=False)


def test_gradient_checkpointing_keeps_the_fast_route():
    summed(Net(checkpointed), F.cross_entropy, INPUTS, LABELS, "factors")
    masks = keyed_generator(b"masks")
    summed(Net(checkpointed, 0.5), F.cross_entropy, INPUTS, LABELS, "factors", dropout=masks)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, use_cache=False, **sizes, **heads)
    return transformers.LlamaForCausalLM(config)


def next_word(output, words):
    return F.cross_entropy(output.logits[:, :-1].mT, words[:, 1:])


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_checkpointed_language_models_with_and_without_adapters(adapted, half):
    """As transformers' Trainer prepares them: inputs require gradients, autocast is around."""
    net = llama()
    if adapted:
        net = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    net.gradient_checkpointing_enable({"use_reentrant": False})
    net.enable_input_require_grads()
    net.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        tolerance = 2e-2 if half else 1e-4
        summed(net, next_word, {"input_ids": WORDS}, WORDS, "factors", tolerance)


def test_speech_models_are_served():
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
        num_labels=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    torch.manual_seed(0)
    net = transformers.Wav2Vec2ForSequenceClassification(config).eval()
    x = {"input_values": torch.randn(4, 400, generator=keyed_generator(b"speech"))}

    def loss(output, y):
        return F.cross_entropy(output.logits, y)

    with pytest.raises(ValueError, match=r"masked_spec_embed.*unused="):
        clip_and_sum(net, loss, x, LABELS[:4], BOUND)
    sums = Clipper(net, loss, unused=["wav2vec2.masked_spec_embed"])
    total, _ = sums(x, LABELS[:4], BOUND)
    expected = brute(net, loss, x, LABELS[:4], BOUND)
    assert (total - expected).norm() < 1e-3 * expected.norm()


def born(net, z):
    return (z.detach() * 1.0).requires_grad_() + z


def in_half(net, z):
    with torch.autocast("cpu", torch.bfloat16):
        return net.block(z).float()


def until_small(net, z):
    """Rows that are done are left alone: each is a function of itself."""
    done = torch.zeros(len(z), 1, dtype=torch.bool)
    while not done.all():
        new = torch.where(done, z, torch.tanh(z / 2))
        done = done | ((new - z).abs().amax(1, keepdim=True) < 1e-2)
        z = new
    return z


def guarded(net, z):
    if not z.isfinite().all():
        raise ValueError("not finite")
    return z


USES = {
    "a leaf that is made in forward": (born, "factors", 1e-4),
    "autocast inside": (in_half, "factors", 2e-2),
    "half precision inside": (lambda net, z: z.bfloat16().float(), "factors", 2e-2),
    "a loop that ends by the data": (until_small, "loop", 1e-4),
    "a guard that reads the data": (guarded, "loop", 1e-4),
}


@pytest.mark.parametrize("name", USES)
def test_uses_in_forward(name):
    use, route, tolerance = USES[name]
    summed(Net(use), F.cross_entropy, INPUTS, LABELS, route, tolerance)


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
    summed(Force(), F.mse_loss, INPUTS, torch.tanh(INPUTS), "loop")


class Draws(nn.Module):
    """Noise on embeddings, as NEFTune's, and the loss inside."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x, labels):
        z = self.first(x)
        z = z + torch.zeros_like(z).uniform_(-0.1, 0.1) + 0.1 * torch.randn_like(z)
        return F.cross_entropy(self.last(z), labels)


def test_draws_in_forward_beside_a_loss_inside():
    x = {"x": INPUTS, "labels": LABELS}
    summed(Draws(), lambda output, y: output, x, LABELS, "factors", dropout=keyed_generator(b"a"))


class Recurrent(nn.Module):
    def __init__(self, layer, last_first):
        super().__init__()
        self.layer = layer
        width = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.last = nn.Linear(width, 3)
        self.last_first = last_first

    def forward(self, x):
        x = x.transpose(0, 1) if self.last_first else x
        outputs, state = self.layer(x)
        ends = sum(state) if isinstance(state, tuple) else state
        outputs = outputs.transpose(0, 1) if self.last_first else outputs
        return self.last(outputs.mean(1)) + ends.sum(2).sum(0)[:, None] / 10


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_layers_are_unrolled(kind, both, bias):
    torch.manual_seed(0)
    layer = kind(6, 8, 2, bias=bias, bidirectional=both, batch_first=not both)
    summed(Recurrent(layer, both), F.cross_entropy, SEQUENCES, LABELS, "factors")


def test_recurrent_layers_drop_and_start_from_the_examples():
    torch.manual_seed(0)
    net = Recurrent(nn.LSTM(6, 8, 2, dropout=0.5, batch_first=True), False)
    masks = keyed_generator(b"masks")
    summed(net, F.cross_entropy, SEQUENCES, LABELS, "factors", dropout=masks)
    gru = nn.GRU(6, 8, batch_first=True)
    last = nn.Linear(8, 3)

    class Starts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = gru
            self.last = last

        def forward(self, x):
            state = x.mean(1)[None].repeat(1, 1, 2)[..., :8].contiguous()
            return self.last(self.gru(x, state)[0][:, -1])

    summed(Starts(), F.cross_entropy, SEQUENCES, LABELS, "factors")


def test_convolutions_of_channels_under_autocast():
    torch.manual_seed(0)
    alone = nn.Conv1d(6, 6, 3, groups=6)
    net = nn.Sequential(alone, nn.ConvTranspose1d(6, 4, 3), nn.Flatten(), nn.Linear(20, 3))
    with torch.autocast("cpu", torch.bfloat16):
        summed(net, F.cross_entropy, SEQUENCES.mT, LABELS, "factors", 2e-2)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_words(mode):
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(50, 8, mode=mode), nn.Linear(8, 3))
    summed(net, F.cross_entropy, WORDS, LABELS, "factors")


def test_a_bag_without_its_first_word_goes_to_another_route():
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum", padding_idx=0), nn.Linear(8, 3))
    summed(net, F.cross_entropy, WORDS, LABELS, "vmap")


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
        bias = self.table[(places[:, None] - places) + 4][None]
        scores = z @ z.mT + bias
        return self.last((scores.softmax(2) @ z).mean(1).view(len(x), 24))


def test_a_table_that_is_added_in_each_window():
    summed(Windows(), F.cross_entropy, SEQUENCES, LABELS, "factors")


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


def test_products_with_keys_of_parameters():
    summed(Lookup(), F.cross_entropy, SEQUENCES, LABELS, "factors")
