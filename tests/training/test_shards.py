"""Parts of a gradient's noise, each made where it is needed: the numbers of the whole, and of no other step."""

import itertools

import pytest
import torch

from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.training import CorrelatedNoise, replicas, stream

C = BandedStrategy(torch.tensor([[1.0, 0.5, 0.2]]).double(), 6)


def make(size, seed=1, **options):
    return CorrelatedNoise(C, size, 2.0, noise=SeededNoise(seed), **options)


def run(noise, steps=6):
    return torch.stack([noise(torch.zeros(noise._stream.size)) for _ in range(steps)])


@pytest.mark.parametrize("cuts", [(0, 40), (0, 7, 40), (0, 16, 17, 33, 40)])
def test_shards_hold_the_numbers_of_the_whole(monkeypatch, cuts):
    monkeypatch.setattr(stream, "AT_ONCE", 16)
    whole = run(make(40))
    parts = [run(make(stop - start, shard=(start, 40))) for start, stop in itertools.pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-6)
    assert len(whole.unique()) == whole.numel()
    assert make(7, shard=(3, 40)).secret_state()["past"].shape == (2, 7)


def test_a_shard_s_secret_state_is_of_that_shard():
    state = make(7, shard=(3, 40)).secret_state()
    make(7, shard=(3, 40)).load_secret_state(state)
    for other in ((4, 40), (3, 41)):
        with pytest.raises(ValueError, match="another part"):
            make(7, shard=other).load_secret_state(state)


def test_steps_that_are_skipped_are_spent_and_later_noise_is_as_it_was():
    whole, noise = run(make(5)), make(5)
    noise.skip(2)
    assert noise.step == 2
    assert torch.equal(run(noise, 1), whole[2:3])
    noise.skip(5)
    assert torch.equal(run(noise, 1), whole[5:])
    with pytest.raises(ValueError, match="step must be"):
        make(5).skip(7)
    with pytest.raises(ValueError, match="step must be"):
        noise.skip(3)


def test_a_shard_that_is_all_of_a_gradient_is_compared_with_no_other(monkeypatch):
    """A model of one number on several processes: only the first has the sum."""
    compared = []
    monkeypatch.setattr(replicas, "several", lambda: True)
    monkeypatch.setattr(replicas, "from_first", lambda key: key)
    monkeypatch.setattr(replicas, "check_agree", lambda step, digest, total: compared.append(len(total)))
    for options in ({"shard": (0, 1)}, {}):
        make(1, **options)(torch.zeros(1))
    assert compared == [0, 1]
