"""One noisy row for all copies: the law of its sums on lattices, written out, with and without the servers' noise."""

import itertools
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from contract import MessageContract
from laws import generator
from products import gaussian_delta
from scipy.special import ndtr

from torchdp.grid import lattice_variation
from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_sigma
from torchdp.protocol import Tally
from torchdp.secure import OneCopySecureSketch, SecureSketch
from torchdp.sketching import AdaptiveCoalition, Sketch, StaticCoalition, balanced_osnap

I = torch.arange(24)
UNEVEN = Sketch(torch.stack([I % 3, 4 + I % 2]), 1 - 2 * torch.stack([I % 5 % 2, I % 7 % 2]), 6)  # row 3 is empty


def rows(n, d, seed=5):
    x = torch.nn.functional.normalize(torch.randn(n, d, dtype=torch.float64, generator=generator(seed)), dim=1)
    return x * torch.rand(n, 1, dtype=torch.float64, generator=generator(seed)).mul(2).clamp(max=1)


def real_mu(protocol, gone=()):
    """Of the noise of clients who are not gone, over real numbers: the worst client's, by a dense inverse."""
    kept = torch.tensor([i for i in range(protocol.sketch.clients) if i not in gone])
    S = protocol.sketch.dense()[protocol.sketch.counts() > 0][:, kept]
    leverages = (S * torch.linalg.solve(S @ S.mT, S)).sum(0)
    return 2 * protocol.bound * math.sqrt(float(leverages.max())) / protocol.sigma


class TestOneCopySecureSketch(MessageContract):
    repeats = 4000
    protocol = OneCopySecureSketch(UNEVEN, 2, 1.0, 1.0, 1e-3, servers=3)
    x = rows(24, 2)
    bad: ClassVar = [rows(24, 3), 1.1 * rows(24, 2), rows(24, 2) * math.nan, rows(24, 2)[None], torch.zeros(25, 2)]

    def loss(self, protocol):
        return gaussian_delta(real_mu(protocol), self.protocol.epsilon)

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return UNEVEN.dense() @ self.x

    test_no_event_of_the_bits_that_leave_tells_more = None  # a thousand sums: with the slow tests

    @pytest.mark.slow
    def test_no_event_of_ten_million_tells_more(self):
        MessageContract.test_no_event_of_the_bits_that_leave_tells_more(self)


def rounded_normal(sigma, modulus):
    """The law of round(N(0, sigma^2)) modulo an even number, on 0, 1, ..."""
    z = np.arange(-8 * modulus, 8 * modulus)
    chances = ndtr((0.5 - np.abs(z)) / sigma) - ndtr((-0.5 - np.abs(z)) / sigma)
    return chances.reshape(-1, modulus).sum(0)


def law_of(columns, sigma, tau, modulus):
    """Of sum_i columns_i round(N(0, sigma^2)) + round(N(0, tau^2)) in each row, modulo an even number."""
    total = np.zeros((modulus,) * len(columns[0]))
    total[(0,) * total.ndim] = 1
    moves = [(column, sigma) for column in columns] + [
        (unit, tau) for unit in np.eye(total.ndim, dtype=int) if tau
    ]
    for column, deviation in moves:
        moved = np.zeros_like(total)
        for z, chance in enumerate(rounded_normal(deviation, modulus)):
            if chance > 1e-13:
                moved += chance * np.roll(total, tuple(int(z * v) for v in column), tuple(range(total.ndim)))
        total = moved
    return total


def worst_delta(law, columns, most, epsilon):
    """Over the clients and how far one moves, up to ``most`` units."""
    axes = tuple(range(law.ndim))
    return max(
        np.maximum(law - math.exp(epsilon) * np.roll(law, tuple(int(w * v) for v in column), axes), 0).sum()
        for column in {tuple(each) for each in columns}
        for w in range(1, most + 1)
    )


def signed(sketch):
    return (sketch.dense() * math.sqrt(sketch.copies)).round().long().T.tolist()


SIGNS = [[1, 1, -1, 1], [1, -1, 1, 1]], [[1, 1, 1, 1], [1, 1, -1, -1]], [[1, 1, 1, -1, 1, 1], [1, 1, 1, 1, -1, -1]]


@pytest.mark.filterwarnings("ignore:a grid of")
@pytest.mark.parametrize("signs", SIGNS)
def test_guarantee_of_the_integers_modulo_the_ring(signs):
    """What leaves where all is known but the honest server's noise and the clients': the law of sums, enumerated."""
    epsilon, delta, most = 1.0, 0.01, 16
    sketch = Sketch(torch.arange(2)[:, None].expand(2, len(signs[0])), torch.tensor(signs), 2)
    p = OneCopySecureSketch(sketch, 1, 1.0, epsilon, delta, fraction_bits=3)
    sigma, tau, columns = p.sigma * p.ring.scale, p.tau * p.ring.scale, signed(sketch)
    assert 0.2 * delta < worst_delta(law_of(columns, sigma, tau, 256), columns, most, epsilon) <= delta
    assert worst_delta(law_of(columns, 0.7 * sigma, tau / 2, 256), columns, most, epsilon) > delta


@pytest.mark.filterwarnings("ignore:a grid of")
def test_on_a_coarse_grid_the_claim_is_false_and_refused():
    """The last column is half the sum of the others, of whom the sums tell the parity: real numbers see none of it."""
    columns = [[1, 1, 0, 0], [1, -1, 0, 0], [0, 0, 1, 1], [0, 0, 1, -1], [1, 0, 0, 1]]
    T = torch.tensor(columns, dtype=torch.float64).T
    l, epsilon, delta = float((T.mT @ torch.linalg.solve(T @ T.mT, T)).diagonal()[4]), 3.0, 0.02
    assert l == pytest.approx(1 / 2)
    sigma = math.sqrt(l) * gaussian_sigma(epsilon, delta)
    assert worst_delta(law_of(columns, sigma, 0.0, 12), columns[4:], 1, epsilon) > 1.5 * delta
    rows = torch.tensor([[0, 0, 2, 2, 0], [1, 1, 3, 3, 3]])
    sketch = Sketch(rows, torch.tensor([[1, 1, 1, 1, 1], [1, -1, 1, -1, 1]]), 4)
    with pytest.raises(ValueError, match="too coarse"):
        OneCopySecureSketch(sketch, 1, 1.0, epsilon, delta, fraction_bits=0)


def test_sums_are_further_from_normals_where_noise_is_narrow_and_rows_are_many():
    sizes = {"clients": 10**6, "height": 100, "copies": 10, "columns": 10, "most": 10**5}
    fine = lattice_variation(200.0, 440.0, **sizes)
    assert 0 < fine < 1e-30
    for sigma, tau, other in (
        (2.9, 440.0, {}),
        (200.0, 330.0, {}),
        (10.0, 440.0, {}),
        (200.0, 440.0, {"copies": 13}),
    ):
        assert lattice_variation(sigma, tau, **{**sizes, **other}) == 1
    assert lattice_variation(200.0, 440.0, **{**sizes, "columns": 100}) == pytest.approx(10 * fine)
    p = OneCopySecureSketch(UNEVEN, 2, 1.0, 1.0, 1e-3)
    assert p.guarantee.variation > 0 and p.guarantee.mu is not None and p.guarantee.delta == 1e-3


def test_guarantee_against_every_coalition_of_its_size_and_none_that_holds_more():
    sketch = balanced_osnap(18, 4, 2, generator=generator())
    for t in (0, 1, 2):
        p = OneCopySecureSketch(sketch, 3, 1.0, 1.0, 1e-4, coalition=AdaptiveCoalition(t))
        found = max(real_mu(p, gone) for gone in itertools.combinations(range(18), t))
        assert gaussian_delta(found, 1.0) <= 1e-4
        more = max(real_mu(p, gone) for gone in itertools.combinations(range(18), 3))
        assert gaussian_delta(more, 1.0) > 1e-4 or t == 2
    plain = OneCopySecureSketch(sketch, 3, 1.0, 1.0, 1e-4)
    assert gaussian_delta(max(real_mu(plain, gone) for gone in ((0,), (1,), (2,))), 1.0) > 1e-4
    static = OneCopySecureSketch(sketch, 3, 1.0, 1.0, 1e-4, coalition=StaticCoalition(1))
    assert static.guarantee.mu is None and static.guarantee.delta == 1e-4


def test_a_tenth_of_the_words_and_hardly_more_noise():
    sketch = balanced_osnap(20_000, 100, 10, generator=generator())
    one, many = (kind(sketch, 10, 1.0, 1.0, 1e-6, servers=3) for kind in (OneCopySecureSketch, SecureSketch))
    assert one.bits_per_user * 10 == many.bits_per_user == 8 * 8 * 3 * 100
    assert 1 <= one.grid_factor < 1 + 1e-5
    assert 1 <= OneCopySecureSketch(sketch, 10, 1.0, 1.0, 1e-6, bits=32).grid_factor < 1 + 1e-4
    assert float((one.row_variance / many.row_variance).max()) < 1.15
    assert one.leverage * 20_000 / 100 == pytest.approx(
        float((one.row_variance / many.row_variance).max()), rel=1e-3
    )


@pytest.mark.filterwarnings("ignore:a grid of")
def test_words_are_one_row_a_client_and_servers_place_them():
    p = OneCopySecureSketch(UNEVEN, 2, 1.0, 1.0, 1e-3, servers=2, fraction_bits=20)
    words = p.randomize(rows(24, 2), noise=SeededNoise(1))
    assert words.values.shape == (1, 24, 2)
    total = torch.tensor(signed(UNEVEN)).T @ words.values[0]
    assert torch.equal(p.tally(words)["words"], total)
    collected = p.collect(rows(24, 2), noise=SeededNoise(1))["words"]
    away = (collected - total).double() / (p.tau * p.ring.scale * math.sqrt(2))  # both servers' noise
    assert 0.5 < float(away.std()) < 1.6 and float(away.abs().max()) < 5
    assert torch.equal(p.published(total, SeededNoise(2)) - total, p.published(total * 0, SeededNoise(2)))
    assert not torch.equal(p.published(total, SeededNoise(2)), p.published(total, SeededNoise(3)))
    off = p.analyse(Tally(24, {"words": collected})).value - UNEVEN.dense() @ rows(24, 2)
    assert float((off / p.row_variance.sqrt()[:, None])[UNEVEN.counts() > 0].abs().max()) < 5
    with pytest.raises(ValueError, match="too coarse"):
        replace(p, fraction_bits=0)
