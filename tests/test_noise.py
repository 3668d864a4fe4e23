"""Draws from the cipher and from generators: their laws, and that no stream is ever given twice."""

import copy
import math
import os
import pickle
import threading

import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.draws import AT_ONCE, COARSE, Draws, Simulated
from torchdp.kernels import chacha
from torchdp.noise import LONGEST, Noise, SeededNoise, source

ALPHA = 1e-6
SOURCES = {
    "seeded": lambda: SeededNoise(1),
    "generator": lambda: Simulated(generator(1)),
}


class Given(Draws):
    """The words of a list, again and again: a test's way to put rare words in by hand."""

    def __init__(self, *words):
        self.device = torch.device("cpu")
        self.given = torch.tensor(words)

    def fill(self, words):
        words.copy_(self.given.repeat(-(-len(words) // len(self.given)))[: len(words)])

    def kernel_key(self):
        return None


@pytest.fixture(params=SOURCES)
def draws(request):
    return SOURCES[request.param]()


def test_a_stream_is_the_keystream_whole_blocks_a_call():
    noise = SeededNoise(3)
    stream = chacha.reference.keystream(noise._stream._key, 0, 2 + 5000).view(torch.int64)
    words = [
        noise.words((5,)),
        noise.words((2, 4)).flatten(),
        noise.words((40_000,)),
    ]
    assert torch.equal(torch.cat(words), torch.cat([stream[:5], stream[8:16], stream[16:]]))
    assert noise.words((0,)).shape == (0,)


def test_a_stream_goes_on_across_the_counter_of_the_library():
    key = chacha.system_key()
    stream = chacha.Stream(key)
    expected = chacha.reference.keystream(key, 2**32 - 2, 6).view(torch.int64)
    if chacha.LIBRARY:
        stream._cipher._cipher = chacha.library._cipher(key, 2**32 - 2, 0, 0)
    stream.used = 8 * (2**32 - 2)
    found = torch.empty(24, dtype=torch.int64)
    stream.fill(found)
    after = torch.empty(20, dtype=torch.int64)
    stream.fill(after)
    assert torch.equal(torch.cat([found, after]), expected[:44])


@pytest.mark.parametrize("number", [1, 7, 2 * AT_ONCE + 3])
def test_laws_of_real_numbers(draws, number):
    for drawn, law in [
        (draws.uniform((number,)), stats.uniform()),
        (draws.normal((number,)), stats.norm()),
        (draws.exponential((number,)), stats.expon()),
        (draws.gamma(torch.full((number,), 0.3)), stats.gamma(0.3)),
        (draws.gamma(torch.full((number,), 7.5)), stats.gamma(7.5)),
    ]:
        assert drawn.shape == (number,)
        assert drawn.dtype == torch.float64
        assert stats.kstest(drawn.numpy(), law.cdf).pvalue > ALPHA
        if number > 1000:
            # a wrong scale shows
            assert stats.kstest(drawn.numpy() * 1.05, law.cdf).pvalue < 0.01


def test_large_and_sure_counts(draws):
    # a variance of 2e11: far beyond a table
    large = draws.binomial(torch.full((5000,), 10**12), 0.3).double()
    scaled = (large - 3e11) / math.sqrt(2.1e11)
    assert stats.kstest(scaled.numpy(), "norm").pvalue > ALPHA
    assert draws.binomial(torch.tensor([10**6, 10**6, 0, 7]), torch.tensor([0.0, 1.0, 0.5, 1.0])).tolist() == [
        0, 10**6, 0, 7,
    ]  # fmt: skip
    assert draws.poisson(torch.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bound", [3, 1000, 3 * 2**61, 2**63 - 1])
def test_integers_below_a_bound_are_uniform(draws, bound):
    value = draws.below(bound, (50_000,))
    assert 0 <= int(value.min())
    assert int(value.max()) < bound
    assert not draws.below(1, (9,)).any()
    # 3 2^61 of 2^63 integers: without drawing again the first third would be twice as likely as the
    # others
    # bounds up to 2^63 are cut into twelve cells
    cells = min(bound, 12)
    cell = (value.double() / bound * cells).long().clamp(max=cells - 1)
    # as likely in each cell
    assert stats.chisquare(cell.bincount(minlength=cells)).pvalue > ALPHA


def test_the_tails_of_normals_and_exponentials_go_on_below_2_to_the_minus_63():
    """Words put in by hand: an integer m of 63 bits, then the bits that follow it."""
    for m, rest in [
        (0, 0),
        (0, 5),
        (3, 2**62),
        (COARSE - 1, 2**61 + 1),
    ]:
        u = (m + (rest + 0.5) * 2.0**-63) * 2.0**-63

        class Two(Given):
            def integers(self, shape, rest=rest):
                return torch.full(shape, rest)

        assert float(Two(m).exponential((1,))) == pytest.approx(-math.log(u), rel=1e-15)
        assert float(Two(m, 0).normal((2,))[0]) == pytest.approx(
            math.sqrt(-2 * math.log(u)), rel=1e-15
        )
    # what 126 bits of tail reach
    assert math.sqrt(2 * 127 * math.log(2)) > 13.2
    chance = (COARSE + 0.5) * 2.0**-63
    assert float(Given(COARSE).exponential((1,))) == pytest.approx(-math.log(chance), rel=1e-15)
    assert float(Given(2**63 - 1, 5).normal((2,))[0]) == 0.0


def test_a_seed_repeats_and_the_system_does_not():
    assert torch.equal(SeededNoise(7).words((9,)), SeededNoise(7).words((9,)))
    assert not torch.equal(SeededNoise(7).words((9,)), SeededNoise(7 + 2**32).words((9,)))
    first, again, other = [SeededNoise.of(generator(seed)) for seed in (5, 5, 6)]
    assert first.seed == again.seed != other.seed
    assert first.seed > 2**128
    assert not torch.equal(Noise().words((9,)), Noise().words((9,)))
    assert Noise().kernel_key() is None


@pytest.mark.parametrize("make", [Noise, lambda: SeededNoise(1)])
def test_no_copy_repeats_a_word(make):
    noise = make()
    noise.words((1,))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can not be copied or pickled"):
            attempt(noise)


def in_child(action):
    """What a forked child's ``action`` returns, as text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(action()).encode())
        except BaseException as error:
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 2**16).decode()


def test_forked_children_draw_other_words():
    noise = Noise()
    noise.words((8,))
    children = [in_child(lambda: noise.words((2,)).tolist()) for _ in range(2)]
    assert len({*children, str(noise.words((2,)).tolist())}) == 3


def test_a_child_with_its_grandparents_number_draws_other_words(monkeypatch):
    noise = Noise()
    noise.words((8,))
    parent = os.getpid()
    # process numbers are used again
    monkeypatch.setattr(os, "getpid", lambda: parent)
    assert in_child(lambda: noise.words((2,)).tolist()) != str(noise.words((2,)).tolist())


def test_a_seeded_stream_does_not_outlive_a_fork():
    noise = SeededNoise(1)
    assert in_child(lambda: noise.words((2,))) == "RuntimeError"


@pytest.mark.parametrize("make", [Noise, lambda: SeededNoise(1)])
def test_threads_share_no_word(make):
    noise = make()
    found = []

    def draw():
        found.extend(noise.words((1001,)) for _ in range(20))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # no word twice among all threads
    assert len(torch.cat(found).unique()) == 80 * 1001


def test_a_key_is_renewed():
    noise = Noise()
    noise.words((1,))
    stream = noise._own.stream
    stream.used = LONGEST - 4
    noise.words((5,))
    assert noise._own.stream is not stream


def test_source_tells_noise_from_what_is_public():
    assert type(source(None, torch.device("cpu"))) is Noise
    seeded = SeededNoise(1)
    assert source(seeded, "cpu") is seeded
    with pytest.raises(TypeError, match=r"never what hides a user"):
        source(torch.Generator())
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
        Simulated(seeded)
    with pytest.raises(TypeError, match="seed must be an int"):
        SeededNoise(True)
    with pytest.raises(ValueError, match="noise is on cpu, the data on meta"):
        source(seeded, "meta")


def test_each_thread_has_a_key_of_its_own(monkeypatch):
    keys = []
    noise = Noise()

    def another(device):
        keys.append(chacha.key_of(bytes([len(keys)] * 32)))
        return keys[-1]

    monkeypatch.setattr("torchdp.noise.system_key", another)
    # one after the other: no race is needed to see it
    for _ in range(3):
        thread = threading.Thread(target=noise.words, args=((8,),))
        thread.start()
        thread.join()
    assert len(keys) == 3
