"""The league's published methods are unbiased and err as their authors say; its script finds what it promises."""

import math

import numpy as np
import pytest
from scripts import loaded

K, USERS, TRIALS = 13, 20_000, 400


@pytest.fixture(scope="module")
def peers():
    with loaded("league/frequency_peers.py") as module:
        yield module


def histogram(rng):
    return rng.multinomial(USERS, rng.dirichlet(np.ones(K)))


NAMES = ("k-RR", "OUE", "SUE", "OLH", "subset selection", "Hadamard response", "HH_2", "HH_4", "HH_8", "HaarHRR")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [0.5, 2.5])
def test_published_histograms_are_unbiased(peers, name, epsilon):
    rng = np.random.default_rng(5)
    counts, every = histogram(rng), peers.HISTOGRAMS | peers.SMALL_HISTOGRAMS | peers.RANGES
    error = every[name](counts, epsilon, TRIALS, rng) - counts / USERS
    z = error.mean(0) / (error.std(0) / math.sqrt(TRIALS))
    assert np.abs(z).max() < 4.5
    assert np.abs(1.1 * counts / USERS - counts / USERS + error.mean(0)).max() > 3e-3  # a bias of a tenth is seen


def test_published_histograms_have_their_published_variance(peers):
    """Wang et al. (2017), Table 1: for rare types, times n. Negative control: of another epsilon."""
    rng, growth = np.random.default_rng(6), math.e
    counts = np.zeros(32, dtype=np.int64)
    counts[0] = USERS
    variance = {
        "k-RR": (growth + 30) / (growth - 1) ** 2,
        "OUE": 4 * growth / (growth - 1) ** 2,
        "SUE": math.sqrt(growth) / (math.sqrt(growth) - 1) ** 2,
        "OLH": 4 * growth / (growth - 1) ** 2,
    }
    for name, expected in variance.items():
        measured = USERS * peers.HISTOGRAMS[name](counts, 1.0, TRIALS, rng)[:, 1:].var()
        assert measured == pytest.approx(expected, rel=0.06), name
        assert measured != pytest.approx(
            USERS * peers.HISTOGRAMS[name](counts, 1.2, TRIALS, rng)[:, 1:].var(), rel=0.06
        )


def test_one_parity_a_user_is_unbiased_for_all_of_its_order(peers):
    rng, signs = np.random.default_rng(7), peers.hadamard(16)
    counts = rng.multinomial(USERS, rng.dirichlet(np.ones(16)))
    found = peers.fourier(2)(counts, 1.0, TRIALS, rng) @ signs
    sizes = np.array([each.bit_count() for each in range(16)])
    error = (found - counts @ signs / USERS)[:, sizes <= 2]
    assert np.abs(error.mean(0)).max() < 4.5 * error.std() / math.sqrt(TRIALS)
    assert np.abs(found[:, sizes > 2]).max() < 1e-12


def test_consistent_trees_are_least_squares(peers):
    rng = np.random.default_rng(8)
    levels = [rng.normal(size=(3, 3**level)) for level in (1, 2)]
    rows = np.concatenate([np.kron(np.eye(3**level), np.ones((1, 9 // 3**level))) for level in (1, 2)])
    answers = np.concatenate(levels, 1)
    free = np.linalg.lstsq(rows, answers.T, rcond=None)[0]
    spread = np.linalg.inv(rows.T @ rows) @ np.ones((9, 1))
    best = free + spread @ (1 - free.sum(0, keepdims=True)) / spread.sum()  # with sum 1
    np.testing.assert_allclose(peers.consistent_tree(levels, 3), best.T, atol=1e-12)


def test_norm_sub_is_the_nearest_histogram(peers):
    rng = np.random.default_rng(9)
    shares = rng.normal(size=(50, 6))
    near = peers.norm_sub(shares)
    np.testing.assert_allclose(near.sum(1), 1)
    others = rng.dirichlet(np.ones(6), (500, 1))
    slope = ((near - shares) * (others - near)).sum(-1)  # a projection's: no histogram is below it
    assert near.min() >= 0 and slope.min() > -1e-12


def test_published_pairs_are_unbiased():
    with loaded("league/pairwise_peers.py") as peers:
        rng, x = np.random.default_rng(10), np.arange(8.0)
        f, counts = np.abs(x[:, None] - x), rng.multinomial(USERS, rng.dirichlet(np.ones(8)))
        truth = counts @ f @ counts / (USERS * (USERS - 1))
        for peer in (peers.randomized_response([f], 0.0, np.eye(8)), peers.two_messages(f)):
            error = peer(counts, 1.0, TRIALS, rng) - truth
            assert abs(error.mean()) < 4.5 * error.std() / math.sqrt(TRIALS) < 0.05 * truth
