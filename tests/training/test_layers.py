"""Public features and sketches as layers: the same numbers, gradients, and how they travel."""

import copy
import pickle

import pytest
import torch
from laws import normal, stored
from torch import nn

from torchdp import density, sketching
from torchdp.randomness import keyed_generator
from torchdp.training import FeatureLayer, SketchLayer

FAMILIES = [
    density.GaussianFourier(5, 2.0),
    density.GaussianOrthogonal(5, 2.0),
    density.InnerProduct(5),
    density.InnerProductRotated(5, 1.0),
]


def drawn(public):
    """What is public, drawn anew: the same each time."""
    g = keyed_generator(b"layers")
    if public == "sketch":
        return sketching.osnap(5, 4, 2, generator=g)
    return public.draw(7, generator=g)


def layer_of(public):
    made = drawn(public)
    return SketchLayer(made) if public == "sketch" else FeatureLayer(made)


def points(*shape):
    return 0.9 * nn.functional.normalize(normal(*shape, name=b"layers"), dim=-1)


LAYERS = pytest.mark.parametrize("public", [*FAMILIES, "sketch"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_feature_layer_is_the_features(family):
    features = drawn(family)
    layer = layer_of(family)
    x = points(6, 5)
    torch.testing.assert_close(layer(x), features.left(x) / 7**0.5, rtol=0, atol=1e-14)
    torch.testing.assert_close(layer.queries(x), features.right(x) / 7**0.5, rtol=0, atol=1e-14)
    torch.testing.assert_close(layer(x.view(2, 3, 5)).view(6, -1), layer(x))
    assert not list(layer.parameters())
    assert layer(x.float()).dtype == torch.float32


@pytest.mark.parametrize(
    "shape",
    [
        (5,),
        (3, 5),
        (2, 3, 5),
        (0, 5),
    ],
)
def test_a_sketch_layer_is_the_sketch(shape):
    layer = layer_of("sketch")
    x = points(*shape)
    torch.testing.assert_close(layer(x), x @ drawn("sketch").dense().mT)
    assert layer(x.float()).dtype == torch.float32


@LAYERS
def test_state_dict_deepcopy_pickle_and_to(public):
    layer = layer_of(public)
    x = points(4, 5)
    fresh = layer_of(public)
    # A layer that forgot its buffers would be another function.
    for buffer in fresh.buffers():
        buffer.zero_()
    fresh.load_state_dict(stored(layer.state_dict()))
    for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    moved = copy.deepcopy(layer).to(torch.float32)
    torch.testing.assert_close(moved(x.float()).double(), layer(x), rtol=1e-4, atol=1e-5)
    assert all(buffer.dtype != torch.float64 for buffer in moved.buffers())


# No batching rule for clamp_ and a cached matrix: slower, not wrong.
@pytest.mark.filterwarnings("ignore")
@LAYERS
def test_vmap_and_autocast(public):
    layer = layer_of(public)
    x = points(4, 5)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x), rtol=0, atol=1e-14)
    single = layer(x.float())
    # A phase has no digits to lose in half precision.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer(x.float())
    assert inside.dtype == torch.float32
    assert torch.equal(inside, single)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("public", [FAMILIES[0], "sketch"])
def test_compile_in_one_graph(public):
    # A break of the graph would be an error here.
    torch._dynamo.reset()
    layer = layer_of(public)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = points(4, 5).requires_grad_()
    values = []
    gradients = []
    for f in (compiled, layer):
        y = f(x)
        weights = normal(*y.shape, name=b"weights")
        values.append(y)
        gradients += torch.autograd.grad((y * weights).sum(), x)
    torch.testing.assert_close(*values, rtol=0, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
