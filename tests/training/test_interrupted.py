"""What an interrupt or a handler leaves of a stream of noise: of its load, and of a step that it finishes."""

import itertools
import sys

import pytest
import torch

from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.training import CorrelatedNoise, stream

ZERO = torch.zeros(5, dtype=torch.float64)


def make(seed):
    strategy = BandedStrategy(torch.tensor([[1.0, 0.5, 0.25]], dtype=torch.float64), 8)
    return CorrelatedNoise(strategy, len(ZERO), 2.0, dtype=torch.float64, noise=SeededNoise(seed))


def stopped(line, call):
    """Whether ``call()`` was interrupted, which is done at this line of the stream's code, counted from 0."""

    def interrupt(frame, event, _):
        nonlocal line
        if frame.f_code.co_filename != stream.__file__:
            return None
        line -= event == "line"
        if line < 0:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


def test_an_interrupted_load_leaves_one_state_or_the_other():
    parent = make(1)
    for _ in range(3):
        parent(ZERO)
    state, following = parent.secret_state(), parent(ZERO)
    for line in itertools.count():
        noise = make(2)
        whole = not stopped(line, lambda noise=noise: noise.load_secret_state(state))
        try:
            drawn = noise(ZERO)
        except RuntimeError:
            assert noise.step == 3 and not whole
            continue
        assert noise.step in (1, 4) and torch.equal(drawn, following if noise.step == 4 else make(2)(ZERO))
        if whole:
            break
    assert line > 10


def test_no_state_is_loaded_in_the_midst_of_a_step(monkeypatch):
    noise, other = make(1), make(2)
    state, add = noise.secret_state(), stream.correlated_noise.add

    def handled(*args, **options):
        with pytest.raises(RuntimeError, match="while it was drawing"):
            other.load_secret_state(state)
        add(*args, **options)

    monkeypatch.setattr(stream.correlated_noise, "add", handled)
    assert other(ZERO).isfinite().all()


def test_a_spent_step_stays_spent_when_what_finishes_it_is_interrupted(monkeypatch):
    def stops(*args, **options):
        raise KeyboardInterrupt

    for line in itertools.count():
        noise = make(1)
        noise(ZERO)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stream.correlated_noise, "add", stops)
            noise(ZERO)
        assert noise.step == 2
        if not stopped(line, lambda noise=noise: noise(ZERO)):
            break
        assert noise.step >= 2
    assert line > 10
