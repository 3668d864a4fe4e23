"""The league: its judges know what they judge, failures are named, published methods err as their
authors say.
"""

import math
import sys

import numpy as np
import pytest
from scripts import loaded

K = 13
USERS = 20_000
TRIALS = 400


@pytest.fixture(scope="module")
def league():
    with loaded("league/run.py") as module:
        yield module


def test_failures_are_named(league, tmp_path, monkeypatch, capsys):
    """A fake peer in the place of the installed ones."""

    def answers(name, python, rows, config):
        for row in rows:
            good = {
                "answer": 4.5,
                "check": None,
                "seconds": 2.0,
                "MiB": 1.0,
                "version": "7",
            }
            yield row, {"failed": "no such call"} if name == "autodp" else good

    def installed(peer, folder):
        if peer == "opendp":
            raise OSError("no such wheel")
        return sys.executable

    monkeypatch.setattr(league, "answers", answers)
    monkeypatch.setattr(league, "installed", installed)
    rows = ("Gaussian calibration",)
    config = league.Config(only=("dp-accounting", "autodp", "opendp"), rows=rows, turns=1)
    found = league.EXPERIMENT.run(config, tmp_path)["league"]
    assert [line["side"] for line in found] == ["torchdp", "dp-accounting"]
    assert found[1]["version"] == 7
    page = (tmp_path / "league.md").read_text()
    assert "opendp: not installed: no such wheel" in page
    assert "autodp, Gaussian calibration: no such call" in page
    with pytest.raises(ValueError, match="opendb"):
        league.EXPERIMENT.run(league.Config(only=("opendb",)), tmp_path)
    capsys.readouterr()


def test_judges_see_what_is_wrong(league):
    """Negative controls: reports of another epsilon, noise a millionth too small, a strategy that
    lost a query.
    """
    rows = {row.name: row for row in league.ROWS}
    n = 10**6
    k = 16
    for name, row in rows.items():
        if row.seen != "epsilon":
            continue
        for epsilon in (1.0, 1.5):
            subset = 34 if name == "subset selection" else 1
            growth = math.exp(epsilon)
            types = 128 if subset == 34 else k
            own = subset * growth / (subset * growth + types - subset)
            own, other = (0.5, 1 / (growth + 1)) if name == "unary encoding" else (own, 0.1)
            check = [own * n, *[other * n] * (types - 1)]
            raw = np.full(types, 1 / types).tolist()
            verdict = row.judge(
                {"raw": raw},
                check,
                n=n,
                k=types,
                epsilon=1.0,
            )
            assert verdict["seen"] == pytest.approx(epsilon)
            assert verdict["error"] == verdict["mended"]
            assert (verdict["seen"] <= row.promised + row.slack) == (epsilon == 1.0)
    row = rows["Gaussian calibration"]
    for scale, holds in ((1.0, True), (1 - 1e-6, False)):
        verdict = row.judge(4.224678889347357 * scale, None, **row.settings)
        assert (verdict["seen"] <= 1 + row.slack) == holds
        assert verdict["error"] == pytest.approx(scale - 1, abs=1e-10)
    row = rows["prefix sums, mean"]
    for C, holds in ((2 * np.eye(4), True), (np.diag([1.0, 1, 1, 0]), False)):
        verdict = row.judge(C.tolist(), None, n=4)
        assert (verdict["seen"] <= row.slack) == holds
    # (1 + 2 + 3 + 4)/4
    assert row.judge(np.eye(4).tolist(), None, n=4)["error"] == pytest.approx(math.sqrt(2.5))
    twice = rows["four epochs"].judge(
        np.eye(4).tolist(),
        None,
        n=4,
        epochs=2,
    )
    # two columns of one person, orthogonal
    assert twice["error"] == pytest.approx(math.sqrt(5))
    row = rows["768 shuffled bits"]
    for deviation, holds in ((61.91, True), (61.0, False)):
        verdict = row.judge(deviation, None, **row.settings)
        assert (verdict["seen"] <= row.promised + row.slack) == holds
        assert verdict["error"] == deviation
    row, settings = (
        rows["one clipped step"],
        {
            "n": 5,
            "d": 3,
            "hidden": 4,
            "classes": 2,
            "bound": 0.5,
        },
    )
    verdict = row.judge([0.0] * 26, [0.4, 0.501], **settings)
    assert verdict["error"] == 1
    assert verdict["seen"] > row.promised + row.slack
    row, settings = rows["consistent marginals"], {"n": 1000, "size": 3, "sigma": 20.0}
    with loaded("league/sides/side.py") as side:
        true, noisy = side.marginals(**settings)
    for answers, holds in ((true, True), (noisy, False)):
        verdict = row.judge(answers.tolist(), None, **settings)
        assert (verdict["seen"] <= row.slack) == holds == (verdict["error"] == 0)


@pytest.fixture(scope="module")
def peers():
    with loaded("league/frequency_peers.py") as module:
        yield module


def histogram(rng):
    return rng.multinomial(USERS, rng.dirichlet(np.ones(K)))


@pytest.mark.parametrize("epsilon", [0.5, 2.5])
def test_published_histograms_are_unbiased(peers, epsilon):
    every = peers.HISTOGRAMS | peers.SMALL_HISTOGRAMS | peers.RANGES
    assert len(every) == 10
    for name, peer in every.items():
        rng = np.random.default_rng(5)
        counts = histogram(rng)
        error = peer(peers.Asked(counts, epsilon, TRIALS, rng)) - counts / USERS
        z = error.mean(0) / (error.std(0) / math.sqrt(TRIALS))
        # the largest of some ten deviations
        assert np.abs(z).max() < 4.5, name
        # a bias of a tenth is seen
        assert np.abs(0.1 * counts / USERS + error.mean(0)).max() > 3e-3, name


def test_published_histograms_have_their_published_variance(peers):
    """Wang et al. (2017), Table 1: for rare types, times n. Negative control: of another
    epsilon.
    """
    rng = np.random.default_rng(6)
    growth = math.e
    counts = np.zeros(32, dtype=np.int64)
    counts[0] = USERS
    variance = {
        "k-RR": (growth + 30) / (growth - 1) ** 2,
        "OUE": 4 * growth / (growth - 1) ** 2,
        "SUE": math.sqrt(growth) / (math.sqrt(growth) - 1) ** 2,
        "OLH": 4 * growth / (growth - 1) ** 2,
    }

    def measured(name, epsilon):
        drawn = peers.HISTOGRAMS[name](peers.Asked(counts, epsilon, TRIALS, rng))
        return USERS * drawn[:, 1:].var()

    for name, expected in variance.items():
        found = measured(name, 1.0)
        # a sample variance to six per cent
        assert found == pytest.approx(expected, rel=0.06), name
        assert found != pytest.approx(measured(name, 1.2), rel=0.06)


def test_one_parity_a_user_is_unbiased_for_all_of_its_order(peers):
    rng = np.random.default_rng(7)
    signs = peers.hadamard(16)
    counts = rng.multinomial(USERS, rng.dirichlet(np.ones(16)))
    found = peers.fourier(2)(peers.Asked(counts, 1.0, TRIALS, rng)) @ signs
    sizes = np.array([each.bit_count() for each in range(16)])
    error = (found - counts @ signs / USERS)[:, sizes <= 2]
    assert np.abs(error.mean(0)).max() < 4.5 * error.std() / math.sqrt(TRIALS)
    # exact for the pairs that are asked for
    assert np.abs(found[:, sizes > 2]).max() < 1e-12


def test_published_pairs_are_unbiased():
    with loaded("league/pairwise_peers.py") as peers:
        rng = np.random.default_rng(10)
        x = np.arange(8.0)
        f = np.abs(x[:, None] - x)
        counts = rng.multinomial(USERS, rng.dirichlet(np.ones(8)))
        truth = counts @ f @ counts / (USERS * (USERS - 1))
        for peer in (peers.randomized_response([f], 0.0, np.eye(8)), peers.two_messages(f)):
            error = peer(peers.frequency.Asked(counts, 1.0, TRIALS, rng)) - truth
            # unbiased, and the test could tell five per cent
            assert abs(error.mean()) < 4.5 * error.std() / math.sqrt(TRIALS) < 0.05 * truth
