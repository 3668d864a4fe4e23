"""Public features and private noise come from sources of two types: what is published predicts no
noise.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdp.density import LaplacianSigns, ShuffledKDE
from torchdp.draws import Simulated
from torchdp.noise import Noise, SeededNoise
from torchdp.shuffle import PoissonSum

N = 500
SUMS = 64
GUIDE = Path(__file__).parents[2] / "docs/densities.md"


def untempered(words):
    """Mersenne Twister's state words from its outputs, uint32."""
    x = words.astype(np.uint64)
    x ^= x >> np.uint64(18)
    x ^= (x << np.uint64(15)) & np.uint64(0xEFC60000)
    y = x.copy()
    # seven more bits are right each time
    for _ in range(4):
        y = x ^ ((y << np.uint64(7)) & np.uint64(0x9D2C5680))
    z = y.copy()
    for _ in range(2):
        z = y ^ (z >> np.uint64(11))
    return z & np.uint64(0xFFFFFFFF)


def recovered(features):
    """A generator in the state that drew these public features, from nothing but their last 312
    keys.
    """
    keys = features.grid.keys.flatten()[-312:]
    # each key is two outputs of the Mersenne twister
    keys = keys.numpy().view(np.uint64)
    outputs = np.stack([keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)], 1)
    generator = torch.Generator()
    state = generator.get_state().numpy()
    # the next draw starts a new round of 624
    state[8:12].view(np.int32)[0] = 1
    state[24 : 24 + 8 * 624].view(np.uint64)[:] = untempered(outputs.flatten())
    generator.set_state(torch.from_numpy(state))
    return generator


def stolen(kde, released, generator):
    """Which exact counts come out where the noise is what this generator draws next."""
    law = kde.law
    zeros = torch.zeros(SUMS, dtype=torch.int64)
    noise = law.decode(law.noised(zeros, Simulated(generator)), N)
    ones = (released.value / kde.features.bound + 1) / 2
    return ones * N - noise


@pytest.fixture(scope="module")
def public():
    x = torch.randn(N, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    features = LaplacianSigns(8).draw(SUMS, generator=generator)
    return (
        x,
        ShuffledKDE(features, PoissonSum(N, 4000.0), 1e-6, epsilon=4.0),
        generator,
    )


def test_the_attack_recovers_every_count_where_one_generator_draws_both(public):
    x, kde, generator = public
    # the law of a release, in the place of one: never for real data
    released = kde.sample_estimate(kde.summary(x), generator=generator)
    exact = kde.features.ones(x, Simulated(torch.Generator()), ())
    assert torch.equal(
        stolen(kde, released, recovered(kde.features)).round().long(),
        exact,
    )


def test_guarantee_the_attack_on_public_features_learns_nothing_of_collected_noise(public):
    x, kde, _ = public
    released = kde.estimate(x)
    exact = kde.features.ones(x, Simulated(torch.Generator()), ()).double()
    # what an attacker who knows all public draws reads of the counts
    off = stolen(kde, released, recovered(kde.features)) - exact
    # each by chance, once in 200
    assert int((off.abs() < 0.5).sum()) < 8
    # two independent noises
    assert 0.5 < float(off.square().mean()) / (2 * kde.law.mean) < 1.7


def test_guarantee_the_guide_s_own_release_is_not_predicted_by_its_generator():
    """The strongest adversary: it holds the very generator that drew the data and the features."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "density.GaussianOrthogonal" in block)
    wanted = "released = kde.estimate(vectors)"
    assert wanted in example
    before, line, _ = example.partition(wanted)
    names = {}
    exec(before + line, names)
    kde = names["kde"]
    vectors = names["vectors"]
    released = names["released"]
    old = torch.Generator().set_state(names["generator"].get_state())
    crowd = kde.summary(vectors)
    law = kde.sample_estimate(crowd, generator=old).value
    assert not torch.isclose(law, released.value, atol=0.5 / len(vectors), rtol=0).all()
    # rounding and noise of two releases, independent
    noise = law - released.value
    drawn = kde.sample_estimate(crowd, generator=old, sample_shape=(50,)).value
    variance = float(drawn.var(0).mean())
    assert 0.6 < float(noise.square().mean()) / (2 * variance) < 1.5
    again = torch.Generator().set_state(names["generator"].get_state())
    # and one generator would repeat it all
    assert torch.equal(kde.sample_estimate(crowd, generator=again).value, law)


def test_guarantee_one_source_for_both_is_a_type_error(public):
    x, kde, generator = public
    with pytest.raises(TypeError, match="noise must be"):
        kde.collect(x, noise=generator)
    for noise in (Noise(), SeededNoise(1)):
        with pytest.raises(TypeError, match="generator must be"):
            LaplacianSigns(8).draw(SUMS, generator=noise)
        with pytest.raises(TypeError, match="generator must be"):
            kde.sample_estimate(kde.summary(x), generator=noise)
    with pytest.raises(TypeError, match="generator"):
        kde.collect(x, generator=generator)


PRIVATE = {"collect", "randomize", "estimate"}
LAW = {"draw", "sample_tally", "sample_estimate"}
