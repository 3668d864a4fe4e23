"""Public features and sketches as layers: the same numbers, gradients, and how they travel."""

import copy
import pickle

import pytest
import torch
from laws import stored
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


def generator():
    return keyed_generator(b"layers")


def points(*shape):
    return (
        nn.functional.normalize(
            torch.randn(*shape, dtype=torch.float64, generator=generator()), dim=-1
        )
        * 0.9
    )


def feature_layer(family=FAMILIES[0]):
    return FeatureLayer(family.draw(7, generator=generator()))


def sketch_layer():
    return SketchLayer(sketching.osnap(5, 4, 2, generator=generator()))


MAKERS = [*(lambda family=family: feature_layer(family) for family in FAMILIES), sketch_layer]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_feature_layer_is_the_features(family):
    features = family.draw(7, generator=generator())
    layer = feature_layer(family)
    x = points(6, 5)
    torch.testing.assert_close(layer(x), features.left(x) / 7**0.5, rtol=0, atol=1e-14)
    torch.testing.assert_close(layer.queries(x), features.right(x) / 7**0.5, rtol=0, atol=1e-14)
    torch.testing.assert_close(layer(x.view(2, 3, 5)).view(6, -1), layer(x))
    assert not list(layer.parameters())
    assert layer(x.float()).dtype == torch.float32


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_a_sketch_layer_is_the_sketch(shape):
    sketch = sketching.osnap(5, 4, 2, generator=generator())
    layer = sketch_layer()
    x = points(*shape)
    torch.testing.assert_close(layer(x), x @ sketch.dense().mT)
    assert layer(x.float()).dtype == torch.float32


@pytest.mark.parametrize("make", MAKERS)
def test_state_dict_deepcopy_pickle_and_to(make):
    layer = make()
    x = points(4, 5)
    fresh = make()
    for buffer in fresh.buffers():
        buffer.zero_()
    fresh.load_state_dict(stored(layer.state_dict()))
    for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    moved = copy.deepcopy(layer).to(torch.float32)
    torch.testing.assert_close(moved(x.float()).double(), layer(x), rtol=1e-4, atol=1e-5)
    assert all(b.dtype != torch.float64 for b in moved.buffers())


# no batching rule for clamp_ and a cached matrix: slower, not wrong
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MAKERS)
def test_vmap_and_autocast(make):
    layer = make()
    x = points(4, 5)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x), rtol=0, atol=1e-14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x.float()), layer(x.float()).float())
        inside = layer(x.float())
    assert torch.equal(inside, layer(x.float()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [MAKERS[0], MAKERS[4]])
def test_compile_in_one_graph(make):
    torch._dynamo.reset()
    layer = make()
    x = points(4, 5).requires_grad_()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-12)
    weights = torch.randn(compiled(x).shape, dtype=x.dtype, generator=generator())
    a, b = (torch.autograd.grad((f(x) * weights).sum(), x)[0] for f in (compiled, layer))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
