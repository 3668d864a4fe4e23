"""The secure sketch: exact integers, calibrated noise, refusals before anything is drawn, counted bytes."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from torchdp.kernels.secure_sketch.reference import normals
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, gaussian_log_delta, gaussian_sigma
from torchdp.regression import clipped_rows
from torchdp.secure import FrameError, SecureSketch, share
from torchdp.secure import protocol as module
from torchdp.secure.servers import check_members
from torchdp.sketching import (
    AdaptiveCoalition,
    Sketch,
    StaticCoalition,
    balanced_osnap,
    count_sketch,
    ones,
    osnap,
)
from torchdp.sketching.transform import add_rows


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n, d, bound=1.0, seed=5):
    """Rows in the ball of this radius, some of them on its boundary."""
    x = torch.nn.functional.normalize(torch.randn(n, d, dtype=torch.float64, generator=generator(seed)), dim=1)
    return x * bound * torch.rand(n, 1, dtype=torch.float64, generator=generator(seed)).mul(2).clamp(max=1)


def protocol(n=60, m=6, s=2, d=3, **settings):
    sketch = balanced_osnap(n, m, s, generator=generator())
    return SecureSketch(sketch, d, 1.0, 1.0, 1e-5, **{"servers": 3, **settings})


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("servers", [2, 5])
def test_the_servers_compute_the_integer_sketch_bit_for_bit(bits, servers):
    p, A = protocol(bits=bits, servers=servers), rows(60, 3)
    words = p.messages(A, noise=SeededNoise(1))
    assert words.shape == (2, 60, 3) and words.dtype == p.ring.dtype
    total = [[0] * 3 for _ in range(6)]
    for c in range(2):
        for i in range(60):
            for l in range(3):
                total[int(p.sketch.rows[c, i])][l] += int(words[c, i, l])
    limit = 2 ** (bits - 1)
    assert all(-limit <= v < limit for row in total for v in row)  # nothing wrapped around
    expected = torch.tensor(total, dtype=torch.float64) / p.ring.scale / math.sqrt(2)
    assert torch.equal(p.release(A, noise=SeededNoise(1)), expected)


def test_messages_are_signed_truncated_values_plus_rounded_noise():
    p, A, key = protocol(fraction_bits=20), rows(60, 3), SeededNoise(1).words((4,)).view(torch.int32)
    noise = (
        normals(key, 0, 360).view(60, 2, 3).transpose(0, 1) * p.sigma[p.sketch.rows][..., None]
    )  # client by client
    expected = p.sketch.signs[..., None] * ((A * 2**20).trunc() + (noise * 2**20).round()).long()
    words = p.messages(A, noise=SeededNoise(1))
    assert words.shape == (2, 60, 3) and torch.equal(words, expected)
    assert torch.equal(p.messages(A[7:8], 7, noise=SeededNoise(1)), expected[:, 7:8])


def test_the_parts_of_all_messages_are_those_of_one_key(monkeypatch):
    p, A = protocol(fraction_bits=20), rows(60, 3)
    monkeypatch.setattr(module, "WORDS_AT_ONCE", 6 * 17)  # 17 clients at a time
    parts = list(p.speak(A, noise=SeededNoise(1)))
    assert [first for first, _ in parts] == [0, 17, 34, 51]
    assert torch.equal(torch.cat([words for _, words in parts], 1), p.messages(A, noise=SeededNoise(1)))
    assert torch.equal(p.release(A, noise=SeededNoise(1)), p.reveal(p.collect(A, noise=SeededNoise(1))))


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [32, 64])
def test_a_gpu_collects_the_same_integers(bits):
    here, A = protocol(n=600, bits=bits, fraction_bits=16), rows(600, 3)
    sketch = Sketch(here.sketch.rows.cuda(), here.sketch.signs.cuda(), here.sketch.height)
    there = replace(here, sketch=sketch)
    for verb in ("collect", "messages"):
        remote = getattr(there, verb)(A.cuda(), noise=SeededNoise(3, "cuda"))
        assert torch.equal(remote.cpu(), getattr(here, verb)(A, noise=SeededNoise(3)))


def test_large_numbers_and_small_noise_add_up_without_rounding():
    p = SecureSketch(ones(3), 1, 1.0, 1.0, 1e-6, sensitivity=1e-6, fraction_bits=58)
    A = 1 - torch.tensor([[2.0**-40], [2.0**-30], [0.0]], dtype=torch.float64)
    words = p.messages(A, noise=SeededNoise(1))
    units = normals(SeededNoise(1).words((4,)).view(torch.int32), 0, 3) * p.sigma * p.ring.scale
    assert torch.equal(words[0, :, 0], (A[:, 0] * 2.0**58).long() + units.round().long())


@pytest.mark.parametrize(("bits", "servers", "copies"), [(32, 2, 1), (64, 3, 2), (32, 4, 3)])
def test_guarantee_collected_sums_are_the_messages_shared_out(bits, servers, copies):
    p, A = protocol(bits=bits, servers=servers, s=copies), rows(60, 3)
    sums = p.collect(A, noise=SeededNoise(3))
    assert sums.shape == (servers, 6, 3) and sums.dtype == p.ring.dtype
    shares = share(p.messages(A, noise=SeededNoise(3)), servers)
    direct = add_rows(torch.zeros_like(sums), p.sketch.rows, shares)
    assert torch.equal(p.reveal(sums), p.reveal(direct)) and not torch.equal(sums, direct)  # other masks
    other = p.collect(A.flip(0), noise=SeededNoise(3))
    assert torch.equal(other[:-1], sums[:-1]) and not torch.equal(other[-1], sums[-1])  # the masks know no data
    assert torch.equal(p.release(A, noise=SeededNoise(3)), p.reveal(sums))
    for verb in (p.collect, p.messages, p.release):  # without a seed nothing is repeated
        assert not torch.equal(verb(A), verb(A))


@pytest.mark.parametrize(("bits", "sensitivity"), [(32, 2.0), (64, 1e-6)])
def test_the_fullest_sums_do_not_wrap_and_one_bit_more_is_refused(bits, sensitivity):
    n, settings = 300, {"bits": bits, "sensitivity": sensitivity}
    p = SecureSketch(ones(n), 1, 1.0, 1.0, 1e-6, **settings)
    total = p.release(torch.ones(n, 1), noise=SeededNoise(2))
    assert abs(float(total) - n) < 6 * float(p.noise_variance.sqrt())
    finest = p.ring.fraction_bits
    assert SecureSketch(ones(n), 1, 1.0, 1.0, 1e-6, **settings, fraction_bits=finest).ring == p.ring
    with pytest.raises(ValueError, match=f"at most {finest}"):
        SecureSketch(ones(n), 1, 1.0, 1.0, 1e-6, **settings, fraction_bits=finest + 1)
    reach = (n + 10 * math.sqrt(n) * float(p.sigma)) * p.ring.scale
    assert reach < 2 ** (bits - 1) <= 2.01 * reach


def test_every_unit_of_the_grid_can_be_hit_by_float64_noise():
    p = SecureSketch(ones(4000), 1, 1.0, 1.0, 1e-6)
    assert 2**39 < float(p.sigma) * p.ring.scale <= 2**40
    words = p.messages(torch.zeros(4000, 1), noise=SeededNoise(3))
    for bit in range(8):
        assert abs(float(((words >> bit) & 1).double().mean()) - 0.5) < 4 / math.sqrt(4 * 4000)
    with pytest.raises(ValueError, match="gaps"):
        SecureSketch(ones(4000), 1, 1.0, 1.0, 1e-6, fraction_bits=p.ring.fraction_bits + 1)
    shifted = torch.randn(4000, dtype=torch.float64, generator=generator(3)) * 2.0**58  # noise of a finer grid
    assert (shifted.round().long() % 2 == 0).double().mean() > 0.95


def test_a_bound_on_entries_leaves_room_for_more_bits():
    sketch = ones(10**4)
    plain, tight = (SecureSketch(sketch, 100, 10.0, 10.0, 1e-6, bits=32, entry=entry) for entry in (None, 1.0))
    assert tight.ring.fraction_bits > plain.ring.fraction_bits


@pytest.mark.filterwarnings("ignore:a grid of")
def test_guarantee_no_client_is_told_apart_better_than_mu():
    epsilon, delta = 0.7, 1e-6
    for coalition in (AdaptiveCoalition(0), AdaptiveCoalition(3), StaticCoalition(10)):
        sketch = osnap(3000, 20, 3, generator=generator())
        for bits, f in ((64, 30), (32, 3), (32, 0)):
            p = SecureSketch(sketch, 4, 1.5, epsilon, delta, coalition=coalition, bits=bits, fraction_bits=f)
            rest = delta - coalition.slack(delta)
            worst = 0.0
            for i in range(0, 3000, 97):  # the proof's sum, client by client, with all honest pairs or fewer
                total = 0.0
                for c in range(3):
                    j = int(sketch.rows[c, i])
                    h, sigma = int(coalition.honest(sketch, delta)[j]), float(p.sigma[j])
                    cost = min(9 / k + 4 * k / (4 * 4.0**f) for k in range(1, h + 1))  # D = 2 * 1.5, d = 4
                    total += cost / sigma**2
                worst = max(worst, total)
            exact = gaussian_log_delta(1.0, epsilon, math.sqrt(worst))
            assert math.log(rest) - 0.3 < exact <= math.log(rest)
            assert gaussian_log_delta(1.0, epsilon, math.sqrt(worst * 1.05)) > math.log(rest)
    assert p.guarantee.model is Model.LINEAR_TRANSFORM and not p.guarantee.exact
    assert (p.guarantee.epsilon, p.guarantee.delta) == (epsilon, delta)


def test_without_a_coalition_and_on_a_fine_grid_the_noise_is_the_ideal_one():
    p = SecureSketch(balanced_osnap(5000, 50, 5, generator=generator()), 4, 2.0, 0.3, 1e-6)
    ideal = gaussian_sigma(0.3, 1e-6, 4.0) ** 2
    assert torch.allclose(p.noise_variance, torch.full((50,), ideal, dtype=torch.float64), rtol=1e-9)


@pytest.mark.parametrize("s", [1, 4])
def test_noise_of_both_paths_has_the_predicted_variance(s):
    n, m, d = 4000, 40, 250
    sketch = balanced_osnap(n, m, s, generator=generator())
    p, A = SecureSketch(sketch, d, 1.0, 1.0, 1e-5, coalition=AdaptiveCoalition(7)), rows(n, d)
    exact = sketch.apply(A)
    for release in (
        p.release(A, noise=SeededNoise(3)),
        p.reveal(p.collect(A, noise=SeededNoise(4))),
        p.sample(A, generator=generator(3)),
    ):
        z = (release - exact) / p.noise_variance.sqrt()[:, None]
        squares = z.square()
        assert abs(float(squares.mean()) - 1) < 4 * math.sqrt(2 / squares.numel())
        assert abs(float(z.mean())) < 4 / math.sqrt(z.numel())


def test_messages_and_sums_drawn_at_once_have_one_law():
    sketch = Sketch(
        torch.tensor([[0, 2, 2, 2, 4, 4]]), torch.tensor([[1, -1, 1, 1, -1, 1]]), 5
    )  # 1, 0, 3, 0, 2 clients
    p = SecureSketch(sketch, 1000, 1.0, 1.0, 1e-3)
    A = rows(6, 1000)
    messages = torch.cat([p.release(A, noise=SeededNoise(k)) for k in range(3)], 1)
    at_once = p.sample(A, generator=generator(50), sample_shape=(3,)).transpose(0, 1).flatten(1)
    assert messages.dtype == at_once.dtype == torch.float64
    centre = sketch.apply(A).repeat(1, 3)
    for j in (0, 2, 4):
        assert ks_2samp(messages[j] - centre[j], at_once[j] - centre[j]).pvalue > 1e-3
        assert ks_2samp(messages[j] - centre[j], 1.3 * (at_once[j] - centre[j])).pvalue < 1e-4
    for j in (1, 3):
        assert (messages[j] == 0).all() and (at_once[j] == 0).all()


def test_one_client_is_enough_and_keeps_all_its_noise():
    p = SecureSketch(ones(1), 2, 1.0, 1.0, 1e-5)
    assert float(p.sigma) == pytest.approx(gaussian_sigma(1.0, 1e-5, 2.0), rel=1e-9)
    assert p.sample(torch.zeros(1, 2), generator=generator(), sample_shape=(4,)).shape == (4, 1, 2)


@pytest.mark.filterwarnings("ignore:a grid of")
def test_a_grid_too_coarse_for_sums_drawn_at_once_is_refused():
    p = protocol(fraction_bits=2)
    with pytest.raises(ValueError, match="too coarse"):
        p.sample(rows(60, 3), generator=generator())
    assert p.release(rows(60, 3), noise=SeededNoise(0)).shape == (6, 3)


BAD = {
    "bound = 1.0": lambda A: A * 1.001 / A.norm(dim=1).max(),
    "NaN": lambda A: A.index_fill(0, torch.tensor([3]), math.nan),
    "infinite": lambda A: A.index_fill(0, torch.tensor([3]), math.inf),
    r"shape \(clients, 3\)": lambda A: A[:, :2],
    "60 rows": lambda A: A[:59],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_data_are_refused_before_any_noise_is_drawn(message):
    p, random, own = protocol(), generator(4), SeededNoise(4)
    before, calls = random.get_state(), [(p.sample, {"generator": random})]
    calls += [(verb, {"noise": own}) for verb in (p.release, p.collect, p.speak)]
    for verb, source in calls:
        with pytest.raises(ValueError, match=message) as error:
            verb(BAD[message](rows(60, 3)), **source)
        assert "tensor(" not in str(error.value)
    assert torch.equal(random.get_state(), before)
    assert torch.equal(own.words((4,)), SeededNoise(4).words((4,)))


def test_public_and_private_randomness_do_not_mix():
    p, A = protocol(), rows(60, 3)
    for verb in (p.messages, p.speak, p.collect, p.release):
        with pytest.raises(TypeError, match="never what hides a user"):
            verb(A, noise=generator())
    for call in (lambda g: p.sample(A, generator=g), lambda g: osnap(9, 3, 1, generator=g)):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
            call(SeededNoise(1))


def test_rows_clipped_in_double_precision_pass():
    A = torch.nn.functional.normalize(torch.randn(60, 3, dtype=torch.float64, generator=generator()), dim=1)
    assert protocol().check(A) is A
    short = clipped_rows(A.float() * 3, 1.0)
    assert short.dtype == torch.float64 and protocol().check(short) is short
    with pytest.raises(ValueError, match="in float64"):  # float32's rounding makes a row longer than the bound
        protocol().check(torch.nn.functional.normalize(A.float(), dim=1))
    with pytest.raises(ValueError, match=r"entry = 0\.5"):
        protocol(entry=0.5).check(A)


def test_bad_settings_are_refused():
    sketch = count_sketch(50, 10, generator=generator())
    least = int(sketch.counts().min())
    with pytest.raises(ValueError, match="no honest client"):
        SecureSketch(sketch, 3, 1.0, 1.0, 1e-6, coalition=AdaptiveCoalition(least))
    SecureSketch(sketch, 3, 1.0, 1.0, 1e-6, coalition=AdaptiveCoalition(least - 1))
    with pytest.raises(ValueError, match="scale the data down"):
        SecureSketch(sketch, 3, 1e9, 1.0, 1e-6, bits=32)
    for wrong, message in (
        ({"servers": 1}, "servers"), ({"bits": 48}, "bits"), ({"fraction_bits": -1}, "fraction_bits"),
        ({"entry": 2.0}, "entry"), ({"sensitivity": 0.0}, "sensitivity"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            SecureSketch(sketch, 3, 1.0, 1.0, 1e-6, **wrong)
    for arguments in ((3, 0.0, 1.0, 1e-6), (3, 1.0, 0.0, 1e-6), (3, 1.0, 1.0, 0.0), (0, 1.0, 1.0, 1e-6)):
        with pytest.raises(ValueError, match=r"bound|epsilon|delta|columns"):
            SecureSketch(sketch, *arguments)
    with pytest.raises(TypeError, match="coalition"):
        SecureSketch(sketch, 3, 1.0, 1.0, 1e-6, coalition=5)
    with pytest.raises(TypeError, match="sketch"):
        SecureSketch(torch.eye(3), 3, 1.0, 1.0, 1e-6)
    p = protocol()
    with pytest.raises(TypeError, match="ring has 64 bits"):
        p.reveal(torch.zeros(3, 6, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"one .* for each server"):
        p.reveal(torch.zeros(2, 6, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="beyond the 60 clients"):
        p.messages(rows(60, 3), 1, noise=SeededNoise(0))
    with pytest.raises(ValueError, match="nonce"):
        p.session(b"short")


def test_a_known_smaller_sensitivity_means_less_noise():
    full, less = (SecureSketch(ones(1000), 5, 1.0, 1.0, 1e-6, sensitivity=v) for v in (None, math.sqrt(2)))
    assert float(less.sigma / full.sigma) == pytest.approx(1 / math.sqrt(2), rel=1e-6)


def test_a_grid_that_costs_noise_warns_with_its_factor():
    with pytest.warns(UserWarning, match="772 times the least; take bits=64"):
        p = SecureSketch(ones(10**6), 10, 1.0, 1.0, 1e-6, bits=32)
    least = gaussian_sigma(1.0, 1e-6, 2.0) ** 2
    assert p.grid_factor == pytest.approx(float(p.noise_variance[0]) / least, rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecureSketch(ones(10**6), 10, 1.0, 1.0, 1e-6)
        SecureSketch(ones(1000), 10, 1.0, 1.0, 1e-6, bits=32, sensitivity=1.0, entry=0.5)


def test_rows_further_apart_than_the_stated_sensitivity_are_refused():
    p = SecureSketch(ones(3), 2, 1.0, 1.0, 1e-6, sensitivity=0.25)
    near = torch.tensor([[0.0, 0.9], [0.0, 0.7], [0.1, 0.7]], dtype=torch.float64)
    assert p.release(near).shape == (1, 2) and "at most 0.25 apart" in p.guarantee.source
    for verb in (p.release, p.messages, p.collect):
        with pytest.raises(ValueError, match=r"more than sensitivity = 0\.25 apart"):
            verb(torch.cat([near[:2], -near[2:]]))


def test_drop_outs_leave_the_noise_that_colluders_were_counted_for():
    """n = 30, ten drop out, then ten of the others collude: ten clients' noise has to hide a client."""
    for absent in (0, 10):
        p = SecureSketch(ones(30), 1, 1.0, 1.0, 1e-6, coalition=AdaptiveCoalition(10, absent=absent))
        exact = gaussian_log_delta(float(p.sigma[0]) * math.sqrt(10), 1.0, 2.0)
        assert (exact <= math.log(1e-6) + 1e-9) is (absent == 10)
        there = torch.arange(30) >= 10
        if absent:
            check_members(p, there)
        else:
            with pytest.raises(FrameError, match="absent = 0 drop out"):
                check_members(p, there)
    with pytest.raises(FrameError, match="11 of 30"):
        check_members(p, torch.arange(30) >= 11)
    with pytest.raises(ValueError, match=r"corrupt \+ absent must be below"):
        SecureSketch(ones(30), 1, 1.0, 1.0, 1e-6, coalition=AdaptiveCoalition(20, absent=10))


def test_the_same_numbers_in_other_types_are_the_same_session():
    sketch, nonce = ones(9), bytes(range(32))
    sessions = {
        SecureSketch(
            sketch, 1, kind(1), kind(2), 1e-6, sensitivity=kind(1), entry=kind(1), coalition=AdaptiveCoalition(n)
        ).session(nonce)
        for kind, n in ((int, 1), (float, np.int64(1)), (np.float32, torch.tensor(1)))
    }
    assert len(sessions) == 1


def test_sessions_of_other_parameters_have_other_names():
    nonce = bytes(range(32))
    others = [
        protocol(),
        protocol(bits=32),
        protocol(servers=2),
        protocol(coalition=AdaptiveCoalition(1)),
        protocol(coalition=AdaptiveCoalition(absent=1)),
        protocol(d=4),
    ]
    assert len({p.session(nonce) for p in others}) == len(others)
    assert protocol().session(nonce) == protocol().session(nonce) != protocol().session(nonce[::-1])


@pytest.mark.parametrize(
    ("n", "servers", "megabytes"), [(10**5, 3, 24.024), (10**5, 2, 16.016), (10**6, 3, 240.024)]
)
def test_bytes_are_those_of_the_paper(n, servers, megabytes):
    sketch = balanced_osnap(n, 100, 1, generator=generator())
    settings = {"servers": servers, "sensitivity": 1.0}
    assert SecureSketch(sketch, 10, 1.0, 1.0, 1e-6, **settings).payload_bytes == round(megabytes * 1e6)
    assert 2 * SecureSketch(sketch, 10, 1.0, 1.0, 1e-6, bits=32, **settings).payload_bytes == round(
        megabytes * 1e6
    )
