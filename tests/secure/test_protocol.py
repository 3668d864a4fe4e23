"""The secure sketch: exact integers, calibrated noise, refusals before anything is drawn, counted
bytes.
"""

import itertools
import math
import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from contract import MessageContract
from laws import float64, generator, normal, uniform
from laws import keyed_normals as normals
from products import gaussian_delta, written_out

from torchdp.noise import SeededNoise
from torchdp.privacy import (
    Arithmetic,
    Model,
    gaussian_log_delta,
    gaussian_sigma,
)
from torchdp.regression.errors import shortened
from torchdp.secure import SecureSketch, reconstruct, share
from torchdp.secure.protocol import one_key
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    Sketch,
    balanced_osnap,
    ones,
    osnap,
)


def rows(n, d, bound=1.0, seed=5):
    """Rows in the ball of this radius, some of them on its boundary."""
    x = torch.nn.functional.normalize(normal(n, d, seed=seed), dim=1)
    lengths = uniform(n, 1, seed=seed).mul(2).clamp(max=1)
    return x * bound * lengths


def protocol(n=60, m=6, s=2, d=3, **settings):
    sketch = balanced_osnap(n, m, s, generator=generator())
    return SecureSketch(sketch, d, 1.0, 1.0, 1e-5, **{"servers": 3, **settings})


CLIENTS = torch.arange(24)
# row 3 is empty
ROWS = torch.stack([CLIENTS % 3, 4 + CLIENTS % 2])
NEGATIVE = torch.stack([CLIENTS % 5 % 2, CLIENTS % 7 % 2])
UNEVEN = Sketch(ROWS, 1 - 2 * NEGATIVE, 6)


class TestSecureSketch(MessageContract):
    repeats = 4000
    protocol = SecureSketch(
        UNEVEN,
        2,
        1.0,
        1.0,
        1e-3,
        servers=3,
        coalition=AdaptiveCoalition(2, absent=1),
    )
    x = rows(24, 2)
    bad: ClassVar = [
        rows(24, 3),
        1.1 * rows(24, 2),
        rows(24, 2) * math.nan,
        rows(24, 2)[None],
        torch.zeros(25, 2),
    ]

    def loss(self, protocol):
        """delta of the worst client, three of each row's pairs gone: Gaussian noise, each copy its
        own.
        """
        # of sqrt(s) Y
        noise = torch.tensor([5, 5, 5, 1, 9, 9]) * protocol.sigma**2
        reach = 2 * protocol.bound * math.sqrt(2) * written_out(UNEVEN)
        squares = reach.square()
        ratios = torch.where(squares > 0, squares / noise[:, None], 0.0)
        mu = ratios.sum(0).max().sqrt()
        return gaussian_delta(float(mu), self.protocol.epsilon)

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return written_out(UNEVEN) @ self.x


@pytest.mark.parametrize(("bits", "servers"), [(32, 2), (64, 5)])
def test_the_servers_compute_the_integer_sketch_bit_for_bit(bits, servers):
    p = protocol(bits=bits, servers=servers)
    A = rows(60, 3)
    words = p.randomize(A, noise=SeededNoise(1)).values
    assert words.shape == (2, 60, 3)
    assert words.dtype == p.ring.dtype
    total = [[0] * 3 for _ in range(6)]
    for c, i, ell in itertools.product(range(2), range(60), range(3)):
        row = int(p.sketch.rows[c, i])
        total[row][ell] += int(words[c, i, ell])
    # what a signed word holds
    limit = 2 ** (bits - 1)
    # nothing wrapped around
    assert all(-limit <= v < limit for row in total for v in row)
    tally = p.tally(p.randomize(A, noise=SeededNoise(1)))
    assert tally["words"].tolist() == total
    sums = [torch.zeros(6, 3, dtype=words.dtype) for _ in range(servers)]
    for held, each in zip(sums, share(words, servers), strict=True):
        p.place(held, slice(None), each)
    assert reconstruct(torch.stack(sums)).tolist() == total
    value = p.analyse(tally).value
    assert torch.equal(value, float64(total) / p.ring.scale / math.sqrt(2))


@pytest.mark.parametrize("bits", [32, 64])
def test_guarantee_one_process_draws_one_noise_for_each_sum_as_wide_as_all_clients_together(bits):
    """Integers alone and a rounded normal of the clients' variance: its own mu is no more than is
    promised.
    """
    coalition = AdaptiveCoalition(3, absent=2)
    p = SecureSketch(
        UNEVEN,
        2,
        1.0,
        1.0,
        1e-3,
        coalition=coalition,
        bits=bits,
        fraction_bits=14,
    )
    A = rows(24, 2)
    key = one_key(SeededNoise(1))
    units = p.sigma * 2.0**14
    # clients that add to each row
    counts = torch.tensor([8, 8, 8, 0, 12, 12])
    variance = counts * units.square() + (counts - 1).clamp_min(0) / 12
    noise = normals(key, 0, 12).view(6, 2) * variance.sqrt()[:, None]
    exact = written_out(UNEVEN) * math.sqrt(2) @ (A * 2**14).trunc()
    words = p.collect(A, noise=SeededNoise(1))["words"]
    assert torch.equal(words.double(), exact + noise.round())

    def delta(variance):
        apart = 2 * math.sqrt(2) * written_out(UNEVEN)[variance > 0] * 2.0**14
        ratios = apart.square() / variance[variance > 0, None]
        mu = float(ratios.sum(0).max().sqrt())
        return gaussian_delta(mu, 1.0)

    assert delta(variance) < 1e-3
    # the noise of one client is not enough
    assert delta(units.square() * (counts > 0)) > 1e-3


@pytest.mark.filterwarnings("ignore:a grid of")
def test_a_grid_that_is_too_coarse_for_one_noise_has_the_clients_own():
    p = protocol(fraction_bits=2)
    A = rows(60, 3)
    alone = p.tally(p.randomize(A, noise=SeededNoise(1)))
    assert torch.equal(p.collect(A, noise=SeededNoise(1))["words"], alone["words"])


def test_messages_are_signed_truncated_values_plus_rounded_noise():
    p = protocol(fraction_bits=20)
    A = rows(60, 3)
    key = SeededNoise(1).words((4,)).view(torch.int32)
    # client by client
    sigma = p.sigma[p.sketch.rows][..., None]
    noise = normals(key, 0, 360).view(60, 2, 3).transpose(0, 1) * sigma
    units = (A * 2**20).trunc() + (noise * 2**20).round()
    expected = p.sketch.signs[..., None] * units.long()
    words = p.randomize(A, noise=SeededNoise(1))
    assert words.first == 0
    assert torch.equal(words.values, expected)
    one = p.randomize(A[7:8], first=7, noise=SeededNoise(1))
    assert one.first == 7
    assert torch.equal(one.values, expected[:, 7:8])


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [32, 64])
def test_a_gpu_collects_the_same_integers(bits):
    here = protocol(n=600, bits=bits, fraction_bits=16)
    A = rows(600, 3)
    sketch = Sketch(
        here.sketch.rows.cuda(),
        here.sketch.signs.cuda(),
        here.sketch.height,
    )
    there = replace(here, sketch=sketch)
    remote = there.collect(A.cuda(), noise=SeededNoise(3, "cuda"))
    local = here.collect(A, noise=SeededNoise(3))
    assert torch.equal(remote["words"].cpu(), local["words"])
    remote = there.randomize(A.cuda(), noise=SeededNoise(3, "cuda"))
    local = here.randomize(A, noise=SeededNoise(3))
    assert torch.equal(remote.values.cpu(), local.values)


def test_large_numbers_and_small_noise_add_up_without_rounding():
    p = SecureSketch(
        ones(3),
        1,
        1.0,
        1.0,
        1e-6,
        sensitivity=1e-10,
        fraction_bits=58,
    )
    A = 1 - float64([[2.0**-45], [2.0**-35], [0.0]])
    words = p.randomize(A, noise=SeededNoise(1)).values
    key = SeededNoise(1).words((4,)).view(torch.int32)
    units = normals(key, 0, 3) * p.sigma * p.ring.scale
    assert torch.equal(
        words[0, :, 0],
        (A[:, 0] * 2.0**58).long() + units.round().long(),
    )


@pytest.mark.parametrize(("bits", "sensitivity"), [(32, 2.0), (64, 1e-8)])
def test_the_fullest_sums_do_not_wrap_and_one_bit_more_is_refused(bits, sensitivity):
    n = 300
    settings = {"bits": bits, "sensitivity": sensitivity}
    p = SecureSketch(ones(n), 1, 1.0, 1.0, 1e-6, **settings)
    total = p.estimate(torch.ones(n, 1), noise=SeededNoise(2)).value
    assert abs(float(total) - n) < 6 * float(p.row_variance.sqrt())
    # the most bits behind the point with which no sum can wrap
    finest = p.ring.fraction_bits
    assert SecureSketch(ones(n), 1, 1.0, 1.0, 1e-6, **settings, fraction_bits=finest).ring == p.ring
    with pytest.raises(ValueError, match=f"at most {finest}"):
        SecureSketch(
            ones(n),
            1,
            1.0,
            1.0,
            1e-6,
            **settings,
            fraction_bits=finest + 1,
        )
    # ten deviations of the noise beyond the fullest sum
    reach = n + 10 * math.sqrt(n) * float(p.sigma)
    reach *= p.ring.scale
    assert reach < 2 ** (bits - 1) <= 2.01 * reach


def test_noise_is_as_wide_on_the_grid_as_it_is_rounded_without_error():
    p = SecureSketch(ones(4000), 1, 1.0, 1.0, 1e-6)
    assert 2**27 < float(p.sigma) * p.ring.scale <= 2**28
    assert p.guarantee.arithmetic is Arithmetic.ROUNDED
    assert p.guarantee.delta == 1e-6
    words = p.randomize(torch.zeros(4000, 1), noise=SeededNoise(3)).values
    for bit in range(8):
        share = ((words >> bit) & 1).double().mean()
        assert abs(float(share) - 0.5) < 4 / math.sqrt(4 * 4000)
    with pytest.raises(ValueError, match="too wide"):
        SecureSketch(
            ones(4000),
            1,
            1.0,
            1.0,
            1e-6,
            fraction_bits=p.ring.fraction_bits + 1,
        )


@pytest.mark.filterwarnings("ignore:a grid of")
def test_guarantee_no_client_is_told_apart_better_than_mu():
    epsilon = 0.7
    delta = 1e-6
    for coalition in (AdaptiveCoalition(0), AdaptiveCoalition(3)):
        sketch = osnap(3000, 20, 3, generator=generator())
        for bits, f in ((64, 26), (32, 3), (32, 0)):
            p = SecureSketch(
                sketch,
                4,
                1.5,
                epsilon,
                delta,
                coalition=coalition,
                bits=bits,
                fraction_bits=f,
            )
            # its delta is that of real numbers, but for 2^-40
            if p.variation:
                real = GaussianNoise(p.sigma).guarantee(
                    sketch, 1.5, delta=delta, coalition=coalition
                )
                assert epsilon * (1 - 1e-3) < real.epsilon <= epsilon
                continue
            worst = 0.0
            # the proof's sum, client by client, with all honest pairs or fewer
            for i in range(0, 3000, 97):
                total = 0.0
                for c in range(3):
                    j = int(sketch.rows[c, i])
                    h = int(coalition.honest(sketch)[j])
                    sigma = float(p.sigma[j])
                    # D = 2 * 1.5, d = 4
                    rounding = 4 / (4 * 4.0**f)
                    cost = min(9 / k + rounding * k for k in range(1, h + 1))
                    total += cost / sigma**2
                worst = max(worst, total)
            exact = gaussian_log_delta(1.0, epsilon, math.sqrt(worst))
            assert math.log(delta) - 0.3 < exact <= math.log(delta)
            assert gaussian_log_delta(1.0, epsilon, math.sqrt(worst * 1.05)) > math.log(delta)
    assert p.guarantee.model is Model.LINEAR_TRANSFORM
    assert not p.guarantee.exact
    assert p.guarantee.epsilon == epsilon
    assert p.guarantee.delta == delta


def test_without_a_coalition_and_on_a_fine_grid_the_noise_is_the_ideal_one():
    p = SecureSketch(
        balanced_osnap(5000, 50, 5, generator=generator()),
        4,
        2.0,
        0.3,
        1e-6,
    )
    ideal = gaussian_sigma(0.3, 1e-6, 4.0) ** 2
    assert torch.allclose(
        p.row_variance,
        torch.full((50,), ideal, dtype=torch.float64),
        rtol=1e-7,
    )


@pytest.mark.filterwarnings("ignore:a grid of")
def test_a_grid_too_coarse_for_sums_drawn_at_once_is_refused():
    p = protocol(fraction_bits=2)
    with pytest.raises(ValueError, match="too coarse"):
        p.sample_estimate(p.summary(rows(60, 3)), generator=generator())
    assert p.estimate(rows(60, 3)).value.shape == (6, 3)


def test_rows_clipped_in_double_precision_pass():
    A = torch.nn.functional.normalize(normal(60, 3), dim=1)
    assert protocol().rows(A) is A
    short = shortened(A.float() * 3, 1.0)
    assert short.dtype == torch.float64
    assert protocol().rows(short) is short
    # float32's rounding makes a row longer than the bound
    with pytest.raises(ValueError, match="in float64"):
        protocol().rows(torch.nn.functional.normalize(A.float(), dim=1))
    with pytest.raises(ValueError, match=r"entry = 0\.5"):
        protocol(entry=0.5).rows(A)


def test_a_known_smaller_sensitivity_means_less_noise():
    full, less = (
        SecureSketch(ones(1000), 5, 1.0, 1.0, 1e-6, sensitivity=v) for v in (None, math.sqrt(2))
    )
    assert float(less.sigma / full.sigma) == pytest.approx(1 / math.sqrt(2), rel=1e-6)


def test_a_grid_that_costs_noise_warns_with_its_factor():
    with pytest.warns(UserWarning, match="times the least; take more fraction_bits"):
        p = SecureSketch(
            ones(10**6),
            10,
            1.0,
            10.0,
            1e-6,
            bits=32,
            fraction_bits=6,
        )
    least = gaussian_sigma(10.0, 1e-6, 2.0) ** 2
    assert p.grid_factor == pytest.approx(float(p.row_variance[0]) / least, rel=1e-6)
    assert p.variation == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecureSketch(ones(10**6), 10, 1.0, 1.0, 1e-6)
        SecureSketch(
            ones(1000),
            10,
            1.0,
            1.0,
            1e-6,
            bits=32,
            sensitivity=1.0,
            entry=0.5,
        )


def test_rows_further_apart_than_the_stated_sensitivity_are_refused():
    p = SecureSketch(ones(3), 2, 1.0, 1.0, 1e-6, sensitivity=0.25)
    near = float64([[0.0, 0.9], [0.0, 0.7], [0.1, 0.7]])
    assert p.estimate(near).value.shape == (1, 2)
    assert "at most 0.25 apart" in p.guarantee.source
    further = float64([[0.0, 0.9 - 0.26]])
    for verb in (p.randomize, p.collect):
        with pytest.raises(ValueError, match=r"more than sensitivity = 0\.25 apart"):
            verb(torch.cat([near[:2], -near[2:]]))
        with pytest.raises(ValueError, match=r"more than sensitivity = 0\.25 apart"):
            verb(torch.cat([near[:2], further]))


def test_the_same_numbers_in_other_types_are_the_same_session():
    sketch = ones(9)
    nonce = bytes(range(32))

    def session(kind, n):
        one = kind(1)
        coalition = AdaptiveCoalition(n)
        protocol = SecureSketch(
            sketch,
            1,
            one,
            kind(2),
            1e-6,
            sensitivity=one,
            entry=one,
            coalition=coalition,
        )
        return protocol.session(nonce)

    cases = (
        (int, 1),
        (float, np.int64(1)),
        (np.float32, torch.tensor(1)),
    )
    sessions = {session(*case) for case in cases}
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
    session = protocol().session(nonce)
    assert session == protocol().session(nonce)
    assert session != protocol().session(nonce[::-1])


@pytest.mark.parametrize(("servers", "megabytes"), [(3, 24.024), (2, 16.016)])
def test_bytes_are_those_of_the_paper(servers, megabytes):
    sketch = balanced_osnap(10**5, 100, 1, generator=generator())
    for bits in (32, 64):
        p = SecureSketch(
            sketch,
            10,
            1.0,
            1.0,
            1e-6,
            servers=servers,
            sensitivity=1.0,
            bits=bits,
        )
        assert p.payload_bytes == round(megabytes * 1e6) * bits // 64
        assert 8 * p.payload_bytes == 10**5 * p.bits_per_user + servers * 100 * 10 * bits
