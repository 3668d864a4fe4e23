"""Seeds and digests: pinned values, domain separation, what a configuration may hold."""

import math

import numpy as np
import pytest
import torch

from torchdp.simulate.streams import block_generator, canonical, digest

CONFIG = {"n": 100, "eps": 0.5, "name": "é", "flag": True, "list": [1, None]}


def draws(seed, config, block):
    return tuple(torch.randint(2**62, (2,), generator=block_generator(seed, config, block)).tolist())


def test_digest_known_answer():
    assert canonical(CONFIG) == '{"eps":0.5,"flag":true,"list":[1,null],"n":100,"name":"\\u00e9"}'
    assert digest(CONFIG) == "c9248e9b12ece92f2fdc7aa53fe537b8c94a8c0cac3706c350c9b3c23db70817"


def test_stream_known_answer():
    assert draws(7, {"n": 100}, 3) == (2050638398449657253, 262505935885969578)


def test_digest_ignores_key_order_and_nothing_else():
    assert digest(CONFIG) == digest(dict(reversed(CONFIG.items())))
    variants: list[dict[str, object]] = [
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": [1]},
        {"a": None},
        {"b": 1},
        {},
    ]
    assert len({digest(config) for config in variants}) == len(variants)


def test_numpy_floats_are_floats():
    assert digest({"eps": np.float64(0.1)}) == digest({"eps": 0.1})


def test_streams_are_separate():
    keys = [(s, {"n": n}, b) for s in (0, 1, 11) for n in (0, 1, 11) for b in (0, 1, 11, 111)]
    keys += [(0, {"n": 0}, b) for b in range(200, 5000)]
    assert len({draws(*key) for key in keys}) == len(keys)


def test_global_generator_is_untouched():
    before = torch.random.get_rng_state()
    torch.rand(3, generator=block_generator(1, {}, 0))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "value", [(1,), {"a": 1}, torch.tensor(1.0), np.int64(1), np.zeros(2), b"x", [1, (2,)], 1j]
)
def test_other_values_are_refused_by_name(value):
    with pytest.raises(TypeError, match=r"config\['key'\]"):
        digest({"key": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, -math.inf]])
def test_non_finite_values_are_refused_by_name(value):
    with pytest.raises(ValueError, match=r"config\['key'\].*finite"):
        digest({"key": value})


def test_other_configs_and_indices_are_refused():
    with pytest.raises(TypeError, match="must be a dict"):
        digest([("a", 1)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str keys"):
        digest({1: 2})  # type: ignore[dict-item]
    for seed, block in [(-1, 0), (0, -1), (0.5, 0), (True, 0)]:
        with pytest.raises(ValueError, match="integer >= 0"):
            block_generator(seed, {}, block)  # type: ignore[arg-type]
